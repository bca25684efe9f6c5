//! Who holds and who waits, written down in the space itself: what `ls` shows, and what a waiter asks before it takes a
//! lock away from somebody.
//!
//! Region 1 of a space begins with a roster, one word per client slot: the peer whose sheet it is, 0 for nobody's. Then
//! comes a sheet for every slot: one line about the client, and one line ("card") for every lock it holds or wants. Only
//! the client writes its own sheet (but for [`strike`], which takes a range away); everybody may read all of them.
//!
//! | sheet, byte | holds |
//! |---|---|
//! | 8 | its last sign of life, CLOCK_MONOTONIC, nanoseconds |
//! | 16 | its lease, nanoseconds: silent for longer, it can be declared dead |
//! | 24 | bit n: card n has been in use; the others need not be looked at |
//! | 32, 40 | its ward: pid and start time of a process that must be gone too before its locks are free; 0: none |
//! | 64.. | 64 cards of 64 bytes |
//!
//! | card, byte | holds |
//! |---|---|
//! | 0 | state (bits 0..4), shared (4), range lock (5) |
//! | 8 | lock id |
//! | 16 | token |
//! | 24 | since when it is in this state |
//! | 32, 40 | the range, if it is a range lock's card |
//!
//! | state | meaning | counts as a holder |
//! |---|---|---|
//! | 0 free | nothing | no |
//! | 1 taking | tries, and holds once it has a token | yes |
//! | 2 waiting | queued | no |
//! | 3 held | was handed the lock | yes |
//! | 4 releasing | done, on its way out | no |
//! | 5 struck | held a range, which was taken away | no |
//!
//! A writer leaves the state for last, and a reader looks at it twice.

use super::Kind;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Word64};

/// Client slots of a space.
pub(crate) const SLOTS: u64 = 1024;
/// Cards on a sheet: the bits of one word say which are in use.
pub(crate) const CARDS: u64 = 64;
/// The region of the sheets.
const REGION: RegionId = RegionId(1);
const LINE: u64 = 64;
const SHEET_BYTES: u64 = LINE * (1 + CARDS);
const ROSTER_BYTES: u64 = SLOTS * 8;
/// Bytes of the roster and all sheets.
pub(crate) const BYTES: u64 = ROSTER_BYTES + SLOTS * SHEET_BYTES;

/// What a card says its owner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Taking = 1,
    Waiting = 2,
    Held = 3,
    Releasing = 4,
    Struck = 5,
}

impl State {
    const ALL: [Self; 5] = [Self::Taking, Self::Waiting, Self::Held, Self::Releasing, Self::Struck];

