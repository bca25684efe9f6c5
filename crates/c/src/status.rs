//! How a call ended: one number for each thing that can go wrong, and the words for it, kept per thread.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::handles::Refused;
use lockwright::{
    ChangeError, GuardState, HandleError, LockError, LostReason, OpenError, TryLockError, UnlockError,
};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "C's names")]
pub enum Status {
    /// Done.
    LW_OK = 0,
    /// Another holder is in the way, and it was only tried.
    LW_BUSY = 1,
    /// The time given was over first. Nothing is held, or nothing was changed.
    LW_TIMED_OUT = 2,
    /// The lock was held and has been taken away. What was done under it may have been overwritten.
    LW_LOST = 3,
    /// This process was silent for longer than its lease, again and again.
    LW_EVICTED = 4,
    /// The space, or the server that has it, cannot be reached.
    LW_DISCONNECTED = 5,
    /// The server said no.
    LW_REFUSED = 6,
    /// This space, or this build, cannot do it.
    LW_UNSUPPORTED = 7,
    /// No room for another client, lock or handle.
    LW_TOO_MANY = 8,
    /// The range is empty, reversed, or out of bounds.
    LW_BAD_RANGE = 9,
    /// Another reader already waits to upgrade, and each would wait for the other.
    LW_WOULD_DEADLOCK = 10,
    /// It belongs to the process that this one was forked off from.
    LW_OTHER_PROCESS = 11,
    /// NULL, or the handle of something that is gone, or of another type.
    LW_BAD_HANDLE = 12,
    /// Another thread is changing this guard (upgrade, downgrade, unlock of a part), or this set.
    LW_IN_USE = 13,
    /// A pointer is NULL that must not be, a text is not UTF-8, the options have an unknown size, or a limit is out of bounds.
    LW_BAD_ARGUMENT = 14,
    /// The name of the lock is empty or too long.
    LW_BAD_NAME = 15,
    /// The address names no space, or there is none.
    LW_BAD_ADDRESS = 16,
    /// The secret or the certificates cannot be used.
    LW_BAD_CREDENTIALS = 17,
    /// The lock has given out all its tokens; use another name.
    LW_TOKENS_EXHAUSTED = 18,
    /// A defect of the library.
    LW_INTERNAL = 19,
    /// A set has the same lock twice, or ranges of one that overlap.
    LW_DUPLICATE = 20,
}

/// What is known about a guard's lock at this moment.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "C's names")]
pub enum State {
    /// It is held: nobody else has it.
    LW_STATE_HELD = 0,
    /// It may have been taken away. Stop; it will turn out to be held or lost.
    LW_STATE_UNCERTAIN = 1,
    /// It was taken away.
    LW_STATE_LOST = 2,
}

/// Why a lock was lost, as far as the space can tell.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "C's names")]
pub enum Lost {
    /// Nothing is known.
    LW_LOST_UNKNOWN = 0,
    /// This process gave no sign of life for longer than its lease.
    LW_LOST_EVICTED = 1,
    /// An administrator broke it.
    LW_LOST_BROKEN = 2,
    /// The server could not be reached for longer than the lease.
    LW_LOST_DISCONNECTED = 3,
    /// The server was restarted and did not confirm it.
    LW_LOST_SERVER_RESTARTED = 4,
    /// It belongs to the process that forked this one off.
    LW_LOST_OTHER_PROCESS = 5,
}

impl From<GuardState> for State {
    fn from(state: GuardState) -> Self {
        match state {
            GuardState::Held => Self::LW_STATE_HELD,
            GuardState::Lost => Self::LW_STATE_LOST,
            _ => Self::LW_STATE_UNCERTAIN,
        }
    }
}

impl From<LostReason> for Lost {
    fn from(reason: LostReason) -> Self {
        match reason {
            LostReason::Evicted => Self::LW_LOST_EVICTED,
            LostReason::Broken => Self::LW_LOST_BROKEN,
            LostReason::Disconnected => Self::LW_LOST_DISCONNECTED,
            LostReason::ServerRestarted => Self::LW_LOST_SERVER_RESTARTED,
            LostReason::OtherProcess => Self::LW_LOST_OTHER_PROCESS,
            _ => Self::LW_LOST_UNKNOWN,
        }
    }
}

