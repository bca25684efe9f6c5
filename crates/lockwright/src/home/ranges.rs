//! Range locks between processes: exact, over all of 0..2^64, shared and exclusive, first come first served.
//!
//! They are `lockwright_locks::holders::ranges`: the holder records are the lock. This file gives requests their records.

use super::member::Member;
use super::members::NAMES;
use super::shm::ShmBackend;
use super::{BoxFuture, GivenUp, Granted, ProtocolGrant, Refused, Standing};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::ShmEndpoint;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, RegionId, Word64};
use lockwright_locks::holders::ranges::{RangeRecorder, RangeRecords};
use lockwright_locks::{Denied, Lost};
use std::sync::Arc;
use std::time::Duration;

const REGION: RegionId = RegionId(2);
/// How often a waiter looks whether those in its way are alive.
pub(super) const LOOK_NS: u64 = 30_000_000;
/// For so long a thread that only tries waits for the gate, which others have for microseconds. If a future has it that this
/// thread should be polling, it would wait for ever: somebody is in the way.
pub(super) const TRY: Duration = Duration::from_millis(500);

/// Bytes of the counts of changes of `locks` locks.
pub(crate) const fn bytes(locks: u64) -> u64 {
    locks * 8
}

pub(super) fn changes(lock: u64) -> Word64 {
    Word64::at(Addr { offset: lock * 8, node: NodeId(0), region: REGION })
}

/// Tells those who wait that a range of `lock` is free, or that somebody left the queue.
pub(crate) fn changed(ep: &ShmEndpoint, lock: u64) -> Result<(), FabricError> {
    block_on(ep.go(changes(lock).fetch_add(1))).map(drop)
}

/// The keyed lock that guards the ranges of `lock`.
pub(crate) const fn gate(lock: u64) -> u64 {
    NAMES + lock
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
    /// may have to wait for the gate, so neither blocks a thread: whoever has the gate may be a future of that thread.
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
            Err(denied) => {
                self.free(records.range);
                Err(Refused::new(denied, claim))
            }
        }
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
    use lockwright_fabric::observe::Mode;
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    /// Whoever has the gate may be a future that the same thread would poll next.
    #[test]
    fn whoever_asks_for_a_range_while_another_has_the_gate_gets_its_thread_back() {
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
