//! Locks on real queue pairs: remote clients by the NIC's verbs, and, for the asymmetric lock, local threads by CPU atomics
//! on the very same words. Nobody loses an update, and a client that is killed is fenced and its lock recovered.
//!
//! Needs a device; see `cargo xtask soft-roce`.

#![expect(clippy::disallowed_methods, reason = "real threads and processes are what is tested here")]

use lockwright_baselines::{cas::Cas, mcs::Mcs};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{HostOptions, RdmaEndpoint, RdmaHost, RdmaOptions, has_device};
use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Word64};
use lockwright_locks::citron::Citron;
use lockwright_locks::combiner::Combiner;
use lockwright_locks::qplock::{QpLock, QpParams};
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams, portable::Portable};
use lockwright_locks::{Grant, LockClient, Patience, Protocol, Space, Want};
use lockwright_sim::check::history::{History, Log};
use nix::time::{ClockId, clock_gettime};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const REMOTE: usize = 3;
const CYCLES: u64 = 60;

/// A host with the lock's memory and roles.
fn host<P: Protocol>(space: &Space, params: &P::Params, first_client: usize) -> RdmaHost {
    let fabric = InProc::new(space.nodes, P::bytes_per_node(space, params));
    for (addr, value) in P::initial_memory(space, params) {
        fabric.poke(Word64::at(addr), value);
    }
    let options = HostOptions { first_client, ..HostOptions::default() };
    RdmaHost::start(fabric, P::roles(space, params), options, |_| {}).expect("a device can be used")
}

/// The counter is read and written in two steps, so that two clients inside at once lose an update.
fn cycle<C: LockClient>(client: &C, counter: &AtomicU64, want: Want) {
    for _ in 0..CYCLES {
        let grant = block_on(client.acquire(want)).expect("granted");
        let seen = counter.load(Relaxed);
        std::thread::yield_now();
        counter.store(seen + 1, Relaxed);
        block_on(client.release(grant)).expect("released");
    }
}

fn loses_no_update<P: Protocol>(
    space: Space,
    params: &P::Params,
    emulate_masks: bool,
    local: usize,
    want: Want,
) where
    P::Params: Sync,
{
    if !has_device() {
        return;
    }
    let host = host::<P>(&space, params, local);
    let connect = |_| {
        let options = RdmaOptions { emulate_masks, ..RdmaOptions::default() };
        RdmaEndpoint::connect(host.address(), options).expect("the host lets it in")
    };
    let remote: Vec<_> = (0..REMOTE).map(connect).collect();
    P::needs(params).met_by(P::INFO.name, remote[0].capabilities()).expect("the NIC can do it");
    let counter = AtomicU64::new(0);
    // Not optimised, Citron's acquire takes more than a megabyte of the stack, and twice that where it clears away after
    // a client that was stopped for longer than its lease, as an emulated machine may have it.
    let thread = || std::thread::Builder::new().stack_size(8 << 20);
    std::thread::scope(|scope| {
        for ep in &remote {
            let (counter, space) = (&counter, &space);
            let work = move || cycle(&P::client(ep.clone(), space, params), counter, want);
            thread().spawn_scoped(scope, work).expect("a thread");
        }
        for index in 0..local {
            let ep = host.local(PeerId::client(index), NodeId(0));
            let (counter, space) = (&counter, &space);
            let work = move || cycle(&P::client(ep, space, params), counter, want);
            thread().spawn_scoped(scope, work).expect("a thread");
        }
    });
    assert_eq!(counter.into_inner(), (REMOTE + local) as u64 * CYCLES, "{}", P::INFO.name);
}

#[test]
fn cas_loses_no_update() {
    loses_no_update::<Cas>(Space::of(2), &(), false, 0, Want::exclusive(0));
}

#[test]
fn mcs_loses_no_update() {
    loses_no_update::<Mcs>(Space::of(2), &(), true, 0, Want::exclusive(0));
}

#[test]
fn shiftlock_with_the_portable_entry_loses_no_update() {
    let params = ShiftParams::default();
    loses_no_update::<ShiftLock<Portable>>(Space::of(2), &params, false, 0, Want::exclusive(1));
}

#[test]
fn citron_with_emulated_masks_loses_no_update() {
    use lockwright_fabric::observe::Mode;
    let want = Want::range(0, Mode::Exclusive, 60, 70);
    loses_no_update::<Citron>(Space::of(1).units(1 << 12), &Default::default(), true, 0, want);
}

#[test]
fn the_combiner_loses_no_update() {
    loses_no_update::<Combiner>(Space::of(2), &Default::default(), false, 0, Want::exclusive(0));
}

#[test]
fn the_asymmetric_lock_loses_no_update_between_cpu_and_nic() {
    let params = QpParams { clients: 5, ..QpParams::default() };
    loses_no_update::<QpLock>(Space::of(1), &params, false, 2, Want::exclusive(0));
}

const HOST: &str = "LOCKWRIGHT_TEST_RDMA_HOST";
const THIS: &str = "a_killed_holder_is_fenced_and_its_lock_recovered";

/// Short leases, as long as a virtual machine can keep them.
fn mortal() -> ShiftParams {
    ShiftParams::default().with_lease(500_000_000)
}

