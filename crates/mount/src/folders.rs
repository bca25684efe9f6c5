//! Listing folders. Entries come without their attributes: those are not remembered, so they would be asked for again.

use crate::abi::{Body, FSYNC_DATA, Fields, Header};
use crate::session::Session;
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

type Answer = Result<Body, Errno>;

/// An entry's bytes before its name.
const ENTRY: usize = 24;
/// What is read of a folder at a time.
const READ: usize = 4 << 10;

/// A folder that is listed.
#[derive(Debug)]
pub(crate) struct OpenFolder {
    file: OwnedFd,
    /// Where the file stands; one request at a time moves it.
    at: Mutex<u64>,
}

impl Session {
    pub(crate) fn open_folder(&self, header: Header) -> Answer {
        let file = self.inodes.get(header.node)?.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let handle = self.folders.insert(OpenFolder { file, at: Mutex::new(0) });
        Ok(Body::default().opened(handle, 0, 0))
    }

    pub(crate) fn list_folder(&self, mut fields: Fields<'_>) -> Answer {
        let folder = self.folders.get(fields.u64()?)?;
        let (offset, size) = (fields.u64()?, fields.u32()? as usize);
        let mut at = folder.at.lock().unwrap_or_else(PoisonError::into_inner);
        if *at != offset {
            rustix::fs::seek(&folder.file, SeekFrom::Start(offset))?;
        }
        // Where it stands is not known until it has been sought again: what was read may not all have fitted.
        *at = u64::MAX;
        let mut body = Body(Vec::with_capacity(size));
        let mut buffer = [const { MaybeUninit::uninit() }; READ];
        let mut folder = RawDir::new(&folder.file, &mut buffer);
        let (mut next, mut fitted) = (offset, true);
        while let Some(entry) = folder.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if body.0.is_empty() => return Err(error),
                Err(_) => break,
            };
            let name = entry.file_name().to_bytes();
            let len = (ENTRY + name.len()).next_multiple_of(8);
            if body.0.len() + len > size {
                fitted = false;
                break;
            }
            next = entry.next_entry_cookie();
            body = body.u64(entry.ino()).u64(next).u32(name.len() as u32).u32(kind(entry.file_type()));
            body.0.extend(name);
            body = body.zeros(len - ENTRY - name.len());
            if folder.is_buffer_empty() {
                // What is read next would be asked for anyway, but perhaps not fit.
                break;
            }
        }
        if fitted && folder.is_buffer_empty() {
            *at = next;
        }
        Ok(body)
    }

    pub(crate) fn close_folder(&self, mut fields: Fields<'_>) -> Answer {
        self.folders.remove(fields.u64()?)?;
        Ok(Body::default())
    }

    pub(crate) fn sync_folder(&self, mut fields: Fields<'_>) -> Answer {
        let folder = self.folders.get(fields.u64()?)?;
        synced(&folder.file, fields.u32()?)
    }
}

/// Brings a file to the disk.
pub(crate) fn synced(file: &OwnedFd, flags: u32) -> Answer {
    if flags & FSYNC_DATA != 0 {
        rustix::fs::fdatasync(file)?;
    } else {
        rustix::fs::fsync(file)?;
    }
    Ok(Body::default())
}

/// As folders say it: the upper bits of a mode.
fn kind(kind: FileType) -> u32 {
    if kind == FileType::Unknown { 0 } else { (kind.as_raw_mode() & libc::S_IFMT) >> 12 }
}
