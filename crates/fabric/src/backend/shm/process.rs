//! The process of a client, and whether it has ended.
//!
//! A pid alone is reused. With the start time of the process, in ticks since boot, it names one process until the next
//! boot.
//!
//! | the system's answer | state |
//! |---|---|
//! | `/proc/PID/stat` has the start time, and a thread is left | alive |
//! | `/proc/PID/stat` has another start time, or no thread is left (a zombie) | ended |
//! | `/proc/PID/stat` cannot be read, and `kill(PID, 0)` says ESRCH | ended |
//! | `/proc/PID/stat` cannot be read, whatever else `kill` says | unknown |
//!
//! Locks of ended processes are recovered, so a live process must never count as ended. `/proc/PID/stat` cannot be read
//! without a free file descriptor (EMFILE, ENFILE), nor if the system hides other users' processes (ENOENT); `kill` needs
//! no descriptor and sees them all.

use super::error::SpaceError;
use crate::wait::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::os::unix::fs::MetadataExt;
use std::{fs, io};

/// One process of this host's current boot.
///
/// ```
/// use lockwright_fabric::backend::shm::{Process, ProcessState};
/// let this = Process::with_pid(std::process::id())?.expect("it is running");
/// assert_eq!(this.state(), ProcessState::Alive);
/// let earlier = Process { start: this.start - 1, ..this };
/// assert_eq!(earlier.state(), ProcessState::Ended);
/// # Ok::<_, lockwright_fabric::backend::shm::SpaceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its pid, as long as it lives.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It exists; it may be stopped.
    Alive,
    /// It has ended, or is a zombie.
    Ended,
    /// The system did not say. Treat it as alive: its lease may run out.
    Unknown,
}

/// The time that all processes of the host share: CLOCK_MONOTONIC.
pub(super) fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    Time(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The same in nanoseconds, for callers that record when something happened.
pub fn monotonic_ns() -> u64 {
    now().0
}

/// The host's boot id.
///
/// # Errors
/// If /proc cannot be read.
pub fn boot_id() -> Result<u128, SpaceError> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|error| no_proc(&error))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(|_| no_proc(&Errno::INVAL.into()))
}

/// The pid namespace of this process.
pub(super) fn pid_namespace() -> Result<u64, SpaceError> {
    fs::metadata("/proc/self/ns/pid").map(|link| link.ino()).map_err(|error| no_proc(&error))
}

/// The time namespace of this process: clocks and start times of processes differ between two of them. 0 on kernels without.
pub(super) fn time_namespace() -> Result<u64, SpaceError> {
    match fs::metadata("/proc/self/ns/time") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        link => link.map(|link| link.ino()).map_err(|error| no_proc(&error)),
    }
}

/// What pids and start times of processes, as this process sees them, depend on: the boot, and its namespaces.
#[cfg(feature = "tcp")]
pub(in crate::backend) fn namespaces() -> Result<(u128, u64, u64), SpaceError> {
    Ok((boot_id()?, pid_namespace()?, time_namespace()?))
}

fn no_proc(error: &std::io::Error) -> SpaceError {
    SpaceError::System { doing: "read /proc", error: Errno::from_io_error(error).unwrap_or(Errno::IO) }
}

impl Process {
    /// This process.
    pub(in crate::backend) fn own() -> Result<Self, SpaceError> {
        let pid = std::process::id();
        let stat = Stat::read(pid).map_err(|error| no_proc(&error))?;
        Ok(Self { pid, start: stat.start })
    }

    /// The process that has this pid now; `None` if there is none, or only a zombie.
    ///
    /// # Errors
    /// If the system does not say, for example because this process has no file descriptor left.
    pub fn with_pid(pid: u32) -> Result<Option<Self>, SpaceError> {
        match Stat::read(pid) {
            Ok(stat) => Ok((!stat.ended).then_some(Self { pid, start: stat.start })),
            Err(error) => match state_by_signal(pid) {
                ProcessState::Ended => Ok(None),
                _ => Err(no_proc(&error)),
            },
        }
    }

    /// Whether it has ended.
    pub fn state(self) -> ProcessState {
        match Stat::read(self.pid) {
            Ok(stat) if stat.ended || stat.start != self.start => ProcessState::Ended,
            Ok(_) => ProcessState::Alive,
            Err(_) => state_by_signal(self.pid),
        }
    }

    /// Whether it is known to have ended.
    pub fn has_ended(self) -> bool {
        self.state() == ProcessState::Ended
    }

    /// A descriptor that becomes readable when the process ends. `None` if the process cannot be seen alive, or the system
    /// gives out no pidfd (kernels before 5.3, a sandbox, no free descriptor).
    pub fn pidfd(self) -> Option<OwnedFd> {
        let pidfd = pidfd_open(pid_of(self.pid)?, PidfdFlags::empty()).ok()?;
        // Checked after the descriptor was opened: if the process is alive now, the descriptor is its.
        (self.state() == ProcessState::Alive).then_some(pidfd)
    }
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The state of the process that has `pid` now.
pub(super) fn state_of_pid(pid: u32) -> ProcessState {
    match Stat::read(pid) {
        Ok(stat) if stat.ended => ProcessState::Ended,
        Ok(_) => ProcessState::Alive,
        Err(_) => state_by_signal(pid),
    }
}

/// What can be told without a file descriptor: that no process has the pid.
fn state_by_signal(pid: u32) -> ProcessState {
    let Some(pid) = pid_of(pid) else { return ProcessState::Ended };
    match test_kill_process(pid) {
        Err(Errno::SRCH) => ProcessState::Ended,
        // There is one, and it may be another, or a zombie. (EPERM: there is one of another user.)
        _ => ProcessState::Unknown,
    }
}

/// The state of the process that `pidfd` was opened for.
pub(super) fn state_by_pidfd(pidfd: &OwnedFd) -> ProcessState {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&at_once)) {
        Ok(0) => ProcessState::Alive,
        Ok(_) if fds[0].revents().contains(PollFlags::IN) => ProcessState::Ended,
        _ => ProcessState::Unknown,
    }
}

