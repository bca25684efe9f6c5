//! Release (Alg. 3): free the lock, hand it over, or give it to the readers.
//!
//! A handover's two halves, the FAA on RelCnt and the message, leave together. So a writer can hold the lock while the
//! FAA of the one before it is still on its way: RelCnt in the entry lags behind the one that was carried. Every
//! change that a releasing writer makes therefore compares RelCnt with the carried one, and waits if it lags.

use super::layout::{Delta, Entry, Layout, Member, happened};
use super::lookup::HolderLookup;
use super::messages::{Pass, Successor};
use super::recover::StallTimer;
use super::{Core, Rules, ShiftGrant};
use crate::fast::now;
use crate::join::join;
use crate::protocol::{Lost, Want};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, MaskedCas, Time, Verb};

/// How an attempt to change the entry ended.
pub(super) enum Changed<L> {
    /// It was made; this was there before.
    Made(Entry<L>),
    /// A client queued behind.
    Overtaken,
    /// The lock was recovered by this very client, since it would not move on: nothing is left to do.
    Recovered,
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    /// A release, where a verb is an instruction. `Err` if it is not over with one: nothing has happened, or its verb
    /// found the entry so.
    #[inline(always)]
    pub(super) fn try_give_back(&self, grant: ShiftGrant) -> Result<Result<(), Lost>, Option<Entry<L>>> {
        if grant.is_shared() {
            return Ok(self.left(grant, now(&self.ep, self.leave(grant))));
        }
        if !self.ep.has_no_mail() {
            return Err(None); // lines 4, 5: there may be a successor
        }
        self.is_free(grant, now(&self.ep, self.free(grant))).map_err(Some)
    }

    /// A release.
    pub(super) async fn give_back(&self, grant: ShiftGrant) -> Result<(), Lost> {
        if grant.is_shared() {
            return self.left(grant, self.ep.go(self.leave(grant)).await);
        }
        // Lines 4, 5: to the successor, if one is known already.
        let known = self
            .ep
            .recv_by(Deadline::Now, |_, message| Successor::read(grant.lock, grant.member(), message))
            .await;
        if let Some(next) = known
            && next.generation == grant.stamp.generation()
        {
            return self.pass_on(grant, Some(next.member)).await;
        }
        match self.is_free(grant, self.ep.go(self.free(grant)).await) {
            Ok(done) => done,
            Err(seen) => self.free_or_pass_on(grant, seen).await,
        }
    }

    /// READER-RELEASE line 2.
    #[inline(always)]
    fn leave(&self, grant: ShiftGrant) -> Verb<L::Word> {
        L::add(self.word(grant.lock), Delta::LEAVE, self.guard(grant.stamp))
    }

    /// Whether a reader had anything to leave.
    #[inline(always)]
    fn left(&self, grant: ShiftGrant, old: Result<L::Word, FabricError>) -> Result<(), Lost> {
        if happened(self.leave(grant), old?) { Ok(()) } else { Err(Lost::Recovered) }
    }

    /// WRITER-RELEASE lines 6–12: nobody is known to be behind; free the lock if that is true.
    #[inline(always)]
    fn free(&self, grant: ShiftGrant) -> Verb<L::Word> {
        L::change(self.word(grant.lock), Self::freed(grant), None)
    }

    /// Whether that was true; else the entry as it was.
    #[inline(always)]
    fn is_free(
        &self,
        grant: ShiftGrant,
        old: Result<L::Word, FabricError>,
    ) -> Result<Result<(), Lost>, Entry<L>> {
        match old {
            Ok(old) if happened(self.free(grant), old) => {
                self.members.leave(grant.lock, grant.member());
                Ok(Ok(()))
            }
            Ok(old) => Err(Entry::of(old)),
            Err(lost) => Ok(Err(lost.into())),
        }
    }

