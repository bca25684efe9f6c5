//! `lockwright bench --fabric rdma`: verbs and locks over this machine's own NIC, from a client to a host in this process, and
//! the verbs that we count set against what the port counts.
//!
//! On soft-RoCE the times say something about a CPU that plays a NIC, and nothing about RDMA.

use super::measure::{Runs, median};
use super::one_sided::{self, BesideCost, Local, RangeCost, RangeRuns};
use super::{Row, time};
use anyhow::{Context, Result};
use lockwright::Client;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{
    DeviceChoice, HostOptions, RdmaEndpoint, RdmaHost, RdmaOptions, port_counters, posted,
};
use lockwright_fabric::count::{Counted, Counts};
use lockwright_fabric::{Addr, Endpoint, Message, NodeId, PeerId, Word64};
use lockwright_locks::shiftlock::{ShiftLock, portable::Portable};
use lockwright_locks::{LockClient, Protocol, Space, Want};
use lockwright_server::{Server, ServerOptions};
use lockwright_term::{Outcome, grid};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// What one thing costs.
struct Cost {
    what: &'static str,
    ns: f64,
    /// Per cycle. Of whole spaces: everything that is posted, by client and server.
    verbs: f64,
    /// If they are counted.
    round_trips: Option<f64>,
}

/// How many cycles make a run.
const CYCLES: u32 = 50;

fn host(fabric: InProc, device: &DeviceChoice) -> Result<RdmaHost> {
    let options = HostOptions { device: device.clone(), ..HostOptions::default() };
    Ok(RdmaHost::start(fabric, vec![], options, |_| {})?)
}

fn connect(host: &RdmaHost, device: &DeviceChoice) -> Result<Counted<RdmaEndpoint>> {
    let options = RdmaOptions { device: device.clone(), ..RdmaOptions::default() };
    Ok(Counted::new(RdmaEndpoint::connect(host.address(), options)?))
}

/// Times `cycle` and counts what it costs.
fn measure(
    what: &'static str,
    runs: usize,
    ep: &Counted<RdmaEndpoint>,
    mut cycle: impl FnMut() -> Result<()>,
) -> Result<Cost> {
    cycle()?;
    let (before, mut times) = (ep.tally().snapshot(), Vec::new());
    for _ in 0..runs {
        let began = Instant::now();
        for _ in 0..CYCLES {
            cycle()?;
        }
        times.push(began.elapsed().as_nanos() as f64 / f64::from(CYCLES));
    }
    let cost = ep.tally().snapshot() - before;
    let cycles = runs as f64 * f64::from(CYCLES);
    let (verbs, round_trips) = (cost.verbs() as f64 / cycles, cost.round_trips as f64 / cycles);
    Ok(Cost { what, ns: median(times), verbs, round_trips: Some(round_trips) })
}

fn verbs(runs: usize, ep: &Counted<RdmaEndpoint>) -> Result<Vec<Cost>> {
    let word = Word64::at(Addr::new(NodeId(0), 64));
    let say = || ep.clone();
    let mut costs = vec![
        measure("READ", runs, ep, || Ok(block_on(say().go(word.read())).map(drop)?))?,
        measure("WRITE", runs, ep, || Ok(block_on(say().go(word.write(1))).map(drop)?))?,
        measure("compare-and-swap", runs, ep, || Ok(block_on(say().go(word.cas(1, 1))).map(drop)?))?,
        measure("fetch-and-add", runs, ep, || Ok(block_on(say().go(word.fetch_add(0))).map(drop)?))?,
    ];
    let batch = (word.fetch_add(0), word.fetch_add(0), word.fetch_add(0), word.fetch_add(0));
    costs.push(measure("four in one doorbell", runs, ep, || Ok(block_on(say().go(batch)).map(drop)?))?);
    Ok(costs)
}

