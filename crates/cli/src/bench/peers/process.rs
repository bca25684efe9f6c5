//! Servers of others: found on this machine, started with a folder and a port of their own, and ended with what is measured.

use anyhow::{Context, Result, bail};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a server may take until it can be reached.
const UP: Duration = Duration::from_secs(60);

/// A server that runs. Dropped, it is killed, and its folder removed.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    _folder: Folder,
    pub(super) port: u16,
}

/// A folder of its own.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("lockwright-bench-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program called `name`, on the path or in one of these folders.
pub(super) fn find(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.iter().cloned().chain(std::env::split_paths(&path));
    all.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// A port that nobody has: below those that the system gives to connections, which come and go until a server has it, and another
/// one with every call.
pub(super) fn free_port() -> Result<u16> {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    const PORTS: u32 = 20_000;
    for _ in 0..PORTS {
        let call = u32::from(CALLS.fetch_add(1, Relaxed));
        // Processes that are started one after the other begin far apart.
        let port = FIRST + ((std::process::id() % 500 * 40 + call) % PORTS) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("there is no free port from {FIRST} on")
}

/// The user and group called `name`.
pub(super) fn user(name: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

/// A command that says nothing, as another user if that is wanted.
pub(super) fn quiet(program: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    command
}

impl Daemon {
    /// Starts `command`, and waits until its `port` can be reached.
    pub(super) fn start(mut command: Command, folder: Folder, port: u16) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut daemon = Self { child, _folder: folder, port };
        let until = Instant::now() + UP;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            if Instant::now() > until {
                bail!("{command:?} could not be reached within {} s", UP.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }
}

impl Daemon {
    /// Ends it at once (SIGKILL).
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
