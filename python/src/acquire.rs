//! A lock that is about to be acquired: waited for, awaited, or entered.

use crate::error::{Failure, seconds};
use crate::guard::Guard;
use crate::wait::{Outcome, Pending, Waiting, block};
use lockwright::{AnyGuard, LockError, LockGuard, LockSet, TryLockError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Which lock, and how.
#[derive(Clone)]
pub(crate) enum Want {
    Lock(lockwright::Mutex),
    Read(lockwright::RwLock),
    Write(lockwright::RwLock),
    ReadRange(lockwright::RangeLock, u64, u64),
    WriteRange(lockwright::RangeLock, u64, u64),
}

impl Want {
    fn acquire(&self, patience: Option<Duration>) -> lockwright::Acquire<AnyGuard> {
        match (self, patience) {
            (Self::Lock(lock), None) => lock.lock().into_any(),
            (Self::Lock(lock), Some(patience)) => lock.lock_timeout(patience).into_any(),
            (Self::Read(lock), None) => lock.read().into_any(),
            (Self::Read(lock), Some(patience)) => lock.read_timeout(patience).into_any(),
            (Self::Write(lock), None) => lock.write().into_any(),
            (Self::Write(lock), Some(patience)) => lock.write_timeout(patience).into_any(),
            (Self::ReadRange(lock, start, end), None) => lock.read(*start..*end).into_any(),
            (Self::ReadRange(lock, start, end), Some(patience)) => {
                lock.read_timeout(*start..*end, patience).into_any()
            }
            (Self::WriteRange(lock, start, end), None) => lock.write(*start..*end).into_any(),
            (Self::WriteRange(lock, start, end), Some(patience)) => {
                lock.write_timeout(*start..*end, patience).into_any()
            }
        }
    }

    /// Only tries, on this thread.
    #[inline]
    pub(crate) fn try_now(&self) -> Result<AnyGuard, TryLockError> {
        match self {
            Self::Lock(lock) => lock.try_lock().wait().map(LockGuard::into_any),
            Self::Read(lock) => lock.try_read().wait().map(LockGuard::into_any),
            Self::Write(lock) => lock.try_write().wait().map(LockGuard::into_any),
            Self::ReadRange(lock, start, end) => lock.try_read(*start..*end).wait().map(LockGuard::into_any),
            Self::WriteRange(lock, start, end) => {
                lock.try_write(*start..*end).wait().map(LockGuard::into_any)
            }
        }
    }

    /// Waits on this thread. What is free on this host is taken without releasing the interpreter.
    #[inline]
    pub(crate) fn wait(
        &self,
        py: Python<'_>,
        patience: Option<Duration>,
        is_local: bool,
    ) -> PyResult<AnyGuard> {
        let only_tried = patience.is_some_and(|patience| patience.is_zero());
        if is_local || only_tried {
            let tried = if is_local { self.try_now() } else { py.detach(|| self.try_now()) };
            match tried {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Busy) if !only_tried => {}
                Err(error) => return Err(Failure::from(error).raise(py)),
            }
        }
        match block(py, self.waiting(patience))? {
            Outcome::Guard(guard) => Ok(guard),
            _ => Err(PyRuntimeError::new_err("one lock was asked for")),
        }
    }

    pub(crate) fn waiting(&self, patience: Option<Duration>) -> Waiting {
        let acquire = self.acquire(patience);
        Box::pin(async move { Ok(Outcome::Guard(acquire.await?)) })
    }

    fn add_to(&self, set: LockSet) -> LockSet {
        match self {
            Self::Lock(lock) => set.lock(lock),
            Self::Read(lock) => set.read(lock),
            Self::Write(lock) => set.write(lock),
            Self::ReadRange(lock, start, end) => set.read_range(lock, *start..*end),
            Self::WriteRange(lock, start, end) => set.write_range(lock, *start..*end),
        }
    }

    /// Whether `guard` is what was wanted: a set has its own order.
    fn is_of(&self, guard: &AnyGuard) -> bool {
        let (name, range) = match self {
            Self::Lock(lock) => (lock.name(), None),
            Self::Read(lock) | Self::Write(lock) => (lock.name(), None),
            Self::ReadRange(lock, start, end) | Self::WriteRange(lock, start, end) => {
                (lock.name(), Some(*start..*end))
            }
        };
        guard.name() == name && guard.range() == range
    }
}

