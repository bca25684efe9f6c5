//! Semaphores by their name: `threading.BoundedSemaphore` to its users, between processes and hosts.

use crate::acquire::{Acquire, Entry, Want};
use crate::error::Failure;
use crate::guard::Guard;
use crate::wait::Pending;
use pyo3::prelude::*;
use std::sync::{MutexGuard, PoisonError};

/// A lock that a number of holders have at a time: a context manager, also for `async with`. Permits of a process that dies
/// come back.
///
/// What is acquired by `acquire` or `with` is kept in the object, and any of its threads may release it. `permit` hands out a
/// Guard instead.
#[pyclass(frozen, weakref, module = "lockwright")]
pub(crate) struct Semaphore {
    semaphore: lockwright::Semaphore,
    entry: Entry,
    is_local: bool,
    /// One permit each.
    held: std::sync::Mutex<Vec<Py<Guard>>>,
}

impl Semaphore {
    pub(crate) fn new(semaphore: lockwright::Semaphore, is_local: bool) -> Self {
        let entry = Entry::new(Want::Permits(semaphore.clone(), 1), is_local);
        Self { semaphore, entry, is_local, held: std::sync::Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Vec<Py<Guard>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Semaphore {
    /// The semaphore's name.
    #[getter]
    fn name(&self) -> String {
        self.semaphore.name().to_text().into_owned()
    }

    /// How many permits there are.
    #[getter]
    fn limit(&self) -> u64 {
        self.semaphore.limit()
    }

    /// `count` permits together, about to be acquired: for `with`, `async with`, `await`, or its `wait()`.
    #[pyo3(signature = (count=1, timeout=None))]
    fn permit(&self, py: Python<'_>, count: i64, timeout: Option<f64>) -> PyResult<Acquire> {
        let limit = self.limit();
        match u64::try_from(count) {
            Ok(count) if (1..=limit).contains(&count) => {
                Acquire::one(Want::Permits(self.semaphore.clone(), count), timeout, self.is_local)
            }
            _ => {
                Err(Failure::new("BadRequest", format!("{count} of {limit} permits cannot be had")).raise(py))
            }
        }
    }

    /// As `threading.Semaphore.acquire`: returns whether a permit was acquired.
    #[pyo3(signature = (blocking=true, timeout=None))]
    fn acquire(&self, py: Python<'_>, blocking: bool, timeout: Option<f64>) -> PyResult<bool> {
        let guard = self.entry.enter_as_threads_do(py, blocking, timeout)?;
        Ok(guard.is_some_and(|guard| self._keep(guard)))
    }

    /// As `threading.BoundedSemaphore.release`: gives `n` permits back that were acquired through this object, and raises a
    /// ValueError if it has fewer. Raises LockLost if one had been taken away before.
    #[pyo3(signature = (n=1))]
    fn release(&self, py: Python<'_>, n: usize) -> PyResult<()> {
        let released = {
            let mut held = self.held();
            let left = held.len().checked_sub(n).filter(|_| n > 0);
            left.map(|left| held.split_off(left))
        };
        let too_many = || Failure::new("BadRequest", "semaphore released too many times, or not at all");
        let released = released.ok_or_else(|| too_many().raise(py))?;
        let mut outcome = Ok(());
        for guard in released {
            outcome = outcome.and(self.entry.give_back(py, &guard));
        }
        outcome
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<bool> {
        self.acquire(py, true, None)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release(py, 1)
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

    /// Not the guard: which of its permits a thread gives back is all the same to a semaphore.
    fn _keep(&self, guard: Py<Guard>) -> bool {
        self.held().push(guard);
        true
    }

    fn _take(&self) -> Vec<Py<Guard>> {
        self.held().pop().into_iter().collect()
    }

    fn __repr__(&self) -> String {
        format!("<lockwright.Semaphore {:?} limit={}>", self.name(), self.limit())
    }
}
