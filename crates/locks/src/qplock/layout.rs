//! Where the words of an asymmetric lock are and what their bits mean.
//!
//! A lock is one cache line on its node:
//!
//! | bytes | word | changed by | meaning |
//! |---|---|---|---|
//! | 0–7 | `cohort[Local]` | CPUs of the node only | tail of the local queue |
//! | 8–15 | `cohort[Remote]` | the NIC only | tail of the remote queue |
//! | 16–23 | `victim` | plain WRITEs of both sides | the side that yields; 0 before anybody ever did |
//! | 24–31 | `token` | plain WRITEs of the holder | the fencing token of the last grant that was written back |
//! | 32–39 | `readers[Local]` | CPUs of the node only | local clients that hold the lock in shared mode |
//! | 40–47 | `readers[Remote]` | the NIC only | remote clients that hold the lock in shared mode |
//!
//! No word is ever read, changed and written back by both sides: that is the whole point. Reads and writes are atomic
//! between CPU and NIC, read-modify-writes are not (Table 1).
//!
//! A tail is 0 while the queue is empty, and otherwise says whose descriptor is its last ([`Desc`]):
//!
//! | bits | meaning |
//! |---|---|
//! | 0–31 | the client, never 0 |
//! | 32–39 | which of its descriptors |
//! | 40–56 | 1 + the node the descriptor lies on, or 0: in the client's mailbox |
//!
//! Behind the locks of a node lie the descriptors of the clients that are at home there, 16 bytes each. Both words are
//! 0 unless somebody waits, so a client that meets nobody never touches its descriptor but for one look at `next`:
//!
//! | bytes | word | written by | meaning |
//! |---|---|---|---|
//! | 0–7 | `budget` | predecessor, once; owner, to clear | 0: wait. Otherwise the lock was passed: a [`Pass`] |
//! | 8–15 | `next` | successor, once; owner, to clear | 0: nobody yet. Otherwise the successor's [`Desc`] |
//!
//! A pass (the paper's −1 is our 0, so that fresh memory needs no preparation):
//!
//! | bits | meaning |
//! |---|---|
//! | 0–15 | 1 + grants that the cohort may still have before it must yield |
//! | 16–63 | the fencing token of the last grant |

use super::QpParams;
use crate::protocol::Space;
use lockwright_fabric::{Addr, NodeId, PeerId, Word64};

/// Bytes of a lock: a cache line, so that neighbours do not disturb each other.
pub(super) const LOCK_BYTES: u64 = 64;
/// Bytes of a descriptor.
pub(super) const DESC_BYTES: u64 = 16;
/// The most descriptors a client can have: its free ones are the bits of a word.
pub(super) const MAX_SLOTS: u8 = 32;
/// The largest budget a pass can carry.
pub(super) const MAX_BUDGET: u16 = u16::MAX - 1;

/// Bytes of lock memory on every node.
pub(super) const fn bytes_per_node(space: &Space, params: &QpParams) -> u64 {
    descriptors(space) + params.clients as u64 * params.slots as u64 * DESC_BYTES
}

/// Where a node's descriptors begin.
const fn descriptors(space: &Space) -> u64 {
    space.table_bytes(LOCK_BYTES)
}

/// The two classes of clients of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// At home on the lock's node.
    Local = 0,
    /// Anywhere else.
    Remote = 1,
}

impl Side {
    /// The opposite class.
    pub(super) const fn other(self) -> Self {
        match self {
            Side::Local => Side::Remote,
            Side::Remote => Side::Local,
        }
    }

    /// What `victim` holds when this side yields. Alg. 1 writes the class; the PlusCal writes the process, which
    /// comes to the same, since a cohort sends one process at a time to the global lock.
    pub(super) const fn as_victim(self) -> u64 {
        self as u64 + 1
    }
}

/// The words of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockWords {
    at: Addr,
}

impl LockWords {
    #[inline(always)]
    pub(super) const fn new(space: &Space, lock: u64) -> Self {
        Self { at: space.place(lock, LOCK_BYTES) }
    }

    pub(super) const fn node(self) -> NodeId {
        self.at.node
    }

    #[inline(always)]
    pub(super) const fn cohort(self, side: Side) -> Word64 {
        Word64::at(self.at.plus(8 * side as u64))
    }

    pub(super) const fn victim(self) -> Word64 {
        Word64::at(self.at.plus(16))
    }

    pub(super) const fn token(self) -> Word64 {
        Word64::at(self.at.plus(24))
    }

