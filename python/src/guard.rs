//! A held lock.

use crate::error::{Failure, seconds};
use crate::wait::{Outcome, Pending, Waiting, block, poll_once};
use lockwright::{AnyGuard, GuardState};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// A held lock. Leaving its `with` block unlocks it, and so does forgetting it.
///
/// It is not tied to a thread, to the lock it came from, or to its client.
#[pyclass(frozen, weakref, module = "lockwright")]
pub(crate) struct Guard {
    /// Shared with an upgrade that is under way, which has the guard and puts it back.
    guard: Arc<Mutex<Option<AnyGuard>>>,
}

impl Guard {
    pub(crate) fn new(guard: AnyGuard) -> Self {
        Self { guard: Arc::new(Mutex::new(Some(guard))) }
    }

    fn inner(&self) -> MutexGuard<'_, Option<AnyGuard>> {
        open(&self.guard)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.inner().is_some()
    }

    fn look<T>(&self, py: Python<'_>, look: impl FnOnce(&AnyGuard) -> T) -> PyResult<T> {
        self.inner().as_ref().map(look).ok_or_else(|| not_held().raise(py))
    }

    fn take(&self, py: Python<'_>) -> PyResult<AnyGuard> {
        self.inner().take().ok_or_else(|| not_held().raise(py))
    }

    /// Unlocks. A lock that is this host's is mostly given back at once; whatever takes longer has released the interpreter.
    #[inline]
    pub(crate) fn give_back(&self, py: Python<'_>, is_local: bool) -> PyResult<()> {
        let mut unlock = self.take(py)?.unlock();
        let unlocked = match if is_local { poll_once(&mut unlock) } else { Poll::Pending } {
            Poll::Ready(unlocked) => unlocked,
            Poll::Pending => py.detach(|| unlock.wait()),
        };
        unlocked.map_err(|error| Failure::from(error).raise(py))
    }

    /// An upgrade, which has the guard until it is done. Given up, it unlocks.
    fn upgrading(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Waiting> {
        let timeout = timeout.map(seconds).transpose()?;
        let (mut guard, place) = (self.take(py)?, Arc::clone(&self.guard));
        Ok(Box::pin(async move {
            let upgrade = match timeout {
                None => guard.upgrade(),
                Some(patience) if patience.is_zero() => guard.try_upgrade(),
                Some(patience) => guard.upgrade_timeout(patience),
            };
            let upgraded = upgrade.await;
            *open(&place) = Some(guard);
            Ok(upgraded.map(|()| Outcome::Nothing)?)
        }))
    }

    /// Changes what is held. The guard is in nobody else's hands meanwhile, and comes back whatever happens.
    fn change<T: Send>(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut AnyGuard) -> Result<T, lockwright::ChangeError> + Send,
    ) -> PyResult<T> {
        let mut guard = self.take(py)?;
        let (guard, changed) = py.detach(move || {
            let changed = change(&mut guard);
            (guard, changed)
        });
        *self.inner() = Some(guard);
        changed.map_err(|error| Failure::from(error).raise(py))
    }
}

fn open(guard: &Mutex<Option<AnyGuard>>) -> MutexGuard<'_, Option<AnyGuard>> {
    guard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_held() -> Failure {
    Failure::new("NotHeld", "this guard is unlocked, or another thread is changing it")
}

#[pymethods]
impl Guard {
    /// The lock's name.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.look(py, |guard| guard.name().to_text().into_owned())
    }

    /// The fencing token: larger than that of every earlier conflicting grant of this lock. Give it to whatever the lock
    /// protects, so that it can refuse writes from the past.
    #[getter]
    fn token(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, AnyGuard::token)
    }

    /// "held", "uncertain" (stop: it will turn out to be held or lost), "lost", or "unlocked".
    #[getter]
    fn state(&self) -> &'static str {
        match self.inner().as_ref().map(AnyGuard::state) {
            Some(GuardState::Held) => "held",
            Some(GuardState::Lost) => "lost",
            Some(_) => "uncertain",
            None => "unlocked",
        }
    }

    /// Whether others can share the lock.
    #[getter]
    fn shared(&self, py: Python<'_>) -> PyResult<bool> {
        self.look(py, AnyGuard::is_shared)
    }

    /// (start, stop) of a range lock, None of any other.
    #[getter]
    fn range(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        self.look(py, |guard| guard.range().map(|range| (range.start, range.end)))
    }

    /// How many permits of a semaphore these are, None of any other.
    #[getter]
    fn permits(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.look(py, AnyGuard::permits)
    }

    /// Calls `callback(reason)` once, in a thread of its own, if the lock is found to be lost before it is unlocked.
    fn on_lost(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        self.look(py, |guard| {
            guard.on_lost(move |reason| {
                // Not here: this is the client's thread, which others wait for while they have the interpreter.
                let told = std::thread::Builder::new().name("lockwright-lost".to_owned());
                let _ = told.spawn(move || {
                    Python::try_attach(|py| {
                        if let Err(error) = callback.call1(py, (reason.to_string(),)) {
                            error.write_unraisable(py, Some(callback.bind(py)));
                        }
                    })
                });
            });
        })
    }

    /// Unlocks. Raises LockLost if the lock had been taken away before.
    fn unlock(&self, py: Python<'_>) -> PyResult<()> {
        self.give_back(py, false)
    }

    /// Unlocks, without blocking the event loop.
    fn unlock_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("lockwright._aio")?.call_method1("unlock", (slf,))
    }

    fn _start_unlock(&self, py: Python<'_>) -> PyResult<Pending> {
        let unlock = self.take(py)?.unlock();
        Pending::new(Box::pin(async move { Ok(unlock.await.map(|()| Outcome::Nothing)?) }))
    }

    /// Makes a shared lock exclusive without releasing it in between. Raises WouldDeadlock if another reader already waits
    /// for the same, and LockTimeout; then it is shared as before.
    ///
    /// Interrupted (Ctrl-C), it unlocks.
    #[pyo3(signature = (timeout=None))]
    fn upgrade(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        block(py, self.upgrading(py, timeout)?).map(|_| ())
    }

    /// As upgrade, without blocking the event loop. Cancelled, it unlocks.
    #[pyo3(signature = (timeout=None))]
    fn upgrade_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("lockwright._aio")?.call_method1("upgrade", (slf, timeout))
    }

    #[pyo3(signature = (timeout))]
    fn _start_upgrade(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pending> {
        Pending::new(self.upgrading(py, timeout)?)
    }

    /// Makes an exclusive lock shared without releasing it in between.
    fn downgrade(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, |guard| guard.downgrade().wait())
    }

    /// Gives back a part of a range lock and keeps the rest. If that leaves two pieces, this guard is the first one, and the
    /// second is returned.
    fn unlock_part(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<Option<Guard>> {
        Ok(self.change(py, |guard| guard.unlock_part(start..stop))?.map(Guard::new))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        // Unlocked inside of the block: that is allowed.
        if self.inner().is_none() { Ok(()) } else { self.give_back(py, false) }
    }

    fn __repr__(&self) -> String {
        let state = self.state();
        match self.inner().as_ref() {
            Some(guard) => {
                format!("<{state} lockwright.Guard {:?} token {}>", guard.name().to_text(), guard.token())
            }
            None => format!("<{state} lockwright.Guard>"),
        }
    }
}
