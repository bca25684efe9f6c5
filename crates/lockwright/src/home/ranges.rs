//! Range locks between processes: exact, over all of 0..2^64, shared and exclusive, first come first served.
//!
//! The cards are the lock. Whoever wants a range takes the name's gate (a keyed lock, held for microseconds), looks at the
//! cards of everybody who is alive, and writes its own card as held if none of them conflicts; else it gives the gate
//! back and waits for the name's count of changes to rise. A conflicting request that came earlier and still waits
//! conflicts too, so nobody starves. A dead client's cards do not count, so there is nothing to recover, and the gate
//! itself is recovered as any keyed lock. The gate's token, which rises from grant to grant, is the range's.
//!
//! This trades speed for exactness and recovery: a look at all cards costs about a microsecond for every few clients. The
//! one-sided tree of `lockwright_locks::citron` is to take its place for spaces with many clients once it recovers from
//! crashes.

use super::cards::{self, Card, State};
use super::members::{Member, Members, NAMES, token};
use super::shm::ShmHome;
use super::vitals::Cards;
use super::{AnyGrant, BoxFuture, Kind, Refused, Standing, Ticket};
use crate::error::LockError;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Cond, Deadline, Endpoint, FabricError, NodeId, RegionId, Time, Word64};
use lockwright_locks::kept::Book;
use lockwright_locks::{Denied, Lost};
use std::sync::Arc;

const REGION: RegionId = RegionId(2);
/// How often a waiter looks whether those in its way are alive.
const LOOK_NS: u64 = 30_000_000;

/// Bytes of the counts of changes of `locks` locks.
pub(crate) const fn bytes(locks: u64) -> u64 {
    locks * 8
}

fn changes(lock: u64) -> Word64 {
    Word64::at(Addr { offset: lock * 8, node: NodeId(0), region: REGION })
}

/// Tells those who wait that a range of `lock` is free, or that somebody left the queue.
pub(crate) fn changed(ep: &ShmEndpoint, lock: u64) -> Result<(), FabricError> {
    block_on(ep.go(changes(lock).fetch_add(1))).map(drop)
}

/// The keyed lock that guards the ranges of `lock`.
pub(crate) const fn gate(lock: u64) -> u64 {
    NAMES + lock
}

/// A request, and the card that stands for it.
struct Request {
    members: Arc<Members>,
    member: Arc<Member>,
    card: u8,
    claim: Claim,
    began: Time,
}

/// What a look found.
enum Found {
    /// Granted, with this token.
    Free(u64),
    /// Somebody is in the way.
    Busy,
}

impl ShmHome {
    pub(super) fn try_range(&self, claim: Claim) -> Result<Ticket, Refused> {
        let request = Request::new(&self.members, claim).map_err(Refused::Error)?;
        match block_on(request.look()) {
            Ok(Found::Free(token)) => Ok(request.ticket(token)),
            Ok(Found::Busy) => {
                request.leave();
                Err(Refused::Busy)
            }
            Err(denied) => {
                request.leave();
                Err(Refused::new(denied, claim))
            }
        }
    }

    pub(super) fn range(&self, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        let request = match Request::new(&self.members, claim) {
            Ok(request) => request,
            Err(error) => return Box::pin(async { Err(Refused::Error(error)) }),
        };
        Box::pin(async move {
            let granted = request.wait().await;
            match granted {
                Ok(token) => Ok(request.ticket(token)),
                Err(denied) => {
                    request.leave();
                    Err(Refused::new(denied, claim))
                }
            }
        })
    }

    pub(super) fn release_range(&self, claim: Claim, ticket: &Ticket) -> Result<(), Lost> {
        let (member, card) = (self.members.member(ticket.seat), ticket.seat.card);
        let Cards { ep, pen, .. } = &member.book;
        let held = pen.says(ep, card.into(), (State::Held, Kind::Ranges, &claim));
        let _ = pen.clear(ep, card.into());
        let told = changed(ep, claim.lock);
        member.stand_up(card);
        match (held, told) {
            (Ok(true), Ok(())) => Ok(()),
            (Ok(false), _) | (Err(FabricError::Expelled), _) | (_, Err(FabricError::Expelled)) => {
                Err(Lost::Recovered)
            }
            (Err(error), _) | (_, Err(error)) => Err(error.into()),
        }
    }