    pub(super) const fn readers(self, side: Side) -> Word64 {
        Word64::at(self.at.plus(32 + 8 * side as u64))
    }
}

/// Which bits of the word at `addr` are 0 whenever all is quiet: all but those of `victim` and `token`.
pub(super) fn quiet_mask(space: &Space, addr: Addr) -> u64 {
    let in_lock = addr.offset % LOCK_BYTES;
    if addr.offset < descriptors(space) && (in_lock == 16 || in_lock == 24) { 0 } else { u64::MAX }
}

/// Names one descriptor: what a tail and a `next` hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) owner: PeerId,
    pub(super) slot: u8,
    /// `None`: its owner is at home nowhere and gets messages instead.
    pub(super) node: Option<NodeId>,
}

impl Desc {
    #[inline(always)]
    pub(super) fn to_word(self) -> u64 {
        let node = self.node.map_or(0, |node| u64::from(node.0) + 1);
        u64::from(self.owner.0) | u64::from(self.slot) << 32 | node << 40
    }

    /// The descriptor that `word` names; 0 names none.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        let node = (word >> 40) as u32;
        Some(Self {
            owner: PeerId(word as u32),
            slot: (word >> 32) as u8,
            node: (node > 0).then(|| NodeId((node - 1) as u16)),
        })
    }

    /// Where it lies, if it lies in memory.
    fn addr(self, space: &Space, params: &QpParams) -> Option<Addr> {
        let place = self.owner.index().0 as u64 * u64::from(params.slots) + u64::from(self.slot);
        Some(Addr::new(self.node?, descriptors(space) + place * DESC_BYTES))
    }

    /// Its `budget`, if it lies in memory.
    #[inline(always)]
    pub(super) fn budget(self, space: &Space, params: &QpParams) -> Option<Word64> {
        self.addr(space, params).map(Word64::at)
    }

    /// Its `next`, if it lies in memory.
    #[inline(always)]
    pub(super) fn next(self, space: &Space, params: &QpParams) -> Option<Word64> {
        self.addr(space, params).map(|addr| Word64::at(addr.plus(8)))
    }
}

/// What goes from the one who leaves to the one who follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// Grants left before the cohort must yield. 0: the receiver has the queue, but must get the lock itself.
    pub(super) budget: u16,
    /// The token of the last grant. Means nothing where `budget` is 0: others may have the lock in between.
    pub(super) token: u64,
}

impl Pass {
    pub(super) const fn to_word(self) -> u64 {
        self.token << 16 | (self.budget as u64 + 1)
    }

    pub(super) const fn from_word(word: u64) -> Self {
        Self { budget: (word as u16).wrapping_sub(1), token: word >> 16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: QpParams = QpParams { clients: 3, slots: 2, ..QpParams::DEFAULT };

    #[test]
    fn descriptors_survive_their_word() {
        for node in [None, Some(NodeId(0)), Some(NodeId(u16::MAX))] {
            for slot in [0, MAX_SLOTS - 1] {
                let desc = Desc { owner: PeerId(u32::MAX >> 1), slot, node };
                assert_eq!(Desc::from_word(desc.to_word()), Some(desc));
            }
        }
        assert_eq!(Desc::from_word(0), None);
    }

    #[test]
    fn a_pass_is_never_the_word_that_means_wait() {
        for pass in [Pass { budget: 0, token: 0 }, Pass { budget: MAX_BUDGET, token: (1 << 48) - 1 }] {
            assert_ne!(pass.to_word(), 0);
            assert_eq!(Pass::from_word(pass.to_word()), pass);
        }
    }

    #[test]
    fn no_two_words_of_a_node_overlap() {
        let space = Space::of(3).over(2);
        let mut words = Vec::new();
        for lock in [0, 2] {
            let lock = LockWords::new(&space, lock);
            words.extend([Side::Local, Side::Remote].map(|side| lock.cohort(side)));
            words.extend([Side::Local, Side::Remote].map(|side| lock.readers(side)));
            words.extend([lock.victim(), lock.token()]);
        }
        for client in 0..3 {
            for slot in 0..2 {
                let desc = Desc { owner: PeerId::client(client), slot, node: Some(NodeId(0)) };
                words.extend([desc.budget(&space, &PARAMS).unwrap(), desc.next(&space, &PARAMS).unwrap()]);
            }
        }
        let mut offsets: Vec<_> = words.iter().map(|word| word.addr().offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), words.len());
        assert!(offsets.iter().all(|offset| offset + 8 <= bytes_per_node(&space, &PARAMS)));
    }
}
