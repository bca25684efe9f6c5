//! Open files. Where the kernel can read and write the file below by itself, it is given that; where not, requests come here, and
//! the kernel keeps no pages: another host may have written since.

use crate::abi::{Body, Fields, Header, MAX_WRITE, OPEN_DIRECT_IO, OPEN_PASSTHROUGH};
use crate::folders::synced;
use crate::inodes::Inode;
use crate::session::Session;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

type Answer = Result<Body, Errno>;

/// A file that is open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: OwnedFd,
    pub(crate) inode: Arc<Inode>,
}

/// What is open, by number.
#[derive(Debug)]
pub(crate) struct Handles<T>(RwLock<(HashMap<u64, Arc<T>>, u64)>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(RwLock::new((HashMap::new(), 0)))
    }
}

impl<T> Handles<T> {
    pub(crate) fn insert(&self, open: T) -> u64 {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.1 += 1;
        let handle = all.1;
        all.0.insert(handle, Arc::new(open));
        handle
    }

    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Errno> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.0.get(&handle).map(Arc::clone).ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Errno> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).0.remove(&handle).ok_or(Errno::BADF)
    }
}

/// Whether files are passed to the kernel. Turned off when it turns out that this may not be.
#[derive(Debug)]
pub(crate) struct Passthrough(pub(crate) AtomicBool);

/// What of an open's flags is for the file below. Direct I/O is not: buffers here need not be aligned.
fn below(flags: u32) -> OFlags {
    let kept =
        libc::O_ACCMODE | libc::O_APPEND | libc::O_TRUNC | libc::O_SYNC | libc::O_DSYNC | libc::O_NOATIME;
    OFlags::from_bits_retain(flags & kept as u32)
}

impl Session {
    pub(crate) fn open(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let inode = self.inodes.get(header.node)?;
        let flags = below(fields.u32()?);
        let opened = inode.open(flags);
        // Only its owner may leave a file's time of access alone, and that is not always who serves it.
        let file = match opened {
            Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => inode.open(flags - OFlags::NOATIME)?,
            opened => opened?,
        };
        Ok(self.opened(Body::default(), inode, file))
    }

    pub(crate) fn create(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let parent = self.inodes.get(header.node)?;
        let (flags, mode, mask) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.skip(4)?;
        let name = fields.entry()?;
        let exclusive = flags & libc::O_EXCL as u32 != 0;
        let how = (below(flags) - OFlags::NOATIME, mode, mask);
        let (inode, stat, file) = self.make_file(header, (&parent, name), how, exclusive)?;
        let entry = Body::default().entry(inode.node, &stat, self.cache);
        Ok(self.opened(entry, inode, file))
    }

    fn opened(&self, body: Body, inode: Arc<Inode>, file: OwnedFd) -> Body {
        let mut open = inode.open_state();
        open.handles += 1;
        if open.backing.is_none() && self.passthrough.0.load(Relaxed) {
            match self.device.open_backing(file.as_fd()) {
                Ok(id) => open.backing = Some(id),
                // It may not, or the file system below is itself too deep a stack: another file may be of another.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOTTY) => {
                    self.passthrough.0.store(false, Relaxed);
                }
                Err(_) => {}
            }
        }
        let (flags, backing) = match open.backing {
            Some(id) => (OPEN_PASSTHROUGH, id),
            None => (OPEN_DIRECT_IO, 0),
        };
        drop(open);
        body.opened(self.files.insert(OpenFile { file, inode }), flags, backing)
    }

    /// The last descriptor of an open file is gone.
    pub(crate) fn release(&self, mut fields: Fields<'_>) -> Answer {
        let handle = fields.u64()?;
        fields.skip(4)?;
        let (flags, owner) = (fields.u32()?, fields.u64()?);
        let open = self.files.remove(handle)?;
        self.locks.release(&open.inode, handle, flags, owner);
        let mut state = open.inode.open_state();
        state.handles -= 1;
        if state.handles == 0 {
            if let Some(backing) = state.backing.take() {
                self.device.close_backing(backing);
            }
            let locks = state.locks.take();
            drop(state);
            self.locks.forget(locks);
        }
        Ok(Body::default())
    }

    /// Reads into `buffer`; how many bytes.
    pub(crate) fn read<'a>(
        &self,
        mut fields: Fields<'_>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Errno> {
        let open = self.files.get(fields.u64()?)?;
        let (offset, size) = (fields.u64()?, (fields.u32()? as usize).min(MAX_WRITE));
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let mut filled = 0;
        // Less than was asked for is the end of the file.
        while filled < size {
            match rustix::io::pread(&open.file, &mut buffer[filled..size], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(&buffer[..filled])
    }

    pub(crate) fn write(&self, mut fields: Fields<'_>) -> Answer {
        let open = self.files.get(fields.u64()?)?;
        let (offset, size) = (fields.u64()?, fields.u32()? as usize);
        fields.skip(20)?;
        let bytes = fields.bytes(size)?;
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&open.file, bytes, offset))?;
        Ok(Body::default().u32(written as u32).u32(0))
    }

    pub(crate) fn sync(&self, mut fields: Fields<'_>) -> Answer {
        let open = self.files.get(fields.u64()?)?;
        synced(&open.file, fields.u32()?)
    }

    pub(crate) fn allocate(&self, mut fields: Fields<'_>) -> Answer {
        let open = self.files.get(fields.u64()?)?;
        let (offset, len, mode) = (fields.u64()?, fields.u64()?, fields.u32()?);
        rustix::fs::fallocate(&open.file, FallocateFlags::from_bits_retain(mode), offset, len)?;
        Ok(Body::default())
    }

    pub(crate) fn seek(&self, mut fields: Fields<'_>) -> Answer {
        let open = self.files.get(fields.u64()?)?;
        let (offset, whence) = (fields.u64()?, fields.u32()?);
        let to = match whence as i32 {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        Ok(Body::default().u64(rustix::fs::seek(&open.file, to)?))
    }

    pub(crate) fn copy(&self, mut fields: Fields<'_>) -> Answer {
        let from = self.files.get(fields.u64()?)?;
        let mut from_offset = fields.u64()?;
        fields.skip(8)?;
        let to = self.files.get(fields.u64()?)?;
        let (mut to_offset, len) = (fields.u64()?, fields.u64()?);
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
        let (from, to) = ((&from.file, Some(&mut from_offset)), (&to.file, Some(&mut to_offset)));
        let copied = rustix::fs::copy_file_range(from.0, from.1, to.0, to.1, len)?;
        Ok(Body::default().u32(copied as u32).u32(0))
    }
}