/// The part of /proc/PID/stat that matters here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    start: u64,
    ended: bool,
}

impl Stat {
    fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The second field is the program's name in brackets and may hold anything, brackets and blanks too.
        let after = text.iter().rposition(|byte| *byte == b')')? + 1;
        let fields: Vec<_> = std::str::from_utf8(&text[after..]).ok()?.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
        // The state is that of the first thread, which can end before the others.
        let ended = matches!(*fields.first()?, "Z" | "X" | "x") && number(17)? <= 1;
        Some(Self { start: number(19)?, ended })
    }
}

/// This process in listings: host and program, which it may call by another name.
pub(super) fn label(program: Option<&str>) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own = || fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let program = program.map_or_else(own, str::to_owned);
    format!("{host} {}", program.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A process that is killed when this is dropped.
    struct Sleeper(Child, Process);

    impl Sleeper {
        fn new() -> Self {
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().unwrap();
            let process = Process::with_pid(child.id()).unwrap().unwrap();
            Self(child, process)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const WITHOUT_DESCRIPTORS: &str = "LOCKWRIGHT_TEST_WITHOUT_DESCRIPTORS";

    #[test]
    fn a_process_is_there_until_it_has_ended_even_as_a_zombie() {
        let own = Process::own().unwrap();
        assert_eq!(own.state(), ProcessState::Alive);
        let earlier = Process { start: own.start - 1, ..own };
        assert_eq!(earlier.state(), ProcessState::Ended, "another process with the same pid");
        let mut sleeper = Sleeper::new();
        let Sleeper(child, process) = &mut sleeper;
        let pidfd = process.pidfd().unwrap();
        assert_eq!([process.state(), state_by_pidfd(&pidfd)], [ProcessState::Alive; 2]);
        child.kill().unwrap();
        while !Stat::read(child.id()).unwrap().ended {
            std::thread::yield_now();
        }
        assert_eq!([process.state(), state_by_pidfd(&pidfd)], [ProcessState::Ended; 2], "a zombie");
        assert_eq!(Process::with_pid(child.id()), Ok(None));
        child.wait().unwrap();
        assert_eq!([process.state(), state_of_pid(process.pid)], [ProcessState::Ended; 2]);
        assert_eq!(Process::with_pid(child.id()), Ok(None));
    }

    #[test]
    fn a_pid_that_no_process_can_have_is_nobodys() {
        for pid in [0, 1 << 31, u32::MAX] {
            assert_eq!(Process { pid, start: 0 }.state(), ProcessState::Ended, "{pid}");
        }
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_until_the_last_one_has() {
        let stat = |state: &str, threads: u64| {
            let line = format!("7 (a) Z b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4321 0 0\n");
            Stat::parse(line.as_bytes()).unwrap()
        };
        assert_eq!(stat("S", 1), Stat { start: 4321, ended: false });
        assert_eq!(stat("Z", 2), Stat { start: 4321, ended: false });
        assert_eq!(stat("Z", 1), Stat { start: 4321, ended: true });
        assert_eq!(stat("X", 0), Stat { start: 4321, ended: true });
        assert_eq!(Stat::parse(b"7 (cut off) S 1 7"), None);
    }

    /// A process of its own, since all threads of a process share its descriptors.
    #[test]
    fn without_descriptors_nothing_is_known_of_a_living_process_but_a_missing_one_has_ended() {
        if std::env::var_os(WITHOUT_DESCRIPTORS).is_some() {
            return look_without_descriptors();
        }
        let name = "backend::shm::process::tests::\
                    without_descriptors_nothing_is_known_of_a_living_process_but_a_missing_one_has_ended";
        let child = Command::new("sh")
            .args(["-c", r#"ulimit -n 32; exec "$0" "$@""#])
            .arg(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(WITHOUT_DESCRIPTORS, "")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    }

    fn look_without_descriptors() {
        let mut sleeper = Sleeper::new();
        let Sleeper(child, process) = &mut sleeper;
        let pidfd = process.pidfd().unwrap();
        let all: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        assert!(!all.is_empty());
        assert_eq!([process.state(), state_of_pid(process.pid)], [ProcessState::Unknown; 2]);
        assert!(!process.has_ended() && process.pidfd().is_none());
        let error = Process::with_pid(process.pid).unwrap_err();
        assert_eq!(error, SpaceError::System { doing: "read /proc", error: Errno::MFILE });
        child.kill().unwrap();
        while state_by_pidfd(&pidfd) != ProcessState::Ended {
            std::thread::yield_now();
        }
        assert_eq!(process.state(), ProcessState::Unknown, "a zombie has its pid");
        child.wait().unwrap();
        assert_eq!(process.state(), ProcessState::Ended);
        assert_eq!(Process::with_pid(process.pid), Ok(None));
    }
}
