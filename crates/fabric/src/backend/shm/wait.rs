//! Waiting for a word: look, spin for a moment, then sleep until a verb changes the word or the deadline comes.

use super::client::Client;
use super::park::{STANDING_LOOK_NS, Seat};
use crate::addr::Value;
use crate::backend::clock::Alarm;
use crate::backend::run::{Doorbell, rest_on};
use crate::backend::sought::Sought;
use crate::endpoint::FabricError;
use crate::verb::Op;
use crate::wait::{Deadline, Time, Wait, Waited};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Looks before a waiter sleeps: a few microseconds, in which a running holder may well be done.
pub(super) const SPINS: u32 = 400;

/// The future of `wait_until`. It gives up its seat when dropped.
#[derive(Debug)]
pub(super) struct Waiting<'a, T: Value> {
    client: &'a Arc<Client>,
    wait: Wait<T>,
    spun: bool,
    seat: Option<Seat>,
    place: Option<u64>,
    alarm: Option<Alarm>,
}

impl<'a, T: Value> Waiting<'a, T> {
    pub(super) fn new(client: &'a Arc<Client>, wait: Wait<T>) -> Self {
        Self { client, wait, spun: false, seat: None, place: None, alarm: None }
    }

    /// The wait's end, if it has come.
    fn look(&self) -> Poll<Result<Waited<T>, FabricError>> {
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

    fn settle(&mut self, cx: &Context<'_>) {
        let Wait { word, cond, or, deadline, .. } = self.wait;
        let shared = &self.client.shared;
        if self.seat.is_none() {
            self.seat = shared.sit_down(word.addr(), self.client.joined.peer);
        }
        let now = shared.clock.now();
        let until = match (deadline, self.seat) {
            (Deadline::At(time), Some(_)) => Some(time),
            (Deadline::At(time), None) => Some(time.min(now.plus(STANDING_LOOK_NS))),
            (_, Some(_)) => None,
            (_, None) => Some(now.plus(STANDING_LOOK_NS)),
        };
        let bell: Arc<dyn Doorbell> = Arc::clone(self.client) as _;
        if !rest_on(cx.waker(), Some(&bell), until.map(|until| until.since(now))) {
            let sought = Sought { addr: word.addr(), width: T::WIDTH, cond, or };
            self.client.doze(&mut self.place, Some(sought), cx.waker());
            keep_alarm(self.client, &mut self.alarm, until, self.seat.is_none(), cx);
        }
    }

    fn give_up_places(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.client.shared.stand_up(seat);
        }
        self.client.rise(&mut self.place);
    }
}

/// Keeps an alarm for `until`. One that is `moving` is set anew each time.
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
                if let Poll::Ready(end) = this.look() {
                    return Poll::Ready(end);
                }
                std::hint::spin_loop();
            }
            // Sleeping is for the next poll: the first may come from a `block_on` that has made no waker yet.
            this.spun = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.settle(cx);
        let end = this.look();
        if end.is_ready() {
            this.give_up_places();
        }
        end
    }
}

impl<T: Value> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.give_up_places();
    }
}
