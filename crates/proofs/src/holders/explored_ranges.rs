//! Kept ranges as the explorer runs them: gates, book and verdicts in one memory, and what is run.

use super::cases::{hasty, killed, patient, stopped};
use super::explored::KeptParams;
use super::ledger::Ledger;
use super::mortal::Mortal;
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, Field, Needs, NodeId, PeerId, Word, Word64};
use lockwright_locks::kept::ranges::{Entered, RangeBook, RangeCards};
use lockwright_locks::kept::{Book, KeptClient, Says, State};
use lockwright_locks::shiftlock::layout::{Layout, Member};
use lockwright_locks::shiftlock::stirred::Stirred;
use lockwright_locks::shiftlock::witness::{Fate, Witness};
use lockwright_locks::shiftlock::{Rules, ShiftLock, Shipped};
use lockwright_locks::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use lockwright_sim::case::Case;
use std::fmt::Debug;
use std::marker::PhantomData;

/// Kept ranges with the rules of `R`: those shipped, or a mutant's.
#[derive(Debug)]
pub struct KeptRanges<R = Shipped>(PhantomData<R>);

/// What a mutant says of itself, beside the rule it breaks.
pub trait RangeRules: Rules {
    /// What the explorer runs.
    fn range_cases() -> Vec<Case<KeptParams>> {
        cases()
    }
}

impl RangeRules for Shipped {}

/// Where things are: gates, verdicts, cards for gates, cards for ranges, counts of changes.
#[derive(Clone, Copy, Debug)]
struct Places {
    verdicts: u64,
    gate_cards: u64,
    range_cards: u64,
    changes: u64,
    end: u64,
}

impl Places {
    fn new(space: &Space, params: &KeptParams) -> Self {
        let verdicts = space.table_bytes(16);
        let [gate_cards, range_cards, changes] = [1, 2, 4].map(|part| verdicts + part * 8 * params.clients);
        Self { verdicts, gate_cards, range_cards, changes, end: changes + 8 * space.locks }
    }
}

impl<R: RangeRules> Protocol for KeptRanges<R> {
    type Params = KeptParams;
    type Client<E: Endpoint> = Explored<E, R>;

    const INFO: Info = Info {
        name: match R::NAME {
            Some(name) => name,
            None => "kept-ranges",
        },
        summary: "ranges written down under a kept lock; only the dead lose theirs",
        source: "this project",
        offers: Offers {
            shared: true,
            ranges: true,
            tokens: true,
            tries: true,
            timeouts: false,
            recovery: true,
        },
    };

    fn needs(_: &KeptParams) -> Needs {
        Stirred::NEEDS
    }

    fn most_clients(params: &KeptParams) -> usize {
        params.clients as usize
    }

    fn bytes_per_node(space: &Space, params: &KeptParams) -> u64 {
        Places::new(space, params).end
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &KeptParams) -> Explored<E, R> {
        let (clients, places) = (params.clients, Places::new(space, params));
        let mortal = Mortal::new(ep, places.verdicts);
        let gates = Ledger::new(mortal.clone(), places.gate_cards, clients);
        let book = RangeLedger { gates, places, looks: params.looks };
        Explored { client: KeptClient::new(mortal, space, &params.shift, book) }
    }

    /// Cards are wiped; verdicts and counts are wherever they came to.
    fn quiet_mask(space: &Space, params: &KeptParams, addr: Addr) -> u64 {
        let places = Places::new(space, params);
        match addr.offset {
            offset if offset < places.verdicts => {
                <ShiftLock<Stirred> as Protocol>::quiet_mask(space, &params.shift, addr)
            }
            offset if (places.gate_cards..places.changes).contains(&offset) => u64::MAX,
            _ => 0,
        }
    }
}

impl<R: RangeRules> Proof for KeptRanges<R> {
    fn cases() -> Vec<Case<KeptParams>> {
        R::range_cases()
    }
}

/// The book of gates, and beside it one 16-byte word per client for its range.
///
/// | bits | holds |
/// |---|---|
/// | 0–3 | state; 0: nothing is written |
/// | 4 | shared |
/// | 8–31 | the lock |
/// | 32–63 | the turn: count below, generation above |
/// | 64–95, 96–127 | start, end |
#[derive(Debug)]
struct RangeLedger<E> {
    gates: Ledger<E>,
    places: Places,
    looks: u32,
}

const STATE: Field = Field { shift: 0, bits: 4 };
const SHARED: Field = Field { shift: 4, bits: 1 };
const LOCK: Field = Field { shift: 8, bits: 24 };
const TURN: Field = Field { shift: 32, bits: 32 };
const START: Field = Field { shift: 64, bits: 32 };
const END: Field = Field { shift: 96, bits: 32 };

