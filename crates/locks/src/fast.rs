//! The fast path, kept thin: one verb, a look at the old word, done.
//!
//! An `async fn` does not inline into its caller, which costs more than the atomics of an uncontended lock. So
//! a protocol writes its first verb and what it decides from it with [`at_once`] or [`fast`], or makes a [`Quick`] of it,
//! and everything else as an ordinary `async fn` that only exists once the fast path has failed.
//!
//! What is done by the time the future is made is not kept in it: where a verb is an instruction of this CPU, the future
//! that comes out holds the grant and nothing else. Its parts lie side by side, never in each other's place: a value that
//! is written in pieces of one size and copied in pieces of another stalls the CPU for longer than an uncontended lock
//! takes, and every word that a future keeps is a store that the next atomic has to wait for.

use lockwright_fabric::{Batch, Endpoint, FabricError};
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project_lite::pin_project! {
    /// The future of [`fast`] and [`at_once`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Fast<F, D, S, T> {
        done: Option<T>,
        #[pin]
        first: Option<First<F, D>>,
        slow: Option<Pin<Box<S>>>,
    }
}

pin_project_lite::pin_project! {
    /// A first verb under way, and what will be made of its outcome.
    #[derive(Debug)]
    struct First<F, D> {
        #[pin]
        verb: F,
        decide: Option<D>,
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
pub fn fast<F, D, S, T>(first: F, decide: D) -> Fast<F, D, S, T>
where
    F: Future,
    D: FnOnce(F::Output) -> Result<T, S>,
    S: Future<Output = T>,
{
    Fast { done: None, first: Some(First { verb: first, decide: Some(decide) }), slow: None }
}

/// As [`fast`], for a `batch` through `ep`: where verbs take no waiting, it is decided when this returns.
#[inline(always)]
pub fn at_once<E, B, D, S, T>(
    ep: &E,
    batch: B,
    decide: D,
) -> Fast<impl Future<Output = Result<B::Old, FabricError>>, D, S, T>
where
    E: Endpoint,
    B: Batch,
    D: FnOnce(Result<B::Old, FabricError>) -> Result<T, S>,
    S: Future<Output = T>,
{
    if !E::IS_IMMEDIATE {
        return fast(ep.go(batch), decide);
    }
    match decide(now(ep, batch)) {
        Ok(done) => Fast { done: Some(done), first: None, slow: None },
        Err(slow) => Fast { done: None, first: None, slow: Some(boxed(slow)) },
    }
}

/// What `batch` finds, executed at once, through an endpoint that [can](Endpoint::IS_IMMEDIATE).
#[inline(always)]
pub fn now<E: Endpoint, B: Batch>(ep: &E, batch: B) -> Result<B::Old, FabricError> {
    match ep.try_go(batch) {
        Ok(outcome) => outcome,
        Err(_) => unreachable!("only asked of endpoints whose verbs take no waiting"),
    }
}

/// Out of line: a fast path that never comes here should not carry the code.
#[cold]
#[inline(never)]
fn boxed<S>(slow: S) -> Pin<Box<S>> {
    Box::pin(slow)
}

impl<F, D, S, T> Future for Fast<F, D, S, T>
where
    F: Future,
    D: FnOnce(F::Output) -> Result<T, S>,
    S: Future<Output = T>,
{
    type Output = T;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut this = self.project();
        if let Some(done) = this.done.take() {
            return Poll::Ready(done);
        }
        if let Some(first) = this.first.as_mut().as_pin_mut() {
            let first = first.project();
            let Poll::Ready(outcome) = first.verb.poll(cx) else { return Poll::Pending };
            let decide = first.decide.take().expect("the first verb completes once");
            this.first.set(None);
            match decide(outcome) {
                Ok(done) => return Poll::Ready(done),
                Err(slow) => *this.slow = Some(boxed(slow)),
            }
        }
        let slow = this.slow.as_mut().expect("a finished future is not polled again");
        slow.as_mut().poll(cx)
    }
}

pin_project_lite::pin_project! {
    /// What is done, or the rest of it.
    ///
    /// For a protocol that executes its first verb [at once](Endpoint::IS_IMMEDIATE) where it can: usually it is done by
    /// then, and all that this holds is the answer. If it is not, the rest is an ordinary future, boxed out of the way of
    /// the next that is. Where nothing is done at once, the rest is all there is, and lies here.
    ///
    /// ```
    /// # use lockwright_locks::Quick;
    /// # fn poll_once<T>(future: impl Future<Output = T>) -> T {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     match future.as_mut().poll(&mut cx) { std::task::Poll::Ready(t) => t, _ => panic!() }
    /// # }
    /// async fn wait(for_what: u32) -> u32 { for_what }
    /// let acquire = |found| match found {
    ///     None => Quick::all(wait(3)),
    ///     Some(true) => Quick::done(1),
    ///     Some(false) => Quick::rest(wait(2)),
    /// };
    /// assert_eq!([Some(true), Some(false), None].map(|found| poll_once(acquire(found))), [1, 2, 3]);
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct Quick<R, S, T> {
        done: Option<T>,
        rest: Option<R>,
        #[pin]
        all: Option<S>,
    }
}

impl<R, S: Future<Output = T>, T> Quick<R, S, T> {
    /// It is done.
    #[inline(always)]
    pub const fn done(done: T) -> Self {
        Self { done: Some(done), rest: None, all: None }
    }

    /// It is not begun.
    #[inline(always)]
    pub const fn all(future: S) -> Self {
        Self { done: None, rest: None, all: Some(future) }
    }
}

/// An answer that can be handed on part by part. A whole one is copied as it lies in memory, in pieces of sixteen bytes that
/// were just written in eights, and the CPU waits for those; parts stay in registers.
pub trait Answer {
    /// The same, put together anew.
    #[must_use]
    fn anew(&self) -> Self;
}

impl<T: Answer, E: Copy> Answer for Result<T, E> {
    #[inline(always)]
    fn anew(&self) -> Self {
        match self {
            Ok(answer) => Ok(answer.anew()),
            Err(error) => Err(*error),
        }
    }
}

macro_rules! answer {
    ($($whole:ty)+) => {
        $(impl Answer for $whole {
            #[inline(always)]
            fn anew(&self) -> Self {
                *self
            }
        })+
    };
}
answer!(() u32 u64);

/// A future whose type is forgotten, so that dropping it is little code.
pub type Erased<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The answer, or what is left to do for it: what blocking code begins with
/// ([`LockClient::acquire_at_once`](crate::LockClient::acquire_at_once)). A future that a thread may sleep on has to lie in
/// memory, and an answer that is in it by the time it is made would be written there and read back.
pub type AtOnce<'a, T> = Result<T, Erased<'a, T>>;

/// The answer; `run` is called with what is left to do for it, if anything is.
///
/// ```
/// use lockwright_fabric::backend::block_on;
/// use lockwright_fabric::backend::inproc::InProc;
/// use lockwright_fabric::PeerId;
/// use lockwright_locks::baseline::cas::Cas;
/// use lockwright_locks::{LockClient, Protocol, Space, Want, finish};
///
/// let client = Cas::client(InProc::new(1, 64).endpoint(PeerId::client(0)), &Space::of(8), &());
/// let grant = finish(client.acquire_at_once(Want::exclusive(3)), block_on).unwrap();
/// finish(client.release_at_once(grant), block_on).unwrap();
/// ```
#[inline(always)]
pub fn finish<'a, T: Answer>(begun: AtOnce<'a, T>, run: impl FnOnce(Erased<'a, T>) -> T) -> T {
    match begun {
        Ok(done) => done,
        // In parts, since it meets the quick one here.
        Err(rest) => run(rest).anew(),
    }
}

impl<'a, S: Future<Output = T> + 'a, T> Quick<Erased<'a, T>, S, T> {
    /// It was begun, and is not done.
    #[inline(always)]
    pub fn rest(future: S) -> Self {
        <Self as Begun<T>>::rest(future)
    }
}

