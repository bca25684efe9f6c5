//! Numbers and layouts of the kernel's messages, as `linux/fuse.h` of protocol 7.40 has them. All are in the byte order of the
//! machine.
//!
//! What this file must not do: know what an operation does.

use rustix::fs::Stat;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The protocol spoken here; older kernels have a smaller minor version, and both sides use that.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 40;
/// Since then there are two words of flags.
pub(crate) const OLDEST_MINOR: u32 = 36;
/// The folder at the top.
pub(crate) const ROOT: u64 = 1;
/// The bytes of a header in, and of one out.
pub(crate) const IN_HEADER: usize = 40;
pub(crate) const OUT_HEADER: usize = 16;
/// The most that is written at a time, and what a buffer needs beside it.
pub(crate) const MAX_WRITE: usize = 1 << 20;
pub(crate) const BUFFER: usize = MAX_WRITE + 4096;

/// Operations.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
}

/// What both sides can do, said when the session begins.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// The mask of new files' modes is applied here, since a default ACL of the folder replaces it.
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// The second word of flags counts.
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
}

/// Which attributes are to be set.
pub(crate) mod attr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

/// The kernel keeps no pages of the file.
pub(crate) const OPEN_DIRECT_IO: u32 = 1 << 0;
/// The kernel reads and writes the file below by itself.
pub(crate) const OPEN_PASSTHROUGH: u32 = 1 << 7;
/// A lock that is a flock.
pub(crate) const LK_FLOCK: u32 = 1 << 0;
/// The description that ends had a flock.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// Only the data need be on the disk.
pub(crate) const FSYNC_DATA: u32 = 1 << 0;

/// What a request begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A request's fields, one after the other.
#[derive(Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The header, and what follows it.
    pub(crate) fn of(message: &'a [u8]) -> Result<(Header, Self), Errno> {
        let mut fields = Self(message);
        let len = fields.u32()? as usize;
        let opcode = fields.u32()?;
        let (unique, node) = (fields.u64()?, fields.u64()?);
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        if len != message.len() || len < IN_HEADER {
            return Err(Errno::INVAL);
        }
        fields.skip(IN_HEADER - 32)?;
        Ok((Header { opcode, unique, node, uid, gid }, fields))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), Errno> {
        self.0 = self.0.get(bytes..).ok_or(Errno::INVAL)?;
        Ok(())
    }

    /// A name, which ends with a zero byte.
    pub(crate) fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(OsStr::from_bytes(name))
    }

    /// A name in a folder.
    pub(crate) fn entry(&mut self) -> Result<&'a OsStr, Errno> {
        let name = self.name()?;
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
            return Err(Errno::INVAL);
        }
        Ok(name)
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// An answer's fields.
#[derive(Debug, Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn zeros(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }

    fn time(self, value: Duration) -> Self {
        self.u64(value.as_secs())
    }

    fn stat(self, stat: &Stat) -> Self {
        let dev = stat.st_rdev;
        self.u64(stat.st_ino)
            .u64(stat.st_size as u64)
            .u64(stat.st_blocks as u64)
            .u64(stat.st_atime as u64)
            .u64(stat.st_mtime as u64)
            .u64(stat.st_ctime as u64)
            .u32(stat.st_atime_nsec as u32)
            .u32(stat.st_mtime_nsec as u32)
            .u32(stat.st_ctime_nsec as u32)
            .u32(stat.st_mode)
            .u32(stat.st_nlink as u32)
            .u32(stat.st_uid)
            .u32(stat.st_gid)
            .u32(encode_device(rustix::fs::major(dev), rustix::fs::minor(dev)))
            .u32(stat.st_blksize as u32)
            .u32(0)
    }

    /// A file under a name.
    pub(crate) fn entry(self, node: u64, stat: &Stat, cache: Duration) -> Self {
        let timed = self.u64(node).u64(0).time(cache).time(cache);
        timed.u32(cache.subsec_nanos()).u32(cache.subsec_nanos()).stat(stat)
    }

    /// A file's attributes.
    pub(crate) fn attributes(self, stat: &Stat, cache: Duration) -> Self {
        self.time(cache).u32(cache.subsec_nanos()).u32(0).stat(stat)
    }

    /// An open file.
    pub(crate) fn opened(self, handle: u64, flags: u32, backing: u32) -> Self {
        self.u64(handle).u32(flags).u32(backing)
    }
}

/// A device's numbers in one word, as the kernel passes them.
pub(crate) const fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The same back.
pub(crate) const fn decode_device(word: u32) -> (u32, u32) {
    ((word >> 8) & 0xfff, (word & 0xff) | ((word >> 12) & !0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_short_is_refused_and_not_read_past_its_end() {
        let mut message = Body::default().u32(46).u32(op::LOOKUP).u64(7).u64(ROOT).u32(0).u32(0).zeros(8).0;
        message.extend(b"name\0\0");
        let (header, mut fields) = Fields::of(&message).unwrap();
        assert_eq!((header.opcode, header.unique, header.node), (op::LOOKUP, 7, ROOT));
        assert_eq!(fields.entry().unwrap(), "name");
        assert_eq!(fields.entry().unwrap_err(), Errno::INVAL, "an empty name");
        assert_eq!(fields.u32().unwrap_err(), Errno::INVAL, "nothing is left");
        assert!(Fields::of(&message[..45]).is_err(), "the length is another");
        assert!(Fields::of(&message[..20]).is_err(), "a header is longer");
    }

    #[test]
    fn a_name_does_not_lead_out_of_its_folder() {
        for name in ["..", ".", "a/b"] {
            let bytes = [name.as_bytes(), b"\0"].concat();
            assert!(Fields(&bytes).entry().is_err(), "{name}");
        }
    }

    #[test]
    fn devices_survive_their_word() {
        for device in [(8, 1), (259, 70_000), (0xfff, 0xf_ffff)] {
            assert_eq!(decode_device(encode_device(device.0, device.1)), device);
        }
    }
}
