//! Acquire: one ordered batch, if nobody is in the way.
//!
//! | verbs | |
//! |---|---|
//! | WRITE, not waited for | the record: taking |
//! | FAA | the own side's tail: a ticket, which also raises the side's flag in Peterson's lock |
//! | READ | the own side's head; head and tail of the other side; the lock's state |
//! | WRITE, not waited for | the record: the ticket and the token |
//!
//! A client's verbs take effect in program order: the ticket is drawn before the other side is looked at, which is the
//! store-load fence that Peterson's lock cannot do without.

use super::layout::{Head, LockState, Queue};
use super::{MemberClient, MemberGrant, MemberRules, MemberSpace};
use crate::holders::ranges::unless;
use crate::protocol::{Denied, Reason};
use lockwright_fabric::observe::{Claim, Mode, Observation};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError};
use std::future::{Pending, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// An acquisition with a ticket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) record: u8,
    pub(super) claim: Claim,
    pub(super) ticket: u64,
}

/// What the holder of a lock has to know, as it was when it already had it.
#[derive(Clone, Copy, Debug)]
struct Around {
    /// The ticket that the other side serves.
    theirs: u64,
    state: LockState,
}

/// Why a head stopped waiting for the other side.
enum Seen {
    /// It yields.
    TheyYield,
    /// It serves another ticket.
    TheyMoved,
    /// Nothing has happened for a while.
    Nothing,
}

/// For who never gives up.
type Never = fn() -> Pending<()>;

impl<E: Endpoint, S: MemberSpace, R: MemberRules> MemberClient<E, S, R> {
    /// Takes the lock, however long it takes.
    ///
    /// # Errors
    /// If its memory cannot be reached or this client is evicted; the record is free again.
    pub async fn take(&self, record: u8, claim: Claim) -> Result<MemberGrant, Denied> {
        let never: Never = pending;
        self.take_unless(record, claim, never).await
    }

    /// Takes the lock, unless it is `given_up`, which is asked whenever it waits for others. Others pass over the ticket of who
    /// gave up in the queue as over that of the dead.
    ///
    /// # Errors
    /// [`Denied::TimedOut`] if it was given up; else as [`take`](Self::take).
    pub async fn take_unless<G: Future<Output = ()>>(
        &self,
        record: u8,
        claim: Claim,
        given_up: impl Fn() -> G,
    ) -> Result<MemberGrant, Denied> {
        self.check(&claim)?;
        let taken = self.queue(record, claim, &given_up).await;
        self.confirmed(record, taken).await
    }

    /// Takes the lock if nobody alive is in its way.
    ///
    /// # Errors
    /// [`Denied::Busy`] if another client is; the record is free again.
    pub async fn try_take(&self, record: u8, claim: Claim) -> Result<MemberGrant, Denied> {
        self.check(&claim)?;
        let taken = self.try_queue(record, claim).await;
        self.confirmed(record, taken).await
    }

    fn check(&self, claim: &Claim) -> Result<(), Denied> {
        if claim.lock < self.locks.locks() {
            return Ok(());
        }
        Err(Denied::BadRequest(&Reason("there is no such lock in this space")))
    }

    /// A grant counts only if this client was still in after it.
    #[inline(always)]
    async fn confirmed(&self, record: u8, taken: Result<MemberGrant, Denied>) -> Result<MemberGrant, Denied> {
        let confirmed = match taken {
            Ok(grant) => self.space.confirm(record).await.map(|()| grant).map_err(Denied::from),
            denied => denied,
        };
        if let Err(Denied::Fabric(_)) = confirmed {
            // Which of its verbs were executed is not known. Without a record its ticket is nobody's.
            let _ = self.clear(record).await;
        }
        confirmed
    }

    async fn queue<G: Future<Output = ()>>(
        &self,
        record: u8,
        claim: Claim,
        given_up: &impl Fn() -> G,
    ) -> Result<MemberGrant, Denied> {
        let (place, head, rival, state) = self.draw(record, claim).await?;
        let around = Around { theirs: rival.head.ticket(), state };
        let is_alone = head.ticket() == place.ticket && rival.is_empty();
        if is_alone && !state.may_have_readers() && claim.mode == Mode::Exclusive {
            return Ok(self.granted(place, self.budget, around).await?);
        }
        if R::SETTLES_BEFORE_WAITING {
            self.settle(record, place.ticket).await?;
        }
        if is_alone {
            return self.enter(place, self.budget, around, given_up).await;
        }
        let Some(budget) = self.lead(place, head, given_up).await? else { return Err(Denied::TimedOut) };
        let around = self.around(claim.lock).await?;
        self.enter(place, budget, around, given_up).await
    }

    async fn around(&self, lock: u64) -> Result<Around, FabricError> {
        let words = self.locks.lock(lock);
        let (head, state) = self.ep.go((words.head(self.side.other()).read(), words.state().read())).await?;
        Ok(Around { theirs: Head(head).ticket(), state: LockState(state) })
    }

