//! Taking and giving back a lock with holder records: the order in which record, entry and liveness are written and read.

use super::record::State;
use super::space::RecordRules;
use crate::protocol::{Denied, Lost, Space};
use crate::shiftlock::fast_grant::FastGrant;
use crate::shiftlock::lookup::HolderLookup;
use crate::shiftlock::shared::SharedClient;
use crate::shiftlock::versioned::{Versioned, VersionedLayout};
use crate::shiftlock::{Rules, ShiftGrant, ShiftLock, ShiftParams, Shipped};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError};

/// What is written into a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What its client is doing.
    pub state: State,
    /// With what.
    pub claim: Claim,
    /// Of a range: since which turn it waits; 0: not yet.
    pub turn: u64,
}

impl Holding {
    /// A keyed lock's.
    #[inline(always)]
    pub const fn keyed(state: State, claim: Claim) -> Self {
        Self { state, claim, turn: 0 }
    }

    /// Whether this, of a client that is alive, is in the way of a request for the range `wanted` since `turn`.
    #[inline(always)]
    pub const fn is_in_the_way(&self, wanted: &Claim, turn: u64) -> bool {
        let claim = match self.state {
            // As if it were alone already, or those who come would keep it waiting for ever.
            State::Upgrading => Claim { mode: Mode::Exclusive, ..self.claim },
            _ => self.claim,
        };
        self.is_before(turn) && claim.conflicts(wanted)
    }

    /// Whether this is held, or was waited for before a request that waits since `turn`.
    #[inline(always)]
    pub const fn is_before(&self, turn: u64) -> bool {
        match self.state {
            State::Held | State::Upgrading => true,
            State::Waiting => self.turn != 0 && (turn == 0 || self.turn < turn),
            State::Taking | State::Revoked => false,
        }
    }
}

/// Writes down what one client does, where others can read it. [`HolderTable`](super::HolderTable) does.
pub trait Recorder: HolderLookup {
    /// Fills in a record of this client's; `None` clears it. Others see it before they see anything this client does later.
    fn write(&self, record: u8, holding: Option<Holding>) -> impl Future<Output = Result<(), FabricError>>;

    /// After the verb that brought the lock: adds the grant's [mark](ShiftGrant::mark) to the record, for others to read, and
    /// looks whether this client is still in. An error if it was evicted. Nobody evicts it any more for what it did before
    /// this (slept, mostly).
    fn granted(&self, record: u8, mark: u64) -> impl Future<Output = Result<(), FabricError>>;

    /// Changes what a record of this client's says that it does with its keyed lock. It is in use for that all the while.
    fn restate(
        &self,
        record: u8,
        state: State,
        claim: Claim,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// How often a client looks whether a lock that is taken becomes free before it queues.
    fn spins(&self) -> u32 {
        0
    }
}

/// A recorder in memory that this CPU reaches by itself: nothing has to be waited for.
pub trait DirectRecorder: Recorder {
    /// [`Recorder::write`].
    ///
    /// # Errors
    /// If this client was evicted.
    fn write_now(&self, record: u8, holding: Option<Holding>) -> Result<(), FabricError>;

    /// [`Recorder::granted`].
    ///
    /// # Errors
    /// If this client was evicted.
    fn granted_now(&self, record: u8, mark: u64) -> Result<(), FabricError>;
}

/// Taking a lock that is free, step by step: once for spaces where each step has to be waited for, as in the explorer, and
/// once for those where none has. A future, however short, costs more than all of these steps.
macro_rules! try_in_steps {
    ($client:ident, $record:ident, $claim:ident: $write:ident $granted:ident $try:ident $confirm:ident $clear:ident $(, .$await:tt)?) => {{
        let holding = Holding::keyed(State::Taking, $claim);
        if R::RECORDS_COME_FIRST {
            $client.recorder().$write($record, Some(holding))$(.$await)??; // rule 1
        }
        if !R::CONFIRMED_AFTER {
            $client.recorder().$granted($record, 0)$(.$await)??;
        }
        match $client.lock.$try(Self::slot($record), $claim)$(.$await)? {
            Ok(grant) => {
                if !R::RECORDS_COME_FIRST {
                    $client.recorder().$write($record, Some(holding))$(.$await)??;
                }
                $client.$confirm($record, grant)$(.$await)? // rule 3
            }
            Err(denied) => $client.$clear($record, denied)$(.$await)?,
        }
    }};
}

/// A client of locks with holder records. A record is for one acquisition at a time; which ones are free is its user's
/// business.
///
/// An acquisition's slot in the queue is its record's number, or the low bits of that where the entry has no room for more:
/// then records that are in use for one lock must differ in those.
#[derive(Debug)]
pub struct HolderClient<E, B, R = Shipped, L = Versioned> {
    lock: SharedClient<E, L, R, B>,
}

impl<E: Endpoint, B: Recorder, R: Rules + RecordRules, L: VersionedLayout> HolderClient<E, B, R, L> {
    /// A client that talks through `ep` and writes into `recorder`.
    pub fn new(ep: E, space: &Space, params: &ShiftParams, recorder: B) -> Self {
        Self { lock: ShiftLock::<L, R>::recorded_client(ep, space, params, recorder) }
    }

