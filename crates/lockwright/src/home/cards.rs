//! Who holds and who waits, written down in the space itself: what `ls` shows, and what a waiter asks before it takes a
//! lock away from somebody (`lockwright_locks::kept` says why the order of these writes is safe).
//!
//! Region 1 of a space begins with one bit per client slot: whether it has a sheet. Then comes a roster, one word per
//! slot: the peer whose sheet it is, 0 for nobody's. Then a sheet for every slot: one line about the client, and one line
//! ("card") for every lock it holds or wants. Only the client writes its own sheet, with plain stores, but for two words:
//! the verdict on it, and a card whose range is taken away ([`strike`]). Everybody may read all of them.
//!
//! | sheet, byte | holds |
//! |---|---|
//! | 8 | its last sign of life, CLOCK_MONOTONIC, nanoseconds |
//! | 16 | its lease, nanoseconds: silent for longer, it can be declared dead |
//! | 24 | bit n: card n has been in use; the others need not be looked at |
//! | 32, 40 | its dependent process, which must have ended too before its locks are free: pid (0: none) and start time |
//! | 48 | the [verdict](kept::verdict) on it |
//! | 64.. | 64 cards of 64 bytes |
//!
//! | card, byte | holds |
//! |---|---|
//! | 0 | state (bits 0..4), shared (4), range lock (5), lock id (8..) |
//! | 8 | what names the grant: its token, and for keyed locks the generation above it (`ShiftGrant::mark`) |
//! | 16 | since when it is in this state, to within a few signs of life |
//! | 24, 32 | the range, if it is a range lock's card |
//! | 40 | since which turn it waits for that; 0: not yet |
//!
//! | state | meaning | counts as a holder |
//! |---|---|---|
//! | 0 free | nothing | no |
//! | 1 taking | tries, and holds once it has a token | yes |
//! | 2 waiting | queued | no |
//! | 3 held | was handed the lock | yes |
//! | 5 struck | held a range, which was taken away | no |
//!
//! A writer leaves the first word for last, and a reader looks at it twice.

use super::Kind;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Process, ShmEndpoint, ShmSpace, WordSlice};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Word64};
use lockwright_locks::kept::{self, ranges::Entered, verdict::Verdict};
use lockwright_locks::shiftlock::layout::Stamp;

/// Client slots of a space.
pub(crate) const SLOTS: u64 = 1024;
/// Cards on a sheet: the bits of one word say which are in use.
pub(crate) const CARDS: u64 = 64;
/// Signs of life per lease.
pub(crate) const BEATS: u32 = 4;
/// The region of the sheets.
const REGION: RegionId = RegionId(1);
const LINE: u64 = 64;
const SHEET_BYTES: u64 = LINE * (1 + CARDS);
const BITS_BYTES: u64 = SLOTS / 8;
const ROSTER_BYTES: u64 = SLOTS * 8;
/// Bytes of the roster and all sheets.
pub(crate) const BYTES: u64 = BITS_BYTES + ROSTER_BYTES + SLOTS * SHEET_BYTES;
/// Words of a line.
const LINE_WORDS: u64 = LINE / 8;
/// Words of a sheet's first line.
const BEAT: u64 = 1;
const VERDICT: u64 = 6;
/// Words of a card.
pub(crate) const TOKEN: u64 = 1;
pub(crate) const SINCE: u64 = 2;
pub(crate) const START: u64 = 3;
pub(crate) const END: u64 = 4;
pub(crate) const TURN: u64 = 5;

/// What a card says its owner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Taking = kept::State::Taking as isize,
    Waiting = kept::State::Waiting as isize,
    Held = kept::State::Held as isize,
    Struck = 5,
}

impl State {
    const ALL: [Self; 4] = [Self::Taking, Self::Waiting, Self::Held, Self::Struck];

    pub(crate) const fn holds(self) -> bool {
        matches!(self, Self::Taking | Self::Held)
    }
}

impl From<kept::State> for State {
    #[inline(always)]
    fn from(state: kept::State) -> Self {
        match state {
            kept::State::Taking => Self::Taking,
            kept::State::Waiting => Self::Waiting,
            kept::State::Held => Self::Held,
        }
    }
}