/// What comes out of a fast path, so that it is written once for those who await it and those who block.
pub trait Begun<'a, T> {
    /// It is done.
    fn done(done: T) -> Self;
    /// It is not.
    fn rest(rest: impl Future<Output = T> + 'a) -> Self;
}

impl<'a, T> Begun<'a, T> for AtOnce<'a, T> {
    #[inline(always)]
    fn done(done: T) -> Self {
        Ok(done)
    }

    #[inline(always)]
    fn rest(rest: impl Future<Output = T> + 'a) -> Self {
        Err(erased(rest))
    }
}

impl<'a, S, T> Begun<'a, T> for Quick<Erased<'a, T>, S, T> {
    #[inline(always)]
    fn done(done: T) -> Self {
        Self { done: Some(done), rest: None, all: None }
    }

    #[inline(always)]
    fn rest(rest: impl Future<Output = T> + 'a) -> Self {
        Self { done: None, rest: Some(erased(rest)), all: None }
    }
}

impl<S: Future<Output = T>, T> Quick<Pin<Box<S>>, S, T> {
    /// It was begun, and is not done; for clients of several threads: it can be sent to another if `future` can.
    #[inline(always)]
    pub fn typed_rest(future: S) -> Self {
        Self { done: None, rest: Some(boxed(future)), all: None }
    }
}

