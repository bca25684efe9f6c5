//! Changing what is held: a reader becomes the writer, a writer becomes a reader, and nobody comes in between.
//!
//! Both swap the entry exactly as it was read for one in which their client holds the lock in the other mode. For locks whose
//! holders are written down ([`lookup`](super::lookup)).
//!
//! **Upgrade.** A reader is alone if
//!
//! - the entry says so: RdrCnt is one, and no writer is queued. Then it becomes the writer as if it had left and queued at once;
//! - or the holder records say so: nobody else who is alive holds the lock. Others that are counted are dead, or wait, in
//!   whichever mode. Then the entry is reset, as by a recovery, but for this client as the writer. Why that is safe is why a recovery
//!   is: a holder that the look did not find has changed the entry since it was read. Those who wait start again, behind it.
//!
//! A reader that waits for the others sets a bit that keeps readers out; a queued writer does that anyway. No exclusion rests on
//! the bit, for an upgrade compares all of the entry. What rests on it is that of two readers which would be alone the second is
//! refused: only one finds it unset. It is set with a new version, so that two that find it set by the dead are told apart, too.
//!
//! **Downgrade.** The last writer of the queue frees the lock and comes in as a reader, at once. One with a writer behind changes
//! the mode, as after a row of writers, and is one of the readers that the next writer waits for. It learns who is next before
//! it does, while it still is the writer: if the next is dead, the lock is reset but for this client as a reader.
//!
//! Each counts as a release, so the token rises.

use super::layout::{Entry, Layout, Member, Stamp};
use super::lookup::HolderLookup;
use super::messages::{Pass, Successor};
use super::shared::SharedClient;
use super::versioned::VersionedLayout;
use super::{Core, Rules, ShiftGrant};
use crate::protocol::{Lost, Want};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, Time, Value};

/// What came of an attempt to be alone.
pub(crate) enum Attempt<L> {
    /// This client is the writer.
    Alone(ShiftGrant),
    /// Others read; the entry as it was. If the attempt waits, readers are kept out.
    Shared(Entry<L>),
    /// Another reader waits for the same.
    Barred,
    /// The lock has given out all its tokens.
    Exhausted,
    /// The lock was taken away.
    Lost,
}

/// The first wait for a change before the records are looked at again: a reader leaves the entry before it clears its record. Each
/// further wait is twice as long, up to a waiter's: one of the other readers may be dead.
const FIRST_LOOK_NS: u64 = 100_000;

impl<E: Endpoint, L: VersionedLayout, R: Rules, W: HolderLookup> SharedClient<E, L, R, W> {
    /// Makes the reader of `grant` the writer, as the acquisition `slot`, if it is alone. If not, and it `waits`, readers are
    /// kept out from then on, which it knows by `bars`.
    pub(crate) async fn try_alone(
        &self,
        slot: u8,
        grant: &ShiftGrant,
        waits: bool,
        bars: &mut bool,
    ) -> Result<Attempt<L>, FabricError> {
        let (core, lock) = (&self.core, grant.lock);
        let Some(me) = Member::new::<L>(core.ep.me(), u64::from(slot)) else { return Ok(Attempt::Lost) };
        let mut seen = Entry::<L>::of(core.ep.go(core.word(lock).read()).await?);
        loop {
            if seen.generation() != grant.stamp.generation() {
                return Ok(Attempt::Lost);
            }
            if Core::<E, L, R, (), W>::is_spent(seen) {
                return Ok(Attempt::Exhausted);
            }
            let is_barred = R::SECOND_UPGRADE_IS_REFUSED && seen.is_upgrading() && !*bars;
            if is_barred && core.lookup.is_upgrading(lock, me).await? {
                return Ok(Attempt::Barred);
            }
            let is_alone = seen.rdr_cnt() == 1 || !R::UPGRADES_WAIT_FOR_READERS;
            let swapped = if seen.tail() == Member::NOBODY && is_alone {
                let stamp = seen.stamp().plus(u64::from(R::UPGRADES_COUNT));
                let swapped = core.exchange(lock, seen, alone(seen, me, stamp)).await?;
                swapped.map(|()| Attempt::Alone(ShiftGrant::writer(lock, stamp, me, 0, seen.epoch())))
            } else if !core.lookup.is_held(lock, me).await? {
                let tail = L::TAIL.put(u128::from(me.0));
                match core.reset_for_upgrade(lock, seen, tail).await? {
                    Some(stamp) => Ok(Attempt::Alone(ShiftGrant::writer(lock, stamp, me, 0, false))),
                    None if seen.after_recovery().is_none() => return Ok(Attempt::Exhausted),
                    None => Err(Entry::of(core.ep.go(core.word(lock).read()).await?)),
                }
            } else if waits && !(*bars && seen.is_upgrading()) {
                let bits = with_next_version(seen) | L::UPGRADING;
                let swapped = core.exchange(lock, seen, bits).await?;
                *bars |= swapped.is_ok();
                swapped.map(|()| Attempt::Shared(Entry::of(L::Word::narrow(bits))))
            } else {
                return Ok(Attempt::Shared(seen));
            };
            match swapped {
                Ok(attempt) => return Ok(attempt),
                Err(entry) => seen = entry,
            }
            let [low, high] = seen.halves();
            core.ep.mark("shiftlock: upgrades again", &[me.0, low, high, grant.stamp.0, u64::from(*bars)]);
        }
    }