    /// Lines 7–9, and RelCnt compared.
    #[inline(always)]
    pub(super) fn freed(grant: ShiftGrant) -> MaskedCas {
        let compared = if R::RELEASE_COMPARES_REL_CNT { L::STAMP } else { 0 };
        MaskedCas {
            compare: L::TAIL.put(u128::from(grant.member().0)) | L::put(grant.stamp),
            compare_mask: L::TAIL.mask() | compared,
            swap: L::put(grant.stamp.plus(1)) | L::EPOCH.put(u128::from(!grant.epoch())),
            swap_mask: L::TAIL.mask() | L::STAMP | L::EPOCH.mask(),
        }
    }

    pub(super) async fn free_or_pass_on(&self, grant: ShiftGrant, seen: Entry<L>) -> Result<(), Lost> {
        let freed = self.change(grant, Self::freed(grant), Member::NOBODY, Some(seen)).await;
        if matches!(freed, Ok(Changed::Overtaken)) {
            return self.pass_on(grant, None).await;
        }
        self.members.leave(grant.lock, grant.member());
        freed.map(|_| ())
    }

    /// Lines 13–23: learn who is next, if that is not known yet, and pass the lock on.
    async fn pass_on(&self, grant: ShiftGrant, next: Option<Member>) -> Result<(), Lost> {
        let passed = self.pass_on_to(grant, next).await;
        self.members.leave(grant.lock, grant.member());
        passed
    }

    async fn pass_on_to(&self, grant: ShiftGrant, next: Option<Member>) -> Result<(), Lost> {
        let next = match next {
            Some(next) => next,
            None => match self.successor(grant).await? {
                Some(next) => next,
                None => return Ok(()),
            },
        };
        if grant.cons_wrt().saturating_add(1) >= self.params.threshold {
            self.change_mode(grant, next).await
        } else {
            self.hand_over(grant, next).await
        }
    }

    /// Lines 13, 14. `None` if none came forward, and the lock was recovered for that.
    async fn successor(&self, grant: ShiftGrant) -> Result<Option<Member>, Lost> {
        let mut timer = self.stall_timer(grant.stamp, Time(0)).await;
        loop {
            let said = self.ep.recv_by(self.give_up(&timer), |_, message| {
                Successor::read(grant.lock, grant.member(), message)
            });
            match said.await {
                Some(next) if next.generation == grant.stamp.generation() => {
                    return Ok(Some(next.member));
                }
                Some(_) => {} // from before a recovery
                None if self.recovers(grant, &mut timer).await? => return Ok(None),
                None => self.still("shiftlock: no successor yet", grant, timer),
            }
        }
    }

    /// Lines 20–23: count the release and tell the next, both at once.
    async fn hand_over(&self, grant: ShiftGrant, next: Member) -> Result<(), Lost> {
        let (lock, epoch) = (grant.lock, grant.epoch());
        let stamp = grant.stamp.plus(u64::from(R::HANDOVER_COUNTS));
        let pass = Pass { stamp, cons_wrt: grant.cons_wrt() + 1, epoch, after_readers: false };
        let tell = self.ep.send(next.peer::<L>(), pass.to(lock, next));
        if !R::HANDOVER_COUNTS {
            return Ok(self.tolerate(tell.await)?);
        }
        let count = L::add(self.word(lock), Delta::HAND_OVER, self.guard(stamp));
        let (counted, told) = join(self.ep.go(count), tell).await;
        self.tolerate(told)?;
        if happened(count, counted?) { Ok(()) } else { Err(Lost::Recovered) }
    }

