//! `mem:`, a space inside this process: for tests, and for threads that want the same locks as processes have.
//!
//! Every `Client::open("mem:")` makes a space of its own; clones of the client share it. It dies with them. Nobody is
//! ever taken for dead here: threads do not die alone. Its locks are in `mem_locks`.

use super::mem_locks::{DenyReason, MemLocks};
use super::{
    Bound, BoxFuture, Granted, Kind, Locker, ProtocolGrant, RecordId, Refused, Space, SpaceIdentity, Standing,
};
use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, ValueError};
#[cfg(target_os = "linux")]
use crate::inspect::Entry;
use crate::lock::Value;
use crate::lock::contention::Contention;
use crate::name::LockName;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_locks::Lost;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of the next space.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Locks that a space has room for.
const LOCKS: u64 = 1 << 16;

/// A space in this process.
#[derive(Debug)]
pub(crate) struct MemBackend {
    /// Which one of this process.
    number: u64,
    locks: Arc<MemLocks>,
    names: Mutex<Names>,
    values: Arc<Mutex<HashMap<LockName, MemValue>>>,
}

/// The value of a lock.
#[derive(Clone, Debug)]
struct MemValue {
    bytes: Vec<u8>,
    set: Instant,
    /// The token of the grant whose holder has it open.
    open: Option<u64>,
}

/// Names in use; ids of names that are not are used again.
#[derive(Debug, Default)]
struct Names {
    /// Lock id, and how often it is bound.
    ids: HashMap<(LockName, Kind), (u64, usize)>,
    free: Vec<u64>,
    used: u64,
}

impl MemBackend {
    pub(crate) fn new() -> Self {
        Self {
            number: NEXT.fetch_add(1, Relaxed),
            locks: Arc::default(),
            names: Mutex::default(),
            values: Arc::default(),
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request's number is in the place of the membership's.
const fn granted((id, token): (u32, u64)) -> Granted {
    Granted { grant: ProtocolGrant::Range { token }, record: RecordId::new(id, 0) }
}

const fn request(granted: &Granted) -> u32 {
    granted.record.member()
}

/// As it was granted.
fn token_of(granted: &Granted) -> u64 {
    match granted.grant {
        ProtocolGrant::Range { token } => token,
        #[cfg(target_os = "linux")]
        _ => unreachable!("a space gets back the grants that it gave out"),
    }
}

fn not_held() -> ValueError {
    ValueError::Refused("the lock is not held".to_owned())
}

fn locked<T>(values: &Mutex<T>) -> MutexGuard<'_, T> {
    values.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(why: DenyReason) -> Refused {
    match why {
        DenyReason::Busy => Refused::Busy,
        DenyReason::Refused(why) => Refused::Error(LockError::Refused(why.to_string())),
    }
}

impl Space for MemBackend {
    fn identity(&self) -> SpaceIdentity {
        SpaceIdentity::Process(self.number)
    }

    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let mut names = self.names();
        let key = (name.clone(), kind);
        if let Some((id, bound)) = names.ids.get_mut(&key) {
            *bound += 1;
            return Ok(Bound { lock: *id, ..Bound::default() });
        }
        let id = match names.free.pop() {
            Some(id) => id,
            None if names.used < LOCKS => {
                names.used += 1;
                names.used - 1
            }
            None => return Err(HandleError::TooManyLocks(format!("{LOCKS} names are in use"))),
        };
        names.ids.insert(key, (id, 1));
        Ok(Bound { lock: id, ..Bound::default() })
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        Ok(Protocols::new("combiner", "combiner"))
    }

    fn is_bound(&self, _: &Bound) -> bool {
        true
    }

    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind) {
        let mut names = self.names();
        let key = (name.clone(), kind);
        let Some((_, uses)) = names.ids.get_mut(&key) else { return };
        *uses -= 1;
        if *uses == 0 {
            names.ids.remove(&key);
            names.free.push(bound.lock);
        }
    }

    fn heartbeat(&self) -> Duration {
        Duration::MAX
    }
}

impl Locker for MemBackend {
    fn try_acquire_fast(&self, kind: Kind, claim: Claim) -> Option<Result<Granted, Refused>> {
        Some(self.locks.try_acquire(kind, &claim).map(granted).map_err(refused))
    }