    /// Draws a ticket. Returns whom the own side serves, the other side's queue, and the lock's state.
    #[inline(always)]
    async fn draw(&self, record: u8, claim: Claim) -> Result<(Place, Head, Queue, LockState), FabricError> {
        let (words, side) = (self.locks.lock(claim.lock), self.side);
        let theirs = (words.head(side.other()).read(), words.tail(side.other()).read());
        if self.waits_from_ticket {
            self.ep.observe(Observation::GaveUp(claim));
        }
        if R::RECORDS_COME_FIRST {
            self.announce(record, &claim).await?;
        }
        let draw = (words.tail(side).fetch_add(1), words.head(side).read());
        let ((ticket, head), rival, state) = if R::LOOKS_AFTER_DRAWING {
            self.ep.go((draw, theirs, words.state().read())).await?
        } else {
            let (rival, drawn, state) = self.ep.go((theirs, draw, words.state().read())).await?;
            (drawn, rival, state)
        };
        if self.waits_from_ticket {
            self.ep.observe(Observation::Waiting(claim));
        }
        if !R::RECORDS_COME_FIRST {
            self.announce(record, &claim).await?;
        }
        let rival = Queue { head: Head(rival.0), tail: rival.1 };
        Ok((Place { record, claim, ticket }, Head(head), rival, LockState(state)))
    }

    /// The lock for a client that has to wait: to the head of its queue, then past the other side. Returns its budget; `None`
    /// if it was given up, and nothing is left.
    async fn lead<G: Future<Output = ()>>(
        &self,
        place: Place,
        head: Head,
        given_up: &impl Fn() -> G,
    ) -> Result<Option<u16>, FabricError> {
        let waits = head.ticket() != place.ticket;
        let head = if waits { self.await_head(place, given_up).await? } else { Some(head) };
        let Some(head) = head else {
            self.give_up(place).await?;
            return Ok(None);
        };
        if (waits || !R::PASSES_ARE_FOR_WAITERS) && (head.budget() > 0 || !R::MINDS_BUDGET) {
            return Ok(Some(head.budget().max(1)));
        }
        if self.compete(place, given_up).await? {
            return Ok(Some(self.budget));
        }
        self.step_down(place).await?;
        Ok(None)
    }

    /// Waits until the own side serves this ticket, and returns its head then. `None` if it was given up.
    async fn await_head<G: Future<Output = ()>>(
        &self,
        place: Place,
        given_up: &impl Fn() -> G,
    ) -> Result<Option<Head>, FabricError> {
        let head = self.locks.lock(place.claim.lock).head(self.side);
        loop {
            self.ep.mark("qplock-member: queues", &[place.ticket]);
            let deadline = self.look_again().await;
            let turn = head.until(Cond::AtLeast(Head::TICKET, place.ticket.into())).by(deadline);
            let Some(waited) = unless(given_up(), self.ep.wait_until(turn)).await else { return Ok(None) };
            let waited = waited?;
            let seen = Head(waited.value);
            if seen.ticket() > place.ticket {
                return Err(FabricError::Evicted); // passed over: others took this client for dead
            }
            if waited.met {
                return Ok(Some(seen));
            }
            self.skip_dead(place.claim.lock, seen, place.ticket).await?;
        }
    }

    /// Peterson's lock (Alg. 1 lines 6–8, 15–16), for the head of a queue. False if it was given up.
    async fn compete<G: Future<Output = ()>>(
        &self,
        place: Place,
        given_up: &impl Fn() -> G,
    ) -> Result<bool, FabricError> {
        let (words, us) = (self.locks.lock(place.claim.lock), self.side.as_victim());
        if R::YIELDS {
            self.ep.go(words.victim().write(us)).await?;
        }
        loop {
            self.ep.mark("qplock-member: competes", &[place.ticket]);
            let rival = self.rival(place.claim.lock).await?;
            if rival.is_empty() {
                return Ok(true);
            }
            let deadline = self.look_again().await;
            let seen = self.await_rival(place, rival, deadline);
            match unless(given_up(), seen).await {
                None => return Ok(false),
                Some(seen) => match seen? {
                    Seen::TheyYield => return Ok(true),
                    Seen::TheyMoved => {}
                    Seen::Nothing if self.nobody_leads(place.claim.lock, rival).await? => {
                        self.count_the_dead(place.claim.lock).await?;
                        return Ok(true);
                    }
                    Seen::Nothing => {}
                },
            }
        }
    }

    /// The other side's queue.
    pub(super) async fn rival(&self, lock: u64) -> Result<Queue, FabricError> {
        let (words, them) = (self.locks.lock(lock), self.side.other());
        let (head, tail) = self.ep.go((words.head(them).read(), words.tail(them).read())).await?;
        Ok(Queue { head: Head(head), tail })
    }

