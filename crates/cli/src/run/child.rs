//! The command as a child that cannot outlive us.
//!
//! The child starts as this program again (`lockwright __exec`), asks the kernel to be killed when its parent dies
//! (PR_SET_PDEATHSIG, which survives an exec), makes sure that the parent has not died before that, gets back the
//! signals as we inherited them, and becomes the command. So nothing runs between fork and exec that would need
//! `unsafe`, and there is no moment at which the command runs without its watch.
//!
//! Commands that are set-user-id or have file capabilities do not die with us: the kernel drops the request for those. On
//! shared memory the lock stays held until they end; through a server it does not. What this does not cover: processes that
//! the command starts and leaves behind.

use super::signals::Inherited;
use super::{UNAVAILABLE, os};
use lockwright_term::say;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

/// Become the command; used by `run` on itself
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process that must be alive
    parent: i32,
    #[command(flatten)]
    inherited: Inherited,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Starts the command. Must be called by the main thread: the kernel watches the thread that forks.
pub(super) fn start(
    command: &[OsString],
    environment: [(&'static str, OsString); 3],
    inherited: &Inherited,
) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg("__exec")
        .arg(std::process::id().to_string())
        .args(inherited.arguments())
        .arg("--")
        .args(command)
        .envs(environment)
        .spawn()
}

/// The child's side.
pub(crate) fn exec(args: &Args) -> ExitCode {
    match become_command(args) {
        Ok(never) => match never {},
        Err(error) => {
            say!("lockwright: cannot execute {}: {error}", args.command[0].display());
            ExitCode::from(UNAVAILABLE)
        }
    }
}

fn become_command(args: &Args) -> io::Result<std::convert::Infallible> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(os("ask to die with the parent"))?;
    if getppid() != Pid::from_raw(args.parent) {
        return Err(io::Error::other("the process that held the lock has died"));
    }
    args.inherited.restore()?;
    let mut command = Command::new(&args.command[0]);
    Err(command.args(&args.command[1..]).exec())
}
