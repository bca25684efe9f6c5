//! The layout of a holder table: which word is where, and what its bits mean.
//!
//! A table begins with the *client directory*: one bit per client slot (whether it is in use), then one word per slot (the
//! peer whose slot it is; 0: no peer's). Then comes, for every slot, a [`ClientRecord`] and a number of [`HolderRecord`]s,
//! one per lock that the client holds or wants. Only the client writes its own records, but for two words: its liveness word,
//! and the first word of a range that is [revoked](State::Revoked). All clients may read all of them.
//!
//! How many clients and records there are is a parameter ([`TableLayout`]): a space in shared memory has 1024 × 64, the
//! explorer two or three clients with one or two records.
//!
//! | client record, word | holds |
//! |---|---|
//! | 0 | heartbeat: when the client last showed that it is alive, in nanoseconds |
//! | 1 | its lease, in nanoseconds: silent for longer, it can be evicted |
//! | 2 | bit n: holder record n has been in use; the others need not be read |
//! | 3, 4 | dependent process: pid and start time of a process that must be gone too before the locks are free; 0: none |
//! | 5 | the [liveness](super::liveness) word |
//! | 6 | 0: a process of the host whose memory this is; else one that comes by verbs: 1 and its pid there. Of spaces with both |
//!
//! | holder record, word | holds |
//! |---|---|
//! | 0 | state (bits 0–3), shared (4), range lock (5), lock id (8–38), [semaphore](is_semaphore) (39), version (40–63) |
//! | 1 | what names the grant: its token, and for keyed locks the generation above it ([`ShiftGrant::mark`]); 0: not granted |
//! | 2 | since when it is in this state, to within a few heartbeats |
//! | 3, 4 | the range, if it is a range lock's; permits, and one more than there are, if it is a semaphore's |
//! | 5 | since which turn it waits for that; 0: not yet. Of a range on a tree: its [progress](crate::citron::member::Progress) |
//!
//! | state | meaning | counts as a holder |
//! |---|---|---|
//! | 0 free | nothing | no |
//! | 1 taking | tries, and holds the lock from the moment its verb succeeds | yes |
//! | 2 waiting | queued | no |
//! | 3 held | was handed the lock | yes |
//! | 4 upgrading | holds it shared, and waits to be alone | yes |
//! | 5 revoked | held a range, which was taken away | no |
//!
//! The version rises whenever a free record is filled in. So a reader that finds the same first word before and after it
//! read the others has read what was written together, and a revocation, which compares the first word, hits the grant
//! that was read and no later one.
//!
//! [`ShiftGrant::mark`]: crate::shiftlock::ShiftGrant::mark

use crate::shiftlock::layout::Stamp;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Field, PeerId, Time, Word64};

/// In a lock's id: it is the semaphore of that name, whose records are those of a range lock.
const SEMAPHORE: u64 = 1 << 31;

/// The id of the semaphore that has its name from `lock`.
#[inline(always)]
pub const fn semaphore(lock: u64) -> u64 {
    lock | SEMAPHORE
}

/// Whether `lock` is a semaphore: a claim on `start..end` of it is for `start` of the `end - 1` permits.
#[inline(always)]
pub const fn is_semaphore(lock: u64) -> bool {
    lock & SEMAPHORE != 0
}

/// The lock that `lock`, perhaps a semaphore, has its name from.
#[inline(always)]
pub const fn name_of(lock: u64) -> u64 {
    lock & !SEMAPHORE
}

/// Bytes of a client record and of a holder record: one cache line, so that clients do not disturb each other.
const LINE: u64 = 64;
/// The most holder records of a client: the bits of one word say which are in use.
pub const MAX_RECORDS: u64 = 64;

/// A word of a client record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientWord {
    /// When the client last showed that it is alive.
    Heartbeat = 0,
    /// Its lease.
    Lease = 1,
    /// Which holder records have been in use.
    Used = 2,
    /// The pid of the dependent process.
    DependentPid = 3,
    /// When that was started.
    DependentStart = 4,
    /// The liveness word.
    Liveness = 5,
    /// Whether it comes by verbs, from elsewhere.
    Elsewhere = 6,
}

