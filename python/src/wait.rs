//! Waiting: a thread that has released the interpreter, or an event loop that watches a file descriptor.

use crate::error::Failure;
use crate::guard::Guard;
use lockwright::AnyGuard;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// What comes of waiting.
pub(crate) enum Outcome {
    Guard(AnyGuard),
    Guards(Vec<AnyGuard>),
    Nothing,
}

impl Outcome {
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Guard(guard) => Ok(Py::new(py, Guard::new(guard))?.into_any()),
            Self::Guards(guards) => {
                let guards: PyResult<Vec<_>> =
                    guards.into_iter().map(|guard| Py::new(py, Guard::new(guard))).collect();
                Ok(PyTuple::new(py, guards?)?.into_any().unbind())
            }
            Self::Nothing => Ok(py.None()),
        }
    }
}

/// Something that is waited for. Dropping it gives up.
pub(crate) type Waiting = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send>>;

/// What is done at once, if it is. A future that is not may be polled on, or dropped.
#[inline]
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// How often the main thread looks whether a signal has come: Python handles signals there, and nothing wakes it for one.
const LOOK: Duration = Duration::from_millis(50);

/// Waits on this thread. In the main thread, a signal whose handler raises ends it: KeyboardInterrupt does.
pub(crate) fn block(py: Python<'_>, mut waiting: Waiting) -> PyResult<Outcome> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let is_main = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs() == std::process::id();
    loop {
        let polled = py.detach(|| {
            loop {
                match waiting.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending if is_main => std::thread::park_timeout(LOOK),
                    Poll::Pending => {
                        std::thread::park();
                        continue;
                    }
                    Poll::Ready(outcome) => return Some(outcome),
                }
                return None;
            }
        });
        match polled {
            Some(outcome) => return outcome.map_err(|failure| failure.raise(py)),
            None => py.check_signals()?,
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Something that an event loop waits for: `_aio.py` polls it and watches its file descriptor.
#[pyclass(frozen, module = "lockwright")]
pub(crate) struct Pending {
    waiting: Mutex<Option<Waiting>>,
    bell: Arc<Bell>,
}

/// Becomes readable when there is something to poll for.
struct Bell(OwnedFd);

impl Bell {
    fn ring(&self) {
        // Full: it has been rung often enough.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl Pending {
    pub(crate) fn new(waiting: Waiting) -> PyResult<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(std::io::Error::from)?;
        Ok(Self { waiting: Mutex::new(Some(waiting)), bell: Arc::new(Bell(bell)) })
    }
}

#[pymethods]
impl Pending {
    /// (True, outcome), or (False, None) if it is not done: poll again when the file descriptor is readable.
    fn poll(&self, py: Python<'_>) -> PyResult<(bool, Py<PyAny>)> {
        let _ = rustix::io::read(&self.bell.0, &mut [0_u8; 8]);
        let waker = Waker::from(Arc::clone(&self.bell));
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(future) = waiting.as_mut() else {
            return Err(Failure::new("NotHeld", "this was awaited before, or cancelled").raise(py));
        };
        let polled = py.detach(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        let Poll::Ready(outcome) = polled else { return Ok((false, py.None())) };
        *waiting = None;
        drop(waiting);
        Ok((true, outcome.map_err(|failure| failure.raise(py))?.into_python(py)?))
    }

    fn fileno(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    /// Gives up.
    fn cancel(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(waiting);
    }
}
