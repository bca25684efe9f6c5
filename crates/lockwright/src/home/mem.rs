//! `mem:`, a space inside this process: for tests, and for threads that want the same locks as processes have.
//!
//! Every `Client::open("mem:")` makes a space of its own; clones of the client share it. It dies with them.

use super::hosted::{Drive, Seats, drive};
use super::{BoxFuture, Home, Kind, Seat, Standing, Ticket};
use crate::error::{HandleError, LockError};
use crate::name::LockName;
use lockwright_fabric::PeerId;
use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint};
use lockwright_fabric::observe::Claim;
use lockwright_locks::baseline::mcs::Mcs;
use lockwright_locks::{Denied, Lost, Patience, Protocol, Space, Want};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Locks that a space has room for.
const LOCKS: u64 = 1 << 16;

drive!(
    /// Keyed locks between threads.
    Keyed,
    Mcs,
    InProcEndpoint,
    Ticket::Held
);

/// A space in this process.
pub(crate) struct MemHome {
    space: Space,
    fabric: InProc,
    keyed: Seats<Keyed>,
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
        let space = Space::of(LOCKS);
        let fabric = InProc::new(1, <Mcs>::bytes_per_node(&space, &()));
        Self { space, fabric, keyed: Seats::new(), names: Mutex::default() }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemHome").field("space", &self.space).finish_non_exhaustive()
    }
}

const fn want(claim: Claim) -> Want {
    Want { claim, patience: Patience::Forever }
}

impl Home for MemHome {
    fn bind(&self, name: &LockName, kind: Kind) -> Result<u64, HandleError> {
        let mut names = self.names();
        let key = (name.clone(), kind);
        if let Some((id, bound)) = names.ids.get_mut(&key) {
            *bound += 1;
            return Ok(*id);
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
        Ok(id)
    }

    fn unbind(&self, lock: u64, kind: Kind) {
        let mut names = self.names();
        let mut unused = false;
        names.ids.retain(|(_, of), (id, bound)| {
            if *id == lock && *of == kind {
                *bound -= 1;
                unused = *bound == 0;
                return *bound > 0;
            }
            true
        });
        if unused {
            names.free.push(lock);
        }
    }

    fn sit(&self, seat: Seat) -> Result<(), LockError> {
        let make = || {
            let ep = self.fabric.endpoint(PeerId::client(usize::from(seat)));
            Ok(<Mcs>::client(ep, &self.space, &()))
        };
        self.keyed.get_or_make(seat, make).map(drop)
    }

    fn try_acquire(&self, seat: Seat, _: Kind, claim: Claim) -> Result<Ticket, Denied> {
        Keyed::try_acquire(self.keyed.get(seat), want(claim))
    }

    fn acquire(&self, seat: Seat, _: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Denied>> {
        Keyed::acquire(self.keyed.get(seat).clone(), want(claim))
    }

    fn release(&self, seat: Seat, _: Kind, _: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        Keyed::release(self.keyed.get(seat).clone(), ticket)
    }

    fn token(&self, _: &Ticket) -> u64 {
        1
    }

    fn standing(&self, _: Seat, _: Kind, _: Claim, _: &Ticket) -> Standing {
        Standing::Held
    }

    fn heartbeat(&self) -> Duration {
        Duration::MAX
    }
}
