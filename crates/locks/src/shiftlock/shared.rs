//! A client for several threads, and what a space needs beyond acquire and release.

use super::acquire::enqueue;
use super::give_up::PendingAcquire;
use super::layout::{Entry, Guard, Layout, Member, Stamp, Wide, happened};
use super::lookup::{HolderLookup, NoLookup};
use super::versioned::VersionedLayout;
use super::{Core, Rules, ShiftGrant, ShiftLock, ShiftParams, Shipped};
use crate::fast::Quick;
use crate::protocol::{Denied, Lost, Patience, Space, Want};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError, MaskedCas, Time};
use std::fmt::Debug;

impl<L: Layout, R: Rules> ShiftLock<L, R> {
    /// A client that several threads can use at once, that asks `lookup` before it resets a lock, and leaves it to its user which
    /// slot an acquisition has.
    pub(crate) fn recorded_client<E: Endpoint, W: HolderLookup>(
        ep: E,
        space: &Space,
        params: &ShiftParams,
        lookup: W,
    ) -> SharedClient<E, L, R, W> {
        let mut core = Core::new(ep, space, params, lookup);
        core.members.leave_to_user();
        SharedClient { core }
    }
}

/// The entry of a lock at one moment. Every grant and every release changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    bits: u128,
    mark: u64,
}

impl Snapshot {
    /// Whether the grant with this [mark](ShiftGrant::mark) can hold the lock: a writer's only if no other has been granted since,
    /// readers' if the lock has not been reset since.
    pub const fn can_be_held_by(&self, mode: Mode, mark: u64) -> bool {
        let Some(granted) = mark.checked_sub(1) else { return false };
        match mode {
            Mode::Exclusive => mark == self.mark,
            Mode::Shared => Stamp(granted).generation() == Stamp(self.mark - 1).generation(),
        }
    }
}

/// A client of ShiftLock that several threads can use at once, where the fabric lets them.
///
/// It keeps no abandoned acquires: a caller that gives up must drive the acquire's future to its end and release the grant
/// (see [`finish_then_release`](crate::abandoned::finish_then_release)). So it knows no deadlines either.
pub struct SharedClient<E, L = Wide, R = Shipped, W = NoLookup> {
    pub(super) core: Core<E, L, R, (), W>,
}

impl<E: Debug, L, R, W> Debug for SharedClient<E, L, R, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedClient").field("ep", &self.core.ep).finish_non_exhaustive()
    }
}

impl<E: Endpoint, L: Layout, R: Rules, W: HolderLookup> Core<E, L, R, (), W> {
    /// READER-ACQUIRE without its fast path, for those who have tried before.
    async fn acquire_shared_slow(&self, want: Want) -> Result<ShiftGrant, Denied> {
        let began = self.last_look();
        self.check_tokens_left(want.claim.lock).await?;
        let enter = self.enter(want.claim.lock);
        let old = self.ep.go(enter).await?;
        self.finish(want, PendingAcquire::Reader(Entry::of(old), happened(enter, old), began)).await
    }

    /// WRITER-ACQUIRE, likewise.
    async fn acquire_exclusive_slow(&self, want: Want, me: Member) -> Result<ShiftGrant, Denied> {
        let lock = want.claim.lock;
        let began = self.last_look();
        let change = L::change(self.word(lock), enqueue::<L, R>(me), None);
        match self.ep.go(change).await {
            Ok(old) => {
                let begun = PendingAcquire::Writer(me, Entry::of(old), happened(change, old), began);
                self.finish(want, begun).await
            }
            Err(lost) => {
                self.members.leave(lock, me);
                Err(lost.into())
            }
        }
    }
}

/// For callers that give every acquisition a slot of its own.
impl<E: Endpoint, L: Layout, R: Rules, W: HolderLookup> SharedClient<E, L, R, W> {
    /// Takes the lock if it is free, as the acquisition `slot`.
    #[inline(always)]
    pub(crate) fn try_as(&self, slot: u8, claim: Claim) -> impl Future<Output = Result<ShiftGrant, Denied>> {
        let want = Want { claim, patience: Patience::Try };
        self.core.try_as(want, Member::new::<L>(self.core.ep.me(), u64::from(slot)))
    }

