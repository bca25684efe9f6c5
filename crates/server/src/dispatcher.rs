//! Dispatches client requests: decodes them, queues them, and applies them to the lock table in batches.
//!
//! Reader threads decode requests and push them onto the [`RequestQueue`]. One thread at a time is the *combiner* (flat
//! combining): it locks the table, takes up to [`BATCH`] requests off the queue, applies them and buffers the responses. A
//! thread that finds a combiner active goes back to its sockets. The combiner looks at the queue once more after it has
//! unlocked the table, so no request is left behind. Buffers are flushed with the table unlocked: one write per connection.
//!
//! | who | does |
//! |---|---|
//! | reader thread | [`VerbHost::deliver`] for each frame it has read, then [`Dispatcher::drain`] |
//! | combiner | at most [`MAX_BATCHES`] batches, then a task goes on, so that its own sockets are read, too |
//! | any other thread | [`Dispatcher::lock_table`]; what was queued meanwhile is applied when the guard is dropped |
//!
//! **No lost requests.** A thread pushes, then tries to lock the table. If that fails, the owner of the lock has yet to unlock
//! it, and looks at the queue after that. **Panics.** The request that a batch panicked on is gone; those behind it stay in
//! [`Combiner::batch`] and are applied by a task, or by the unwinding thread where there is no runtime.
//!
//! This file does not interpret requests, except to ask who sends a `Break`; `lock_table.rs` does.

use crate::combining;
use crate::lock_table::LockTable;
use crate::lock_table::sharded::Gate;
use crate::one_sided::OneSidedSpace;
use crate::socket_owner;
use lockwright::wire::{Request, RequestId, SERVER};
use lockwright::{AnyGuard, LockError};
use lockwright_fabric::backend::shm::monotonic_ns;
use lockwright_fabric::backend::tcp::{
    ConnectionInfo, HostError, Inbox, SessionEnd, VerbHost, coalesce_writes,
};
use lockwright_fabric::{Capabilities, Message, PeerId, RawVerb, RawWait, Time};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Instant;
use tokio::runtime::Handle;

/// Requests per batch: a fraction of a millisecond.
const BATCH: usize = 256;
/// Batches before the combiner returns to its own sockets.
const MAX_BATCHES: usize = 2;
/// Queued requests beyond which a reader thread applies some itself before it reads on.
const MAX_QUEUED: usize = 4096;

/// What is said to those who may not break locks.
const NOT_YOURS_TO_BREAK: &str = "this server has no secret, so only its own user and root may break locks, over TCP on \
     loopback: run the command as the server's user, or start the server with --secret-file";

/// One entry of the queue: what happened, and to which client.
#[derive(Debug)]
struct QueuedRequest {
    client: u32,
    event: Event,
}

/// What happened to a client.
#[derive(Debug)]
pub(crate) enum Event {
    /// It sent a request, with its number in the session.
    Request { seq: u64, request: Request },
    /// It sent a request that it may not make.
    Forbidden { seq: u64, id: RequestId, why: &'static str },
    /// It sent a message that is no request.
    Malformed,
    /// Its session is over. It comes behind all that the client sent, so nothing of that is applied to the next session
    /// that has its number.
    Departed(SessionEnd),
    /// An acquire of a lock in shared memory has ended. `session`: [which](crate::session::Session::serial).
    Acquired { session: u64, id: RequestId, outcome: Result<Box<AnyGuard>, LockError> },
    /// A lock in shared memory was taken away from it.
    Revoked { session: u64, id: RequestId },
}

/// Requests that were received and not yet applied.
#[derive(Debug, Default)]
struct RequestQueue(Mutex<VecDeque<QueuedRequest>>);

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<QueuedRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a request, and says how many there are now.
    #[inline]
    fn push(&self, request: QueuedRequest) -> usize {
        let mut queue = self.lock();
        queue.push_back(request);
        queue.len()
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    /// Moves the first [`BATCH`] requests into `batch`, which is empty.
    #[inline]
    fn take(&self, batch: &mut VecDeque<QueuedRequest>) {
        let mut queue = self.lock();
        if queue.len() <= BATCH {
            std::mem::swap(&mut *queue, batch);
        } else {
            batch.extend(queue.drain(..BATCH));
        }
    }
}

/// What the combiner works on.
#[derive(Debug)]
struct Combiner {
    table: LockTable,
    /// Taken off the queue and not yet applied. Between batches it is empty, unless one panicked.
    batch: VecDeque<QueuedRequest>,
}

#[derive(Debug)]
struct Shared {
    queue: RequestQueue,
    combiner: Mutex<Combiner>,
    one_sided: Vec<Arc<OneSidedSpace>>,
    began: Instant,
    admission: Admission,
    /// Of a shard of a cluster: nothing is applied while it is shut.
    gate: Option<Arc<Gate>>,
}

/// Which clients are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Those who know the server's secret.
    Secret,
    /// All who can connect.
    Anyone,
}

