//! Who holds and who waits, written down in the space itself: what `ls` shows, and what a waiter asks before it takes a
//! lock away from somebody (`lockwright_locks::kept` says why the order of these writes is safe).
//!
//! Region 1 of a space begins with one bit per client slot: whether it has a sheet. Then comes a roster, one word per
//! slot: the peer whose sheet it is, 0 for nobody's. Then a sheet for every slot: one line about the client, and one line
//! ("card") for every lock it holds or wants. Only the client writes its own sheet, but for two words: [`condemn`]
//! overwrites its sign of life, and [`strike`] takes a range away. Everybody may read all of them.
//!
//! | sheet, byte | holds |
//! |---|---|
//! | 8 | its last sign of life, CLOCK_MONOTONIC, nanoseconds; 1: it is condemned |
//! | 16 | its lease, nanoseconds: silent for longer, it can be condemned, and then declared dead |
//! | 24 | bit n: card n has been in use; the others need not be looked at |
//! | 32, 40 | its ward: pid and start time of a process that must be gone too before its locks are free; 0: none |
//! | 64.. | 64 cards of 64 bytes |
//!
//! | card, byte | holds |
//! |---|---|
//! | 0 | state (bits 0..4), shared (4), range lock (5), lock id (8..) |
//! | 8 | token |
//! | 16 | since when it is in this state, to within a few signs of life |
//! | 24, 32 | the range, if it is a range lock's card |
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
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Word64};
use lockwright_locks::kept;

/// Client slots of a space.
pub(crate) const SLOTS: u64 = 1024;
/// Cards on a sheet: the bits of one word say which are in use.
pub(crate) const CARDS: u64 = 64;
/// The region of the sheets.
const REGION: RegionId = RegionId(1);
const LINE: u64 = 64;
const SHEET_BYTES: u64 = LINE * (1 + CARDS);
const BITS_BYTES: u64 = SLOTS / 8;
const ROSTER_BYTES: u64 = SLOTS * 8;
/// Bytes of the roster and all sheets.
pub(crate) const BYTES: u64 = BITS_BYTES + ROSTER_BYTES + SLOTS * SHEET_BYTES;
/// Instead of a sign of life: it comes too late.
const CONDEMNED: u64 = 1;

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
    pub(crate) since: Time,
}

/// A sheet's first line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sheet {
    pub(crate) peer: PeerId,
    beat: u64,
    lease_ns: u64,
    used: u64,
    pub(crate) ward: Ward,
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

/// A process that works under a client's locks, and may outlive the client by a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ward {
    pid: u64,
    /// Clock ticks from boot to its start: with the pid, it names one process.
    start: u64,
}

impl Ward {
    /// The process that has this pid now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let (start, ended) = Self::look(pid.into())?;
        (!ended).then_some(Self { pid: pid.into(), start })
    }

    /// Whether there is one, and it has not ended.
    pub(crate) fn lives(self) -> bool {
        self.pid != 0 && Self::look(self.pid) == Some((self.start, false))
    }

    /// When the process was started, and whether it has ended and only waits to be buried.
    fn look(pid: u64) -> Option<(u64, bool)> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name, in brackets, may hold anything.
        let fields: Vec<_> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let ended = matches!(*fields.first()?, "Z" | "X" | "x");
        Some((fields.get(19)?.parse().ok()?, ended))
    }
}

/// The pen: how a client writes its own sheet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pen {
    slot: u64,
    at: u64,
}

impl Pen {
    pub(crate) fn new(me: PeerId) -> Self {
        Self { slot: slot(me), at: sheet_at(slot(me)) }
    }

