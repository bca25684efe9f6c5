//! Range locks that are kept: exact, over all of 0..2^64, shared and exclusive, first come first served.
//!
//! The cards are the lock. Whoever wants a range takes the name's *gate* (a kept lock, held for a moment), looks at the
//! cards of everybody who is alive, and writes its own card as held if none of them is in its way; then it gives the gate
//! back. If somebody is in its way it writes that it waits, since which turn, gives the gate back, and looks again when the
//! name's count of changes has risen. A request that waits since an earlier turn is in the way, too: nobody starves.
//!
//! A dead client's cards do not count, so there is nothing to recover; and the gate is recovered as any kept lock. Why it is
//! safe, whoever is killed or stopped:
//!
//! 1. **Written inside.** A card becomes held while its client holds the gate, and only a client that is out loses that.
//!    So of two requests in each other's way one looks after the other has written.
//! 2. **In after granted**, as for the gate itself: a client may be declared dead between its look and its last step, and
//!    then its card counts no more. It finds that out before it believes that the range is its.
//!
//! The gate's token, which rises from grant to grant, is the range's.

use super::client::{Book, KeptClient, State};
use crate::protocol::{Denied, Grant, Lost};
use crate::shiftlock::stirred::Stir;
use crate::shiftlock::{Rules, ShiftGrant};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, Word64};

/// What is written on the card of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// [`State::Held`] or [`State::Waiting`].
    pub state: State,
    /// The range.
    pub claim: Claim,
    /// Since which turn it waits; 0: not yet.
    pub turn: u64,
}

impl Entered {
    /// Whether this card, of somebody alive, is in the way of one that asks for `wanted` since `turn`.
    #[inline(always)]
    pub const fn is_in_the_way(&self, wanted: &Claim, turn: u64) -> bool {
        let first = match self.state {
            State::Held => true,
            State::Waiting => self.turn != 0 && (turn == 0 || self.turn < turn),
            State::Taking => false,
        };
        first && self.claim.conflicts(wanted)
    }
}

/// A book with cards for ranges.
pub trait RangeBook: Book {
    /// Writes on a card of this client's; `None` wipes it.
    fn enter(&self, card: u8, what: Option<Entered>) -> impl Future<Output = Result<(), FabricError>>;

    /// Whether a card of this client's still says that the range is held.
    fn is_entered(&self, card: u8, claim: Claim) -> impl Future<Output = Result<bool, FabricError>>;

    /// Whether another card of somebody alive is [in the way](Entered::is_in_the_way).
    fn is_blocked(
        &self,
        card: u8,
        claim: Claim,
        turn: u64,
    ) -> impl Future<Output = Result<bool, FabricError>>;

    /// The keyed lock that is the gate of `lock`.
    fn gate(&self, lock: u64) -> u64;

    /// The word that counts changes of `lock`.
    fn changes(&self, lock: u64) -> Word64;

    /// How long somebody who has looked so many times waits before it looks again whether those in its way are alive.
    /// `None`: until something changes.
    fn patience_ns(&self, looked: u32) -> Option<u64>;
}

/// The two cards that a request takes: one for the gate, while it looks, and one for the range.
#[derive(Clone, Copy, Debug)]
pub struct RangeCards {
    /// For the gate.
    pub gate: u8,
    /// For the range.
    pub range: u8,
}

impl<E: Endpoint, B: RangeBook, R: Rules, L: Stir> KeptClient<E, B, R, L> {
    /// Takes the range if nobody is in its way. Waits for the gate, for as long as others look.
    ///
    /// # Errors
    /// [`Denied::Busy`] if somebody is; the cards are free again.
    pub async fn try_range(&self, cards: RangeCards, claim: Claim) -> Result<u64, Denied> {
        let looked = self.look(cards, claim, &mut None).await;
        self.tried(cards, claim, looked).await
    }

    /// Takes the range if nobody is in its way, without a place in the queue for the gate: whoever waits there needs to be polled.
    /// `None` if others look just now, for longer than a moment; nothing has happened.
    #[inline(always)]
    pub async fn try_range_at_once(&self, cards: RangeCards, claim: Claim) -> Option<Result<u64, Denied>> {
        let looked = match self.take_gate_soon(cards, claim).await {
            Ok(inside) => self.look_inside(cards, claim, &mut None, inside).await,
            Err(Denied::Busy) => return None,
            Err(denied) => Err(denied),
        };
        Some(self.tried(cards, claim, looked).await)
    }

    /// What came of a try.
    #[inline(always)]
    async fn tried(
        &self,
        cards: RangeCards,
        claim: Claim,
        looked: Result<Option<u64>, Denied>,
    ) -> Result<u64, Denied> {
        match looked {
            Ok(Some(token)) => Ok(token),
            Ok(None) => Err(Denied::Busy), // nothing is written
            Err(denied) => self.leave(cards, claim, denied).await,
        }
    }

    /// Takes the range, however long it takes. Returns its token.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached or this client is declared dead; the cards are free again.
    pub async fn take_range(&self, cards: RangeCards, claim: Claim) -> Result<u64, Denied> {
        match self.wait_for_range(cards, claim).await {
            Ok(token) => Ok(token),
            Err(denied) => self.leave(cards, claim, denied).await,
        }
    }

