//! Operations on names and attributes. Whether they are allowed the kernel has decided, by the modes and ACLs that it was told.

use crate::abi::{Body, Fields, Header, attr, decode_device};
use crate::inodes::{Inode, path_of};
use crate::session::Session;
use nix::sys::stat::{Mode as Umask, umask};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

type Answer = Result<Body, Errno>;

impl Session {
    fn entry(&self, inode: &Inode, stat: &Stat) -> Body {
        Body::default().entry(inode.node, stat, self.cache)
    }

    pub(crate) fn look_up(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let parent = self.inodes.get(header.node)?;
        let (inode, stat) = self.inodes.look_up(&parent, fields.entry()?)?;
        Ok(self.entry(&inode, &stat))
    }

    pub(crate) fn get_attributes(&self, header: Header) -> Answer {
        let stat = self.inodes.get(header.node)?.stat()?;
        Ok(Body::default().attributes(&stat, self.cache))
    }

    pub(crate) fn set_attributes(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let inode = self.inodes.get(header.node)?;
        let valid = fields.u32()?;
        fields.skip(4)?;
        let (handle, size) = (fields.u64()?, fields.u64()?);
        fields.skip(8)?;
        let (atime, mtime, _) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (atime_nsec, mtime_nsec, _) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let mode = fields.u32()?;
        fields.skip(4)?;
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        if valid & (attr::UID | attr::GID) != 0 {
            let uid = (valid & attr::UID != 0).then(|| Uid::from_raw(uid));
            let gid = (valid & attr::GID != 0).then(|| Gid::from_raw(gid));
            rustix::fs::chownat(&*inode, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        // After the owner, whose change may clear bits of the mode.
        if valid & attr::MODE != 0 {
            rustix::fs::chmodat(
                rustix::fs::CWD,
                inode.path(),
                Mode::from_raw_mode(mode & 0o7777),
                AtFlags::empty(),
            )?;
        }
        if valid & attr::SIZE != 0 {
            match (valid & attr::FH != 0).then(|| self.files.get(handle)).transpose()? {
                Some(open) => rustix::fs::ftruncate(&open.file, size)?,
                None => rustix::fs::ftruncate(inode.open(OFlags::WRONLY | OFlags::NONBLOCK)?, size)?,
            }
        }
        let time = |set: u32, now: u32, secs: u64, nsec: u32| match (valid & now != 0, valid & set != 0) {
            (true, _) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            (false, true) => Timespec { tv_sec: secs as i64, tv_nsec: i64::from(nsec) },
            (false, false) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        };
        if valid & (attr::ATIME | attr::ATIME_NOW | attr::MTIME | attr::MTIME_NOW) != 0 {
            let times = Timestamps {
                last_access: time(attr::ATIME, attr::ATIME_NOW, atime, atime_nsec),
                last_modification: time(attr::MTIME, attr::MTIME_NOW, mtime, mtime_nsec),
            };
            rustix::fs::utimensat(&*inode, "", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(Body::default().attributes(&inode.stat()?, self.cache))
    }

    pub(crate) fn read_link(&self, header: Header) -> Answer {
        let inode = self.inodes.get(header.node)?;
        Ok(Body(rustix::fs::readlinkat(&*inode, "", Vec::new())?.into_bytes()))
    }

    pub(crate) fn symlink(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let parent = self.inodes.get(header.node)?;
        let (name, target) = (fields.entry()?, fields.name()?);
        rustix::fs::symlinkat(target, &*parent, name)?;
        self.made(header, &parent, name, None)
    }

    pub(crate) fn make_node(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let parent = self.inodes.get(header.node)?;
        let (mode, device, mask) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.skip(4)?;
        let name = fields.entry()?;
        let (major, minor) = decode_device(device);
        let made = masked(mask, || {
            let kind = FileType::from_raw_mode(mode);
            rustix::fs::mknodat(&*parent, name, kind, permissions(mode), rustix::fs::makedev(major, minor))
        });
        made?;
        self.made(header, &parent, name, Some(mode))
    }

    pub(crate) fn make_folder(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let parent = self.inodes.get(header.node)?;
        let (mode, mask) = (fields.u32()?, fields.u32()?);
        let name = fields.entry()?;
        masked(mask, || rustix::fs::mkdirat(&*parent, name, permissions(mode)))?;
        self.made(header, &parent, name, None)
    }

    /// A new file gets its owner, and a number.
    fn made(&self, header: Header, parent: &Inode, name: &OsStr, mode: Option<u32>) -> Answer {
        let (inode, stat) = self.inodes.look_up(parent, name)?;
        let stat = self.given_to(header, parent, inode.as_fd(), stat, mode)?;
        Ok(self.entry(&inode, &stat))
    }

    /// What root has made for another user becomes that user's. In a folder that gives files its group, they keep that.
    fn given_to(
        &self,
        header: Header,
        parent: &Inode,
        file: impl AsFd,
        stat: Stat,
        mode: Option<u32>,
    ) -> Result<Stat, Errno> {
        let group_of_folder = parent.stat()?.st_mode & libc::S_ISGID != 0;
        let gid = if group_of_folder { stat.st_gid } else { header.gid };
        if !self.is_root || (stat.st_uid, stat.st_gid) == (header.uid, gid) {
            return Ok(stat);
        }
        let (uid, gid) = (Uid::from_raw(header.uid), Gid::from_raw(gid));
        rustix::fs::chownat(&file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        if let Some(special) =
            mode.map(|mode| mode & (libc::S_ISUID | libc::S_ISGID)).filter(|bits| *bits != 0)
        {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | special);
            rustix::fs::chmodat(rustix::fs::CWD, path_of(file.as_fd()), mode, AtFlags::empty())?;
        }
        rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH)
    }

    pub(crate) fn remove(&self, header: Header, mut fields: Fields<'_>, flags: AtFlags) -> Answer {
        let parent = self.inodes.get(header.node)?;
        rustix::fs::unlinkat(&*parent, fields.entry()?, flags)?;
        Ok(Body::default())
    }

    pub(crate) fn rename(&self, header: Header, mut fields: Fields<'_>, with_flags: bool) -> Answer {
        let from = self.inodes.get(header.node)?;
        let to = self.inodes.get(fields.u64()?)?;
        let mut flags = RenameFlags::empty();
        if with_flags {
            flags = RenameFlags::from_bits_retain(fields.u32()?);
            fields.skip(4)?;
        }
        let (old, new) = (fields.entry()?, fields.entry()?);
        if flags.is_empty() {
            rustix::fs::renameat(&*from, old, &*to, new)?;
        } else {
            rustix::fs::renameat_with(&*from, old, &*to, new, flags)?;
        }
        Ok(Body::default())
    }

    pub(crate) fn link(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let file = self.inodes.get(fields.u64()?)?;
        let parent = self.inodes.get(header.node)?;
        let name = fields.entry()?;
        rustix::fs::linkat(rustix::fs::CWD, file.path(), &*parent, name, AtFlags::SYMLINK_FOLLOW)?;
        let (inode, stat) = self.inodes.look_up(&parent, name)?;
        Ok(self.entry(&inode, &stat))
    }

    /// Makes a file and opens it; one that is there by now is opened. The number of flags is as `open` takes it.
    pub(crate) fn make_file(
        &self,
        header: Header,
        (parent, name): (&Inode, &OsStr),
        (flags, mode, mask): (OFlags, u32, u32),
        exclusive: bool,
    ) -> Result<(Arc<Inode>, Stat, OwnedFd), Errno> {
        let how = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let made = masked(mask, || {
            rustix::fs::openat(parent, name, how | OFlags::CREATE | OFlags::EXCL, permissions(mode))
        });
        match made {
            Ok(file) => {
                let named =
                    rustix::fs::open(path_of(file.as_fd()), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                let (inode, stat) = self.inodes.enter(named)?;
                let stat = self.given_to(header, parent, inode.as_fd(), stat, Some(mode))?;
                Ok((inode, stat, file))
            }
            Err(Errno::EXIST) if !exclusive => {
                let (inode, stat) = self.inodes.look_up(parent, name)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                    let file = inode.open(flags)?;
                    return Ok((inode, stat, file));
                }
                self.inodes.forget(inode.node, 1);
                Err(Errno::EXIST)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn file_system(&self, header: Header) -> Answer {
        let found = rustix::fs::fstatvfs(&*self.inodes.get(header.node)?)?;
        let counts = [found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree];
        let body = counts.into_iter().fold(Body::default(), Body::u64);
        let (size, unit) = (found.f_bsize as u32, found.f_frsize as u32);
        Ok(body.u32(size).u32(found.f_namemax as u32).u32(unit).zeros(28))
    }

    pub(crate) fn set_xattr(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let inode = self.inodes.get(header.node)?;
        let (size, flags) = (fields.u32()? as usize, fields.u32()?);
        let name = fields.name()?;
        let value = fields.bytes(size)?;
        rustix::fs::setxattr(inode.path(), name, value, XattrFlags::from_bits_retain(flags))?;
        Ok(Body::default())
    }

    pub(crate) fn get_xattr(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let inode = self.inodes.get(header.node)?;
        let size = fields.u32()? as usize;
        fields.skip(4)?;
        let name = fields.name()?;
        sized(size, |buffer| rustix::fs::getxattr(inode.path(), name, buffer))
    }

    pub(crate) fn list_xattrs(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let inode = self.inodes.get(header.node)?;
        let size = fields.u32()? as usize;
        sized(size, |buffer| rustix::fs::listxattr(inode.path(), buffer))
    }

    pub(crate) fn remove_xattr(&self, header: Header, mut fields: Fields<'_>) -> Answer {
        let inode = self.inodes.get(header.node)?;
        rustix::fs::removexattr(inode.path(), fields.name()?)?;
        Ok(Body::default())
    }
}

/// The value, or how long it is if no room was offered.
fn sized(size: usize, read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> Answer {
    let mut value = vec![0; size.min(1 << 16)];
    let len = read(&mut value)?;
    if size == 0 {
        return Ok(Body::default().u32(len as u32).u32(0));
    }
    value.truncate(len);
    Ok(Body(value))
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

/// Makes something under the caller's mask, so that the file system below applies it, or a default ACL instead. Each worker
/// thread has a mask of its own.
fn masked<T>(mask: u32, make: impl FnOnce() -> T) -> T {
    let before = umask(Umask::from_bits_truncate(mask));
    let made = make();
    umask(before);
    made
}
