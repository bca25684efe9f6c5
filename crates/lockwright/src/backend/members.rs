//! This process's memberships of a space, and keyed locks taken through them.
//!
//! A client joins the space once for every few dozen locks that it holds or wants at a time; each time is a [`Member`]. One
//! that is evicted (this process was stopped for longer than its lease) stays until its last guard has gone; new
//! locks go to a new one.
//!
//! The first few memberships are reached without a lock: most clients never have more than one. They stay; the others end
//! when none of their records is in use. Not all of a space can be had by one process, nor by those who are in already
//! ([`MOST`], [`KEPT_FREE`]).

use super::holders::{self, SLOTS};
use super::member::Member;
use super::slots::SlotPool;
use super::threads;
use super::{Granted, ProtocolGrant, RecordId, Refused};
use crate::error::LockError;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmSpace, SpaceError};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{FabricError, Width};
use lockwright_locks::holders::ranges::RangeRecords;
use lockwright_locks::shiftlock::versioned::Versioned;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{Grant, Lost, Protocol, Space};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Names of a space, and therefore lock ids.
pub(crate) const NAMES: u64 = 1 << 20;
/// Every name has a lock of its own, and a gate for its ranges.
pub(crate) const SHAPE: Space = Space::of(2 * NAMES);
/// How long a lock may stand still before a waiter asks whether its holder lives: three of these.
const ASK_NS: u64 = 10_000_000;
/// How often a waiter asks before it resets a lock that may be on its way to a living client: for about a second.
const ASKS: u32 = 32;
/// Memberships that are reached without a lock. They stay as long as the client does.
const NEAR: usize = 8;

/// Memberships of one process, by all of its clients.
const MOST: u64 = SLOTS / 2;
/// Memberships that are left to clients which have none yet.
const KEPT_FREE: u64 = SLOTS / 8;

/// ShiftLock's parameters, the same for all clients.
pub(crate) fn params() -> ShiftParams {
    ShiftParams { asks: ASKS, ..ShiftParams::default().with_lease(ASK_NS) }
}

/// All memberships of this client.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) space: ShmSpace,
    pub(super) lease_ns: u64,
    /// By number.
    near: [OnceLock<Arc<Member>>; NEAR],
    /// Those with higher numbers, by number.
    far: RwLock<Vec<Arc<Member>>>,
    /// The number of the next; held while joining.
    next: Mutex<u32>,
    /// The number of the one that last had a free record, after a search: others are likely full.
    roomy: AtomicU32,
}

/// A membership that is near, or any other.
pub(super) enum MemberRef<'a> {
    Near(&'a Arc<Member>),
    Far(Arc<Member>),
}

impl Deref for MemberRef<'_> {
    type Target = Member;

    #[inline(always)]
    fn deref(&self) -> &Member {
        match self {
            MemberRef::Near(member) => member,
            MemberRef::Far(member) => member,
        }
    }
}

impl MemberRef<'_> {
    pub(super) fn share(&self) -> Arc<Member> {
        match self {
            MemberRef::Near(member) => Arc::clone(member),
            MemberRef::Far(member) => Arc::clone(member),
        }
    }
}

impl Members {
    /// Joins `space`.
    pub(crate) fn new(space: ShmSpace, lease_ns: u64) -> Result<Self, LockError> {
        if space.room().own >= MOST {
            return Err(LockError::TooManyClients(one_process_has_too_many()));
        }
        let first = Arc::new(Member::join(&space, lease_ns, 0)?);
        let near = std::array::from_fn(|_| OnceLock::new());
        let _ = near[0].set(first);
        Ok(Self {
            space,
            lease_ns,
            near,
            far: RwLock::default(),
            next: Mutex::new(1),
            roomy: AtomicU32::new(0),
        })
    }

    fn near(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.near.iter().map_while(OnceLock::get)
    }

    fn far(&self) -> Vec<Arc<Member>> {
        self.far.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn all(&self) -> Vec<Arc<Member>> {
        self.near().cloned().chain(self.far()).collect()
    }

    /// Joins once more, unless another thread just did: all members with numbers below `known` had no free record.
    fn join(&self, known: u32) -> Result<(), LockError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if *next > known {
            return Ok(());
        }
        self.check_room()?;
        let member = Arc::new(Member::join(&self.space, self.lease_ns, *next)?);
        match self.near.get(*next as usize) {
            Some(place) => drop(place.set(member)),
            None => self.far.write().unwrap_or_else(PoisonError::into_inner).push(member),
        }
        *next += 1;
        Ok(())
    }

