//! What can go wrong: one narrow enum per operation, and the same word for the same thing in all of them. The front page of
//! the crate has the table of words.

use crate::name::{LockName, NameError};
use lockwright_fabric::FabricError;
#[cfg(target_os = "linux")]
use lockwright_locks::Denied;
use std::ops::Range;

/// Why a space could not be opened.
///
/// ```
/// use lockwright::{Client, OpenError};
/// assert!(matches!(Client::open("carrier-pigeon:").wait(), Err(OpenError::Address(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No kind of space is written like that.
    #[error(
        "{0:?} names no space: say `shm:`, `shm:NAME`, `shm:/PATH`, `shm:lent:NAME`, `tcp://HOST:PORT/NAME`, \
         `rdma://HOST:PORT/NAME`, `cluster://HOST:PORT,HOST:PORT/CLUSTER/NAME`, `fiss://HOST:PORT/NAME` or `mem:`"
    )]
    Address(String),
    /// This build cannot do it.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The secret or the certificates cannot be used.
    #[error("{0}")]
    Credentials(String),
    /// There is no such space, and it was not to be made.
    #[error("there is no lock space {0}")]
    NotFound(String),
    /// The space is there but cannot be used, or it cannot be made, or its server cannot be reached.
    #[error("the space {space} cannot be opened: {why}")]
    Failed {
        /// Which space.
        space: String,
        /// Why, in words.
        why: String,
    },
}

impl OpenError {
    /// What builds without the feature `rdma` say of `rdma://`.
    ///
    /// ```
    /// assert!(lockwright::OpenError::NO_RDMA.to_string().contains("--features rdma"));
    /// ```
    pub const NO_RDMA: Self =
        Self::Unsupported("this build has no RDMA: `cargo build --features rdma` makes one that has");

    /// What builds without the feature `cluster` say of `cluster://`.
    ///
    /// ```
    /// assert!(lockwright::OpenError::NO_CLUSTER.to_string().contains("--features cluster"));
    /// ```
    pub const NO_CLUSTER: Self =
        Self::Unsupported("this build has no clusters: `cargo build --features cluster` makes one that has");

    /// What builds without the feature `fiss` say of `fiss://`.
    ///
    /// ```
    /// assert!(lockwright::OpenError::NO_FISS.to_string().contains("--features fiss"));
    /// ```
    pub const NO_FISS: Self =
        Self::Unsupported("this build has no deciders: `cargo build --features fiss` makes one that has");
}

/// Why a handle for a lock could not be made.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// use lockwright::HandleError;
/// assert!(matches!(client.mutex(""), Err(HandleError::Name(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The name cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A semaphore cannot have so many permits.
    #[error("a semaphore has 1 to 4294967296 permits, not {0}")]
    Limit(u64),
    /// The space has no room for another lock.
    #[error("the space has no room for another lock: {0}")]
    TooManyLocks(String),
    /// It belongs to the process that this one was forked off from. Nothing has happened.
    #[error("this client belongs to process {pid}; open your own after fork")]
    OtherProcess {
        /// That process.
        pid: u32,
    },
    /// The space does not offer this kind of lock.
    #[error("this space has no {0}")]
    Unsupported(&'static str),
    /// The space, or its server, cannot be used any more.
    #[error("the space cannot be used: {0}")]
    Disconnected(String),
}

