//! The secret of a server that offers this user's own spaces on this machine: made by the server, read by its user's
//! processes without being told to.
//!
//! Spaces of shared memory are their user's alone, by the mode of their files. A server on a loopback address can be reached
//! by every user of the machine, so one that exports such a space asks for a secret. If its owner gave none, it makes
//! one and leaves it beside the spaces, in a file that nobody else can read; clients of the same user find it there. It
//! stays from one start of the server to the next, so that clients can come back.
//!
//! What this file must not do: trust a file that somebody else could have put there.

use super::address;
use lockwright_fabric::backend::shm::space_path;
use lockwright_fabric::backend::tcp::Token;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Bytes of a secret, before they are spelled out.
const BYTES: usize = 32;
/// Longer files are none of ours.
const LONGEST: u64 = 1 << 10;

/// Where the secret of the server at `port` is.
fn path(port: u16) -> io::Result<PathBuf> {
    let beside = space_path(&format!("serve-{port}")).map_err(io::Error::other)?;
    Ok(beside.with_extension("secret"))
}

/// The secret in the file, if it is this user's and nobody else's.
fn read(port: u16) -> io::Result<String> {
    let path = path(port)?;
    let (there, file) = (std::fs::symlink_metadata(&path)?, File::open(&path)?);
    let (meta, me) = (file.metadata()?, std::fs::metadata("/proc/self")?.uid());
    // A link that somebody else put there leads to another file.
    let is_it = there.is_file() && (there.dev(), there.ino()) == (meta.dev(), meta.ino());
    if !is_it || meta.uid() != me || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other("it is not this user's own"));
    }
    let mut secret = String::new();
    file.take(LONGEST).read_to_string(&mut secret)?;
    Ok(secret)
}

/// What the client of the server at `server` (`host:port`) should know if it was told nothing.
pub(crate) fn of(server: &str) -> Option<Token> {
    let host = address::host(server);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    let port = server.rsplit_once(':')?.1.parse().ok().filter(|_| here)?;
    Token::new(read(port).ok()?).ok()
}

/// A secret for a server that has none: the one it had before if it is known on which port, else a new one.
///
/// # Errors
/// If there is no randomness to be had.
pub(crate) fn make(port: u16) -> io::Result<String> {
    if let Ok(secret) = read(port)
        && Token::new(&secret).is_ok()
    {
        return Ok(secret);
    }
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Leaves the secret of the server at `port` where this user's processes find it.
///
/// # Errors
/// If somebody else's file is in its place, or there is no room.
pub(crate) fn leave(port: u16, secret: &str) -> io::Result<()> {
    if read(port).is_ok_and(|left| left == secret) {
        return Ok(());
    }
    forget(port)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path(port)?)?;
    file.write_all(secret.as_bytes())
}

/// Takes away what an earlier server at `port` left: clients would expect the present one to know it.
///
/// # Errors
/// If it is somebody else's.
pub(crate) fn forget(port: u16) -> io::Result<()> {
    match std::fs::remove_file(path(port)?) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_found_by_its_user_on_this_machine_and_kept() {
        let port = 1;
        let secret = make(port).unwrap();
        leave(port, &secret).unwrap();
        assert_eq!(make(port).unwrap(), secret, "a server that is restarted goes on with it");
        for here in ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.1.2.3:1"] {
            assert!(of(here).is_some(), "{here}");
        }
        for elsewhere in ["192.0.2.1:1", "db7:1", "127.0.0.1:2"] {
            assert!(of(elsewhere).is_none(), "{elsewhere}");
        }
        std::fs::set_permissions(path(port).unwrap(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(of("127.0.0.1:1").is_none(), "what others can read is no secret");
        assert_ne!(make(port).unwrap(), secret);
        forget(port).unwrap();
        forget(port).unwrap();
        assert!(of("127.0.0.1:1").is_none());
    }
}
