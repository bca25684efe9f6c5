//! A held lock: its token, whether it is still held, and the way back.

use super::core::Core;
use super::span::Span;
use super::watch::{Watch, register, standing};
use crate::backend::{BoxFuture, Granted, Standing};
use crate::error::{LostReason, UnlockError, in_words};
use crate::name::LockName;
use crate::progress::Watched;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_locks::Lost;
use std::fmt;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

/// What is known about a guard's lock at this moment.
///
/// ```
/// use lockwright::{Client, GuardState};
/// let client = Client::open("mem:").wait().unwrap();
/// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
/// if guard.state() != GuardState::Held {
///     // stop, and do not write
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GuardState {
    /// It is held: nobody else has it.
    Held,
    /// This process has given no sign of life for longer than the lease, or cannot reach the space: the lock may have
    /// been taken away. Stop; it will turn out to be held or lost.
    Uncertain,
    /// It was taken away. Others may hold it; whatever is written now must be refused by its token.
    Lost,
}

/// A guard of any kind of lock: what the [typed guards](crate::LockGuard) are made of, and what code takes that does not
/// care which. Every typed guard derefs to it, and turns into it by [`into_any`](crate::LockGuard::into_any).
///
/// Dropping it unlocks; [`unlock`](Self::unlock) does too, and tells what it found. It is not tied to the handle it came
/// from or to a thread: it can be sent, kept, and dropped anywhere.
///
/// ```
/// use lockwright::{AnyGuard, Client, LockGuard};
/// let client = Client::open("mem:").wait()?;
/// let guards: Vec<AnyGuard> = vec![
///     client.mutex("a")?.lock().wait()?.into_any(),
///     client.range_lock("b")?.write(0..9).wait()?.into_any(),
/// ];
/// assert!(guards.iter().all(|guard| !guard.is_shared()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct AnyGuard {
    pub(super) core: Arc<Core>,
    pub(super) token_base: u64,
    pub(super) claim: Claim,
    /// `None` once it has been given back.
    granted: Option<Granted>,
    watch: OnceLock<Arc<Watch>>,
    _span: Span,
}

impl AnyGuard {
    #[inline(always)]
    pub(crate) fn new(core: Arc<Core>, token_base: u64, claim: Claim, granted: Granted) -> Self {
        let span = Span::hold(&core, &claim, || token_base.saturating_add(core.space.token(&granted)));
        Self { core, token_base, claim, granted: Some(granted), watch: OnceLock::new(), _span: span }
    }

    pub(super) fn granted(&self) -> &Granted {
        self.granted.as_ref().expect("a guard that was unlocked is gone")
    }

    /// From now on it is held as this grant; its watch, if it has one, watches that.
    pub(super) fn change(&mut self, claim: Claim, granted: Granted) {
        self.claim = claim;
        self.granted = Some(granted);
        if let Some(watch) = self.watch.get() {
            watch.change(claim, granted);
        }
    }

    /// The fencing token: larger than that of every earlier conflicting grant of this lock, across crashes. Give it to
    /// whatever the lock protects, so that it can refuse writes from the past; see [`fenced`](crate::fenced).
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// println!("writing under token {}", guard.token());
    /// ```
    pub fn token(&self) -> u64 {
        self.token_base.saturating_add(self.core.space.token(self.granted()))
    }

    /// The lock's name.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.mutex("a").unwrap().lock().wait().unwrap().name().as_bytes(), b"a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// Whether others can share it.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(!client.mutex("a").unwrap().lock().wait().unwrap().is_shared());
    /// ```
    pub fn is_shared(&self) -> bool {
        self.claim.mode == Mode::Shared
    }

    /// The locked units, if this is a range lock's guard.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.mutex("a").unwrap().lock().wait().unwrap().range(), None);
    /// ```
    pub fn range(&self) -> Option<Range<u64>> {
        (self.core.kind == crate::backend::Kind::Ranges).then_some(self.claim.start..self.claim.end)
    }

    /// How many permits these are, if they are a semaphore's.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// use lockwright::LockGuard;
    /// let permits = client.semaphore("a", 4).unwrap().acquire_many(3).wait().unwrap();
    /// assert_eq!(permits.into_any().permits(), Some(3));
    /// ```
    pub fn permits(&self) -> Option<u64> {
        (self.core.kind == crate::backend::Kind::Semaphores).then_some(self.claim.start)
    }

    /// Looks whether the lock is still held. On shared memory this is a read of the lock itself; with a server, it is
    /// what the server said last, and whether it has been heard lately. Does not block, except in `lent:` spaces, where it
    /// takes a round trip.
    ///
    /// The answer was true when the look was taken: a process can always be stopped between the look and the deed.
    /// Only the [token](Self::token) covers that.
    ///
    /// ```
    /// # use lockwright::GuardState;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// assert_eq!(guard.state(), GuardState::Held);
    /// ```
    pub fn state(&self) -> GuardState {
        standing(&self.core, self.claim, self.granted()).into()
    }

