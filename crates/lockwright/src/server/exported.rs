//! A space of this host's shared memory, offered to clients elsewhere: the server takes the locks for them.
//!
//! Remote clients and local processes contend for the same words. For the space the server is one process like any
//! other, which holds what its sessions hold: it uses the client library itself. A session's locks are released when the
//! session is lost; when the server dies, its locks are free at once, as those of any process that dies.

use super::books::Books;
use super::desk::Desk;
use super::session::{Request, Stage};
use crate::client::Client;
use crate::error::{HandleError, LockError, OpenError};
use crate::home::Kind;
use crate::lock::{Acquire, AnyGuard, RangeLock, RwLock};
use crate::name::LockName;
use crate::remote::talk::{Answer, RequestId, Units};
use lockwright_fabric::observe::Mode;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// A space of this host.
#[derive(Debug)]
pub(super) struct Exported {
    pub(super) address: String,
    client: Client,
}

/// A lock of it.
#[derive(Clone, Debug)]
pub(super) enum Handle {
    Keyed(RwLock),
    Ranges(RangeLock),
}

/// A request of a session, as far as shared memory is concerned.
#[derive(Debug)]
pub(super) enum Held {
    /// Waited for by a task, which ends with this.
    Waiting(#[expect(dead_code, reason = "it is there to be dropped")] Task),
    /// Not in place: most requests are for the server's own locks, and would be twice the size.
    Granted(Box<AnyGuard>),
}

impl Held {
    pub(super) const fn is_held(&self) -> bool {
        matches!(self, Held::Granted(_))
    }
}

/// A task that ends when nobody wants to know its outcome any more.
#[derive(Debug)]
pub(super) struct Task(AbortHandle);

impl Task {
    pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Exported {
    /// Opens the space at `address`, and makes it if it is not there.
    pub(super) fn open(address: &str) -> Result<Self, OpenError> {
        Ok(Self { address: address.to_owned(), client: Client::open(address).wait()? })
    }

    pub(super) fn handle(&self, kind: Kind, name: &LockName) -> Result<Handle, HandleError> {
        match kind {
            Kind::Keyed => self.client.rwlock(name.as_bytes()).map(Handle::Keyed),
            Kind::Ranges => self.client.range_lock(name.as_bytes()).map(Handle::Ranges),
        }
    }
}

impl Handle {
    fn acquire(&self, units: &Units, wait: bool) -> Acquire<AnyGuard> {
        let patience = (!wait).then_some(Duration::ZERO);
        match (self, patience, units.mode) {
            (Handle::Keyed(lock), None, Mode::Exclusive) => lock.write().into_any(),
            (Handle::Keyed(lock), None, Mode::Shared) => lock.read().into_any(),
            (Handle::Keyed(lock), Some(patience), Mode::Exclusive) => lock.write_timeout(patience).into_any(),
            (Handle::Keyed(lock), Some(patience), Mode::Shared) => lock.read_timeout(patience).into_any(),
            (Handle::Ranges(lock), None, Mode::Exclusive) => lock.write(units.start..units.end).into_any(),
            (Handle::Ranges(lock), None, Mode::Shared) => lock.read(units.start..units.end).into_any(),
            (Handle::Ranges(lock), Some(patience), Mode::Exclusive) => {
                lock.write_timeout(units.start..units.end, patience).into_any()
            }
            (Handle::Ranges(lock), Some(patience), Mode::Shared) => {
                lock.read_timeout(units.start..units.end, patience).into_any()
            }
        }
    }

    /// Takes the lock for a session: at once, or by a task that waits for it.
    pub(super) fn lock(
        &self,
        desk: &Desk,
        open: &mut Books,
        peer: u32,
        (id, units, wait): (RequestId, Units, bool),
    ) {
        let Some(serial) = open.session(peer).map(|session| session.serial) else { return };
        let mut acquire = Box::pin(self.acquire(&units, wait));
        let began = Instant::now();
        let tried = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let outcome = match tried {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        };
        let stage = match outcome {
            Some(Ok(guard)) => {
                Stage::Exported(Held::Granted(Box::new(watched(guard, desk, peer, serial, id))))
            }
            Some(Err(error)) => return refuse(open, peer, id, &error),
            None => Stage::Exported(Held::Waiting(wait_for(acquire, desk, peer, serial, id))),
        };
        let token =
            if let Stage::Exported(Held::Granted(guard)) = &stage { Some(guard.token()) } else { None };
        let request = Request::new(id, None, units, began, stage, token.is_none());
        let Some(session) = open.session(peer) else { return };
        match session.put(request) {
            Err(why) => open.refuse(peer, id, why),
            Ok(()) => {
                if let Some(token) = token {
                    open.totals.exported_grants += 1;
                    open.say(peer, &Answer::Granted { id, token });
                }
            }
        }
    }
}

fn refuse(open: &mut Books, peer: u32, id: RequestId, error: &LockError) {
    if *error == LockError::TimedOut {
        open.totals.busy += 1;
        open.say(peer, &Answer::Busy { id });
    } else {
        open.refuse(peer, id, error.to_string());
    }
}

/// Waits for the lock without holding anybody up.
fn wait_for(
    acquire: Pin<Box<Acquire<AnyGuard>>>,
    desk: &Desk,
    peer: u32,
    serial: u64,
    id: RequestId,
) -> Task {
    let desk = desk.clone();
    Task::spawn(async move {
        let outcome = acquire.await;
        let mut open = desk.books();
        let Some(session) = open.session(peer).filter(|session| session.serial == serial) else { return };
        match outcome {
            Ok(guard) => {
                // Given up meanwhile: the guard is dropped, and the lock goes on.
                let Some(request) = session.request(id) else { return };
                let token = guard.token();
                request.since = Instant::now();
                request.stage =
                    Stage::Exported(Held::Granted(Box::new(watched(guard, &desk, peer, serial, id))));
                open.totals.exported_grants += 1;
                open.say(peer, &Answer::Granted { id, token });
            }
            Err(error) => {
                if session.take(id).is_some() {
                    refuse(&mut open, peer, id, &error);
                }
            }
        }
    })
}

/// Tells the session if the lock is taken away.
fn watched(guard: AnyGuard, desk: &Desk, peer: u32, serial: u64, id: RequestId) -> AnyGuard {
    let desk = desk.downgrade();
    guard.on_lost(move |_| {
        let Some(desk) = Desk::upgrade(&desk) else { return };
        let mut open = desk.books();
        let Some(session) = open.session(peer).filter(|session| session.serial == serial) else { return };
        let lost = session.take(id);
        if lost.is_some() {
            open.totals.lost += 1;
            open.say(peer, &Answer::Lost { id });
        }
        drop(open);
        drop(lost);
    });
    guard
}
