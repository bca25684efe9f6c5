//! A peer's mailbox: messages in the order of arrival, and the tasks that wait for one.

use crate::addr::PeerId;
use crate::backend::clock::{Alarm, Clock};
use crate::backend::wakers::{Wakers, wake_all};
use crate::message::Message;
use crate::wait::Deadline;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A peer with this many unread messages has stopped reading and counts as lost.
const CAPACITY: usize = 1 << 20;
/// The same, in bytes of messages.
const CAPACITY_BYTES: u64 = 64 << 20;
/// Checks of the mailbox before a receiver parks: a handover from a running thread comes within a microsecond.
const SPINS: u32 = 200;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::backend) struct Mailbox {
    /// Messages that have ever arrived: lets a receiver spin without taking the lock.
    arrivals: AtomicUsize,
    /// Unread messages: read without the lock too.
    len: AtomicUsize,
    closed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(PeerId, Message)>,
    bytes: u64,
    wakers: Wakers,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is no message: one load.
    #[inline(always)]
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.len.load(SeqCst) == 0
    }

    /// Adds a message; `false` if the mailbox is closed or full.
    pub(in crate::backend) fn put(&self, from: PeerId, message: Message) -> bool {
        self.put_quietly(from, message).map(wake_all).is_some()
    }

    /// As [`Mailbox::put`], but returns the wakers of the receivers; `None` if the mailbox is closed or full.
    pub(in crate::backend) fn put_quietly(&self, from: PeerId, message: Message) -> Option<Vec<Waker>> {
        let mut state = self.state();
        let bytes = state.bytes + message.wire_bytes();
        if self.is_closed() || state.queue.len() >= CAPACITY || bytes > CAPACITY_BYTES {
            return None;
        }
        state.bytes = bytes;
        state.queue.push_back((from, message));
        self.len.store(state.queue.len(), SeqCst);
        self.arrivals.fetch_add(1, SeqCst);
        Some(state.wakers.take())
    }

    /// Ends every receive; later messages are refused.
    pub(in crate::backend) fn close(&self) {
        let mut state = self.state();
        self.closed.store(true, SeqCst);
        let wakers = state.wakers.take();
        drop(state);
        wake_all(wakers);
    }

    /// Spins until a message arrives after the first `arrivals`; `false` if none did.
    fn spin(&self, arrivals: usize) -> bool {
        (0..SPINS).any(|_| {
            std::hint::spin_loop();
            self.arrivals.load(SeqCst) != arrivals
        })
    }

    pub(in crate::backend) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}

/// The future of `recv_by`: takes the first message that `pick` accepts; `None` after the deadline, or when the mailbox is
/// closed. Cancel safe.
///
/// `None` inside if there is nothing to wait for: a check that finds nothing, which every release of a queue lock makes,
/// costs one load and no allocation.
pub(in crate::backend) struct Receive<'a, P>(Option<Box<Receiver<'a, P>>>);

/// A receive that has to search the queue, or to wait.
struct Receiver<'a, P> {
    mailbox: &'a Mailbox,
    clock: &'a Clock,
    deadline: Deadline,
    pick: P,
    /// Set once it has spun.
    waiting: Option<Waiting>,
}

/// A receive that waits.
#[derive(Debug, Default)]
struct Waiting {
    key: Option<u64>,
    alarm: Option<Alarm>,
}

impl<'a, P> Receive<'a, P> {
    #[inline(always)]
    pub(in crate::backend) fn new(
        mailbox: &'a Mailbox,
        clock: &'a Clock,
        deadline: Deadline,
        pick: P,
    ) -> Self {
        if deadline == Deadline::Now && mailbox.is_empty() {
            return Self(None);
        }
        Self(Some(Box::new(Receiver { mailbox, clock, deadline, pick, waiting: None })))
    }
}

impl<P> fmt::Debug for Receive<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deadline = self.0.as_ref().map_or(Deadline::Now, |receiver| receiver.deadline);
        f.debug_struct("Receive").field("deadline", &deadline).finish_non_exhaustive()
    }
}

/// The closure is called, never pinned.
impl<P> Unpin for Receive<'_, P> {}

impl<T, P: FnMut(PeerId, &Message) -> Option<T>> Future for Receive<'_, P> {
    type Output = Option<T>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut self.0 {
            None => Poll::Ready(None),
            Some(receiver) => receiver.poll(cx),
        }
    }
}

impl<T, P: FnMut(PeerId, &Message) -> Option<T>> Receiver<'_, P> {
    #[inline(never)]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let (mailbox, clock) = (self.mailbox, self.clock);
        loop {
            let arrivals = mailbox.arrivals.load(SeqCst);
            let mut state = mailbox.state();
            let pick = &mut self.pick;
            let mut messages = state.queue.iter().enumerate();
            if let Some((at, answer)) =
                messages.find_map(|(at, (from, message))| Some((at, pick(*from, message)?)))
            {
                if let Some((_, taken)) = state.queue.remove(at) {
                    state.bytes -= taken.wire_bytes();
                }
                mailbox.len.store(state.queue.len(), SeqCst);
                return Poll::Ready(Some(answer));
            }
            if mailbox.is_closed() || clock.reached(self.deadline) {
                return Poll::Ready(None);
            }
            if let Some(Waiting { key, alarm }) = &mut self.waiting {
                state.wakers.keep(key, cx.waker());
                drop(state);
                clock.keep_alarm(alarm, self.deadline, cx);
                return Poll::Pending;
            }
            drop(state);
            if !mailbox.spin(arrivals) {
                self.waiting = Some(Waiting::default());
            }
        }
    }
}

impl<P> Drop for Receiver<'_, P> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            self.mailbox.state().wakers.leave(&mut waiting.key);
        }
    }
}
