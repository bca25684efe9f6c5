//! The secret of a server that offers this user's own spaces on this machine: made by the server, read by its user's
//! processes without being told to.
//!
//! Spaces of shared memory are their user's alone, by the mode of their files. A server on a loopback address can be reached
//! by every user of the machine, so one that exports such a space asks for a secret. If its owner gave none, it makes
//! one and leaves it beside the spaces, in a file that nobody else can read; clients of the same user find it there.
//!
//! | file | of a server | stays |
//! |---|---|---|
//! | `serve-PORT.secret` | whose port was asked for | from one start of it to the next, so that clients can come back |
//! | `serve-PORT.once` | whose port was the system's choice: nobody comes back to it | as long as the server, which keeps it locked |
//!
//! A server that was killed leaves its file behind. One of the second kind that nobody keeps locked is
//! [swept away](sweep) by the next server: the kernel unlocks it with its owner's death, whatever process has its number since.
//! Whoever makes, locks or removes one holds `serve.lock` meanwhile, so no file is swept away between being made and being locked.
//!
//! What this file must not do: trust a file that somebody else could have put there.

use super::address;
use lockwright_fabric::backend::shm::space_path;
use lockwright_fabric::backend::tcp::Secret;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a secret, before they are spelled out.
const BYTES: usize = 32;
/// Longer files are none of ours.
const LONGEST: u64 = 1 << 10;
/// How the files' names end: of servers that can come back to their port, and of those that cannot.
const KEPT: &str = "secret";
const ONCE: &str = "once";

/// The file of that kind for the server at `port`.
fn path(port: u16, ending: &str) -> io::Result<PathBuf> {
    let beside = space_path(&format!("serve-{port}")).map_err(io::Error::other)?;
    Ok(beside.with_extension(ending))
}

/// A file that is this user's and nobody else's.
fn open_own(path: &Path) -> io::Result<File> {
    let (there, file) = (std::fs::symlink_metadata(path)?, File::open(path)?);
    let (meta, me) = (file.metadata()?, std::fs::metadata("/proc/self")?.uid());
    // A link that somebody else put there leads to another file.
    let is_it = there.is_file() && (there.dev(), there.ino()) == (meta.dev(), meta.ino());
    if !is_it || meta.uid() != me || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other("it is not this user's own"));
    }
    Ok(file)
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut secret = String::new();
    open_own(path)?.take(LONGEST).read_to_string(&mut secret)?;
    Ok(secret)
}

/// The secret of the server at `port`.
fn read(port: u16) -> io::Result<String> {
    read_file(&path(port, KEPT)?).or_else(|_| read_file(&path(port, ONCE)?))
}

/// The port of the server at `server` (`host:port`), if it is on this machine.
fn port_here(server: &str) -> Option<u16> {
    let host = address::host(server);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    server.rsplit_once(':')?.1.parse().ok().filter(|_| here)
}

/// What the client of the server at `server` (`host:port`) should know if it was told nothing.
pub(crate) fn of(server: &str) -> Option<Secret> {
    Secret::new(read(port_here(server)?).ok()?).ok()
}

/// The file that [`of`] reads: a server that was killed may have left it, and something else listens there now.
pub(crate) fn left_for(server: &str) -> Option<PathBuf> {
    let port = port_here(server)?;
    [KEPT, ONCE].iter().filter_map(|ending| path(port, ending).ok()).find(|path| path.exists())
}

