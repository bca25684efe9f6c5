//! A space of this host's shared memory, offered to clients elsewhere: the server takes the locks for them.
//!
//! Remote clients and local processes contend for the same words. For the space the server is one process like any
//! other, which holds what its sessions hold: it uses the client library itself. A session's locks are released when the
//! session is lost; when the server dies, its locks are free at once, as those of any process that dies.

use crate::dispatcher::{Event, EventSender};
use crate::lock_table::LockTable;
use crate::session::{RequestRecord, Stage};
use lockwright::Client;
use lockwright::LockName;
use lockwright::wire::Kind;
use lockwright::wire::{RequestId, Response, Units};
use lockwright::{Acquire, AnyGuard, RangeLock, RwLock};
use lockwright::{HandleError, LockError, OpenError};
use lockwright_fabric::observe::Mode;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle as Runtime;
use tokio::task::AbortHandle;

/// What the server is called in listings of the host, whoever's lock it holds.
pub(super) const PROGRAM: &str = "lockwright serve";

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

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Exported {
    /// Opens the space at `address`, and makes it if it is not there.
    pub(super) fn open(address: &str) -> Result<Self, OpenError> {
        let client = Client::options().program(PROGRAM).open(address).wait()?;
        Ok(Self { address: address.to_owned(), client })
    }

    /// The number of its memory.
    pub(super) fn identity(&self) -> Option<u128> {
        lockwright::internal::memory_of(&self.client)
    }

    pub(super) fn handle(&self, kind: Kind, name: &LockName) -> Result<Handle, HandleError> {
        match kind {
            Kind::Keyed => self.client.rwlock(name.as_bytes()).map(Handle::Keyed),
            Kind::Ranges => self.client.range_lock(name.as_bytes()).map(Handle::Ranges),
            // A handle of a semaphore has a limit, which only a request names.
            Kind::Semaphores => {
                Err(HandleError::Unsupported("semaphores by way of a server; open it on its host"))
            }
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
    pub(super) fn lock(&self, table: &mut LockTable, peer: u32, (id, units, wait): (RequestId, Units, bool)) {
        let (Some(session), Some(runtime)) =
            (table.session(peer).map(|session| session.serial), table.runtime.clone())
        else {
            return;
        };
        let waiter = Waiter { events: table.events.clone(), peer, session, id };
        let mut acquire = Box::pin(self.acquire(&units, wait));
        let began = Instant::now();
        let (held, token) = match acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(guard)) => {
                let token = guard.token();
                (Held::Granted(Box::new(waiter.watched(guard))), Some(token))
            }
            Poll::Ready(Err(error)) => return refuse(table, peer, id, &error),
            Poll::Pending => (Held::Waiting(waiter.wait_for(acquire, &runtime)), None),
        };
        let record =
            RequestRecord::new(id, None, units, began, Stage::Exported(Arc::new(held)), token.is_none());
        let Some(session) = table.session(peer) else { return };
        match (session.put(record), token) {
            (Err(why), _) => table.refuse(peer, id, why),
            (Ok(()), Some(token)) => granted(table, peer, id, token),
            (Ok(()), None) => {}
        }
    }
}

fn granted(table: &mut LockTable, peer: u32, id: RequestId, token: u64) {
    table.totals.exported_grants += 1;
    table.say(peer, &Response::Granted { id, token });
}

fn refuse(table: &mut LockTable, peer: u32, id: RequestId, error: &LockError) {
    if *error == LockError::TimedOut {
        table.totals.busy += 1;
        table.say(peer, &Response::Busy { id });
    } else {
        table.refuse(peer, id, error.to_string());
    }
}

/// Whose request it is.
struct Waiter {
    events: EventSender,
    peer: u32,
    session: u64,
    id: RequestId,
}

impl Waiter {
    /// Waits for the lock in a task. What comes of it is told through the queue.
    fn wait_for(self, acquire: Pin<Box<Acquire<AnyGuard>>>, runtime: &Runtime) -> Task {
        let Self { events, peer, session, id } = self;
        let task = async move {
            let outcome = acquire.await.map(Box::new);
            events.send(peer, Event::Acquired { session, id, outcome });
        };
        Task(runtime.spawn(task).abort_handle())
    }

    /// If the lock is taken away, that is told through the queue.
    fn watched(self, guard: AnyGuard) -> AnyGuard {
        let Self { events, peer, session, id } = self;
        guard.on_lost(move |_| events.send(peer, Event::Revoked { session, id }));
        guard
    }
}

/// A task has got the lock that a session waited for, or was refused it.
pub(super) fn acquired(
    table: &mut LockTable,
    peer: u32,
    session: u64,
    id: RequestId,
    outcome: Result<Box<AnyGuard>, LockError>,
) {
    let events = table.events.clone();
    let Some(of) = table.session(peer).filter(|of| of.serial == session) else { return };
    match outcome {
        Ok(guard) => {
            // Given up meanwhile: the guard is dropped, and the lock goes on.
            let Some(record) = of.request(id) else { return };
            let (waiter, token) = (Waiter { events, peer, session, id }, guard.token());
            record.since = Instant::now();
            record.stage = Stage::Exported(Arc::new(Held::Granted(Box::new(waiter.watched(*guard)))));
            granted(table, peer, id, token);
        }
        Err(error) => {
            if of.take(id).is_some() {
                refuse(table, peer, id, &error);
            }
        }
    }
}

/// A lock was taken away from a session.
pub(super) fn revoked(table: &mut LockTable, peer: u32, session: u64, id: RequestId) {
    let Some(of) = table.session(peer).filter(|of| of.serial == session) else { return };
    if of.take(id).is_some() {
        table.totals.lost += 1;
        table.say(peer, &Response::Lost { id });
    }
}
