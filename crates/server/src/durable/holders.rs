//! Which sessions hold something, or held it: after a restart the server waits for their claims, and for no others.
//!
//! | bytes | |
//! |---|---|
//! | 0..16 | magic |
//! | 16..52 | this boot of the machine |
//! | 52..60 | the run of the server, little-endian |
//! | 60..64 | 1 once every session is in it that may hold something |
//! | 64 + 16 n | the key of session n, or zeros |
//!
//! It is written before a session's first grant, and not forced to the disk: what a killed server has written is there for the
//! next one, as long as the machine is not booted. Whenever anything is amiss the file is not believed, and the server waits
//! out the full grace period. All its space is taken at the start.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"lockwright held\n";
const BOOT: usize = 36;
const HEAD: usize = 64;
const KEY: usize = 16;

/// The file of one run.
#[derive(Debug)]
pub(super) struct Holders {
    file: File,
    path: PathBuf,
    sessions: u32,
}

fn beside(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(".sessions");
    name.into()
}

fn boot() -> Option<[u8; BOOT]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    text.trim().as_bytes().try_into().ok()
}

/// The keys of all who may hold something of what run `run` granted; `None` if that is not known.
pub(super) fn read(state: &Path, run: u64) -> Option<HashSet<u128>> {
    let path = beside(state);
    std::fs::symlink_metadata(&path).ok().filter(|meta| meta.is_file() && meta.len() <= 1 << 24)?;
    let bytes = std::fs::read(path).ok()?;
    let (head, keys) = bytes.split_at_checked(HEAD)?;
    (head == header(run, true)?).then(|| {
        let keys = keys.as_chunks::<KEY>().0.iter().map(|key| u128::from_le_bytes(*key));
        keys.filter(|key| *key != 0).collect()
    })
}

fn header(run: u64, complete: bool) -> Option<[u8; HEAD]> {
    let mut head = [0; HEAD];
    head[..16].copy_from_slice(MAGIC);
    head[16..52].copy_from_slice(&boot()?);
    head[52..60].copy_from_slice(&run.to_le_bytes());
    head[60] = u8::from(complete);
    Some(head)
}

impl Holders {
    /// A file for run `run` and as many sessions, or none if there is no room.
    pub(super) fn begin(state: &Path, run: u64, sessions: u32, complete: bool) -> Option<Self> {
        let path = beside(state);
        let _ = std::fs::remove_file(&path);
        let made = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).ok()?;
            file.write_all(&header(run, complete)?).ok()?;
            file.write_all(&vec![0; KEY * sessions as usize]).ok()?;
            Some(file)
        };
        let made = made();
        if made.is_none() {
            let _ = std::fs::remove_file(&path);
        }
        made.map(|file| Self { file, path, sessions })
    }

    /// From now on every session that may hold something is in it.
    pub(super) fn complete(&self) -> io::Result<()> {
        self.file.write_all_at(&[1], 60)
    }

    /// Session `number` may hold something under this key; zero: it holds nothing any more.
    pub(super) fn put(&self, number: u32, key: u128) -> io::Result<()> {
        if number >= self.sessions {
            return Err(io::Error::other("there is no such session"));
        }
        self.file.write_all_at(&key.to_le_bytes(), HEAD as u64 + KEY as u64 * u64::from(number))
    }

    /// It is not to be believed any more.
    pub(super) fn discard(self) {
        let _ = (self.file.write_all_at(&[0], 60), std::fs::remove_file(&self.path));
    }
}