    /// A future that is done when the lock is found to be lost, and says why; never, if it is unlocked first. Works on any
    /// executor, and may be dropped at any time. A loss is found within a tenth of a second.
    ///
    /// ```
    /// # async fn work() {}
    /// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = client.mutex("a")?.lock().await?;
    /// tokio::select! {
    ///     () = work() => guard.unlock().await?,
    ///     reason = guard.lost() => eprintln!("the lock is gone: {reason}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> LostSignal {
        LostSignal(Arc::clone(self.watch()))
    }

    /// A future that is done as soon as the lock is not surely held any more: its state is found to be
    /// [`Uncertain`](GuardState::Uncertain), or [`Lost`](GuardState::Lost), and it says which. Time to pause: an uncertain
    /// lock turns out to be held, or lost. Works on any executor, and may be dropped at any time.
    ///
    /// ```
    /// # async fn work() {}
    /// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = client.mutex("a")?.lock().await?;
    /// tokio::select! {
    ///     () = work() => guard.unlock().await?,
    ///     state = guard.uncertain() => eprintln!("paused: the lock is {state:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn uncertain(&self) -> UncertainSignal {
        UncertainSignal(Arc::clone(self.watch()))
    }

    /// Calls `act`, on the client's own thread, if the lock is found to be lost before it is unlocked. It should be
    /// short: set a flag, cancel a token, send a signal.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// guard.on_lost(|reason| eprintln!("the lock is gone, stop: {reason}"));
    /// ```
    pub fn on_lost(&self, act: impl FnOnce(LostReason) + Send + 'static) {
        let mut listeners = self.watch().listeners();
        match listeners.seen {
            Standing::Lost(reason) => {
                drop(listeners);
                act(reason);
            }
            _ => listeners.acts.push(Box::new(act)),
        }
    }

    pub(super) fn granted_if_any(&self) -> Option<&Granted> {
        self.granted.as_ref()
    }

    pub(super) fn watch_if_any(&self) -> Option<&Watch> {
        self.watch.get().map(Arc::as_ref)
    }

    pub(super) fn watch(&self) -> &Arc<Watch> {
        self.watch.get_or_init(|| {
            let watch = Arc::new(Watch::new(Arc::clone(&self.core), self.claim, *self.granted()));
            if self.core.check().is_err() {
                watch.look();
                return watch;
            }
            let weak: Weak<Watch> = Arc::downgrade(&watch);
            self.core.progress.watch(weak);
            watch
        })
    }

    /// Unlocks, and tells whether the lock was held until then. One round trip where a server decides. Dropping the
    /// returned future unlocks too.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// if let Err(error) = guard.unlock().wait() {
    ///     eprintln!("{error}: what was written may have been overwritten");
    /// }
    /// ```
    pub fn unlock(self) -> Unlock {
        Unlock { token: self.token(), guard: Some(self), release: None }
    }

    fn check(&self) -> Result<(), UnlockError> {
        self.core.check().map_err(|pid| UnlockError::OtherProcess { pid })
    }

    /// Ends the watch: from now on no loss is told.
    fn close_watch(&self) {
        if let Some(watch) = self.watch.get() {
            watch.close();
        }
    }

    /// Begins to give the lock back; only once. Mostly it is done with that.
    #[inline]
    fn release(&mut self) -> Option<Released> {
        self.close_value();
        let granted = self.granted.take()?;
        self.close_watch();
        let Core { space, kind, .. } = &*self.core;
        Some(match space.release_fast(*kind, self.claim, &granted) {
            Some(outcome) => Released::Done(outcome),
            None => Released::Under(space.release(*kind, self.claim, granted)),
        })
    }
}

impl fmt::Debug for AnyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyGuard")
            .field("name", self.name())
            .field("claim", &self.claim)
            .finish_non_exhaustive()
    }
}

/// How far a release has come.
enum Released {
    Done(Result<(), Lost>),
    Under(BoxFuture<Result<(), Lost>>),
}

impl Drop for AnyGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(granted) = &self.granted
            && self.watch.get().is_none()
            && self.core.release_fast(self.claim, granted)
        {
            return;
        }
        self.drop_slow();
    }
}

impl AnyGuard {
    #[cold]
    #[inline(never)]
    fn drop_slow(&mut self) {
        if self.granted.is_some() && self.core.is_inert() {
            self.granted = None;
            return;
        }
        self.close_value();
        let Some(granted) = self.granted.take() else { return };
        // Before the release: what is looked at afterwards would count as lost.
        self.close_watch();
        let Core { space, kind, progress, .. } = &*self.core;
        if space.release_unobserved(*kind, self.claim, &granted) {
            return;
        }
        let release = space.release(*kind, self.claim, granted);
        // If the next in the queue must be waited for, the client's own thread does that.
        progress.adopt(Box::pin(async move {
            let _ = release.await;
        }));
    }
}