/// A lock that is about to be acquired. Use it in `with` or `async with`, `await` it, or call `wait()`.
///
/// Nothing happens before that. It can be used again once its lock has been given back.
#[pyclass(frozen, module = "lockwright")]
pub(crate) struct Acquire {
    wants: Vec<Want>,
    is_set: bool,
    patience: Option<Duration>,
    is_local: bool,
    /// What `with` has acquired.
    held: Mutex<Option<Py<PyAny>>>,
}

impl Acquire {
    pub(crate) fn one(want: Want, timeout: Option<f64>, is_local: bool) -> PyResult<Self> {
        let patience = timeout.map(seconds).transpose()?;
        Ok(Self { wants: vec![want], is_set: false, patience, is_local, held: Mutex::default() })
    }

    fn waiting(&self) -> Waiting {
        if let ([want], false) = (&self.wants[..], self.is_set) {
            return want.waiting(self.patience);
        }
        let wants = self.wants.clone();
        let set = wants.iter().fold(LockSet::new(), |set, want| want.add_to(set));
        let set = match self.patience {
            Some(patience) => set.timeout(patience),
            None => set,
        };
        Box::pin(async move {
            let mut guards = set.acquire().await?.into_guards();
            let mut ordered = Vec::with_capacity(guards.len());
            for want in &wants {
                let at = guards.iter().position(|guard| want.is_of(guard));
                let at = at.ok_or_else(|| LockError::Disconnected("the set is not complete".to_owned()))?;
                ordered.push(guards.swap_remove(at));
            }
            Ok(Outcome::Guards(ordered))
        })
    }
}

#[pymethods]
impl Acquire {
    /// Blocks this thread until the lock is there, and returns its Guard (of `acquire_all`: a tuple of them).
    ///
    /// Other threads of Python run meanwhile; in the main thread, Ctrl-C ends it.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match (&self.wants[..], self.is_set) {
            ([want], false) => {
                let guard = want.wait(py, self.patience, self.is_local)?;
                Outcome::Guard(guard).into_python(py)
            }
            _ => block(py, self.waiting())?.into_python(py),
        }
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let guard = self.wait(py)?;
        self._keep(py, guard.clone_ref(py))?;
        Ok(guard)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mut outcome = Ok(());
        for guard in self._take(py)? {
            outcome = outcome.and(guard.get().give_back(py, self.is_local));
        }
        outcome
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = slf.py().import("lockwright._aio")?;
        aio.call_method1("finish", (slf.get()._start()?,))?.call_method0("__await__")
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
        Pending::new(self.waiting())
    }

    fn _keep(&self, py: Python<'_>, guard: Py<PyAny>) -> PyResult<()> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return Err(Failure::new("NotHeld", "this acquire is already in use; make another").raise(py));
        }
        *held = Some(guard);
        Ok(())
    }

    /// The guards that are still held, the last one first.
    fn _take(&self, py: Python<'_>) -> PyResult<Vec<Py<Guard>>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut guards = match held {
            None => Vec::new(),
            Some(held) => match held.bind(py).cast::<PyTuple>() {
                Ok(guards) => guards.extract::<Vec<Py<Guard>>>()?,
                Err(_) => vec![held.extract::<Py<Guard>>(py)?],
            },
        };
        guards.reverse();
        guards.retain(|guard| guard.get().is_held());
        Ok(guards)
    }
}

/// Several locks at once, in one global order, so that two sets never wait for each other. The timeouts of the single
/// acquires do not count.
///
///     with acquire_all([a.lock(), b.read(), c.write(0, 10)], timeout=5) as (a_guard, b_guard, c_guard): ...
#[pyfunction]
#[pyo3(signature = (acquires, timeout=None))]
pub(crate) fn acquire_all(acquires: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Acquire> {
    let mut wants = Vec::new();
    for acquire in acquires.try_iter()? {
        let acquire = acquire?;
        let acquire = acquire.cast::<Acquire>()?.get();
        if acquire.is_set {
            return Err(PyValueError::new_err("a set of sets: list the single locks"));
        }
        wants.extend(acquire.wants.iter().cloned());
    }
    let patience = timeout.map(seconds).transpose()?;
    Ok(Acquire { wants, is_set: true, patience, is_local: false, held: Mutex::default() })
}
