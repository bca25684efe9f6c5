//! The fast path, kept thin: one verb, a look at the old word, done.
//!
//! An `async fn` does not inline into its caller, which costs more than the atomics of an uncontended lock. So
//! a protocol writes its first verb and what it decides from it with [`fast`], and everything else as an
//! ordinary `async fn` that only exists once the fast path has failed.
//!
//! The slow path is boxed. Not for its size alone: what is polled by a call has an address, and whatever shares a future
//! with it would have to live in memory too. Without it the whole fast path stays in registers.

use std::pin::Pin;
use std::task::{Context, Poll};

pin_project_lite::pin_project! {
    /// The future of [`fast`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Fast<F, D, S> {
        decide: Option<D>,
        #[pin]
        path: Path<F, S>,
    }
}

pin_project_lite::pin_project! {
    #[project = PathProj]
    #[derive(Debug)]
    enum Path<F, S> {
        First { #[pin] first: F },
        Slow { slow: Pin<Box<S>> },
    }
}

/// Runs `first`, lets `decide` look at its outcome, and is done with `Ok`, or goes on with the future in `Err`.
///
/// ```
/// # use lockwright_locks::fast;
/// # let block_on = |future| { futures_lite_poll(future) };
/// # fn futures_lite_poll<T>(future: impl Future<Output = T>) -> T {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// #     match future.as_mut().poll(&mut cx) { std::task::Poll::Ready(t) => t, _ => panic!() }
/// # }
/// let old = async { 0 };
/// let acquire = fast(old, |old| if old == 0 { Ok("granted") } else { Err(async { "waited, then granted" }) });
/// assert_eq!(block_on(acquire), "granted");
/// ```
#[inline(always)]
pub fn fast<F, D, S, T>(first: F, decide: D) -> Fast<F, D, S>
where
    F: Future,
    D: FnOnce(F::Output) -> Result<T, S>,
    S: Future<Output = T>,
{
    Fast { decide: Some(decide), path: Path::First { first } }
}

/// Out of line: a fast path that never comes here should not carry the code.
#[cold]
#[inline(never)]
fn boxed<S>(slow: S) -> Pin<Box<S>> {
    Box::pin(slow)
}

impl<F, D, S, T> Future for Fast<F, D, S>
where
    F: Future,
    D: FnOnce(F::Output) -> Result<T, S>,
    S: Future<Output = T>,
{
    type Output = T;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut this = self.project();
        if let PathProj::First { first } = this.path.as_mut().project() {
            let Poll::Ready(outcome) = first.poll(cx) else { return Poll::Pending };
            let decide = this.decide.take().expect("the first verb completes once");
            match decide(outcome) {
                Ok(done) => return Poll::Ready(done),
                Err(slow) => this.path.set(Path::Slow { slow: boxed(slow) }),
            }
        }
        match this.path.project() {
            PathProj::Slow { slow } => slow.as_mut().poll(cx),
            PathProj::First { .. } => unreachable!("the slow path was set just above"),
        }
    }
}

pin_project_lite::pin_project! {
    /// The future of [`then`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub(crate) struct Then<F, C, D, S> {
        decide: Option<(C, D)>,
        #[pin]
        step: Step<F, S>,
    }
}

pin_project_lite::pin_project! {
    #[project = StepProj]
    #[derive(Debug)]
    enum Step<F, S> {
        First { #[pin] first: F },
        Second { #[pin] second: S },
    }
}

/// Runs `first`, and then what `decide` makes of its outcome: for a fast path of two steps. Both should be small.
///
/// `decide` is given what it needs as `context`, so that it can be a function: a closure cannot be told to inline, and a
/// future that is handed back by a call goes through memory.
#[inline(always)]
pub(crate) fn then<F, C, D, S>(first: F, context: C, decide: D) -> Then<F, C, D, S>
where
    F: Future,
    D: FnOnce(C, F::Output) -> S,
    S: Future,
{
    Then { decide: Some((context, decide)), step: Step::First { first } }
}

impl<F, C, D, S> Future for Then<F, C, D, S>
where
    F: Future,
    D: FnOnce(C, F::Output) -> S,
    S: Future,
{
    type Output = S::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<S::Output> {
        let mut this = self.project();
        if let StepProj::First { first } = this.step.as_mut().project() {
            let Poll::Ready(outcome) = first.poll(cx) else { return Poll::Pending };
            let (context, decide) = this.decide.take().expect("the first step completes once");
            this.step.set(Step::Second { second: decide(context, outcome) });
        }
        match this.step.project() {
            StepProj::Second { second } => second.poll(cx),
            StepProj::First { .. } => unreachable!("the second step was set just above"),
        }
    }
}

pin_project_lite::pin_project! {
    /// One of two futures with one kind of answer: for a fast path that forks.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Either<A, B> {
        #[pin]
        side: Side<A, B>,
    }
}

pin_project_lite::pin_project! {
    #[project = SideProj]
    #[derive(Debug)]
    enum Side<A, B> {
        Left { #[pin] left: A },
        Right { #[pin] right: B },
    }
}

impl<A, B> Either<A, B> {
    /// The one.
    #[inline(always)]
    pub const fn left(left: A) -> Self {
        Self { side: Side::Left { left } }
    }

    /// The other.
    #[inline(always)]
    pub const fn right(right: B) -> Self {
        Self { side: Side::Right { right } }
    }
}

impl<T, A: Future<Output = T>, B: Future<Output = T>> Future for Either<A, B> {
    type Output = T;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.project().side.project() {
            SideProj::Left { left } => left.poll(cx),
            SideProj::Right { right } => right.poll(cx),
        }
    }
}