/// A token in fewer bits.
const fn folded(turn: u64) -> u64 {
    (turn >> 48 << 24 | turn & 0xff_ffff) & 0xffff_ffff
}

/// A claim whose end is as large as this book can write; `None` if it lies beyond that.
fn clipped(claim: Claim) -> Option<Claim> {
    let most = END.max() as u64;
    let fits = claim.start < most && (claim.end <= most || claim.end == u64::MAX);
    (fits && u128::from(claim.lock) <= LOCK.max()).then_some(Claim { end: claim.end.min(most), ..claim })
}

fn write(what: &Entered) -> u128 {
    let Entered { state, claim, turn } = *what;
    let fields = [
        (STATE, state as u64),
        (SHARED, u64::from(claim.mode == Mode::Shared)),
        (LOCK, claim.lock),
        (TURN, folded(turn)),
        (START, claim.start),
        (END, claim.end),
    ];
    fields.into_iter().fold(0, |word, (field, value)| word | field.put(u128::from(value)))
}

fn read(word: u128) -> Option<Entered> {
    let get = |field: Field| field.get(word) as u64;
    let state = [State::Waiting, State::Held].into_iter().find(|state| *state as u64 == get(STATE))?;
    let mode = if get(SHARED) == 1 { Mode::Shared } else { Mode::Exclusive };
    let claim = Claim { lock: get(LOCK), mode, start: get(START), end: get(END) };
    Some(Entered { state, claim, turn: get(TURN) })
}

impl<E: Endpoint> RangeLedger<E> {
    fn card(&self, peer: PeerId) -> Word<u128> {
        Word::at(Addr::new(NodeId(0), self.places.range_cards + 16 * peer.index().0 as u64))
    }
}

impl<E: Endpoint> Witness for RangeLedger<E> {
    async fn fate(&self, lock: u64, except: Member) -> Result<Fate, FabricError> {
        self.gates.fate(lock, except).await
    }
}

impl<E: Endpoint> Book for RangeLedger<E> {
    async fn write(&self, card: u8, says: Option<Says>) -> Result<(), FabricError> {
        self.gates.write(card, says).await
    }

    async fn granted(&self, card: u8, token: u64) -> Result<(), FabricError> {
        self.gates.granted(card, token).await
    }
}

impl<E: Endpoint> RangeBook for RangeLedger<E> {
    async fn enter(&self, _: u8, what: Option<Entered>) -> Result<(), FabricError> {
        let (ep, word) = (&self.gates.ep, what.map_or(0, |what| write(&what)));
        ep.go(self.card(ep.me()).write(word)).await.map(drop)
    }

    async fn is_entered(&self, _: u8, claim: Claim) -> Result<bool, FabricError> {
        let ep = &self.gates.ep;
        let entered = read(ep.go(self.card(ep.me()).read()).await?);
        Ok(entered.is_some_and(|entered| entered.state == State::Held && entered.claim == claim))
    }

    async fn is_blocked(&self, _: u8, claim: Claim, turn: u64) -> Result<bool, FabricError> {
        let ep = &self.gates.ep;
        let others = (0..self.gates.clients as usize).map(PeerId::client).filter(|peer| *peer != ep.me());
        for peer in others {
            let entered = read(ep.go(self.card(peer).read()).await?);
            let blocks = entered.is_some_and(|entered| entered.is_in_the_way(&claim, folded(turn)));
            if blocks && !ep.is_out(peer).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn gate(&self, lock: u64) -> u64 {
        lock
    }

    fn changes(&self, lock: u64) -> Word64 {
        Word64::at(Addr::new(NodeId(0), self.places.changes + 8 * lock))
    }

    fn patience_ns(&self, looked: u32) -> Option<u64> {
        const PATIENCE_NS: u64 = 1_000_000;
        (looked < self.looks).then_some(PATIENCE_NS)
    }
}

/// A client of the explorer's: one acquisition at a time, so one card of each kind.
pub struct Explored<E, R> {
    client: KeptClient<Mortal<E>, RangeLedger<E>, R>,
}

impl<E, R> Debug for Explored<E, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explored").finish_non_exhaustive()
    }
}

/// A granted kept range.
#[derive(Clone, Copy, Debug)]
pub struct RangeGrant {
    claim: Claim,
    token: u64,
}

impl Grant for RangeGrant {
    fn token(&self) -> Option<u64> {
        Some(self.token)
    }
}

const CARDS: RangeCards = RangeCards { gate: 0, range: 1 };

impl<E: Endpoint, R: RangeRules> LockClient for Explored<E, R> {
    type Grant = RangeGrant;

