//! Two futures at once: both leave together, and both have to come back.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// Runs `a` and `b` side by side until both are done. Verbs and messages begun this way are in flight together and
/// take effect in any order.
pub(crate) async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(Half::Running { future: a }), pin!(Half::Running { future: b }));
    std::future::poll_fn(move |cx| {
        let (a_done, b_done) = (a.as_mut().poll_half(cx), b.as_mut().poll_half(cx));
        if a_done && b_done {
            return Poll::Ready((a.as_mut().take(), b.as_mut().take()));
        }
        Poll::Pending
    })
    .await
}

pin_project_lite::pin_project! {
    #[project = HalfProj]
    #[project_replace = HalfOwned]
    enum Half<F: Future> {
        Running { #[pin] future: F },
        Done { output: F::Output },
        Taken,
    }
}

impl<F: Future> Half<F> {
    /// Says whether this half is done.
    fn poll_half(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool {
        if let HalfProj::Running { future } = self.as_mut().project() {
            let Poll::Ready(output) = future.poll(cx) else { return false };
            self.as_mut().project_replace(Self::Done { output });
        }
        true
    }

    fn take(self: Pin<&mut Self>) -> F::Output {
        match self.project_replace(Self::Taken) {
            HalfOwned::Done { output } => output,
            _ => unreachable!("only taken once, when done"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn both_halves_begin_before_either_is_done() {
        let half = || {
            let mut polled = false;
            std::future::poll_fn(move |_| {
                let again = std::mem::replace(&mut polled, true);
                if again { Poll::Ready(7) } else { Poll::Pending }
            })
        };
        let mut both = pin!(join(half(), half()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(both.as_mut().poll(&mut cx).is_pending());
        assert_eq!(both.as_mut().poll(&mut cx), Poll::Ready((7, 7)));
    }
}
