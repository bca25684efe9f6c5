//! A FUSE file system that passes files through and takes their record locks and flocks from a space.
//!
//! | file | |
//! |---|---|
//! | `abi` | numbers and layouts of the kernel's messages |
//! | `device` | `/dev/fuse`, mounting, unmounting |
//! | `session` | worker threads: read a request, serve it, answer |
//! | `dispatch` | which operation a request is for |
//! | `inodes` | what the kernel knows by number, and how often |
//! | `names` | operations on names and attributes |
//! | `data` | open files: reading, writing, or passing them to the kernel |
//! | `folders` | listing folders |
//! | `locks` | record locks and flocks, and what a lock is called in the space |
//!
//! **Why not a crate.** `fuser` 0.18 answers interrupts with `ENOSYS` and hands on a `flock` without saying that it is one, so
//! that a blocked program could not be killed and flocks and record locks would be the same. The protocol is small.
//!
//! **Threads.** A request that blocks keeps its thread. Whenever the last idle thread takes a request, another is started, so
//! no request waits behind blocked ones.
//!
//! **Nothing is remembered.** Names and attributes are asked for each time unless told otherwise, and data goes through to the
//! file below: a program that has a lock sees what was written under it, on whatever host.

mod abi;
mod data;
mod device;
mod dispatch;
mod folders;
mod inodes;
mod locks;
mod names;
mod session;

pub use session::{Mounted, Unmounted};

use std::path::PathBuf;
use std::time::Duration;

/// What to mount, and where.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The folder whose files are passed through.
    pub source: PathBuf,
    /// Where they appear. It may be the same folder.
    pub at: PathBuf,
    /// Where their locks come from.
    pub space: String,
    /// What the source is called in the space, by all hosts that mount it. `None`: files are known by the numbers of their
    /// device and inode, which other processes of this host know them by, too.
    pub name: Option<String>,
    /// Whether the kernel may read and write the files below by itself, where it can.
    pub passthrough: bool,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// How long names and attributes are remembered.
    pub cache: Duration,
}

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The space cannot be opened.
    #[error(transparent)]
    Space(#[from] lockwright::OpenError),
    /// There is no FUSE here.
    #[error("FUSE is not available: {0}")]
    NoFuse(String),
    /// One of the folders will not do.
    #[error("{}: {why}", .path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The name will not do.
    #[error("--name {0:?}: 1 to 64 letters, digits, and any of . _ - /")]
    Name(String),
    /// The locks of a space that other hosts see need a name that they agree on.
    #[error("locks from {0} need --name NAME: what the folder is called by every host that mounts it")]
    Nameless(String),
    /// The system said no.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        error: std::io::Error,
    },
}
