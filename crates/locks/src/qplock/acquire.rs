//! Acquire: into the own side's queue (Alg. 2 qLock), then, for a client that leads it, through Peterson's lock (Alg. 1).
//!
//! Ordering. A client's awaited verbs take effect in program order, and so do the verbs of a batch: the fabric
//! promises it. So the store of the own tail is visible before the other tail is looked at, which is the store-load
//! fence that Peterson's lock cannot do without.

use super::layout::{Desc, Pass, Side, WHO};
use super::{Place, QpClient, QpGrant, Rules};
use crate::protocol::{Denied, Patience, Want};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Cond, Endpoint, FabricError, Verb, Word64};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// What the first look at the other queue showed where nobody looked: not that it is empty.
const NOT_LOOKED: u64 = 1;

/// What a client knows of the token when the lock becomes its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Token {
    /// It was passed along with the lock; memory may be behind.
    Carried(u64),
    /// It has to be read.
    InMemory,
}

impl<E: Endpoint, R: Rules> QpClient<E, R> {
    /// One batch: enqueue, look at the other side. Both empty: granted.
    pub(super) async fn acquire_fast(&self, want: Want) -> Result<QpGrant, Denied> {
        let place = self.begin(want)?;
        if R::FIFO {
            return self.acquire_in_order(want, place).await;
        }
        let tail = self.tail(place);
        let me = place.me.to_word();
        let enqueue = if self.swaps(want) { tail.swap(me) } else { tail.cas(0, me) };
        let (pred, rival) = if R::LOOKS_FIRST && R::FENCED {
            self.ep.go((enqueue, self.rival(place).read())).await?
        } else {
            self.enqueue_by_other_rules(enqueue, self.rival(place)).await?
        };
        if (pred, rival) == (0, 0) && !R::EXTENDED && R::LEADER_RUNS_PETERSON {
            return Ok(self.granted(place, want, self.params.budget, 0));
        }
        self.acquire_slow(want, place, pred, rival).await
    }