impl<R, S, T> std::fmt::Debug for Quick<R, S, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quick").field("is_done", &self.done.is_some()).finish_non_exhaustive()
    }
}

/// Out of line, as [`boxed`].
#[cold]
#[inline(never)]
pub fn erased<'a, T>(rest: impl Future<Output = T> + 'a) -> Erased<'a, T> {
    Box::pin(rest)
}

/// Polls `future`; its answer goes into `done`. An answer that a call hands back through memory would bring the quick ones
/// into memory too, since they meet in one place.
#[inline(never)]
fn is_answered<T>(
    future: Pin<&mut impl Future<Output = T>>,
    done: &mut Option<T>,
    cx: &mut Context<'_>,
) -> bool {
    match future.poll(cx) {
        Poll::Ready(answer) => {
            *done = Some(answer);
            true
        }
        Poll::Pending => false,
    }
}

impl<R: Future<Output = T> + Unpin, S: Future<Output = T>, T> Future for Quick<R, S, T> {
    type Output = T;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.project();
        if let Some(done) = this.done.take() {
            return Poll::Ready(done);
        }
        let is_answered = match this.rest {
            Some(rest) => is_answered(Pin::new(rest), this.done, cx),
            None => {
                let all = this.all.as_pin_mut().expect("it is done, or not, or not begun");
                is_answered(all, this.done, cx)
            }
        };
        if !is_answered {
            return Poll::Pending;
        }
        Poll::Ready(this.done.take().expect("it was answered just now"))
    }
}

pin_project_lite::pin_project! {
    /// One of two futures with one kind of answer: for a fast path that forks.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Either<A, B> {
        #[pin]
        left: Option<A>,
        #[pin]
        right: Option<B>,
    }
}

impl<A, B> Either<A, B> {
    /// The one.
    #[inline(always)]
    pub const fn left(left: A) -> Self {
        Self { left: Some(left), right: None }
    }

    /// The other.
    #[inline(always)]
    pub const fn right(right: B) -> Self {
        Self { left: None, right: Some(right) }
    }
}

impl<T, A: Future<Output = T>, B: Future<Output = T>> Future for Either<A, B> {
    type Output = T;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.project();
        match this.left.as_pin_mut() {
            Some(left) => left.poll(cx),
            None => this.right.as_pin_mut().expect("it is one of the two").poll(cx),
        }
    }
}
