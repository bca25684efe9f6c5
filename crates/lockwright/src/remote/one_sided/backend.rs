//! A one-sided space as its client sees it: its names, and whichever membership there is now.
//!
//! Names go the way of every other client of the server, through [`RemoteBackend`].

use super::super::RemoteBackend;
use super::super::driver::{self, OtherWaiter};
use super::super::inquiry;
use super::super::link::{Remote, late};
use super::answered::Answered;
use super::member::OneSidedMember;
use crate::backend::{
    Bound, BoxFuture, GivenUp, Granted, Kind, Locker, ProtocolGrant, Refused, Space, SpaceIdentity, Standing,
};
use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, LostReason};
use crate::name::LockName;
use lockwright_fabric::observe::Claim;
use lockwright_locks::{Grant, Lost};
use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How soon what is under way is polled again.
const CLEARING: Duration = Duration::from_millis(5);

/// See the module.
pub(crate) struct OneSidedBackend {
    remote: Arc<Remote>,
    /// For names. It ends the session when it goes, so whatever is under way keeps it.
    plain: Arc<RemoteBackend>,
    member: Mutex<Option<Arc<OneSidedMember>>>,
    /// The handle by which the server knows a lock, for every lock that is bound.
    handles: Mutex<HashMap<(Kind, u64), u64>>,
    /// What clears away after a connection that broke, polled with every heartbeat.
    clearing: Mutex<Option<BoxFuture<()>>>,
}

impl fmt::Debug for OneSidedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneSidedBackend")
            .field("remote", &self.remote)
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

impl OneSidedBackend {
    pub(crate) fn new(remote: Arc<Remote>) -> Self {
        let plain = Arc::new(RemoteBackend::new(Arc::clone(&remote)));
        Self {
            remote,
            plain,
            member: Mutex::default(),
            handles: Mutex::default(),
            clearing: Mutex::default(),
        }
    }

    /// Who we are in the space now.
    fn member(&self) -> Result<Arc<OneSidedMember>, LockError> {
        let line = self.remote.line();
        if let Some(why) = line.refusal() {
            return Err(why);
        }
        let (number, me, ep) = match (line.table.member, line.reach()) {
            (Some((number, me)), Some(ep)) => (number, me, ep),
            (None, Some(_)) if line.table.is_open => {
                let why = "the server was restarted, and waits until those who held its locks have noticed";
                return Err(LockError::Disconnected(why.to_owned()));
            }
            _ => return Err(LockError::Disconnected("the server cannot be reached".to_owned())),
        };
        drop(line);
        let mut member = self.member.lock().unwrap_or_else(PoisonError::into_inner);
        match &*member {
            Some(member) if member.number >= number => Ok(Arc::clone(member)),
            _ => Ok(Arc::clone(member.insert(Arc::new(OneSidedMember::new(number, ep.of(me)))))),
        }
    }

    /// The member that was granted `granted`, if it still is one.
    fn granted(&self, granted: &Granted) -> Option<Arc<OneSidedMember>> {
        self.member().ok().filter(|member| member.number == granted.record.member())
    }

    fn take(
        &self,
        kind: Kind,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> BoxFuture<Result<Granted, Refused>> {
        match self.member() {
            Ok(member) => self.attended(OneSidedMember::take(member, kind, claim, given_up)),
            Err(error) => Box::pin(ready(Err(Refused::Error(error)))),
        }
    }

    fn attended<T: 'static>(&self, future: BoxFuture<T>) -> BoxFuture<T> {
        Box::pin(Attended { future, home: Arc::clone(&self.plain), elsewhere: None })
    }