/// A word of a holder record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordWord {
    /// State, mode, kind, lock and version.
    First = 0,
    /// What names the grant.
    Mark = 1,
    /// Since when.
    Since = 2,
    /// The range's first unit.
    Start = 3,
    /// One past its last unit.
    End = 4,
    /// Since which turn a range is waited for.
    Turn = 5,
}

impl RecordWord {
    /// How far a request for a range on a tree has come, in the place of a turn.
    pub const PROGRESS: Self = Self::Turn;
    /// All of them, in order.
    pub const ALL: [Self; 6] = [Self::First, Self::Mark, Self::Since, Self::Start, Self::End, Self::Turn];
}

/// Where a table lies, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLayout {
    base: Addr,
    clients: u64,
    records: u64,
    versions: u64,
}

impl TableLayout {
    /// A table at `base` for so many clients with so many records each.
    ///
    /// # Panics
    /// If a client is to have more than [`MAX_RECORDS`].
    pub const fn new(base: Addr, clients: u64, records: u64) -> Self {
        assert!(records <= MAX_RECORDS, "one word says which records of a client are in use");
        Self { base, clients, records, versions: First::VERSION.max() as u64 }
    }

    /// The same with records whose version is counted in so many bits only. For the explorer: a count that rises for ever
    /// has no end of states. 0: for cases in which nobody reads a record while it may be written.
    #[must_use]
    pub const fn with_version_bits(mut self, bits: u32) -> Self {
        self.versions = (1 << bits) - 1;
        self
    }

    /// Whether records have a version at all.
    pub const fn has_versions(&self) -> bool {
        self.versions != 0
    }

    /// Client slots.
    pub const fn clients(&self) -> u64 {
        self.clients
    }

    /// Holder records per client.
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Words of the directory's bits.
    #[inline(always)]
    pub const fn directory_words(&self) -> u64 {
        self.clients.div_ceil(64)
    }

    /// Bytes from `base` to the end.
    pub const fn bytes(&self) -> u64 {
        self.directory_bytes() + self.clients * self.client_bytes()
    }

    #[inline(always)]
    const fn directory_bytes(&self) -> u64 {
        (8 * (self.directory_words() + self.clients)).next_multiple_of(LINE)
    }

    #[inline(always)]
    const fn client_bytes(&self) -> u64 {
        LINE * (1 + self.records)
    }

    /// The slot of `peer`.
    #[inline(always)]
    pub const fn slot(&self, peer: PeerId) -> u64 {
        (peer.0 as u64 - 1) % self.clients
    }

    #[inline(always)]
    const fn word(&self, offset: u64) -> Word64 {
        Word64::at(self.base.plus(offset))
    }

    /// The word with the bits of 64 slots.
    #[inline(always)]
    pub const fn directory(&self, index: u64) -> Word64 {
        self.word(8 * index)
    }

    /// The word that says whose a slot is.
    #[inline(always)]
    pub const fn owner(&self, slot: u64) -> Word64 {
        self.word(8 * (self.directory_words() + slot))
    }

    /// A word of a client record.
    #[inline(always)]
    pub const fn client(&self, slot: u64, word: ClientWord) -> Word64 {
        self.word(self.directory_bytes() + slot * self.client_bytes() + 8 * word as u64)
    }

    /// A holder record's place.
    #[inline(always)]
    pub const fn record(&self, slot: u64, record: u64) -> RecordPlace {
        let offset = self.directory_bytes() + slot * self.client_bytes() + LINE * (1 + record);
        RecordPlace(self.base.plus(offset))
    }

    /// Which record and word of it is at `word`; `None`: it is no holder record's.
    pub fn locate(&self, word: Word64) -> Option<(u64, u64, RecordWord)> {
        let offset = word.addr().offset.checked_sub(self.base.offset + self.directory_bytes())?;
        let (slot, offset) = (offset / self.client_bytes(), offset % self.client_bytes());
        let offset = offset.checked_sub(LINE)?;
        let found = RecordWord::ALL.get((offset % LINE / 8) as usize)?;
        Some((slot, offset / LINE, *found))
    }

