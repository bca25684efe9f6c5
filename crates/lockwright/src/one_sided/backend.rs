//! `shm:lent:NAME`: a one-sided space of this host, whose locks this process takes by CPU instructions.
//!
//! There are mutexes and reader-writer locks, and no ranges.

use super::layout::Ranges;
use super::local::LocalMember;
use crate::backend::{
    Bound, BoxFuture, GivenUp, Granted, Kind, Locker, ProtocolGrant, RecordId, Refused, Space, SpaceIdentity,
    Standing,
};
use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, LostReason};
use crate::name::LockName;
use lockwright_fabric::backend::shm::{ShmSpace, SpaceError};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_locks::holders::record::MAX_RECORDS;
use lockwright_locks::qplock::member::MemberGrant;
use lockwright_locks::{Denied, Lost};
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Between two looks for the dead.
const REAP: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Debug)]
pub(crate) struct LocalBackend {
    identity: SpaceIdentity,
    member: Arc<LocalMember>,
}

impl LocalBackend {
    pub(crate) fn new(space: &ShmSpace) -> Result<Self, LockError> {
        let identity = space.identity().map_err(|error| LockError::Disconnected(error.to_string()))?;
        let identity = SpaceIdentity::Shm(identity);
        let member = Arc::new(LocalMember::join(space)?);
        member.reap();
        Ok(Self { identity, member })
    }
}

/// The outcome of what waits for nothing.
#[inline(always)]
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("every verb is an instruction of this CPU"),
    }
}

/// What a space gives out for a grant of an asymmetric lock.
pub(crate) const fn granted(member: u32, grant: &MemberGrant) -> Granted {
    let (ticket, token, budget) = (grant.ticket(), grant.token(), grant.budget());
    let record = RecordId::new(member, grant.record());
    Granted { grant: ProtocolGrant::Asymmetric { ticket, token, budget }, record }
}

/// The grant that `granted` was made of.
pub(crate) fn grant_of(claim: Claim, granted: &Granted) -> MemberGrant {
    let ProtocolGrant::Asymmetric { ticket, token, budget } = granted.grant else {
        unreachable!("a space gets back the grants that it gave out");
    };
    MemberGrant::new(granted.record.index(), claim, ticket, token, budget)
}

pub(crate) fn full() -> Refused {
    Refused::Error(LockError::TooManyLocks(format!(
        "a client of a one-sided space can hold and want {MAX_RECORDS} locks at a time, not more"
    )))
}

/// The usual cases, without a future or a virtual call.
impl LocalMember {
    /// Takes the lock if nobody alive is in its way.
    #[inline]
    pub(crate) fn try_take(&self, claim: Claim) -> Result<Granted, Refused> {
        let record = self.claim().ok_or_else(full)?;
        self.settled(record, claim, at_once(self.client.try_take(record, claim)))
    }

