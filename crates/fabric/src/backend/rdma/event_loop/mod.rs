//! The event loop: one protection domain, its completion queue and shared receive queue, and the thread that polls them.
//!
//! Work requests carry a *slot*'s number; a slot has room for the results of one batch, or for one message. Completions are
//! polled by the futures that wait for them, and otherwise by the loop's thread: it spins for a moment and then sleeps
//! until the completion channel wakes it.
//!
//! This file has batches and completions; [`slots`] says who uses each slot, [`message_buffers`] sends and receives messages.

mod message_buffers;
mod slots;

pub(super) use self::message_buffers::count_fitting;

use self::message_buffers::{MessageBuffers, RECEIVES};
use self::slots::{BATCHES, Completion, MESSAGES, SlotKind, Slots};
use super::connection::Connection;
use super::device::{Device, DeviceError};
use super::fault::Fault;
use super::ffi::{IBV_WC_SUCCESS, ibv_wc};
use super::queue_pair::{Base, QueuePair};
use super::verbs::{Buffer, CompletionQueue, POLL_BATCH, ProtectionDomain, SharedReceiveQueue};
use super::work::{WORD, Work, WorkKind};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Verbs of one doorbell.
pub(super) const CHUNK: usize = 16;
/// Work requests under way on one queue pair, at most. Nobody has more than one bundle of messages on its way.
const SENDS: u32 = (BATCHES * CHUNK + MESSAGES + CHUNK + 16) as u32;
/// Polls before the handler is told to settle: enough for all receives.
const MAX_POLLS: usize = RECEIVES / POLL_BATCH;
/// Bytes of a batch's results.
const RESULTS: usize = WORD * CHUNK;
/// How long a waiter polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// The longest sleep of the thread: it has to see that the event loop is being closed.
const NAP: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Marks the receives among the numbers of work requests.
const RECEIVE: u64 = 1 << 63;

/// Verbs failed: whether they took effect is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// Receives the events of an event loop. Called by the thread that polls completions, so it must not wait for any.
pub(super) trait EventHandler: Send + Sync {
    /// A message arrived over the queue pair of this number.
    fn message(&self, pair: u32, bytes: &[u8]);

    /// That was the last of the messages that arrived together: they can be processed.
    fn settle(&self) {}

    /// The queue pair of this number is in error.
    fn queue_pair_failed(&self, pair: u32);
}

/// See the module.
pub(super) struct EventLoop {
    // Dropped in this order: queue pairs are elsewhere and gone by then.
    results: Buffer,
    messages: MessageBuffers,
    pub(super) base: Base,
    slots: Mutex<Slots>,
    /// One thread at a time polls completions, so that messages keep their order.
    polling: Mutex<()>,
    /// The last failure, other than those that it flushed.
    fault: Mutex<Option<Fault>>,
    handler: Box<dyn EventHandler>,
    closing: AtomicBool,
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").field("device", &self.device().name).finish_non_exhaustive()
    }
}

/// The event loop's thread, ended when this is dropped.
#[derive(Debug)]
pub(super) struct LoopThread(Arc<EventLoop>);

impl EventLoop {
    /// An event loop on `device`.
    pub(super) fn open(
        device: &Arc<Device>,
        handler: Box<dyn EventHandler>,
    ) -> Result<(Arc<Self>, LoopThread), DeviceError> {
        let domain = ProtectionDomain::new(device)?;
        let queue = CompletionQueue::new(device, 4096)?;
        let shared = SharedReceiveQueue::new(&domain, RECEIVES as u32)?;
        let event_loop = Arc::new(Self {
            results: Buffer::new(&domain, BATCHES * RESULTS)?,
            messages: MessageBuffers::new(&domain)?,
            base: Base { domain, queue, shared },
            slots: Mutex::new(Slots::new()),
            polling: Mutex::default(),
            fault: Mutex::default(),
            handler,
            closing: AtomicBool::new(false),
        });
        for index in 0..RECEIVES {
            event_loop.post_receive(index);
        }
        let own = Arc::clone(&event_loop);
        let thread = std::thread::Builder::new().name("lockwright-rdma".to_owned()).spawn(move || own.run());
        thread.map_err(|error| DeviceError::System {
            what: "starting a thread for",
            device: device.name.clone(),
            error,
        })?;
        Ok((Arc::clone(&event_loop), LoopThread(event_loop)))
    }

    pub(super) fn device(&self) -> &Device {
        self.base.device()
    }

