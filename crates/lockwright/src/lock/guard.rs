//! A held lock: its token, whether it is still held, and the way back.

use super::core::Core;
use crate::error::UnlockError;
use crate::home::{BoxFuture, Granted, Standing};
use crate::name::LockName;
use crate::progress::Watched;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_locks::Lost;
use std::fmt;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

/// What is known about a guard's lock at this moment.
///
/// ```
/// use lockwright::{Client, GuardState};
/// let client = Client::open("mem:").unwrap();
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

/// A held lock. Dropping it unlocks; [`unlock`](Self::unlock) does too, and tells what it found.
///
/// A guard is not tied to the handle it came from or to a thread: it can be sent, kept, and dropped anywhere.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").unwrap();
/// let lock = client.mutex("a").unwrap();
/// let first = lock.lock().wait().unwrap();
/// let token = first.token();
/// drop(first);
/// let second = std::thread::spawn(move || lock.lock().wait().unwrap()).join().unwrap();
/// assert!(second.token() > token);
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    pub(super) core: Arc<Core>,
    pub(super) token_base: u64,
    pub(super) claim: Claim,
    /// `None` once it has been given back.
    granted: Option<Granted>,
    watch: OnceLock<Arc<Watch>>,
}

impl Guard {
    #[inline]
    pub(crate) fn new(core: Arc<Core>, token_base: u64, claim: Claim, granted: Granted) -> Self {
        Self { core, token_base, claim, granted: Some(granted), watch: OnceLock::new() }
    }

    pub(super) fn granted(&self) -> &Granted {
        self.granted.as_ref().expect("a guard that was unlocked is gone")
    }

    /// It is held like that from now on; whoever listens for its loss hears of this one.
    pub(super) fn change(&mut self, claim: Claim, granted: Granted) {
        self.claim = claim;
        self.granted = Some(granted);
        if let Some(watch) = self.watch.get() {
            *watch.held.lock().unwrap_or_else(PoisonError::into_inner) = (claim, granted);
        }
    }

    /// The fencing token: larger than that of every earlier conflicting grant of this lock, across crashes. Give it to
    /// whatever the lock protects, so that it can refuse writes from the past; see [`fenced`](crate::fenced).
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// println!("writing under token {}", guard.token());
    /// ```
    pub fn token(&self) -> u64 {
        self.token_base.saturating_add(self.core.space.token(self.granted()))
    }

    /// The lock's name.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert_eq!(client.mutex("a").unwrap().lock().wait().unwrap().name().as_bytes(), b"a");
    /// ```
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// Whether others can share it.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert!(!client.mutex("a").unwrap().lock().wait().unwrap().is_shared());
    /// ```
    pub fn is_shared(&self) -> bool {
        self.claim.mode == Mode::Shared
    }

    /// The locked units, if this is a range lock's guard.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// assert_eq!(client.mutex("a").unwrap().lock().wait().unwrap().range(), None);
    /// ```
    pub fn range(&self) -> Option<Range<u64>> {
        (self.core.kind == crate::home::Kind::Ranges).then_some(self.claim.start..self.claim.end)
    }

    /// Looks whether the lock is still held. On shared memory this is a read of the lock itself; with a server, it is
    /// what the server said last, and whether it has been heard lately.
    ///
    /// The answer was true when the look was taken: a process can always be stopped between the look and the deed.
    /// Only the [token](Self::token) covers that.
    ///
    /// ```
    /// # use lockwright::GuardState;
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// assert_eq!(guard.state(), GuardState::Held);
    /// ```
    pub fn state(&self) -> GuardState {
        state(&self.core, self.claim, self.granted())
    }

    /// Done when the lock is found to be lost; never, if it is unlocked first. Works on any executor.
    ///
    /// ```
    /// # async fn work() {}
    /// # async fn select<A, B>(a: A, b: B) {}
    /// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = client.mutex("a")?.lock().await?;
    /// select(work(), guard.lost()).await; // whichever comes first
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> LostSignal {
        LostSignal(Arc::clone(self.watch()))
    }

    /// Calls `act`, on the client's own thread, if the lock is found to be lost before it is unlocked. It should be
    /// short: set a flag, cancel a token, send a signal.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// guard.on_lost(|| eprintln!("the lock is gone: stop"));
    /// ```
    pub fn on_lost(&self, act: impl FnOnce() + Send + 'static) {
        let watch = self.watch();
        let mut act: Option<Box<dyn FnOnce() + Send>> = Some(Box::new(act));
        watch.with(|ears, lost| {
            if !lost {
                ears.acts.extend(act.take());
            }
        });
        if let Some(act) = act {
            act();
        }
    }

    fn watch(&self) -> &Arc<Watch> {
        self.watch.get_or_init(|| {
            let watch = Arc::new(Watch {
                core: Arc::clone(&self.core),
                held: Mutex::new((self.claim, *self.granted())),
                lost: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                ears: Mutex::default(),
            });
            let weak: Weak<Watch> = Arc::downgrade(&watch);
            self.core.progress.watch(weak);
            watch
        })
    }

    /// Unlocks, and tells whether the lock was held until then.
    ///
    /// Dropping the returned future without awaiting it unlocks too.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// if let Err(error) = guard.unlock().wait() {
    ///     eprintln!("{error}: what was written may have been overwritten");
    /// }
    /// ```
    pub fn unlock(self) -> Unlock {
        Unlock { token: self.token(), guard: Some(self), release: None }
    }

