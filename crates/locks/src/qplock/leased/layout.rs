//! Where the words of a recoverable asymmetric lock are and what their bits mean.
//!
//! A lock is one cache line on its node. As in the plain lock, no word is changed by read-modify-write from both sides:
//!
//! | bytes | word | changed by | meaning |
//! |---|---|---|---|
//! | 0–7 | `tail[Local]` | CPUs of the node only | last of the local queue: a [`Name`] |
//! | 8–15 | `tail[Remote]` | the NIC only | last of the remote queue: a [`Name`] |
//! | 16–23 | `victim` | plain WRITEs of both sides | the side that yields, and the generation it does so in |
//! | 24–31 | `stamp[Local]` | CPUs of the node only | the last claim or recovery of that side: a [`Stamp`] |
//! | 32–39 | `stamp[Remote]` | the NIC only | the same of the other side |
//! | 40–47 | `holder[Local]` | plain WRITEs of the node's CPUs | who claimed last: a [`Name`]. Only a hint |
//! | 48–55 | `holder[Remote]` | plain WRITEs by the NIC | the same of the other side |
//!
//! A stamp. Each side's only ever rises, by CAS of its own side; so the larger of the two, which is what counts, only
//! ever rises too, though no atomic spans both:
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | a client of this side is about to recover the lock |
//! | 1–47 | grants in this generation |
//! | 48–63 | generation: how often the lock was recovered |
//!
//! A name. What it says counts only in its own generation; in every later one the queue is empty:
//!
//! | bits | meaning |
//! |---|---|
//! | 0–15 | 1 + the client's index; 0: nobody |
//! | 16–20 | which of its descriptors |
//! | 21–31 | 1 + the node the descriptor lies on; 0: in the client's mailbox |
//! | 32–47 | the low bits of the acquisition's number, never 0 |
//! | 48–63 | generation |
//!
//! Behind the locks of a node lie the descriptors of the clients at home there, 24 bytes each. Nothing in them has to be
//! cleared: what is not addressed to this very acquisition is old.
//!
//! | bytes | word | written by | bits |
//! |---|---|---|---|
//! | 0–7 | `pass` | predecessor | 0–15 the budget left, 16–63 the number of the acquisition it is for |
//! | 8–15 | `next_number` | successor, first | 0–15 low bits of the predecessor's number, 16–63 the successor's number |
//! | 16–23 | `next_name` | successor, then | 0–31 as in a name, 32–47 low bits of the predecessor's number |

use super::LeasedParams;
use crate::protocol::Space;
use crate::qplock::layout::{LOCK_BYTES, Side};
use lockwright_fabric::{Addr, NodeId, PeerId, Word64};

/// Bytes of a descriptor.
const DESC_BYTES: u64 = 24;
/// Clients a name can tell apart.
pub(super) const MAX_CLIENTS: u32 = u16::MAX as u32;
/// Nodes a name can tell apart.
pub(super) const MAX_NODES: u16 = (1 << 11) - 1;
/// The part of a name that says whose descriptor it is.
const WHO: u64 = 0xffff_ffff;
/// Bits of an acquisition's number.
const NUMBER_BITS: u32 = 48;

/// Bytes of lock memory on every node.
pub(super) const fn bytes_per_node(space: &Space, params: &LeasedParams) -> u64 {
    descriptors(space) + params.clients as u64 * params.slots as u64 * DESC_BYTES
}

const fn descriptors(space: &Space) -> u64 {
    space.table_bytes(LOCK_BYTES)
}

/// The words of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockWords {
    at: Addr,
}

impl LockWords {
    pub(super) const fn new(space: &Space, lock: u64) -> Self {
        Self { at: space.place(lock, LOCK_BYTES) }
    }

    pub(super) const fn node(self) -> NodeId {
        self.at.node
    }

    pub(super) const fn tail(self, side: Side) -> Word64 {
        Word64::at(self.at.plus(8 * side as u64))
    }

    pub(super) const fn victim(self) -> Word64 {
        Word64::at(self.at.plus(16))
    }

    pub(super) const fn stamp(self, side: Side) -> Word64 {
        Word64::at(self.at.plus(24 + 8 * side as u64))
    }

    pub(super) const fn holder(self, side: Side) -> Word64 {
        Word64::at(self.at.plus(40 + 8 * side as u64))
    }
}