/// A secret for a server that has none: the one it had before if it is known on which port, else a new one.
///
/// # Errors
/// If there is no randomness to be had.
pub fn make(port: u16) -> io::Result<String> {
    if let Ok(secret) = path(port, KEPT).and_then(|path| read_file(&path))
        && Secret::new(&secret).is_ok()
    {
        return Ok(secret);
    }
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Nobody else makes, locks or removes a file while this is kept.
fn alone() -> io::Result<File> {
    let path = space_path("serve").map_err(io::Error::other)?.with_extension("lock");
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let file = open_own(&path)?;
    file.lock()?;
    Ok(file)
}

/// A secret that was left for clients. What only this run of the server had a use for goes with it.
#[derive(Debug)]
pub struct Left {
    /// The locked file, and where it is.
    once: Option<(File, PathBuf)>,
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Some((_locked, path)) = self.once.take()
            && let Ok(_alone) = alone()
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Leaves the secret of the server at `port` where this user's processes find it; `comes_back`: the port was asked for.
///
/// # Errors
/// If somebody else's file is in its place, or there is no room.
pub fn leave(port: u16, secret: &str, comes_back: bool) -> io::Result<Left> {
    let kept = path(port, KEPT)?;
    if comes_back && read_file(&kept).is_ok_and(|left| left == secret) {
        return Ok(Left { once: None });
    }
    forget(port)?;
    let _alone = alone()?;
    let path = if comes_back { kept } else { path(port, ONCE)? };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    if !comes_back {
        file.lock()?;
    }
    file.write_all(secret.as_bytes())?;
    Ok(Left { once: (!comes_back).then_some((file, path)) })
}

/// Takes away what an earlier server at `port` left: clients would expect the present one to know it.
///
/// # Errors
/// If it is somebody else's.
pub fn forget(port: u16) -> io::Result<()> {
    for ending in [KEPT, ONCE] {
        match std::fs::remove_file(path(port, ending)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Takes away what servers left that were killed, and to which nobody comes back.
pub fn sweep() -> io::Result<()> {
    let (of_none, _alone) = (path(0, ONCE)?, alone()?);
    let ending = format!("0.{ONCE}");
    let (Some(folder), Some(name)) = (of_none.parent(), of_none.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let before = name.strip_suffix(&ending).unwrap_or(name);
    for entry in std::fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let port =
            name.to_str().and_then(|name| name.strip_prefix(before)?.strip_suffix(&format!(".{ONCE}")));
        if port.is_some_and(|port| port.parse::<u16>().is_ok())
            && let Ok(file) = open_own(&entry.path())
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}
#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_found_by_its_user_on_this_machine_and_kept() {
        let port = 1;
        let secret = make(port).unwrap();
        leave(port, &secret, true).unwrap();
        assert_eq!(make(port).unwrap(), secret, "a server that is restarted goes on with it");
        for here in ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.1.2.3:1"] {
            assert!(of(here).is_some(), "{here}");
        }
        for elsewhere in ["192.0.2.1:1", "db7:1", "127.0.0.1:2"] {
            assert!(of(elsewhere).is_none(), "{elsewhere}");
        }
        std::fs::set_permissions(path(port, KEPT).unwrap(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(of("127.0.0.1:1").is_none(), "what others can read is no secret");
        assert_ne!(make(port).unwrap(), secret);
        forget(port).unwrap();
        forget(port).unwrap();
        assert!(of("127.0.0.1:1").is_none());
    }

    #[test]
    fn what_a_killed_server_left_is_swept_away_unless_it_can_come_back_or_lives() {
        let [lives, killed, comes_back] = [12, 13, 14];
        let left = leave(lives, "a secret of sixteen bytes", false).unwrap();
        let mut dead = leave(killed, "a secret of sixteen bytes", false).unwrap();
        drop(leave(comes_back, "a secret of sixteen bytes", true).unwrap());
        assert!(of("127.0.0.1:13").is_some());
        // The kernel closes what a killed process had open, and does nothing else for it.
        drop(dead.once.take());
        drop(dead);
        sweep().unwrap();
        assert!(of("127.0.0.1:12").is_some(), "its server lives");
        assert!(of("127.0.0.1:13").is_none(), "nobody comes back to it");
        assert!(of("127.0.0.1:14").is_some(), "its server can come back");
        drop(left);
        assert!(of("127.0.0.1:12").is_none(), "an orderly end leaves nothing");
        forget(comes_back).unwrap();
    }
}