/// The dispatcher of one server. Clones are the same dispatcher.
#[derive(Clone, Debug)]
pub(crate) struct Dispatcher(Arc<Shared>);

/// Queues events without keeping the server alive.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventSender(Weak<Shared>);

impl EventSender {
    /// Queues an event and applies it, here or by the active combiner. It waits for nobody.
    pub(crate) fn send(&self, client: u32, event: Event) {
        if let Some(shared) = self.0.upgrade() {
            shared.queue.push(QueuedRequest { client, event });
            Dispatcher(shared).drain();
        }
    }
}

impl Dispatcher {
    pub(crate) fn new(mut table: LockTable, admission: Admission) -> Self {
        Self(Arc::new_cyclic(|me| {
            table.events = EventSender(me.clone());
            Shared {
                queue: RequestQueue::default(),
                one_sided: table.one_sided.clone(),
                began: table.began,
                admission,
                gate: table.sharded.as_ref().map(|sharded| Arc::clone(&sharded.gate)),
                combiner: Mutex::new(Combiner { table, batch: VecDeque::new() }),
            }
        }))
    }

    /// One-sided spaces.
    pub(crate) fn one_sided_spaces(&self) -> &[Arc<OneSidedSpace>] {
        &self.0.one_sided
    }

    /// Queues a request. It is applied no later than the next [`drain`](Self::drain) of this thread.
    #[inline]
    pub(crate) fn enqueue(&self, client: u32, event: Event) {
        if self.0.queue.push(QueuedRequest { client, event }) > MAX_QUEUED {
            self.lock_table().run_batch();
        }
    }

    fn is_shut(&self) -> bool {
        self.0.gate.as_ref().is_some_and(|gate| gate.is_shut())
    }

    /// Applies what is queued, or leaves it to the active combiner.
    pub(crate) fn drain(&self) {
        if self.is_shut() {
            return;
        }
        let run_batch = || {
            let Some(mut table) = self.try_become_combiner() else { return false };
            table.run_batch();
            table.resign();
            true
        };
        coalesce_writes(|| {
            combining::drain(MAX_BATCHES, run_batch, || self.0.queue.len() == 0, || self.drain_in_task());
        });
    }

    fn try_become_combiner(&self) -> Option<TableGuard<'_>> {
        let combiner = match self.0.combiner.try_lock() {
            Ok(combiner) => combiner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(TableGuard { dispatcher: self, combiner: Some(combiner) })
    }

    /// Leaves the queue to a task of this thread's runtime, behind the others there. `false` if there is no runtime.
    fn drain_in_task(&self) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        let dispatcher = self.clone();
        runtime.spawn(async move {
            tokio::task::yield_now().await;
            dispatcher.drain();
        });
        true
    }

    /// Locks the table, for what does not come through the queue. What is queued has not been applied yet.
    pub(crate) fn lock_table(&self) -> TableGuard<'_> {
        let combiner = self.0.combiner.lock().unwrap_or_else(PoisonError::into_inner);
        TableGuard { dispatcher: self, combiner: Some(combiner) }
    }

    /// Locks the table after everything that was queued before has been applied.
    fn lock_table_synced(&self) -> TableGuard<'_> {
        let mut table = self.lock_table();
        let left = table.combiner.as_ref().map_or(0, |combiner| combiner.batch.len());
        let mut queued = left + self.0.queue.len();
        while queued > 0 {
            queued = queued.saturating_sub(table.run_batch());
        }
        table
    }

    /// Decides whether a client may make this request. Without a secret, locks are broken only by the server's user and root.
    /// Decided before the request is queued: nobody waits while the kernel lists its sockets.
    fn judge(&self, client: u32, seq: u64, request: Request) -> Event {
        let Request::Break { id, .. } = request else { return Event::Request { seq, request } };
        let connection = self.lock_table().session(client).and_then(|session| session.connection);
        let user = connection.and_then(|connection| socket_owner::user(&connection));
        if let Some(session) = self.lock_table().session(client) {
            session.uid = user.map(|user| user.uid);
        }
        if self.0.admission == Admission::Secret || user.is_some_and(|user| user.is_trusted) {
            return Event::Request { seq, request };
        }
        Event::Forbidden { seq, id, why: NOT_YOURS_TO_BREAK }
    }

    /// The client of a one-sided space that the session of `peer` is, if it is one. All that it sent before has been applied.
    fn one_sided_client(&self, peer: PeerId) -> Option<Arc<crate::one_sided::OneSidedClient>> {
        if self.one_sided_spaces().is_empty() {
            return None;
        }
        self.lock_table_synced().session(client_of(peer)?)?.one_sided.clone()
    }

    /// Lets the session `peer`, which comes by the NIC, into a one-sided space, and says under which number.
    #[cfg(feature = "rdma")]
    pub(crate) fn admit_one_sided(
        &self,
        peer: PeerId,
        space: &Arc<OneSidedSpace>,
        label: &str,
    ) -> Option<PeerId> {
        let client = space.join(label)?;
        let number = client.peer();
        self.lock_table().session(client_of(peer)?)?.one_sided = Some(client);
        Some(number)
    }

    /// The metrics, as Prometheus reads them.
    pub(crate) fn metrics(&self) -> String {
        self.lock_table().metrics(self.started())
    }

    /// When the server was started, in seconds since 1970.
    pub(crate) fn started(&self) -> f64 {
        let up = self.0.began.elapsed();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(up).as_secs_f64()
    }
}

