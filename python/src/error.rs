//! Errors of the library as exceptions: their classes are Python's own, in `_errors.py`.

use lockwright::{ChangeError, HandleError, LockError, OpenError, TryLockError, UnlockError};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;

/// An exception to come: the name of its class, and what it says. Made without the interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    class: &'static str,
    text: String,
}

impl Failure {
    pub(crate) fn new(class: &'static str, text: impl Into<String>) -> Self {
        Self { class, text: text.into() }
    }

    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        let class = py.import("lockwright._errors").and_then(|module| module.getattr(self.class));
        match class.and_then(|class| class.call1((self.text.as_str(),))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(_) => PyRuntimeError::new_err(self.text),
        }
    }
}

/// Each error has its words already; only the class is chosen here.
macro_rules! failure {
    ($error:ty { $($pattern:pat => $class:literal,)* }) => {
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                #[allow(unreachable_patterns, reason = "what comes to be later has no class of its own yet")]
                let class = match &error {
                    $($pattern => $class,)*
                    _ => "LockwrightError",
                };
                Self::new(class, error.to_string())
            }
        }
    };
}

failure!(OpenError {
    OpenError::Address(_) | OpenError::NotFound(_) => "BadRequest",
    OpenError::Unsupported(_) => "Unsupported",
    OpenError::Credentials(_) => "Refused",
    OpenError::Failed { .. } => "Disconnected",
});

failure!(HandleError {
    HandleError::Name(_) | HandleError::Limit(_) => "BadRequest",
    HandleError::TooManyLocks(_) => "TooMany",
    HandleError::OtherProcess { .. } => "OtherProcess",
    HandleError::Unsupported(_) => "Unsupported",
    HandleError::Disconnected(_) => "Disconnected",
});

failure!(LockError {
    LockError::TimedOut => "LockTimeout",
    LockError::OtherProcess { .. } => "OtherProcess",
    LockError::BadRange { .. } | LockError::Duplicate { .. } => "BadRequest",
    LockError::Unsupported(_) => "Unsupported",
    LockError::TokensExhausted | LockError::TooManyClients(_) | LockError::TooManyLocks(_) => "TooMany",
    LockError::Evicted => "Evicted",
    LockError::Refused(_) => "Refused",
    LockError::Disconnected(_) => "Disconnected",
});

failure!(UnlockError {
    UnlockError::Lost { .. } => "LockLost",
    UnlockError::OtherProcess { .. } => "OtherProcess",
    UnlockError::Disconnected(_) => "Disconnected",
});

failure!(ChangeError {
    ChangeError::OtherProcess { .. } => "OtherProcess",
    ChangeError::Busy | ChangeError::TimedOut => "LockTimeout",
    ChangeError::WouldDeadlock => "WouldDeadlock",
    ChangeError::BadRange { .. } => "BadRequest",
    ChangeError::TooManyLocks(_) => "TooMany",
    ChangeError::Unsupported(_) => "Unsupported",
    ChangeError::Lost { .. } => "LockLost",
    ChangeError::Refused(_) => "Refused",
});

impl From<TryLockError> for Failure {
    fn from(error: TryLockError) -> Self {
        match error {
            TryLockError::Failed(error) => error.into(),
            busy => Self::new("LockTimeout", busy.to_string()),
        }
    }
}

/// As in `threading`: what is longer is a mistake.
const TIMEOUT_MAX: f64 = 9_223_372_036.0;

/// A timeout in seconds.
pub(crate) fn seconds(timeout: f64) -> PyResult<Duration> {
    if timeout.is_nan() || timeout < 0.0 {
        return Err(PyValueError::new_err("timeout value must be a non-negative number"));
    }
    if timeout > TIMEOUT_MAX {
        return Err(PyOverflowError::new_err("timeout value is too large"));
    }
    Ok(Duration::from_secs_f64(timeout))
}