    /// A queue pair of this event loop, not connected yet. `lends`: the other side may reach registered memory of this domain.
    pub(super) fn queue_pair(&self, lends: bool) -> Result<QueuePair, DeviceError> {
        QueuePair::new(&self.base, SENDS, lends)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes over which queue pair a slot's work is posted. Under the connection's lock: a disconnect comes before or after it.
    pub(super) fn posting(&self, index: usize, pair: u32) {
        self.slots().posting(index, pair);
    }

    /// A queue pair was destroyed: what was under way on it will not complete, and has failed.
    pub(super) fn abandon(&self, pair: u32) {
        let woken = self.slots().abandon(pair);
        woken.into_iter().for_each(Waker::wake);
    }

    /// What went wrong last, in words.
    pub(super) fn fault(&self) -> Option<Fault> {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts up to [`CHUNK`] verbs over `connection` and returns their results. What was posted is executed even if the future is
    /// dropped.
    pub(super) async fn batch(
        self: &Arc<Self>,
        connection: &Connection,
        kinds: &[WorkKind],
    ) -> Result<Vec<u64>, Failed> {
        let mut completion = Completion::take(self, SlotKind::Batch).await;
        let works = self.works(completion.index, kinds);
        let well = self.finish(&mut completion, connection, &works).await;
        well.then(|| self.results_of(completion.index, kinds.len())).ok_or(Failed)
    }

    /// The same, without waiting for the outcome or for a free slot. `false` if nothing was posted.
    pub(super) fn post_batch(&self, connection: &Connection, kinds: &[WorkKind]) -> bool {
        let Some(index) = self.slots().take(SlotKind::Batch, false) else { return false };
        let posted = connection.post(index, &self.works(index, kinds));
        if !posted {
            self.slots().free(index);
        }
        posted
    }

    /// The work requests of a batch in slot `index`.
    fn works(&self, index: usize, kinds: &[WorkKind]) -> Vec<Work> {
        let id = self.slots().id(index);
        let mut works = Vec::with_capacity(kinds.len());
        let mut reading = false;
        for (turn, kind) in kinds.iter().enumerate() {
            let place = index * RESULTS + WORD * turn;
            let is_read = matches!(kind, WorkKind::Read { .. });
            if let WorkKind::Write { value, .. } = kind {
                self.results.write(place, &value.to_le_bytes());
            }
            let piece = self.results.piece(place, WORD);
            works.push(Work {
                id,
                kind: *kind,
                piece,
                signal: turn + 1 == kinds.len(),
                fence: reading && !is_read,
            });
            reading |= is_read;
        }
        works
    }

    /// The words that the verbs of a batch found.
    fn results_of(&self, index: usize, count: usize) -> Vec<u64> {
        let read = |turn| {
            let mut word = [0; WORD];
            self.results.read(index * RESULTS + WORD * turn, &mut word);
            u64::from_le_bytes(word)
        };
        (0..count).map(read).collect()
    }

    async fn finish(&self, completion: &mut Completion, connection: &Connection, works: &[Work]) -> bool {
        if !connection.post(completion.index, works) {
            completion.release();
            return false;
        }
        completion.await
    }

    /// Polls until there are no more completions.
    pub(super) fn drain(&self) {
        let polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        self.poll_while(polling, |count| count > 0);
    }

    /// Polls the completions that are there. `false` if there were none, or another thread polls.
    fn poll_completions(&self) -> bool {
        let Ok(polling) = self.polling.try_lock() else { return false };
        let mut polls = 0;
        self.poll_while(polling, |count| {
            polls += 1;
            count == POLL_BATCH && polls < MAX_POLLS
        })
    }

    /// Polls completions, and again while `more` says so of the last count. `false` if there were none.
    fn poll_while(&self, polling: MutexGuard<'_, ()>, mut more: impl FnMut(usize) -> bool) -> bool {
        /// Also after a panic: messages before it were delivered.
        struct Settles<'a>(&'a dyn EventHandler, bool);
        impl Drop for Settles<'_> {
            fn drop(&mut self) {
                if self.1 {
                    self.0.settle();
                }
            }
        }
        let mut messages = Settles(&*self.handler, false);
        // Unlocked before `settle` runs: others can poll what comes meanwhile.
        let _polling = polling;
        let mut any = false;
        loop {
            let count = self.base.queue.poll(|wc| messages.1 |= self.handle_completion(wc));
            any |= count > 0;
            if !more(count) {
                return any;
            }
        }
    }

    /// Handles a completion; `true` if it brought a message.
    fn handle_completion(&self, wc: &ibv_wc) -> bool {
        let well = wc.status == IBV_WC_SUCCESS;
        if !well {
            self.record_fault(wc);
            // Before the waiter learns of it: what it posts next must not go the same way.
            self.handler.queue_pair_failed(wc.qp_num);
        }
        if wc.wr_id & RECEIVE != 0 {
            return self.received(wc, well);
        }
        self.work_ended(wc, well);
        false
    }

    /// What was posted from a slot is done.
    fn work_ended(&self, wc: &ibv_wc, well: bool) {
        let Some((index, waiter)) = self.slots().completed(wc.wr_id, well) else { return };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
        if Slots::kind(index) == SlotKind::Message {
            self.flush_backlog();
        }
    }

    /// Keeps the reason of a failure, and not those of the requests that it flushed.
    fn record_fault(&self, wc: &ibv_wc) {
        let fault = Fault::new(wc.status, wc.vendor_err);
        let mut kept = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none() || !fault.is_flush() {
            *kept = Some(fault);
        }
    }

    /// The thread: polls while no future does.
    fn run(&self) {
        while !self.closing.load(Relaxed) {
            let start = Instant::now();
            while self.poll_completions() || start.elapsed() < SPIN {
                std::hint::spin_loop();
            }
            self.base.queue.request_notification();
            // One may have come between the last poll and the request for a notification.
            if self.poll_completions() {
                continue;
            }
            let fd = self.base.queue.notification_fd();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&NAP)) {
                Ok(ready) if ready > 0 => self.base.queue.acknowledge(),
                Ok(_) => {}
                Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

impl Drop for LoopThread {
    /// The thread ends within [`NAP`], and the event loop with it. It is not joined: the caller may hold a lock that a message
    /// handler waits for.
    fn drop(&mut self) {
        self.0.closing.store(true, Relaxed);
    }
}
