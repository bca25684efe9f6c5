//! Waiting for a word: look, spin for a moment, then park until a verb changes the word or the deadline
//! comes.

use super::endpoint::InProcEndpoint;
use crate::addr::Value;
use crate::backend::clock::Alarm;
use crate::backend::sought::Sought;
use crate::endpoint::FabricError;
use crate::wait::{Deadline, Wait, Waited};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Looks at the word before a waiter parks.
const SPINS: u32 = 200;

/// The future of `wait_until`. It gives up its place in the parking table when dropped.
#[derive(Debug)]
pub(super) struct Waiting<'a, T: Value> {
    ep: &'a InProcEndpoint,
    wait: Wait<T>,
    seat: Option<u64>,
    alarm: Option<Alarm>,
    spun: bool,
}

impl<'a, T: Value> Waiting<'a, T> {
    pub(super) fn new(ep: &'a InProcEndpoint, wait: Wait<T>) -> Self {
        Self { ep, wait, seat: None, alarm: None, spun: false }
    }

    /// The wait's end, if the word meets it or is out of reach. No READ is counted: verbs wake their waiters.
    fn look(&self) -> Poll<Result<Waited<T>, FabricError>> {
        match self.ep.execute(self.wait.word.read().raw()) {
            Err(lost) => Poll::Ready(Err(lost)),
            Ok(wide) if self.wait.met_by(T::narrow(wide)) => {
                Poll::Ready(Ok(Waited { value: T::narrow(wide), met: true, polls: 0 }))
            }
            Ok(wide) if self.ep.clock().reached(self.wait.deadline) => {
                Poll::Ready(Ok(Waited { value: T::narrow(wide), met: false, polls: 0 }))
            }
            Ok(_) => Poll::Pending,
        }
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
            this.spun = true;
        }
        let Wait { word, cond, or, deadline, .. } = this.wait;
        let sought = Sought { addr: word.addr(), width: T::WIDTH, cond, or };
        this.ep.parking().keep(&mut this.seat, &sought, cx.waker());
        let end = this.look();
        if end.is_pending() {
            this.ep.clock().keep_alarm(&mut this.alarm, deadline, cx);
        } else {
            this.ep.parking().leave(&mut this.seat, word.addr());
        }
        end
    }
}

impl<T: Value> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.ep.parking().leave(&mut self.seat, self.wait.word.addr());
    }
}