/// A card as somebody else reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    pub(crate) peer: PeerId,
    pub(crate) card: u64,
    pub(crate) state: State,
    pub(crate) kind: Kind,
    pub(crate) claim: Claim,
    pub(crate) token: u64,
    /// The token, and what else names the grant of a keyed lock; 0: not granted.
    pub(crate) mark: u64,
    pub(crate) since: Time,
    pub(crate) turn: u64,
}

/// A sheet's first line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sheet {
    pub(crate) peer: PeerId,
    beat: u64,
    lease_ns: u64,
    used: u64,
    verdict: Verdict,
    /// A process that works under the client's locks, and may outlive the client by a moment.
    dependent: Option<Process>,
}

const fn slot(peer: PeerId) -> u64 {
    (peer.0 as u64 - 1) % SLOTS
}

const fn sheet_at(slot: u64) -> u64 {
    BITS_BYTES + ROSTER_BYTES + slot * SHEET_BYTES
}

#[inline(always)]
fn word(offset: u64) -> Word64 {
    Word64::at(Addr { offset, node: NodeId(0), region: REGION })
}

fn roster(slot: u64) -> Word64 {
    word(BITS_BYTES + slot * 8)
}

/// The pen: how a client writes its own sheet.
#[derive(Clone, Debug)]
pub(crate) struct Pen {
    slot: u64,
    sheet: WordSlice,
}

impl Pen {
    pub(crate) fn new(space: &ShmSpace, me: PeerId) -> Self {
        let sheet = space.word_slice(word(sheet_at(slot(me))), SHEET_BYTES / 8);
        Self { slot: slot(me), sheet }
    }

    /// Takes the sheet over: all cards are free. The slot is this client's alone, and so are its bit and its words.
    pub(crate) fn begin(&self, ep: &ShmEndpoint, lease_ns: u64, now: Time) -> Result<(), FabricError> {
        block_on(ep.go(roster(self.slot).write(0)))?;
        for card in 0..CARDS {
            self.sheet.write(at(card), 0);
        }
        for (index, value) in [(BEAT, now.0), (2, lease_ns), (3, 0), (4, 0), (5, 0)] {
            self.sheet.write(index, value);
        }
        // Somebody may still be at work on the verdict on the slot's last client: its count goes on.
        let verdict = verdict_at(self.slot);
        loop {
            let old = block_on(ep.go(verdict.read()))?;
            if block_on(ep.go(verdict.cas(old, Verdict(old).renewed().0)))? == old {
                break;
            }
        }
        let (bits, bit) = (word(self.slot / 64 * 8), 1 << (self.slot % 64));
        if block_on(ep.go(bits.read()))? & bit == 0 {
            block_on(ep.go(bits.fetch_add(bit)))?;
        }
        block_on(ep.go(roster(self.slot).write(u64::from(ep.me().0)))).map(drop)
    }

    /// The sheet is nobody's any more.
    pub(crate) fn end(&self, ep: &ShmEndpoint) -> Result<(), FabricError> {
        let (bits, bit) = (word(self.slot / 64 * 8), 1_u64 << (self.slot % 64));
        block_on(ep.go((roster(self.slot).write(0), bits.fetch_add(bit.wrapping_neg())))).map(drop)
    }

    /// Names the client's dependent process. Its start time comes first: a pid without it would be another process's.
    pub(crate) fn set_dependent(&self, ep: &ShmEndpoint, process: Process) -> Result<(), FabricError> {
        let (sheet, pid) = (sheet_at(self.slot), process.pid.into());
        let words =
            [(32, 0), (40, process.start), (32, pid)].map(|(byte, value)| word(sheet + byte).write(value));
        block_on(ep.go(words)).map(drop)
    }

    /// The verdict on this client.
    #[inline(always)]
    pub(crate) fn verdict(&self) -> Verdict {
        Verdict(self.sheet.read(VERDICT))
    }

    /// Where that stands.
    pub(crate) fn verdict_word(&self) -> Word64 {
        verdict_at(self.slot)
    }

    /// A sign of life.
    pub(crate) fn beat(&self, now: Time) {
        self.sheet.write(BEAT, now.0);
    }