    /// Takes the sheet over: all cards are free. The slot is this client's alone, and so are its bit and its words.
    pub(crate) fn begin(&self, ep: &ShmEndpoint, lease_ns: u64, now: Time) -> Result<(), FabricError> {
        block_on(ep.go(roster(self.slot).write(0)))?;
        for card in 0..CARDS {
            block_on(ep.go(word(self.card_at(card)).write(0)))?;
        }
        let terms = [(8, now.0), (16, lease_ns), (24, 0), (32, 0), (40, 0)]
            .map(|(byte, value)| word(self.at + byte).write(value));
        block_on(ep.go(terms))?;
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

    /// Names the client's ward. Its start time comes first: a pid without it would be somebody else's.
    pub(crate) fn ward(&self, ep: &ShmEndpoint, ward: Ward) -> Result<(), FabricError> {
        let words = [(32, 0), (40, ward.start), (32, ward.pid)]
            .map(|(byte, value)| word(self.at + byte).write(value));
        block_on(ep.go(words)).map(drop)
    }

    /// A sign of life: `next` instead of the one at `last`, if that was the last. Says which one was there before; none if
    /// this client is condemned.
    #[inline(always)]
    pub(crate) fn beat(&self, ep: &ShmEndpoint, last: u64, next: u64) -> Result<Option<u64>, FabricError> {
        let found = block_on(ep.go(word(self.at + 8).cas(last, next)))?;
        Ok((found != CONDEMNED).then_some(found))
    }

    /// Says, once for every card, that it is in use now and then. An addition, since threads may do this at once.
    pub(crate) fn uses(&self, ep: &ShmEndpoint, card: u64) -> Result<(), FabricError> {
        block_on(ep.go(word(self.at + 24).fetch_add(1 << card))).map(drop)
    }

    #[inline(always)]
    const fn card_at(&self, card: u64) -> u64 {
        self.at + LINE * (1 + card)
    }

    /// Fills a card in. Others see it no later than what this client does next with an atomic verb.
    #[inline(always)]
    pub(crate) fn fill(
        &self,
        ep: &ShmEndpoint,
        card: u64,
        (state, kind, claim): (State, Kind, &Claim),
        token: u64,
        since: Time,
    ) -> Result<(), FabricError> {
        let at = self.card_at(card);
        if kind == Kind::Ranges {
            ep.note(word(at + 24), claim.start);
            ep.note(word(at + 32), claim.end);
        }
        ep.note(word(at + 8), token);
        ep.note(word(at + 16), since.0);
        in_or_out(ep.note(word(at), first(state, kind, claim)))
    }

    /// Adds the token to a card.
    #[inline(always)]
    pub(crate) fn token(&self, ep: &ShmEndpoint, card: u64, token: u64) {
        ep.note(word(self.card_at(card) + 8), token);
    }

    /// Whether a card still says `state`.
    pub(crate) fn says(
        &self,
        ep: &ShmEndpoint,
        card: u64,
        (state, kind, claim): (State, Kind, &Claim),
    ) -> Result<bool, FabricError> {
        Ok(block_on(ep.go(word(self.card_at(card)).read()))? == first(state, kind, claim))
    }

    /// Frees a card.
    #[inline(always)]
    pub(crate) fn clear(&self, ep: &ShmEndpoint, card: u64) -> Result<(), FabricError> {
        in_or_out(ep.note(word(self.card_at(card)), 0))
    }
}

#[inline(always)]
const fn in_or_out(is_in: bool) -> Result<(), FabricError> {
    if is_in { Ok(()) } else { Err(FabricError::Expelled) }
}

/// Takes a range away from its holder, who finds its card struck. `false` if it holds it no more.
pub(crate) fn strike(ep: &ShmEndpoint, card: &Card) -> Result<bool, FabricError> {
    let at = sheet_at(slot(card.peer)) + LINE * (1 + card.card);
    let [held, struck] = [State::Held, State::Struck].map(|state| first(state, card.kind, &card.claim));
    Ok(block_on(ep.go(word(at).cas(held, struck)))? == held)
}

/// Condemns a client that has been silent for longer than its lease; `false` if it has shown life since the sheet was
/// read. Whoever condemns it, or finds it condemned, declares it dead.
pub(crate) fn condemn(ep: &ShmEndpoint, sheet: &Sheet) -> Result<bool, FabricError> {
    let beat = word(sheet_at(slot(sheet.peer)) + 8);
    let found = block_on(ep.go(beat.cas(sheet.beat, CONDEMNED)))?;
    Ok(found == sheet.beat || found == CONDEMNED)
}

#[inline(always)]
const fn first(state: State, kind: Kind, claim: &Claim) -> u64 {
    let shared = matches!(claim.mode, Mode::Shared) as u64;
    state as u64 | shared << 4 | (matches!(kind, Kind::Ranges) as u64) << 5 | claim.lock << 8
}

/// Every sheet that somebody has begun, and not ended.
pub(crate) fn sheets(space: &ShmSpace) -> impl Iterator<Item = Sheet> + '_ {
    let slots = (0..SLOTS / 64).flat_map(|index| {
        let mut bits = space.peek(word(index * 8));
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
            bits &= bits - 1;
            Some(index * 64 + bit)
        })
    });
    slots.filter_map(|slot| {
        let peer = space.peek(roster(slot));
        let peer = PeerId(u32::try_from(peer).ok().filter(|peer| *peer != 0)?);
        sheet(space, peer)
    })
}

/// The sheet of `peer`, if it has one.
pub(crate) fn sheet(space: &ShmSpace, peer: PeerId) -> Option<Sheet> {
    let at = sheet_at(slot(peer));
    let [beat, lease_ns, used, pid, start] = [8, 16, 24, 32, 40].map(|byte| space.peek(word(at + byte)));
    let sheet = Sheet { peer, beat, lease_ns, used, ward: Ward { pid, start } };
    (space.peek(roster(slot(peer))) == u64::from(peer.0)).then_some(sheet)
}

impl Sheet {
    /// The cards that are in use.
    pub(crate) fn cards(self, space: &ShmSpace) -> impl Iterator<Item = Card> + '_ {
        let at = sheet_at(slot(self.peer));
        (0..CARDS)
            .filter(move |card| self.used >> card & 1 == 1)
            .filter_map(move |card| read(space, self.peer, card, at + LINE * (1 + card)))
    }

    /// Whether it has been silent for longer than its lease, or is condemned for that already.
    pub(crate) fn is_expired(&self, now: Time) -> bool {
        self.beat == CONDEMNED || now.since(Time(self.beat)) > self.lease_ns
    }
}

fn read(space: &ShmSpace, peer: PeerId, card: u64, at: u64) -> Option<Card> {
    /// Written faster than it can be read, a card says nothing that would last.
    const LOOKS: usize = 16;
    for _ in 0..LOOKS {
        let first = space.peek(word(at));
        let state = State::ALL.into_iter().find(|state| *state as u64 == first & 0xf)?;
        let mode = if first >> 4 & 1 == 1 { Mode::Shared } else { Mode::Exclusive };
        let [token, since, start, end] = [8, 16, 24, 32].map(|byte| space.peek(word(at + byte)));
        if space.peek(word(at)) == first {
            let kind = if first >> 5 & 1 == 1 { Kind::Ranges } else { Kind::Keyed };
            let claim = Claim { lock: first >> 8, mode, start, end };
            return Some(Card { peer, card, state, kind, claim, token, since: Time(since) });
        }
    }
    None
}
