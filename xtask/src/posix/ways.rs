//! How programs come to our locks: by a library that is loaded into them, or by a file system that is mounted. And the server
//! that both may take locks from.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// See the module.
pub(super) enum Way {
    Preload {
        library: PathBuf,
        space: String,
        folder: PathBuf,
    },
    /// Programs take turns.
    Mounts {
        mounts: Vec<Mount>,
        next: Cell<usize>,
    },
}

impl Way {
    pub(super) fn mounts(mounts: Vec<Mount>) -> Self {
        Self::Mounts { mounts, next: Cell::new(0) }
    }

    /// A program whose locks are ours, of files in its working directory.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        match self {
            Self::Preload { library, space, folder } => {
                command.current_dir(folder).env("LD_PRELOAD", library).env("TMPDIR", folder);
                command.env("LOCKWRIGHT_POSIX", folder).env("LOCKWRIGHT_SPACE", space);
            }
            Self::Mounts { mounts, next } => {
                let at = &mounts[next.replace(next.get() + 1) % mounts.len()].at;
                command.current_dir(at).env("TMPDIR", at);
            }
        }
        command
    }

    /// Whether an open file description that processes share has locks.
    pub(super) const fn has_shared_descriptions(&self) -> bool {
        matches!(self, Self::Mounts { .. })
    }
}

/// A mount of this chore's own, gone with it.
pub(super) struct Mount {
    child: Child,
    at: PathBuf,
}

/// Why there is no mount.
pub(super) enum NotMounted {
    /// This machine has no FUSE, or none for us.
    NoFuse(String),
    Failed(String),
}

impl Mount {
    pub(super) fn start(
        program: &Path,
        folders: (PathBuf, PathBuf),
        space: &str,
        more: &[&str],
    ) -> Result<Self, NotMounted> {
        let mut command = Command::new(program);
        command.arg("mount");
        Self::start_as(command, folders, space, more)
    }

    /// `command` ends with `lockwright mount`.
    pub(super) fn start_as(
        mut command: Command,
        (source, at): (PathBuf, PathBuf),
        space: &str,
        more: &[&str],
    ) -> Result<Self, NotMounted> {
        let failed = |why: String| NotMounted::Failed(why);
        std::fs::create_dir_all(&at).map_err(|error| failed(error.to_string()))?;
        command.args(["--space", space]).args(more).args([&source, &at]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(format!("{command:?}: {error}")))?;
        let mut line = String::new();
        let read = child.stdout.take().map(BufReader::new).map(|mut said| said.read_line(&mut line));
        if matches!(read, Some(Ok(1..))) {
            // What it says from now on is not read: it is little, and has room.
            return Ok(Self { child, at });
        }
        let mut complaint = String::new();
        let _ = child.stderr.take().map(|mut said| said.read_to_string(&mut complaint));
        let _ = child.wait();
        let complaint = complaint.trim().to_owned();
        if complaint.contains("FUSE is not available") {
            return Err(NotMounted::NoFuse(complaint));
        }
        Err(failed(complaint))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Its program ends with it.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = self.child.wait();
    }
}

/// A server of this chore's own, ended with it.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(program: &Path, folder: &Path) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(["serve", "--state", "none", "--listen", "127.0.0.1:0"]).current_dir(folder);
        Self::start_as(&mut command, "127.0.0.1")
    }

    /// `command` ends with `lockwright serve` and what it needs to listen there.
    pub(super) fn start_as(command: &mut Command, at: &str) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the server does not start: {error}"))?;
        let mut line = String::new();
        let said = child.stdout.take().map(BufReader::new).map(|mut said| said.read_line(&mut line));
        let port = line
            .rsplit_once(&format!("{at}:"))
            .map(|(_, port)| port.chars().take_while(char::is_ascii_digit).collect::<String>());
        match (said, port) {
            (Some(Ok(_)), Some(port)) if !port.is_empty() => {
                Ok(Self { child, address: format!("tcp://{at}:{port}/posix") })
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("the server does not say where it is: {line:?}"))
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