    /// Nobody is told of a loss any more.
    fn close_watch(&self) {
        if let Some(watch) = self.watch.get() {
            watch.closed.store(true, SeqCst);
        }
    }

    /// Begins to give the lock back; only once. Mostly it is done with that.
    #[inline]
    fn release(&mut self) -> Option<Released> {
        let granted = self.granted.take()?;
        self.close_watch();
        let Core { space: home, kind, .. } = &*self.core;
        Some(match home.release_fast(*kind, self.claim, &granted) {
            Some(outcome) => Released::Done(outcome),
            None => Released::Under(home.release(*kind, self.claim, granted)),
        })
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("name", self.name()).field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// How far a release has come.
enum Released {
    Done(Result<(), Lost>),
    Under(BoxFuture<Result<(), Lost>>),
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if let Some(granted) = &self.granted
            && self.watch.get().is_none()
            && self.core.give_back_quickly(self.claim, granted)
        {
            return;
        }
        self.drop_slowly();
    }
}

impl Guard {
    #[cold]
    #[inline(never)]
    fn drop_slowly(&mut self) {
        if let Some(granted) = &self.granted
            && self.core.space.release_unobserved(self.core.kind, self.claim, granted)
        {
            self.close_watch();
            return;
        }
        let Some(Released::Under(mut release)) = self.release() else { return };
        // Mostly done at once. If somebody must be waited for, the client's own thread does that.
        if release.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            // Nobody is left to be told that it was lost.
            self.core.progress.adopt(Box::pin(async move {
                let _ = release.await;
            }));
        }
    }
}

fn state(core: &Core, claim: Claim, granted: &Granted) -> GuardState {
    match core.space.standing(core.kind, claim, granted) {
        Standing::Held => GuardState::Held,
        Standing::Uncertain => GuardState::Uncertain,
        Standing::Lost(_) => GuardState::Lost,
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
    guard: Option<Guard>,
    release: Option<BoxFuture<Result<(), Lost>>>,
    token: u64,
}

impl fmt::Debug for Unlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unlock").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Unlock {
    /// Blocks this thread until the lock is given back, which is at once unless the next in line must be waited for.
    ///
    /// # Errors
    /// If the lock had been lost, or the space cannot be used.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// guard.unlock().wait()?;
    /// # Ok::<(), lockwright::UnlockError>(())
    /// ```
    #[inline]
    pub fn wait(self) -> Result<(), UnlockError> {
        let guard = self.guard.as_ref().expect("an unlock was waited for after it was done");
        let core = Arc::clone(&guard.core);
        let mut outcome = None;
        core.space.block_on(pin!(async { outcome = Some(self.await) }));
        outcome.expect("it was seen through")
    }

    fn tell(&self, outcome: Result<(), Lost>) -> Result<(), UnlockError> {
        outcome.map_err(|lost| match lost {
            Lost::Recovered => UnlockError::Lost { token: self.token },
            Lost::Fabric(error) => UnlockError::Disconnected(error.to_string()),
        })
    }
}

impl Future for Unlock {
    type Output = Result<(), UnlockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let guard = this.guard.as_mut().expect("an unlock was polled after it was done");
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
            guard.core.progress.adopt(Box::pin(async move {
                let _ = release.await;
            }));
        }
    }
}

/// Done when a lock is found to be lost: see [`Guard::lost`].
///
/// ```
/// # let client = lockwright::Client::open("mem:").unwrap();
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
    /// # let client = lockwright::Client::open("mem:").unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// assert!(!guard.lost().is_lost());
    /// ```
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(SeqCst)
    }
}

impl Future for LostSignal {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut gone = false;
        self.0.with(|ears, lost| {
            gone = lost;
            if !lost {
                ears.wakers.retain(|waker| !waker.will_wake(cx.waker()));
                ears.wakers.push(cx.waker().clone());
            }
        });
        if gone { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A grant that somebody wants to hear about.
#[derive(Debug)]
struct Watch {
    core: Arc<Core>,
    /// What is held, which can change.
    held: Mutex<(Claim, Granted)>,
    lost: AtomicBool,
    closed: AtomicBool,
    ears: Mutex<Ears>,
}

#[derive(Default)]
struct Ears {
    wakers: Vec<Waker>,
    acts: Vec<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Ears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ears({} wakers, {} acts)", self.wakers.len(), self.acts.len())
    }
}

impl Watch {
    /// The ears, and whether the loss has been told already, under one lock: nobody is told too late.
    fn with(&self, look: impl FnOnce(&mut Ears, bool)) {
        let mut ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = self.lost.load(SeqCst);
        look(&mut ears, lost);
    }
}

impl Watched for Watch {
    fn look(&self) -> bool {
        if self.closed.load(SeqCst) {
            return false;
        }
        let (claim, granted) = *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if state(&self.core, claim, &granted) != GuardState::Lost || self.closed.load(SeqCst) {
            return true;
        }
        let mut told = Ears::default();
        self.with(|ears, _| {
            self.lost.store(true, SeqCst);
            told = std::mem::take(ears);
        });
        told.wakers.into_iter().for_each(Waker::wake);
        told.acts.into_iter().for_each(|act| act());
        false
    }
}
