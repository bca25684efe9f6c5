//! Telling a holder that a client waits for what it holds, as a blocking callback of Linux' DLM does.
//!
//! | space | how a holder learns of it |
//! |---|---|
//! | `mem:` | from the waiter |
//! | a server, a cluster | the server says so; of a lock that stays with its client, that client knows who waits there |
//! | `shm:` | by a look into the space, ten times a second |

use super::core::Core;
use super::guard::AnyGuard;
use crate::error::ContentionError;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What a grant's holder knows of its waiters.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    wakers: Vec<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No waiter is known.
    #[default]
    Quiet,
    Contended,
    /// It is held no more.
    Over,
}

impl Contention {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client waits. Returns whom to wake.
    #[must_use]
    pub(crate) fn set(&self) -> Vec<Waker> {
        let mut state = self.state();
        if state.stage == Stage::Quiet {
            state.stage = Stage::Contended;
        }
        std::mem::take(&mut state.wakers)
    }

    /// The lock is given back.
    pub(super) fn end(&self) {
        let mut state = self.state();
        if state.stage == Stage::Quiet {
            state.stage = Stage::Over;
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.state().stage == Stage::Quiet
    }

    /// Whether there is nothing to tell any more.
    pub(crate) fn is_over(&self) -> bool {
        self.state().stage != Stage::Quiet
    }

    pub(super) fn is_set(&self) -> bool {
        self.state().stage == Stage::Contended
    }
}

impl AnyGuard {
    /// A future that is done once a client waits for what this guard holds, and would have to be let in by it; never, if it is
    /// unlocked first. A holder that keeps a lock for as long as no other client wants it gives it back then. Works on any executor, and
    /// may be dropped at any time.
    ///
    /// It is done at once if a client waits already, and once in a guard's life; the waiter may have given up since. `mem:`,
    /// servers and clusters tell at once, `shm:` within a tenth of a second.
    ///
    /// # Errors
    /// If spaces of this kind do not tell.
    ///
    /// ```
    /// # async fn next_batch() {}
    /// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = client.mutex("disk")?.lock().await?;
    /// let mut contended = guard.contended()?;
    /// loop {
    ///     tokio::select! {
    ///         biased;
    ///         () = &mut contended => break guard.unlock().await?,
    ///         () = next_batch() => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn contended(&self) -> Result<ContendedSignal, ContentionError> {
        self.core.check().map_err(|pid| ContentionError::OtherProcess { pid })?;
        let watch = self.watch();
        let contention = watch.contention.get_or_init(Arc::default);
        let Core { space, kind, .. } = &*self.core;
        if contention.is_quiet() && !space.watch_contention(*kind, self.claim, self.granted(), contention) {
            match space.is_contended(*kind, self.claim) {
                None => return Err(ContentionError::Unsupported(space.description())),
                Some(false) => {}
                Some(true) => contention.set().into_iter().for_each(Waker::wake),
            }
        }
        Ok(ContendedSignal(Arc::clone(contention)))
    }

    /// Calls `act`, on the client's own thread and within a tenth of a second, once a client waits for what this guard holds. It
    /// should be short: set a flag, send a signal. See [`contended`](Self::contended).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.mutex("disk")?;
    /// let guard = lock.lock().wait()?;
    /// let (wanted, is_wanted) = std::sync::mpsc::channel();
    /// guard.on_contended(move || drop(wanted.send(())))?;
    /// let waiter = std::thread::spawn(move || lock.lock().wait().map(drop));
    /// is_wanted.recv()?;
    /// guard.unlock().wait()?;
    /// waiter.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_contended(&self, act: impl FnOnce() + Send + 'static) -> Result<(), ContentionError> {
        drop(self.contended()?);
        self.watch().on_contended(Box::new(act));
        Ok(())
    }
}

/// Done once a client waits: see [`AnyGuard::contended`].
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let guard = client.mutex("a")?.lock().wait()?;
/// let signal: lockwright::ContendedSignal = guard.contended()?;
/// assert!(!signal.is_set());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it says nothing unless it is awaited or asked"]
pub struct ContendedSignal(Arc<Contention>);

impl ContendedSignal {
    /// Whether a client was found to wait.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// let wanted = guard.contended()?.is_set();
    /// # Ok::<(), lockwright::ContentionError>(())
    /// ```
    pub fn is_set(&self) -> bool {
        self.0.is_set()
    }
}

impl fmt::Debug for ContendedSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContendedSignal").field("is_set", &self.is_set()).finish_non_exhaustive()
    }
}

impl Future for ContendedSignal {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state();
        if state.stage == Stage::Contended {
            return Poll::Ready(());
        }
        super::watch::register(&mut state.wakers, cx);
        Poll::Pending
    }
}
