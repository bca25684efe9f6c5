//! The asymmetric lock on real atomics: local threads use CPU instructions, remote ones a NIC whose read-modify-writes are,
//! to all others, a read and a later write.

#![expect(clippy::disallowed_methods, reason = "real threads are what is tested here")]

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::{
    Addr, AtomicScope, Batch, Capabilities, Endpoint, FabricError, NodeId, Op, PeerId, RawVerb, Word64,
};
use lockwright_locks::qplock::leased::{Leased, LeasedParams};
use lockwright_locks::qplock::{AsPrinted, Extended, InOrder, QpLock, QpParams};
use lockwright_locks::{Denied, LockClient, Patience, Protocol, Space, Want};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// An endpoint whose remote atomics go through a NIC of [`AtomicScope::Nic`]: it keeps them apart from each other, but
/// not from the CPUs of the node.
#[derive(Clone)]
struct ByWeakNic {
    inner: InProcEndpoint,
    nic: Arc<Mutex<()>>,
}

impl ByWeakNic {
    fn execute(&self, verb: RawVerb) -> Result<u128, FabricError> {
        let now = |verb: RawVerb| block_on(self.inner.go([verb].as_slice())).map(|olds| olds[0]);
        if self.inner.home() == Some(verb.addr.node) || !verb.op.is_atomic() {
            return now(verb);
        }
        let _turn = self.nic.lock().expect("nobody panics with the NIC");
        let old = now(RawVerb { op: Op::Read, ..verb })?;
        if let Some(new) = verb.op.apply(verb.width, old) {
            std::thread::yield_now();
            now(RawVerb { op: Op::Write(new), ..verb })?;
        }
        Ok(old)
    }
}

impl Endpoint for ByWeakNic {
    lockwright_fabric::delegate!(inner: me home wait_until send send_datagram recv_by now sleep random);

    fn capabilities(&self) -> Capabilities {
        Capabilities { scope: AtomicScope::Nic, ..self.inner.capabilities() }
    }

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let mut lost = None;
        let olds = batch.each(&mut |verb| {
            self.execute(verb).unwrap_or_else(|error| {
                lost = Some(error);
                0
            })
        });
        lost.map_or(Ok(olds), Err)
    }
}

/// Two local threads, one remote with memory of its own and one without. The counter is read and written in two steps,
/// so that two clients inside at once lose an update.
fn local_and_remote_threads_lose_no_update<P: Protocol>(params: &P::Params) {
    let cycles = if cfg!(miri) { 5 } else { 2_000 };
    let space = Space::of(2).over(2);
    let fabric = InProc::new(space.nodes, P::bytes_per_node(&space, params));
    let nic = Arc::new(Mutex::new(()));
    let homes = [Some(NodeId(0)), Some(NodeId(0)), Some(NodeId(1)), None];
    let counter = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (index, home) in homes.into_iter().enumerate() {
            let peer = PeerId::client(index);
            let inner = match home {
                Some(node) => fabric.endpoint_at(peer, node),
                None => fabric.endpoint(peer),
            };
            let ep = ByWeakNic { inner, nic: Arc::clone(&nic) };
            let (counter, space) = (&counter, &space);
            scope.spawn(move || {
                let client = P::client(ep, space, params);
                for _ in 0..cycles {
                    let grant = block_on(client.acquire(Want::exclusive(0))).expect("granted");
                    let seen = counter.load(Relaxed);
                    std::hint::spin_loop();
                    counter.store(seen + 1, Relaxed);
                    block_on(client.release(grant)).expect("released");
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), homes.len() as u64 * cycles, "{}", P::INFO.name);
    // All is quiet: both queues are empty.
    for offset in [0, 8] {
        let addr = Addr::new(NodeId(0), offset);
        assert_eq!(fabric.peek(Word64::at(addr)) & P::quiet_mask(&space, params, addr), 0);
    }
}

#[test]
fn the_shipped_lock_loses_no_update_between_cpu_and_nic() {
    for budget in [1, 3] {
        for swap in [false, true] {
            let params = QpParams { budget, swap, clients: 4, ..QpParams::default() };
            local_and_remote_threads_lose_no_update::<QpLock>(&params);
        }
    }
}

#[test]
fn the_printed_lock_loses_no_update_between_cpu_and_nic() {
    let params = QpParams { budget: 2, clients: 4, ..QpParams::default() };
    local_and_remote_threads_lose_no_update::<QpLock<AsPrinted>>(&params);
}

#[test]
fn the_reader_writer_lock_loses_no_update_between_cpu_and_nic() {
    let params = QpParams { budget: 2, clients: 4, ..QpParams::default() };
    local_and_remote_threads_lose_no_update::<QpLock<Extended>>(&params);
}

#[test]
fn the_lock_in_strict_order_loses_no_update_between_cpu_and_nic() {
    let params = QpParams { clients: 4, ..QpParams::default() };
    local_and_remote_threads_lose_no_update::<QpLock<InOrder>>(&params);
}

#[test]
fn the_recoverable_lock_loses_no_update_between_cpu_and_nic() {
    // A lease that no thread outlasts, however busy the machine is.
    let params = LeasedParams { budget: 2, clients: 4, lease_ns: u64::MAX, ..LeasedParams::default() };
    local_and_remote_threads_lose_no_update::<Leased>(&params);
}

#[test]
fn tries_that_fail_use_up_no_slot() {
    let params = QpParams { slots: 2, clients: 2, ..QpParams::default() };
    let space = Space::of(1);
    let fabric = InProc::new(space.nodes, QpLock::<Extended>::bytes_per_node(&space, &params));
    let client = |index| {
        let ep = fabric.endpoint_at(PeerId::client(index), NodeId(0));
        <QpLock<Extended> as Protocol>::client(ep, &space, &params)
    };
    let (holder, other) = (client(0), client(1));
    let held = block_on(holder.acquire(Want::exclusive(0))).expect("it is free");
    for _ in 0..10 {
        let tried = block_on(other.acquire(Want::exclusive(0).with(Patience::Try)));
        assert!(matches!(tried, Err(Denied::Busy)), "{:?}", tried.err());
    }
    block_on(holder.release(held)).expect("it is held");
    let taken = block_on(other.acquire(Want::exclusive(0))).expect("it has a slot");
    block_on(other.release(taken)).expect("it is held");
}
