//! ShiftLock on a fabric that can do less: eight-byte words, plain compare-and-swap and fetch-and-add, and nothing else.
//! The portable entry is chosen without being asked for, and no verb is posted that such a fabric would refuse.

#![expect(clippy::disallowed_methods, reason = "real threads are what is tested here")]

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::{
    AtomicScope, Batch, Capabilities, Endpoint, FabricError, Op, PeerId, Value, Wait, Waited, Width,
};
use lockwright_locks::shiftlock::ShiftParams;
use lockwright_locks::shiftlock::fitting::{Fitting, FittingClient};
use lockwright_locks::{Denied, Grant, LockClient, Patience, Space, Want};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What most NICs offer.
const PLAIN: Capabilities = Capabilities { masked: false, wide: false, guarded: false, ..Capabilities::CPU };

/// A NIC without extended atomics: refuses, loudly, whatever it could not do.
#[derive(Clone, Debug)]
struct PlainNic(InProcEndpoint);

impl Endpoint for PlainNic {
    lockwright_fabric::delegate!(0: me home send send_datagram recv_by now sleep random observe);

    fn capabilities(&self) -> Capabilities {
        PLAIN
    }
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        batch.each(&mut |verb| {
            assert_eq!(verb.width, Width::W64, "{verb:?}");
            assert!(
                matches!(verb.op, Op::Read | Op::Write(_) | Op::Cas { .. } | Op::FetchAdd(_)),
                "{verb:?}"
            );
            0
        });
        self.0.go(batch)
    }
    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        assert_eq!(T::WIDTH, Width::W64);
        self.0.wait_until(wait)
    }
}

#[test]
fn the_entry_follows_from_what_the_fabric_can_do() {
    assert_eq!(Fitting::to(Capabilities::CPU), Ok(Fitting::Wide));
    for lacks in [
        PLAIN,
        Capabilities { wide: false, ..Capabilities::CPU },
        Capabilities { masked: false, ..Capabilities::CPU },
    ] {
        assert_eq!(Fitting::to(lacks), Ok(Fitting::Portable), "{lacks:?}");
    }
    let space = Space::of(10);
    let bytes = |fitting: Fitting| fitting.bytes_per_node(&space, &ShiftParams::default());
    assert_eq!((bytes(Fitting::Wide), bytes(Fitting::Portable)), (160, 80));
}

#[test]
fn a_fabric_that_can_run_neither_is_refused_with_a_reason() {
    let mute = Capabilities { messages: false, ..PLAIN };
    let refused = Fitting::to(mute).unwrap_err().to_string();
    assert_eq!(
        refused,
        "shiftlock-portable needs messages between clients, which this fabric does not offer"
    );
    assert!(Fitting::to(Capabilities { scope: AtomicScope::Nic, ..PLAIN }).is_err());
}

#[test]
fn readers_and_writers_keep_out_of_each_other_s_way_on_plain_verbs() {
    const ROUNDS: u64 = 300;
    let (space, params) = (Space::of(2), ShiftParams { threshold: 2, ..ShiftParams::default() });
    let fitting = Fitting::to(PLAIN).unwrap();
    let fabric = InProc::new(1, fitting.bytes_per_node(&space, &params));
    // Written by whoever writes, in two steps: a reader or writer beside it would see them differ.
    let pair = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for index in 0..3 {
            let (fabric, pair, params) = (&fabric, &pair, &params);
            scope.spawn(move || {
                let ep = PlainNic(fabric.endpoint(PeerId::client(index)));
                let client = FittingClient::new(ep, &space, params).unwrap();
                assert_eq!(client.fitting(), Fitting::Portable);
                let mut last = 0;
                for round in 0..ROUNDS {
                    let reads = (round + index as u64).is_multiple_of(3);
                    let want = if reads { Want::shared(1) } else { Want::exclusive(1) };
                    let tries = round % 7 == 0;
                    let grant =
                        match block_on(client.acquire(if tries { want.with(Patience::Try) } else { want })) {
                            Ok(grant) => grant,
                            Err(Denied::Busy) if tries => continue,
                            Err(denied) => panic!("{denied}"),
                        };
                    assert!(grant.token() > Some(last) || reads, "tokens rise");
                    last = grant.token().unwrap_or(0);
                    let seen = pair[0].load(Relaxed);
                    assert_eq!(pair[1].load(Relaxed), seen);
                    if !reads {
                        pair[0].store(seen + 1, Relaxed);
                        std::thread::yield_now();
                        pair[1].store(seen + 1, Relaxed);
                    }
                    block_on(client.release(grant)).unwrap();
                }
                block_on(client.settle());
            });
        }
    });
    assert!(pair[0].load(Relaxed) > 0);
}
