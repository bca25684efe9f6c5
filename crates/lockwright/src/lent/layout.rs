//! Which word of lent memory is where.
//!
//! | region | holds |
//! |---|---|
//! | 0 | the entries of keyed locks, then those of the gates of ranges |
//! | 1 | roster and cards |
//! | 2 | counts of changes, one per name |
//!
//! | region 1, byte | holds | written by |
//! |---|---|---|
//! | 0 | the highest number that ever was in | the server |
//! | 64 n | 1: client n is in | the server |
//! | 64 n + 8 | bit c: card c of client n has been in use | client n |
//! | 8192 + 4096 n + 64 c.. | card c of client n, as in [`cards`](crate::home::cards) | client n; wiped by the server |

use crate::home::cards::CARDS;
use lockwright_fabric::{Addr, NodeId, PeerId, RegionId, Word64};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{Protocol, Space};

/// Names of a lent space, and therefore lock ids.
pub const NAMES: u64 = 1 << 16;
/// Every name has a lock of its own, and a gate for its ranges.
pub const SHAPE: Space = Space::of(2 * NAMES);
/// The highest number of a client.
pub const NUMBERS: u64 = StirredPortable::PEER.max() as u64;
/// How long a lock may stand still before a waiter asks whether its holder lives: three of these.
const ASK_NS: u64 = 10_000_000;
/// What the space is called in an address, before its name.
pub const SCHEME: &str = "lent:";

const ROSTER: RegionId = RegionId(1);
const CHANGES: RegionId = RegionId(2);
const LINE: u64 = 64;
const SHEETS: u64 = (NUMBERS + 1) * LINE;
const SHEET: u64 = CARDS * LINE;

/// ShiftLock's parameters, the same for everybody.
pub fn params() -> ShiftParams {
    ShiftParams::default().with_lease(ASK_NS)
}

/// How large the regions are.
pub fn regions() -> [u64; 3] {
    let locks = ShiftLock::<StirredPortable>::bytes_per_node(&SHAPE, &params());
    [locks, SHEETS + (NUMBERS + 1) * SHEET, NAMES * 8]
}

const fn at(region: RegionId, offset: u64) -> Word64 {
    Word64::at(Addr { offset, node: NodeId(0), region })
}

/// The highest number that ever was in.
pub const fn top() -> Word64 {
    at(ROSTER, 0)
}

/// Whether a client is in.
pub const fn is_in(number: u64) -> Word64 {
    at(ROSTER, number * LINE)
}

/// Which of its cards have been in use.
pub const fn used(number: u64) -> Word64 {
    at(ROSTER, number * LINE + 8)
}

/// A word of a card.
pub const fn card(number: u64, card: u64, word: u64) -> Word64 {
    at(ROSTER, SHEETS + number * SHEET + card * LINE + word * 8)
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

/// The bits of a word that are set, from the lowest.
pub fn bits(mut mask: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| u64::from(mask.trailing_zeros()))?;
        mask &= mask - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_words_are_in_the_same_place_and_all_are_inside() {
        let [locks, roster, counts] = regions();
        assert!(entry(2 * NAMES - 1).addr().offset + 8 == locks);
        assert!(used(NUMBERS).addr().offset < card(0, 0, 0).addr().offset);
        assert!(card(NUMBERS, CARDS - 1, 7).addr().offset + 8 == roster);
        assert!(changes(NAMES - 1).addr().offset + 8 == counts);
        assert_eq!(bits(0b1010_0001).collect::<Vec<_>>(), [0, 5, 7]);
    }
}