    /// Waits until the entry is not as `seen` any more; `false` if it is time to look at the records again, after so many looks
    /// at this entry.
    pub(crate) async fn until_changed(
        &self,
        lock: u64,
        seen: Entry<L>,
        looked: u32,
    ) -> Result<bool, FabricError> {
        let core = &self.core;
        let look_again = match core.stall_ns() {
            0 => Deadline::Never,
            longest => Deadline::At(core.look().await.plus(longest.min(FIRST_LOOK_NS << looked.min(16)))),
        };
        let changed = Cond::Ne { mask: u128::MAX, value: seen.bits };
        Ok(core.ep.wait_until(core.word(lock).until(changed).by(look_again)).await?.met)
    }

    /// The reader of `grant`, which kept readers out, waits no more. `false` if the lock was taken away.
    pub(crate) async fn let_readers_in(&self, grant: &ShiftGrant) -> Result<bool, FabricError> {
        let core = &self.core;
        let mut seen = Entry::<L>::of(core.ep.go(core.word(grant.lock).read()).await?);
        loop {
            if seen.generation() != grant.stamp.generation() {
                return Ok(false);
            }
            if !seen.is_upgrading() {
                return Ok(true);
            }
            match core.exchange(grant.lock, seen, seen.bits & !L::UPGRADING).await? {
                Ok(()) => return Ok(true),
                Err(entry) => seen = entry,
            }
            let [low, high] = seen.halves();
            core.ep.mark("shiftlock: lets readers in again", &[low, high, grant.stamp.0]);
        }
    }

