//! Acquire (Alg. 2): the one verb that usually suffices, and what follows when it does not.

use super::give_up::PendingAcquire;
use super::layout::{Delta, Entry, Layout, Member, happened};
use super::lookup::HolderLookup;
use super::messages::{Pass, Successor};
use super::recover::StallTimer;
use super::{Core, Rules, ShiftGrant};
use crate::fast::{Quick, now};
use crate::protocol::{Denied, Reason, Want};
use lockwright_fabric::observe::{Mode, Observation};
use lockwright_fabric::{Cond, Endpoint, FabricError, MaskedCas, Time, Verb, Word};

/// Alg. 2 lines 7–10: fetch-and-store of the tail, as long as there are tokens.
#[inline(always)]
pub(super) fn enqueue<L: Layout, R: Rules>(me: Member) -> MaskedCas {
    let (compare_mask, swap) = (unspent::<L, R>(), L::TAIL.put(u128::from(me.0)));
    MaskedCas { compare: 0, compare_mask, swap, swap_mask: L::TAIL.mask() }
}

/// The bit of RelCnt that must not be set if a client is to be let in, where verbs can compare it.
#[inline(always)]
const fn unspent<L: Layout, R: Rules>() -> u128 {
    if R::TOKENS_END { L::SPENT } else { 0 }
}

/// What keeps a reader out that comes by a verb which compares it: the end of the tokens, and a reader that waits to be alone.
#[inline(always)]
pub(super) const fn keeps_readers_out<L: Layout, R: Rules>() -> u128 {
    unspent::<L, R>() | L::UPGRADING
}

/// The same, but only if nobody is there.
#[inline(always)]
pub(super) fn enqueue_if_free<L: Layout, R: Rules>(me: Member) -> MaskedCas {
    let free = L::TAIL.mask() | L::RDR_CNT.mask();
    MaskedCas { compare_mask: free | unspent::<L, R>(), ..enqueue::<L, R>(me) }
}

/// A reader comes, if no writer is there and so many readers are.
#[inline(always)]
pub(super) fn enter_if_no_writer<L: Layout, R: Rules>(readers: u64) -> MaskedCas {
    MaskedCas {
        compare: L::RDR_CNT.put(u128::from(readers)),
        compare_mask: L::TAIL.mask() | L::RDR_CNT.mask() | keeps_readers_out::<L, R>(),
        swap: L::RDR_CNT.put(u128::from(readers) + 1),
        swap_mask: L::RDR_CNT.mask(),
    }
}

/// An acquire that is over with its first verb, or has come so far.
pub(super) type FirstVerb<L> = Result<Result<ShiftGrant, Denied>, PendingAcquire<L>>;

