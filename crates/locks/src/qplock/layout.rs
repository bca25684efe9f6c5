//! Where the words of an asymmetric lock are and what their bits mean.
//!
//! A lock is one cache line on its node:
//!
//! | bytes | word | changed by | meaning |
//! |---|---|---|---|
//! | 0–7 | `cohort[Local]` | CPUs of the node only | tail of the local queue |
//! | 8–15 | `cohort[Remote]` | the NIC only | tail of the remote queue |
//! | 16–23 | `victim` | plain WRITEs of both sides | the side that yields; 0 before any side ever did |
//! | 24–31 | `token` | plain WRITEs of the holder | the fencing token of the last grant that was written back |
//! | 32–39 | `readers[Local]` | CPUs of the node only | local clients that hold the lock in shared mode |
//! | 40–47 | `readers[Remote]` | the NIC only | remote clients that hold the lock in shared mode |
//! | 48–55 | `head[Local]` | plain WRITEs of the local head | with strict order: the ticket of the last local head that had to wait |
//! | 56–63 | `head[Remote]` | plain WRITEs of the remote head | the same of the other side |
//!
//! No word is ever read, changed and written back by both sides: that is the whole point. Reads and writes are atomic
//! between CPU and NIC, read-modify-writes are not (Table 1).
//!
//! A tail says whose descriptor is the last of its queue ([`Desc`]); nobody's while it is empty:
//!
//! | bits | meaning |
//! |---|---|
//! | 0–15 | 1 + the client's index; 0: nobody |
//! | 16–20 | which of its descriptors |
//! | 21–31 | 1 + the node the descriptor lies on, or 0: in the client's mailbox |
//! | 32–63 | with strict order: the ticket of the last that came, which stays when the queue empties; otherwise 0 |
//!
//! Behind the locks of a node lie the descriptors of the clients that are at home there, 16 bytes each. Both words are 0
//! unless a client waits, so an uncontended client never touches its descriptor but for one look at `next`:
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
pub enum Side {
    /// At home on the lock's node.
    Local = 0,
    /// Anywhere else.
    Remote = 1,
}

impl Side {
    /// The opposite class.
    #[must_use]
    pub const fn other(self) -> Self {
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

    pub(super) const fn head(self, side: Side) -> Word64 {
        Word64::at(self.at.plus(48 + 8 * side as u64))
    }

    pub(super) const fn readers(self, side: Side) -> Word64 {
        Word64::at(self.at.plus(32 + 8 * side as u64))
    }
}

/// Which bits of the word at `addr` are 0 whenever all is quiet: all but those of `victim`, `token` and tickets.
pub(super) fn quiet_mask(space: &Space, addr: Addr) -> u64 {
    if addr.offset >= descriptors(space) {
        return u64::MAX;
    }
    match addr.offset % LOCK_BYTES {
        0 | 8 => WHO,
        16 | 24 | 48 | 56 => 0,
        _ => u64::MAX,
    }
}

/// The bits of a tail that say whose descriptor it is.
pub(super) const WHO: u64 = 0xffff_ffff;
/// Clients a tail can tell apart.
pub(super) const MAX_CLIENTS: u32 = u16::MAX as u32;
/// Nodes a tail can tell apart.
pub(super) const MAX_NODES: u16 = (1 << 11) - 1;

/// Names one descriptor: what a tail and a `next` hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) owner: PeerId,
    pub(super) slot: u8,
    /// `None`: its owner is at home nowhere and gets messages instead.
    pub(super) node: Option<NodeId>,
    /// When its acquisition came, where that is told.
    pub(super) ticket: Ticket,
}

impl Desc {
    #[inline(always)]
    pub(super) fn to_word(self) -> u64 {
        let node = self.node.map_or(0, |node| u64::from(node.0) + 1);
        self.ticket.alone() | (self.owner.index().0 as u64 + 1) | u64::from(self.slot) << 16 | node << 21
    }

    /// The descriptor that `word` names, if any.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        let node = (word & WHO) >> 21;
        Some(Self {
            owner: PeerId::client(usize::from(word as u16).checked_sub(1)?),
            slot: (word >> 16 & 0x1f) as u8,
            node: (node > 0).then(|| NodeId((node - 1) as u16)),
            ticket: Ticket::of(word),
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

/// When an acquisition came, relative to others. Tickets go round: those that are compared are less than half the way
/// apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u32);

impl Ticket {
    /// That of the last that came, from a tail.
    pub(super) const fn of(tail: u64) -> Self {
        Self((tail >> 32) as u32)
    }

    /// A tail of an empty queue, to which this one came last.
    #[inline(always)]
    pub(super) const fn alone(self) -> u64 {
        (self.0 as u64) << 32
    }

    /// Whether it came before `other`.
    pub(super) const fn is_before(self, other: Self) -> bool {
        other.0.wrapping_sub(self.0) as i32 > 0
    }

    /// The next after both.
    pub(super) const fn after(self, other: Self) -> Self {
        let later = if self.is_before(other) { other } else { self };
        Self(later.0.wrapping_add(1))
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
        for node in [None, Some(NodeId(0)), Some(NodeId(MAX_NODES - 1))] {
            for slot in [0, MAX_SLOTS - 1] {
                let owner = PeerId::client(MAX_CLIENTS as usize - 1);
                let desc = Desc { owner, slot, node, ticket: Ticket(u32::MAX) };
                assert_eq!(Desc::from_word(desc.to_word()), Some(desc));
            }
        }
        assert_eq!(Desc::from_word(Ticket(7).alone()), None);
    }

    #[test]
    fn tickets_go_round() {
        let (last, first) = (Ticket(u32::MAX), Ticket(0));
        assert!(last.is_before(first) && !first.is_before(last) && !first.is_before(first));
        assert_eq!(last.after(Ticket(5)), Ticket(6));
        assert_eq!(Ticket(5).after(last), Ticket(6));
        assert_eq!(last.after(last), first);
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
            words.extend([Side::Local, Side::Remote].map(|side| lock.head(side)));
            words.extend([lock.victim(), lock.token()]);
        }
        for client in 0..3 {
            for slot in 0..2 {
                let desc =
                    Desc { owner: PeerId::client(client), slot, node: Some(NodeId(0)), ticket: Ticket(0) };
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
