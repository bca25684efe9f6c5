//! What can go wrong with a space as a whole. What can go wrong with a verb is [`FabricError`](crate::FabricError).

use rustix::io::Errno;
use std::path::PathBuf;

/// Why a space could not be opened, grown or used. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// There is no such space, and the caller did not ask to create it.
    #[error("there is no lock space at {}", .0.display())]
    Missing(PathBuf),
    /// The file is something else.
    #[error("{} is not a lock space: {reason}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What gave it away.
        reason: &'static str,
    },
    /// The file belongs to another user.
    #[error("{} belongs to user {owner}, not to you: the owner of a lock space can break every lock in it", path.display())]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users may write the file.
    #[error("{} can be written by others (mode {mode:04o}, not 0600), who could break every lock in it; when nobody uses it any more, remove it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file system that the space lies on has no room left.
    #[error("the file system of {} is full: there is no room for what the lock space needs", .0.display())]
    Full(PathBuf),
    /// The file was created by another version of this program.
    #[error("{} is a lock space of version {found}, this program speaks version {ours}; when nobody uses it any more, remove it", path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// This program's.
        ours: u64,
    },
    /// The file was created before the host's last boot.
    #[error("{} was made before this host was last started: nobody can hold a lock in it any more; remove it", .0.display())]
    OtherBoot(PathBuf),
    /// The file's clients live in another pid namespace, so this process cannot tell whether they are alive.
    #[error("{} belongs to another pid namespace (a container?): its processes cannot be told dead or alive from here", .0.display())]
    OtherNamespace(PathBuf),
    /// The file's clients live in another time namespace: their clocks, and the start times of their processes, differ from
    /// what this process sees.
    #[error("{} belongs to another time namespace (a container?): its leases and processes cannot be judged from here", .0.display())]
    OtherTimeNamespace(PathBuf),
    /// The file's header contradicts itself.
    #[error("the lock space is damaged: {0}")]
    Damaged(&'static str),
    /// An option is out of bounds.
    #[error("bad options for a lock space: {0}")]
    BadOptions(&'static str),
    /// Every slot of the client table is taken, by a member or by a dead client not reaped yet.
    #[error("the lock space has room for {0} clients, and that many are there")]
    TooManyClients(u64),
    /// The directory is full.
    #[error("the lock space has room for {0} names, and that many are in use")]
    TooManyNames(u64),
    /// The directory has no room for another client's use of a name.
    #[error("the lock space has room for {0} uses of names, and that many are there")]
    TooManyRefs(u64),
    /// A live process, perhaps a stopped one, holds the directory's lock.
    #[error("process {pid} keeps the directory of names locked; is it stopped?")]
    DirectoryBusy {
        /// The process.
        pid: u32,
    },
    /// Not a name.
    #[error("a lock's name has 1 to 255 bytes, none of them zero: {0}")]
    BadName(&'static str),
    /// Other clients took this one for dead and evicted it.
    #[error("this client was evicted from the lock space: others took it for dead")]
    Evicted,
    /// The CPU lacks an instruction.
    #[error("this CPU has no lock-free 16-byte atomics (cmpxchg16b on x86-64), which lock memory needs")]
    NoWideAtomics,
    /// A system call failed.
    #[error("cannot {doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Its error.
        error: Errno,
    },
}

impl SpaceError {
    /// For `map_err`.
    pub(super) fn system(doing: &'static str) -> impl Fn(Errno) -> Self {
        move |error| Self::System { doing, error }
    }
}
