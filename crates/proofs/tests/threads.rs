//! Every baseline lock on threads, over the in-process fabric, around a counter that is not atomic.

#![expect(clippy::disallowed_methods, reason = "real threads are what is tested here")]

use lockwright_baselines::{cas::Cas, cas_backoff::CasBackoff, mcs::Mcs, rpc::Rpc};
use lockwright_fabric::backend::inproc::{InProc, block_on};
use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Word64};
use lockwright_locks::{Denied, LockClient, Patience, Protocol, Space, Want};
use lockwright_proofs::catalog::{Mutant, Visitor, visit};
use lockwright_sim::case::{Round, Script};
use lockwright_sim::play;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const THREADS: usize = 4;
/// Few enough for a busy machine whose threads lose their time slice inside the critical section.
const CYCLES: u64 = 3000;

/// A fabric for `P` with lock memory as it starts out and its roles running.
fn fabric<P: Protocol>(space: &Space) -> InProc {
    let params = P::Params::default();
    let fabric = InProc::new(space.nodes, P::bytes_per_node(space, &params));
    for (addr, value) in P::initial_memory(space, &params) {
        fabric.poke(Word64::at(addr), value);
    }
    fabric.serve(P::roles(space, &params));
    P::needs(&params).met_by(P::INFO.name, fabric.endpoint(PeerId::client(0)).capabilities()).unwrap();
    fabric
}

/// The counter is read and written in two steps, so that two clients inside at once lose an update.
fn loses_no_update<P: Protocol>() {
    let space = Space::of(2).over(2);
    let fabric = fabric::<P>(&space);
    let counters = [AtomicU64::new(0), AtomicU64::new(0)];
    let endpoints: Vec<_> = (0..THREADS).map(|i| fabric.endpoint(PeerId::client(i))).collect();
    std::thread::scope(|scope| {
        for ep in &endpoints {
            scope.spawn(|| {
                let client = P::client(ep.clone(), &space, &P::Params::default());
                for cycle in 0..CYCLES {
                    let lock = cycle % space.locks;
                    let counter = &counters[lock as usize];
                    let grant = block_on(client.acquire(Want::exclusive(lock))).expect("granted");
                    let seen = counter.load(Relaxed);
                    std::hint::spin_loop();
                    counter.store(seen + 1, Relaxed);
                    block_on(client.release(grant)).expect("released");
                }
            });
        }
    });
    let total: u64 = counters.into_iter().map(AtomicU64::into_inner).sum();
    assert_eq!(total, THREADS as u64 * CYCLES, "{}", P::INFO.name);
}

#[test]
fn cas_loses_no_update() {
    loses_no_update::<Cas>();
}

#[test]
fn cas_with_backoff_loses_no_update() {
    loses_no_update::<CasBackoff>();
}

#[test]
fn mcs_loses_no_update() {
    loses_no_update::<Mcs>();
}

#[test]
fn rpc_loses_no_update() {
    loses_no_update::<Rpc>();
}

/// Lock memory is as it was in the beginning, but for what the protocol says may have changed.
fn is_quiet<P: Protocol>(fabric: &InProc, space: &Space) {
    let params = P::Params::default();
    let initial = P::initial_memory(space, &params);
    for node in 0..space.nodes {
        for offset in (0..P::bytes_per_node(space, &params)).step_by(8) {
            let addr = Addr::new(NodeId(node), offset);
            let first = initial.iter().find(|(at, _)| *at == addr).map_or(0, |(_, value)| *value);
            let changed = (fabric.peek(Word64::at(addr)) ^ first) & P::quiet_mask(space, &params, addr);
            assert_eq!(changed, 0, "{}: bits left behind at {addr}", P::INFO.name);
        }
    }
}

/// Plays a script of two locks at a time with whatever the catalog holds.
struct Players;

impl Visitor for Players {
    fn protocol<P: Protocol>(&mut self) {
        let space = Space::of(3).over(2);
        let fabric = fabric::<P>(&space);
        let endpoints: Vec<_> = (0..THREADS).map(|i| fabric.endpoint(PeerId::client(i))).collect();
        let round = |a, b| Round { wants: vec![Want::exclusive(a), Want::exclusive(b)], ..Round::default() };
        let rounds: Vec<_> = (0..100).flat_map(|_| [round(0, 1), round(1, 2), round(0, 2)]).collect();
        std::thread::scope(|scope| {
            for ep in &endpoints {
                scope.spawn(|| {
                    let client = P::client(ep.clone(), &space, &P::Params::default());
                    block_on(play(ep.clone(), client, Script { home: None, rounds: rounds.clone() }));
                });
            }
        });
        is_quiet::<P>(&fabric, &space);
    }

    fn mutant<P: Protocol>(&mut self, _: Mutant) {}
}

#[test]
fn every_protocol_of_the_catalog_plays_on_threads() {
    visit(&mut Players);
}

/// Tries what another client holds, more often than a client has places for requests, with whatever the catalog holds.
struct Tries;

impl Visitor for Tries {
    fn protocol<P: Protocol>(&mut self) {
        if !P::INFO.offers.tries {
            return;
        }
        let space = Space::of(1);
        let fabric = fabric::<P>(&space);
        let [holder, other] =
            [0, 1].map(|i| P::client(fabric.endpoint(PeerId::client(i)), &space, &P::Params::default()));
        let tries = || block_on(other.acquire(Want::exclusive(0).with(Patience::Try)));
        let held = block_on(holder.acquire(Want::exclusive(0))).expect("granted");
        for round in 0..100 {
            let tried = tries().map(drop);
            assert!(matches!(tried, Err(Denied::Busy)), "{}: {tried:?} in round {round}", P::INFO.name);
        }
        block_on(holder.release(held)).expect("released");
        let got = tries().unwrap_or_else(|denied| panic!("{}: {denied:?}, and it is free", P::INFO.name));
        block_on(other.release(got)).expect("released");
        is_quiet::<P>(&fabric, &space);
    }

    fn mutant<P: Protocol>(&mut self, _: Mutant) {}
}

#[test]
fn a_try_that_fails_leaves_nothing_behind_in_any_protocol_however_often_it_is_made() {
    visit(&mut Tries);
}
