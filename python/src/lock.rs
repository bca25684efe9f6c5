//! Locks by their name. A mutex is also what `threading.Lock` is to its users: `acquire`, `release`, `locked`.

use crate::acquire::{Acquire, Entry, Want};
use crate::error::Failure;
use crate::guard::Guard;
use crate::wait::Pending;
use pyo3::prelude::*;
use std::sync::{MutexGuard, PoisonError};

/// A lock that one holder has at a time: a context manager, also for `async with`, whose `as` is the Guard.
///
/// Not re-entrant. One object can be shared by threads and tasks; `release` gives back what was acquired through it last.
#[pyclass(frozen, weakref, module = "lockwright")]
pub(crate) struct Mutex {
    entry: Entry,
    name: String,
    held: std::sync::Mutex<Option<Py<Guard>>>,
}

impl Mutex {
    pub(crate) fn new(lock: lockwright::Mutex, is_local: bool) -> Self {
        let name = lock.name().to_text().into_owned();
        Self { entry: Entry::new(Want::Lock(lock), is_local), name, held: std::sync::Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Option<Py<Guard>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.entry.acquire(timeout)
    }

    /// As `threading.Lock.acquire`: returns whether the lock was acquired.
    #[pyo3(signature = (blocking=true, timeout=-1.0))]
    #[allow(clippy::float_cmp, reason = "-1 stands for none")]
    fn acquire(&self, py: Python<'_>, blocking: bool, timeout: f64) -> PyResult<bool> {
        let guard = self.entry.enter_as_threads_do(py, blocking, (timeout != -1.0).then_some(timeout))?;
        Ok(guard.map(|guard| self._keep(py, guard)).is_some())
    }

    /// As `threading.Lock.release`. Raises LockLost if the lock had been taken away before.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        // Out of here before it is unlocked: the next holder puts its own there.
        let guard = self.held().take();
        let guard = guard.ok_or_else(|| Failure::new("NotHeld", "release unlocked lock").raise(py))?;
        self.entry.give_back(py, &guard)
    }

    /// Whether the lock is held through this object. Whether another holder has it, only trying can tell.
    fn locked(&self) -> bool {
        self.held().is_some()
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Guard>> {
        self.entry.enter(py, None).map(|guard| self._keep(py, guard))
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
            Some(guard) if guard.get().is_held() => self.entry.give_back(py, &guard),
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
        self.entry.start()
    }

    fn _keep(&self, py: Python<'_>, guard: Py<Guard>) -> Py<Guard> {
        *self.held() = Some(guard.clone_ref(py));
        guard
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