    /// Until the other side yields or moves, whichever is seen first.
    async fn await_rival(&self, place: Place, rival: Queue, by: Deadline) -> Result<Seen, FabricError> {
        let words = self.locks.lock(place.claim.lock);
        let changed = |seen: u64| Cond::Ne { mask: u128::MAX, value: seen.into() };
        let yielded = words.victim().until(changed(self.side.as_victim())).by(by);
        let moved = words.head(self.side.other()).until(changed(rival.head.0)).by(by);
        let (mut yielded, mut moved) = (pin!(self.ep.wait_until(yielded)), pin!(self.ep.wait_until(moved)));
        poll_fn(|cx| {
            if let Poll::Ready(waited) = yielded.as_mut().poll(cx) {
                return Poll::Ready(
                    waited.map(|waited| if waited.met { Seen::TheyYield } else { Seen::Nothing }),
                );
            }
            let waited = std::task::ready!(moved.as_mut().poll(cx));
            Poll::Ready(waited.map(|waited| if waited.met { Seen::TheyMoved } else { Seen::Nothing }))
        })
        .await
    }

    /// The lock is this client's, but for readers. A reader says that it is one, and leaves the queue; a writer waits until
    /// those of before have left.
    async fn enter<G: Future<Output = ()>>(
        &self,
        place: Place,
        budget: u16,
        around: Around,
        given_up: &impl Fn() -> G,
    ) -> Result<MemberGrant, Denied> {
        let Place { record, claim, ticket } = place;
        if claim.mode == Mode::Shared {
            let token = self.token(ticket, around);
            let grant = MemberGrant { record, claim, ticket, token, budget };
            self.share(&grant, around.state).await?;
            return Ok(grant);
        }
        if around.state.may_have_readers() && R::WAITS_FOR_READERS {
            if !self.await_readers(place, budget, around, given_up).await? {
                self.pass_on(claim.lock, ticket, budget - 1).await?;
                self.clear(record).await?;
                return Err(Denied::TimedOut);
            }
            let state = around.state.without_readers();
            self.ep.go(self.locks.lock(claim.lock).state().write(state.0)).await?;
        }
        Ok(self.granted(place, budget, around).await?)
    }

    /// Waits until no record of the living says that the lock is read. False if it was given up.
    async fn await_readers<G: Future<Output = ()>>(
        &self,
        place: Place,
        budget: u16,
        around: Around,
        given_up: &impl Fn() -> G,
    ) -> Result<bool, FabricError> {
        let known = [place.ticket, budget.into(), around.theirs, around.state.0];
        while let Some((word, seen)) = self.a_reader(place.claim.lock).await? {
            let locals = [&known[..], &[word.addr().offset, seen]].concat();
            self.ep.mark("qplock-member: waits for a reader", &locals);
            let left = word.until(Cond::Ne { mask: u128::MAX, value: seen.into() });
            let left = left.by(self.look_again().await);
            match unless(given_up(), self.ep.wait_until(left)).await {
                Some(waited) => drop(waited?),
                None => return Ok(false),
            }
            self.ep.mark("qplock-member: looks for readers", &known);
        }
        Ok(true)
    }

    #[inline(always)]
    async fn granted(&self, place: Place, budget: u16, around: Around) -> Result<MemberGrant, FabricError> {
        let Place { record, claim, ticket } = place;
        let token = self.token(ticket, around);
        self.settle_granted(record, ticket, token).await?;
        Ok(MemberGrant { record, claim, ticket, token, budget })
    }

    const fn token(&self, ticket: u64, Around { theirs, state }: Around) -> u64 {
        state.token(ticket, if R::TOKENS_COUNT_BOTH_SIDES { theirs } else { 0 })
    }

    /// As [`queue`](Self::queue) for who must not wait: a ticket is drawn only if it is served at once, after those of the dead
    /// are passed over.
    async fn try_queue(&self, record: u8, claim: Claim) -> Result<MemberGrant, Denied> {
        let (words, side) = (self.locks.lock(claim.lock), self.side);
        let (head, ticket) = self.ep.go((words.head(side).read(), words.tail(side).read())).await?;
        if self.skip_dead(claim.lock, Head(head), ticket).await?.ticket() != ticket {
            return Err(Denied::Busy);
        }
        self.announce(record, &claim).await?;
        if self.ep.go(words.tail(side).cas(ticket, ticket + 1)).await? != ticket {
            self.clear(record).await?;
            return Err(Denied::Busy);
        }
        self.settle(record, ticket).await?;
        let place = Place { record, claim, ticket };
        let rival = self.rival(claim.lock).await?;
        let is_free = if rival.is_empty() {
            true
        } else if self.nobody_leads(claim.lock, rival).await? {
            self.count_the_dead(claim.lock).await?;
            true
        } else {
            false
        };
        if is_free {
            let around = self.around(claim.lock).await?;
            let is_read = around.state.may_have_readers() && self.a_reader(claim.lock).await?.is_some();
            if claim.mode == Mode::Shared || !is_read {
                let never: Never = pending;
                return self.enter(place, self.budget, around, &never).await;
            }
        }
        self.step_down(place).await?;
        Err(Denied::Busy)
    }

    /// When a wait ends to look for dead clients.
    async fn look_again(&self) -> Deadline {
        Deadline::At(self.ep.now().await.plus(self.space.patience_ns()))
    }
}
