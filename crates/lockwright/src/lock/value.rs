//! The value of a lock: up to 64 bytes that an exclusive holder leaves for the next one, as in VMS and in Linux' DLM.
//!
//! An exclusive guard that has read or set the value has it *open*. It is closed when the guard is unlocked, dropped or made
//! shared; a guard that is dropped by a panic leaves it open, as one does whose process dies or loses the lock.

use super::change::wait;
use super::core::Core;
use super::guard::{AnyGuard, GuardState};
use crate::backend::{BoxFuture, Kind};
use crate::error::ValueError;
use lockwright_fabric::observe::Mode;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The longest value.
const MAX_VALUE: usize = 64;

/// The value of a lock, as [`AnyGuard::value`] found it.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let guard = client.mutex("journal")?.lock().wait()?;
/// let value = guard.value().wait()?;
/// assert!(value.bytes().is_empty() && value.is_clean(), "none was set yet");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) clean: bool,
    pub(crate) durable: bool,
    pub(crate) age: Duration,
}

impl Value {
    /// The bytes; none if no value was set, or an empty one.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// guard.set_value(b"page 17").wait()?;
    /// assert_eq!(guard.value().wait()?.bytes(), b"page 17");
    /// # Ok::<(), lockwright::ValueError>(())
    /// ```
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether every holder that read or set the value has unlocked. If not, one of them died, was evicted, lost the lock or
    /// panicked: look at what the lock protects, and set the value anew.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// if !guard.value().wait()?.is_clean() {
    ///     // recover, then:
    ///     guard.set_value(b"recovered").wait()?;
    /// }
    /// # Ok::<(), lockwright::ValueError>(())
    /// ```
    pub const fn is_clean(&self) -> bool {
        self.clean
    }

    /// How long ago it was set, by the clock of the server; zero if that was set back since, or if there is no value.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// let is_fresh = guard.value().wait()?.age() < Duration::from_secs(60);
    /// # Ok::<(), lockwright::ValueError>(())
    /// ```
    pub const fn age(&self) -> Duration {
        self.age
    }

    /// Whether values of this space outlive its server: they do where it keeps its state, and not in `mem:`.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// assert!(!guard.value().wait()?.is_durable());
    /// # Ok::<(), lockwright::ValueError>(())
    /// ```
    pub const fn is_durable(&self) -> bool {
        self.durable
    }
}

impl AnyGuard {
    /// Reads the lock's value: what the last exclusive holder that [set](Self::set_value) it has left. One round trip where a
    /// server decides.
    ///
    /// Mutexes and reader-writer locks have values, in a server's own spaces, in clusters and in `mem:`. A value belongs to the name, and
    /// stays when no client uses that; on a server it outlives a restart, and in a cluster its server.
    ///
    /// # Errors
    /// If the lock is lost, its kind or space has no values, or the server cannot be reached.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let journal = client.mutex("journal")?;
    /// let guard = journal.lock().wait()?;
    /// guard.set_value(b"1734 entries").wait()?; // in async code: .await?
    /// guard.unlock().wait()?;
    ///
    /// let guard = journal.lock().wait()?; // later, by the next holder
    /// let value = guard.value().wait()?;
    /// assert!(value.is_clean() && value.bytes() == b"1734 entries");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn value(&self) -> ValueCall<Value> {
        let call = self.may_call().map(|()| {
            self.open_value();
            self.core.space.value(&self.core.name, self.claim, self.granted())
        });
        self.call(call)
    }

    /// Sets the lock's value, of up to 64 bytes, for the next holder; an empty one is none. Only an exclusive holder can. When this
    /// is done the value is set, whatever becomes of this process; the next holder is told that it is not
    /// [clean](Value::is_clean) unless this guard is unlocked. One round trip where a server decides, which forces it to its disk.
    ///
    /// # Errors
    /// As for [`value`](Self::value); if the guard shares its lock; if the value is too long.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let guard = client.rwlock("config")?.write().wait()?;
    /// guard.set_value(&42_u64.to_le_bytes()).wait()?;
    /// let guard = guard.downgrade().wait()?;
    /// assert_eq!(guard.value().wait()?.bytes(), 42_u64.to_le_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_value(&self, bytes: &[u8]) -> ValueCall<()> {
        let fits = self.may_call().and_then(|()| match bytes.len() {
            len if len > MAX_VALUE => Err(ValueError::TooLong { len }),
            _ if self.is_shared() => Err(ValueError::Shared),
            _ => Ok(()),
        });
        let call = fits.map(|()| {
            self.open_value();
            self.core.space.set_value(&self.core.name, self.claim, self.granted(), bytes)
        });
        self.call(call)
    }

    fn may_call(&self) -> Result<(), ValueError> {
        self.core.check().map_err(|pid| ValueError::OtherProcess { pid })?;
        match self.core.kind {
            Kind::Keyed => Ok(()),
            Kind::Ranges => Err(ValueError::Unsupported("range locks")),
            Kind::Semaphores => Err(ValueError::Unsupported("semaphores")),
        }
    }

    fn call<T>(&self, call: Result<BoxFuture<Result<T, ValueError>>, ValueError>) -> ValueCall<T>
    where
        T: Send + 'static,
    {
        let call = call.unwrap_or_else(|error| Box::pin(std::future::ready(Err(error))));
        ValueCall { core: Arc::clone(&self.core), call }
    }

    /// From now on the value is to be closed when the guard is.
    fn open_value(&self) {
        if self.claim.mode == Mode::Exclusive {
            self.watch().set_value_open(true);
        }
    }

    /// The guard is about to be given back, or shared: the value is as it leaves it. Not in a panic, or if the lock is lost: then
    /// nobody knows how far the work under it has come.
    pub(super) fn close_value(&self) {
        if let Some(watch) = self.watch_if_any()
            && watch.set_value_open(false)
            && !std::thread::panicking()
            && let Some(granted) = self.granted_if_any()
            && !matches!(self.state(), GuardState::Lost)
        {
            self.core.space.close_value(&self.core.name, granted);
        }
    }
}

/// A value on its way: `.await` it, or [`wait`](Self::wait) for it. Nothing happens before that.
///
/// ```
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.mutex("journal")?.lock().await?;
/// let value = guard.value().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is read or set before it is awaited, or waited for"]
pub struct ValueCall<T> {
    core: Arc<Core>,
    call: BoxFuture<Result<T, ValueError>>,
}

impl<T> fmt::Debug for ValueCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueCall").field("name", &self.core.name).finish_non_exhaustive()
    }
}

impl<T> ValueCall<T> {
    /// Blocks this thread until it is done.
    ///
    /// # Errors
    /// See [`AnyGuard::value`] and [`AnyGuard::set_value`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// let value = guard.value().wait()?;
    /// # Ok::<(), lockwright::ValueError>(())
    /// ```
    pub fn wait(self) -> Result<T, ValueError> {
        let core = Arc::clone(&self.core);
        wait(&core, self)
    }
}

impl<T> Future for ValueCall<T> {
    type Output = Result<T, ValueError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.as_mut().poll(cx)
    }
}