    /// Makes the writer of `grant` a reader.
    ///
    /// # Errors
    /// If the lock was lost, or its memory cannot be reached.
    pub(crate) async fn downgrade(&self, grant: ShiftGrant) -> Result<ShiftGrant, Lost> {
        let core = &self.core;
        let (lock, me, stamp) = (grant.lock, grant.member(), grant.stamp.plus(1));
        let mut next = None;
        let mut seen = Entry::<L>::of(core.ep.go(core.word(lock).read()).await?);
        loop {
            if seen.stamp() != grant.stamp {
                return Err(Lost::Recovered);
            }
            if seen.tail() != me && next.is_none() {
                match core.next_or_reset(grant).await? {
                    Ok(member) => next = Some(member),
                    Err(stamp) => return Ok(ShiftGrant::reader(lock, stamp)),
                }
            }
            // Line 17, and one reader more.
            let readers = seen.rdr_cnt() + u64::from(R::DOWNGRADED_ARE_COUNTED);
            let fields = L::STAMP | L::RDR_CNT.mask() | if next.is_none() { L::TAIL.mask() } else { 0 };
            let bits = seen.bits & !fields | L::put(stamp) | L::RDR_CNT.put(u128::from(readers));
            match core.exchange(lock, seen, bits ^ L::EPOCH.mask()).await? {
                Ok(()) => {
                    if let Some(next) = next.filter(|_| R::DOWNGRADES_TELL) {
                        let stamp = stamp.plus(readers);
                        let pass = Pass { stamp, cons_wrt: 0, epoch: !seen.epoch(), after_readers: true };
                        core.tolerate(core.ep.send(next.peer::<L>(), pass.to(lock, next)).await)?;
                    }
                    return Ok(ShiftGrant::reader(lock, stamp));
                }
                Err(entry) => seen = entry,
            }
            let [low, high] = seen.halves();
            let (epoch, next) = (u64::from(grant.epoch()), next.map_or(0, |next| next.0));
            core.ep.mark("shiftlock: downgrades again", &[low, high, grant.stamp.0, me.0, epoch, next]);
        }
    }
}

impl<E: Endpoint, L: VersionedLayout, R: Rules, W: HolderLookup> Core<E, L, R, (), W> {
    /// As [`Core::reset_what_was_seen`].
    async fn reset_for_upgrade(
        &self,
        lock: u64,
        seen: Entry<L>,
        left: u128,
    ) -> Result<Option<Stamp>, FabricError> {
        let claim = Want::exclusive(lock).claim;
        if R::UPGRADE_COMPARES_ALL {
            return self.reset_what_was_seen(claim, seen, left).await;
        }
        let now = Entry::<L>::of(self.ep.go(self.word(lock).read()).await?);
        self.reset_what_was_seen(claim, now, left).await
    }

    /// The writer behind the holder of `grant`. If it does not come forward and nobody else who is alive has the lock, that is
    /// reset but for this client as a reader: the stamp it has then.
    async fn next_or_reset(&self, grant: ShiftGrant) -> Result<Result<Member, Stamp>, Lost> {
        let (lock, me) = (grant.lock, grant.member());
        let mut timer = self.stall_timer(grant.stamp, Time(0)).await;
        loop {
            let said = self.ep.recv_by(self.give_up(&timer), |_, message| Successor::read(lock, me, message));
            match said.await {
                Some(next) if next.generation == grant.stamp.generation() => return Ok(Ok(next.member)),
                Some(_) => {} // from before a recovery
                None => {
                    let seen = Entry::<L>::of(self.ep.go(self.word(lock).read()).await?);
                    if seen.stamp() != grant.stamp {
                        return Err(Lost::Recovered);
                    }
                    let wanted = self.wanted(lock, &timer, seen, me).await?;
                    if wanted.is_none() {
                        let (claim, one) = (Want::shared(lock).claim, L::RDR_CNT.put(1));
                        if let Some(stamp) = self.reset_what_was_seen(claim, seen, one).await? {
                            return Ok(Err(stamp));
                        }
                    }
                    self.restart(&mut timer, seen, wanted).await;
                    let epoch = u64::from(grant.epoch());
                    self.again("shiftlock: no writer behind yet", &[grant.stamp.0, epoch, me.0]);
                }
            }
        }
    }
}

/// The entry of which this reader was the only one, when it is the writer.
fn alone<L: Layout>(seen: Entry<L>, me: Member, stamp: Stamp) -> u128 {
    let fields = L::TAIL.mask() | L::RDR_CNT.mask() | L::STAMP | L::UPGRADING;
    let others = u128::from(seen.rdr_cnt()) - 1;
    seen.bits & !fields | L::TAIL.put(u128::from(me.0)) | L::RDR_CNT.put(others) | L::put(stamp)
}

/// The entry's bits with the next version.
fn with_next_version<L: VersionedLayout>(seen: Entry<L>) -> u128 {
    seen.bits & !L::VERSION.mask() | L::VERSION.put(L::VERSION.get(seen.bits) + 1)
}