    pub(crate) const fn holds(self) -> bool {
        matches!(self, Self::Taking | Self::Held)
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
    pub(crate) beat: Time,
    pub(crate) lease_ns: u64,
    pub(crate) used: u64,
    pub(crate) ward: Ward,
}

const fn slot(peer: PeerId) -> u64 {
    (peer.0 as u64 - 1) % SLOTS
}

const fn sheet_at(slot: u64) -> u64 {
    ROSTER_BYTES + slot * SHEET_BYTES
}

fn word(offset: u64) -> Word64 {
    Word64::at(Addr { offset, node: NodeId(0), region: REGION })
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
#[derive(Debug)]
pub(crate) struct Pen {
    slot: u64,
    at: u64,
}

impl Pen {
    pub(crate) fn new(me: PeerId) -> Self {
        Self { slot: slot(me), at: sheet_at(slot(me)) }
    }

    /// Takes the sheet over: all cards are free.
    pub(crate) fn begin(&self, ep: &ShmEndpoint, lease_ns: u64, now: Time) -> Result<(), FabricError> {
        self.end(ep)?;
        for card in 0..CARDS {
            self.clear(ep, card)?;
        }
        let terms = [(8, now.0), (16, lease_ns), (24, 0), (32, 0), (40, 0)]
            .map(|(byte, value)| word(self.at + byte).write(value));
        at_once(ep.go(terms))?;
        at_once(ep.go(word(self.slot * 8).write(u64::from(ep.me().0))))
    }

    /// The sheet is nobody's any more.
    pub(crate) fn end(&self, ep: &ShmEndpoint) -> Result<(), FabricError> {
        at_once(ep.go(word(self.slot * 8).write(0)))
    }

    /// Names the client's ward. Its start time comes first: a pid without it would be somebody else's.
    pub(crate) fn ward(&self, ep: &ShmEndpoint, ward: Ward) -> Result<(), FabricError> {
        let words = [(32, 0), (40, ward.start), (32, ward.pid)]
            .map(|(byte, value)| word(self.at + byte).write(value));
        at_once(ep.go(words))
    }

    /// A sign of life.
    pub(crate) fn beat(&self, ep: &ShmEndpoint, now: Time) -> Result<(), FabricError> {
        at_once(ep.go(word(self.at + 8).write(now.0)))
    }

    /// Says, once for every card, that it is in use now and then. An addition, since threads may do this at once.
    pub(crate) fn uses(&self, ep: &ShmEndpoint, card: u64) -> Result<(), FabricError> {
        at_once(ep.go(word(self.at + 24).fetch_add(1 << card)))
    }

    const fn card_at(&self, card: u64) -> u64 {
        self.at + LINE * (1 + card)
    }

    /// Fills a card in.
    #[inline]
    pub(crate) fn fill(
        &self,
        ep: &ShmEndpoint,
        card: u64,
        (state, kind, claim): (State, Kind, &Claim),
        token: u64,
        now: Time,
    ) -> Result<(), FabricError> {
        let at = self.card_at(card);
        if kind == Kind::Ranges {
            at_once(ep.go((word(at + 32).write(claim.start), word(at + 40).write(claim.end))))?;
        }
        let body = (
            word(at + 8).write(claim.lock),
            word(at + 16).write(token),
            word(at + 24).write(now.0),
            word(at).write(first(state, kind, claim.mode)),
        );
        at_once(ep.go(body))
    }

    /// Adds the token to a card.
    #[inline]
    pub(crate) fn token(&self, ep: &ShmEndpoint, card: u64, token: u64) -> Result<(), FabricError> {
        at_once(ep.go(word(self.card_at(card) + 16).write(token)))
    }

    /// Changes a card's state.
    #[inline]
    pub(crate) fn state(
        &self,
        ep: &ShmEndpoint,
        card: u64,
        state: State,
        kind: Kind,
        mode: Mode,
    ) -> Result<(), FabricError> {
        at_once(ep.go(word(self.card_at(card)).write(first(state, kind, mode))))
    }

    /// Whether a card still says `state`.
    #[inline]
    pub(crate) fn says(
        &self,
        ep: &ShmEndpoint,
        card: u64,
        state: State,
        kind: Kind,
        mode: Mode,
    ) -> Result<bool, FabricError> {
        Ok(block_on(ep.go(word(self.card_at(card)).read()))? == first(state, kind, mode))
    }

    /// Frees a card.
    #[inline]
    pub(crate) fn clear(&self, ep: &ShmEndpoint, card: u64) -> Result<(), FabricError> {
        at_once(ep.go(word(self.card_at(card)).write(0)))
    }
}

/// Takes a range away from its holder, who finds its card struck. `false` if it holds it no more.
pub(crate) fn strike(ep: &ShmEndpoint, card: &Card) -> Result<bool, FabricError> {
    let at = sheet_at(slot(card.peer)) + LINE * (1 + card.card);
    let [held, struck] = [State::Held, State::Struck].map(|state| first(state, card.kind, card.claim.mode));
    Ok(block_on(ep.go(word(at).cas(held, struck)))? == held)
}

const fn first(state: State, kind: Kind, mode: Mode) -> u64 {
    state as u64 | (matches!(mode, Mode::Shared) as u64) << 4 | (matches!(kind, Kind::Ranges) as u64) << 5
}

/// On shared memory a verb is done when it is asked for.
#[inline]
fn at_once<T>(verb: impl Future<Output = Result<T, FabricError>>) -> Result<(), FabricError> {
    block_on(verb).map(drop)
}

/// Every sheet that somebody has begun, and not ended.
pub(crate) fn sheets(space: &ShmSpace) -> impl Iterator<Item = Sheet> + '_ {
    (0..SLOTS).filter_map(|slot| {
        let peer = space.peek(word(slot * 8));
        let peer = PeerId(u32::try_from(peer).ok().filter(|peer| *peer != 0)?);
        sheet(space, peer)
    })
}

/// The sheet of `peer`, if it has one.
pub(crate) fn sheet(space: &ShmSpace, peer: PeerId) -> Option<Sheet> {
    let at = sheet_at(slot(peer));
    let [beat, lease_ns, used, pid, start] = [8, 16, 24, 32, 40].map(|byte| space.peek(word(at + byte)));
    let sheet = Sheet { peer, beat: Time(beat), lease_ns, used, ward: Ward { pid, start } };
    (space.peek(word(slot(peer) * 8)) == u64::from(peer.0)).then_some(sheet)
}

impl Sheet {
    /// The cards that are in use.
    pub(crate) fn cards(self, space: &ShmSpace) -> impl Iterator<Item = Card> + '_ {
        let at = sheet_at(slot(self.peer));
        (0..CARDS)
            .filter(move |card| self.used >> card & 1 == 1)
            .filter_map(move |card| read(space, self.peer, card, at + LINE * (1 + card)))
    }

    /// Whether it has been silent for longer than its lease.
    pub(crate) fn is_expired(&self, now: Time) -> bool {
        now.since(self.beat) > self.lease_ns
    }
}

fn read(space: &ShmSpace, peer: PeerId, card: u64, at: u64) -> Option<Card> {
    /// Written faster than it can be read, a card says nothing that would last.
    const LOOKS: usize = 16;
    for _ in 0..LOOKS {
        let first = space.peek(word(at));
        let state = State::ALL.into_iter().find(|state| *state as u64 == first & 0xf)?;
        let mode = if first >> 4 & 1 == 1 { Mode::Shared } else { Mode::Exclusive };
        let [lock, token, since, start, end] = [8, 16, 24, 32, 40].map(|byte| space.peek(word(at + byte)));
        if space.peek(word(at)) == first {
            let kind = if first >> 5 & 1 == 1 { Kind::Ranges } else { Kind::Keyed };
            let claim = Claim { lock, mode, start, end };
            return Some(Card { peer, card, state, kind, claim, token, since: Time(since) });
        }
    }
    None
}
