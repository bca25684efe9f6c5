//! Receiving: look into the inbox, spin for a moment, then sleep until a letter comes or the deadline.

use super::client::Client;
use super::wait::{SPINS, keep_alarm};
use crate::addr::PeerId;
use crate::backend::clock::Alarm;
use crate::backend::run::{Doorbell, rest_on};
use crate::message::Message;
use crate::wait::Deadline;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};

/// How soon a receiver looks again whose next letter is half-written: its writer may die before it rings.
const HALF_WRITTEN_LOOK_NS: u64 = 1_000_000;

/// The future of `recv_by`: takes the first letter that `pick` wants; `None` after the deadline.
///
/// A client that was declared dead gets no more letters: a receive with a deadline ends at once, one without stays
/// pending (there is no answer it could give), and whoever drives it races it against
/// [`ShmEndpoint::expelled`](super::ShmEndpoint::expelled).
pub(super) struct Receive<'a, P> {
    client: &'a Arc<Client>,
    deadline: Deadline,
    pick: P,
    /// Only there once it waits: a look that finds nothing, which every release of a queue lock makes, stays small.
    waiting: Option<Box<Sleeping<'a>>>,
}

/// A receive that has looked for a while.
struct Sleeping<'a> {
    client: &'a Client,
    place: Option<u64>,
    alarm: Option<Alarm>,
}

impl<'a> Sleeping<'a> {
    fn new(client: &'a Client) -> Box<Self> {
        client.receivers.fetch_add(1, SeqCst);
        Box::new(Self { client, place: None, alarm: None })
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.client.receivers.fetch_sub(1, SeqCst);
        self.client.rise(&mut self.place);
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
        // The look that a release makes every time must not cost a lock.
        if this.deadline == Deadline::Now && this.client.has_no_letter() {
            return Poll::Ready(None);
        }
        this.poll_slow(cx)
    }
}

impl<T, P: FnMut(PeerId, &Message) -> Option<T>> Receive<'_, P> {
    /// Takes a letter that is there. Says whether one is half-written.
    fn take(&mut self, thorough: bool) -> Result<T, bool> {
        let (mut inbox, pumped) = self.client.pump(thorough);
        let pick = &mut self.pick;
        let mut letters = inbox.letters.iter().enumerate();
        let found = letters.find_map(|(at, (from, message))| Some((at, pick(*from, message)?)));
        let Some((at, answer)) = found else { return Err(pumped.half_written) };
        inbox.letters.remove(at);
        self.client.took(&inbox);
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
                if !self.client.has_no_new_letter()
                    && let Ok(answer) = self.take(false)
                {
                    return Poll::Ready(Some(answer));
                }
            }
            // Sleeping is for the next poll: the first may come from a `block_on` that has made no waker yet.
            self.waiting = Some(Sleeping::new(self.client));
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let now = clock.now();
        let limit = if let Deadline::At(time) = self.deadline { Some(time) } else { None };
        let bell: Arc<dyn Doorbell> = Arc::clone(self.client) as _;
        let direct = rest_on(cx.waker(), Some(&bell), limit.map(|limit| limit.since(now)));
        if !direct {
            let sleeping = self.waiting.as_mut().expect("set before");
            self.client.doze(&mut sleeping.place, None, cx.waker());
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
                    rest_on(cx.waker(), Some(&bell), until.map(|until| until.since(now)));
                } else {
                    let sleeping = self.waiting.as_mut().expect("set before");
                    keep_alarm(self.client, &mut sleeping.alarm, until, half_written, cx);
                }
            }
        }
        Poll::Pending
    }
}
