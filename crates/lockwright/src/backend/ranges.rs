//! Range locks between processes: exact, over all of 0..2^64, shared and exclusive, first come first served.
//!
//! They are `lockwright_locks::holders::ranges`: the holder records are the lock. This file gives requests their records.

use super::member::Member;
use super::members::{Members, NAMES, token};
use super::shm::ShmBackend;
use super::slots::SlotPool;
use super::{BoxFuture, GivenUp, Granted, ProtocolGrant, Refused, Standing};
use crate::error::{ChangeError, LockError};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::ShmEndpoint;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, RegionId, Word64};
use lockwright_locks::holders::range_changes::NotUpgraded;
use lockwright_locks::holders::ranges::{RangeRecorder, RangeRecords};
use lockwright_locks::holders::record::{is_semaphore, name_of};
use lockwright_locks::{Denied, Lost};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

const FULL: &str = "the records of its membership of the space are all in use";
const REGION: RegionId = RegionId(2);
/// How often a waiter looks whether those in its way are alive.
pub(super) const LOOK_NS: u64 = 30_000_000;
/// How long a thread that only tries waits for the gate, which others hold for microseconds. If a future holds it that this
/// thread should be polling, the wait would never end: the try then fails as busy.
pub(super) const TRY: Duration = Duration::from_millis(500);

/// Bytes of a lock's count of changes and, behind it, the root of its index.
pub(super) const STRIDE: u64 = 16;

/// Bytes of those of `locks` locks.
pub(crate) const fn bytes(locks: u64) -> u64 {
    locks * STRIDE
}

pub(super) const fn changes(lock: u64) -> Word64 {
    Word64::at(Addr { offset: name_of(lock) * STRIDE, node: NodeId(0), region: REGION })
}

pub(super) const fn root(lock: u64) -> Word64 {
    Word64::at(changes(lock).addr().plus(8))
}

/// Tells the waiters that a range of `lock` is free, or that another waiter left the queue.
pub(crate) fn changed(ep: &ShmEndpoint, lock: u64) -> Result<(), FabricError> {
    block_on(ep.go(changes(lock).fetch_add(1))).map(drop)
}

/// The keyed lock that guards the ranges of `lock`, and the permits of the semaphore of that name.
pub(crate) const fn gate(lock: u64) -> u64 {
    NAMES + name_of(lock)
}

impl ShmBackend {
    /// Takes the range if nobody is in its way. `None`: others look just now, and one would have to wait for the gate.
    pub(super) fn try_range_now(&self, claim: Claim) -> Option<Result<Granted, Refused>> {
        let (member, records) = match self.members.claim_two() {
            Ok(claimed) => claimed,
            Err(error) => return Some(Err(Refused::Error(error))),
        };
        let tried = block_on(member.client.try_range_fast(records, claim));
        if tried.is_none() {
            member.free(records.gate);
            member.free(records.range);
        }
        Some(member.range(records, claim, tried?))
    }

