//! Which word of one-sided memory is where.
//!
//! | region | holds |
//! |---|---|
//! | 0 | the entries of keyed locks, then those of the gates of ranges |
//! | 1 | the holder table (`lockwright_locks::holders::record`) |
//! | 2 | counts of changes, one per name |
//! | 3 | how ranges are kept (below), and from byte 64 on their trees, if they are on trees |
//!
//! | word of region 3 | holds |
//! |---|---|
//! | 0 | 0: ranges are exact, as holder records under a gate; 1: on trees; 2: there are none, and locks are asymmetric (`super::asymmetric`) |
//! | 1–5 | of trees: how many, their units, the numbers of a unit, nodes of a cover, the meet-in-the-middle distance; of asymmetric locks: the budget |
//!
//! In region 1 the server writes the directory and clears the records of clients that are gone; everything else of a client's
//! it writes itself. Heartbeats, leases and liveness words are not used: the server knows who is in.

use super::asymmetric;
use crate::client::Protocols;
use lockwright_fabric::{Addr, NodeId, PeerId, RegionId, Word64};
use lockwright_locks::citron::member::{Forest, TreeParams};
use lockwright_locks::holders::TableLayout;
use lockwright_locks::holders::record::{ClientWord, MAX_RECORDS};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{Protocol, Space};

/// Names of a one-sided space, and therefore lock ids.
pub const NAMES: u64 = 1 << 16;
/// Every name has a lock of its own, and a gate for its ranges.
pub const SHAPE: Space = Space::of(2 * NAMES);
/// The highest number of a client.
pub const NUMBERS: u64 = VersionedPortable::PEER.max() as u64;
/// How long a lock may stand still before a waiter asks whether its holder lives: three of these.
const ASK_NS: u64 = 10_000_000;
/// From the fabric's number of a client to that of the same client of the next space.
pub const NEXT_SPACE: u32 = 256;
/// What the space is called in an address, before its name.
pub const SCHEME: &str = "lent:";

const CHANGES: RegionId = RegionId(2);
const RANGES: RegionId = RegionId(3);
/// Words that say how ranges are kept.
pub const SETTINGS: usize = 6;
/// Where trees begin.
const TREES: u64 = 64;
/// Records of a client.
pub const RECORDS: u64 = MAX_RECORDS;
/// The holder table.
pub const TABLE: TableLayout =
    TableLayout::new(Addr { offset: 0, node: NodeId(0), region: RegionId(1) }, NUMBERS, RECORDS);

/// ShiftLock's parameters, the same for all clients.
pub fn params() -> ShiftParams {
    ShiftParams::default().with_lease(ASK_NS)
}

/// How a space keeps its ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ranges {
    /// As holder records under a gate: nobody waits for a range that only touches its own.
    #[default]
    Exact,
    /// On Citron's trees: one round trip or a few, in whole units.
    Tree(TreeParams),
    /// It has none: its locks are asymmetric, and processes of its host take them, too.
    None {
        /// Grants that one side may have in a row while the other waits.
        budget: u16,
    },
}

impl Ranges {
    /// What such a space runs.
    pub(crate) fn protocols(&self) -> Protocols {
        match *self {
            Self::Exact => Protocols::new("holders", "holders"),
            Self::Tree(TreeParams { locks, units, unit, .. }) => {
                let parameters = vec![("names", locks), ("units", units), ("unit", unit)];
                Protocols { parameters, ..Protocols::new("holders", "citron-member") }
            }
            Self::None { budget } => {
                let parameters = vec![("budget", budget.into())];
                Protocols { parameters, ..Protocols::new("qplock-member", "-") }
            }
        }
    }

    /// The words that say so.
    pub fn settings(&self) -> [(Word64, u64); SETTINGS] {
        let values = match *self {
            Self::Exact => [0; SETTINGS],
            Self::Tree(TreeParams { locks, units, unit, k, m }) => {
                [1, locks, units, unit, k.into(), m.into()]
            }
            Self::None { budget } => [2, budget.into(), 0, 0, 0, 0],
        };
        std::array::from_fn(|index| (setting(index), values[index]))
    }

    /// What those words say; `None`: nothing that this release knows.
    pub fn from_settings(values: [u64; SETTINGS]) -> Option<Self> {
        match values {
            [0, ..] => Some(Self::Exact),
            [1, locks, units, unit, k, m] => {
                let (k, m) = (u32::try_from(k).ok()?, u32::try_from(m).ok()?);
                let params = TreeParams { locks, units, unit, k, m };
                params.check().is_ok().then_some(Self::Tree(params))
            }
            [2, budget, ..] => {
                let budget = u16::try_from(budget).ok().filter(|budget| *budget > 0)?;
                Some(Self::None { budget })
            }
            _ => None,
        }
    }

    /// The trees, if there are some.
    pub fn forest(&self) -> Option<Forest> {
        match self {
            Self::Exact | Self::None { .. } => None,
            Self::Tree(params) => Some(Forest::new(at(RANGES, TREES).addr(), *params)),
        }
    }

    /// Names that there can be.
    pub fn names(&self) -> u64 {
        match self {
            Self::Exact => NAMES,
            Self::Tree(params) => params.locks.min(NAMES),
            Self::None { .. } => asymmetric::NAMES,
        }
    }

    /// How large the regions are.
    pub fn regions(&self) -> [u64; 4] {
        if matches!(self, Self::None { .. }) {
            return asymmetric::REGIONS;
        }
        let locks = ShiftLock::<VersionedPortable>::bytes_per_node(&SHAPE, &params());
        let trees = self.forest().map_or(0, |forest| forest.bytes());
        [locks, TABLE.bytes(), NAMES * 8, TREES + trees]
    }
}

/// A word that says how ranges are kept.
pub const fn setting(index: usize) -> Word64 {
    at(RANGES, 8 * index as u64)
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
        assert!(asymmetric::SLOTS < NEXT_SPACE.into() && NUMBERS < NEXT_SPACE.into());
        let [locks, _, counts, _] = Ranges::Exact.regions();
        assert!(entry(2 * NAMES - 1).addr().offset + 8 == locks);
        assert!(changes(NAMES - 1).addr().offset + 8 == counts);
        let trees = Ranges::Tree(TreeParams::default());
        let last = trees.forest().unwrap().nodes(TreeParams::default().locks - 1).last().unwrap();
        assert_eq!(last.addr().offset + 8, trees.regions()[3]);
        assert!(setting(SETTINGS - 1).addr().offset + 8 <= TREES);
        assert_eq!((1..=NUMBERS).map(|number| TABLE.slot(peer(number))).max(), Some(NUMBERS - 1));
    }

    #[test]
    fn how_ranges_are_kept_comes_back_as_it_was_written() {
        for ranges in [
            Ranges::Exact,
            Ranges::Tree(TreeParams { unit: 1, ..TreeParams::default() }),
            Ranges::None { budget: 8 },
        ] {
            let values = ranges.settings().map(|(_, value)| value);
            assert_eq!(Ranges::from_settings(values), Some(ranges));
        }
        assert_eq!(Ranges::from_settings([2, 0, 0, 0, 0, 0]), None);
        assert_eq!(Ranges::from_settings([1, 0, 0, 0, 0, 0]), None);
        assert_eq!(Ranges::from_settings([3, 0, 0, 0, 0, 0]), None);
    }
}
