//! One peer's mailbox: messages in the order they came, and the tasks that wait for one.

use super::clock::{Alarm, Clock};
use super::wakers::{Wakers, wake_all};
use crate::addr::PeerId;
use crate::message::Message;
use crate::wait::Deadline;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// A peer that lets this many messages pile up has stopped reading and counts as lost.
const CAPACITY: usize = 1 << 20;
/// Looks at the mailbox before a receiver parks: a handover from a running thread comes within a microsecond.
const SPINS: u32 = 200;

/// A mailbox.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
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

    /// Puts a message in; `false` if the mailbox is closed or full.
    pub(super) fn put(&self, from: PeerId, message: Message) -> bool {
        let mut inside = self.inside();
        if self.is_closed() || inside.queue.len() >= CAPACITY {
            return false;
        }
        inside.queue.push_back((from, message));
        self.len.store(inside.queue.len(), SeqCst);
        self.arrivals.fetch_add(1, SeqCst);
        let wakers = inside.wakers.take();
        drop(inside);
        wake_all(wakers);
        true
    }

    /// Takes no more messages, and ends every receive.
    pub(super) fn close(&self) {
        let mut inside = self.inside();
        self.closed.store(true, SeqCst);
        let wakers = inside.wakers.take();
        drop(inside);
        wake_all(wakers);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Takes the first message that `pick` wants, by `deadline`; `None` after it, or when the mailbox is closed.
    #[inline(always)]
    pub(super) fn receive<'a, T, P>(&'a self, clock: &'a Clock, deadline: Deadline, pick: P) -> Receive<'a, P>
    where
        P: FnMut(PeerId, &Message) -> Option<T>,
    {
        Receive { mailbox: self, clock, deadline, pick, seat: None, alarm: None, spun: false }
    }
}

/// The future of [`Mailbox::receive`]. It owns nothing but its place among the waiting, which it gives up when
/// dropped.
pub(super) struct Receive<'a, P> {
    mailbox: &'a Mailbox,
    clock: &'a Clock,
    deadline: Deadline,
    pick: P,
    seat: Option<u64>,
    alarm: Option<Alarm>,
    spun: bool,
}

impl<P> fmt::Debug for Receive<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receive").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// The closure is called, never pinned.
impl<P> Unpin for Receive<'_, P> {}

impl<T, P: FnMut(PeerId, &Message) -> Option<T>> Future for Receive<'_, P> {
    type Output = Option<T>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = self.get_mut();
        // The look that a release makes every time must not cost a lock.
        if this.deadline == Deadline::Now && this.mailbox.len.load(SeqCst) == 0 {
            return Poll::Ready(None);
        }
        this.poll_slow(cx)
    }
}

impl<T, P: FnMut(PeerId, &Message) -> Option<T>> Receive<'_, P> {
    #[inline(never)]
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        loop {
            let arrivals = self.mailbox.arrivals.load(SeqCst);
            let mut inside = self.mailbox.inside();
            let pick = &mut self.pick;
            let found = inside
                .queue
                .iter()
                .enumerate()
                .find_map(|(at, (from, message))| Some((at, pick(*from, message)?)));
            if let Some((at, answer)) = found {
                inside.queue.remove(at);
                self.mailbox.len.store(inside.queue.len(), SeqCst);
                inside.wakers.leave(&mut self.seat);
                return Poll::Ready(Some(answer));
            }
            if self.mailbox.is_closed() || self.clock.reached(self.deadline) {
                inside.wakers.leave(&mut self.seat);
                return Poll::Ready(None);
            }
            if self.spun {
                inside.wakers.keep(&mut self.seat, cx.waker());
                drop(inside);
                self.clock.keep_alarm(&mut self.alarm, self.deadline, cx);
                return Poll::Pending;
            }
            drop(inside);
            self.spun = true;
            for _ in 0..SPINS {
                if self.mailbox.arrivals.load(SeqCst) != arrivals {
                    self.spun = false;
                    break;
                }
                std::hint::spin_loop();
            }
        }
    }
}

impl<P> Drop for Receive<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.seat.is_some() {
            self.mailbox.inside().wakers.leave(&mut self.seat);
        }
    }
}
