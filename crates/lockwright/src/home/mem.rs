//! `mem:`, a space inside this process: for tests, and for threads that want the same locks as processes have.
//!
//! Every `Client::open("mem:")` makes a space of its own; clones of the client share it. It dies with them. Nobody is
//! ever taken for dead here: threads do not die alone.

use super::hosted::{Drive, drive};
use super::mem_ranges::MemRanges;
use super::{AnyGrant, Bound, BoxFuture, Home, Kind, Refused, Seat, Standing, Ticket};
use crate::error::HandleError;
use crate::name::LockName;
use lockwright_fabric::PeerId;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint};
use lockwright_fabric::observe::Claim;
use lockwright_locks::shiftlock::shared::SharedClient;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{Grant, Lost, Patience, Protocol, Space, Want};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks that a space has room for.
const LOCKS: u64 = 1 << 16;

drive!(
    /// Keyed locks between threads.
    Keyed,
    SharedClient<InProcEndpoint>,
    AnyGrant::Shift
);

/// A space in this process.
pub(crate) struct MemHome {
    client: Arc<<Keyed as Drive>::Client>,
    ranges: Arc<MemRanges>,
    names: Mutex<Names>,
    _fabric: InProc,
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
        let params = ShiftParams { lease_ns: 0, ..ShiftParams::default() };
        let space = Space::of(LOCKS);
        let fabric = InProc::new(1, <ShiftLock>::bytes_per_node(&space, &params));
        let client = <ShiftLock>::shared_client(fabric.endpoint(PeerId::client(0)), &space, &params);
        Self { client: Arc::new(client), ranges: Arc::default(), names: Mutex::default(), _fabric: fabric }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemHome").finish_non_exhaustive()
    }
}

const fn want(claim: Claim) -> Want {
    Want { claim, patience: Patience::Forever }
}

const fn ticket(grant: AnyGrant) -> Ticket {
    Ticket { grant, seat: Seat::new(0, 0) }
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

    fn try_acquire(&self, kind: Kind, claim: Claim) -> Result<Ticket, Refused> {
        match kind {
            Kind::Keyed => Keyed::try_acquire(&self.client, want(claim))
                .map(ticket)
                .map_err(|denied| Refused::new(denied, claim)),
            Kind::Ranges => {
                let token = self.ranges.try_acquire(claim).ok_or(Refused::Busy)?;
                Ok(ticket(AnyGrant::Range { token }))
            }
        }
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        match kind {
            Kind::Keyed => {
                let acquire = Keyed::acquire(Arc::clone(&self.client), want(claim));
                Box::pin(
                    async move { acquire.await.map(ticket).map_err(|denied| Refused::new(denied, claim)) },
                )
            }
            Kind::Ranges => {
                let ranges = Arc::clone(&self.ranges);
                Box::pin(async move { Ok(ticket(AnyGrant::Range { token: ranges.acquire(claim).await })) })
            }
        }
    }

    fn release(&self, _: Kind, _: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        match ticket.grant {
            AnyGrant::Range { token } => {
                self.ranges.release(token);
                Box::pin(std::future::ready(Ok(())))
            }
            grant => Keyed::release(Arc::clone(&self.client), grant),
        }
    }

    fn token(&self, ticket: &Ticket) -> u64 {
        match &ticket.grant {
            AnyGrant::Shift(grant) => grant.token().unwrap_or_default(),
            AnyGrant::Range { token } => *token,
            #[cfg(target_os = "linux")]
            AnyGrant::Prompt(_) | AnyGrant::Remote(_) => {
                unreachable!("a space gets back the grants that it gave out")
            }
        }
    }

    fn standing(&self, _: Kind, _: Claim, ticket: &Ticket) -> Standing {
        let AnyGrant::Shift(grant) = &ticket.grant else { return Standing::Held };
        match block_on(self.client.holds(grant)) {
            Ok(true) => Standing::Held,
            Ok(false) => Standing::Lost,
            Err(_) => Standing::Uncertain,
        }
    }

    fn heartbeat(&self) -> Duration {
        Duration::MAX
    }
}
