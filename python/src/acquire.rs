//! A lock that is about to be acquired: waited for, awaited, or entered.

use crate::error::{Failure, seconds};
use crate::guard::Guard;
use crate::wait::{Outcome, Pending, Waiting, block, poll_once};
use lockwright::{AnyGuard, LockError, LockSet, TryLockError};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// Which lock, and how.
#[derive(Clone)]
pub(crate) enum Want {
    Lock(lockwright::Mutex),
    Read(lockwright::RwLock),
    Write(lockwright::RwLock),
    ReadRange(lockwright::RangeLock, u64, u64),
    WriteRange(lockwright::RangeLock, u64, u64),
    Permits(lockwright::Semaphore, u64),
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
            (Self::Permits(semaphore, count), None) => semaphore.acquire_many(*count).into_any(),
            (Self::Permits(semaphore, count), Some(patience)) => {
                semaphore.acquire_timeout(*count, patience).into_any()
            }
        }
    }

    #[inline]
    fn attempt(&self) -> lockwright::TryAcquire<AnyGuard> {
        match self {
            Self::Lock(lock) => lock.try_lock().into_any(),
            Self::Read(lock) => lock.try_read().into_any(),
            Self::Write(lock) => lock.try_write().into_any(),
            Self::ReadRange(lock, start, end) => lock.try_read(*start..*end).into_any(),
            Self::WriteRange(lock, start, end) => lock.try_write(*start..*end).into_any(),
            Self::Permits(semaphore, count) => semaphore.try_acquire_many(*count).into_any(),
        }
    }

    /// Waits on this thread. What is free on this host is taken without releasing the interpreter; everything that may have to
    /// wait, if only for those who look at the same ranges, has released it.
    #[inline]
    pub(crate) fn wait(
        &self,
        py: Python<'_>,
        patience: Option<Duration>,
        is_local: bool,
    ) -> PyResult<AnyGuard> {
        let only_tried = patience.is_some_and(|patience| patience.is_zero());
        if is_local {
            match poll_once(&mut self.attempt()) {
                Poll::Ready(Ok(guard)) => return Ok(guard),
                Poll::Ready(Err(TryLockError::Busy)) if !only_tried => {}
                Poll::Ready(Err(error)) => return Err(Failure::from(error).raise(py)),
                Poll::Pending => {}
            }
        }
        if only_tried {
            return py.detach(|| self.attempt().wait()).map_err(|error| Failure::from(error).raise(py));
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

    fn add_to(&self, set: LockSet) -> Result<LockSet, LockError> {
        Ok(match self {
            Self::Lock(lock) => set.lock(lock),
            Self::Read(lock) => set.read(lock),
            Self::Write(lock) => set.write(lock),
            Self::ReadRange(lock, start, end) => set.read_range(lock, *start..*end),
            Self::WriteRange(lock, start, end) => set.write_range(lock, *start..*end),
            Self::Permits(semaphore, count) => set.permits(semaphore, *count)?,
        })
    }
}

/// One thing to acquire, again and again: what a mutex and a semaphore are behind their methods.
pub(crate) struct Entry {
    want: Want,
    is_local: bool,
    /// A wait has ended without the lock, and its place may still be in the queue.
    gave_up: AtomicBool,
}

/// How long a try waits for a place that this object left in the queue to be passed over. Without that, a lock that its only
/// holder has just given back would be busy for an instant: it goes by way of that place.
const PASSED_OVER: Duration = Duration::from_millis(20);

impl Entry {
    pub(crate) const fn new(want: Want, is_local: bool) -> Self {
        Self { want, is_local, gave_up: AtomicBool::new(false) }
    }

    pub(crate) fn acquire(&self, timeout: Option<f64>) -> PyResult<Acquire> {
        Acquire::one(self.want.clone(), timeout, self.is_local)
    }

    pub(crate) fn start(&self) -> PyResult<Pending> {
        Pending::new(self.want.waiting(None))
    }

    #[inline]
    pub(crate) fn enter(&self, py: Python<'_>, patience: Option<Duration>) -> PyResult<Py<Guard>> {
        let left = self.is_local && self.gave_up.swap(false, Relaxed);
        let patience = patience.map(|patience| if left { patience.max(PASSED_OVER) } else { patience });
        let guard = self.want.wait(py, patience, self.is_local).inspect_err(|_| {
            if left || patience.is_none_or(|patience| !patience.is_zero()) {
                self.gave_up.store(true, Relaxed);
            }
        });
        Py::new(py, Guard::new(guard?))
    }

    /// As the locks of `threading` are acquired; `None` if that failed.
    pub(crate) fn enter_as_threads_do(
        &self,
        py: Python<'_>,
        blocking: bool,
        timeout: Option<f64>,
    ) -> PyResult<Option<Py<Guard>>> {
        let patience = match (blocking, timeout) {
            (true, timeout) => timeout.map(seconds).transpose()?,
            (false, None) => Some(Duration::ZERO),
            (false, Some(_)) => {
                return Err(PyValueError::new_err("can't specify a timeout for a non-blocking call"));
            }
        };
        match self.enter(py, patience) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_instance_of::<PyTimeoutError>(py) => Ok(None),
            Err(error) => Err(error),
        }
    }

    #[inline]
    pub(crate) fn give_back(&self, py: Python<'_>, guard: &Py<Guard>) -> PyResult<()> {
        guard.get().give_back(py, self.is_local)
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
        let (wants, patience) = (self.wants.clone(), self.patience);
        Box::pin(async move {
            let set = wants.iter().try_fold(LockSet::new(), |set, want| want.add_to(set))?;
            let set = match patience {
                Some(patience) => set.timeout(patience),
                None => set,
            };
            Ok(Outcome::Guards(set.acquire().await?.into_guards_as_added()))
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
        self._keep(py, guard)
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

    fn _keep(&self, py: Python<'_>, guard: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return Err(Failure::new("NotHeld", "this acquire is already in use; make another").raise(py));
        }
        *held = Some(guard.clone_ref(py));
        Ok(guard)
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