    /// Goes on to clear away after a connection that broke. Says whether that is done.
    fn clear_doubtful(&self) -> bool {
        let mut clearing = self.clearing.lock().unwrap_or_else(PoisonError::into_inner);
        if clearing.is_none() {
            let member = self.member().ok().filter(|member| member.has_doubtful());
            *clearing = member.map(|member| self.attended(member.clear_doubtful()));
        }
        let Some(future) = clearing.as_mut() else { return true };
        let is_done = future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if is_done {
            *clearing = None;
        }
        is_done
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<(Kind, u64), u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future whose answers a thread reads, wherever it is polled.
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

impl Space for OneSidedBackend {
    fn identity(&self) -> SpaceIdentity {
        self.plain.identity()
    }

    /// Blocks for one round trip.
    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        if kind == Kind::Semaphores {
            return Err(HandleError::Unsupported("semaphores"));
        }
        let why = |why: String| HandleError::Disconnected(why);
        let by = self.member().map_err(|error| why(error.to_string()))?.number;
        let plain = self.plain.bind(name, kind)?;
        let handle = plain.lock;
        let place = inquiry::place_of(&self.remote, handle);
        let (lock, token_base) = place.map_err(|said| {
            self.plain.unbind(name, Bound { lock: handle, ..plain }, kind);
            why(said)
        })?;
        let before = self.handles().insert((kind, lock), handle);
        if let Some(handle) = before {
            self.plain.unbind(name, Bound { lock: handle, ..plain }, kind);
        }
        Ok(Bound { lock, token_base, by })
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        let asked = OneSidedMember::ranges(self.member()?);
        let asked = Answered::new(&self.remote, self.attended(Box::pin(asked)));
        Ok(driver::outcome(&self.remote, asked).ok_or_else(|| self.no_answer())??.protocols())
    }

    fn is_bound(&self, bound: &Bound) -> bool {
        // Names outlive sessions at the server, under the handles that they were given; places in the space may not.
        bound.by == 0 || self.member().map_or(true, |member| member.number == bound.by)
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
        let next = self.plain.heartbeat();
        if self.clear_doubtful() { next } else { next.min(CLEARING) }
    }

    fn stop_time(&self) -> Option<Duration> {
        self.plain.stop_time()
    }
}

impl Locker for OneSidedBackend {
    fn try_acquire_fast(&self, _: Kind, _: Claim) -> Option<Result<Granted, Refused>> {
        None
    }

    fn try_acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        self.take(kind, claim, None)
    }

    /// A server that does not answer does not say that a lock is free.
    fn answer_limit(&self) -> Option<Duration> {
        Some(self.remote.timeout())
    }

    fn no_answer(&self) -> LockError {
        LockError::Disconnected(late(self.remote.timeout()))
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
            Some(member) => self.attended(OneSidedMember::give_back(member, claim, granted)),
            None => Box::pin(ready(Err(Lost::Recovered))),
        }
    }

    fn release_unobserved(&self, _: Kind, _: Claim, _: &Granted) -> bool {
        false
    }

    fn description(&self) -> &'static str {
        "a one-sided space"
    }

    fn downgrade(&self, _: Kind, claim: Claim, granted: &Granted) -> BoxFuture<Result<Granted, ChangeError>> {
        let lost = ChangeError::Lost { token: self.token(granted) };
        let Some(member) = self.granted(granted) else { return Box::pin(ready(Err(lost))) };
        match member.downgrade(claim, *granted) {
            Some(changed) => self.attended(Box::pin(async move { changed.await.map_err(|_| lost) })),
            None => Box::pin(ready(Err(ChangeError::Unsupported(self.description())))),
        }
    }

    /// A record vouches for one range, and a node of a tree is held as a whole.
    fn unlock_part(&self, _: &Granted, _: &Claim, _: &Range<u64>) -> Result<Option<Granted>, ChangeError> {
        Err(ChangeError::Unsupported("a one-sided space, whose ranges are given back as a whole"))
    }

    fn token(&self, granted: &Granted) -> u64 {
        match &granted.grant {
            ProtocolGrant::Shift(grant) => grant.token().unwrap_or_default(),
            ProtocolGrant::Range { token } | ProtocolGrant::Asymmetric { token, .. } => *token,
            _ => unreachable!("a space gets back the grants that it gave out"),
        }
    }

    fn standing(&self, _: Kind, claim: Claim, granted: &Granted) -> Standing {
        let Some(member) = self.granted(granted) else { return Standing::Lost(LostReason::Evicted) };
        let line = self.remote.line();
        let (reachable, expired) = (line.is_reachable(), line.is_expired());
        drop(line);
        if !reachable {
            return if expired { Standing::Lost(LostReason::Disconnected) } else { Standing::Uncertain };
        }
        let asked = self.attended(OneSidedMember::holds(member, claim, *granted));
        match driver::outcome(&self.remote, Answered::new(&self.remote, asked)) {
            Some(Ok(true)) => Standing::Held,
            Some(Ok(false)) => Standing::Lost(LostReason::Broken),
            Some(Err(_)) | None => Standing::Uncertain,
        }
    }
}
