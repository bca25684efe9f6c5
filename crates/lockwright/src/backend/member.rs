//! One membership of a space: a peer of the fabric, with a lock client and holder records.

use super::holders::{self, ShmHolders, ShmTable};
use super::members::{SHAPE, params};
use super::slots::SlotPool;
use super::{Granted, Kind, ProtocolGrant, RecordId};
use crate::error::{LockError, LostReason};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Names, ShmEndpoint, ShmSpace, SpaceError};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, PeerId};
use lockwright_locks::Denied;
use lockwright_locks::holders::{HolderClient, HolderRecord, RangeSpace};
use lockwright_locks::shiftlock::ShiftGrant;
use lockwright_locks::shiftlock::fast_grant::FastGrant;
use lockwright_locks::shiftlock::shared::Snapshot;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// One membership.
pub(crate) struct Member {
    pub(super) number: u32,
    pub(super) client: HolderClient<ShmEndpoint, ShmTable>,
    pub(super) slots: SlotPool,
    /// Bit n: record n has been in use.
    used: AtomicU64,
}

impl Member {
    pub(super) fn join(space: &ShmSpace, lease_ns: u64, number: u32) -> Result<Self, LockError> {
        let full = |error: SpaceError| LockError::TooManyClients(error.to_string());
        let ep = space.endpoint().map_err(full)?;
        holders::allocate(space, ep.me()).map_err(full)?;
        let holders = ShmHolders::join(space, ep.clone(), lease_ns).map_err(LockError::from_fabric)?;
        let client = HolderClient::new(ep, &SHAPE, &params(), ShmTable::new(holders));
        Ok(Self { number, client, slots: SlotPool::new(), used: AtomicU64::new(0) })
    }

    /// Its records, and its view of those of others.
    #[inline(always)]
    pub(crate) fn table(&self) -> &ShmTable {
        self.client.recorder()
    }

    #[inline(always)]
    pub(crate) fn holders(&self) -> &ShmHolders {
        self.table().space()
    }

    /// Whether nobody has evicted it.
    #[inline(always)]
    pub(super) fn is_in(&self) -> bool {
        self.client.lock().endpoint().is_member()
    }

    /// Why a lock that it had is gone: with the whole membership, or by itself.
    pub(super) fn lost_reason(&self) -> LostReason {
        if self.client.lock().endpoint().is_member_seq_cst() {
            LostReason::Broken
        } else {
            LostReason::Evicted
        }
    }

    #[inline(always)]
    pub(super) fn granted(&self, record: u8, grant: ProtocolGrant) -> Granted {
        Granted { grant, record: RecordId::new(self.number, record) }
    }

    /// What the protocol gave out for a keyed lock's granted.
    #[inline(always)]
    pub(super) fn grant(&self, claim: Claim, granted: &Granted) -> ShiftGrant {
        match granted.grant {
            ProtocolGrant::Shift(grant) => grant,
            ProtocolGrant::FastGrant(grant) => self.client.lock().grant(granted.record.index(), claim, grant),
            _ => unreachable!("a keyed lock's granted"),
        }
    }

    /// A free record, if `claim` finds one.
    #[inline(always)]
    pub(super) fn claim(&self, claim: impl FnOnce(&SlotPool) -> Option<u8>) -> Option<u8> {
        let record = claim(&self.slots)?;
        let used_before = self.used.load(Relaxed) >> record & 1 == 1;
        (used_before || self.use_first(record)).then_some(record)
    }

    /// Says that `record` is in use from now on, for the first time. `false`, and the record is free, if this client was evicted.
    #[cold]
    fn use_first(&self, record: u8) -> bool {
        let is_first = self.used.fetch_or(1 << record, SeqCst) >> record & 1 == 0;
        let said = !is_first || self.holders().use_record(record).is_ok();
        if !said {
            self.slots.free(record);
        }
        said
    }

    /// Lets others have the record, which is cleared. (An evicted client's records are not its own any more.)
    #[inline(always)]
    pub(super) fn free(&self, record: u8) {
        self.slots.free(record);
    }
}

/// The usual cases, without a future, a virtual call or a search.
impl Member {
    /// Takes a keyed lock if it is free and the calling thread has a record for it here. `None`: nothing has happened.
    #[inline(always)]
    pub(crate) fn try_take_fast(&self, claim: Claim) -> Option<Granted> {
        let record = self.claim(SlotPool::claim_own)?;
        self.grant_or_free(record, self.client.try_take_now(record, claim))
    }

    /// The same, if it becomes free within a moment.
    pub(crate) fn try_take_spinning(&self, claim: Claim) -> Option<Granted> {
        let record = self.claim(SlotPool::claim_own)?;
        self.grant_or_free(record, self.client.try_take_spinning_now(record, claim))
    }

    #[inline(always)]
    fn grant_or_free(&self, record: u8, taken: Result<FastGrant, Denied>) -> Option<Granted> {
        match taken {
            Ok(grant) => Some(self.granted(record, ProtocolGrant::FastGrant(grant))),
            Err(_) => {
                self.free(record);
                None
            }
        }
    }

    /// Gives a keyed lock back that was taken so, if nobody waits for it. `false`: nothing has happened.
    #[inline(always)]
    pub(crate) fn give_back_fast(&self, claim: Claim, granted: &Granted) -> bool {
        let (ProtocolGrant::FastGrant(grant), record) = (granted.grant, granted.record.index()) else {
            return false;
        };
        let given = granted.record.member() == self.number && self.client.give_back_now(record, claim, grant);
        if given {
            self.free(record);
        }
        given
    }
}

/// What looking into a space takes.
impl Member {
    pub(crate) fn peer(&self) -> PeerId {
        self.holders().ep.me()
    }

    /// The directory of names.
    pub(crate) fn names(&self) -> Names {
        self.holders().ep.names()
    }

    /// What the word of a keyed lock says.
    pub(crate) fn snapshot(&self, lock: u64) -> Result<Snapshot, FabricError> {
        block_on(self.client.lock().snapshot(lock))
    }

    /// How often a lock, or ranges of it, were given back.
    pub(crate) fn releases(&self, kind: Kind, lock: u64) -> Result<u64, FabricError> {
        match kind {
            Kind::Keyed => block_on(self.client.lock().releases(lock)),
            Kind::Ranges | Kind::Semaphores => {
                block_on(self.holders().ep.go(self.holders().changes(lock).read()))
            }
        }
    }

    /// Takes a keyed lock away from the client that holds it by `record`.
    pub(crate) fn take_away(&self, record: &HolderRecord) -> Result<bool, FabricError> {
        let Claim { lock, mode, .. } = record.claim;
        block_on(self.client.lock().take_away(lock, mode, record.mark))
    }

    /// Takes a range away from the client that holds it by `record`.
    pub(crate) fn revoke(&self, record: &HolderRecord) -> Result<bool, FabricError> {
        let revoked = self.holders().revoke(record)?;
        super::ranges::changed(&self.holders().ep, record.claim.lock)?;
        Ok(revoked)
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("number", &self.number)
            .field("peer", &self.peer())
            .finish_non_exhaustive()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.holders().leave();
    }
}
