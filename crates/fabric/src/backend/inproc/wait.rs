//! Waiting for a word: check, spin briefly, then park until a verb changes the word or the deadline passes.

use super::endpoint::InProcEndpoint;
use crate::addr::Value;
use crate::backend::clock::Alarm;
use crate::endpoint::FabricError;
use crate::wait::{Deadline, Wait, Waited};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Checks of the word before a waiter parks.
const SPINS: u32 = 200;

/// The future of `wait_until`. Dropping it removes it from the parking table.
#[derive(Debug)]
pub(super) struct Waiting<'a, T: Value> {
    ep: &'a InProcEndpoint,
    wait: Wait<T>,
    /// Its entry in the parking table.
    key: Option<u64>,
    alarm: Option<Alarm>,
    spun: bool,
}

impl<'a, T: Value> Waiting<'a, T> {
    pub(super) fn new(ep: &'a InProcEndpoint, wait: Wait<T>) -> Self {
        Self { ep, wait, key: None, alarm: None, spun: false }
    }

    /// Ready if the wait is over or the word is unreachable. No READ is counted: verbs wake their waiters.
    fn check(&self) -> Poll<Result<Waited<T>, FabricError>> {
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
                if let Poll::Ready(end) = this.check() {
                    return Poll::Ready(end);
                }
                std::hint::spin_loop();
            }
            this.spun = true;
        }
        let raw = this.wait.raw();
        this.ep.parking().register(&mut this.key, &raw, cx.waker());
        let end = this.check();
        if end.is_pending() {
            this.ep.clock().keep_alarm(&mut this.alarm, this.wait.deadline, cx);
        } else {
            this.ep.parking().unregister(&mut this.key, raw.addr);
        }
        end
    }
}

impl<T: Value> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.ep.parking().unregister(&mut self.key, self.wait.word.addr());
    }
}
