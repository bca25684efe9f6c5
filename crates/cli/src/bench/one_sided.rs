//! One-sided spaces, whose locks clients take by verbs of their own: those that processes of the host are in, too, beside plain ones,
//! and while clients elsewhere take their locks; and ranges on trees beside exact ones, while others are held.
//!
//! By default over tcp, where the server executes the verbs: a time says what this machine's network makes of round trips.

use super::measure::{Runs, median};
#[cfg(feature = "rdma")]
use super::partner::Partner;
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

/// How often a range is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct RangeRuns {
    pub(super) runs: usize,
    /// How many cycles make a run.
    pub(super) cycles: u32,
}

/// A server with a space that processes of this host are in, too. Its file goes with it.
pub(super) struct Local {
    name: String,
    #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "it is there to serve"))]
    server: Server,
}

impl Local {
    pub(super) fn new(options: ServerOptions) -> Result<Self> {
        let name = format!("bench-{}", std::process::id());
        let options = options.lend_local(&name, 8).map_err(anyhow::Error::msg)?;
        Ok(Self { name, server: Server::start(options)? })
    }

    #[cfg(feature = "rdma")]
    pub(super) const fn server(&self) -> &Server {
        &self.server
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

/// What a lock of a space with `--local` costs a process of the host while clients elsewhere take locks of it.
#[cfg(feature = "rdma")]
#[derive(Debug)]
pub(super) struct BesideCost {
    pub(super) ns: f64,
    /// A mutex of a plain space, in turns with it.
    pub(super) plain_ns: f64,
    /// Work requests that the process posts per lock and unlock.
    pub(super) posted: f64,
    /// Locks and unlocks of the clients elsewhere meanwhile.
    pub(super) theirs: u64,
}

/// Clients elsewhere that take locks meanwhile.
#[cfg(feature = "rdma")]
const ELSEWHERE: usize = 2;

/// What a mutex costs a process of the host, of its own while clients at `url` take another, and then the one that they take, too.
#[cfg(feature = "rdma")]
pub(super) fn beside(
    local: &Local,
    runs: usize,
    url: &str,
    options: &ClientOptions,
) -> Result<[BesideCost; 2]> {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    let mut here = Partner::start("beside", &format!("shm:lent:{}", local.name), 0)?;
    let (stop, theirs) = (AtomicBool::new(false), AtomicU64::new(0));
    let hammer = || -> Result<()> {
        let lock = options.clone().open(&format!("{url}/lent:{}", local.name)).wait()?.mutex("theirs")?;
        while !stop.load(Relaxed) {
            lock.lock().wait()?.unlock().wait()?;
            theirs.fetch_add(1, Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        let hammers: Vec<_> = (0..ELSEWHERE).map(|_| threads.spawn(hammer)).collect();
        let mut ask = |name: &str, cycles: u32| -> Result<BesideCost> {
            while theirs.load(Relaxed) == 0 && !hammers.iter().any(|hammer| hammer.is_finished()) {
                std::thread::yield_now();
            }
            let before = theirs.load(Relaxed);
            let said = here.ask(&format!("{name} {runs} {cycles}"))?;
            let figures: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [plain_ns, ns, posted] = figures[..] else { anyhow::bail!("it said {said:?}") };
            Ok(BesideCost { ns, plain_ns, posted, theirs: theirs.load(Relaxed) - before })
        };
        let costs = ask("mine", 20_000).and_then(|mine| Ok([mine, ask("theirs", 20)?]));
        stop.store(true, Relaxed);
        hammers.into_iter().try_for_each(|hammer| hammer.join().expect("it does not panic"))?;
        here.end()?;
        costs
    })
}

/// The process of the host, until its input is closed: of every line `NAME RUNS CYCLES` it tells what [`BesideCost`] has.
#[cfg(feature = "rdma")]
pub(super) fn partner(space: &str) -> Result<()> {
    use lockwright_fabric::backend::rdma::posted;
    use std::io::{BufRead, Write};
    let place = Place::new()?;
    let (client, plain) = (Client::open(space).wait()?, Client::open(&place.space).wait()?.mutex("plain")?);
    let mut out = super::partner::ready()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, runs, cycles] = words[..] else { anyhow::bail!("no such question: {line}") };
        let (lent, cycles, before) = (client.mutex(name)?, cycles.parse()?, posted());
        let runs = Runs { runs: runs.parse()?, ..Runs::new(true) };
        let [plain_ns, ns] = runs.take_turns([
            (cycles, &mut || drop(plain.lock().wait())),
            (cycles, &mut || drop(lent.lock().wait())),
        ]);
        let per_cycle = (posted() - before) as f64 / (1.0 + runs.runs as f64) / f64::from(cycles);
        writeln!(out, "{plain_ns} {ns} {per_cycle}")?;
        out.flush()?;
    }
    Ok(())
}

/// Those beside plain ones.
#[cfg(feature = "rdma")]
pub(super) fn compared_beside([mine, theirs]: &[BesideCost; 2]) -> [Row; 2] {
    let row = |what: &str, cost: &BesideCost, bound| Row {
        what: format!("shm:lent: mutex {what}, beside {} cycles elsewhere", cost.theirs).leak(),
        ns: cost.ns,
        against: "shm: mutex, lock and unlock",
        other_ns: cost.plain_ns,
        bound,
        made_of: "a ticket, the side's word and the head; the record written and cleared; a future of its own",
    };
    [row("of its own", mine, Bound::AtMost(3.0)), row("that they take, too", theirs, Bound::Shown)]
}

/// The spaces that [`ranges`] needs.
pub(super) fn lend(options: ServerOptions) -> Result<ServerOptions> {
    options.lend("bench").lend_tree("trees", UNIT, 1024, 16).map_err(anyhow::Error::msg)
}

/// A range of each kind of space at `url`, beside others that are held; `posted` counts work requests.
pub(super) fn ranges(
    RangeRuns { runs, cycles }: RangeRuns,
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
                for _ in 0..cycles {
                    cycle()?;
                }
                times.push(began.elapsed().as_nanos() as f64 / f64::from(cycles));
            }
            let per_cycle = |count: u64| count as f64 / (runs as f64 * f64::from(cycles));
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
    let runs = RangeRuns { runs: runs.runs.min(41), cycles: 10 };
    Ok(compared(&ranges(runs, &url, &Client::options(), || 0)?))
}
