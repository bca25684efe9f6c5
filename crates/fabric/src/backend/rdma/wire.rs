//! A wire: the way to the other side, over a queue pair that can be cut and replaced.
//!
//! A queue pair that is in error never works again, so it is cut (destroyed) and another one is set in its place. Whatever
//! was under way on the old one fails; whether it took effect is not known, but after the cut it will not any more. What
//! comes meanwhile waits for the new one.
//!
//! What this file must not do: let anybody wait for the completion of something whose queue pair is gone.

use super::counters::POSTED;
use super::pair::Pair;
use super::station::{Failed, Station};
use super::work::{Work, WorkKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Poll, Waker};

/// See the module.
#[derive(Debug)]
pub(super) struct Wire {
    /// Work is posted under the reader's lock, so that a cut sees everything that was.
    pair: RwLock<Option<Pair>>,
    station: Arc<Station>,
    /// The number of a queue pair that is in error and not cut yet: nothing is posted to it any more.
    doubted: AtomicU64,
    closed: AtomicBool,
    /// Those who wait for the next queue pair.
    waiting: Mutex<Vec<Waker>>,
}

impl Wire {
    /// A wire over `pair`, which is one of `station`'s.
    pub(super) fn new(station: &Arc<Station>, pair: Pair) -> Arc<Self> {
        Arc::new(Self {
            pair: RwLock::new(Some(pair)),
            station: Arc::clone(station),
            doubted: AtomicU64::new(u64::MAX),
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
    pub(super) fn doubt(&self, pair: u32) -> bool {
        let doubted = u64::from(pair);
        self.number() == Some(pair) && self.doubted.swap(doubted, SeqCst) != doubted
    }

    fn is_doubted(&self, pair: u32) -> bool {
        u64::from(pair) == self.doubted.load(SeqCst)
    }

    /// Whether there is a queue pair to post to.
    fn is_up(&self) -> bool {
        self.number().is_some_and(|pair| !self.is_doubted(pair))
    }

    /// Puts the queue pair into the error state and leaves it there: for tests of what comes after.
    pub(super) fn break_it(&self) {
        if let Some(pair) = &*self.pair.read().unwrap_or_else(PoisonError::into_inner) {
            pair.stop();
        }
    }

    /// Destroys the queue pair. Not to be called by whoever takes completions. When this returns, nothing that was posted over it, by either side, takes effect any more.
    pub(super) fn cut(&self) {
        let taken = self.pair.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(pair) = taken else { return };
        let number = pair.info.number;
        pair.stop();
        // What has arrived counts: the other side was told so. With the queue pair its completions may go.
        self.station.drain();
        drop(pair);
        self.station.abandon(number);
    }

    /// Goes on over `pair`.
    pub(super) fn set(&self, pair: Pair) {
        self.doubted.store(u64::MAX, SeqCst);
        *self.pair.write().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        self.wake();
    }

    /// Cuts it for good.
    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
        self.cut();
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
            // It may have come between the look and the waker.
            look().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Posts `works`, which end the turn of slot `index`. `false` if there is no queue pair, or it takes nothing.
    pub(super) fn post(&self, index: usize, works: &[Work]) -> bool {
        let pair = self.pair.read().unwrap_or_else(PoisonError::into_inner);
        let Some(pair) = pair.as_ref().filter(|pair| !self.is_doubted(pair.info.number)) else {
            return false;
        };
        self.station.posting(index, pair.info.number);
        POSTED.fetch_add(works.len() as u64, Relaxed);
        pair.post(works)
    }

    /// Executes up to [`CHUNK`](super::station::CHUNK) verbs in order and returns what they found.
    pub(super) async fn batch(&self, kinds: &[WorkKind]) -> Result<Vec<u64>, Failed> {
        if self.ready().await { self.station.batch(self, kinds).await } else { Err(Failed) }
    }

    /// The same, but nobody waits for the outcome, nor for room: `false` if there is none, or no queue pair.
    pub(super) fn batch_unheard(&self, kinds: &[WorkKind]) -> bool {
        self.station.batch_unheard(self, kinds)
    }

    /// Sends a letter; whether it has arrived.
    pub(super) async fn send(&self, bytes: &[u8]) -> bool {
        self.ready().await && self.station.send(self, bytes).await
    }

    /// Sends letters, which have to [fit](super::station::bundled) together; whether all have arrived.
    pub(super) async fn send_all(&self, letters: &[Vec<u8>]) -> bool {
        self.ready().await && self.station.send_all(self, letters).await
    }

    /// Sends a letter and waits for nothing, not even for room. `false` if there is no queue pair, or too much waits already.
    pub(super) fn tell(self: &Arc<Self>, bytes: Vec<u8>) -> bool {
        self.station.tell(self, bytes)
    }
}
