//! Which operation a request is for.

use crate::abi::{Body, Fields, Header, op};
use crate::session::{Session, Worker};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// What is sent back.
pub(crate) enum Answer<'a> {
    /// Nothing: the kernel does not wait for an answer.
    Silence,
    /// This.
    Body(Body),
    /// What a worker's buffer has.
    Bytes(&'a [u8]),
}

impl Session {
    /// Serves one request.
    pub(crate) fn serve<'a>(
        &self,
        worker: &Worker,
        header: Header,
        mut fields: Fields<'_>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Answer<'a>, Errno> {
        let done = match header.opcode {
            op::LOOKUP => self.look_up(header, fields),
            op::FORGET => {
                self.inodes.forget(header.node, fields.u64()?);
                return Ok(Answer::Silence);
            }
            op::BATCH_FORGET => {
                let count = fields.u32()?;
                fields.skip(4)?;
                for _ in 0..count {
                    self.inodes.forget(fields.u64()?, fields.u64()?);
                }
                return Ok(Answer::Silence);
            }
            op::GETATTR => self.get_attributes(header),
            op::SETATTR => self.set_attributes(header, fields),
            op::READLINK => self.read_link(header),
            op::SYMLINK => self.symlink(header, fields),
            op::MKNOD => self.make_node(header, fields),
            op::MKDIR => self.make_folder(header, fields),
            op::UNLINK => self.remove(header, fields, AtFlags::empty()),
            op::RMDIR => self.remove(header, fields, AtFlags::REMOVEDIR),
            op::RENAME => self.rename(header, fields, false),
            op::RENAME2 => self.rename(header, fields, true),
            op::LINK => self.link(header, fields),
            op::OPEN => self.open(header, fields),
            op::CREATE => self.create(header, fields),
            op::READ => return self.read(fields, buffer).map(Answer::Bytes),
            op::WRITE => self.write(fields),
            op::RELEASE => self.release(fields),
            op::FSYNC => self.sync(fields),
            op::FALLOCATE => self.allocate(fields),
            op::LSEEK => self.seek(fields),
            op::COPY_FILE_RANGE => self.copy(fields),
            op::STATFS => self.file_system(header),
            op::SETXATTR => self.set_xattr(header, fields),
            op::GETXATTR => self.get_xattr(header, fields),
            op::LISTXATTR => self.list_xattrs(header, fields),
            op::REMOVEXATTR => self.remove_xattr(header, fields),
            op::OPENDIR => self.open_folder(header),
            op::READDIR => self.list_folder(fields),
            op::RELEASEDIR => self.close_folder(fields),
            op::FSYNCDIR => self.sync_folder(fields),
            op::FLUSH => {
                let _handle = fields.u64()?;
                fields.skip(8)?;
                self.locks.flush(&*self.inodes.get(header.node)?, fields.u64()?);
                Ok(Body::default())
            }
            op::GETLK => self.locks.test(&*self.inodes.get(header.node)?, fields),
            op::SETLK => self.locks.set(&*self.inodes.get(header.node)?, fields, None),
            op::SETLKW => {
                let waiting = self.may_wait().then_some(worker);
                match self.locks.set(&*self.inodes.get(header.node)?, fields, waiting) {
                    // It was to wait, and there are too many who do.
                    Err(Errno::AGAIN) => Err(Errno::NOLCK),
                    set => set,
                }
            }
            op::INTERRUPT => return self.interrupt(fields.u64()?).map(|()| Answer::Silence),
            op::DESTROY => Ok(Body::default()),
            op::IOCTL => Err(Errno::NOTTY),
            _ => Err(Errno::NOSYS),
        };
        done.map(Answer::Body)
    }
}