    /// Takes the range, however long it takes, unless that is given up; if it cannot be, only if nobody is in its way. Either
    /// may have to wait for the gate, so neither blocks a thread: the gate's holder may be a future of that thread.
    pub(super) fn range(
        &self,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> BoxFuture<Result<Granted, Refused>> {
        let (member, records): (Arc<Member>, _) = match self.members.claim_two() {
            Ok((member, records)) => (member.share(), records),
            Err(error) => return Box::pin(async { Err(Refused::Error(error)) }),
        };
        Box::pin(async move {
            let client = &member.client;
            let taken = match given_up {
                Some(given_up) => client.take_range_unless(records, claim, || given_up.clone().wait()).await,
                None => client.try_range(records, claim).await,
            };
            member.range(records, claim, taken)
        })
    }

    pub(super) fn release_range(&self, claim: Claim, granted: &Granted) -> Result<(), Lost> {
        let (member, record) = (self.members.member(granted.record), granted.record.index());
        let given = block_on(member.client.give_range_back(record, claim));
        member.free(record);
        match given {
            Err(Lost::Fabric(FabricError::Evicted)) => Err(Lost::Recovered),
            given => given,
        }
    }

    /// Makes a shared range exclusive. Nothing is done before the first poll.
    pub(super) fn upgrade_range(
        &self,
        claim: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let (members, given_up, granted) = (Arc::clone(&self.members), GivenUp::default(), *granted);
        let stop = given_up.clone();
        let change = Box::pin(async move {
            let (member, records) = with_gate(&members, &granted)?;
            let client = &member.client;
            let mut upgraded = match wait {
                true => client.upgrade_range_unless(records, claim, || stop.clone().wait()).await,
                false => client.try_upgrade_range(records, claim).await,
            };
            if upgraded.is_ok() && stop.is_set() {
                // Nobody will hear that it came through after all: it stays shared.
                let exclusive = Claim { mode: Mode::Exclusive, ..claim };
                upgraded = client.downgrade_range(records, exclusive).await.and(Err(NotUpgraded::Busy));
            }
            member.free(records.gate);
            let token = upgraded.map_err(|why| not_changed(why, token(&granted.grant)))?;
            Ok(member.granted(records.range, ProtocolGrant::Range { token }))
        });
        stoppable(change, given_up)
    }

    /// Makes an exclusive range shared. Blocks for the gate, which others hold for microseconds.
    pub(super) fn downgrade_range(
        &self,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let (member, records) = match with_gate(&self.members, granted) {
            Ok(claimed) => claimed,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let before = token(&granted.grant);
        let changed = block_on(member.client.downgrade_range(records, claim));
        member.free(records.gate);
        let changed = changed
            .map(|token| member.granted(records.range, ProtocolGrant::Range { token }))
            .map_err(|why| not_changed(why, before));
        Box::pin(std::future::ready(changed))
    }

    pub(super) fn shrink_range(
        &self,
        claim: Claim,
        granted: &Granted,
        part: (u64, u64),
    ) -> Result<Option<Granted>, ChangeError> {
        let (member, records) = with_gate(&self.members, granted)?;
        let token = token(&granted.grant);
        let two = claim.start < part.0 && part.1 < claim.end;
        let rest = if two { member.claim(SlotPool::claim_shared) } else { None };
        let shrunk = if two && rest.is_none() {
            Err(ChangeError::TooManyLocks(FULL.to_owned()))
        } else {
            block_on(member.client.shrink_range(records, rest, claim, token, part))
                .map_err(|why| not_changed(why, token))
        };
        member.free(records.gate);
        match (shrunk, rest) {
            (Ok(()), rest) => Ok(rest.map(|rest| member.granted(rest, ProtocolGrant::Range { token }))),
            (Err(error), rest) => {
                rest.into_iter().for_each(|rest| member.free(rest));
                Err(error)
            }
        }
    }

    pub(super) fn range_standing(&self, claim: Claim, granted: &Granted) -> Standing {
        let member = self.members.member(granted.record);
        let held = block_on(member.table().is_range_held(granted.record.index(), claim)) == Ok(true)
            && member.holders().ep.is_member_seq_cst();
        if held { self.by_lease(&member) } else { Standing::Lost(member.lost_reason()) }
    }
}

impl Member {
    /// What came of a request by these records.
    fn range(
        &self,
        records: RangeRecords,
        claim: Claim,
        token: Result<u64, Denied>,
    ) -> Result<Granted, Refused> {
        self.free(records.gate);
        match token {
            Ok(token) => Ok(self.granted(records.range, ProtocolGrant::Range { token })),
            Err(Denied::BadRequest(why)) if is_semaphore(claim.lock) => {
                self.free(records.range);
                Err(Refused::Error(LockError::Refused(why.0.to_owned())))
            }
            Err(denied) => {
                self.free(records.range);
                Err(Refused::new(denied, claim))
            }
        }
    }
}

/// `upgrade`, which ends once it is `given_up`; and it is when this is dropped.
pub(super) fn stoppable(
    upgrade: BoxFuture<Result<Granted, ChangeError>>,
    given_up: GivenUp,
) -> BoxFuture<Result<Granted, ChangeError>> {
    Box::pin(Stoppable { change: Some(upgrade), begun: false, given_up })
}

/// An upgrade under way. Dropped, it ends as soon as it can: it may stand in the queue for the gate, and must not go on barring
/// others.
struct Stoppable {
    change: Option<BoxFuture<Result<Granted, ChangeError>>>,
    begun: bool,
    given_up: GivenUp,
}

impl Future for Stoppable {
    type Output = Result<Granted, ChangeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.begun = true;
        let change = self.change.as_mut().expect("an upgrade was polled after it was done");
        let outcome = ready!(change.as_mut().poll(cx));
        self.change = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        if let Some(change) = self.change.take().filter(|_| self.begun) {
            self.given_up.set();
            let _ = block_on(change);
        }
    }
}

/// A record for the gate beside the range's own, which `granted` names.
fn with_gate(members: &Members, granted: &Granted) -> Result<(Arc<Member>, RangeRecords), ChangeError> {
    let (member, range) = (members.member(granted.record).share(), granted.record.index());
    match member.claim(SlotPool::claim_own).or_else(|| member.claim(SlotPool::claim_shared)) {
        Some(gate) => Ok((member, RangeRecords { gate, range })),
        None => Err(ChangeError::TooManyLocks(FULL.to_owned())),
    }
}

pub(super) fn not_changed(why: NotUpgraded, token: u64) -> ChangeError {
    match why {
        NotUpgraded::Busy => ChangeError::Busy,
        NotUpgraded::WouldDeadlock => ChangeError::WouldDeadlock,
        NotUpgraded::Lost => ChangeError::Lost { token },
        NotUpgraded::Denied(denied) => ChangeError::Refused(denied.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::shm::open;
    use super::super::{Kind, Space};
    use super::*;
    use crate::Client;
    use crate::error::TryLockError;
    use crate::name::LockName;
    use std::sync::mpsc;
    use std::task::Waker;

    /// The gate's holder may be a future that the same thread would poll next.
    #[test]
    fn a_request_for_a_range_whose_gate_is_taken_does_not_block_its_thread() {
        let path = std::env::temp_dir().join(format!("lockwright-gate-{}.space", std::process::id()));
        let client = Client::open(&format!("shm:{}", path.display())).wait().unwrap();
        let ranges = client.range_lock("a").unwrap();
        let other = ShmBackend::new(open(&path, false, None).unwrap(), Duration::from_secs(10)).unwrap();
        let lock = other.bind(&LockName::new("a").unwrap(), Kind::Ranges).unwrap().lock;
        let inside = Claim { lock: gate(lock), mode: Mode::Exclusive, start: 0, end: u64::MAX };
        let granted = other.members.try_take(inside).unwrap();
        let (done, told) = mpsc::channel();
        let asks = std::thread::spawn(move || {
            let mut context = Context::from_waker(Waker::noop());
            let mut waits = ranges.write(0..1);
            let mut tries = ranges.write_timeout(1..2, Duration::ZERO);
            assert!(Pin::new(&mut waits).poll(&mut context).is_pending());
            assert!(Pin::new(&mut tries).poll(&mut context).is_pending());
            assert!(matches!(ranges.try_write(2..3).wait(), Err(TryLockError::Busy)));
            done.send(()).unwrap();
            (waits, tries)
        });
        told.recv_timeout(Duration::from_secs(60)).expect("nobody waits for a future of its own thread");
        let (waits, tries) = asks.join().unwrap();
        block_on(Arc::clone(&other.members).give_back(inside, granted)).unwrap();
        let granted = [waits.wait(), tries.wait()].map(|granted| granted.map(drop));
        let _ = std::fs::remove_file(path);
        assert_eq!(granted, [Ok(()), Ok(())]);
    }
}
