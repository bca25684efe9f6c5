//! A space whose locks this client takes as a guest: its names, and whichever membership there is now.
//!
//! Names go the way of every other client of the server, through [`RemoteBackend`].

use super::super::RemoteBackend;
use super::super::driver::{self, OtherWaiter};
use super::super::inquiry;
use super::super::link::Remote;
use super::{Guest, GuestKind};
use crate::error::{HandleError, LockError, LostReason};
use crate::home::{
    Bound, BoxFuture, GivenUp, Granted, Kind, Locker, ProtocolGrant, Refused, Space, SpaceIdentity, Standing,
};
use crate::name::LockName;
use lockwright_fabric::observe::Claim;
use lockwright_locks::{Grant, Lost};
use std::collections::HashMap;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(crate) struct GuestBackend<W: GuestKind> {
    remote: Arc<Remote>,
    /// For names. It ends the session when it goes, so whatever is under way keeps it.
    plain: Arc<RemoteBackend>,
    guest: Mutex<Option<Arc<Guest<W>>>>,
    /// The handle by which the server knows a lock, for every lock that is bound.
    handles: Mutex<HashMap<(Kind, u64), u64>>,
}

impl<W: GuestKind> GuestBackend<W> {
    pub(crate) fn new(remote: Arc<Remote>) -> Self {
        let plain = Arc::new(RemoteBackend::new(Arc::clone(&remote)));
        Self { remote, plain, guest: Mutex::default(), handles: Mutex::default() }
    }

    /// Who we are in the space now.
    fn guest(&self) -> Result<Arc<Guest<W>>, LockError> {
        let line = self.remote.line();
        if let Some(why) = line.refusal() {
            return Err(why);
        }
        let (Some((number, me)), Some(ep)) = (line.table.guest, line.reach()) else {
            return Err(LockError::Disconnected("the server cannot be reached".to_owned()));
        };
        drop(line);
        let mut guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*guest {
            Some(guest) if guest.number >= number => Ok(Arc::clone(guest)),
            _ => Ok(Arc::clone(guest.insert(Arc::new(Guest::new(&self.remote, number, ep.of(me)))))),
        }
    }

    /// The guest that was granted `granted`, if it still is one.
    fn granted(&self, granted: &Granted) -> Option<Arc<Guest<W>>> {
        self.guest().ok().filter(|guest| guest.number == granted.record.member())
    }

    fn take(
        &self,
        kind: Kind,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> BoxFuture<Result<Granted, Refused>> {
        match self.guest() {
            Ok(guest) => self.attended(W::take(guest, kind, claim, given_up)),
            Err(error) => Box::pin(ready(Err(Refused::Error(error)))),
        }
    }

    fn attended<T: 'static>(&self, future: BoxFuture<T>) -> BoxFuture<T> {
        Box::pin(Attended { future, home: Arc::clone(&self.plain), elsewhere: None })
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<(Kind, u64), u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future whose answers somebody reads, wherever it is polled.
struct Attended<T> {
    future: BoxFuture<T>,
    home: Arc<RemoteBackend>,
    elsewhere: Option<OtherWaiter>,
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

impl<W: GuestKind> Space for GuestBackend<W> {
    fn identity(&self) -> SpaceIdentity {
        self.plain.identity()
    }

    /// Blocks for one round trip.
    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let why = |why: String| HandleError::Disconnected(why);
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
        bound.by == 0 || self.guest().map_or(true, |guest| guest.number == bound.by)
    }

    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind) {
        if let Some(handle) = self.handles().remove(&(kind, bound.lock)) {
            self.plain.unbind(name, Bound { lock: handle, ..bound }, kind);
        }
    }

    fn block_on(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        self.remote.drive(future);
    }

    fn heartbeat(&self) -> Duration {
        self.plain.heartbeat()
    }

    fn stop_time(&self) -> Option<Duration> {
        self.plain.stop_time()
    }
}

impl<W: GuestKind> Locker for GuestBackend<W> {
    fn try_acquire_fast(&self, _: Kind, _: Claim) -> Option<Result<Granted, Refused>> {
        None
    }

    fn try_acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        self.take(kind, claim, None)
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        self.take(kind, claim, Some(GivenUp::default()))
    }

    fn acquire_unless(
        &self,
        kind: Kind,
        claim: Claim,
        given_up: GivenUp,
    ) -> BoxFuture<Result<Granted, Refused>> {
        self.take(kind, claim, Some(given_up))
    }

    fn release(&self, _: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        match self.granted(&granted) {
            Some(guest) => self.attended(W::give_back(guest, claim, granted)),
            None => Box::pin(ready(Err(Lost::Recovered))),
        }
    }

    fn release_unobserved(&self, _: Kind, _: Claim, _: &Granted) -> bool {
        false
    }

    fn description(&self) -> &'static str {
        W::IS
    }

    fn token(&self, granted: &Granted) -> u64 {
        match &granted.grant {
            ProtocolGrant::Shift(grant) => grant.token().unwrap_or_default(),
            ProtocolGrant::Range { token } => *token,
            _ => unreachable!("a space gets back the grants that it gave out"),
        }
    }

    fn standing(&self, _: Kind, claim: Claim, granted: &Granted) -> Standing {
        let Some(guest) = self.granted(granted) else { return Standing::Lost(LostReason::Evicted) };
        let line = self.remote.line();
        let (reachable, expired) = (line.is_reachable(), line.is_expired());
        drop(line);
        if !reachable {
            return if expired { Standing::Lost(LostReason::Disconnected) } else { Standing::Uncertain };
        }
        match driver::outcome(&self.remote, self.attended(W::holds(guest, claim, *granted))) {
            Ok(true) => Standing::Held,
            Ok(false) => Standing::Lost(LostReason::Broken),
            Err(_) => Standing::Uncertain,
        }
    }
}