    async fn wait_for_range(&self, cards: RangeCards, claim: Claim) -> Result<u64, Denied> {
        let (ep, changes) = (self.lock().endpoint(), self.book().changes(claim.lock));
        let (mut turn, mut looked) = (Some(0), 0);
        loop {
            // Before the look: whatever changes after it ends the wait.
            let seen = ep.go(changes.read()).await?;
            if let Some(token) = self.look(cards, claim, &mut turn).await? {
                return Ok(token);
            }
            looked += 1;
            let look_again = match self.book().patience_ns(looked) {
                Some(ns) => Deadline::At(ep.now().await.plus(ns)),
                None => Deadline::Never,
            };
            let changed = Cond::Ne { mask: u128::from(u64::MAX), value: u128::from(seen) };
            ep.wait_until(changes.until(changed).by(look_again)).await?;
            ep.mark("kept range: looks again", &[turn.unwrap_or_default(), u64::from(looked)]);
        }
    }

    /// Takes the range if nobody is in its way: a look at everybody's cards, alone. A request that would wait gets its turn
    /// with its first look.
    async fn look(
        &self,
        cards: RangeCards,
        claim: Claim,
        turn: &mut Option<u64>,
    ) -> Result<Option<u64>, Denied> {
        let inside = match self.take_gate_soon(cards, claim).await {
            Err(Denied::Busy) => self.take_in_turn(cards.gate, self.gate(claim)).await?,
            inside => inside?,
        };
        self.look_inside(cards, claim, turn, inside).await
    }

    /// The gate before the range, as a claim.
    fn gate(&self, claim: Claim) -> Claim {
        Claim { lock: self.book().gate(claim.lock), mode: Mode::Exclusive, start: 0, end: u64::MAX }
    }

    /// Takes the gate if it is free, or becomes so within a moment.
    #[inline(always)]
    async fn take_gate_soon(&self, cards: RangeCards, claim: Claim) -> Result<ShiftGrant, Denied> {
        let gate = self.gate(claim);
        match self.try_take(cards.gate, gate).await {
            Err(Denied::Busy) => self.take_soon(cards.gate, gate).await,
            inside => inside,
        }
    }

    /// The look itself, by whoever has the gate, which it gives back.
    #[inline(always)]
    async fn look_inside(
        &self,
        cards: RangeCards,
        claim: Claim,
        turn: &mut Option<u64>,
        inside: ShiftGrant,
    ) -> Result<Option<u64>, Denied> {
        let token = inside.token().unwrap_or_default();
        let free = self.write_inside(cards, claim, turn, token).await;
        let given = self.give_gate_back(cards.gate, inside).await;
        let free = free?;
        if !R::RANGES_ARE_WRITTEN_INSIDE && free {
            self.book().enter(cards.range, Some(Entered { state: State::Held, claim, turn: 0 })).await?;
        }
        match (free, given) {
            (true, Ok(())) => {
                if R::GRANTED_ARE_ALIVE {
                    self.book().granted(cards.range, token).await?;
                }
                Ok(Some(token))
            }
            (false, Ok(())) => Ok(None),
            // The gate was lost meanwhile: others may have looked and seen nothing of this. Look again.
            (_, Err(Lost::Recovered)) => {
                let waits = turn.map(|turn| Entered { state: State::Waiting, claim, turn });
                self.book().enter(cards.range, waits).await?;
                Ok(None)
            }
            (_, Err(Lost::Fabric(error))) => Err(error.into()),
        }
    }

    /// Rule 1. Says whether the range is free.
    async fn write_inside(
        &self,
        cards: RangeCards,
        claim: Claim,
        turn: &mut Option<u64>,
        token: u64,
    ) -> Result<bool, FabricError> {
        let blocked = self.book().is_blocked(cards.range, claim, turn.unwrap_or_default()).await?;
        let state = if blocked { State::Waiting } else { State::Held };
        match turn {
            Some(turn @ 0) if blocked => *turn = token,
            // It only tries, or waits already and has written that.
            _ if blocked => return Ok(false),
            _ => {}
        }
        if blocked || R::RANGES_ARE_WRITTEN_INSIDE {
            let turn = turn.unwrap_or_default();
            self.book().enter(cards.range, Some(Entered { state, claim, turn })).await?;
        }
        Ok(!blocked)
    }

    async fn give_gate_back(&self, card: u8, inside: ShiftGrant) -> Result<(), Lost> {
        match self.give_back_at_once(card, inside).await {
            Some(given) => given,
            None => self.give_back(card, inside).await,
        }
    }

    /// Gives up: the card no longer stands in anybody's way.
    async fn leave(&self, cards: RangeCards, claim: Claim, denied: Denied) -> Result<u64, Denied> {
        self.book().enter(cards.range, None).await?;
        self.tell(claim.lock).await?;
        Err(denied)
    }

    /// Tells those who wait that something has changed.
    async fn tell(&self, lock: u64) -> Result<(), FabricError> {
        self.lock().endpoint().go(self.book().changes(lock).fetch_add(1)).await.map(drop)
    }

    /// Gives the range back.
    ///
    /// # Errors
    /// If it had been lost, or its memory cannot be reached.
    pub async fn give_range_back(&self, card: u8, claim: Claim) -> Result<(), Lost> {
        let held = self.book().is_entered(card, claim).await?;
        self.book().enter(card, None).await?;
        self.tell(claim.lock).await?;
        if held { Ok(()) } else { Err(Lost::Recovered) }
    }
}