    /// Queues for the lock as the acquisition `slot`.
    pub(crate) async fn queue_as(&self, slot: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        let want = Want { claim, patience: Patience::Forever };
        if claim.mode == Mode::Shared {
            return self.core.acquire_shared_slow(want).await;
        }
        let me = Member::new::<L>(self.core.ep.me(), u64::from(slot));
        let Some(me) = me else { return self.core.no_room() };
        self.core.acquire_exclusive_slow(want, me).await
    }

    /// Whether a try would find the lock free: one READ.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub(crate) async fn looks_free(&self, claim: Claim) -> Result<bool, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(claim.lock).read()).await?);
        Ok(match claim.mode {
            Mode::Shared => entry.lets_readers_in(),
            Mode::Exclusive => !entry.is_taken(),
        })
    }

    /// Frees a writer's lock if nobody is behind it; else nothing has happened. One verb, where there are masked ones.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    #[inline(always)]
    pub(crate) async fn free_at_once(&self, grant: ShiftGrant) -> Result<bool, FabricError> {
        let free = L::change(self.core.word(grant.lock), Core::<E, L, R, (), W>::freed(grant), None);
        Ok(happened(free, self.core.ep.go(free).await?))
    }

    /// Gives the lock back.
    #[inline(always)]
    pub fn give_back(&self, grant: ShiftGrant) -> impl Future<Output = Result<(), Lost>> {
        if !E::IS_IMMEDIATE {
            return Quick::all(self.give_back_on(grant, None));
        }
        match self.core.try_give_back(grant) {
            Ok(done) => Quick::done(done),
            Err(seen) => Quick::rest(self.give_back_on(grant, seen)),
        }
    }

    async fn give_back_on(&self, grant: ShiftGrant, seen: Option<Entry<L>>) -> Result<(), Lost> {
        match seen {
            Some(seen) => self.core.free_or_pass_on(grant, seen).await,
            None => self.core.give_back(grant).await,
        }
    }
}

impl<E: Endpoint, L: Layout, R: Rules, W: HolderLookup> SharedClient<E, L, R, W> {
    /// Who is asked before a lock is reset.
    #[inline(always)]
    pub fn lookup(&self) -> &W {
        &self.core.lookup
    }

    /// The client's endpoint.
    #[inline(always)]
    pub fn endpoint(&self) -> &E {
        &self.core.ep
    }

    /// Makes sure of a grant that was handed over: false if the lock was reset meanwhile. If true, a client that is about to
    /// reset the lock fails, unless it reads the records again.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub(crate) async fn make_sure(&self, grant: &ShiftGrant) -> Result<bool, FabricError>
    where
        L: VersionedLayout,
    {
        let core = &self.core;
        // A handover that is not counted yet would be missing from what a recovery goes by: the next would have this token.
        let counted = R::GRANTS_ARE_COUNTED && !grant.is_shared();
        let guard =
            if counted { Guard::stamp::<L>(grant.stamp) } else { Guard::generation::<L>(grant.stamp) };
        let mut seen = None;
        loop {
            let bump = L::bump(core.word(grant.lock), guard, seen);
            let old = core.ep.go(bump).await?;
            if happened(bump, old) {
                return Ok(true);
            }
            let entry = Entry::<L>::of(old);
            if entry.generation() != grant.stamp.generation() {
                return Ok(false);
            }
            if counted && entry.rel_cnt() != grant.stamp.rel_cnt() {
                if entry.rel_cnt() > grant.stamp.rel_cnt() {
                    return Ok(false); // reset, so often that the generation is the same
                }
                match core.catches_up(*grant, entry).await {
                    Ok(true) => {}
                    Ok(false) | Err(Lost::Recovered) => return Ok(false),
                    Err(Lost::Fabric(lost)) => return Err(lost),
                }
            }
            let ([low, high], turn) = (entry.halves(), [grant.cons_wrt().into(), grant.epoch().into()]);
            let locals = [low, high, grant.stamp.0, grant.member().0, turn[0], turn[1], core.last_look().0];
            core.ep.mark("shiftlock: bumps again", &locals);
            seen = Some(old);
        }
    }