/// Which bits of the word at `addr` are 0 whenever all is quiet: a tail then names nobody.
pub(super) fn quiet_mask(space: &Space, addr: Addr) -> u64 {
    if addr.offset < descriptors(space) && addr.offset % LOCK_BYTES < 16 { WHO } else { 0 }
}

/// What a side's `victim` is in `generation`.
pub(super) const fn as_victim(side: Side, generation: u16) -> u64 {
    (generation as u64) << 48 | side.as_victim()
}

/// How far a side has come with a lock. See the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(pub(super) u64);

impl Stamp {
    const INTENT: u64 = 1;
    const COUNT: u64 = (1 << 47) - 1;

    /// The first of `generation`.
    pub(super) const fn first(generation: u16) -> Self {
        Self((generation as u64) << 48)
    }

    pub(super) const fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The same, with nobody about to recover.
    pub(super) const fn settled(self) -> Self {
        Self(self.0 & !Self::INTENT)
    }

    /// The same, with a client about to recover.
    pub(super) const fn intent(self) -> Self {
        Self(self.0 | Self::INTENT)
    }

    pub(super) const fn is_intent(self) -> bool {
        self.0 & Self::INTENT != 0
    }

    /// The one after both, of the same generation as the later.
    pub(super) fn after(self, other: Self) -> Self {
        let last = self.max(other).settled();
        assert!(last.count() < Self::COUNT, "2^47 grants without a recovery");
        Self(last.0 + 2)
    }

    /// Grants in its generation.
    pub(super) const fn count(self) -> u64 {
        self.0 >> 1 & Self::COUNT
    }

    /// The fencing token of a claim.
    pub(super) const fn token(self) -> u64 {
        self.0 >> 1
    }
}

/// One acquisition: whose it is, and where others reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) owner: PeerId,
    pub(super) slot: u8,
    /// `None`: its owner is at home nowhere and gets messages instead.
    pub(super) node: Option<NodeId>,
    /// Unlike that of any other acquisition of its client. From a name, only the low bits.
    pub(super) number: u64,
}

impl Member {
    const fn who(self) -> u64 {
        let node = match self.node {
            Some(node) => node.0 as u64 + 1,
            None => 0,
        };
        (self.owner.index().0 as u64 + 1) | (self.slot as u64) << 16 | node << 21
    }

    /// The low bits of the number.
    pub(super) const fn tag(self) -> u64 {
        self.number & 0xffff
    }

    fn parse(who: u64, number: u64) -> Option<Self> {
        let (index, node) = (who as u16, (who & WHO) >> 21);
        Some(Self {
            owner: PeerId::client(usize::from(index).checked_sub(1)?),
            slot: (who >> 16 & 0x1f) as u8,
            node: (node > 0).then(|| NodeId((node - 1) as u16)),
            number,
        })
    }

    /// Its name in `generation`.
    pub(super) const fn name(self, generation: u16) -> Name {
        Name((generation as u64) << 48 | self.tag() << 32 | self.who())
    }

    fn word(self, space: &Space, params: &LeasedParams, offset: u64) -> Option<Word64> {
        let place = self.owner.index().0 as u64 * u64::from(params.slots) + u64::from(self.slot);
        let addr = Addr::new(self.node?, descriptors(space) + place * DESC_BYTES);
        Some(Word64::at(addr.plus(offset)))
    }

    /// `pass`, if its descriptor lies in memory.
    pub(super) fn pass(self, space: &Space, params: &LeasedParams) -> Option<Word64> {
        self.word(space, params, 0)
    }

    /// `next_number`, if its descriptor lies in memory.
    pub(super) fn next_number(self, space: &Space, params: &LeasedParams) -> Option<Word64> {
        self.word(space, params, 8)
    }

    /// `next_name`, if its descriptor lies in memory.
    pub(super) fn next_name(self, space: &Space, params: &LeasedParams) -> Option<Word64> {
        self.word(space, params, 16)
    }

    /// What its successor writes into `pred`'s descriptor: `next_number`, `next_name`.
    pub(super) const fn as_next_of(self, pred: Self) -> [u64; 2] {
        [self.number << 16 | pred.tag(), pred.tag() << 32 | self.who()]
    }