    /// The slot of an acquisition by `record`.
    #[inline(always)]
    pub const fn slot(record: u8) -> u8 {
        record & L::SLOT.max() as u8
    }

    /// The lock below: for looking at grants, recovering, taking away.
    #[inline(always)]
    pub fn lock(&self) -> &SharedClient<E, L, R, B> {
        &self.lock
    }

    /// What it writes its records with.
    #[inline(always)]
    pub fn recorder(&self) -> &B {
        self.lock.lookup()
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// [`Denied::Busy`] if it is not; the record is free again.
    #[inline(always)]
    pub async fn try_take(&self, record: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        try_in_steps!(self, record, claim: write granted try_as confirm clear, .await)
    }

    /// After a try that found the lock busy: takes it if it is the dead who have it. Who only tries would never outwait them.
    ///
    /// # Errors
    /// [`Denied::Busy`] if a live client has it.
    pub async fn try_past_the_dead(&self, record: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        if self.lock.recover(claim.lock).await? {
            self.try_take(record, claim).await
        } else {
            Err(Denied::Busy)
        }
    }

    /// Takes the lock, however long it takes.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached or this client is evicted; the record is free again.
    pub async fn take(&self, record: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        match self.try_take_spinning(record, claim).await {
            Err(Denied::Busy) => self.take_queued(record, claim).await,
            taken => taken,
        }
    }

    /// Takes the lock if it becomes free within a moment. This overtakes no queued waiter: as long as the queue has one, the
    /// lock is never free.
    pub(super) async fn try_take_spinning(&self, record: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        for _ in 0..self.recorder().spins() {
            std::hint::spin_loop();
            if self.lock.looks_free(claim).await? {
                match self.try_take(record, claim).await {
                    Err(Denied::Busy) => {}
                    taken => return taken,
                }
            }
        }
        Err(Denied::Busy)
    }

    pub(super) async fn take_queued(&self, record: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        loop {
            self.recorder().write(record, Some(Holding::keyed(State::Waiting, claim))).await?;
            let grant = match self.lock.queue_as(Self::slot(record), claim).await {
                Ok(grant) => grant,
                Err(denied) => return self.clear(record, denied).await,
            };
            self.recorder().write(record, Some(Holding::keyed(State::Held, claim))).await?; // rule 1
            if !R::GRANTS_ARE_MADE_SURE || self.lock.make_sure(&grant).await? {
                return self.confirm(record, grant).await;
            }
            // Reset, just when the lock came: start again.
            self.lock.endpoint().mark("holders: starts again", &[]);
        }
    }

    /// Rule 3.
    #[inline(always)]
    async fn confirm(&self, record: u8, grant: ShiftGrant) -> Result<ShiftGrant, Denied> {
        if R::GRANTED_ARE_ALIVE && R::CONFIRMED_AFTER {
            self.recorder().granted(record, grant.mark()).await?;
        }
        Ok(grant)
    }

    async fn clear(&self, record: u8, denied: Denied) -> Result<ShiftGrant, Denied> {
        self.recorder().write(record, None).await?;
        Err(denied)
    }

    /// Gives the lock back. Until it is done the record says that the lock is held, which at worst delays a reset.
    ///
    /// # Errors
    /// If the lock had been lost, or its memory cannot be reached.
    #[inline(always)]
    pub async fn give_back(&self, record: u8, grant: ShiftGrant) -> Result<(), Lost> {
        if !R::RECORDS_ARE_CLEARED_LAST {
            let _ = self.recorder().write(record, None).await;
            return self.lock.give_back(grant).await;
        }
        let given = self.lock.give_back(grant).await;
        // A client that was evicted after its last verb has nothing to clear.
        let _ = self.recorder().write(record, None).await;
        given
    }

    /// Gives the lock back if nobody has to be waited for. `None`: nothing has happened.
    #[inline(always)]
    pub async fn try_give_back(&self, record: u8, grant: ShiftGrant) -> Option<Result<(), Lost>> {
        if grant.is_shared() {
            return Some(self.give_back(record, grant).await);
        }
        match self.lock.free_at_once(grant).await {
            Ok(true) => {
                let _ = self.recorder().write(record, None).await;
                Some(Ok(()))
            }
            Ok(false) => None,
            Err(lost) => Some(Err(lost.into())),
        }
    }
}

impl<E: Endpoint, B: DirectRecorder, R: Rules + RecordRules, L: VersionedLayout> HolderClient<E, B, R, L> {
    /// [`try_take`](Self::try_take), where nothing has to be waited for.
    ///
    /// # Errors
    /// [`Denied::Busy`] also where a second look might have settled it; the record is free again.
    #[inline(always)]
    pub fn try_take_now(&self, record: u8, claim: Claim) -> Result<FastGrant, Denied> {
        try_in_steps!(self, record, claim: write_now granted_now try_now confirm_now clear_now)
    }

