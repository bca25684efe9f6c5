//! One client of a space: what the clones of an endpoint share.
//!
//! A task under [`block_on`](crate::backend::block_on) sleeps on the client's doorbell itself. A task of an async runtime
//! cannot: it registers its waker here, and a helper thread of the client, started on first use, sleeps on the doorbell
//! and wakes the tasks whose wait is over.

use super::clients::Membership;
use super::error::SpaceError;
use super::mailbox::{Drained, Inbox};
use super::shared::Shared;
use crate::backend::fork::Owner;
use crate::backend::run::Doorbell;
use crate::backend::wakers::wake_all;
use crate::random::{SharedSplitMix, mix};
use crate::verb::Op;
use crate::wait::RawWait;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    pub(super) membership: Membership,
    /// The process that joined.
    pub(super) owner: Owner,
    inbox: Mutex<Inbox>,
    /// Messages in the inbox: read without its lock.
    queued: AtomicUsize,
    /// Tasks that wait for a message.
    pub(super) receivers: AtomicUsize,
    waiters: Arc<AsyncWaiters>,
    helper: Mutex<Option<JoinHandle<()>>>,
    numbers: AtomicU16,
    random: SharedSplitMix,
}

/// Tasks that cannot sleep on the doorbell themselves.
#[derive(Debug, Default)]
struct AsyncWaiters {
    tasks: Mutex<Vec<AsyncWaiter>>,
    next: AtomicU64,
    stop: AtomicBool,
}

#[derive(Debug)]
struct AsyncWaiter {
    number: u64,
    /// `None`: it waits for a message.
    wait: Option<RawWait>,
    waker: Waker,
}

impl Client {
    pub(super) fn join(shared: &Arc<Shared>, label: &str) -> Result<Arc<Self>, SpaceError> {
        let membership = shared.join(label)?;
        let seed = mix(shared.clock.now().0) ^ mix(membership.state.0);
        Ok(Arc::new(Self {
            shared: Arc::clone(shared),
            membership,
            owner: Owner::current(),
            inbox: Mutex::new(Inbox::new(shared, &membership)),
            queued: AtomicUsize::new(0),
            receivers: AtomicUsize::new(0),
            waiters: Arc::default(),
            helper: Mutex::default(),
            numbers: AtomicU16::new(0),
            random: SharedSplitMix::new(seed),
        }))
    }

    /// Whether it has neither left nor been evicted. A copy in a child of the process that joined is no member.
    pub(super) fn is_member(&self) -> bool {
        self.owner.is_current() && self.shared.is_member(&self.membership)
    }

    /// Tells apart the messages of several cells that this client's clones send at the same time.
    pub(super) fn next_message_number(&self) -> u16 {
        self.numbers.fetch_add(1, Relaxed)
    }

    pub(super) fn random(&self) -> u64 {
        self.random.next()
    }

    /// Whether there is no message, as far as a few loads can tell.
    #[inline]
    pub(super) fn has_no_message(&self) -> bool {
        self.queued.load(SeqCst) == 0 && Inbox::ring_is_empty(&self.shared, self.membership.slot)
    }

    /// Whether nothing has arrived since the ring was last drained.
    #[inline]
    pub(super) fn ring_is_empty(&self) -> bool {
        Inbox::ring_is_empty(&self.shared, self.membership.slot)
    }

    /// Moves arrived messages into the inbox and locks it. Wakes the client's other receivers if there are new ones.
    pub(super) fn drain(&self, thorough: bool) -> (MutexGuard<'_, Inbox>, Drained) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let drained = inbox.drain(&self.shared, &self.membership, thorough);
        if drained.messages > 0 {
            self.update_queued(&inbox);
            if self.receivers.load(SeqCst) > 0 {
                self.shared.ring(self.membership.slot);
            }
        }
        (inbox, drained)
    }

    /// To be called after a message was removed from the inbox.
    pub(super) fn update_queued(&self, inbox: &Inbox) {
        self.queued.store(inbox.messages.len(), SeqCst);
    }

    /// Registers a waker, or replaces the one under `key`. The caller must check its condition once more afterwards.
    pub(super) fn register_waker(&self, key: &mut Option<u64>, wait: Option<RawWait>, waker: &Waker) {
        self.start_helper();
        let mut tasks = self.waiters.tasks();
        let number = *key.get_or_insert_with(|| self.waiters.next.fetch_add(1, Relaxed));
        match tasks.iter_mut().find(|waiter| waiter.number == number) {
            Some(waiter) => waiter.waker.clone_from(waker),
            None => tasks.push(AsyncWaiter { number, wait, waker: waker.clone() }),
        }
    }

    pub(super) fn unregister_waker(&self, key: &mut Option<u64>) {
        if let Some(number) = key.take() {
            self.waiters.tasks().retain(|waiter| waiter.number != number);
        }
    }

    fn start_helper(&self) {
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        if helper.is_some() {
            return;
        }
        self.add_listener();
        let (shared, membership) = (Arc::clone(&self.shared), self.membership);
        let waiters = Arc::clone(&self.waiters);
        let thread = thread::Builder::new()
            .name("lockwright-wake".to_owned())
            .spawn(move || waiters.run_helper(&shared, &membership))
            .expect("the system can start a thread that wakes tasks");
        *helper = Some(thread);
    }
}

impl AsyncWaiters {
    fn tasks(&self) -> MutexGuard<'_, Vec<AsyncWaiter>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_helper(&self, shared: &Shared, membership: &Membership) {
        while !self.stop.load(SeqCst) {
            let rings = shared.rings(membership.slot);
            let evicted = !shared.is_member(membership);
            let mut tasks = self.tasks();
            let read = |addr, width| shared.reach(addr, width, &Op::Read).map(|(word, _)| word);
            let over =
                |waiter: &mut AsyncWaiter| evicted || waiter.wait.is_none_or(|wait| wait.is_over(read));
            let woken: Vec<_> = tasks.extract_if(.., over).map(|waiter| waiter.waker).collect();
            drop(tasks);
            wake_all(woken);
            if !self.stop.load(SeqCst) {
                shared.wait_doorbell(membership.slot, rings, None);
            }
        }
    }
}

impl Doorbell for Client {
    fn add_listener(&self) {
        self.shared.listeners(self.membership.slot).fetch_add(1, SeqCst);
    }

    fn remove_listener(&self) {
        self.shared.listeners(self.membership.slot).fetch_sub(1, SeqCst);
    }

    fn rings(&self) -> u32 {
        self.shared.rings(self.membership.slot)
    }

    fn wait(&self, rings: u32, limit: Option<Duration>) {
        self.shared.wait_doorbell(self.membership.slot, rings, limit);
    }

    fn ring(&self) {
        self.shared.ring_always(self.membership.slot);
    }
}

impl Drop for Client {
    /// Leaves the space. Threads that sleep on the doorbell hold the client, so only its helper can be left. A copy in a child
    /// has neither joined nor a helper.
    fn drop(&mut self) {
        if !self.owner.is_current() {
            std::mem::forget(self.helper.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            return;
        }
        if let Some(helper) = self.helper.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.waiters.stop.store(true, SeqCst);
            self.shared.ring_always(self.membership.slot);
            // A task that the helper woke may have dropped the last endpoint.
            if helper.thread().id() != thread::current().id() {
                let _ = helper.join();
            }
        }
        self.shared.leave(&self.membership);
    }
}
