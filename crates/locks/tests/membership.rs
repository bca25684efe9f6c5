//! Clients that come and go: what the next client of a slot finds there, and that it does not pay for the last one.

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Time, Word64};
use lockwright_locks::holders::liveness::Liveness;
use lockwright_locks::holders::record::{ClientWord, First, RecordWord};
use lockwright_locks::holders::{ClientRecord, State, TableLayout, membership};

/// Two slots: the first and the third client have the same one, one after the other.
const LAYOUT: TableLayout = TableLayout::new(Addr::new(NodeId(0), 0), 2, 2);
const LEASE_NS: u64 = 400;

fn fabric() -> InProc {
    InProc::new(1, LAYOUT.bytes())
}

fn client(fabric: &InProc, index: usize) -> InProcEndpoint {
    fabric.endpoint(PeerId::client(index))
}

fn join(ep: &InProcEndpoint) {
    block_on(membership::join(ep, &LAYOUT, Time(1000), LEASE_NS)).unwrap();
}

fn write(ep: &InProcEndpoint, word: Word64, value: u64) {
    block_on(ep.go(word.write(value))).unwrap();
}

#[test]
fn the_next_client_of_a_slot_finds_free_records_and_a_liveness_that_goes_on() {
    let fabric = fabric();
    let (first, next) = (client(&fabric, 0), client(&fabric, 2));
    let liveness = LAYOUT.client(0, ClientWord::Liveness);
    let record = LAYOUT.record(0, 1).word(RecordWord::First);
    join(&first);
    assert_eq!(fabric.peek(LAYOUT.directory(0)), 1);
    write(&first, record, State::Held as u64);
    // Evicted, some time ago.
    let evicted = Liveness((1000 << 2) | 2);
    write(&first, liveness, evicted.0);
    assert!(evicted.is_evicted());
    join(&next);
    let goes_on = Liveness(fabric.peek(liveness));
    assert!(goes_on.is_alive() && goes_on.0 > evicted.0, "{goes_on:?}");
    assert_eq!(First(fabric.peek(record)).state(), None);
    assert_eq!(fabric.peek(LAYOUT.owner(0)), u64::from(next.me().0));
    assert_eq!(fabric.peek(LAYOUT.directory(0)), 1, "the bit of a slot is set once");
    block_on(membership::leave(&next, &LAYOUT)).unwrap();
    assert_eq!((fabric.peek(LAYOUT.directory(0)), fabric.peek(LAYOUT.owner(0))), (0, 0));
}

#[test]
fn nobody_is_evicted_for_the_silence_of_the_client_that_had_its_slot_before() {
    let fabric = fabric();
    let (first, other, next) = (client(&fabric, 0), client(&fabric, 1), client(&fabric, 2));
    join(&first);
    join(&other);
    let silent = ClientRecord {
        peer: first.me(),
        heartbeat: Time(0),
        lease_ns: LEASE_NS,
        used: 0,
        dependent: (0, 0),
        liveness: Liveness(0),
    };
    join(&next);
    let evicts = |client: &ClientRecord| {
        let late = async |client: &ClientRecord, since| client.is_silent(since, Time(u64::MAX));
        block_on(membership::evict(&other, &LAYOUT, client, late)).unwrap()
    };
    assert!(!evicts(&silent));
    assert!(Liveness(fabric.peek(LAYOUT.client(0, ClientWord::Liveness))).is_alive());
    assert!(evicts(&ClientRecord { peer: next.me(), ..silent }), "it is silent itself");
}
