//! Range locks by holder records: exact, over all of 0..2^64, shared and exclusive, first come first served.
//!
//! The records are the lock. A client that wants a range takes the name's *gate* (a keyed lock, held for a moment), reads the
//! records of all clients that are alive, and writes its own as held if none of them is in its way; then it gives the gate
//! back. If one is in its way it writes that it waits, since which turn, gives the gate back, and looks again when the
//! name's count of changes has risen. A request that waits since an earlier turn is in the way, too: nobody starves.
//!
//! A dead client's records do not count, so there is nothing to recover; and the gate is recovered as any keyed lock. Why it
//! is safe, if any client is killed or stopped:
//!
//! 1. **Written inside.** A record becomes held while its client holds the gate, and only a client that is evicted loses
//!    that. So of two requests in each other's way one looks after the other has written.
//! 2. **Confirmed after granted**, as for the gate itself: a client may be evicted between its look and its last step, and
//!    then its record counts no more. It finds that out before it believes that the range is its.
//!
//! The gate's token, which rises from grant to grant, is the range's.
//!
//! A [semaphore](super::record::is_semaphore) is the same with another question behind the gate: not who overlaps, but whether
//! the permits of those who hold some, and are alive, leave enough. Who wants any waits behind those who waited before.

use super::client::{HolderClient, Holding, Recorder};
use super::indexed::GateHold;
use super::range_changes::Barred;
use super::record::State;
use super::space::RecordRules;
use crate::protocol::{Denied, Grant, Lost};
use crate::shiftlock::versioned::VersionedLayout;
use crate::shiftlock::{Rules, ShiftGrant};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, Word64};
use std::pin::pin;
use std::task::Poll;

