//! Signals as something to read: blocked in all threads, taken from a signalfd by the supervisor.

use super::os;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Signals that are passed on to the command. Those that stop and continue act on us and our group as they always do.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
];

/// The signalfd, with the mask that was there before.
#[derive(Debug)]
pub(crate) struct Inbox {
    fd: SignalFd,
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A child changed its state.
    Child,
    /// One to pass on; `from_terminal` if the kernel sent it to the whole process group.
    Signal { signal: Signal, from_terminal: bool },
}

impl Inbox {
    /// Blocks the signals in this thread and all that it starts, and opens the inbox.
    pub(crate) fn open() -> io::Result<Self> {
        let mut set: SigSet = PASSED_ON.into_iter().collect();
        set.add(Signal::SIGCHLD);
        set.thread_block().map_err(os("block signals"))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&set, flags).map_err(os("make a signalfd"))?;
        Ok(Self { fd })
    }

    /// The next signal, if one has come.
    pub(crate) fn next(&mut self) -> io::Result<Option<Came>> {
        let Some(info) = self.fd.read_signal().map_err(os("read a signal"))? else { return Ok(None) };
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).map_err(os("understand a signal"))?;
        if signal == Signal::SIGCHLD {
            return Ok(Some(Came::Child));
        }
        /// What the kernel, as opposed to a process, puts into `si_code` (SI_KERNEL).
        const FROM_KERNEL: i32 = 0x80;
        Ok(Some(Came::Signal { signal, from_terminal: info.ssi_code == FROM_KERNEL }))
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