    /// An error if this client is in already, and shall not join once more.
    fn check_room(&self) -> Result<(), LockError> {
        if self.first().is_none() {
            return Ok(());
        }
        let room = self.space.room();
        if room.own >= MOST {
            return Err(LockError::TooManyLocks(one_process_has_too_many()));
        }
        if room.free <= KEPT_FREE {
            return Err(LockError::TooManyLocks(format!(
                "it would join the space once more, which has room for {SLOTS} clients, and the last {KEPT_FREE} are for others"
            )));
        }
        Ok(())
    }

    /// Ends memberships that are not needed now. The first that is in stays: names are looked up by it. Records are taken from the
    /// first again, or the last would always be needed.
    pub(super) fn leave_unneeded(&self) {
        self.roomy.store(0, Relaxed);
        let first = self.first().map(|member| member.number);
        let mut far = self.far.write().unwrap_or_else(PoisonError::into_inner);
        let unneeded = |member: &mut Arc<Member>| member.slots.is_unused() && Some(member.number) != first;
        let unneeded: Vec<_> = far.extract_if(.., unneeded).collect();
        drop(far);
        drop(unneeded);
    }

    /// How many have joined.
    fn known(&self) -> u32 {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first that is in.
    fn first(&self) -> Option<Arc<Member>> {
        let is_in = |member: &&Arc<Member>| member.is_in();
        let near = self.near().find(is_in).cloned();
        near.or_else(|| self.far.read().unwrap_or_else(PoisonError::into_inner).iter().find(is_in).cloned())
    }

    /// A member that is in, for whatever needs no record.
    pub(crate) fn any(&self) -> Result<Arc<Member>, LockError> {
        loop {
            let known = self.known();
            if let Some(member) = self.first() {
                return Ok(member);
            }
            self.join(known)?;
        }
    }

    /// The membership with this number, as long as it stays.
    #[inline(always)]
    fn find(&self, number: u32) -> Option<MemberRef<'_>> {
        match self.near.get(number as usize) {
            Some(near) => near.get().map(MemberRef::Near),
            None => self.find_far(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_far(&self, number: u32) -> Option<MemberRef<'_>> {
        let far = self.far.read().unwrap_or_else(PoisonError::into_inner);
        let at = far.binary_search_by_key(&number, |member| member.number).ok()?;
        Some(MemberRef::Far(Arc::clone(&far[at])))
    }

    /// The membership with this number, as long as it stays.
    pub(super) fn with_number(&self, number: u32) -> Option<Arc<Member>> {
        self.find(number).map(|member| member.share())
    }

    /// The membership with this number, if it stays as long as the client does.
    pub(crate) fn that_stays(&self, number: u32) -> Option<&Arc<Member>> {
        self.near.get(number as usize)?.get()
    }

    /// Whether a membership was not evicted.
    #[inline(always)]
    pub(super) fn is_in(&self, number: u32) -> bool {
        self.find(number).is_some_and(|member| member.is_in())
    }

    /// A free record.
    pub(super) fn claim(&self) -> Result<(MemberRef<'_>, u8), LockError> {
        self.claim_by(claim_queued)
    }

    /// Two free records of one membership: one to be held for long, and one for a moment.
    pub(super) fn claim_two(&self) -> Result<(MemberRef<'_>, RangeRecords), LockError> {
        self.claim_by(|member| {
            let range = claim_queued(member)?;
            let gate = member.claim(SlotPool::claim_own).or_else(|| member.claim(SlotPool::claim_shared));
            if gate.is_none() {
                member.free(range);
            }
            Some(RangeRecords { gate: gate?, range })
        })
    }

    #[inline(always)]
    fn claim_by<T>(&self, claim: impl Fn(&Member) -> Option<T>) -> Result<(MemberRef<'_>, T), LockError> {
        if let Some(member) = self.find(self.roomy.load(Relaxed)).filter(|member| member.is_in())
            && let Some(record) = claim(&member)
        {
            return Ok((member, record));
        }
        let (member, record) = self.search(claim)?;
        self.roomy.store(member.number, Relaxed);
        Ok((member, record))
    }

    #[cold]
    #[inline(never)]
    fn search<T>(&self, claim: impl Fn(&Member) -> Option<T>) -> Result<(MemberRef<'_>, T), LockError> {
        loop {
            let known = self.known();
            let is_in = |member: &&Arc<Member>| member.is_in();
            if let Some(found) = self.near().filter(is_in).find_map(|near| Some((near, claim(near)?))) {
                return Ok((MemberRef::Near(found.0), found.1));
            }
            // Not on a copy of the list: a membership ends if none of its records is in use.
            let far = self.far.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = far.iter().filter(is_in).find_map(|far| Some((far, claim(far)?))) {
                return Ok((MemberRef::Far(Arc::clone(found.0)), found.1));
            }
            drop(far);
            self.join(known)?;
        }
    }

    #[inline(always)]
    pub(super) fn member(&self, record: RecordId) -> MemberRef<'_> {
        self.find(record.member()).expect("a membership stays as long as one of its records is in use")
    }

    /// A heartbeat of all of them.
    pub(super) fn beat(&self) {
        for member in self.all() {
            // One that comes too late was evicted, and is found to be so when it is used.
            let _ = member.holders().beat();
        }
    }

    /// Takes a keyed lock if it is free.
    #[inline(always)]
    pub(super) fn try_take(&self, claim: Claim) -> Result<Granted, Refused> {
        let (member, record) = self.claim().map_err(Refused::Error)?;
        match block_on(member.client.try_take(record, claim)) {
            Ok(grant) => Ok(member.granted(record, ProtocolGrant::Shift(grant))),
            Err(denied) => {
                member.free(record);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Takes a keyed lock, however long it takes. Nothing is done before the first poll.
    pub(super) async fn take(self: Arc<Self>, claim: Claim) -> Result<Granted, Refused> {
        let (member, record) = {
            let (member, record) = self.claim().map_err(Refused::Error)?;
            (member.share(), record)
        };
        match member.client.take(record, claim).await {
            Ok(grant) => Ok(member.granted(record, ProtocolGrant::Shift(grant))),
            Err(denied) => {
                member.free(record);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Gives a keyed lock back if nobody has to be waited for; else nothing has happened.
    #[inline(always)]
    pub(super) fn try_give_back(&self, claim: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        let (member, record) = (self.member(granted.record), granted.record.index());
        let given = block_on(member.client.try_give_back(record, member.grant(claim, granted)))?;
        member.free(record);
        Some(given.map_err(told))
    }

    /// Gives a keyed lock back.
    pub(super) async fn give_back(self: Arc<Self>, claim: Claim, granted: Granted) -> Result<(), Lost> {
        let (member, record) = (self.member(granted.record).share(), granted.record.index());
        let given = member.client.give_back(record, member.grant(claim, &granted)).await;
        member.free(record);
        given.map_err(told)
    }
}

fn one_process_has_too_many() -> String {
    format!("the space has room for {SLOTS} clients, of which one process may be {MOST}, and this one is")
}

/// Evicted: the lock is gone with the client.
fn told(lost: Lost) -> Lost {
    match lost {
        Lost::Fabric(FabricError::Evicted) => Lost::Recovered,
        lost => lost,
    }
}

/// Shared records first: callers that come here hold or want several locks at a time. But a thread that sleeps until it has the lock
/// uses its own, by which listings know it.
#[inline(always)]
fn claim_queued(member: &Member) -> Option<u8> {
    let own = if threads::blocks() { member.claim(SlotPool::claim_own) } else { None };
    own.or_else(|| claim_shared(member))
}

/// A shared record, or else one of the thread's own.
#[inline(always)]
fn claim_shared(member: &Member) -> Option<u8> {
    member.claim(SlotPool::claim_shared).or_else(|| member.claim(SlotPool::claim_own))
}

#[inline(always)]
pub(super) fn token(grant: &ProtocolGrant) -> u64 {
    match grant {
        ProtocolGrant::Shift(grant) => grant.token().unwrap_or_default(),
        ProtocolGrant::FastGrant(grant) => grant.token(),
        ProtocolGrant::Range { token } => *token,
        _ => unreachable!("a space gets back the grants that it gave out"),
    }
}

/// Bytes of the keyed locks.
pub(crate) fn lock_bytes() -> u64 {
    <ShiftLock<Versioned>>::bytes_per_node(&SHAPE, &params())
}

/// Allocates the words of the locks called by name `id`: a lock, a gate, a count of changes and an index's root.
pub(crate) fn allocate_lock(space: &ShmSpace, id: u64) -> Result<(), SpaceError> {
    const WORD: u64 = Width::W128.bytes();
    for lock in [id, super::ranges::gate(id)] {
        space.allocate(SHAPE.place(lock, WORD), WORD)?;
    }
    space.allocate(super::ranges::changes(id).addr(), super::ranges::STRIDE)
}

/// What the regions of a space are for, and how large they are: locks; holder records and the index's entries; counts of changes
/// and the index's roots.
pub(crate) fn regions() -> [u64; 3] {
    [lock_bytes(), holders::BYTES, super::ranges::bytes(NAMES)]
}
