//! Signals as something to read: blocked in all threads, taken from a signalfd by the supervisor.
//!
//! What was inherited counts. A signal that the parent process ignores (`nohup`, a shell's background job) stays ignored,
//! by us and by the command. SIGCHLD is the exception: while it is ignored, the kernel keeps no exit code for us. So it is
//! taken as usual here, and given back to the command as it was, with the mask of blocked signals.

use super::os;
use lockwright_fabric::backend::signals::{is_ignored, set_ignored};
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

/// The signalfd, and what was inherited.
#[derive(Debug)]
pub(crate) struct Inbox {
    fd: SignalFd,
    pub(crate) inherited: Inherited,
}

/// What the command is to inherit and this process has changed for itself.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Inherited {
    /// SIGCHLD is ignored
    #[arg(long)]
    ignore_sigchld: bool,
    /// Numbers of the signals that are blocked
    #[arg(long, value_delimiter = ',', value_name = "SIGNALS")]
    blocked: Vec<i32>,
}

impl Inherited {
    /// Finds out what is ignored and blocked, and takes SIGCHLD as usual.
    fn take() -> io::Result<Self> {
        let ignore_sigchld = is_ignored(Signal::SIGCHLD as i32)?;
        set_ignored(Signal::SIGCHLD as i32, false)?;
        let mask = SigSet::thread_get_mask().map_err(os("read the signal mask"))?;
        Ok(Self { ignore_sigchld, blocked: mask.iter().map(|signal| signal as i32).collect() })
    }

    /// As arguments for [`super::child`].
    pub(crate) fn arguments(&self) -> Vec<String> {
        let sigchld = self.ignore_sigchld.then(|| "--ignore-sigchld".to_owned());
        let numbers: Vec<_> = self.blocked.iter().map(i32::to_string).collect();
        let blocked = (!numbers.is_empty()).then(|| format!("--blocked={}", numbers.join(",")));
        sigchld.into_iter().chain(blocked).collect()
    }

    /// Sets it, for the program that this process becomes.
    pub(crate) fn restore(&self) -> io::Result<()> {
        set_ignored(Signal::SIGCHLD as i32, self.ignore_sigchld)?;
        let blocked: SigSet =
            self.blocked.iter().filter_map(|&number| Signal::try_from(number).ok()).collect();
        blocked.thread_set_mask().map_err(os("unblock signals"))
    }
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A child changed its state.
    Child,
    /// One to pass on; `from_terminal` if the kernel sent it to the whole process group.
    Signal { signal: Signal, from_terminal: bool },
}

impl Came {
    /// The signal, if it is one by which people and systems end programs.
    pub(crate) fn asks_to_end(self) -> Option<Signal> {
        let Self::Signal { signal, .. } = self else { return None };
        matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT)
            .then_some(signal)
    }
}

impl Inbox {
    /// Blocks the signals in this thread and all that it starts, and opens the inbox.
    pub(crate) fn open() -> io::Result<Self> {
        let inherited = Inherited::take()?;
        // The kernel would keep one that is ignored and blocked: it is neither read nor blocked.
        let mut set = SigSet::from(Signal::SIGCHLD);
        for signal in PASSED_ON {
            if !is_ignored(signal as i32)? {
                set.add(signal);
            }
        }
        set.thread_block().map_err(os("block signals"))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&set, flags).map_err(os("make a signalfd"))?;
        Ok(Self { fd, inherited })
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
