//! `tcp://host:port/shm:?verbs`: a client that runs the protocol of an exported space itself.
//!
//! The server executes its verbs on the words of the host's shared memory, carries its messages to and from the processes
//! there, and lends it a place in the space; the client is a *guest*. Local processes and guests are in one queue and hand
//! the lock to each other. What the server still does for a guest: names, and writing down what it does
//! ([`book`]). Ranges are taken by the server, as without `?verbs`.
//!
//! A guest lives as long as its session: what it holds is free as soon as the session is over, whatever the reason, and
//! nothing is claimed. It is trusted: it could write anything into any lock's word.
//!
//! | file | |
//! |---|---|
//! | `endpoint` | the session's endpoint under the guest's name |
//! | `book` | cards, and whether the guest is still in |
//! | `guest` | locks taken by its cards |

mod book;
mod endpoint;
mod guest;

use self::endpoint::GuestEndpoint;
use self::guest::Guest;
use super::RemoteHome;
use super::driver::{self, Elsewhere};
use super::inquiry;
use super::link::Remote;
use crate::error::{HandleError, LockError};
use crate::home::{AnyGrant, Bound, BoxFuture, Home, Kind, Refused, Standing, Ticket};
use crate::name::LockName;
use lockwright_fabric::observe::Claim;
use lockwright_locks::shiftlock::ShiftGrant;
use lockwright_locks::{Grant, Lost};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// What an address ends with if the client is to run the protocol.
pub(crate) const SUFFIX: &str = "?verbs";

/// An exported space whose protocol this client runs.
#[derive(Debug)]
pub(crate) struct VerbsHome {
    remote: Arc<Remote>,
    /// For ranges. It ends the session when it goes, so whatever is under way keeps it.
    plain: Arc<RemoteHome>,
    guest: Mutex<Option<Arc<Guest>>>,
    /// The handle by which the server knows a lock, for every lock that is bound.
    handles: Mutex<HashMap<u64, u64>>,
}

impl VerbsHome {
    pub(crate) fn new(remote: Arc<Remote>) -> Self {
        let plain = Arc::new(RemoteHome::new(Arc::clone(&remote)));
        Self { remote, plain, guest: Mutex::default(), handles: Mutex::default() }
    }

    /// Who we are in the space now.
    fn guest(&self) -> Result<Arc<Guest>, LockError> {
        let line = self.remote.line();
        if let Some(why) = line.refusal() {
            return Err(why);
        }
        let (Some((number, me)), Some(ep)) = (line.table.guest, line.session()) else {
            return Err(LockError::Server("the server cannot be reached".to_owned()));
        };
        let ep = GuestEndpoint { ep, me };
        drop(line);
        let mut guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*guest {
            Some(guest) if guest.number >= number => Ok(Arc::clone(guest)),
            _ => Ok(Arc::clone(guest.insert(Arc::new(Guest::new(&self.remote, number, ep))))),
        }
    }

    /// The guest that was granted `ticket`, if it still is one.
    fn granted(&self, ticket: &Ticket) -> Option<(Arc<Guest>, ShiftGrant)> {
        let AnyGrant::Shift(grant) = ticket.grant else { return None };
        let guest = self.guest().ok().filter(|guest| guest.number == ticket.seat.member())?;
        Some((guest, grant))
    }

    fn take(&self, claim: Claim, wait: bool) -> BoxFuture<Result<Ticket, Refused>> {
        match self.guest() {
            Ok(guest) => self.attended(guest.take(claim, wait)),
            Err(error) => Box::pin(std::future::ready(Err(Refused::Error(error)))),
        }
    }

