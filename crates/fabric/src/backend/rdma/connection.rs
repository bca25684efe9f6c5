//! A connection: a queue pair to the other side that is replaced after an error.
//!
//! A queue pair that is in error never works again, so it is destroyed and another one is set in its place. Work in flight on
//! the old one fails; whether it took effect is not known, but it will not after the disconnect. Work that comes meanwhile
//! waits for the new one.
//!
//! What this file must not do: let a future wait for the completion of work whose queue pair is gone.

use super::counters::POSTED;
use super::event_loop::{EventLoop, Failed};
use super::queue_pair::QueuePair;
use super::work::{Work, WorkKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Poll, Waker};

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    /// Work is posted under the read lock, so that a disconnect sees everything that was posted.
    pair: RwLock<Option<QueuePair>>,
    event_loop: Arc<EventLoop>,
    /// The number of a queue pair that is in error and not destroyed yet: nothing is posted to it any more.
    failed: AtomicU64,
    closed: AtomicBool,
    /// Futures that wait for the next queue pair.
    waiting: Mutex<Vec<Waker>>,
}

impl Connection {
    /// A connection over `pair`, which is one of `event loop`'s.
    pub(super) fn new(event_loop: &Arc<EventLoop>, pair: QueuePair) -> Arc<Self> {
        Arc::new(Self {
            pair: RwLock::new(Some(pair)),
            event_loop: Arc::clone(event_loop),
            failed: AtomicU64::new(u64::MAX),
            closed: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    /// The number of the queue pair, if there is one now.
    pub(super) fn number(&self) -> Option<u32> {
        self.pair.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|pair| pair.info.number)
    }

    /// The queue pair of this number is in error: from now on nothing is posted to it. `false` if that is known, or there is
    /// another by now.
    pub(super) fn mark_failed(&self, pair: u32) -> bool {
        let failed = u64::from(pair);
        self.number() == Some(pair) && self.failed.swap(failed, SeqCst) != failed
    }

    fn has_failed(&self, pair: u32) -> bool {
        u64::from(pair) == self.failed.load(SeqCst)
    }

    /// Whether there is a queue pair to post to.
    fn is_up(&self) -> bool {
        self.number().is_some_and(|pair| !self.has_failed(pair))
    }

    /// Puts the queue pair into the error state and leaves it there: for tests of what comes after.
    pub(super) fn break_queue_pair(&self) {
        if let Some(pair) = &*self.pair.read().unwrap_or_else(PoisonError::into_inner) {
            pair.stop();
        }
    }

    /// Destroys the queue pair. When this returns, nothing that either side posted over it takes effect any more. Must not be
    /// called by the thread that polls completions.
    pub(super) fn disconnect(&self) {
        let taken = self.pair.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(pair) = taken else { return };
        let number = pair.info.number;
        pair.stop();
        // What has arrived counts: the other side was told so. With the queue pair its completions may go.
        self.event_loop.drain();
        drop(pair);
        self.event_loop.abandon(number);
    }

    /// Goes on over `pair`.
    pub(super) fn replace(&self, pair: QueuePair) {
        self.failed.store(u64::MAX, SeqCst);
        *self.pair.write().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        self.wake();
    }

    /// Disconnects for good.
    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.disconnect();
        self.wake();
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until there is a queue pair; `false` if there will be none.
    pub(super) async fn ready(&self) -> bool {
        std::future::poll_fn(|cx| {
            let look = || {
                if self.closed.load(SeqCst) { Some(false) } else { self.is_up().then_some(true) }
            };
            if let Some(ready) = look() {
                return Poll::Ready(ready);
            }
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(cx.waker().clone());
            // The queue pair may have come before the waker was there.
            look().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Posts `works`, which end the turn of slot `index`. `false` if there is no queue pair, or it takes nothing.
    pub(super) fn post(&self, index: usize, works: &[Work]) -> bool {
        let pair = self.pair.read().unwrap_or_else(PoisonError::into_inner);
        let Some(pair) = pair.as_ref().filter(|pair| !self.has_failed(pair.info.number)) else {
            return false;
        };
        self.event_loop.posting(index, pair.info.number);
        POSTED.fetch_add(works.len() as u64, Relaxed);
        pair.post(works)
    }

    /// Executes up to [`CHUNK`](super::event_loop::CHUNK) verbs in order and returns what they found.
    pub(super) async fn batch(&self, kinds: &[WorkKind]) -> Result<Vec<u64>, Failed> {
        if self.ready().await { self.event_loop.batch(self, kinds).await } else { Err(Failed) }
    }

    /// The same, without waiting for the outcome or for a free slot: `false` if there is none, or no queue pair.
    pub(super) fn post_batch(&self, kinds: &[WorkKind]) -> bool {
        self.event_loop.post_batch(self, kinds)
    }

    /// Sends a message; whether it has arrived.
    pub(super) async fn send(&self, bytes: &[u8]) -> bool {
        self.ready().await && self.event_loop.send(self, bytes).await
    }

    /// Sends messages, which have to [fit](super::event_loop::count_fitting) together; whether all have arrived.
    pub(super) async fn send_all(&self, messages: &[Vec<u8>]) -> bool {
        self.ready().await && self.event_loop.send_all(self, messages).await
    }

    /// Sends a message without waiting, not even for a free slot. `false` if there is no queue pair, or the backlog is full.
    pub(super) fn tell(self: &Arc<Self>, bytes: Vec<u8>) -> bool {
        self.event_loop.tell(self, bytes)
    }
}
