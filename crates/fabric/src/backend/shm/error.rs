//! What can go wrong with a space as a whole. What can go wrong with a verb is [`FabricError`](crate::FabricError).

use rustix::io::Errno;
use std::path::PathBuf;

/// Why a space could not be opened, grown or used. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// There is no such space, and the caller did not want it made.
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
    #[error("{} belongs to user {owner}, not to you: whoever owns a lock space can break every lock in it", path.display())]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The file was made by another version of this program.
    #[error("{} is a lock space of version {found}, this program speaks version {ours}; when nobody uses it any more, remove it", path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// This program's.
        ours: u64,
    },
    /// The file is older than the host's last start.
    #[error("{} was made before this host was last started: nobody can hold a lock in it any more; remove it", .0.display())]
    OtherBoot(PathBuf),
    /// The file's clients live in another pid namespace, where nobody here can tell whether they are alive.
    #[error("{} belongs to another pid namespace (a container?): its processes cannot be told dead or alive from here", .0.display())]
    OtherNamespace(PathBuf),
    /// The file's header contradicts itself.
    #[error("the lock space is damaged: {0}")]
    Damaged(&'static str),
    /// The options make no sense.
    #[error("bad options for a lock space: {0}")]
    BadOptions(&'static str),
    /// Every client slot is taken by somebody who is alive, or dead and not yet buried.
    #[error("the lock space has room for {0} clients, and that many are there")]
    TooManyClients(u64),
    /// The directory is full.
    #[error("the lock space has room for {0} names, and that many are in use")]
    TooManyNames(u64),
    /// The directory has no room for another client's use of a name.
    #[error("the lock space has room for {0} uses of names, and that many are there")]
    TooManyRefs(u64),
    /// A process that is alive, and perhaps stopped, keeps the directory locked.
    #[error("process {pid} keeps the directory of names locked; is it stopped?")]
    DirectoryBusy {
        /// The process.
        pid: u32,
    },
    /// Not a name.
    #[error("a lock's name has 1 to 255 bytes, none of them zero: {0}")]
    BadName(&'static str),
    /// An area cannot become that large.
    #[error(
        "lock memory cannot grow to {wanted} bytes: {reserved} were reserved for it when the space was made"
    )]
    TooLarge {
        /// What was asked for.
        wanted: u64,
        /// What is possible.
        reserved: u64,
    },
    /// This client was declared dead by others.
    #[error("this client was declared dead by others and is out of the space")]
    Evicted,
    /// This CPU cannot do it.
    #[error("this CPU has no lock-free 16-byte atomics (cmpxchg16b on x86-64), which lock memory needs")]
    NoWideAtomics,
    /// The system refused.
    #[error("cannot {doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        error: Errno,
    },
}

impl SpaceError {
    /// For `map_err`.
    pub(super) fn system(doing: &'static str) -> impl Fn(Errno) -> Self {
        move |error| Self::System { doing, error }
    }
}