/// A recorder of ranges. [`HolderTable`](super::HolderTable) is, where the space has any.
pub trait RangeRecorder: Recorder {
    /// Fills in a record of this client's; `None` clears it.
    fn write_range(
        &self,
        record: u8,
        holding: Option<Holding>,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// Whether a record of this client's still says that the range is held.
    fn is_range_held(&self, record: u8, claim: Claim) -> impl Future<Output = Result<bool, FabricError>>;

    /// Whether another record of a client that is alive is [in the way](Holding::is_in_the_way); of a
    /// [semaphore](super::record::is_semaphore), whether too few permits are left. Of the holder of the gate.
    ///
    /// # Errors
    /// [`Denied::BadRequest`] if another client uses the semaphore with another limit.
    fn is_blocked(
        &self,
        record: u8,
        claim: Claim,
        turn: u64,
        inside: GateHold,
    ) -> impl Future<Output = Result<bool, Denied>>;

    /// What bars the upgrade of a range of this client's, in the records of clients that are alive. Likewise.
    fn bars_upgrade(
        &self,
        record: u8,
        claim: Claim,
        inside: GateHold,
    ) -> impl Future<Output = Result<Barred, FabricError>>;

    /// Enters into the [index](super::index_layout), if the lock has one, what a record of this client's is about to say. Likewise.
    fn enter(
        &self,
        record: u8,
        claim: Claim,
        inside: GateHold,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// Another lock than `lock`, whose index has the entry of a record of this client's that is free.
    fn entered_elsewhere(&self, record: u8, lock: u64) -> Option<u64>;

    /// Takes that entry out, by the gate of the other lock.
    fn take_out(
        &self,
        record: u8,
        other: u64,
        inside: GateHold,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// Swaps state and mode of a record of this client's. `false` if they are not what they should be: it was revoked.
    fn swap_range(
        &self,
        record: u8,
        from: (State, Mode),
        to: (State, Mode),
    ) -> impl Future<Output = Result<bool, FabricError>>;

    /// Makes the range of a record of this client's smaller: it starts later, or ends earlier.
    fn narrow_range(&self, record: u8, to: Claim) -> impl Future<Output = Result<(), FabricError>>;

    /// The keyed lock that is the gate of `lock`.
    fn gate(&self, lock: u64) -> u64;

    /// The word that counts changes of `lock`.
    fn changes(&self, lock: u64) -> Word64;

    /// How long a waiter that has looked so many times waits before it looks again whether the clients in its way are alive.
    /// `None`: until something changes.
    fn patience_ns(&self, looked: u32) -> Option<u64>;
}

/// The two records that a request takes: one for the gate, while it looks, and one for the range.
#[derive(Clone, Copy, Debug)]
pub struct RangeRecords {
    /// For the gate.
    pub gate: u8,
    /// For the range.
    pub range: u8,
}

/// What `future` brings; `None` if `given_up` is ready first.
pub(crate) async fn unless<T>(
    given_up: impl Future<Output = ()>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let (mut given_up, mut future) = (pin!(given_up), pin!(future));
    std::future::poll_fn(|cx| match given_up.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => future.as_mut().poll(cx).map(Some),
    })
    .await
}

impl<E: Endpoint, B: RangeRecorder, R: Rules + RecordRules, L: VersionedLayout> HolderClient<E, B, R, L> {
    /// Takes the range if nobody is in its way. Waits for the gate, for as long as others look.
    ///
    /// # Errors
    /// [`Denied::Busy`] if another client is; the records are free again.
    pub async fn try_range(&self, records: RangeRecords, claim: Claim) -> Result<u64, Denied> {
        self.leave_other_index(records.gate, records.range, claim).await;
        let looked = self.look(records, claim, &mut None).await;
        self.tried(records, claim, looked).await
    }

    /// Takes the range if nobody is in its way, without a place in the queue for the gate: a waiter there needs to be polled.
    /// `None` if others look just now, for longer than a moment; nothing has happened.
    #[inline(always)]
    pub async fn try_range_fast(&self, records: RangeRecords, claim: Claim) -> Option<Result<u64, Denied>> {
        self.leave_other_index(records.gate, records.range, claim).await;
        let looked = match self.try_take_gate(records, claim).await {
            Ok(inside) => self.look_inside(records, claim, &mut None, inside).await,
            Err(Denied::Busy) => return None,
            Err(denied) => Err(denied),
        };
        Some(self.tried(records, claim, looked).await)
    }

    /// What came of a try.
    #[inline(always)]
    async fn tried(
        &self,
        records: RangeRecords,
        claim: Claim,
        looked: Result<Option<u64>, Denied>,
    ) -> Result<u64, Denied> {
        match looked {
            Ok(Some(token)) => Ok(token),
            Ok(None) => Err(Denied::Busy), // nothing is written
            Err(denied) => self.leave(records, claim, denied).await,
        }
    }

    /// Takes the range, however long it takes. Returns its token.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached or this client is evicted; the records are free again.
    pub async fn take_range(&self, records: RangeRecords, claim: Claim) -> Result<u64, Denied> {
        self.take_range_unless(records, claim, std::future::pending).await
    }

    /// Takes the range, unless it is `given_up`, which is asked whenever it waits for others: then the request leaves. While it
    /// queues for the gate it cannot.
    ///
    /// # Errors
    /// [`Denied::TimedOut`] if it was given up; else as [`take_range`](Self::take_range). The records are free again.
    pub async fn take_range_unless<G: Future<Output = ()>>(
        &self,
        records: RangeRecords,
        claim: Claim,
        given_up: impl Fn() -> G,
    ) -> Result<u64, Denied> {
        self.leave_other_index(records.gate, records.range, claim).await;
        match self.wait_for_range(records, claim, given_up).await {
            Ok(token) => Ok(token),
            Err(denied) => self.leave(records, claim, denied).await,
        }
    }

    async fn wait_for_range<G: Future<Output = ()>>(
        &self,
        records: RangeRecords,
        claim: Claim,
        given_up: impl Fn() -> G,
    ) -> Result<u64, Denied> {
        let (ep, changes) = (self.lock().endpoint(), self.recorder().changes(claim.lock));
        let (mut turn, mut looked) = (Some(0), 0);
        loop {
            // Before the look: whatever changes after it ends the wait.
            let mut seen = ep.go(changes.read()).await?;
            if let Some(token) = self.look(records, claim, &mut turn).await? {
                return Ok(token);
            }
            if !R::CHANGES_ARE_READ_FIRST {
                seen = ep.go(changes.read()).await?;
            }
            looked += 1;
            let look_again = match self.recorder().patience_ns(looked) {
                Some(ns) => Deadline::At(ep.now().await.plus(ns)),
                None => Deadline::Never,
            };
            let changed = Cond::Ne { mask: u128::from(u64::MAX), value: u128::from(seen) };
            let changed = ep.wait_until(changes.until(changed).by(look_again));
            unless(given_up(), changed).await.ok_or(Denied::TimedOut)??;
            ep.mark("holders: looks again for a range", &[turn.unwrap_or_default(), u64::from(looked)]);
        }
    }

    /// Takes the range if nobody is in its way: one scan of all records, under the gate. A request that would wait gets its
    /// turn with its first look.
    async fn look(
        &self,
        records: RangeRecords,
        claim: Claim,
        turn: &mut Option<u64>,
    ) -> Result<Option<u64>, Denied> {
        let inside = self.take_gate(records, claim).await?;
        self.look_inside(records, claim, turn, inside).await
    }

    /// Takes the gate, however many look before.
    pub(super) async fn take_gate(&self, records: RangeRecords, claim: Claim) -> Result<ShiftGrant, Denied> {
        match self.try_take_gate(records, claim).await {
            Err(Denied::Busy) => self.take_queued(records.gate, self.gate(claim)).await,
            inside => inside,
        }
    }

    /// The gate before the range, as a claim.
    fn gate(&self, claim: Claim) -> Claim {
        Claim { lock: self.recorder().gate(claim.lock), mode: Mode::Exclusive, start: 0, end: u64::MAX }
    }

    /// Takes the gate if it is free, or becomes so within a moment.
    #[inline(always)]
    async fn try_take_gate(&self, records: RangeRecords, claim: Claim) -> Result<ShiftGrant, Denied> {
        let gate = self.gate(claim);
        match self.try_take(records.gate, gate).await {
            Err(Denied::Busy) => self.try_take_spinning(records.gate, gate).await,
            inside => inside,
        }
    }

    /// The scan itself, by the holder of the gate, which it gives back.
    #[inline(always)]
    async fn look_inside(
        &self,
        records: RangeRecords,
        claim: Claim,
        turn: &mut Option<u64>,
        inside: ShiftGrant,
    ) -> Result<Option<u64>, Denied> {
        let token = inside.token().unwrap_or_default();
        let free = self.write_inside(records, claim, turn, (token, GateHold::new(&inside))).await;
        let given = self.give_gate_back(records.gate, inside).await;
        let free = free?;
        if !R::RANGES_ARE_ENTERED_INSIDE {
            self.recorder().enter(records.range, claim, GateHold::new(&inside)).await?;
        }
        if !R::RANGES_ARE_WRITTEN_INSIDE && free {
            self.recorder()
                .write_range(records.range, Some(Holding { state: State::Held, claim, turn: 0 }))
                .await?;
        }
        match (free, given) {
            (true, Ok(())) => {
                if R::GRANTED_ARE_ALIVE && R::CONFIRMED_AFTER {
                    self.recorder().granted(records.range, token).await?;
                }
                Ok(Some(token))
            }
            (false, Ok(())) => Ok(None),
            // The gate was lost meanwhile: others may have looked and seen nothing of this. Look again.
            (_, Err(Lost::Recovered)) => {
                let waits = turn.map(|turn| Holding { state: State::Waiting, claim, turn });
                self.recorder().write_range(records.range, waits).await?;
                Ok(None)
            }
            (_, Err(Lost::Fabric(error))) => Err(error.into()),
        }
    }

    /// Rule 1. Says whether the range is free.
    async fn write_inside(
        &self,
        records: RangeRecords,
        claim: Claim,
        turn: &mut Option<u64>,
        (token, inside): (u64, GateHold),
    ) -> Result<bool, Denied> {
        let since = turn.unwrap_or_default();
        let blocked = self.recorder().is_blocked(records.range, claim, since, inside).await?;
        if blocked && turn.is_none() {
            return Ok(false); // it only tries
        }
        if R::RANGES_ARE_ENTERED_INSIDE {
            self.recorder().enter(records.range, claim, inside).await?;
        }
        let state = if blocked { State::Waiting } else { State::Held };
        match turn {
            Some(turn @ 0) if blocked => *turn = token,
            _ if blocked => return Ok(false), // it waits already, and has written that
            _ => {}
        }
        if blocked || R::RANGES_ARE_WRITTEN_INSIDE {
            let turn = turn.unwrap_or_default();
            self.recorder().write_range(records.range, Some(Holding { state, claim, turn })).await?;
        }
        Ok(!blocked)
    }

    /// A record of this client's may have been of another lock before, and its entry still in the index there. It comes out by
    /// that lock's gate, if that is to be had at once; if not, the index at hand is given up where it is needed.
    #[inline(always)]
    pub(super) async fn leave_other_index(&self, gate: u8, range: u8, claim: Claim) {
        if let Some(other) = self.recorder().entered_elsewhere(range, claim.lock) {
            self.leave_index_of(RangeRecords { gate, range }, Claim { lock: other, ..claim }).await;
        }
    }

    /// What goes wrong here goes wrong with the next verb, too.
    #[cold]
    async fn leave_index_of(&self, records: RangeRecords, other: Claim) {
        let Ok(inside) = self.try_take_gate(records, other).await else { return };
        let _ = self.recorder().take_out(records.range, other.lock, GateHold::new(&inside)).await;
        let _ = self.give_gate_back(records.gate, inside).await;
    }

    pub(super) async fn give_gate_back(&self, record: u8, inside: ShiftGrant) -> Result<(), Lost> {
        match self.try_give_back(record, inside).await {
            Some(given) => given,
            None => self.give_back(record, inside).await,
        }
    }

    /// Gives up: the records no longer stand in another's way. A fabric that failed may have left the gate taken: without a
    /// record, others reset it.
    async fn leave(&self, records: RangeRecords, claim: Claim, denied: Denied) -> Result<u64, Denied> {
        if matches!(denied, Denied::Fabric(_)) {
            self.recorder().write(records.gate, None).await?;
        }
        if R::LEAVING_CLEARS {
            self.recorder().write_range(records.range, None).await?;
        }
        self.tell(claim.lock).await?;
        Err(denied)
    }

    /// Tells those who wait that something has changed.
    pub(super) async fn tell(&self, lock: u64) -> Result<(), FabricError> {
        self.lock().endpoint().go(self.recorder().changes(lock).fetch_add(1)).await.map(drop)
    }

    /// Gives the range back.
    ///
    /// # Errors
    /// If it had been lost, or its memory cannot be reached.
    pub async fn give_range_back(&self, record: u8, claim: Claim) -> Result<(), Lost> {
        let held = self.recorder().is_range_held(record, claim).await?;
        self.recorder().write_range(record, None).await?;
        self.tell(claim.lock).await?;
        if held { Ok(()) } else { Err(Lost::Recovered) }
    }
}