    pub(super) fn range_standing(&self, claim: Claim, ticket: &Ticket) -> Standing {
        let member = self.members.member(ticket.seat);
        let card = u64::from(ticket.seat.card);
        match member.book.pen.says(&member.book.ep, card, (State::Held, Kind::Ranges, &claim)) {
            Ok(true) => self.by_lease(&member),
            Ok(false) | Err(FabricError::Expelled) => Standing::Lost,
            Err(_) => Standing::Uncertain,
        }
    }
}

impl Request {
    fn new(members: &Arc<Members>, claim: Claim) -> Result<Self, LockError> {
        let (member, card) = {
            let (member, card) = members.sit()?;
            (member.share(), card)
        };
        let request = Self { members: Arc::clone(members), member, card, claim, began: members.space.now() };
        if let Err(error) = request.fill(State::Waiting, 0) {
            request.member.stand_up(card);
            return Err(error.into());
        }
        Ok(request)
    }

    fn ticket(&self, token: u64) -> Ticket {
        self.member.ticket(self.card, AnyGrant::Range { token })
    }

    fn space(&self) -> &ShmSpace {
        &self.members.space
    }

    fn ep(&self) -> &ShmEndpoint {
        &self.member.book.ep
    }

    fn fill(&self, state: State, token: u64) -> Result<(), FabricError> {
        let card = (state, Kind::Ranges, &self.claim);
        // Who waits keeps its place in the order of arrival.
        let since = if state == State::Waiting { self.began } else { self.space().now() };
        self.member.book.pen.fill(self.ep(), self.card.into(), card, token, since)
    }

    /// Gives up: the card no longer stands in anybody's way.
    fn leave(&self) {
        let _ = self.member.book.pen.clear(self.ep(), self.card.into());
        let _ = changed(self.ep(), self.claim.lock);
        self.member.stand_up(self.card);
    }

    async fn wait(&self) -> Result<u64, Denied> {
        loop {
            // Before the look: whatever changes after it ends the wait.
            let seen = self.ep().go(changes(self.claim.lock).read()).await?;
            if let Found::Free(token) = self.look().await? {
                return Ok(token);
            }
            let look_again = Deadline::At(self.space().now().plus(LOOK_NS));
            let changed = Cond::Ne { mask: u128::from(u64::MAX), value: u128::from(seen) };
            self.ep().wait_until(changes(self.claim.lock).until(changed).by(look_again)).await?;
        }
    }

    /// Takes the range if nobody is in the way: a look at everybody's cards, alone.
    async fn look(&self) -> Result<Found, Denied> {
        let gate = Claim { lock: gate(self.claim.lock), ..super::whole(Mode::Exclusive) };
        let ticket = match self.members.try_take(gate) {
            Err(Denied::Busy) => Arc::clone(&self.members).take(gate).await?,
            outcome => outcome?,
        };
        let token = token(&ticket.grant);
        let free = !self.is_blocked();
        let written = if free { self.fill(State::Held, token) } else { Ok(()) };
        let passed = match self.members.give_back_at_once(&ticket) {
            Some(passed) => passed,
            None => Arc::clone(&self.members).give_back(ticket).await,
        };
        written?;
        match (free, passed) {
            (true, Ok(())) => {
                // The gate was given back in time, but perhaps by a client that had been declared dead since.
                self.member.book.show_life().await?;
                Ok(Found::Free(token))
            }
            (false, Ok(())) => Ok(Found::Busy),
            // The gate was lost while this client looked: others may have seen nothing of it. Look again.
            (_, Err(Lost::Recovered)) => {
                self.fill(State::Waiting, 0)?;
                Ok(Found::Busy)
            }
            (_, Err(Lost::Fabric(error))) => Err(error.into()),
        }
    }

    /// Whether a living client's card is in the way.
    fn is_blocked(&self) -> bool {
        let now = self.space().now();
        cards::sheets(self.space()).any(|sheet| {
            sheet.cards(self.space()).any(|card| self.is_blocked_by(&card))
                && self.member.book.is_alive(&sheet, now)
        })
    }

    fn is_blocked_by(&self, card: &Card) -> bool {
        let mine = (self.ep().me(), u64::from(self.card));
        let (theirs, their_turn) = ((card.peer, card.card), (card.since, card.peer, card.card));
        let first = match card.state {
            State::Held => true,
            State::Waiting => their_turn < (self.began, mine.0, mine.1),
            _ => false,
        };
        first && theirs != mine && card.kind == Kind::Ranges && card.claim.conflicts(&self.claim)
    }
}