    /// Takes the lock if it becomes free within a moment, where nothing has to be waited for.
    ///
    /// # Errors
    /// [`Denied::Busy`] if it does not; the record is free again.
    pub fn try_take_spinning_now(&self, record: u8, claim: Claim) -> Result<FastGrant, Denied> {
        for _ in 0..self.recorder().spins() {
            std::hint::spin_loop();
            if self.lock.looks_free_now(claim) {
                match self.try_take_now(record, claim) {
                    Err(Denied::Busy) => {}
                    taken => return taken,
                }
            }
        }
        Err(Denied::Busy)
    }

    #[inline(always)]
    fn confirm_now(&self, record: u8, grant: FastGrant) -> Result<FastGrant, Denied> {
        if R::GRANTED_ARE_ALIVE && R::CONFIRMED_AFTER {
            self.recorder().granted_now(record, grant.mark())?;
        }
        Ok(grant)
    }

    #[cold]
    fn clear_now(&self, record: u8, denied: Denied) -> Result<FastGrant, Denied> {
        self.recorder().write_now(record, None)?;
        Err(denied)
    }

    /// [`try_give_back`](Self::try_give_back), where nothing has to be waited for. `false`: nothing has happened.
    #[inline(always)]
    pub fn give_back_now(&self, record: u8, claim: Claim, grant: FastGrant) -> bool {
        let given = self.lock.give_back_now(Self::slot(record), claim, grant);
        if given {
            let _ = self.recorder().write_now(record, None);
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::observe::Mode;

    #[test]
    fn a_range_waits_for_holders_and_for_those_who_waited_before_it_and_for_nobody_else() {
        let claim = Claim { lock: 1, mode: Mode::Exclusive, start: 0, end: 4 };
        let beside = Claim { start: 4, end: 8, ..claim };
        let blocks = |state, turn, mine| Holding { state, claim, turn }.is_in_the_way(&claim, mine);
        assert!(blocks(State::Held, 0, 0) && blocks(State::Held, 9, 3));
        assert!(blocks(State::Waiting, 5, 0), "a newcomer does not overtake");
        assert!(
            blocks(State::Waiting, 5, 6) && !blocks(State::Waiting, 6, 5) && !blocks(State::Waiting, 5, 5)
        );
        assert!(!blocks(State::Waiting, 0, 0), "who has no turn yet is before nobody");
        assert!(!blocks(State::Taking, 5, 6) && !blocks(State::Revoked, 0, 0));
        assert!(!Holding { state: State::Held, claim, turn: 0 }.is_in_the_way(&beside, 0));
    }
}