/// Why a call failed: the number, and the words.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Bad => Self::new(
                Status::LW_BAD_HANDLE,
                "NULL, or the handle of something that was closed, freed or unlocked before, or of another type",
            ),
            Refused::InUse => Self::new(Status::LW_IN_USE, "another thread is changing this guard or set"),
        }
    }
}

/// Each error has its words already; only the number is chosen here.
macro_rules! failure {
    ($error:ty { $($pattern:pat => $status:ident,)* }) => {
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                #[allow(unreachable_patterns, reason = "errors that come to be later are internal until they have a number")]
                let status = match &error {
                    $($pattern => Status::$status,)*
                    _ => Status::LW_INTERNAL,
                };
                Self::new(status, error.to_string())
            }
        }
    };
}

failure!(OpenError {
    OpenError::Address(_) => LW_BAD_ADDRESS,
    OpenError::NotFound(_) => LW_BAD_ADDRESS,
    OpenError::Unsupported(_) => LW_UNSUPPORTED,
    OpenError::Credentials(_) => LW_BAD_CREDENTIALS,
    OpenError::Failed { .. } => LW_DISCONNECTED,
});

failure!(HandleError {
    HandleError::Name(_) => LW_BAD_NAME,
    HandleError::Limit(_) => LW_BAD_ARGUMENT,
    HandleError::TooManyLocks(_) => LW_TOO_MANY,
    HandleError::OtherProcess { .. } => LW_OTHER_PROCESS,
    HandleError::Unsupported(_) => LW_UNSUPPORTED,
    HandleError::Disconnected(_) => LW_DISCONNECTED,
});

failure!(LockError {
    LockError::TimedOut => LW_TIMED_OUT,
    LockError::OtherProcess { .. } => LW_OTHER_PROCESS,
    LockError::BadRange { .. } => LW_BAD_RANGE,
    LockError::Duplicate { .. } => LW_DUPLICATE,
    LockError::Unsupported(_) => LW_UNSUPPORTED,
    LockError::TokensExhausted => LW_TOKENS_EXHAUSTED,
    LockError::TooManyClients(_) => LW_TOO_MANY,
    LockError::TooManyLocks(_) => LW_TOO_MANY,
    LockError::Evicted => LW_EVICTED,
    LockError::Refused(_) => LW_REFUSED,
    LockError::Disconnected(_) => LW_DISCONNECTED,
});

failure!(UnlockError {
    UnlockError::Lost { .. } => LW_LOST,
    UnlockError::OtherProcess { .. } => LW_OTHER_PROCESS,
    UnlockError::Disconnected(_) => LW_DISCONNECTED,
});

failure!(ChangeError {
    ChangeError::OtherProcess { .. } => LW_OTHER_PROCESS,
    ChangeError::Busy => LW_BUSY,
    ChangeError::TimedOut => LW_TIMED_OUT,
    ChangeError::WouldDeadlock => LW_WOULD_DEADLOCK,
    ChangeError::BadRange { .. } => LW_BAD_RANGE,
    ChangeError::TooManyLocks(_) => LW_TOO_MANY,
    ChangeError::Unsupported(_) => LW_UNSUPPORTED,
    ChangeError::Lost { .. } => LW_LOST,
    ChangeError::Refused(_) => LW_REFUSED,
});

impl From<TryLockError> for Failure {
    fn from(error: TryLockError) -> Self {
        match error {
            TryLockError::Failed(error) => error.into(),
            error => Self::new(Status::LW_BUSY, error.to_string()),
        }
    }
}

thread_local! {
    /// What the last call that failed in this thread said.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs what a function of the interface does and turns the outcome into a number. A panic ends here: C could not unwind.
#[inline(always)]
pub(crate) fn call(act: impl FnOnce() -> Result<(), Failure>) -> Status {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => Status::LW_OK,
        Ok(Err(failure)) => failed(&failure),
        Err(_) => {
            failed(&Failure::new(Status::LW_INTERNAL, "a defect of the library; standard error says more"))
        }
    }
}

#[cold]
fn failed(failure: &Failure) -> Status {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // Without effect in a thread that is ending.
    let _ = LAST.try_with(|last| last.replace(Some(text)));
    failure.status
}

/// What the last call that failed in this thread said, in one line of English; empty if none has failed yet. Valid until the
/// next call that fails in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn lw_last_error() -> *const c_char {
    let last = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
    last.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The version of the library, like `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn lw_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL inside"),
        };
    VERSION.as_ptr()
}