    /// The version after that of `first`.
    #[inline(always)]
    pub const fn next_version(&self, first: First) -> u64 {
        (first.version() + 1) & self.versions
    }
}

/// Where one holder record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace(Addr);

impl RecordPlace {
    /// One of its words.
    #[inline(always)]
    pub const fn word(self, word: RecordWord) -> Word64 {
        Word64::at(self.0.plus(8 * word as u64))
    }
}

/// What a holder record says its client is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It tries, and holds the lock from the moment its verb succeeds: counts as holding.
    Taking = 1,
    /// It queues.
    Waiting = 2,
    /// It was handed the lock: counts as holding.
    Held = 3,
    /// It holds the lock, or a range, shared, and waits to be alone: counts as holding.
    Upgrading = 4,
    /// Its range was taken away.
    Revoked = 5,
}

impl State {
    /// Whether nobody may reset the lock while the record's client is alive.
    #[inline(always)]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Taking | Self::Held | Self::Upgrading)
    }
}

/// The two kinds of lock under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A mutex or reader-writer lock.
    Keyed,
    /// A range lock.
    Range,
}

/// The first word of a holder record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First(pub u64);

impl First {
    const STATE: Field = Field { shift: 0, bits: 4 };
    const SHARED: Field = Field { shift: 4, bits: 1 };
    const RANGE: Field = Field { shift: 5, bits: 1 };
    const LOCK: Field = Field { shift: 8, bits: 32 };
    const VERSION: Field = Field { shift: 40, bits: 24 };

    /// The word of a record in use.
    #[inline(always)]
    pub const fn new(state: State, kind: Kind, claim: &Claim, version: u64) -> Self {
        debug_assert!(claim.lock >> Self::LOCK.bits == 0, "a record has 32 bits for the lock");
        let shared = matches!(claim.mode, Mode::Shared) as u64;
        let range = matches!(kind, Kind::Range) as u64;
        Self(
            state as u64
                | shared << Self::SHARED.shift
                | range << Self::RANGE.shift
                | claim.lock << Self::LOCK.shift
                | version << Self::VERSION.shift,
        )
    }

    /// The word of the same record when it is free.
    #[inline(always)]
    #[must_use]
    pub const fn freed(self) -> Self {
        Self(self.0 >> Self::VERSION.shift << Self::VERSION.shift)
    }

    /// The same in another state.
    #[inline(always)]
    #[must_use]
    pub const fn in_state(self, state: State) -> Self {
        Self(self.0 & !(Self::STATE.mask() as u64) | state as u64)
    }

    /// The same in another mode.
    #[inline(always)]
    #[must_use]
    pub const fn in_mode(self, mode: Mode) -> Self {
        let shared = matches!(mode, Mode::Shared) as u64;
        Self(self.0 & !(Self::SHARED.mask() as u64) | shared << Self::SHARED.shift)
    }

    /// What the client is doing; `None`: the record is free.
    #[inline(always)]
    pub const fn state(self) -> Option<State> {
        match self.0 & Self::STATE.mask() as u64 {
            1 => Some(State::Taking),
            2 => Some(State::Waiting),
            3 => Some(State::Held),
            4 => Some(State::Upgrading),
            5 => Some(State::Revoked),
            _ => None,
        }
    }

    /// Whether its client counts as a holder.
    #[inline(always)]
    pub const fn holds(self) -> bool {
        let state = self.0 & Self::STATE.mask() as u64;
        matches!(state, 1 | 3 | 4)
    }

    /// Whether the record is in use for this lock.
    #[inline(always)]
    pub const fn is_for(self, kind: Kind, lock: u64) -> bool {
        let wanted =
            Self::new(State::Held, kind, &Claim { lock, mode: Mode::Exclusive, start: 0, end: 0 }, 0);
        let mask = (Self::RANGE.mask() | Self::LOCK.mask()) as u64;
        (self.0 ^ wanted.0) & mask == 0 && self.0 & Self::STATE.mask() as u64 != 0
    }

