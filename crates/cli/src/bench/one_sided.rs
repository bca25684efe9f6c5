//! One-sided spaces, whose locks clients take by verbs of their own: those that processes of the host are in, too, beside plain ones;
//! and ranges on trees beside exact ones, while others are held.
//!
//! By default over tcp, where the server executes the verbs: a time says what this machine's network makes of round trips.

use super::measure::{Runs, median};
use super::shm::Place;
use super::{Bound, Row};
use anyhow::{Context, Result};
use lockwright::internal::round_trips;
use lockwright::{Client, ClientOptions, RangeLock, RangeWriteGuard};
use lockwright_fabric::backend::shm::space_path;
use lockwright_server::{Server, ServerOptions};
use std::time::Instant;

/// Ranges that are held meanwhile.
const HELD: [u64; 4] = [1, 16, 64, 256];
/// Of those, one client holds so many.
const HELD_BY_ONE: u64 = 32;
/// Numbers of a range: a unit.
const UNIT: u64 = 16;
/// How many cycles make a run.
const CYCLES: u32 = 10;

/// A server with a space that processes of this host are in, too. Its file goes with it.
pub(super) struct Local {
    name: String,
    _server: Server,
}

impl Local {
    pub(super) fn new(options: ServerOptions) -> Result<Self> {
        let name = format!("bench-{}", std::process::id());
        let options = options.lend_local(&name, 8).map_err(anyhow::Error::msg)?;
        Ok(Self { name, _server: Server::start(options)? })
    }

    /// As processes of this host open it.
    pub(super) fn client(&self) -> Result<Client> {
        Ok(Client::open(&format!("shm:lent:{}", self.name)).wait()?)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Ok(path) = space_path(&format!("lent.{}", self.name)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Of a space that processes of this host are in, too.
pub(super) fn local(place: &Place, runs: &Runs) -> Result<Row> {
    const CYCLES: u32 = 20_000;
    let local = Local::new(ServerOptions::default().listen("127.0.0.1:0".parse()?))?;
    let (lent, plain) = (local.client()?.mutex("mutex")?, Client::open(&place.space).wait()?.mutex("plain")?);
    let before = round_trips();
    let [plain_ns, lent_ns] = runs.take_turns([
        (CYCLES, &mut || drop(plain.lock().wait())),
        (CYCLES, &mut || drop(lent.lock().wait())),
    ]);
    anyhow::ensure!(round_trips() == before, "a lock of the host's processes was taken by verbs");
    Ok(Row {
        what: "shm:lent: mutex (one-sided space with --local), lock and unlock",
        ns: lent_ns,
        against: "shm: mutex, lock and unlock",
        other_ns: plain_ns,
        bound: Bound::AtMost(3.0),
        made_of: "a ticket, the side's word and the head; the record written and cleared; a future of its own, where the plain \
                  mutex has a fast path inlined",
    })
}

/// What a range costs with so many others held.
#[derive(Clone, Copy, Debug)]
pub(super) struct RangeCost {
    pub(super) held: u64,
    pub(super) on_tree: bool,
    pub(super) ns: f64,
    /// Per lock and unlock.
    pub(super) round_trips: f64,
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "tcp posts nothing"))]
    pub(super) posted: f64,
}

/// The spaces that [`ranges`] needs.
pub(super) fn lend(options: ServerOptions) -> Result<ServerOptions> {
    options.lend("bench").lend_tree("trees", UNIT, 1024, 16).map_err(anyhow::Error::msg)
}

/// A range of each kind of space at `url`, beside others that are held; `posted` counts work requests.
pub(super) fn ranges(
    runs: usize,
    url: &str,
    options: &ClientOptions,
    posted: impl Fn() -> u64,
) -> Result<Vec<RangeCost>> {
    let mut costs = Vec::new();
    for on_tree in [false, true] {
        let space = format!("{url}/lent:{}", if on_tree { "trees" } else { "bench" });
        let open = || -> Result<RangeLock> { Ok(options.clone().open(&space).wait()?.range_lock("job")?) };
        let mut guards: Vec<RangeWriteGuard> = Vec::new();
        let mut holder = open()?;
        for held in HELD {
            while (guards.len() as u64) < held {
                let index = guards.len() as u64;
                if index > 0 && index.is_multiple_of(HELD_BY_ONE) {
                    holder = open()?;
                }
                guards.push(holder.write(index * UNIT..(index + 1) * UNIT).wait()?);
            }
            let lock = open()?;
            let free = held * UNIT..(held + 1) * UNIT;
            let cycle = || -> Result<()> { Ok(lock.write(free.clone()).wait()?.unlock().wait()?) };
            cycle().context("nobody holds it")?;
            let (trips, verbs, mut times) = (round_trips(), posted(), Vec::new());
            for _ in 0..runs {
                let began = Instant::now();
                for _ in 0..CYCLES {
                    cycle()?;
                }
                times.push(began.elapsed().as_nanos() as f64 / f64::from(CYCLES));
            }
            let per_cycle = |count: u64| count as f64 / (runs as f64 * f64::from(CYCLES));
            let (round_trips, posted) = (per_cycle(round_trips() - trips), per_cycle(posted() - verbs));
            costs.push(RangeCost { held, on_tree, ns: median(times), round_trips, posted });
        }
    }
    Ok(costs)
}

/// Trees beside exact ranges.
pub(super) fn compared(costs: &[RangeCost]) -> Vec<Row> {
    let find = |held, on_tree| costs.iter().find(|cost| (cost.held, cost.on_tree) == (held, on_tree));
    let rows = HELD.iter().filter_map(|held| {
        let (exact, tree) = (find(*held, false)?, find(*held, true)?);
        let text = |kind: &str, cost: &RangeCost| -> &'static str {
            format!("{kind}, {held} held, {:.1} round trips", cost.round_trips).leak()
        };
        Some(Row {
            what: text("one-sided range on a tree", tree),
            ns: tree.ns,
            against: text("one-sided exact range", exact),
            other_ns: exact.ns,
            bound: match held {
                1 => Bound::Faster(2.0),
                256 => Bound::Faster(10.0),
                _ => Bound::Shown,
            },
            made_of: "a round trip to lock; an exact range takes its gate and reads the records of all clients",
        })
    });
    rows.collect()
}

/// Over tcp.
pub(super) fn over_tcp(runs: &Runs) -> Result<Vec<Row>> {
    let options = lend(ServerOptions::default().listen("127.0.0.1:0".parse()?))?;
    let server = Server::start(options)?;
    let url = format!("tcp://{}", server.address());
    Ok(compared(&ranges(runs.runs.min(41), &url, &Client::options(), || 0)?))
}
