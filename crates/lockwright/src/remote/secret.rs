//! The secret of a server that offers this user's own spaces on this machine: made by the server, read by its user's
//! processes without being told to.
//!
//! Spaces of shared memory are their user's alone, by the mode of their files. A server on a loopback address can be reached
//! by every user of the machine, so one that exports such a space asks for a secret. If its owner gave none, it makes
//! one and leaves it in a [folder that is closed to others](PrivateFolder); clients of the same user find it there.
//!
//! | file | of a server | stays |
//! |---|---|---|
//! | `serve-PORT.secret` | whose port was asked for | from one start of it to the next, so that clients can come back |
//! | `serve-PORT.once` | whose port was the system's choice: nobody comes back to it | as long as the server, which keeps it locked |
//!
//! A server that was killed leaves its file behind. One of the second kind that nobody keeps locked is [swept away](sweep) by the
//! next server: the kernel unlocks it with its owner's death, whatever process has its number since. A process that makes, locks
//! or removes one holds `serve.lock` meanwhile, so no file is swept away between being made and being locked.
//!
//! What this file must not do: trust a file that another user could have put there.

use super::address;
use lockwright_fabric::backend::shm::PrivateFolder;
use lockwright_fabric::backend::tcp::Secret;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;

/// Bytes of a secret, before they are spelled out.
const BYTES: usize = 32;
/// Longer files are none of ours.
const LONGEST: u64 = 1 << 10;
/// How the files' names end: of servers that can come back to their port, and of those that cannot.
const KEPT: &str = "secret";
const ONCE: &str = "once";
/// Locked while files are made, locked or removed.
const LOCK: &str = "serve.lock";

/// The file of that kind for the server at `port`.
fn file_name(port: u16, ending: &str) -> String {
    format!("serve-{port}.{ending}")
}

/// The port, if that is the name of a file of that kind.
fn port_of(name: &str, ending: &str) -> Option<u16> {
    name.strip_prefix("serve-")?.strip_suffix(ending)?.strip_suffix('.')?.parse().ok()
}

fn read_file(folder: &PrivateFolder, name: &str) -> io::Result<String> {
    let mut secret = String::new();
    folder.open(name)?.take(LONGEST).read_to_string(&mut secret)?;
    Ok(secret)
}

/// The secret of the server at `port`.
fn read(port: u16, endings: &[&str]) -> Option<String> {
    let folders = PrivateFolder::existing();
    let mut files =
        folders.iter().flat_map(|folder| endings.iter().map(move |ending| (folder, file_name(port, ending))));
    files.find_map(|(folder, name)| read_file(folder, &name).ok())
}

/// The port of the server at `server` (`host:port`), if it is on this machine.
fn port_here(server: &str) -> Option<u16> {
    let host = address::host(server);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    server.rsplit_once(':')?.1.parse().ok().filter(|_| here)
}

/// What the client of the server at `server` (`host:port`) should know if it was told nothing.
pub(crate) fn of(server: &str) -> Option<Secret> {
    Secret::new(read(port_here(server)?, &[KEPT, ONCE])?).ok()
}

/// The file that [`of`] reads: a server that was killed may have left it, and something else listens there now.
pub(crate) fn left_for(server: &str) -> Option<PathBuf> {
    let port = port_here(server)?;
    let folders = PrivateFolder::existing();
    let paths = |folder: &PrivateFolder| [KEPT, ONCE].map(|ending| folder.path(&file_name(port, ending)));
    folders.iter().flat_map(paths).find(|path| path.exists())
}

/// A secret for a server that has none: the one it had before if it is known on which port, else a new one.
///
/// # Errors
/// If there is no randomness to be had.
pub fn make(port: u16) -> io::Result<String> {
    if let Some(secret) = read(port, &[KEPT]).filter(|secret| Secret::new(secret).is_ok()) {
        return Ok(secret);
    }
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Nobody else makes, locks or removes a file in `folder` while this is kept.
fn alone(folder: &PrivateFolder) -> io::Result<File> {
    match folder.create_new(LOCK) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let file = folder.open(LOCK)?;
    file.lock()?;
    Ok(file)
}

/// A secret that was left for clients. What only this run of the server had a use for goes with it.
#[derive(Debug)]
pub struct PublishedSecret {
    /// The locked file, and where it is.
    once: Option<(File, PrivateFolder, String)>,
}

impl Drop for PublishedSecret {
    fn drop(&mut self) {
        if let Some((_locked, folder, name)) = self.once.take()
            && let Ok(_alone) = alone(&folder)
        {
            let _ = folder.remove(&name);
        }
    }
}

/// Leaves the secret of the server at `port` where this user's processes find it; `comes_back`: the port was asked for.
///
/// # Errors
/// If another user's file is in its place, or there is no room.
pub fn leave(port: u16, secret: &str, comes_back: bool) -> io::Result<PublishedSecret> {
    if comes_back && read(port, &[KEPT]).is_some_and(|left| left == secret) {
        return Ok(PublishedSecret { once: None });
    }
    forget(port)?;
    let folder = PrivateFolder::create()?;
    let _alone = alone(&folder)?;
    let name = file_name(port, if comes_back { KEPT } else { ONCE });
    let mut file = folder.create_new(&name)?;
    if !comes_back {
        file.lock()?;
    }
    file.write_all(secret.as_bytes())?;
    Ok(PublishedSecret { once: (!comes_back).then_some((file, folder, name)) })
}

/// Takes away what an earlier server at `port` left: clients would expect the present one to know it.
///
/// # Errors
/// If the system refuses.
pub fn forget(port: u16) -> io::Result<()> {
    for folder in PrivateFolder::existing() {
        for ending in [KEPT, ONCE] {
            folder.remove(&file_name(port, ending))?;
        }
    }
    Ok(())
}

/// Takes away what servers left that were killed, and to which nobody comes back.
pub fn sweep() -> io::Result<()> {
    for folder in PrivateFolder::existing() {
        let _alone = alone(&folder)?;
        let once = folder.names()?.into_iter().filter(|name| port_of(name, ONCE).is_some());
        for name in once {
            if folder.open(&name).is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = folder.remove(&name);
            }
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
        let file = left_for("127.0.0.1:1").unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
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