fn lock<P: Protocol>(
    what: &'static str,
    runs: usize,
    params: &P::Params,
    device: &DeviceChoice,
) -> Result<(Cost, Counts)> {
    let space = Space::of(1);
    let fabric = InProc::new(space.nodes, P::bytes_per_node(&space, params));
    for (addr, value) in P::initial_memory(&space, params) {
        fabric.poke(Word64::at(addr), value);
    }
    let host = host(fabric, device)?;
    let ep = connect(&host, device)?;
    let client = P::client(ep.clone(), &space, params);
    let cost = measure(what, runs, &ep, || {
        let grant = block_on(client.acquire(Want::exclusive(0))).context("the lock is free")?;
        block_on(client.release(grant)).context("the lock is held")
    })?;
    Ok((cost, ep.tally().snapshot()))
}

/// What a bare spin lock costs: a CAS that takes it, a WRITE that frees it.
fn spin_lock(runs: usize, device: &DeviceChoice) -> Result<(Cost, Counts)> {
    let host = host(InProc::new(1, 64), device)?;
    let ep = connect(&host, device)?;
    let word = Word64::at(Addr::new(NodeId(0), 0));
    let cost = measure("CAS lock, lock and unlock", runs, &ep, || {
        anyhow::ensure!(block_on(ep.go(word.cas(0, 1)))? == 0, "the lock is free");
        Ok(block_on(ep.go(word.write(0))).map(drop)?)
    })?;
    Ok((cost, ep.tally().snapshot()))
}

/// A lock of a server, as users have it: taken by verbs of the client's own, and by asking the server.
fn spaces(runs: usize, device: &DeviceChoice) -> Result<Vec<Cost>> {
    let options = ServerOptions::default().listen("127.0.0.1:0".parse()?).lend("bench");
    let server = Server::start(options.rdma("127.0.0.1:0".parse()?, device.clone()))?;
    let (address, _) = server.rdma().context("the server has an RDMA side")?;
    let mut costs = Vec::new();
    for (what, space) in [
        ("rdma://…/lent:NAME, by own verbs, lock and unlock", "lent:bench"),
        ("rdma://…/NAME, by the server's combiner, lock and unlock", "bench"),
    ] {
        // Every lock is asked for: one that stays with its client posts nothing.
        let client = Client::options()
            .rdma_device(device.clone())
            .retain(false)
            .open(&format!("rdma://{address}/{space}"))
            .wait()?;
        let lock = client.mutex("job")?;
        let cycle = || -> Result<()> { Ok(lock.lock().wait()?.unlock().wait()?) };
        cycle()?;
        let (before, mut times) = (posted(), Vec::new());
        for _ in 0..runs {
            let began = Instant::now();
            for _ in 0..CYCLES {
                cycle()?;
            }
            times.push(began.elapsed().as_nanos() as f64 / f64::from(CYCLES));
        }
        let verbs = (posted() - before) as f64 / (runs as f64 * f64::from(CYCLES));
        costs.push(Cost { what, ns: median(times), verbs, round_trips: None });
    }
    Ok(costs)
}

/// Locks of a space that processes of this host are in, too, as one of these takes them while clients come by the NIC.
fn beside(runs: usize, device: &DeviceChoice) -> Result<[BesideCost; 2]> {
    let options = ServerOptions::default().listen("127.0.0.1:0".parse()?);
    let local = Local::new(options.rdma("127.0.0.1:0".parse()?, device.clone()))?;
    let (address, _) = local.server().rdma().context("the server has an RDMA side")?;
    let options = Client::options().rdma_device(device.clone());
    one_sided::beside(&local, runs, &format!("rdma://{address}"), &options)
}

/// A range beside others that are held, as users have it.
fn ranges(runs: RangeRuns, device: &DeviceChoice) -> Result<Vec<RangeCost>> {
    let options = one_sided::lend(ServerOptions::default().listen("127.0.0.1:0".parse()?))?;
    let server = Server::start(options.rdma("127.0.0.1:0".parse()?, device.clone()))?;
    let (address, _) = server.rdma().context("the server has an RDMA side")?;
    let options = Client::options().rdma_device(device.clone());
    one_sided::ranges(runs, &format!("rdma://{address}"), &options, posted)
}