    /// Says, once for every card, that it is in use now and then. An addition, since threads may do this at once.
    pub(crate) fn uses(&self, ep: &ShmEndpoint, card: u64) -> Result<(), FabricError> {
        block_on(ep.go(word(sheet_at(self.slot) + 24).fetch_add(1 << card))).map(drop)
    }

    /// Fills the card of a keyed lock in. Others see it no later than what this client does next with an atomic verb.
    #[inline(always)]
    pub(crate) fn fill(&self, card: u64, state: State, claim: &Claim, since: Time) {
        let at = at(card);
        self.sheet.write(at + TOKEN, 0);
        self.sheet.write(at + SINCE, since.0);
        self.sheet.write(at, first(state, Kind::Keyed, claim));
    }

    /// Fills the card of a range in, likewise.
    #[inline(always)]
    pub(crate) fn fill_range(&self, card: u64, entered: &Entered, since: Time) {
        let (at, claim) = (at(card), &entered.claim);
        for (word, value) in
            [(START, claim.start), (END, claim.end), (TURN, entered.turn), (TOKEN, 0), (SINCE, since.0)]
        {
            self.sheet.write(at + word, value);
        }
        self.sheet.write(at, first(entered.state.into(), Kind::Ranges, claim));
    }

    /// Adds to a card what names its grant.
    #[inline(always)]
    pub(crate) fn granted(&self, card: u64, mark: u64) {
        self.sheet.write(at(card) + TOKEN, mark);
    }

    /// Whether a card still says that a range is held.
    pub(crate) fn says_held(&self, card: u64, claim: &Claim) -> bool {
        self.sheet.read(at(card)) == first(State::Held, Kind::Ranges, claim)
    }

    /// Frees a card.
    #[inline(always)]
    pub(crate) fn clear(&self, card: u64) {
        self.sheet.write(at(card), 0);
    }
}

/// Where a card begins on its sheet, in words.
#[inline(always)]
const fn at(card: u64) -> u64 {
    LINE_WORDS * (1 + card)
}

const fn verdict_word(slot: u64) -> u64 {
    sheet_at(slot) + 8 * VERDICT
}

fn verdict_at(slot: u64) -> Word64 {
    word(verdict_word(slot))
}

/// Takes a range away from its holder, who finds its card struck. `false` if it holds it no more.
pub(crate) fn strike(ep: &ShmEndpoint, card: &Card) -> Result<bool, FabricError> {
    let at = sheet_at(slot(card.peer)) + LINE * (1 + card.card);
    let [held, struck] = [State::Held, State::Struck].map(|state| first(state, card.kind, &card.claim));
    Ok(block_on(ep.go(word(at).cas(held, struck)))? == held)
}

/// The first word of a card.
#[inline(always)]
pub(crate) const fn first(state: State, kind: Kind, claim: &Claim) -> u64 {
    let shared = matches!(claim.mode, Mode::Shared) as u64;
    state as u64 | shared << 4 | (matches!(kind, Kind::Ranges) as u64) << 5 | claim.lock << 8
}

/// All sheets, as everybody may read them.
#[derive(Clone, Debug)]
pub(crate) struct Sheets(WordSlice);

impl Sheets {
    pub(crate) fn new(space: &ShmSpace) -> Self {
        Self(space.word_slice(word(0), BYTES / 8))
    }

    #[inline(always)]
    fn peek(&self, byte: u64) -> u64 {
        self.0.read(byte / 8)
    }

