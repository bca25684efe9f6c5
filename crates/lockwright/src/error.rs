//! What can go wrong, one narrow enum per operation.

use crate::name::{LockName, NameError};
use lockwright_fabric::FabricError;
#[cfg(target_os = "linux")]
use lockwright_locks::Denied;
use std::ops::Range;

/// Why a space could not be opened.
///
/// ```
/// use lockwright::{Client, OpenError};
/// assert!(matches!(Client::open("carrier-pigeon:"), Err(OpenError::Address(_))));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No kind of space is written like that.
    #[error(
        "{0:?} names no space: say `shm:`, `shm:NAME`, `shm:/PATH`, `tcp://HOST:PORT/NAME`, `rdma://HOST:PORT/NAME` or \
         `mem:`"
    )]
    Address(String),
    /// The build does not know RDMA.
    #[error("this build has no RDMA: `cargo build --features rdma` makes one that has")]
    NoRdma,
    /// The token or the certificates are no good.
    #[error("{0}")]
    Trust(String),
    /// There is no such space, and it was not to be made.
    #[error("there is no lock space {0}")]
    Missing(String),
    /// The space is there but cannot be used, or it cannot be made.
    #[error("the space {space} cannot be opened: {why}")]
    Space {
        /// Which space.
        space: String,
        /// Why, in words.
        why: String,
    },
}

/// Why a handle for a lock could not be made.
///
/// ```
/// use lockwright::{Client, HandleError};
/// let client = Client::open("mem:").unwrap();
/// assert!(matches!(client.mutex(""), Err(HandleError::Name(_))));
/// ```
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The name cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The space has no room for another lock.
    #[error("the space has no room for another lock: {why}")]
    Full {
        /// What it has no room for.
        why: String,
    },
    /// The space does not offer this kind of lock.
    #[error("this space has no {0}")]
    Unsupported(&'static str),
    /// The space cannot be reached or is broken.
    #[error("the space cannot be used: {why}")]
    Space {
        /// Why, in words.
        why: String,
    },
}

/// Why a lock was not granted.
///
/// ```
/// use lockwright::{Client, LockError};
/// use std::time::Duration;
/// let client = Client::open("mem:").unwrap();
/// let lock = client.mutex("a").unwrap();
/// let _held = lock.lock().wait().unwrap();
/// let late = lock.lock_timeout(Duration::from_millis(1)).wait();
/// assert!(matches!(late, Err(LockError::TimedOut)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// It could not be had in time.
    #[error("the lock could not be had in time")]
    TimedOut,
    /// The range is empty, reversed or out of bounds. Nothing was changed.
    #[error("{start}..{end} is not a range that can be locked: {why}")]
    BadRange {
        /// Where it starts.
        start: u64,
        /// Where it ends.
        end: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two parts of a lock set overlap. Nothing was locked.
    #[error("the lock set names {name} twice with ranges that overlap")]
    Overlap {
        /// The lock.
        name: LockName,
    },
    /// The space's protocol cannot do this.
    #[error("this space cannot do that: {0}")]
    Unsupported(&'static str),
    /// The space cannot be reached, or is full.
    #[error("the space cannot be used: {0}")]
    Space(#[from] FabricError),
    /// No further client fits into the space.
    #[error("the space has no room for another client: {0}")]
    NoSeat(String),
    /// The server refused, or cannot be reached.
    #[error("{0}")]
    Server(String),
}

impl LockError {
    pub(crate) fn bad_range(range: &Range<u64>, why: &'static str) -> Self {
        Self::BadRange { start: range.start, end: range.end, why }
    }

    /// What a protocol's refusal means to a user; `Busy` only comes to those who tried.
    #[cfg(target_os = "linux")]
    pub(crate) fn from_denied(denied: Denied, claim: (u64, u64)) -> Self {
        match denied {
            Denied::Busy | Denied::TimedOut => Self::TimedOut,
            Denied::Unsupported(reason) => Self::Unsupported(reason.0),
            Denied::BadRequest(reason) => Self::BadRange { start: claim.0, end: claim.1, why: reason.0 },
            Denied::Fabric(lost) => Self::Space(lost),
        }
    }
}

/// Why a lock could not be taken at once.
///
/// ```
/// use lockwright::{Client, TryLockError};
/// let client = Client::open("mem:").unwrap();
/// let lock = client.mutex("a").unwrap();
/// let _held = lock.try_lock().unwrap();
/// assert!(matches!(lock.try_lock(), Err(TryLockError::Busy)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TryLockError {
    /// Somebody else has it.
    #[error("the lock is held by somebody else")]
    Busy,
    /// Something else is wrong.
    #[error(transparent)]
    Failed(#[from] LockError),
}

/// What an unlock found out.
///
/// ```
/// use lockwright::Client;
/// let client = Client::open("mem:").unwrap();
/// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
/// assert_eq!(guard.unlock().wait(), Ok(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// The lock had been taken away: its lease ran out, or somebody broke it. Others may have held it since, so what
    /// was done under it may have been overwritten.
    #[error("the lock was taken away before it was unlocked (its token was {token})")]
    Lost {
        /// The token of the lost grant.
        token: u64,
    },
    /// The space cannot be reached; it will free the lock itself.
    #[error("the space cannot be used: {0}")]
    Space(#[from] FabricError),
}

/// Why a held lock was not changed. It is held as it was, unless the error says that it was lost.
///
/// ```
/// use lockwright::{ChangeError, Client};
/// let client = Client::open("mem:").unwrap();
/// let lock = client.rwlock("a").unwrap();
/// let (mut one, _two) = (lock.read().wait().unwrap(), lock.read().wait().unwrap());
/// assert_eq!(one.try_upgrade(), Err(ChangeError::Busy));
/// assert!(one.is_shared());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Others read the same, and the upgrade was only tried.
    #[error("others hold the lock in shared mode")]
    Busy,
    /// The other readers did not leave in time.
    #[error("the lock could not be upgraded in time")]
    TimedOut,
    /// Another reader of the same already waits to upgrade, and each would wait for the other. Unlock, and lock again.
    #[error("another reader already waits to upgrade, and each would wait for the other")]
    WouldDeadlock,
    /// These units cannot be given back. Nothing was.
    #[error("{start}..{end} cannot be given back: {why}")]
    BadPart {
        /// Where the part starts.
        start: u64,
        /// Where it ends.
        end: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Spaces of this kind cannot change what is held.
    #[error(
        "not offered by {0}; spaces of a server's own (tcp://HOST/NAME, rdma://HOST/NAME) and mem: can change a held lock"
    )]
    NotOffered(&'static str),
    /// The lock had been taken away: its lease ran out, or somebody broke it.
    #[error("the lock was taken away before it was changed (its token was {token})")]
    Lost {
        /// The token of the lost grant.
        token: u64,
    },
    /// The server refused.
    #[error("{0}")]
    Server(String),
}