    async fn acquire(&self, want: Want) -> Result<RangeGrant, Denied> {
        const NO_DEADLINES: &Reason = &Reason("a kept client leaves deadlines to its user");
        const TOO_LARGE: &Reason = &Reason("this book has four bytes for each end of a range");
        let claim = clipped(want.claim).ok_or(Denied::BadRequest(TOO_LARGE))?;
        let token = match want.patience {
            Patience::Forever => self.client.take_range(CARDS, claim).await?,
            // As who tries does it where the gate is near: at once, and only then by a place in its queue.
            Patience::Try => match self.client.try_range_at_once(CARDS, claim).await {
                Some(tried) => tried?,
                None => self.client.try_range(CARDS, claim).await?,
            },
            Patience::Until(_) => return Err(Denied::Unsupported(NO_DEADLINES)),
        };
        Ok(RangeGrant { claim, token })
    }

    async fn release(&self, grant: RangeGrant) -> Result<(), Lost> {
        self.client.give_range_back(CARDS.range, grant.claim).await
    }
}

const LEFT: Want = Want::range(0, Mode::Exclusive, 0, 2);
const MIDDLE: Want = Want::range(0, Mode::Exclusive, 1, 3);
const RIGHT: Want = Want::range(0, Mode::Exclusive, 2, 4);
const READ: Want = Want::range(0, Mode::Shared, 1, 4);
const TRY_MIDDLE: Want = MIDDLE.with(Patience::Try);

/// Looks of somebody who waits, after which it waits for a change. Every look counts at the gate, so the explorer would never
/// see an end of it.
const LOOKS: u32 = 2;

/// Each of these once, with cards for everybody.
fn mixed(name: &'static str, wants: &[Want]) -> Case<KeptParams> {
    let params = KeptParams { clients: wants.len() as u64, looks: LOOKS, ..KeptParams::default() };
    let case = Case::new(name).params(params).space(Space::of(1).units(4)).tokens();
    wants.iter().fold(case, |case, want| case.clients(1, &[*want]))
}

fn cases() -> Vec<Case<KeptParams>> {
    vec![
        patient(mixed("healthy", &[LEFT, MIDDLE])),
        patient(mixed("apart", &[LEFT, RIGHT])),
        patient(mixed("readers", &[READ, READ])),
        patient(mixed("reader-and-writer", &[READ, LEFT])),
        hasty(mixed("tries", &[LEFT, TRY_MIDDLE])),
        patient(killed(mixed("killed", &[LEFT, MIDDLE]))),
        hasty(killed(mixed("killed-and-tried", &[READ, TRY_MIDDLE]))),
        patient(stopped(mixed("stopped", &[LEFT, MIDDLE]))),
        hasty(stopped(mixed("stopped-and-hasty", &[LEFT, MIDDLE]))),
        hasty(stopped(mixed("stopped-reader", &[READ, TRY_MIDDLE]))),
    ]
}

/// Shows the mutants to `visitor`.
pub(crate) fn visit_mutants(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "kept-ranges", caught_by, why };
    visitor.mutant::<KeptRanges<Outside>>(mutant(
        Checker::Exclusion,
        "a range is written down after the gate is given back",
    ));
    visitor.mutant::<KeptRanges<Believing>>(mutant(
        Checker::Tokens,
        "a client believes that a range is its without looking whether it is still in",
    ));
}

/// Two look, see nothing of each other, and both write that they hold.
#[derive(Debug)]
pub struct Outside;

impl Rules for Outside {
    const NAME: Option<&'static str> = Some("kept-ranges-outside");
    const RANGES_ARE_WRITTEN_INSIDE: bool = false;
}

impl RangeRules for Outside {
    fn range_cases() -> Vec<Case<KeptParams>> {
        vec![patient(mixed("healthy", &[LEFT, MIDDLE]))]
    }
}

/// A zombie writes down its range, or gives its gate back, with its last verb.
#[derive(Debug)]
pub struct Believing;

impl Rules for Believing {
    const NAME: Option<&'static str> = Some("kept-ranges-believing");
    const GRANTED_ARE_ALIVE: bool = false;
}

impl RangeRules for Believing {
    fn range_cases() -> Vec<Case<KeptParams>> {
        vec![hasty(stopped(mixed("last-verb", &[LEFT, MIDDLE])))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_what_was_written_on_it() {
        let claim = clipped(Claim { lock: 5, mode: Mode::Shared, start: 7, end: u64::MAX }).unwrap();
        let what = Entered { state: State::Waiting, claim, turn: 3 << 48 | 9 };
        assert_eq!(read(write(&what)), Some(Entered { turn: folded(what.turn), ..what }));
        assert_eq!(read(0), None);
        assert!(folded(1 << 48) > folded(1000), "a recovery comes after all turns before it");
        assert_eq!(clipped(Claim { start: 1 << 40, ..claim }), None);
    }
}
