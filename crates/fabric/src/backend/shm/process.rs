//! Who a process is, and whether it is still there.
//!
//! A pid alone names whoever has it today. With the time the process was started, in ticks since boot, it names one
//! process until the host is started again. Whether that one is alive, a pidfd tells exactly; without pidfds (kernels
//! before 5.3, or a sandbox) `/proc` does.

use super::error::SpaceError;
use crate::wait::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// One process of this host's current run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) pid: u32,
    /// Clock ticks from boot to its start.
    pub(super) start: u64,
}

/// The time that all processes of the host share: CLOCK_MONOTONIC.
pub(super) fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    Time(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Which start of the host this is.
pub(super) fn boot_id() -> Result<u128, SpaceError> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|error| no_proc(&error))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(|_| no_proc(&Errno::INVAL.into()))
}

/// The pid namespace of this process.
pub(super) fn pid_namespace() -> Result<u64, SpaceError> {
    fs::metadata("/proc/self/ns/pid").map(|link| link.ino()).map_err(|error| no_proc(&error))
}

fn no_proc(error: &std::io::Error) -> SpaceError {
    SpaceError::System { doing: "read /proc", error: Errno::from_io_error(error).unwrap_or(Errno::IO) }
}

impl Identity {
    /// This process.
    pub(super) fn own() -> Result<Self, SpaceError> {
        let pid = std::process::id();
        let stat = Stat::of(pid).ok_or(SpaceError::System { doing: "read /proc", error: Errno::NOENT })?;
        Ok(Self { pid, start: stat.start })
    }

    /// Whether the process has ended. A zombie has; a stopped process has not.
    pub(super) fn is_gone(self) -> bool {
        match self.pidfd() {
            Found::Gone => true,
            Found::Open(pidfd) => has_ended(&pidfd),
            Found::Unknown => Stat::of(self.pid).is_none_or(|stat| stat.start != self.start || stat.ended),
        }
    }

    /// A descriptor that becomes readable when the process ends.
    pub(super) fn pidfd(self) -> Found {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return Found::Gone };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => match Stat::of(self.pid) {
                // The descriptor was opened before the look at the start time, so it is that process's, or the
                // process had ended.
                Some(stat) if stat.start == self.start => Found::Open(pidfd),
                _ => Found::Gone,
            },
            Err(Errno::SRCH) => Found::Gone,
            Err(_) => Found::Unknown,
        }
    }
}

/// What a search for a process found.
#[derive(Debug)]
pub(super) enum Found {
    /// It has ended.
    Gone,
    /// It was there a moment ago.
    Open(OwnedFd),
    /// The system does not give out a pidfd.
    Unknown,
}

/// Whether the process of `pidfd` has ended.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&at_once)), Ok(ready) if ready > 0)
}

/// The part of /proc/PID/stat that matters here.
struct Stat {
    start: u64,
    ended: bool,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in brackets and may hold anything, brackets and blanks too.
        let after = text.iter().rposition(|byte| *byte == b')')? + 1;
        let fields: Vec<_> = std::str::from_utf8(&text[after..]).ok()?.split_ascii_whitespace().collect();
        let ended = matches!(*fields.first()?, "Z" | "X" | "x");
        Some(Self { start: fields.get(19)?.parse().ok()?, ended })
    }
}

/// What this process is called in lists: the host's name and the program's.
pub(super) fn label() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    format!("{host} {}", program.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_there_until_it_has_ended_even_as_a_zombie() {
        let own = Identity::own().unwrap();
        assert!(!own.is_gone());
        assert!(Identity { start: own.start + 1, ..own }.is_gone(), "another process with the same pid");
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let stat = Stat::of(child.id()).unwrap();
        let identity = Identity { pid: child.id(), start: stat.start };
        assert!(!identity.is_gone());
        child.kill().unwrap();
        while !Stat::of(child.id()).is_some_and(|stat| stat.ended) {
            std::thread::yield_now();
        }
        assert!(identity.is_gone(), "a zombie");
        child.wait().unwrap();
        assert!(identity.is_gone());
    }
}