    /// Every sheet that somebody has begun, and not ended.
    pub(crate) fn all(&self) -> impl Iterator<Item = Sheet> + '_ {
        let slots = (0..SLOTS / 64).flat_map(|index| {
            let mut bits = self.peek(index * 8);
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
                bits &= bits - 1;
                Some(index * 64 + bit)
            })
        });
        slots.filter_map(|slot| {
            let peer = self.peek(BITS_BYTES + slot * 8);
            let peer = PeerId(u32::try_from(peer).ok().filter(|peer| *peer != 0)?);
            self.of(peer)
        })
    }

    /// The sheet of `peer`, if it has one.
    pub(crate) fn of(&self, peer: PeerId) -> Option<Sheet> {
        let at = sheet_at(slot(peer));
        let [beat, lease_ns, used, pid, start] = [8, 16, 24, 32, 40].map(|byte| self.peek(at + byte));
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0);
        let dependent = pid.map(|pid| Process { pid, start });
        let verdict = Verdict(self.peek(verdict_word(slot(peer))));
        let sheet = Sheet { peer, beat, lease_ns, used, verdict, dependent };
        (self.peek(BITS_BYTES + slot(peer) * 8) == u64::from(peer.0)).then_some(sheet)
    }

    /// The cards of `sheet` that are in use.
    pub(crate) fn cards(&self, sheet: Sheet) -> impl Iterator<Item = Card> + '_ {
        sheet.lines().filter_map(move |(card, at)| self.card(sheet.peer, card, at))
    }

    /// The cards of `sheet` with which somebody holds a range of `lock`, or waits for one, in the way of a `claim`.
    #[inline]
    pub(crate) fn in_the_way(&self, sheet: Sheet, claim: Claim) -> impl Iterator<Item = Card> + '_ {
        sheet.lines().filter_map(move |(card, at)| {
            // A look at the first word suffices for most; what it says of those left is read as a whole.
            let (first, [start, end]) = (self.peek(at), [START, END].map(|word| self.peek(at + 8 * word)));
            let same = first >> 8 == claim.lock && first >> 5 & 1 == 1;
            let apart = end <= claim.start || claim.end <= start;
            if !same || apart && self.peek(at) == first { None } else { self.card(sheet.peer, card, at) }
        })
    }

    fn card(&self, peer: PeerId, card: u64, at: u64) -> Option<Card> {
        /// Written faster than it can be read, a card says nothing that would last.
        const LOOKS: usize = 16;
        for _ in 0..LOOKS {
            let words = [0, TOKEN, SINCE, START, END, TURN].map(|word| self.peek(at + 8 * word));
            if self.peek(at) == words[0] {
                return Card::of(peer, card, words);
            }
        }
        None
    }
}

impl Card {
    /// The card made of these words, in the order of the table above; none if it is free.
    pub(crate) fn of(peer: PeerId, card: u64, words: [u64; 6]) -> Option<Self> {
        let [first, mark, since, start, end, turn] = words;
        let token = Stamp::token_of(mark);
        let state = State::ALL.into_iter().find(|state| *state as u64 == first & 0xf)?;
        let mode = if first >> 4 & 1 == 1 { Mode::Shared } else { Mode::Exclusive };
        let kind = if first >> 5 & 1 == 1 { Kind::Ranges } else { Kind::Keyed };
        let claim = Claim { lock: first >> 8, mode, start, end };
        Some(Self { peer, card, state, kind, claim, token, mark, since: Time(since), turn })
    }
}

impl Sheet {
    /// Its cards in use, and at which byte they begin.
    fn lines(self) -> impl Iterator<Item = (u64, u64)> {
        let (at, mut used) = (sheet_at(slot(self.peer)), self.used);
        std::iter::from_fn(move || {
            let card = (used != 0).then(|| u64::from(used.trailing_zeros()))?;
            used &= used - 1;
            Some((card, at + LINE * (1 + card)))
        })
    }

    /// Whether the client has a dependent process that is not known to have ended.
    pub(crate) fn has_dependent(&self) -> bool {
        self.dependent.is_some_and(|process| !process.has_ended())
    }

    /// Whether its client was declared dead.
    pub(crate) fn is_out(&self) -> bool {
        self.verdict.is_out()
    }

    /// Where the verdict on it stands.
    pub(crate) fn verdict_word(&self) -> Word64 {
        verdict_at(slot(self.peer))
    }

    /// Whether it has been silent for so long that it may be accused; or, if it was accused at that time, declared dead:
    /// a living one has had time to answer, and the lease is over.
    pub(crate) fn is_silent(&self, accused: Option<Time>, now: Time) -> bool {
        let (silence_ns, beat_ns) = (now.since(Time(self.beat)), self.lease_ns / u64::from(BEATS));
        match accused {
            None => silence_ns > self.lease_ns - beat_ns,
            Some(time) => silence_ns > self.lease_ns && now.since(time) > beat_ns,
        }
    }

    /// Whether it has been silent for longer than its lease, or was declared dead for that already.
    pub(crate) fn is_expired(&self, now: Time) -> bool {
        self.verdict.is_out() || now.since(Time(self.beat)) > self.lease_ns
    }
}