/// What a round trip costs that the kernel's network carries.
fn tcp_round_trip(runs: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut other, _) = listener.accept()?;
        other.set_nodelay(true)?;
        let mut word = [0; 8];
        while other.read_exact(&mut word).is_ok() {
            other.write_all(&word)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let (mut times, mut word) = (Vec::new(), [7; 8]);
    for _ in 0..runs {
        let began = Instant::now();
        for _ in 0..CYCLES {
            stream.write_all(&word)?;
            stream.read_exact(&mut word)?;
        }
        times.push(began.elapsed().as_nanos() as f64 / f64::from(CYCLES));
    }
    drop(stream);
    let _ = echo.join();
    Ok(median(times))
}

/// Our count of something, and the port's.
struct Counter {
    what: &'static str,
    ours: u64,
    name: &'static str,
    ports: u64,
    /// Whether the two have to be equal; else the port counts retries and acknowledgements, too, and has more.
    equal: bool,
}

impl Counter {
    fn holds(&self) -> bool {
        if self.equal { self.ours == self.ports } else { self.ports >= self.ours }
    }
}

/// Those counters of the port that say what ours say.
fn counters(ours: Counts, before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<Counter> {
    let atomics = ours.cas + ours.fetch_adds;
    let packets = ours.verbs() + ours.sent;
    let known = [
        // Soft-RoCE.
        ("messages sent", ours.sent, "rdma_sends", true),
        ("messages received", ours.received, "rdma_recvs", true),
        ("packets out, at least one per verb and one per answer", 2 * packets, "sent_pkts", false),
        ("packets in, likewise", 2 * packets, "rcvd_pkts", false),
        // mlx5.
        ("READs", ours.reads, "rx_read_requests", true),
        ("WRITEs and messages", ours.writes + ours.sent, "rx_write_requests", false),
        ("atomics", atomics, "rx_atomic_requests", true),
    ];
    let known = known.into_iter().filter_map(|(what, ours, name, equal)| {
        let ports = after.get(name)?.wrapping_sub(*before.get(name)?);
        Some(Counter { what, ours, name, ports, equal })
    });
    known.collect()
}

/// Messages in both directions between two clients of a host.
fn messages(ep: &Counted<RdmaEndpoint>, other: &Counted<RdmaEndpoint>) -> Result<()> {
    let (me, them): (PeerId, PeerId) = (ep.me(), other.me());
    for round in 0..20 {
        block_on(ep.send(them, Message::new(0, 1, &[round])))?;
        block_on(other.recv(|_, message| (message.words[0] == round).then_some(())));
        block_on(other.send(me, Message::new(0, 1, &[round])))?;
        block_on(ep.recv(|_, message| (message.words[0] == round).then_some(())));
    }
    Ok(())
}

fn sum(a: Counts, b: Counts) -> Counts {
    // There is a difference, and no sum: a − (0 − b) would wrap.
    Counts {
        reads: a.reads + b.reads,
        writes: a.writes + b.writes,
        cas: a.cas + b.cas,
        fetch_adds: a.fetch_adds + b.fetch_adds,
        sent: a.sent + b.sent,
        received: a.received + b.received,
        round_trips: a.round_trips + b.round_trips,
        ..Counts::default()
    }
}

/// The whole of it.
pub(super) fn run(runs: &Runs, device: &DeviceChoice, json: bool, out: &mut impl Write) -> Result<Outcome> {
    let (quick, runs) = (runs.is_quick(), runs.runs.min(41));
    let host = host(InProc::new(1, 4096), device)?;
    let (ep, other) = (connect(&host, device)?, connect(&host, device)?);
    let port = device.port.unwrap_or(1);
    let before = port_counters(host.device(), port);
    let mut costs = verbs(runs, &ep)?;
    messages(&ep, &other)?;
    let mut ours = sum(ep.tally().snapshot(), other.tally().snapshot());
    let (cas, counted) = spin_lock(runs, device)?;
    ours = sum(ours, counted);
    let (shift, counted) = lock::<ShiftLock<Portable>>(
        "ShiftLock (portable), lock and unlock",
        runs,
        &lockwright_locks::shiftlock::ShiftParams::default(),
        device,
    )?;
    ours = sum(ours, counted);
    costs.extend([cas, shift]);
    let after = port_counters(host.device(), port);
    costs.extend(spaces(runs, device)?);
    let beside = beside(runs, device)?;
    costs.extend(beside.iter().zip(["of its own", "that they take, too"]).map(|(cost, which)| {
        let what = format!("shm:lent:NAME {which}, by CPU instructions, while others come by verbs").leak();
        Cost { what, ns: cost.ns, verbs: cost.posted, round_trips: None }
    }));
    // An exact range with hundreds held is hundreds of round trips, and soft-RoCE is slow.
    let few = if quick { RangeRuns { runs: 3, cycles: 3 } } else { RangeRuns { runs, cycles: 10 } };
    let ranges = ranges(few, device)?;
    costs.extend(ranges.iter().map(|cost| {
        let kind = if cost.on_tree { "lent:NAME, range on a tree" } else { "lent:NAME, exact range" };
        let what = format!("{kind}, {} held", cost.held).leak();
        Cost { what, ns: cost.ns, verbs: cost.posted, round_trips: Some(cost.round_trips) }
    }));
    let mut compared = one_sided::compared(&ranges);
    compared.extend(one_sided::compared_beside(&beside));
    let tcp_ns = tcp_round_trip(runs)?;
    let counters = counters(ours, &before, &after);
    if json {
        for Cost { what, ns, verbs, round_trips } in &costs {
            let line = json!({
                "device": host.device(), "what": what, "ns": ns, "verbs": verbs, "round_trips": round_trips,
                "tcp_round_trip_ns": tcp_ns,
            });
            writeln!(out, "{line}")?;
        }
        for row in &compared {
            writeln!(out, "{}", row.to_json(None))?;
        }
        for Counter { what, ours, name, ports, .. } in &counters {
            writeln!(out, "{}", json!({ "what": what, "ours": ours, "counter": name, "ports": ports }))?;
        }
    } else {
        let mut rows = vec![["", "takes", "verbs", "round trips", "tcp round trips"].map(str::to_owned)];
        for Cost { what, ns, verbs, round_trips } in &costs {
            let ratio = format!("{:.2}", ns / tcp_ns);
            rows.push([
                (*what).to_owned(),
                time(*ns),
                format!("{verbs:.2}"),
                round_trips.map_or_else(String::new, |trips| format!("{trips:.2}")),
                ratio,
            ]);
        }
        grid(out, &rows)?;
        grid(out, &compared.iter().map(Row::to_row).collect::<Vec<_>>())?;
        writeln!(out, "\na tcp round trip of eight bytes on this machine takes {}", time(tcp_ns))?;
        if counters.is_empty() {
            writeln!(
                out,
                "the driver of {} publishes no counters that ours could be held against",
                host.device()
            )?;
        } else {
            let mut rows = vec![["", "ours", "the port's", "", ""].map(str::to_owned)];
            for counter in &counters {
                let verdict = if counter.holds() { "agrees" } else { "DIFFERS" };
                rows.push([
                    counter.what.to_owned(),
                    counter.ours.to_string(),
                    counter.ports.to_string(),
                    counter.name.to_owned(),
                    verdict.to_owned(),
                ]);
            }
            grid(out, &rows)?;
        }
    }
    let is_local_silent = beside.iter().all(|cost| cost.posted == 0.0);
    anyhow::ensure!(is_local_silent, "a lock of the host's processes was taken by verbs");
    Ok(Outcome::clean_if(counters.iter().all(Counter::holds) && compared.iter().all(Row::holds)))
}