    /// Whether the lock has not been reset since `grant`: one READ.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn holds(&self, grant: &ShiftGrant) -> Result<bool, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(grant.lock).read()).await?);
        if grant.is_shared() {
            return Ok(entry.generation() == grant.stamp.generation());
        }
        // Only its holder changes RelCnt, or a client that takes the lock away.
        Ok(entry.stamp() == grant.stamp)
    }

    /// Resets `lock` if it is held or queued for, and only by the dead: what a waiter does after its timer, for locks without
    /// waiters. `true` if the lock is free now.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn recover(&self, lock: u64) -> Result<bool, FabricError> {
        let core = &self.core;
        let entry = Entry::<L>::of(core.ep.go(core.word(lock).read()).await?);
        if entry.tail() == Member::NOBODY && entry.rdr_cnt() == 0 {
            return Ok(true);
        }
        let mut timer = core.stall_timer(entry.stamp(), Time(0)).await;
        let claim = Claim { lock, mode: Mode::Exclusive, start: 0, end: u64::MAX };
        core.reset_if_dead(claim, &mut timer, Member::NOBODY).await?;
        Ok(timer.by_me)
    }

    /// What the entry of `lock` says, for listings.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn snapshot(&self, lock: u64) -> Result<Snapshot, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(lock).read()).await?);
        Ok(Snapshot { bits: entry.bits, mark: entry.stamp().mark() })
    }

    /// How often `lock` was reset, modulo the width of its generation.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn generation(&self, lock: u64) -> Result<u64, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(lock).read()).await?);
        Ok(entry.generation())
    }

    /// How often `lock` was given back, or reset.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn releases(&self, lock: u64) -> Result<u64, FabricError> {
        let entry = Entry::<L>::of(self.core.ep.go(self.core.word(lock).read()).await?);
        Ok(entry.rel_cnt())
    }

    /// The largest token that was given out for any of `locks`, if they are free, have tokens left and stay so meanwhile:
    /// from now on each of them gives out larger ones.
    ///
    /// # Errors
    /// If the locks' memory cannot be reached.
    pub async fn level_tokens<const N: usize>(&self, locks: [u64; N]) -> Result<Option<u64>, FabricError> {
        let core = &self.core;
        let mut entries = [None; N];
        for (lock, entry) in locks.iter().zip(&mut entries) {
            let seen = Entry::<L>::of(core.ep.go(core.word(*lock).read()).await?);
            *entry = (!seen.is_taken() && !seen.is_spent()).then_some((*lock, seen));
        }
        // The last holder of a free lock, or its recovery, raised RelCnt to its token.
        let last = entries.iter().flatten().map(|(_, entry)| entry.rel_cnt()).max();
        for entry in entries {
            let (Some((lock, seen)), Some(last)) = (entry, last) else { return Ok(None) };
            if seen.rel_cnt() == last {
                continue;
            }
            let raise = MaskedCas {
                compare: seen.bits,
                compare_mask: u128::MAX,
                swap: L::put(Stamp::new(last, seen.generation())),
                swap_mask: L::STAMP,
            };
            let verb = L::change(core.word(lock), raise, Some(seen.word()));
            if !happened(verb, core.ep.go(verb).await?) {
                return Ok(None);
            }
        }
        Ok(last)
    }

    /// Takes `lock` away from the holder of the grant with this [mark](ShiftGrant::mark), as a recovery would. `false`: that
    /// grant is over.
    ///
    /// A shared lock is taken from all who share it; any of their grants names it.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn take_away(&self, lock: u64, mode: Mode, mark: u64) -> Result<bool, FabricError> {
        let claim = Claim { lock, mode, start: 0, end: u64::MAX };
        let Some(granted) = mark.checked_sub(1).map(Stamp) else { return Ok(false) };
        loop {
            let entry = Entry::<L>::of(self.core.ep.go(self.core.word(lock).read()).await?);
            let holds = match mode {
                Mode::Exclusive => entry.tail() != Member::NOBODY && entry.stamp() == granted,
                // Readers that left since have raised the count.
                Mode::Shared => {
                    let same = entry.generation() == granted.generation();
                    same && entry.rdr_cnt() > 0 && granted.rel_cnt() <= entry.rel_cnt()
                }
            };
            if !holds || entry.after_recovery().is_none() {
                return Ok(false);
            }
            if self.core.reset_what_was_seen(claim, entry, 0).await?.is_some() {
                return Ok(true);
            }
        }
    }
}
