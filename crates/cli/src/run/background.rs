//! `run --for PID`: the lock is held in the background for as long as another process lives, mostly the shell whose script
//! asks for it. So a script has a lock for its rest, as with `exec 9>file; flock 9`.
//!
//! The command starts this program again, waits until that one says that it has the lock, prints the token and ends. Until
//! then the one in the background dies with it. Afterwards the background process does to PID what `run` does to its
//! command: if the lock is lost it gets a signal, and if the background process is killed, on shared memory, the lock stays held
//! until PID has ended.

use super::args::Args;
use super::held::Held;
use super::signals::Inbox;
use super::supervise::{Ended, Loss, sleep};
use super::{BadUsage, os};
use lockwright::Client;
use lockwright_fabric::backend::shm::Process;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid, setsid};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Stdio};

/// The side that is asked: prints the token and says with which code to exit.
pub(super) fn start(args: &Args) -> anyhow::Result<u8> {
    // Before anything is started: a wrong number is to be one line.
    process(args)?;
    let mut holder = Command::new("/proc/self/exe")
        .args(["run", "--holder-of", &std::process::id().to_string()])
        .args(std::env::args_os().skip(2))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut tokens = String::new();
    holder.stdout.take().expect("it is piped").read_to_string(&mut tokens)?;
    if tokens.ends_with('\n') {
        print!("{tokens}");
        io::stdout().flush()?;
        return Ok(0);
    }
    let code = holder.wait()?.code();
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(super::SOFTWARE))
}

fn process(args: &Args) -> anyhow::Result<Process> {
    let pid = args.for_pid.unwrap_or_default();
    let found = if pid > 1 { Process::with_pid(pid)? } else { None };
    found.ok_or_else(|| BadUsage(format!("there is no process {pid} to hold the lock for")).into())
}

/// The side that holds the lock.
pub(super) struct Background {
    parent: Pid,
    pid: Pid,
    ends: OwnedFd,
}

impl Background {
    /// Leaves the terminal, and dies with `parent` until the lock is there.
    pub(super) fn begin(args: &Args, parent: i32) -> anyhow::Result<Self> {
        let process = process(args)?;
        let ends = process
            .pidfd()
            .ok_or_else(|| anyhow::anyhow!("the process {} cannot be watched", process.pid))?;
        prctl::set_pdeathsig(Signal::SIGTERM).map_err(os("ask to die with the parent"))?;
        let background =
            Self { parent: Pid::from_raw(parent), pid: Pid::from_raw(process.pid.cast_signed()), ends };
        background.check_parent()?;
        // It fails for a leader of a group, which has no terminal to leave.
        let _ = setsid();
        Ok(background)
    }

    fn check_parent(&self) -> io::Result<()> {
        match getppid() == self.parent {
            true => Ok(()),
            false => Err(io::Error::other("the process that asked for the lock has died")),
        }
    }

    /// Holds the locks until the process ends, a signal comes, or they are lost.
    pub(super) fn hold(
        &self,
        args: &Args,
        client: &Client,
        held: &Held,
        inbox: &mut Inbox,
    ) -> io::Result<Ended> {
        client.hold_while_process_lives(self.pid.as_raw().cast_unsigned())?;
        prctl::set_pdeathsig(None).map_err(os("live on without the parent"))?;
        self.check_parent()?;
        self.report(held)?;
        let mut loss = Loss::Held;
        loop {
            while let Some(came) = inbox.next()? {
                if came.asks_to_end().is_some() {
                    return Ok(Ended::Stopped { code: 0 });
                }
            }
            let mut ends = [nix::poll::PollFd::new(self.ends.as_fd(), nix::poll::PollFlags::POLLIN)];
            if nix::poll::poll(&mut ends, nix::poll::PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                return Ok(Ended::Exited { code: 0 });
            }
            held.pipe.drain()?;
            loss = loss.next(args, client.stop_time(), self.pid, held);
            sleep(&[held.pipe.reader.as_fd(), inbox.as_fd(), self.ends.as_fd()], loss.deadline())?;
        }
    }

    /// Says that the locks are there, and lets go of what was inherited: a shell that reads our output waits for its end.
    fn report(&self, held: &Held) -> io::Result<()> {
        println!("{}", held.tokens());
        io::stdout().flush()?;
        let null = File::options().write(true).open("/dev/null")?;
        nix::unistd::dup2_stdout(&null).map_err(os("close the output"))?;
        if std::fs::metadata("/proc/self/fd/2").is_ok_and(|stderr| stderr.file_type().is_fifo()) {
            nix::unistd::dup2_stderr(&null).map_err(os("close the output"))?;
        }
        Ok(())
    }
}