/// Why a lock was not granted.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// use lockwright::LockError;
/// use std::time::Duration;
/// let lock = client.mutex("a").unwrap();
/// let _held = lock.lock().wait().unwrap();
/// let late = lock.lock_timeout(Duration::from_millis(1)).wait();
/// assert!(matches!(late, Err(LockError::TimedOut)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock was not granted in time.
    #[error("the lock was not granted in time")]
    TimedOut,
    /// It belongs to the process that this one was forked off from. Nothing has happened.
    #[error("this client belongs to process {pid}; open your own after fork")]
    OtherProcess {
        /// That process.
        pid: u32,
    },
    /// The range is empty, reversed or out of bounds. Nothing was locked.
    #[error("{start}..{end} is not a range that can be locked: {why}")]
    BadRange {
        /// Where it starts.
        start: u64,
        /// Where it ends.
        end: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A lock set names the same lock twice, or two ranges of one lock that overlap: it would wait for itself. Nothing was
    /// locked.
    #[error("the lock set names {name} twice{}, and would wait for itself", if *.overlap { ", with ranges that overlap" } else { "" })]
    Duplicate {
        /// The lock.
        name: LockName,
        /// Two ranges overlap.
        overlap: bool,
    },
    /// The space cannot do this.
    #[error("this space cannot do that: {0}")]
    Unsupported(&'static str),
    /// The lock has given out all its tokens: they only rise, and there is no room for more.
    #[error("this lock has given out all its tokens; use another name")]
    TokensExhausted,
    /// No further client fits into the space.
    #[error("the space has no room for another client: {0}")]
    TooManyClients(String),
    /// This client holds and wants as many locks as it may.
    #[error("this client has too many locks: {0}")]
    TooManyLocks(String),
    /// This process was stopped for longer than its lease, and declared dead, several times while it waited. It holds
    /// nothing. Ask for a longer [lease](crate::ClientOptions::lease).
    #[error(
        "this process was declared dead while it waited: it gave no sign of life for longer than its lease"
    )]
    Evicted,
    /// The server refused.
    #[error("{0}")]
    Refused(String),
    /// The space, or its server, cannot be used.
    #[error("the space cannot be used: {0}")]
    Disconnected(String),
}

impl LockError {
    pub(crate) const fn bad_range(range: &Range<u64>, why: &'static str) -> Self {
        Self::BadRange { start: range.start, end: range.end, why }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn from_fabric(error: FabricError) -> Self {
        match error {
            FabricError::Evicted => Self::Evicted,
            error => Self::Disconnected(in_words(error)),
        }
    }

    /// What a protocol says of a claim on `start..end`, if it is not [busy](TryLockError::Busy).
    #[cfg(target_os = "linux")]
    pub(crate) fn from_denied(denied: Denied, claim: (u64, u64)) -> Self {
        match denied {
            Denied::Busy | Denied::TimedOut => Self::TimedOut,
            Denied::Unsupported(reason) => Self::Unsupported(reason.0),
            Denied::BadRequest(reason) => Self::BadRange { start: claim.0, end: claim.1, why: reason.0 },
            Denied::Exhausted => Self::TokensExhausted,
            Denied::Fabric(error) => Self::from_fabric(error),
        }
    }
}

/// Why a lock could not be taken at once.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// use lockwright::TryLockError;
/// let lock = client.mutex("a").unwrap();
/// let _held = lock.try_lock().wait().unwrap();
/// assert!(matches!(lock.try_lock().wait(), Err(TryLockError::Busy)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TryLockError {
    /// Another holder has it.
    #[error("the lock is held by another holder")]
    Busy,
    /// Something else is wrong.
    #[error(transparent)]
    Failed(#[from] LockError),
}

/// What an unlock found out.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
/// assert_eq!(guard.unlock().wait(), Ok(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnlockError {
    /// The lock had been taken away. Others may have held it since, so what was done under it may have been overwritten.
    #[error("the lock was taken away before it was unlocked (its token was {token})")]
    Lost {
        /// The token of the lost grant.
        token: u64,
    },
    /// It belongs to the process that this one was forked off from. Nothing has happened.
    #[error("this client belongs to process {pid}; open your own after fork")]
    OtherProcess {
        /// That process.
        pid: u32,
    },
    /// The space, or its server, cannot be used; the lock is freed without this client.
    #[error("the space cannot be used: {0}")]
    Disconnected(String),
}

