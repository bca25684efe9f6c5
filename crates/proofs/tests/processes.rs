//! Every protocol that needs no server, between real processes on shared memory: nobody loses an update.

#![expect(clippy::disallowed_methods, reason = "real processes and threads are what is tested here")]

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmSpace, SpaceOptions};
use lockwright_fabric::{Addr, Cond, Endpoint, NodeId, RegionId, Word64};
use lockwright_locks::{LockClient, Lost, Protocol, Space, Want};
use lockwright_proofs::catalog::{Mutant, Visitor, visit};
use std::process::Command;

const PROCESSES: u64 = 4;
const CYCLES: u64 = 1000;
const SPACE: Space = Space::of(2);
const PROTOCOL: &str = "LOCKWRIGHT_TEST_PROTOCOL";
const PATH: &str = "LOCKWRIGHT_TEST_SPACE";
/// What a process says whose lock was taken away.
const OVERTAKEN: &str = "the lease ran out while the lock was held";
const TRIES: u32 = 5;

/// How many processes are there.
const READY: Word64 = Word64::at(Addr { offset: 64 * SPACE.locks, node: NodeId(0), region: RegionId(1) });

/// Counters live in a region of their own, beside the locks.
fn counter(lock: u64) -> Word64 {
    Word64::at(Addr { offset: 64 * lock, node: NodeId(0), region: RegionId(1) })
}

/// In a child: takes turns with its siblings.
struct Child {
    wanted: String,
}

impl Visitor for Child {
    fn protocol<P: Protocol>(&mut self) {
        if P::INFO.name != self.wanted {
            return;
        }
        let path = std::env::var_os(PATH).expect("the parent says which space");
        let space = ShmSpace::open(path, &SpaceOptions::default().create(false)).expect("the parent made it");
        let ep = space.endpoint().expect("there is room");
        let params = P::Params::default();
        P::needs(&params).met_by(P::INFO.name, ep.capabilities()).expect("a CPU can do everything");
        let client = P::client(ep.clone(), &SPACE, &params);
        // All begin together, or the first would be done before the last has started.
        block_on(ep.go(READY.fetch_add(1))).expect("counted");
        let all = Cond::Eq { mask: u128::MAX, value: PROCESSES.into() };
        block_on(ep.wait_until(READY.until(all))).expect("all are there");
        for cycle in 0..CYCLES {
            let lock = cycle % SPACE.locks;
            let grant = block_on(client.acquire(Want::exclusive(lock))).expect("granted");
            // Read and written in two steps, so that two clients inside at once lose an update.
            let seen = block_on(ep.go(counter(lock).read())).expect("read");
            block_on(ep.go(counter(lock).write(seen + 1))).expect("written");
            match block_on(client.release(grant)) {
                Err(Lost::Recovered) => panic!("{OVERTAKEN}"),
                end => end.expect("released"),
            }
        }
    }

    fn mutant<P: Protocol>(&mut self, _: Mutant) {}
}

/// In the test: a space and four processes for every protocol.
struct Parent;

/// How it went.
#[derive(PartialEq, Eq)]
enum Turn {
    /// Every lock was held until it was given back.
    Kept,
    /// A lock was taken away from a process that lives, as a lock that trusts leases may on a busy machine: DSLR's is 10 ms.
    Overtaken,
}

impl Visitor for Parent {
    fn protocol<P: Protocol>(&mut self) {
        let params = P::Params::default();
        if !P::roles(&SPACE, &params).is_empty() {
            println!("{}: has a server, not for shared memory", P::INFO.name);
            return;
        }
        let overtaken = (1..=TRIES).all(|_| Self::turn::<P>(&params) == Turn::Overtaken);
        assert!(!overtaken, "{}: {OVERTAKEN}, {TRIES} times", P::INFO.name);
    }

    fn mutant<P: Protocol>(&mut self, _: Mutant) {}
}

impl Parent {
    fn turn<P: Protocol>(params: &P::Params) -> Turn {
        let path = std::path::Path::new("/dev/shm").join(format!(
            "lockwright-test-{}-{}.space",
            std::process::id(),
            P::INFO.name
        ));
        let options = SpaceOptions::default()
            .memory(1, &[P::bytes_per_node(&SPACE, params), 64 * SPACE.locks + 64])
            .initial(&P::initial_memory(&SPACE, params));
        let space = ShmSpace::open(&path, &options).expect("a space can be made");
        let start = |_| {
            Command::new(std::env::current_exe().expect("this is a program"))
                .args(["every_protocol_without_a_server_loses_no_update_between_processes", "--exact"])
                .env(PROTOCOL, P::INFO.name)
                .env(PATH, &path)
                .output()
        };
        let outputs: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..PROCESSES).map(|n| scope.spawn(move || start(n))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("it starts")).collect()
        });
        let total: u64 = (0..SPACE.locks).map(|lock| space.peek(counter(lock))).sum();
        ShmSpace::remove(&path).expect("it can be removed");
        for output in outputs {
            let said = String::from_utf8_lossy(&output.stdout);
            if said.contains(OVERTAKEN) {
                println!("{}: {OVERTAKEN}: once more", P::INFO.name);
                return Turn::Overtaken;
            }
            assert!(output.status.success(), "{}: a process failed: {said}", P::INFO.name);
        }
        assert_eq!(total, PROCESSES * CYCLES, "{}", P::INFO.name);
        Turn::Kept
    }
}

#[test]
fn every_protocol_without_a_server_loses_no_update_between_processes() {
    match std::env::var(PROTOCOL) {
        Ok(wanted) => visit(&mut Child { wanted }),
        Err(_) => visit(&mut Parent),
    }
}
