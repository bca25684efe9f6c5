//! `mem:`, a space inside this process: for tests, and for threads that want the same locks as processes have.
//!
//! Every `Client::open("mem:")` makes a space of its own; clones of the client share it. It dies with them. Nobody is
//! ever taken for dead here: threads do not die alone. Its locks are in `mem_locks`.

use super::mem_locks::{MemLocks, Why};
use super::{AnyGrant, Bound, BoxFuture, Home, Kind, Refused, Seat, Standing, Ticket};
use crate::error::{ChangeError, HandleError, LockError};
use crate::name::LockName;
use lockwright_fabric::observe::Claim;
use lockwright_locks::Lost;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks that a space has room for.
const LOCKS: u64 = 1 << 16;

/// A space in this process.
#[derive(Debug)]
pub(crate) struct MemHome {
    locks: Arc<MemLocks>,
    names: Mutex<Names>,
}

/// Names in use; ids of names that are not are used again.
#[derive(Debug, Default)]
struct Names {
    /// Lock id, and how often it is bound.
    ids: HashMap<(LockName, Kind), (u64, usize)>,
    free: Vec<u64>,
    used: u64,
}

impl MemHome {
    pub(crate) fn new() -> Self {
        Self { locks: Arc::default(), names: Mutex::default() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request is where the seat is.
const fn ticket((id, token): (u32, u64)) -> Ticket {
    Ticket { grant: AnyGrant::Range { token }, seat: Seat::new(id, 0) }
}

const fn request(ticket: &Ticket) -> u32 {
    ticket.seat.member()
}

fn refused(why: Why) -> Refused {
    match why {
        Why::Busy => Refused::Busy,
        Why::Refused(why) => Refused::Error(LockError::NoSeat(why.to_string())),
    }
}

impl Home for MemHome {
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
            None => return Err(HandleError::Full { why: format!("{LOCKS} names are in use") }),
        };
        names.ids.insert(key, (id, 1));
        Ok(Bound { lock: id, ..Bound::default() })
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

    fn try_now(&self, kind: Kind, claim: Claim) -> Option<Result<Ticket, Refused>> {
        Some(self.locks.try_acquire(kind, &claim).map(ticket).map_err(refused))
    }

    fn cancels_by_drop(&self) -> bool {
        true
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        let acquire = self.locks.acquire(kind, claim);
        Box::pin(async move { acquire.await.map(ticket).map_err(refused) })
    }

    fn release_at_once(&self, _: Kind, _: Claim, ticket: &Ticket) -> Option<Result<(), Lost>> {
        self.locks.release(request(ticket));
        Some(Ok(()))
    }

    fn release(&self, kind: Kind, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        Box::pin(std::future::ready(self.release_at_once(kind, claim, &ticket).unwrap_or(Ok(()))))
    }

    fn upgrade(&self, ticket: &Ticket, wait: bool) -> BoxFuture<Result<Ticket, ChangeError>> {
        let id = request(ticket);
        let upgrade = self.locks.upgrade(id, wait);
        Box::pin(async move { upgrade.await.map(|token| self::ticket((id, token))) })
    }

    fn downgrade(&self, ticket: &Ticket) -> BoxFuture<Result<Ticket, ChangeError>> {
        let (id, locks) = (request(ticket), Arc::clone(&self.locks));
        Box::pin(async move { Ok(self::ticket((id, locks.downgrade(id)))) })
    }

    fn unlock_part(
        &self,
        ticket: &Ticket,
        claim: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Ticket>, ChangeError> {
        let (id, two) = (request(ticket), claim.start < part.start && part.end < claim.end);
        let why = "the space has no room for another lock, and two would be left";
        let no_room = || ChangeError::BadPart { start: part.start, end: part.end, why };
        let rest = self.locks.unlock_part(id, part, two).ok_or_else(no_room)?;
        Ok(two.then(|| self::ticket((rest, self.locks.token(rest)))))
    }

    /// After a change that nobody waited for it is known here only.
    fn token(&self, ticket: &Ticket) -> u64 {
        self.locks.token(request(ticket))
    }

    fn standing(&self, _: Kind, _: Claim, _: &Ticket) -> Standing {
        Standing::Held
    }

    fn heartbeat(&self) -> Duration {
        Duration::MAX
    }
}
