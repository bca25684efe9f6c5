//! Which word of lent memory is where.
//!
//! | region | holds |
//! |---|---|
//! | 0 | the entries of keyed locks, then those of the gates of ranges |
//! | 1 | the holder table (`lockwright_locks::holders::record`) |
//! | 2 | counts of changes, one per name |
//!
//! In region 1 the server writes the directory and clears the records of clients that are gone; everything else of a client's
//! it writes itself. Heartbeats, leases and liveness words are not used: the server knows who is in.

use lockwright_fabric::{Addr, NodeId, PeerId, RegionId, Word64};
use lockwright_locks::holders::TableLayout;
use lockwright_locks::holders::record::{ClientWord, MAX_RECORDS};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{Protocol, Space};

/// Names of a lent space, and therefore lock ids.
pub const NAMES: u64 = 1 << 16;
/// Every name has a lock of its own, and a gate for its ranges.
pub const SHAPE: Space = Space::of(2 * NAMES);
/// The highest number of a client.
pub const NUMBERS: u64 = VersionedPortable::PEER.max() as u64;
/// How long a lock may stand still before a waiter asks whether its holder lives: three of these.
const ASK_NS: u64 = 10_000_000;
/// What the space is called in an address, before its name.
pub const SCHEME: &str = "lent:";

const CHANGES: RegionId = RegionId(2);
/// Records of a client.
pub const RECORDS: u64 = MAX_RECORDS;
/// The holder table.
pub const TABLE: TableLayout =
    TableLayout::new(Addr { offset: 0, node: NodeId(0), region: RegionId(1) }, NUMBERS, RECORDS);

/// ShiftLock's parameters, the same for everybody.
pub fn params() -> ShiftParams {
    ShiftParams::default().with_lease(ASK_NS)
}

/// How large the regions are.
pub fn regions() -> [u64; 3] {
    let locks = ShiftLock::<VersionedPortable>::bytes_per_node(&SHAPE, &params());
    [locks, TABLE.bytes(), NAMES * 8]
}

const fn at(region: RegionId, offset: u64) -> Word64 {
    Word64::at(Addr { offset, node: NodeId(0), region })
}

/// Which records of a client have been in use.
pub const fn used(peer: PeerId) -> Word64 {
    TABLE.client(TABLE.slot(peer), ClientWord::Used)
}

/// The entry of a keyed lock, or of a gate.
pub const fn entry(lock: u64) -> Word64 {
    Word64::at(SHAPE.place(lock, 8))
}

/// The gate of a name's ranges.
pub const fn gate(lock: u64) -> u64 {
    NAMES + lock
}

/// The count of changes of a name's ranges.
pub const fn changes(lock: u64) -> Word64 {
    at(CHANGES, lock * 8)
}

/// The client with this number, as lock words know it.
pub const fn peer(number: u64) -> PeerId {
    PeerId(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_words_are_in_the_same_place_and_all_are_inside() {
        let [locks, _, counts] = regions();
        assert!(entry(2 * NAMES - 1).addr().offset + 8 == locks);
        assert!(changes(NAMES - 1).addr().offset + 8 == counts);
        assert_eq!((1..=NUMBERS).map(|number| TABLE.slot(peer(number))).max(), Some(NUMBERS - 1));
    }
}