    /// The paper's first verb, which only enqueues; and a mutant's, which looks before its store is visible.
    async fn enqueue_by_other_rules(
        &self,
        enqueue: Verb<u64>,
        rival: Word64,
    ) -> Result<(u64, u64), FabricError> {
        if R::FENCED {
            return Ok((self.ep.go(enqueue).await?, NOT_LOOKED));
        }
        let (mut store, mut load) = (pin!(self.ep.go(enqueue)), pin!(self.ep.go(rival.read())));
        let (mut stored, mut loaded) = (None, None);
        poll_fn(|cx| {
            if stored.is_none()
                && let Poll::Ready(old) = store.as_mut().poll(cx)
            {
                stored = Some(old);
            }
            if loaded.is_none()
                && let Poll::Ready(old) = load.as_mut().poll(cx)
            {
                loaded = Some(old);
            }
            match (stored, loaded) {
                (Some(stored), Some(loaded)) => Poll::Ready(stored.and_then(|stored| Ok((stored, loaded?)))),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// `pred` was the tail when the first verb met it; the other side's tail was `rival`.
    async fn acquire_slow(
        &self,
        want: Want,
        place: Place,
        pred: u64,
        mut rival: u64,
    ) -> Result<QpGrant, Denied> {
        let mut pred = pred;
        if pred != 0 && want.patience == Patience::Try {
            self.slots.give_back(place.me.slot); // The CAS changed nothing.
            return Err(Denied::Busy);
        }
        if pred != 0 && !self.swaps(want) {
            pred = self.enqueue(place, pred).await?;
            rival = NOT_LOOKED;
        }
        // PlusCal cwait: an empty queue makes a leader.
        let (budget, token) = match Desc::from_word(pred) {
            None => {
                if R::LEADER_RUNS_PETERSON && !self.acquire_global(place, rival, want.patience).await? {
                    self.leave(place, Pass { budget: 0, token: 0 }, None).await?;
                    return Err(Denied::Busy);
                }
                (self.params.budget, Token::InMemory)
            }
            Some(pred) => {
                self.follow(place.lock, pred, place.me).await?; // c2
                let pass = self.passed(place.lock, place.me).await?; // c3
                if (pass.budget == 0 && R::MINDS_BUDGET) || !R::LEADER_RUNS_PETERSON {
                    self.acquire_global(place, NOT_LOOKED, Patience::Forever).await?; // c5
                    (self.params.budget, Token::InMemory) // c6
                } else {
                    (pass.budget.max(1), Token::Carried(pass.token))
                }
            }
        };
        if R::EXTENDED {
            return self.acquire_mode(want, place, budget, token).await;
        }
        Ok(self.granted(place, want, budget, 0))
    }

    /// Alg. 2 lines 4–7: `seen` is what the tail was; returns the predecessor, 0 if there is none.
    async fn enqueue(&self, place: Place, mut seen: u64) -> Result<u64, FabricError> {
        loop {
            self.ep.mark("qplock enqueue", &[u64::from(place.me.slot), seen]);
            let old = self.ep.go(self.tail(place).cas(seen, place.me.to_word())).await?;
            if old == seen {
                return Ok(seen);
            }
            seen = old;
        }
    }

    /// Alg. 1 lines 6–8, 15–16 (AcquireGlobal of the PlusCal). False if a client that only tries would have to wait.
    ///
    /// With an empty queue on the other side there is nobody to yield to: who comes later finds this side's tail set
    /// and yields itself. `rival` is what the other tail was, seen after this side's tail was set.
    async fn acquire_global(
        &self,
        place: Place,
        rival: u64,
        patience: Patience,
    ) -> Result<bool, FabricError> {
        let (words, theirs) = (place.words, self.rival(place));
        if R::LOOKS_FIRST && (rival == 0 || (rival == NOT_LOOKED && self.ep.go(theirs.read()).await? == 0)) {
            return Ok(true);
        }
        let us = place.side.as_victim();
        let tail = if R::YIELDS {
            self.ep.go((words.victim().write(us), theirs.read())).await?.1 // g1, g2
        } else {
            self.ep.go(theirs.read()).await?
        };
        if tail == 0 {
            return Ok(true);
        }
        if patience == Patience::Try {
            return Ok(self.ep.go(words.victim().read()).await? != us);
        }
        self.await_turn(place).await.map(|_| true)
    }

    /// gwait: until the other side has left (true) or yields (false). Either is enough, whichever is seen first.
    pub(super) async fn await_turn(&self, place: Place) -> Result<bool, FabricError> {
        let they_left = Cond::Eq { mask: u128::from(WHO), value: 0 };
        let they_yield = Cond::Ne { mask: u128::MAX, value: u128::from(place.side.as_victim()) };
        let mut left = pin!(self.ep.wait_until(self.rival(place).until(they_left)));
        let mut yielded = pin!(self.ep.wait_until(place.words.victim().until(they_yield)));
        let seen = poll_fn(|cx| match left.as_mut().poll(cx) {
            Poll::Ready(seen) => Poll::Ready(seen.map(|_| true)),
            Poll::Pending => yielded.as_mut().poll(cx).map_ok(|_| false),
        });
        seen.await
    }

    /// The lock is this client's alone. A reader counts itself in and lets the next one pass; a writer waits until the
    /// readers that came before it have left.
    async fn acquire_mode(
        &self,
        want: Want,
        place: Place,
        budget: u16,
        token: Token,
    ) -> Result<QpGrant, Denied> {
        let words = place.words;
        let last = match token {
            Token::Carried(last) => last,
            Token::InMemory => self.ep.go(words.token().read()).await?,
        };
        // Writers' tokens are even. Readers between two writers share the odd one between theirs, so that they need not
        // write it down.
        if want.claim.mode == Mode::Shared {
            self.ep.go(words.readers(place.side).fetch_add(1)).await?;
            let dirty = matches!(token, Token::Carried(_)).then_some(last);
            self.leave(place, Pass { budget: budget - 1, token: last }, dirty).await?;
            return Ok(self.granted(place, want, 0, last + 1));
        }
        for side in [Side::Local, Side::Remote] {
            if side == Side::Remote && !R::WAITS_FOR_REMOTE_READERS {
                continue;
            }
            let gone = words.readers(side).until(Cond::Eq { mask: u128::MAX, value: 0 });
            if want.patience == Patience::Try {
                if self.ep.go(words.readers(side).read()).await? != 0 {
                    self.leave(place, Pass { budget: budget - 1, token: last }, Some(last)).await?;
                    return Err(Denied::Busy);
                }
            } else {
                self.ep.wait_until(gone).await?;
            }
        }
        Ok(self.granted(place, want, budget, last + 2))
    }

    #[inline(always)]
    pub(super) fn granted(&self, place: Place, want: Want, budget: u16, token: u64) -> QpGrant {
        let Place { lock, me, .. } = place;
        let (slot, ticket) = (me.slot, me.ticket);
        QpGrant { lock, token, budget, slot, mode: want.claim.mode, ticket, has_token: R::EXTENDED }
    }

    /// The tail of this side's queue.
    #[inline(always)]
    pub(super) fn tail(&self, place: Place) -> Word64 {
        place.words.cohort(if R::TWO_QUEUES { place.side } else { Side::Local })
    }

    /// The tail of the other side's queue.
    #[inline(always)]
    pub(super) fn rival(&self, place: Place) -> Word64 {
        place.words.cohort(if R::TWO_QUEUES { place.side.other() } else { Side::Remote })
    }

    /// Who only tries must not end up in a queue.
    #[inline(always)]
    fn swaps(&self, want: Want) -> bool {
        self.params.swap && want.patience != Patience::Try
    }
}
