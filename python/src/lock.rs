//! Locks by their name. A mutex is also what `threading.Lock` is to its users: `acquire`, `release`, `locked`.

use crate::acquire::{Acquire, Want};
use crate::error::{Failure, seconds};
use crate::guard::Guard;
use crate::wait::Pending;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// A lock that one holder has at a time: a context manager, also for `async with`, whose `as` is the Guard.
///
/// Not re-entrant. One object can be shared by threads and tasks; `release` gives back what was acquired through it last.
#[pyclass(frozen, weakref, module = "lockwright")]
pub(crate) struct Mutex {
    want: Want,
    name: String,
    is_local: bool,
    held: std::sync::Mutex<Option<Py<Guard>>>,
    /// A wait has ended without the lock, and its place may still be in the queue.
    gave_up: AtomicBool,
}

/// How long a try waits for a place that this object left in the queue to be passed over. Without that, a lock that its only
/// holder has just given back would be busy for an instant: it goes by way of that place.
const PASSED_OVER: Duration = Duration::from_millis(20);

impl Mutex {
    pub(crate) fn new(lock: lockwright::Mutex, is_local: bool) -> Self {
        let name = lock.name().to_text().into_owned();
        let (held, gave_up) = (std::sync::Mutex::default(), AtomicBool::new(false));
        Self { want: Want::Lock(lock), name, is_local, held, gave_up }
    }

    fn held(&self) -> MutexGuard<'_, Option<Py<Guard>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn enter(&self, py: Python<'_>, patience: Option<Duration>) -> PyResult<Py<Guard>> {
        let left = self.is_local && self.gave_up.swap(false, Relaxed);
        let patience = patience.map(|patience| if left { patience.max(PASSED_OVER) } else { patience });
        let guard = self.want.wait(py, patience, self.is_local).inspect_err(|_| {
            if left || patience.is_none_or(|patience| !patience.is_zero()) {
                self.gave_up.store(true, Relaxed);
            }
        });
        let guard = Py::new(py, Guard::new(guard?))?;
        *self.held() = Some(guard.clone_ref(py));
        Ok(guard)
    }
}

#[pymethods]
impl Mutex {
    /// The lock's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The lock, about to be acquired: for `with`, `async with`, `await`, or its `wait()`.
    #[pyo3(signature = (timeout=None))]
    fn lock(&self, timeout: Option<f64>) -> PyResult<Acquire> {
        Acquire::one(self.want.clone(), timeout, self.is_local)
    }

    /// As `threading.Lock.acquire`: returns whether the lock was acquired.
    #[pyo3(signature = (blocking=true, timeout=-1.0))]
    #[allow(clippy::float_cmp, reason = "-1 stands for none")]
    fn acquire(&self, py: Python<'_>, blocking: bool, timeout: f64) -> PyResult<bool> {
        let patience = match (blocking, timeout == -1.0) {
            (true, true) => None,
            (true, false) => Some(seconds(timeout)?),
            (false, true) => Some(Duration::ZERO),
            (false, false) => {
                return Err(PyValueError::new_err("can't specify a timeout for a non-blocking call"));
            }
        };
        match self.enter(py, patience) {
            Ok(_) => Ok(true),
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyTimeoutError>(py) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As `threading.Lock.release`. Raises LockLost if the lock had been taken away before.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        // Out of here before it is unlocked: the next holder puts its own there.
        let guard = self.held().take();
        let guard = guard.ok_or_else(|| Failure::new("NotHeld", "release unlocked lock").raise(py))?;
        guard.get().give_back(py, self.is_local)
    }

    /// Whether the lock is held through this object. Whether another holder has it, only trying can tell.
    fn locked(&self) -> bool {
        self.held().is_some()
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Guard>> {
        self.enter(py, None)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let guard = self.held().take();
        match guard {
            Some(guard) if guard.get().is_held() => guard.get().give_back(py, self.is_local),
            // Unlocked inside of the block: that is allowed.
            _ => Ok(()),
        }
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("lockwright._aio")?.call_method1("enter", (slf,))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("lockwright._aio")?.call_method1("leave", (slf,))
    }

    fn _start(&self) -> PyResult<Pending> {
        Pending::new(self.want.waiting(None))
    }

    fn _keep(&self, guard: Py<Guard>) {
        *self.held() = Some(guard);
    }

    fn _take(&self) -> Vec<Py<Guard>> {
        let guard = self.held().take();
        guard.into_iter().filter(|guard| guard.get().is_held()).collect()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let this = slf.get();
        let state = if this.locked() { "locked" } else { "unlocked" };
        format!("<{state} lockwright.Mutex object {:?} at {:p}>", this.name, slf.as_ptr())
    }
}

/// A lock that many readers or one writer have. The mutex of the same name is the same lock.
#[pyclass(frozen, weakref, module = "lockwright")]
pub(crate) struct RwLock {
    lock: lockwright::RwLock,
    is_local: bool,
}

impl RwLock {
    pub(crate) fn new(lock: lockwright::RwLock, is_local: bool) -> Self {
        Self { lock, is_local }
    }
}

#[pymethods]
impl RwLock {
    /// The lock's name.
    #[getter]
    fn name(&self) -> String {
        self.lock.name().to_text().into_owned()
    }

    /// The lock, about to be acquired together with other readers.
    #[pyo3(signature = (timeout=None))]
    fn read(&self, timeout: Option<f64>) -> PyResult<Acquire> {
        Acquire::one(Want::Read(self.lock.clone()), timeout, self.is_local)
    }

    /// The lock, about to be acquired alone.
    #[pyo3(signature = (timeout=None))]
    fn write(&self, timeout: Option<f64>) -> PyResult<Acquire> {
        Acquire::one(Want::Write(self.lock.clone()), timeout, self.is_local)
    }

    fn __repr__(&self) -> String {
        format!("<lockwright.RwLock {:?}>", self.name())
    }
}

/// A lock on ranges of units (bytes, blocks, rows). Ranges that do not overlap never wait for each other.
#[pyclass(frozen, weakref, module = "lockwright")]
pub(crate) struct RangeLock {
    lock: lockwright::RangeLock,
    is_local: bool,
}

impl RangeLock {
    pub(crate) fn new(lock: lockwright::RangeLock, is_local: bool) -> Self {
        Self { lock, is_local }
    }
}

#[pymethods]
impl RangeLock {
    /// The lock's name.
    #[getter]
    fn name(&self) -> String {
        self.lock.name().to_text().into_owned()
    }

    /// The units from `start` up to, and without, `stop`, about to be acquired together with other readers.
    #[pyo3(signature = (start, stop, timeout=None))]
    fn read(&self, start: u64, stop: u64, timeout: Option<f64>) -> PyResult<Acquire> {
        Acquire::one(Want::ReadRange(self.lock.clone(), start, stop), timeout, self.is_local)
    }

    /// The units from `start` up to, and without, `stop`, about to be acquired alone.
    #[pyo3(signature = (start, stop, timeout=None))]
    fn write(&self, start: u64, stop: u64, timeout: Option<f64>) -> PyResult<Acquire> {
        Acquire::one(Want::WriteRange(self.lock.clone(), start, stop), timeout, self.is_local)
    }

    fn __repr__(&self) -> String {
        format!("<lockwright.RangeLock {:?}>", self.name())
    }
}