impl From<Standing> for GuardState {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Held => GuardState::Held,
            Standing::Uncertain => GuardState::Uncertain,
            Standing::Lost(_) => GuardState::Lost,
        }
    }
}

/// An unlock on its way: await it, or [`wait`](Self::wait) for it.
///
/// ```
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.mutex("a")?.lock().await?;
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
#[must_use = "an unlock that is not awaited still unlocks, but its outcome is lost"]
pub struct Unlock {
    guard: Option<AnyGuard>,
    release: Option<BoxFuture<Result<(), Lost>>>,
    token: u64,
}

impl fmt::Debug for Unlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unlock").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Unlock {
    /// Blocks this thread until the lock is given back: one round trip where a server decides; otherwise at once, unless the
    /// next in the queue has not yet said where it waits.
    ///
    /// # Errors
    /// If the lock had been lost, or the space cannot be used.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// guard.unlock().wait()?;
    /// # Ok::<(), lockwright::UnlockError>(())
    /// ```
    #[inline]
    pub fn wait(mut self) -> Result<(), UnlockError> {
        let guard = self.guard.as_mut().expect("an unlock was waited for after it was done");
        guard.check()?;
        match guard.release() {
            Some(Released::Done(outcome)) => {
                self.guard = None;
                return self.tell(outcome);
            }
            Some(Released::Under(release)) => self.release = Some(release),
            None => {}
        }
        self.wait_slow()
    }

    #[cold]
    #[inline(never)]
    fn wait_slow(self) -> Result<(), UnlockError> {
        let core = Arc::clone(&self.guard.as_ref().expect("it is not done").core);
        let mut outcome = None;
        core.space.block_on(pin!(async { outcome = Some(self.await) }));
        outcome.expect("it was polled to its end")
    }

    fn tell(&self, outcome: Result<(), Lost>) -> Result<(), UnlockError> {
        outcome.map_err(|lost| match lost {
            Lost::Recovered => UnlockError::Lost { token: self.token },
            Lost::Fabric(error) => UnlockError::Disconnected(in_words(error)),
        })
    }
}

impl Future for Unlock {
    type Output = Result<(), UnlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let guard = this.guard.as_mut().expect("an unlock was polled after it was done");
        guard.check()?;
        let outcome = match guard.release() {
            Some(Released::Done(outcome)) => outcome,
            begun => {
                if let Some(Released::Under(release)) = begun {
                    this.release = Some(release);
                }
                let release = this.release.as_mut().expect("begun, now or before");
                std::task::ready!(release.as_mut().poll(cx))
            }
        };
        this.release = None;
        this.guard = None;
        Poll::Ready(this.tell(outcome))
    }
}

impl Drop for Unlock {
    fn drop(&mut self) {
        // Half-way: finish elsewhere. Not begun: the guard's own drop does it.
        if let (Some(guard), Some(release)) = (self.guard.take(), self.release.take()) {
            if guard.core.is_inert() {
                return std::mem::forget(release);
            }
            guard.core.progress.adopt(Box::pin(async move {
                let _ = release.await;
            }));
        }
    }
}

/// Done when a lock is found to be lost: see [`AnyGuard::lost`].
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
/// let lost: lockwright::LostSignal = guard.lost();
/// std::thread::spawn(move || assert!(!lost.is_lost())).join().unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct LostSignal(Arc<Watch>);

impl LostSignal {
    /// Whether it has been found to be lost.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// assert!(!guard.lost().is_lost());
    /// ```
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Why it was lost, if it has been found to be.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// assert_eq!(guard.lost().reason(), None);
    /// ```
    pub fn reason(&self) -> Option<LostReason> {
        match self.0.listeners().seen {
            Standing::Lost(reason) => Some(reason),
            _ => None,
        }
    }
}

impl Future for LostSignal {
    type Output = LostReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LostReason> {
        let mut listeners = self.0.listeners();
        if let Standing::Lost(reason) = listeners.seen {
            return Poll::Ready(reason);
        }
        register(&mut listeners.lost, cx);
        Poll::Pending
    }
}

/// Done when a lock is not surely held any more: see [`AnyGuard::uncertain`].
///
/// ```
/// # async fn example(guard: lockwright::MutexGuard) {
/// let state = guard.uncertain().await;
/// assert_ne!(state, lockwright::GuardState::Held);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct UncertainSignal(Arc<Watch>);

impl Future for UncertainSignal {
    type Output = GuardState;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<GuardState> {
        let mut listeners = self.0.listeners();
        match listeners.seen {
            Standing::Held => {
                register(&mut listeners.uncertain, cx);
                Poll::Pending
            }
            seen => Poll::Ready(seen.into()),
        }
    }
}