    /// Which kind of lock.
    #[inline(always)]
    pub const fn kind(self) -> Kind {
        if self.0 & Self::RANGE.mask() as u64 == 0 { Kind::Keyed } else { Kind::Range }
    }

    /// Which lock.
    #[inline(always)]
    pub const fn lock(self) -> u64 {
        Self::LOCK.get(self.0 as u128) as u64
    }

    /// How often the record was filled in.
    #[inline(always)]
    pub const fn version(self) -> u64 {
        self.0 >> Self::VERSION.shift
    }

    /// In which mode.
    #[inline(always)]
    pub const fn mode(self) -> Mode {
        if self.0 & Self::SHARED.mask() as u64 == 0 { Mode::Exclusive } else { Mode::Shared }
    }
}

const _: () = {
    assert!(First::VERSION.shift + First::VERSION.bits == 64 && First::LOCK.shift + First::LOCK.bits == 40);
    let states = [State::Taking, State::Waiting, State::Held, State::Upgrading, State::Revoked];
    let mut index = 0;
    while index < states.len() {
        let read = First(states[index] as u64).state();
        assert!(
            matches!(read, Some(state) if state as u64 == states[index] as u64),
            "a state reads as it is written"
        );
        assert!(First(states[index] as u64).holds() == states[index].holds());
        index += 1;
    }
    assert!(8 * RecordWord::ALL.len() as u64 <= LINE && 8 * ClientWord::Elsewhere as u64 + 8 <= LINE);
};

/// A holder record as others read it.
#[derive(Clone, Copy, Debug)]
pub struct HolderRecord {
    /// Whose it is.
    pub peer: PeerId,
    /// Which of its records.
    pub record: u64,
    /// The first word as it was read.
    pub first: First,
    /// What its client is doing.
    pub state: State,
    /// What kind of lock.
    pub kind: Kind,
    /// With what.
    pub claim: Claim,
    /// The token, and what else names the grant of a keyed lock; 0: not granted.
    pub mark: u64,
    /// Since when.
    pub since: Time,
    /// Since which turn a range is waited for; 0: not yet.
    pub turn: u64,
}

impl HolderRecord {
    /// The record made of these words, in the order of the table above; none if it is free.
    pub fn decode(peer: PeerId, record: u64, words: [u64; 6]) -> Option<Self> {
        let [first, mark, since, start, end, turn] = words;
        let first = First(first);
        let claim = Claim { lock: first.lock(), mode: first.mode(), start, end };
        let (state, kind, since) = (first.state()?, first.kind(), Time(since));
        Some(Self { peer, record, first, state, kind, claim, mark, since, turn })
    }

    /// The grant's token; 0 if it is none yet.
    pub fn token(&self) -> u64 {
        Stamp::token_of(self.mark)
    }
}

/// A client record as others read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRecord {
    /// Whose it is.
    pub peer: PeerId,
    /// When the client last showed that it is alive.
    pub heartbeat: Time,
    /// Its lease.
    pub lease_ns: u64,
    /// Which holder records have been in use.
    pub used: u64,
    /// Pid and start time of its dependent process.
    pub dependent: (u64, u64),
    /// The liveness word.
    pub liveness: super::liveness::Liveness,
}

/// Heartbeats per lease.
pub const HEARTBEATS: u32 = 4;

impl ClientRecord {
    /// Whether the client has been silent for so long that it may be suspected; or, if it was suspected at that time, evicted:
    /// a living one has had time to answer, and the lease is over.
    pub const fn is_silent(&self, suspected: Option<Time>, now: Time) -> bool {
        let (silence_ns, period_ns) = (now.since(self.heartbeat), self.lease_ns / HEARTBEATS as u64);
        match suspected {
            None => silence_ns > self.lease_ns - period_ns,
            Some(time) => silence_ns > self.lease_ns && now.since(time) > period_ns,
        }
    }