/// The locked table. Dropped, it is unlocked, and what was queued meanwhile is applied.
pub(crate) struct TableGuard<'a> {
    dispatcher: &'a Dispatcher,
    combiner: Option<MutexGuard<'a, Combiner>>,
}

impl TableGuard<'_> {
    /// Applies one batch and returns its size.
    fn run_batch(&mut self) -> usize {
        if self.dispatcher.is_shut() {
            return 0;
        }
        let Some(Combiner { table, batch }) = self.combiner.as_deref_mut() else { return 0 };
        if batch.is_empty() {
            self.dispatcher.0.queue.take(batch);
        }
        let size = batch.len();
        table.begin_batch(Instant::now(), size);
        while let Some(QueuedRequest { client, event }) = batch.pop_front() {
            table.apply(client, event);
        }
        table.decide();
        size
    }

    /// Unlocks the table and leaves the queue to the caller.
    fn resign(mut self) {
        self.combiner = None;
    }
}

impl Deref for TableGuard<'_> {
    type Target = LockTable;

    fn deref(&self) -> &LockTable {
        &self.combiner.as_ref().expect("it is locked until it is dropped").table
    }
}

impl DerefMut for TableGuard<'_> {
    fn deref_mut(&mut self) -> &mut LockTable {
        &mut self.combiner.as_mut().expect("it is locked until it is dropped").table
    }
}

impl Drop for TableGuard<'_> {
    fn drop(&mut self) {
        let Some(combiner) = self.combiner.take() else { return };
        let unfinished = !combiner.batch.is_empty() || combiner.table.is_undecided();
        drop(combiner);
        let panicked = std::thread::panicking();
        if (unfinished || self.dispatcher.0.queue.len() > 0) && !(panicked && self.dispatcher.drain_in_task())
        {
            self.dispatcher.drain();
        }
    }
}

impl VerbHost for Dispatcher {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    /// The host's clock, which processes that are in a one-sided space by its memory have, too.
    fn now(&self) -> Time {
        Time(monotonic_ns())
    }

    /// Only clients of one-sided spaces have words, so nobody else has to be trusted with any.
    fn execute(&self, from: PeerId, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError> {
        match (self.one_sided_client(from), verbs.first()) {
            (Some(client), _) => client.execute(verbs, olds),
            (None, None) => Ok(()),
            (None, Some(verb)) => Err(HostError::NoSuchWord { addr: verb.addr, width: verb.width }),
        }
    }

    async fn watch(&self, from: PeerId, watch: RawWait) -> Result<u128, HostError> {
        match self.one_sided_client(from) {
            Some(client) => client.watch(watch).await,
            None => Err(HostError::NoSuchWord { addr: watch.addr, width: watch.width }),
        }
    }

    fn admit(&self, name: &str) -> Option<PeerId> {
        self.lock_table().admit(name).map(|client| PeerId(FIRST_PEER + client))
    }

    fn on_connected(&self, peer: PeerId, connection: ConnectionInfo) {
        let Some(client) = client_of(peer) else { return };
        if let Some(session) = self.lock_table().session(client) {
            session.connection = Some(connection);
        }
    }

    fn attach(&self, peer: PeerId, inbox: Inbox) {
        let Some(client) = client_of(peer) else { return };
        if let Some(session) = self.lock_table().session(client) {
            session.inbox = Some(inbox);
        }
    }

    /// Receives a message: decodes and queues it.
    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        let Some(client) = client_of(from) else { return false };
        if to != SERVER {
            return self.one_sided_client(from).is_some_and(|client| client.send(to, message.clone()));
        }
        let event = match Request::decode(message) {
            Some((seq, request)) => self.judge(client, seq, request),
            None => Event::Malformed,
        };
        self.enqueue(client, event);
        true
    }

    fn on_session_lost(&self, peer: PeerId, how: SessionEnd) {
        if let Some(client) = client_of(peer) {
            self.enqueue(client, Event::Departed(how));
            self.drain();
        }
    }

    fn settle(&self) {
        self.drain();
    }
}

/// Sessions have numbers of their own, above all those of clients in one-sided spaces: a message to one of the latter is not for a
/// session that happens to have the same one.
const FIRST_PEER: u32 = 1 << 26;

/// A session's number in the table.
pub(crate) fn client_of(peer: PeerId) -> Option<u32> {
    peer.0.checked_sub(FIRST_PEER).filter(|client| *client < FIRST_PEER)
}
