//! `rdma://host:port/lent:NAME`: a client that takes the locks of a lent space by verbs of its own.
//!
//! The server lets it in, lends it the memory, and turns names into ids, once for each handle. Everything else, taking and
//! giving back locks and ranges, waiting, clearing away after the dead, is READs, WRITEs and atomics of this client, and
//! messages between clients. `crate::lent` says what is in the memory.
//!
//! A membership lives as long as its session: what it holds is free as soon as the session is over, whatever the reason, and
//! nothing is claimed.
//!
//! | file | |
//! |---|---|
//! | `endpoint` | the session's endpoint under the client's number in the space |
//! | `guest` | locks and ranges taken by its cards |

pub(super) mod endpoint;
mod guest;

use self::guest::Guest;
use super::RemoteHome;
use super::driver;
use super::inquiry;
use super::link::Remote;
use super::verbs::{Attended, SUFFIX};
use crate::error::{HandleError, LockError, OpenError};
use crate::home::{AnyGrant, Bound, BoxFuture, Home, Kind, Refused, Standing, Ticket};
use crate::lent::layout::SCHEME;
use crate::name::LockName;
use lockwright_fabric::Endpoint;
use lockwright_fabric::observe::Claim;
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;
use lockwright_locks::{Grant, Lost};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The space as the server is asked for it, if `space` is a lent one.
pub(crate) fn wanted(space: &[u8]) -> Option<Vec<u8>> {
    let space = space.strip_suffix(SUFFIX.as_bytes()).unwrap_or(space);
    let name = space.strip_prefix(SCHEME.as_bytes())?;
    let name = if name.is_empty() { &b"default"[..] } else { name };
    Some([SCHEME.as_bytes(), name, SUFFIX.as_bytes()].concat())
}

/// A lent space.
#[derive(Debug)]
pub(crate) struct LentHome {
    remote: Arc<Remote>,
    /// For names. It ends the session when it goes, so whatever is under way keeps it.
    plain: Arc<RemoteHome>,
    guest: Mutex<Option<Arc<Guest>>>,
    /// The handles by which the server knows a lock, for every lock that is bound.
    handles: Mutex<HashMap<(Kind, u64), u64>>,
}