    #[inline(always)]
    fn settled(
        &self,
        record: u8,
        claim: Claim,
        taken: Result<MemberGrant, Denied>,
    ) -> Result<Granted, Refused> {
        match taken {
            Ok(grant) => Ok(granted(0, &grant)),
            Err(denied) => {
                self.slots.free(record);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Gives the lock back, which waits for nothing.
    #[inline]
    pub(crate) fn give_back(&self, claim: Claim, granted: &Granted) -> Result<(), Lost> {
        let given = at_once(self.client.give_back(grant_of(claim, granted)));
        if given.is_ok() {
            self.slots.free(granted.record.index());
        }
        given
    }

    async fn take(self: Arc<Self>, claim: Claim, given_up: GivenUp) -> Result<Granted, Refused> {
        let record = self.claim().ok_or_else(full)?;
        let taken = self.client.take_unless(record, claim, || given_up.clone().wait()).await;
        self.settled(record, claim, taken)
    }
}

fn handle_error(error: SpaceError) -> HandleError {
    match error {
        SpaceError::TooManyNames(_) | SpaceError::TooManyRefs(_) | SpaceError::Full(_) => {
            HandleError::TooManyLocks(error.to_string())
        }
        error => HandleError::Disconnected(error.to_string()),
    }
}

impl Space for LocalBackend {
    fn identity(&self) -> SpaceIdentity {
        self.identity.clone()
    }

    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        match kind {
            Kind::Keyed => {}
            Kind::Ranges => return Err(HandleError::Unsupported(NO_RANGES)),
            Kind::Semaphores => return Err(HandleError::Unsupported("semaphores")),
        }
        let lock = bind(&self.member, name).map_err(handle_error)?;
        Ok(Bound { lock: lock.id, token_base: lock.token_base, by: 0 })
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        Ok(Ranges::None { budget: self.member.budget() }.protocols())
    }

    /// Nobody is evicted.
    fn is_bound(&self, _: &Bound) -> bool {
        true
    }

    fn unbind(&self, _: &LockName, bound: Bound, _: Kind) {
        let member = &self.member;
        let _ = member.names().close(bound.lock, |id| member.reclaim(id, bound.token_base));
    }

    fn local_asymmetric(&self) -> Option<&Arc<LocalMember>> {
        Some(&self.member)
    }

    fn heartbeat(&self) -> Duration {
        self.member.holders().beat();
        self.member.reap();
        REAP
    }
}

/// What such a space has no.
pub(crate) const NO_RANGES: &str = "range locks: its locks are asymmetric, for names only (`serve --lend NAME` without \
     --local has ranges)";

/// The lock called `name`, for `member`.
///
/// # Errors
/// If there is no room for it.
pub fn bind(
    member: &LocalMember,
    name: &LockName,
) -> Result<lockwright_fabric::backend::shm::NamedLock, SpaceError> {
    let names = member.names();
    match names.open(name.as_bytes()) {
        Err(SpaceError::TooManyNames(_)) => {
            let all = names.all()?;
            names.sweep(|id| {
                let info = all.iter().find(|info| info.lock.id == id);
                info.map_or(lockwright_fabric::backend::shm::Reclaim::Keep, |info| {
                    member.reclaim(id, info.lock.token_base)
                })
            })?;
            names.open(name.as_bytes())
        }
        opened => opened,
    }
}

impl Locker for LocalBackend {
    fn try_acquire_fast(&self, _: Kind, claim: Claim) -> Option<Result<Granted, Refused>> {
        Some(self.member.try_take(claim))
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        self.acquire_unless(kind, claim, GivenUp::default())
    }

    fn acquire_unless(
        &self,
        _: Kind,
        claim: Claim,
        given_up: GivenUp,
    ) -> BoxFuture<Result<Granted, Refused>> {
        Box::pin(Arc::clone(&self.member).take(claim, given_up))
    }

    fn release_fast(&self, _: Kind, claim: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        Some(self.member.give_back(claim, granted))
    }

    fn release(&self, _: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        Box::pin(ready(self.member.give_back(claim, &granted)))
    }

    fn description(&self) -> &'static str {
        "a one-sided space"
    }

    fn downgrade(&self, _: Kind, claim: Claim, held: &Granted) -> BoxFuture<Result<Granted, ChangeError>> {
        let mut grant = grant_of(Claim { mode: Mode::Exclusive, ..claim }, held);
        Box::pin(ready(match at_once(self.member.client.downgrade(&mut grant)) {
            Ok(()) => Ok(granted(0, &grant)),
            Err(_) => Err(ChangeError::Lost { token: grant.token() }),
        }))
    }

    fn token(&self, granted: &Granted) -> u64 {
        match granted.grant {
            ProtocolGrant::Asymmetric { token, .. } => token,
            _ => unreachable!("a space gets back the grants that it gave out"),
        }
    }

    fn standing(&self, _: Kind, _: Claim, _: &Granted) -> Standing {
        if self.member.is_in() { Standing::Held } else { Standing::Lost(LostReason::Evicted) }
    }
}