    fn acquire_cancels_on_drop(&self) -> bool {
        true
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        let acquire = self.locks.acquire(kind, claim);
        Box::pin(async move { acquire.await.map(granted).map_err(refused) })
    }

    fn release_fast(&self, _: Kind, _: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        self.locks.release(request(granted));
        Some(Ok(()))
    }

    fn release(&self, kind: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        Box::pin(std::future::ready(self.release_fast(kind, claim, &granted).unwrap_or(Ok(()))))
    }

    fn upgrade(
        &self,
        _: Kind,
        _: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let id = request(granted);
        let upgrade = self.locks.upgrade(id, wait);
        Box::pin(async move { upgrade.await.map(|token| self::granted((id, token))) })
    }

    fn downgrade(&self, _: Kind, _: Claim, granted: &Granted) -> BoxFuture<Result<Granted, ChangeError>> {
        let (id, locks) = (request(granted), Arc::clone(&self.locks));
        Box::pin(async move { Ok(self::granted((id, locks.downgrade(id)))) })
    }

    fn unlock_part(
        &self,
        granted: &Granted,
        claim: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Granted>, ChangeError> {
        let (id, two) = (request(granted), claim.start < part.start && part.end < claim.end);
        let why = "the space has no room for another lock, and two would be left";
        let no_room = || ChangeError::TooManyLocks(why.to_owned());
        let rest = self.locks.unlock_part(id, part, two).ok_or_else(no_room)?;
        Ok(two.then(|| self::granted((rest, self.locks.token(rest)))))
    }

    fn value(
        &self,
        name: &LockName,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Value, ValueError>> {
        let (name, granted) = (name.clone(), *granted);
        let (locks, values) = (Arc::clone(&self.locks), Arc::clone(&self.values));
        Box::pin(async move {
            let mut values = locked(&values);
            let token = locks.held_token(request(&granted), token_of(&granted)).ok_or_else(not_held)?;
            let Some(value) = values.get_mut(&name) else {
                return Ok(Value { bytes: Vec::new(), clean: true, durable: false, age: Duration::ZERO });
            };
            let alone = claim.mode == Mode::Exclusive;
            let clean = value.open.is_none_or(|open| alone && open == token);
            if alone && value.open.is_none() {
                value.open = Some(token);
            }
            Ok(Value { bytes: value.bytes.clone(), clean, durable: false, age: value.set.elapsed() })
        })
    }

    fn set_value(
        &self,
        name: &LockName,
        _: Claim,
        granted: &Granted,
        bytes: &[u8],
    ) -> BoxFuture<Result<(), ValueError>> {
        let (name, granted, bytes) = (name.clone(), *granted, bytes.to_vec());
        let (locks, values) = (Arc::clone(&self.locks), Arc::clone(&self.values));
        Box::pin(async move {
            let mut values = locked(&values);
            let token = locks.held_token(request(&granted), token_of(&granted)).ok_or_else(not_held)?;
            values.insert(name, MemValue { bytes, set: Instant::now(), open: Some(token) });
            Ok(())
        })
    }

    fn description(&self) -> &'static str {
        "mem:"
    }

    fn watch_contention(&self, _: Kind, _: Claim, granted: &Granted, contention: &Arc<Contention>) -> bool {
        self.locks.watch(request(granted), contention);
        true
    }

    fn close_value(&self, name: &LockName, granted: &Granted) {
        let mut values = locked(&self.values);
        let Some(value) = values.get_mut(name) else { return };
        if value.open == Some(token_of(granted)) {
            value.open = None;
            if value.bytes.is_empty() {
                values.remove(name);
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn entries_of(&self, name: &LockName, _: Claim) -> Result<Vec<Entry>, LockError> {
        let names = self.names();
        let kinds = [Kind::Keyed, Kind::Ranges, Kind::Semaphores];
        let ids = kinds.iter().filter_map(|kind| Some((*kind, names.ids.get(&(name.clone(), *kind))?.0)));
        Ok(ids.flat_map(|(kind, id)| self.locks.entries_of(name, kind, id)).collect())
    }

    /// After a change that nobody waited for it is known here only.
    fn token(&self, granted: &Granted) -> u64 {
        self.locks.token(request(granted))
    }

    fn standing(&self, _: Kind, _: Claim, _: &Granted) -> Standing {
        Standing::Held
    }
}