impl LentHome {
    /// Looks at what the session brings: it must be able to do what the locks take.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn new(remote: Arc<Remote>, address: &str) -> Result<Self, OpenError> {
        let plain = Arc::new(RemoteHome::new(Arc::clone(&remote)));
        let home = Self { remote, plain, guest: Mutex::default(), handles: Mutex::default() };
        let refuse = |why: String| OpenError::Space { space: address.to_owned(), why };
        let reach = home.remote.line().reach();
        if let Some(ep) = reach {
            ep.is_large_enough().map_err(refuse)?;
            let fits = StirredPortable::NEEDS.met_by("kept-portable", ep.capabilities());
            fits.map_err(|error| refuse(error.to_string()))?;
        }
        Ok(home)
    }

    /// Who we are in the space now.
    fn guest(&self) -> Result<Arc<Guest>, LockError> {
        let line = self.remote.line();
        if let Some(why) = line.refusal() {
            return Err(why);
        }
        let (Some((number, me)), Some(ep)) = (line.table.guest, line.reach()) else {
            return Err(LockError::Server("the server cannot be reached".to_owned()));
        };
        drop(line);
        let mut guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*guest {
            Some(guest) if guest.number >= number => Ok(Arc::clone(guest)),
            _ => Ok(Arc::clone(guest.insert(Arc::new(Guest::new(number, ep.of(me)))))),
        }
    }

    /// The guest that was granted `ticket`, if it still is one.
    fn granted(&self, ticket: &Ticket) -> Option<Arc<Guest>> {
        self.guest().ok().filter(|guest| guest.number == ticket.seat.member())
    }

    fn take(&self, kind: Kind, claim: Claim, wait: bool) -> BoxFuture<Result<Ticket, Refused>> {
        match (self.guest(), kind) {
            (Ok(guest), Kind::Keyed) => self.attended(guest.take(claim, wait)),
            (Ok(guest), Kind::Ranges) => self.attended(guest.take_range(claim, wait)),
            (Err(error), _) => Box::pin(std::future::ready(Err(Refused::Error(error)))),
        }
    }

    fn attended<T: 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
        Box::pin(Attended::new(&self.plain, future))
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<(Kind, u64), u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Home for LentHome {
    /// Blocks for one round trip.
    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let why = |why: String| HandleError::Space { why };
        let by = self.guest().map_err(|error| why(error.to_string()))?.number;
        let plain = self.plain.bind(name, kind)?;
        let handle = plain.lock;
        let (lock, token_base) = inquiry::place_of(&self.remote, handle).map_err(why)?;
        let before = self.handles().insert((kind, lock), handle);
        if let Some(handle) = before {
            self.plain.unbind(name, Bound { lock: handle, ..plain }, kind);
        }
        Ok(Bound { lock, token_base, by })
    }

    fn is_bound(&self, bound: &Bound) -> bool {
        // Names outlive sessions at the server, under the handles that they were given; places in the space may not.
        self.guest().map_or(true, |guest| guest.number == bound.by)
    }

    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind) {
        if let Some(handle) = self.handles().remove(&(kind, bound.lock)) {
            self.plain.unbind(name, Bound { lock: handle, ..bound }, kind);
        }
    }

    fn try_acquire(&self, kind: Kind, claim: Claim) -> Result<Ticket, Refused> {
        driver::outcome(&self.remote, self.take(kind, claim, false))
    }

    fn try_soon(&self, kind: Kind, claim: Claim) -> Option<BoxFuture<Result<Ticket, Refused>>> {
        Some(self.take(kind, claim, false))
    }

    fn tries_first(&self) -> bool {
        false
    }

    fn drive(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        self.remote.drive(future);
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        self.take(kind, claim, true)
    }

    fn release(&self, _: Kind, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        match self.granted(&ticket) {
            Some(guest) => self.attended(guest.give_back(claim, ticket)),
            None => Box::pin(std::future::ready(Err(Lost::Recovered))),
        }
    }

    fn is(&self) -> &'static str {
        "memory that is lent"
    }

    fn token(&self, ticket: &Ticket) -> u64 {
        match &ticket.grant {
            AnyGrant::Shift(grant) => grant.token().unwrap_or_default(),
            AnyGrant::Range { token } => *token,
            _ => unreachable!("a space gets back the grants that it gave out"),
        }
    }

    fn standing(&self, kind: Kind, claim: Claim, ticket: &Ticket) -> Standing {
        let Some(guest) = self.granted(ticket) else { return Standing::Lost };
        let line = self.remote.line();
        let (reachable, expired) = (line.is_reachable(), line.is_expired());
        drop(line);
        if !reachable {
            return if expired { Standing::Lost } else { Standing::Uncertain };
        }
        match driver::outcome(&self.remote, self.attended(guest.holds(kind, claim, *ticket))) {
            Some(true) => Standing::Held,
            Some(false) => Standing::Lost,
            None => Standing::Uncertain,
        }
    }

    fn heartbeat(&self) -> Duration {
        self.plain.heartbeat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_space_is_asked_for_by_its_name_however_its_address_ends() {
        let of = |space: &str| wanted(space.as_bytes()).map(|space| String::from_utf8(space).unwrap());
        assert_eq!(of("lent:stock").as_deref(), Some("lent:stock?verbs"));
        assert_eq!(of("lent:stock?verbs").as_deref(), Some("lent:stock?verbs"));
        assert_eq!(of("lent:").as_deref(), Some("lent:default?verbs"));
        assert_eq!(of("stock"), None);
        assert_eq!(of("shm:?verbs"), None);
    }
}