    fn attended<T>(&self, future: impl Future<Output = T> + Send + 'static) -> BoxFuture<T>
    where
        T: 'static,
    {
        Box::pin(Attended::new(&self.plain, future))
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, HashMap<u64, u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future whose answers somebody reads, wherever it is polled.
pub(super) struct Attended<T> {
    future: BoxFuture<T>,
    home: Arc<RemoteHome>,
    elsewhere: Option<Elsewhere>,
}

impl<T> Attended<T> {
    pub(super) fn new(home: &Arc<RemoteHome>, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { home: Arc::clone(home), future: Box::pin(future), elsewhere: None }
    }
}

impl<T> Future for Attended<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        let polled = this.future.as_mut().poll(cx);
        if polled.is_pending() {
            this.elsewhere = this.elsewhere.take().or_else(|| this.home.remote.driver().wait_elsewhere());
        }
        polled
    }
}

impl Home for VerbsHome {
    /// Blocks for one round trip.
    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let plain = self.plain.bind(name, kind)?;
        if kind == Kind::Ranges {
            return Ok(plain);
        }
        let why = |why: String| HandleError::Space { why };
        let by = self.guest().map_err(|error| why(error.to_string()))?.number;
        let handle = plain.lock;
        let (lock, token_base) = inquiry::place_of(&self.remote, handle).map_err(why)?;
        let before = self.handles().insert(lock, handle);
        if let Some(handle) = before {
            self.plain.unbind(name, Bound { lock: handle, ..plain }, kind);
        }
        Ok(Bound { lock, token_base, by })
    }

    fn is_bound(&self, bound: &Bound) -> bool {
        // Names outlive sessions at the server, under the handles that they were given; places in the space may not.
        bound.by == 0 || self.guest().map_or(true, |guest| guest.number == bound.by)
    }

    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind) {
        if kind == Kind::Ranges {
            return self.plain.unbind(name, bound, kind);
        }
        if let Some(handle) = self.handles().remove(&bound.lock) {
            self.plain.unbind(name, Bound { lock: handle, ..bound }, kind);
        }
    }

    fn try_acquire(&self, kind: Kind, claim: Claim) -> Result<Ticket, Refused> {
        match kind {
            Kind::Keyed => driver::outcome(&self.remote, self.take(claim, false)),
            Kind::Ranges => self.plain.try_acquire(kind, claim),
        }
    }

    fn try_soon(&self, kind: Kind, claim: Claim) -> Option<BoxFuture<Result<Ticket, Refused>>> {
        match kind {
            Kind::Keyed => Some(self.take(claim, false)),
            Kind::Ranges => self.plain.try_soon(kind, claim),
        }
    }

    fn tries_first(&self) -> bool {
        false
    }

    fn drive(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        self.remote.drive(future);
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        match kind {
            Kind::Keyed => self.take(claim, true),
            Kind::Ranges => self.plain.acquire(kind, claim),
        }
    }

    fn release(&self, kind: Kind, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        match (&ticket.grant, self.granted(&ticket)) {
            (AnyGrant::Remote(_), _) => self.plain.release(kind, claim, ticket),
            (_, Some((guest, grant))) => self.attended(guest.give_back(ticket.seat.card(), grant)),
            (_, None) => Box::pin(std::future::ready(Err(Lost::Recovered))),
        }
    }

    fn release_unheard(&self, ticket: &Ticket) -> bool {
        matches!(ticket.grant, AnyGrant::Remote(_)) && self.plain.release_unheard(ticket)
    }

    fn token(&self, ticket: &Ticket) -> u64 {
        match &ticket.grant {
            AnyGrant::Shift(grant) => grant.token().unwrap_or_default(),
            _ => self.plain.token(ticket),
        }
    }

    fn standing(&self, kind: Kind, claim: Claim, ticket: &Ticket) -> Standing {
        if matches!(ticket.grant, AnyGrant::Remote(_)) {
            return self.plain.standing(kind, claim, ticket);
        }
        let Some((guest, grant)) = self.granted(ticket) else { return Standing::Lost };
        let line = self.remote.line();
        let (reachable, expired) = (line.is_reachable(), line.is_expired());
        drop(line);
        if !reachable {
            return if expired { Standing::Lost } else { Standing::Uncertain };
        }
        let card = ticket.seat.card();
        let holds = self.attended(async move { guest.client(card).lock().holds(&grant).await });
        match driver::outcome(&self.remote, holds) {
            Ok(true) => Standing::Held,
            Ok(false) => Standing::Lost,
            Err(_) => Standing::Uncertain,
        }
    }

    fn heartbeat(&self) -> Duration {
        self.plain.heartbeat()
    }
}
