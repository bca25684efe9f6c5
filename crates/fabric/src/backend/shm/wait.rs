//! Waiting for a word: check, spin briefly, then sleep until a verb changes the word or the deadline passes.

use super::client::Client;
use super::park::{UNREGISTERED_POLL_NS, WaiterSlot};
use crate::addr::Value;
use crate::backend::clock::Alarm;
use crate::backend::run::{Doorbell, park_on};
use crate::endpoint::FabricError;
use crate::verb::Op;
use crate::wait::{Deadline, Time, Wait, Waited};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Checks before a waiter sleeps: a few microseconds, in which a running holder may release.
pub(super) const SPINS: u32 = 400;

/// The future of `wait_until`. Dropping it unregisters the waiter.
#[derive(Debug)]
pub(super) struct Waiting<'a, T: Value> {
    client: &'a Arc<Client>,
    wait: Wait<T>,
    spun: bool,
    slot: Option<WaiterSlot>,
    waker_key: Option<u64>,
    alarm: Option<Alarm>,
}

impl<'a, T: Value> Waiting<'a, T> {
    pub(super) fn new(client: &'a Arc<Client>, wait: Wait<T>) -> Self {
        Self { client, wait, spun: false, slot: None, waker_key: None, alarm: None }
    }

    /// Ready if the wait is over.
    fn check(&self) -> Poll<Result<Waited<T>, FabricError>> {
        let shared = &self.client.shared;
        if !self.client.is_member() {
            return Poll::Ready(Err(FabricError::Evicted));
        }
        let addr = self.wait.word.addr();
        let Some((wide, _)) = shared.reach(addr, T::WIDTH, &Op::Read) else { shared.refuse(addr, T::WIDTH) };
        let value = T::narrow(wide);
        let met = self.wait.met_by(value);
        if met || shared.clock.reached(self.wait.deadline) {
            // No READ is counted: verbs wake their waiters.
            return Poll::Ready(Ok(Waited { value, met, polls: 0 }));
        }
        Poll::Pending
    }

    /// Registers the waiter and arranges its wake-up; the caller checks once more.
    fn park(&mut self, cx: &Context<'_>) {
        let (raw, deadline) = (self.wait.raw(), self.wait.deadline);
        let shared = &self.client.shared;
        if self.slot.is_none() {
            self.slot = shared.register_waiter(raw.addr, self.client.membership.peer);
        }
        let now = shared.clock.now();
        let until = match (deadline, self.slot) {
            (Deadline::At(time), Some(_)) => Some(time),
            (Deadline::At(time), None) => Some(time.min(now.plus(UNREGISTERED_POLL_NS))),
            (_, Some(_)) => None,
            (_, None) => Some(now.plus(UNREGISTERED_POLL_NS)),
        };
        let doorbell: Arc<dyn Doorbell> = Arc::clone(self.client) as _;
        if !park_on(cx.waker(), Some(&doorbell), until.map(|until| until.since(now))) {
            self.client.register_waker(&mut self.waker_key, Some(raw), cx.waker());
            keep_alarm(self.client, &mut self.alarm, until, self.slot.is_none(), cx);
        }
    }

    fn unregister(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.client.shared.unregister_waiter(slot);
        }
        self.client.unregister_waker(&mut self.waker_key);
    }
}

/// Keeps an alarm for `until`, set anew each time if `until` is `moving`.
pub(super) fn keep_alarm(
    client: &Client,
    alarm: &mut Option<Alarm>,
    until: Option<Time>,
    moving: bool,
    cx: &Context<'_>,
) {
    if moving {
        *alarm = None;
    }
    if let Some(until) = until {
        client.shared.clock.keep_alarm(alarm, Deadline::At(until), cx);
    }
}

impl<T: Value> Unpin for Waiting<'_, T> {}

impl<T: Value> Future for Waiting<'_, T> {
    type Output = Result<Waited<T>, FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.spun {
            let spins = if this.wait.deadline == Deadline::Now { 1 } else { SPINS };
            for _ in 0..spins {
                if let Poll::Ready(end) = this.check() {
                    return Poll::Ready(end);
                }
                std::hint::spin_loop();
            }
            // Sleep only in the next poll: the first may come from a `block_on` that has no waker yet.
            this.spun = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.park(cx);
        let end = this.check();
        if end.is_ready() {
            this.unregister();
        }
        end
    }
}

impl<T: Value> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.unregister();
    }
}