    /// The successor that those words name. `None` if one of them was written for another acquisition.
    pub(super) fn next(self, [number, name]: [u64; 2]) -> Option<Self> {
        let mine = number & 0xffff == self.tag() && name >> 32 == self.tag();
        Self::parse(name & WHO, number >> 16).filter(|_| mine)
    }

    /// What it is passed with `budget`.
    pub(super) const fn passed(self, budget: u16) -> u64 {
        self.number << 16 | budget as u64
    }
}

/// The number after `number`: one whose low bits are not 0.
pub(super) const fn number_after(number: u64) -> u64 {
    let next = (number + 1) & ((1 << NUMBER_BITS) - 1);
    if next & 0xffff == 0 { next + 1 } else { next }
}

/// What a tail holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(pub(super) u64);

impl Name {
    /// An empty queue of `generation`.
    pub(super) const fn nobody(generation: u16) -> Self {
        Self((generation as u64) << 48)
    }

    pub(super) const fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Who that is, in `generation`: nobody if the name is of another one.
    pub(super) fn member(self, generation: u16) -> Option<Member> {
        Member::parse(self.0, self.0 >> 32 & 0xffff).filter(|_| self.generation() == generation)
    }

    /// The bits that say whose it is.
    pub(super) const WHO: u128 = WHO as u128;
    /// The bits that hold the generation.
    pub(super) const GENERATION: u128 = 0xffff << 48;
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: Member = Member {
        owner: PeerId::client(65_533),
        slot: 31,
        node: Some(NodeId(MAX_NODES - 1)),
        number: 0x1234_5678_9abc,
    };

    #[test]
    fn names_survive_their_word_in_their_generation_only() {
        for node in [None, MEMBER.node] {
            let member = Member { node, ..MEMBER };
            let found = member.name(7).member(7).expect("it is of this generation");
            assert_eq!(found, Member { number: member.tag(), ..member });
            assert_eq!(member.name(7).member(8), None);
        }
        assert_eq!(Name::nobody(7).member(7), None);
    }

    #[test]
    fn a_successor_is_believed_only_by_the_acquisition_it_followed() {
        let next = Member { owner: PeerId::client(0), slot: 0, node: None, number: 5 };
        let words = next.as_next_of(MEMBER);
        assert_eq!(MEMBER.next(words), Some(next));
        let later = Member { number: number_after(MEMBER.number), ..MEMBER };
        assert_eq!(later.next(words), None);
        assert_eq!(MEMBER.next([0, 0]), None);
        assert_eq!(MEMBER.next([next.as_next_of(later)[0], words[1]]), None, "torn by a late client");
    }

    #[test]
    fn stamps_rise_whatever_happens() {
        let claim = Stamp::first(0).after(Stamp::first(0));
        let steps = [Stamp::first(0), claim, claim.intent(), claim.intent().after(claim), Stamp::first(1)];
        assert!(steps.is_sorted_by(|a, b| a < b));
        assert!(Stamp::first(1).after(claim) > Stamp::first(1), "generations count more than grants");
        assert!(claim.token() > Stamp::first(0).token() && Stamp::first(1).token() > claim.token());
    }

    #[test]
    fn numbers_never_end_in_zeros() {
        assert_eq!(number_after(0xffff), 0x1_0001);
        assert_eq!(number_after((1 << NUMBER_BITS) - 1), 1);
    }

    #[test]
    fn no_two_words_of_a_node_overlap() {
        let (space, params) = (Space::of(2), LeasedParams { clients: 2, slots: 2, ..LeasedParams::DEFAULT });
        let mut words = Vec::new();
        for lock in [0, 1] {
            let lock = LockWords::new(&space, lock);
            words.push(lock.victim());
            for side in [Side::Local, Side::Remote] {
                words.extend([lock.tail(side), lock.stamp(side), lock.holder(side)]);
            }
        }
        for (client, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let member = Member { owner: PeerId::client(client), slot, node: Some(NodeId(0)), number: 1 };
            words.extend(member.pass(&space, &params));
            words.extend(member.next_number(&space, &params));
            words.extend(member.next_name(&space, &params));
        }
        let mut offsets: Vec<_> = words.iter().map(|word| word.addr().offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), words.len());
        assert!(offsets.iter().all(|offset| offset + 8 <= bytes_per_node(&space, &params)));
    }
}
