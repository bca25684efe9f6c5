//! One peer's mailbox: messages in the order they came, and the tasks that wait for one.

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

/// A peer that lets this many messages pile up has stopped reading and counts as lost.
const CAPACITY: usize = 1 << 20;
/// Looks at the mailbox before a receiver parks: a handover from a running thread comes within a microsecond.
const SPINS: u32 = 200;

/// A mailbox.
#[derive(Debug, Default)]
pub(in crate::backend) struct Mailbox {
    /// Messages that have ever arrived; lets a receiver look without taking the lock.
    arrivals: AtomicUsize,
    /// Messages inside, to be read without the lock too.
    len: AtomicUsize,
    closed: AtomicBool,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    queue: VecDeque<(PeerId, Message)>,
    wakers: Wakers,
}

impl Mailbox {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no message is inside: one load.
    #[inline(always)]
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.len.load(SeqCst) == 0
    }

    /// Puts a message in; `false` if the mailbox is closed or full.
    pub(in crate::backend) fn put(&self, from: PeerId, message: Message) -> bool {
        self.put_quietly(from, message).map(wake_all).is_some()
    }

    /// As [`Mailbox::put`], and leaves it to the caller to wake those who wait; `None` if the mailbox is closed or full.
    pub(in crate::backend) fn put_quietly(&self, from: PeerId, message: Message) -> Option<Vec<Waker>> {
        let mut inside = self.inside();
        if self.is_closed() || inside.queue.len() >= CAPACITY {
            return None;
        }
        inside.queue.push_back((from, message));
        self.len.store(inside.queue.len(), SeqCst);
        self.arrivals.fetch_add(1, SeqCst);
        Some(inside.wakers.take())
    }

    /// Takes no more messages, and ends every receive.
    pub(in crate::backend) fn close(&self) {
        let mut inside = self.inside();
        self.closed.store(true, SeqCst);
        let wakers = inside.wakers.take();
        drop(inside);
        wake_all(wakers);
    }

    /// Looks for a while whether something arrives after the first `arrivals` messages.
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

/// The future of `recv_by`: takes the first message that `pick` wants; `None` after the deadline, or when the
/// mailbox is closed. It owns nothing but its place among the waiting, which it gives up when dropped.
///
/// Empty if there was nothing to wait for: a look that finds nothing, which every release of a queue lock makes, costs
/// one load and leaves nothing behind in memory.
pub(in crate::backend) struct Receive<'a, P>(Option<Box<Looking<'a, P>>>);

/// A receive that has to look more closely, or to wait.
struct Looking<'a, P> {
    mailbox: &'a Mailbox,
    clock: &'a Clock,
    deadline: Deadline,
    pick: P,
    /// Once it has looked, and waits.
    waiting: Option<Waiting>,
}

/// A receive that has looked once.
#[derive(Debug, Default)]
struct Waiting {
    seat: Option<u64>,
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
        Self(Some(Box::new(Looking { mailbox, clock, deadline, pick, waiting: None })))
    }
}

impl<P> fmt::Debug for Receive<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deadline = self.0.as_ref().map_or(Deadline::Now, |looking| looking.deadline);
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
            Some(looking) => looking.poll(cx),
        }
    }
}

impl<T, P: FnMut(PeerId, &Message) -> Option<T>> Looking<'_, P> {
    #[inline(never)]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let (mailbox, clock) = (self.mailbox, self.clock);
        loop {
            let arrivals = mailbox.arrivals.load(SeqCst);
            let mut inside = mailbox.inside();
            let pick = &mut self.pick;
            let mut letters = inside.queue.iter().enumerate();
            if let Some((at, answer)) =
                letters.find_map(|(at, (from, message))| Some((at, pick(*from, message)?)))
            {
                inside.queue.remove(at);
                mailbox.len.store(inside.queue.len(), SeqCst);
                return Poll::Ready(Some(answer));
            }
            if mailbox.is_closed() || clock.reached(self.deadline) {
                return Poll::Ready(None);
            }
            if let Some(Waiting { seat, alarm }) = &mut self.waiting {
                inside.wakers.keep(seat, cx.waker());
                drop(inside);
                clock.keep_alarm(alarm, self.deadline, cx);
                return Poll::Pending;
            }
            drop(inside);
            if !mailbox.spin(arrivals) {
                self.waiting = Some(Waiting::default());
            }
        }
    }
}

impl<P> Drop for Looking<'_, P> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            self.mailbox.inside().wakers.leave(&mut waiting.seat);
        }
    }
}