    /// Whether it has been silent for longer than its lease, or was evicted for that already.
    pub const fn is_expired(&self, now: Time) -> bool {
        self.liveness.is_evicted() || now.since(self.heartbeat) > self.lease_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::{NodeId, RegionId};
    use std::collections::BTreeSet;

    #[test]
    fn a_silent_client_is_suspected_before_its_lease_is_over_and_evicted_after_it_and_a_time_to_answer() {
        let client = ClientRecord {
            peer: PeerId(1),
            heartbeat: Time(1000),
            lease_ns: 400,
            used: 0,
            dependent: (0, 0),
            liveness: super::super::liveness::Liveness(0),
        };
        let silent = |suspected: Option<u64>, now| client.is_silent(suspected.map(Time), Time(now));
        assert!(!silent(None, 1300) && silent(None, 1301));
        assert!(!silent(Some(1150), 1400), "the lease is not over");
        assert!(silent(Some(1150), 1401));
        assert!(!silent(Some(1301), 1401) && silent(Some(1300), 1401), "it has not had the time to answer");
        assert!(!client.is_expired(Time(1400)) && client.is_expired(Time(1401)));
    }

    #[test]
    fn no_two_words_of_a_table_are_in_the_same_place_and_all_are_inside() {
        let base = Addr { offset: 640, node: NodeId(0), region: RegionId(1) };
        for (clients, records) in [(1, 1), (3, 2), (127, 64), (130, 4)] {
            let layout = TableLayout::new(base, clients, records);
            let mut seen = BTreeSet::new();
            let mut see = |word: Word64| {
                let addr = word.addr();
                assert!(addr.offset.is_multiple_of(8) && addr.offset >= base.offset, "{addr}");
                assert!(addr.offset + 8 <= base.offset + layout.bytes(), "{addr}");
                assert!((addr.node, addr.region) == (base.node, base.region), "{addr}");
                assert!(seen.insert(addr.offset), "{addr} is two words");
            };
            (0..layout.directory_words()).for_each(|index| see(layout.directory(index)));
            for slot in 0..clients {
                see(layout.owner(slot));
                for word in [ClientWord::Heartbeat, ClientWord::Lease, ClientWord::Used] {
                    see(layout.client(slot, word));
                }
                for word in [ClientWord::DependentPid, ClientWord::DependentStart, ClientWord::Liveness] {
                    see(layout.client(slot, word));
                }
                for record in 0..records {
                    for word in RecordWord::ALL {
                        let at = layout.record(slot, record).word(word);
                        see(at);
                        assert_eq!(layout.locate(at), Some((slot, record, word)));
                    }
                }
                assert_eq!(layout.locate(layout.owner(slot)), None);
                assert_eq!(layout.locate(layout.client(slot, ClientWord::Liveness)), None);
            }
        }
    }

    #[test]
    fn a_record_says_what_was_written_into_it() {
        let claim = Claim { lock: u64::from(u32::MAX), mode: Mode::Shared, start: 7, end: u64::MAX };
        let first = First::new(State::Waiting, Kind::Range, &claim, 0xff_ffff);
        let read = HolderRecord::decode(PeerId(4), 9, [first.0, 5, 6, 7, u64::MAX, 8]).unwrap();
        assert_eq!((read.state, read.kind, read.claim), (State::Waiting, Kind::Range, claim));
        assert_eq!((read.mark, read.since, read.turn, read.first.version()), (5, Time(6), 8, 0xff_ffff));
        assert!(first.is_for(Kind::Range, claim.lock) && !first.is_for(Kind::Keyed, claim.lock));
        assert!(!first.holds() && first.in_state(State::Held).holds());
        assert_eq!(first.in_state(State::Revoked).state(), Some(State::Revoked));
        let freed = first.freed();
        assert!(freed.state().is_none() && freed.version() == 0xff_ffff && !freed.is_for(Kind::Keyed, 0));
        assert!(HolderRecord::decode(PeerId(4), 9, [freed.0, 0, 0, 0, 0, 0]).is_none());
        let layout = TableLayout::new(Addr::new(NodeId(0), 0), 1, 1);
        assert_eq!(layout.next_version(freed), 0, "it wraps");
    }
}