impl<E: Endpoint, L: Layout, R: Rules> Core<E, L, R> {
    /// The first verb of an acquire, and what follows from it.
    pub(super) async fn begin(&self, want: Want) -> FirstVerb<L> {
        let (lock, began) = (want.claim.lock, self.last_look());
        if want.claim.mode == Mode::Shared {
            return self.entered(lock, began, self.ep.go(self.enter(lock)).await);
        }
        let Some(me) = self.members.join_alone::<L>(lock) else { return Ok(self.no_room()) };
        self.queued(lock, me, began, self.ep.go(self.enqueue(lock, me)).await)
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    /// A reader comes (READER-ACQUIRE line 2).
    #[inline(always)]
    pub(super) fn enter(&self, lock: u64) -> Verb<L::Word> {
        L::add(self.word(lock), Delta::ENTER, self.lets_in())
    }

    /// What a reader found when it came.
    #[inline(always)]
    fn entered(&self, lock: u64, began: Time, old: Result<L::Word, FabricError>) -> FirstVerb<L> {
        match old {
            Ok(old) => {
                let entry = Entry::<L>::of(old);
                if entry.lets_readers_in() && !Self::is_spent(entry) {
                    return Ok(Ok(Self::reader(lock, entry))); // lines 3, 4
                }
                Err(PendingAcquire::Reader(entry, happened(self.enter(lock), old), began))
            }
            Err(lost) => Ok(Err(lost.into())),
        }
    }

    /// A writer queues (WRITER-ACQUIRE lines 7–10).
    #[inline(always)]
    fn enqueue(&self, lock: u64, me: Member) -> Verb<L::Word> {
        L::change(self.word(lock), enqueue::<L, R>(me), None)
    }

    /// What a writer found when it queued, if it did.
    #[inline(always)]
    fn queued(&self, lock: u64, me: Member, began: Time, old: Result<L::Word, FabricError>) -> FirstVerb<L> {
        match old {
            Ok(old) => {
                let (entry, queued) = (Entry::<L>::of(old), happened(self.enqueue(lock, me), old));
                if queued && entry.tail() == Member::NOBODY && entry.rdr_cnt() == 0 {
                    return Ok(Ok(Self::first_writer(lock, me, entry)));
                }
                Err(PendingAcquire::Writer(me, entry, queued, began))
            }
            Err(lost) => {
                self.members.leave(lock, me);
                Ok(Err(lost.into()))
            }
        }
    }

    pub(super) fn no_room(&self) -> Result<ShiftGrant, Denied> {
        const TOO_MANY: &Reason = &Reason("one client acquires one lock too many times at once");
        const TOO_LARGE: &Reason = &Reason("this layout has no room for a client with so large a number");
        Err(Denied::BadRequest(if self.members.fits() { TOO_MANY } else { TOO_LARGE }))
    }

    #[inline(always)]
    pub(super) fn reader(lock: u64, entry: Entry<L>) -> ShiftGrant {
        ShiftGrant::reader(lock, entry.stamp())
    }

    /// Of a writer that found nobody.
    #[inline(always)]
    pub(super) fn first_writer(lock: u64, member: Member, entry: Entry<L>) -> ShiftGrant {
        ShiftGrant::writer(lock, entry.stamp(), member, 0, entry.epoch())
    }

    /// Line 5: wait until a writer gives the lock to the readers; `entry` is what was there when this one came, or would have,
    /// some time after `began`. Starts again if the lock is recovered meanwhile.
    pub(super) async fn wait_for_writers(
        &self,
        want: Want,
        mut entry: Entry<L>,
        mut came: bool,
        mut began: Time,
    ) -> Result<ShiftGrant, Denied> {
        let lock = want.claim.lock;
        loop {
            if Self::is_spent(entry) {
                if came {
                    self.ep.go(L::add(self.word(lock), Delta::LEAVE, self.guard(entry.stamp()))).await?;
                }
                return Err(Denied::Exhausted);
            }
            if entry.is_upgrading() {
                if came {
                    self.ep.go(L::add(self.word(lock), Delta::LEAVE, self.guard(entry.stamp()))).await?;
                }
                self.upgrade_ends(want, entry, began).await?;
            } else if entry.tail() == Member::NOBODY {
                return Ok(Self::reader(lock, entry));
            } else if let Some(seen) = self.epoch_flips(want, entry, began).await? {
                return Ok(Self::reader(lock, seen));
            }
            self.ep.mark("shiftlock: reader starts again", &[self.last_look().0]);
            began = self.look().await;
            self.check_tokens_left(lock).await?;
            let enter = self.enter(lock);
            let old = self.ep.go(enter).await?;
            (entry, came) = (Entry::of(old), happened(enter, old));
        }
    }

    /// Before a reader comes by a verb that compares nothing: whether there are tokens. A reader that came adds to RelCnt when
    /// it leaves, so at the limit it must not come. Not where nobody makes sure of its grants: that is for simulations, and
    /// would cost a round trip.
    pub(super) async fn check_tokens_left(&self, lock: u64) -> Result<(), Denied> {
        if !W::KNOWS || (self.guards && unspent::<L, R>() != 0) {
            return Ok(());
        }
        let entry = Entry::<L>::of(self.ep.go(self.word(lock).read()).await?);
        if Self::is_spent(entry) { Err(Denied::Exhausted) } else { Ok(()) }
    }

    /// Waits, uncounted, until no reader waits to be alone any more, or the lock is recovered. Counted, it would be taken for one
    /// of those inside by a writer that comes.
    async fn upgrade_ends(&self, want: Want, entry: Entry<L>, began: Time) -> Result<(), FabricError> {
        let word = self.word(want.claim.lock);
        let mask = L::UPGRADING | L::GENERATION.mask();
        let mut timer = self.stall_timer(entry.stamp(), began).await;
        loop {
            let over = word.until(Cond::Ne { mask, value: entry.bits & mask });
            if self.ep.wait_until(over.by(self.give_up(&timer))).await?.met
                || self.is_recovered(want.claim, &mut timer, Member::NOBODY).await?
            {
                return Ok(());
            }
            self.again("shiftlock: reader waits for an upgrade", &[entry.generation(), timer.stamp.0]);
        }
    }

    /// The entry after its epoch flipped; `None` if the reader has to start again.
    async fn epoch_flips(
        &self,
        want: Want,
        entry: Entry<L>,
        began: Time,
    ) -> Result<Option<Entry<L>>, FabricError> {
        let word = self.word(want.claim.lock);
        let mask = L::EPOCH.mask() | L::GENERATION.mask();
        let mut timer = self.stall_timer(entry.stamp(), began).await;
        loop {
            let flipped = word.until(Cond::Ne { mask, value: entry.bits & mask });
            let waited = self.ep.wait_until(flipped.by(self.give_up(&timer))).await?;
            if waited.met {
                let seen = Entry::<L>::of(waited.value);
                if seen.generation() != entry.generation() {
                    return Ok(None);
                }
                if self.must_confirm(&timer).await {
                    // Others may be about to take the lock for dead. Leaving counts as a release, and stops them.
                    let leave = L::add(word, Delta::LEAVE, self.guard(entry.stamp()));
                    self.ep.go(leave).await?;
                    return Ok(None);
                }
                return Ok(Some(seen));
            }
            if self.is_recovered(want.claim, &mut timer, Member::NOBODY).await? {
                return Ok(None);
            }
            let [low, high] = entry.halves();
            self.again("shiftlock: reader waits on", &[low, high, timer.stamp.0]);
        }
    }

    /// Lines 11–26, until the lock is this writer's.
    pub(super) async fn queue(
        &self,
        want: Want,
        me: Member,
        first: Entry<L>,
        queued: bool,
        began: Time,
    ) -> Result<ShiftGrant, Denied> {
        let granted = self.wait_in_queue(want, me, first, queued, began).await;
        if granted.is_err() {
            self.members.leave(want.claim.lock, me);
        }
        granted
    }

    async fn wait_in_queue(
        &self,
        want: Want,
        me: Member,
        first: Entry<L>,
        queued: bool,
        mut began: Time,
    ) -> Result<ShiftGrant, Denied> {
        let lock = want.claim.lock;
        let word = self.word(lock);
        let mut entry =
            if queued { first } else { self.retry_change(word, enqueue::<L, R>(me), Some(first)).await? };
        loop {
            let (stamp, epoch) = (entry.stamp(), entry.epoch());
            let head = if entry.tail() != Member::NOBODY {
                self.wait_for_handover(want, me, entry, began).await? // lines 13–22
            } else if entry.rdr_cnt() != 0 {
                let expected = stamp.plus(entry.rdr_cnt()); // lines 23–25
                let head = Pass { stamp: expected, cons_wrt: 0, epoch, after_readers: true };
                let timer = self.stall_timer(stamp, began).await;
                self.readers_left(want, me, head, timer).await?
            } else {
                Some(Pass { stamp, cons_wrt: 0, epoch, after_readers: false })
            };
            if let Some(head) = head {
                return Ok(ShiftGrant::writer(lock, head.stamp, me, head.cons_wrt, head.epoch)); // line 26
            }
            self.ep.mark("shiftlock: writer starts again", &[me.0, self.last_look().0]);
            began = self.look().await;
            entry = self.retry_change(word, enqueue::<L, R>(me), None).await?;
        }
    }

    /// Lines 14–22: tell the predecessor, wait until it passes the lock on. `None` if the lock was recovered.
    async fn wait_for_handover(
        &self,
        want: Want,
        me: Member,
        entry: Entry<L>,
        began: Time,
    ) -> Result<Option<Pass>, FabricError> {
        let lock = want.claim.lock;
        let mut timer = self.stall_timer(entry.stamp(), began).await;
        let here = Successor { member: me, generation: entry.generation() };
        let told = self.ep.send(entry.tail().peer::<L>(), here.to(lock, entry.tail())).await;
        self.tolerate(told)?;
        loop {
            let pass =
                self.ep.recv_by(self.give_up(&timer), |_, message| Pass::read(lock, me, message)).await;
            match pass {
                Some(pass) if pass.stamp.generation() != entry.generation() => {} // from before a recovery
                Some(mut pass) => {
                    if !R::EPOCH_IS_CARRIED {
                        pass.epoch = entry.epoch() ^ pass.after_readers; // line 20 as printed
                    }
                    if pass.after_readers {
                        return self.readers_left(want, me, pass, timer).await; // lines 17–20
                    }
                    return self.confirm_grant(lock, me, pass, &timer).await;
                }
                None if self.is_recovered(want.claim, &mut timer, me).await? => return Ok(None),
                None => {
                    let [low, high] = entry.halves();
                    self.again("shiftlock: writer waits on", &[me.0, low, high, timer.stamp.0]);
                }
            }
        }
    }

    /// Lines 18 and 24: wait until RelCnt says that the readers before this writer left. `None` if the lock was
    /// recovered instead, which raises RelCnt past that.
    async fn readers_left(
        &self,
        want: Want,
        me: Member,
        head: Pass,
        mut timer: StallTimer,
    ) -> Result<Option<Pass>, FabricError> {
        let word = self.word(want.claim.lock);
        loop {
            let left = word.until(Cond::AtLeast(L::REL_CNT, u128::from(head.stamp.rel_cnt())));
            let waited = self.ep.wait_until(left.by(self.give_up(&timer))).await?;
            if waited.met {
                let seen = Entry::<L>::of(waited.value);
                if seen.stamp() != head.stamp {
                    return Ok(None);
                }
                return self.confirm_grant(want.claim.lock, me, head, &timer).await;
            }
            if self.is_recovered(want.claim, &mut timer, me).await? {
                return Ok(None);
            }
            let Pass { cons_wrt, epoch, .. } = head;
            let locals = [me.0, head.stamp.0, u64::from(cons_wrt), u64::from(epoch), timer.stamp.0];
            self.again("shiftlock: writer waits for readers", &locals);
        }
    }

    /// Makes `change`, which compares nothing but that there are tokens, however often the word changes meanwhile. One verb
    /// where they are masked.
    async fn retry_change(
        &self,
        word: Word<L::Word>,
        change: MaskedCas,
        mut seen: Option<Entry<L>>,
    ) -> Result<Entry<L>, Denied> {
        loop {
            if seen.is_some_and(Self::is_spent) {
                return Err(Denied::Exhausted);
            }
            let verb = L::change(word, change, seen.map(Entry::word));
            let old = self.ep.go(verb).await?;
            if happened(verb, old) {
                return Ok(Entry::of(old));
            }
            let entry = Entry::<L>::of(old);
            let [low, high] = entry.halves();
            let locals = [change.swap as u64, low, high, self.last_look().0];
            self.ep.mark("shiftlock: writer queues again", &locals);
            seen = Some(entry);
        }
    }

    /// Takes the lock if it is free, and never queues.
    pub(super) async fn try_acquire(&self, want: Want) -> Result<ShiftGrant, Denied> {
        let lock = want.claim.lock;
        match want.claim.mode {
            Mode::Shared => self.try_read(want).await,
            Mode::Exclusive => {
                let Some(me) = self.members.join::<L>(lock) else { return self.no_room() };
                let tried = self.try_write(want, me).await;
                if tried.is_err() {
                    self.members.leave(lock, me);
                }
                tried
            }
        }
    }

    /// The same, as a member that was chosen before. The first verb is all there is to it, mostly.
    #[inline(always)]
    pub(super) fn try_as(
        &self,
        want: Want,
        me: Option<Member>,
    ) -> impl Future<Output = Result<ShiftGrant, Denied>> {
        let (true, Mode::Exclusive, Some(me)) = (E::IS_IMMEDIATE, want.claim.mode, me) else {
            return Quick::all(self.try_on(want, me));
        };
        let lock = want.claim.lock;
        let verb = L::change(self.word(lock), enqueue_if_free::<L, R>(me), None);
        match now(&self.ep, verb) {
            Ok(old) if happened(verb, old) => Quick::done(Ok(Self::first_writer(lock, me, Entry::of(old)))),
            Ok(old) if Entry::<L>::of(old).is_taken() => Quick::done(Err(Denied::Busy)),
            Ok(_) => Quick::rest(self.try_on(want.anew(), Some(me))),
            Err(lost) => Quick::done(Err(lost.into())),
        }
    }

    async fn try_on(&self, want: Want, me: Option<Member>) -> Result<ShiftGrant, Denied> {
        match (want.claim.mode, me) {
            (Mode::Shared, _) => self.try_read(want).await,
            (Mode::Exclusive, Some(me)) => self.try_write(want, me).await,
            (Mode::Exclusive, None) => self.no_room(),
        }
    }

    async fn try_write(&self, want: Want, me: Member) -> Result<ShiftGrant, Denied> {
        let lock = want.claim.lock;
        let mut seen = None;
        loop {
            let verb = L::change(self.word(lock), enqueue_if_free::<L, R>(me), seen);
            let old = self.ep.go(verb).await?;
            let entry = Entry::<L>::of(old);
            if entry.is_taken() {
                return Err(Denied::Busy);
            }
            if happened(verb, old) {
                return Ok(Self::first_writer(lock, me, entry));
            }
            if Self::is_spent(entry) {
                return Err(Denied::Exhausted);
            }
            let [low, high] = entry.halves();
            self.ep.mark("shiftlock: writer tries again", &[me.0, low, high]);
            seen = Some(old);
        }
    }

    /// A reader cannot take back that it came (a writer may already count on its release), so it only comes if no
    /// writer is there: a READ, and a CAS that is repeated while other readers come and go.
    async fn try_read(&self, want: Want) -> Result<ShiftGrant, Denied> {
        let word = self.word(want.claim.lock);
        let mut seen = self.ep.go(word.read()).await?;
        loop {
            let entry = Entry::<L>::of(seen);
            if !entry.lets_readers_in() {
                return Err(Denied::Busy);
            }
            if Self::is_spent(entry) {
                return Err(Denied::Exhausted);
            }
            let verb = L::change(word, enter_if_no_writer::<L, R>(entry.rdr_cnt()), Some(seen));
            let old = self.ep.go(verb).await?;
            if happened(verb, old) {
                return Ok(Self::reader(want.claim.lock, Entry::of(old)));
            }
            self.ep.observe(Observation::Retried(want.claim));
            self.ep.mark("shiftlock: reader tries again", &Entry::<L>::of(old).halves());
            seen = old;
        }
    }
}