#[test]
fn a_killed_holder_is_fenced_and_its_lock_recovered() {
    type Lock = ShiftLock<Portable>;
    let space = Space::of(1);
    if let Ok(address) = std::env::var(HOST) {
        // The child: takes the lock, says so, and is killed.
        let ep = RdmaEndpoint::connect(address.parse().unwrap(), RdmaOptions::default()).unwrap();
        let client = Lock::client(ep, &space, &mortal());
        let _grant = block_on(client.acquire(Want::exclusive(0))).unwrap();
        println!("\nholds it");
        std::thread::sleep(std::time::Duration::from_secs(600));
        return;
    }
    if !has_device() {
        return;
    }
    let host = host::<Lock>(&space, &mortal(), 0);
    let survivor = RdmaEndpoint::connect(host.address(), RdmaOptions::default()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([THIS, "--exact", "--nocapture"])
        .env(HOST, host.address().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    assert!(said.lines().map_while(Result::ok).any(|line| line == "holds it"), "the child takes the lock");
    let client = Lock::client(survivor, &space, &mortal());
    assert!(block_on(client.acquire(Want::exclusive(0).with(Patience::Try))).is_err(), "the child holds it");
    child.kill().unwrap();
    child.wait().unwrap();
    let grant = block_on(client.acquire(Want::exclusive(0))).expect("recovered");
    block_on(client.release(grant)).expect("released");
}

const STRESS: &str = "LOCKWRIGHT_TEST_RDMA_STRESS";
const WORKERS: usize = 3;
const KILLS: usize = 3;

/// Longer than a living process can be kept from running, even on a machine that is emulated.
fn patient() -> ShiftParams {
    ShiftParams::default().with_lease(2_000_000_000)
}

/// Where the counter is: behind the lock's memory.
fn counter(space: &Space) -> (u64, Word64) {
    let bytes = ShiftLock::<Portable>::bytes_per_node(space, &patient()).next_multiple_of(64);
    (bytes + 64, Word64::at(Addr::new(NodeId(0), bytes)))
}

/// CLOCK_MONOTONIC, the same for all processes.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is a clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Takes the lock over and over and adds one to the counter, by a READ and a WRITE; notes what it did.
fn work(address: &str, folder: &Path) {
    let space = Space::of(1);
    let ep = RdmaEndpoint::connect(address.parse().unwrap(), RdmaOptions::default()).unwrap();
    let (bytes, word) = counter(&space);
    ep.lends(1, bytes).unwrap();
    let client = ShiftLock::<Portable>::client(ep.clone(), &space, &patient());
    let mut log = Log::open(folder, &std::process::id().to_string(), now_ns).unwrap();
    loop {
        let Ok(grant) = block_on(client.acquire(Want::exclusive(0))) else { return };
        let token = grant.token().expect("this lock has tokens");
        log.write(&format!("G lock x 0 1 {token}"));
        let next = block_on(ep.go(word.read())).map(|seen| seen + 1);
        std::thread::yield_now();
        let written = next.and_then(|next| block_on(ep.go(word.write(next))).map(|_| next));
        if let Ok(next) = written {
            log.write(&format!("W counter {next} {token}"));
        }
        log.write("R");
        if block_on(client.release(grant)).is_err() || written.is_err() {
            return log.write("U lost");
        }
        log.write("U held");
    }
}

const KILLED: &str = "processes_that_are_killed_at_random_lose_no_update_and_let_no_two_in";

#[test]
fn processes_that_are_killed_at_random_lose_no_update_and_let_no_two_in() {
    if let Ok(task) = std::env::var(STRESS) {
        let (address, folder) = task.split_once(' ').expect("a task has two parts");
        return work(address, Path::new(folder));
    }
    if !has_device() {
        return;
    }
    let space = Space::of(1);
    let (bytes, word) = counter(&space);
    let fabric = InProc::new(1, bytes);
    for (addr, value) in ShiftLock::<Portable>::initial_memory(&space, &patient()) {
        fabric.poke(Word64::at(addr), value);
    }
    let roles = ShiftLock::<Portable>::roles(&space, &patient());
    let host = RdmaHost::start(fabric, roles, HostOptions::default(), |_| {}).expect("a device can be used");
    let folder = std::env::temp_dir().join(format!("lockwright-rdma-stress-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args([KILLED, "--exact", "--nocapture"])
            .env(STRESS, format!("{} {}", host.address(), folder.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut notes = Log::of_parent(&folder, now_ns).unwrap();
    let mut kill = |mut victim: Child| {
        notes.write(&format!("K {}", victim.id()));
        victim.kill().unwrap();
        let ended = victim.wait().unwrap();
        // Who was taken for dead, as an emulated machine may have it, has ended by itself.
        assert!(ended.code().is_none_or(|code| code == 0), "a process failed: {ended}");
    };
    let mut workers: Vec<_> = (0..WORKERS).map(|_| start()).collect();
    for killed in 0..=KILLS {
        // All that are left make progress before the next one is killed: whatever it held or waited for is recovered.
        let before = host.fabric().peek(word);
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while host.fabric().peek(word) < before + 10 {
            assert!(std::time::Instant::now() < patience, "nobody gets on after {killed} kills");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        if killed < KILLS {
            kill(std::mem::replace(&mut workers[killed % WORKERS], start()));
        }
    }
    workers.into_iter().for_each(&mut kill);
    let history = History::read(&folder).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{history}");
    let missing = history.check().and_then(|()| history.updates_missing(|_| host.fabric().peek(word)));
    let missing = missing.unwrap_or_else(|violation| panic!("{violation}"));
    // A client that is killed between writing and noting leaves a gap.
    assert!(missing <= (KILLS + WORKERS) as u64, "{missing} updates are missing");
    assert!(history.held("lock") > 0, "nobody held the lock to an end that is known");
    let _ = std::fs::remove_dir_all(&folder);
}