/// Why a held lock was not changed.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// use lockwright::ChangeError;
/// let lock = client.rwlock("a").unwrap();
/// let (one, _two) = (lock.read().wait().unwrap(), lock.read().wait().unwrap());
/// assert_eq!(one.try_upgrade().wait().unwrap_err().error, ChangeError::Busy);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// It belongs to the process that this one was forked off from. Nothing has happened.
    #[error("this client belongs to process {pid}; open your own after fork")]
    OtherProcess {
        /// That process.
        pid: u32,
    },
    /// Others read the same, and the upgrade was only tried.
    #[error("others hold the lock in shared mode")]
    Busy,
    /// The other readers did not leave in time.
    #[error("the lock could not be upgraded in time")]
    TimedOut,
    /// Another reader of the same already waits to upgrade, and each would wait for the other. Unlock, and lock again.
    #[error(
        "another reader already waits to upgrade, and each would wait for the other: unlock, and lock again"
    )]
    WouldDeadlock,
    /// These units cannot be given back. Nothing was.
    #[error("{start}..{end} cannot be given back: {why}")]
    BadRange {
        /// Where the part starts.
        start: u64,
        /// Where it ends.
        end: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two pieces would be left, and this client may have no further lock.
    #[error("this client has too many locks: {0}")]
    TooManyLocks(String),
    /// Spaces of this kind cannot change what is held.
    #[error(
        "not offered by {0}; spaces of a server's own (tcp://HOST/NAME, rdma://HOST/NAME), shm: and mem: can change a held lock"
    )]
    Unsupported(&'static str),
    /// The lock had been taken away.
    #[error("the lock was taken away before it was changed (its token was {token})")]
    Lost {
        /// The token of the lost grant.
        token: u64,
    },
    /// The server refused.
    #[error("{0}")]
    Refused(String),
}

/// Why the value of a lock was not read or set. It is as it was, unless the server could not be reached: then it may be set.
///
/// ```
/// # use lockwright::ValueError;
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
/// assert_eq!(guard.set_value(&[0; 65]).wait(), Err(ValueError::TooLong { len: 65 }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The guard belongs to the process that this one was forked off from.
    #[error("this client belongs to process {pid}; open your own after fork")]
    OtherProcess {
        /// That process.
        pid: u32,
    },
    /// It is longer than 64 bytes.
    #[error("a lock's value has up to 64 bytes, not {len}")]
    TooLong {
        /// How long it is.
        len: usize,
    },
    /// Only an exclusive holder sets the value.
    #[error("only who holds the lock alone sets its value")]
    Shared,
    /// Locks of this kind or space have no values.
    #[error(
        "not offered by {0}: mutexes and reader-writer locks of a server's own spaces (tcp://HOST/NAME, rdma://HOST/NAME) and of mem: have values"
    )]
    Unsupported(&'static str),
    /// The server refused, and says why: the lock is not held any more, its disk is full, there are too many values.
    #[error("{0}")]
    Refused(String),
    /// The server cannot be reached.
    #[error("{0}")]
    Disconnected(String),
}

/// Why a holder will not be told of waiters.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let guard = client.mutex("a").unwrap().lock().wait().unwrap();
/// assert!(guard.contended().is_ok(), "mem: tells");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContentionError {
    /// The guard belongs to the process that this one was forked off from.
    #[error("this client belongs to process {pid}; open your own after fork")]
    OtherProcess {
        /// That process.
        pid: u32,
    },
    /// Spaces of this kind do not know who waits, or do not tell.
    #[error("{0} does not tell holders who waits")]
    Unsupported(&'static str),
}

/// Why a lock was lost, as far as the space can tell.
///
/// ```
/// use lockwright::LostReason;
/// assert_eq!(LostReason::Broken.to_string(), "an administrator broke it");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// This process gave no sign of life for longer than its lease (it was stopped, or could not run), so others freed its
    /// locks.
    #[error("this process gave no sign of life for longer than its lease")]
    Evicted,
    /// It was taken away while this process was alive and well: `lockwright break`, or
    /// [`Inspector::break_grant`](crate::inspect::Inspector::break_grant).
    #[error("an administrator broke it")]
    Broken,
    /// The server could not be reached for longer than the lease, or ended the session.
    #[error("the server could not be reached for longer than the lease")]
    Disconnected,
    /// The server was restarted, and did not let this client keep the lock.
    #[error("the server was restarted and did not confirm it")]
    ServerRestarted,
    /// It was never this process's: the process that holds it forked this one off.
    #[error("it belongs to the process that forked this one off")]
    OtherProcess,
    /// Nothing is known.
    #[error("the reason is not known")]
    Unknown,
}

/// What a user is told of a fabric's error, which names nodes and peers by number.
pub(crate) fn in_words(error: FabricError) -> String {
    match error {
        FabricError::NodeLost(_) | FabricError::PeerLost(_) => "its server does not answer".to_owned(),
        FabricError::Evicted => error.to_string(),
    }
}