    /// Lines 16–18: give the lock to the readers that wait; the next writer comes after them. If none waits, the next
    /// writer need not look for them.
    async fn change_mode(&self, grant: ShiftGrant, next: Member) -> Result<(), Lost> {
        let (lock, stamp, epoch) = (grant.lock, grant.stamp, grant.epoch());
        let (stamp, readers) = if R::MODE_CHANGE_COMPARES_REL_CNT {
            let flip = MaskedCas {
                compare: L::put(stamp),
                compare_mask: L::STAMP,
                swap: L::put(stamp.plus(1)) | L::EPOCH.put(u128::from(!epoch)),
                swap_mask: L::STAMP | L::EPOCH.mask(),
            };
            match self.change(grant, flip, next, None).await? {
                Changed::Made(entry) => (stamp, entry.rdr_cnt()),
                Changed::Overtaken => unreachable!("the tail is not compared"),
                Changed::Recovered => return Ok(()),
            }
        } else {
            let flip = L::add(self.word(lock), Delta::CHANGE_MODE, self.guard(stamp));
            let entry = Entry::<L>::of(self.ep.go(flip).await?);
            (entry.stamp(), entry.rdr_cnt())
        };
        let after_readers = readers > 0 || !self.params.skips_idle_readers;
        let pass = Pass { stamp: stamp.plus(readers + 1), cons_wrt: 0, epoch: !epoch, after_readers };
        Ok(self.tolerate(self.ep.send(next.peer::<L>(), pass.to(lock, next)).await)?)
    }

    /// Makes a change that compares RelCnt with the grant's: waits while that lags, and repeats what fails only because
    /// something else moved. `next` is known to be behind, or nobody is.
    pub(super) async fn change(
        &self,
        grant: ShiftGrant,
        change: MaskedCas,
        next: Member,
        mut seen: Option<Entry<L>>,
    ) -> Result<Changed<L>, Lost> {
        let word = self.word(grant.lock);
        loop {
            if let Some(entry) = seen {
                if entry.generation() != grant.stamp.generation() {
                    return Err(Lost::Recovered);
                }
                if (entry.bits ^ change.compare) & change.compare_mask & L::TAIL.mask() != 0 {
                    return Ok(Changed::Overtaken);
                }
                if R::RELEASE_COMPARES_REL_CNT
                    && entry.stamp() != grant.stamp
                    && !self.catches_up(grant, entry).await?
                {
                    return Ok(Changed::Recovered);
                }
            }
            let verb = L::change(word, change, seen.map(Entry::word));
            let old = self.ep.go(verb).await?;
            if happened(verb, old) {
                return Ok(Changed::Made(Entry::of(old)));
            }
            let entry = Entry::<L>::of(old);
            let [low, high] = entry.halves();
            let (stamp, cons_wrt, epoch) = (grant.stamp.0, grant.cons_wrt(), grant.epoch());
            let (member, last_look) = (grant.member().0, self.last_look().0);
            let locals = [next.0, low, high, stamp, u64::from(cons_wrt), u64::from(epoch), member, last_look];
            self.ep.mark("shiftlock: change again", &locals);
            seen = Some(entry);
        }
    }

    /// Waits for the FAA of the writer before this one. Says whether it came; else the lock was recovered.
    pub(super) async fn catches_up(&self, grant: ShiftGrant, entry: Entry<L>) -> Result<bool, Lost> {
        let word = self.word(grant.lock);
        let mut timer = self.stall_timer(entry.stamp(), Time(0)).await;
        loop {
            let there = word.until(Cond::AtLeast(L::REL_CNT, u128::from(grant.stamp.rel_cnt())));
            if self.ep.wait_until(there.by(self.give_up(&timer))).await?.met {
                return Ok(true);
            }
            if self.recovers(grant, &mut timer).await? {
                return Ok(false);
            }
            self.still("shiftlock: does not catch up yet", grant, timer);
        }
    }

    /// A stall timer that begins again, for the explorer.
    fn still(&self, label: &'static str, grant: ShiftGrant, timer: StallTimer) {
        let (cons_wrt, epoch) = (u64::from(grant.cons_wrt()), u64::from(grant.epoch()));
        let locals = [grant.stamp.0, cons_wrt, epoch, grant.member().0, timer.stamp.0];
        self.again(label, &locals);
    }

    /// The lock does not move on: true if this client recovers it, and so is rid of it.
    async fn recovers(&self, grant: ShiftGrant, timer: &mut StallTimer) -> Result<bool, Lost> {
        if !self.is_recovered(Want::exclusive(grant.lock).claim, timer, grant.member()).await? {
            return Ok(false);
        }
        if timer.by_me { Ok(true) } else { Err(Lost::Recovered) }
    }
}
