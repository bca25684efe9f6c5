//! `/dev/fuse`: mounting and unmounting, messages in and out, files that the kernel reads and writes by itself.
//!
//! Root mounts by system call; others by `fusermount3`, which passes the open device back over a socket.
#![allow(unsafe_code)]

use crate::abi::OUT_HEADER;
use crate::{MountError, MountOptions};
use nix::mount::{MntFlags, MsFlags};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `mount` lists it as.
const KIND: &str = "fuse.lockwright";
/// `FUSE_DEV_IOC_BACKING_OPEN` and `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 1, 16 bytes)` and `_IOW(229, 2, 4 bytes)`.
/// Libcs differ in the type of a request.
const BACKING_OPEN: u32 = 0x4010_e501;
const BACKING_CLOSE: u32 = 0x4004_e502;

/// The session's end of the connection to the kernel.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl Device {
    /// A request; the number of its bytes.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    /// An answer, or an error's number.
    pub(crate) fn send(&self, unique: u64, answer: Result<&[u8], Errno>) -> Result<(), Errno> {
        let (error, body): (i32, &[u8]) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error.raw_os_error(), &[]),
        };
        let mut header = [0; OUT_HEADER];
        header[..4].copy_from_slice(&((OUT_HEADER + body.len()) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        // One system call is one answer.
        rustix::io::writev(&self.0, &[IoSlice::new(&header), IoSlice::new(body)]).map(drop)
    }

    /// Gives the kernel a file to read and write by itself.
    pub(crate) fn open_backing(&self, file: BorrowedFd<'_>) -> Result<u32, Errno> {
        /// `struct fuse_backing_map`.
        #[repr(C)]
        struct Map {
            fd: i32,
            flags: u32,
            padding: u64,
        }
        let map = Map { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the kernel reads the structure, which lives until the call is over.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_OPEN as _, &raw const map) };
        u32::try_from(id).map_err(|_| last_error())
    }

    /// Takes it back; files that are open stay so.
    pub(crate) fn close_backing(&self, id: u32) {
        // SAFETY: the kernel reads one number, which lives until the call is over.
        let _ = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_CLOSE as _, &raw const id) };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Mounts, and says by which device.
pub(crate) fn mount(options: &MountOptions, root_mode: u32) -> Result<Device, MountError> {
    let path = Path::new("/dev/fuse");
    let device = match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            return Err(MountError::NoFuse(
                "there is no /dev/fuse (load the kernel module `fuse`)".to_owned(),
            ));
        }
        Err(error) => return Err(MountError::NoFuse(format!("/dev/fuse: {error}"))),
    };
    if !rustix::process::geteuid().is_root() {
        return mount_by_helper(options);
    }
    let other = if options.allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode={:o},user_id=0,group_id=0,default_permissions{other}",
        device.as_raw_fd(),
        root_mode & libc::S_IFMT
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(Some(&options.source), &options.at, Some(KIND), flags, Some(data.as_str())).map_err(
        |error| match error {
            nix::Error::EPERM => MountError::NoFuse(
                "mounting is not permitted here (a container without CAP_SYS_ADMIN?)".to_owned(),
            ),
            nix::Error::ENODEV => {
                MountError::NoFuse("this kernel has no FUSE (load the module `fuse`)".to_owned())
            }
            error => MountError::System { what: "mount", error: error.into() },
        },
    )?;
    Ok(Device(device))
}

/// By `fusermount3`, which may mount for users that may not.
fn mount_by_helper(options: &MountOptions) -> Result<Device, MountError> {
    let system = |what| move |error: std::io::Error| MountError::System { what, error };
    let (ours, theirs) = UnixStream::pair().map_err(system("a socket for fusermount3"))?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())
        .map_err(|error| system("a socket for fusermount3")(error.into()))?;
    let other = if options.allow_other { ",allow_other" } else { "" };
    let source = options.source.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,");
    let said = format!("fsname={source},subtype=lockwright,default_permissions{other}");
    let helper = Command::new("fusermount3")
        .args(["-o", &said, "--"])
        .arg(&options.at)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            MountError::NoFuse(format!(
                "only root mounts without the program fusermount3 (package fuse3): {error}"
            ))
        })?;
    drop(theirs);
    let device = receive_device(&ours);
    let output = helper.wait_with_output().map_err(system("fusermount3"))?;
    match device {
        Some(device) if output.status.success() => Ok(Device(device)),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(MountError::NoFuse(said.lines().next().unwrap_or("fusermount3 failed").to_owned()))
        }
    }
}

fn receive_device(socket: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(std::os::fd::RawFd);
    let received =
        recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC).ok()?;
    let file = received.cmsgs().ok()?.find_map(|message| match message {
        ControlMessageOwned::ScmRights(files) => files.first().copied(),
        _ => None,
    })?;
    // SAFETY: the kernel made the descriptor for us just now, and nobody else knows of it.
    Some(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Unmounts; `detach`: as soon as nobody uses it any more, and out of sight at once.
pub(crate) fn unmount(at: &Path, detach: bool) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if detach { MntFlags::MNT_DETACH } else { MntFlags::empty() };
        return nix::mount::umount2(at, flags).map_err(Into::into);
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-uq").args(detach.then_some("-z")).arg("--").arg(at);
    let status = helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(std::io::ErrorKind::ResourceBusy.into()) }
}

/// Whether a mount of ours is there whose daemon is gone: every step into it fails.
pub(crate) fn is_dead_mount(at: &Path) -> bool {
    let dead = rustix::fs::stat(at).is_err_and(|error| error == Errno::NOTCONN);
    let listed = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = listed.lines().filter(|line| line.contains(&format!(" - {KIND} ")));
    let named = ours.filter_map(|line| line.split(' ').nth(4)).any(|point| Path::new(point) == at);
    dead && named
}
