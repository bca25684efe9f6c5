//! Receiving: check the inbox, spin briefly, then sleep until a message arrives or the deadline passes.

use super::client::Client;
use super::wait::{SPINS, keep_alarm};
use crate::addr::PeerId;
use crate::backend::clock::Alarm;
use crate::backend::run::{Doorbell, park_on};
use crate::message::Message;
use crate::wait::Deadline;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};

/// How often a receiver checks a half-written message: its sender may die before it rings.
const HALF_WRITTEN_LOOK_NS: u64 = 1_000_000;

/// The future of `recv_by`: takes the first message that `pick` accepts; `None` after the deadline.
///
/// An evicted client gets no more messages: a receive with a deadline ends at once, one without stays pending.
pub(super) struct Receive<'a, P> {
    client: &'a Arc<Client>,
    deadline: Deadline,
    pick: P,
    /// Allocated only when it waits: a check that finds nothing, which every release of a queue lock makes, stays small.
    waiting: Option<Box<Blocked<'a>>>,
}

/// A receive that has spun and waits.
struct Blocked<'a> {
    client: &'a Client,
    waker_key: Option<u64>,
    alarm: Option<Alarm>,
}

impl<'a> Blocked<'a> {
    fn new(client: &'a Client) -> Box<Self> {
        client.receivers.fetch_add(1, SeqCst);
        Box::new(Self { client, waker_key: None, alarm: None })
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.client.receivers.fetch_sub(1, SeqCst);
        self.client.unregister_waker(&mut self.waker_key);
    }
}

impl<'a, P> Receive<'a, P> {
    #[inline(always)]
    pub(super) const fn new(client: &'a Arc<Client>, deadline: Deadline, pick: P) -> Self {
        Self { client, deadline, pick, waiting: None }
    }
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
        // Every release of a queue lock makes this check: it must not take a lock.
        if this.deadline == Deadline::Now && this.client.has_no_message() {
            return Poll::Ready(None);
        }
        this.poll_slow(cx)
    }
}

impl<T, P: FnMut(PeerId, &Message) -> Option<T>> Receive<'_, P> {
    /// Takes a message from the inbox. The error says whether one is half-written.
    fn take(&mut self, thorough: bool) -> Result<T, bool> {
        let (mut inbox, drained) = self.client.drain(thorough);
        let pick = &mut self.pick;
        let mut messages = inbox.messages.iter().enumerate();
        let found = messages.find_map(|(at, (from, message))| Some((at, pick(*from, message)?)));
        let Some((at, answer)) = found else { return Err(drained.half_written) };
        inbox.messages.remove(at);
        self.client.update_queued(&inbox);
        Ok(answer)
    }

    #[inline(never)]
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let clock = &self.client.shared.clock;
        if self.waiting.is_none() {
            if let Ok(answer) = self.take(false) {
                return Poll::Ready(Some(answer));
            }
            if clock.reached(self.deadline) {
                return Poll::Ready(None);
            }
            for _ in 0..SPINS {
                std::hint::spin_loop();
                if !self.client.ring_is_empty()
                    && let Ok(answer) = self.take(false)
                {
                    return Poll::Ready(Some(answer));
                }
            }
            // Sleep only in the next poll: the first may come from a `block_on` that has no waker yet.
            self.waiting = Some(Blocked::new(self.client));
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let now = clock.now();
        let limit = if let Deadline::At(time) = self.deadline { Some(time) } else { None };
        let doorbell: Arc<dyn Doorbell> = Arc::clone(self.client) as _;
        let direct = park_on(cx.waker(), Some(&doorbell), limit.map(|limit| limit.since(now)));
        if !direct {
            let blocked = self.waiting.as_mut().expect("set before");
            self.client.register_waker(&mut blocked.waker_key, None, cx.waker());
        }
        match self.take(true) {
            Ok(answer) => {
                self.waiting = None;
                return Poll::Ready(Some(answer));
            }
            Err(_) if clock.reached(self.deadline) => return Poll::Ready(None),
            Err(_) if self.deadline != Deadline::Never && !self.client.is_member() => {
                return Poll::Ready(None);
            }
            Err(half_written) => {
                let soon = half_written.then(|| now.plus(HALF_WRITTEN_LOOK_NS));
                let until = soon.into_iter().chain(limit).min();
                if direct {
                    park_on(cx.waker(), Some(&doorbell), until.map(|until| until.since(now)));
                } else {
                    let blocked = self.waiting.as_mut().expect("set before");
                    keep_alarm(self.client, &mut blocked.alarm, until, half_written, cx);
                }
            }
        }
        Poll::Pending
    }
}
