//! `lockwright run`: takes a lock, runs a command, gives the lock back. The letters and habits are those of flock(1).
//!
//! The command is a child of ours with our standard streams, our terminal and our process group. Signals sent to us go on
//! to it. It must not go on unprotected:
//!
//! - if the lock is lost while it runs, it gets SIGTERM, and SIGKILL after a grace period (or we only warn, if told to);
//! - if we die, the kernel kills it ([`child`] says how), and the lock stays held until it is gone: it is our client's
//!   dependent process.
//!
//! Exit codes: the command's own, 128+n if signal n killed it; 1 (or `-E`) if the lock was not to be had in time; 64 for
//! a wrong command line; 69 if the command cannot be executed; 70 if the space cannot be used.

mod args;
mod background;
pub(crate) mod child;
mod held;
mod nested;
mod once;
mod once_file;
mod signals;
mod supervise;

pub(crate) use self::args::{Args, seconds};

use self::args::OnLost;
use self::held::Held;
use self::once::Turn;
use self::supervise::Ended;
use lockwright::inspect::EntryState;
use lockwright::{Client, LockError};
use lockwright_term::say;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Wrong command line (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// The command cannot be executed (EX_UNAVAILABLE).
pub(crate) const UNAVAILABLE: u8 = 69;
/// The space cannot be used (EX_SOFTWARE).
const SOFTWARE: u8 = 70;

/// Between SIGTERM and SIGKILL for a command whose lock is lost, unless told otherwise.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How long a cancelled request is given to leave the queue before this process ends.
const SETTLE: Duration = Duration::from_millis(200);

/// Runs the command and says with which code to exit.
pub(crate) fn run(mut args: Args) -> ExitCode {
    let code = args.understand(std::env::args_os()).map_err(anyhow::Error::new).and_then(|()| {
        if args.test {
            test(&args)
        } else if args.for_pid.is_some() && args.holder_of.is_none() {
            background::start(&args)
        } else {
            try_run(&args)
        }
    });
    match code {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say!("lockwright: {error:#}");
            ExitCode::from(error.downcast_ref::<BadUsage>().map_or(SOFTWARE, |_| USAGE))
        }
    }
}

/// The command line asks for something that cannot be.
#[derive(Debug)]
struct BadUsage(String);

impl std::fmt::Display for BadUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUsage {}

/// `--test`: whether the locks are free, or who has them.
fn test(args: &Args) -> anyhow::Result<u8> {
    let mut holders = held::in_the_way(args)?;
    if holders.iter().any(|holder| holder.state == EntryState::Retained) {
        held::ask_for_retained(args, &holders)?;
        holders = held::in_the_way(args)?;
    }
    for holder in &holders {
        println!("{}", held::describe(holder));
    }
    if holders.is_empty() {
        println!("{}: free", args.shown());
        return Ok(0);
    }
    Ok(args.conflict_exit_code())
}

fn try_run(args: &Args) -> anyhow::Result<u8> {
    refuse_what_protects_nobody(args)?;
    // Before signals are blocked: a file that is named here can be a pipe, and wait.
    let options = args.trust.options()?.lease(args.lease).program(&args.program());
    // Before any thread is started: they all inherit the mask, and signals come to the supervisor alone.
    let mut inbox = signals::Inbox::open()?;
    let background = args.holder_of.map(|parent| background::Background::begin(args, parent)).transpose()?;
    let options = match (args.on_lost, args.kill_after) {
        // The command is not stopped at all.
        (OnLost::Warn, _) => options,
        (OnLost::Term, Some(kill_after)) => options.stop_time(kill_after),
        (OnLost::Term, None) => options.stop_time_at_most(KILL_AFTER),
    };
    let options = match &args.record {
        Some(path) => options.record(path),
        None => options,
    };
    let options = options.open_within(args.wait.unwrap_or_default());
    let began = Instant::now();
    let open = match supervise::wait(options.open(&args.space), &mut inbox, || {})? {
        Ok(open) => open,
        Err(signal) => return Ok(128 + signal),
    };
    let client = open.map_err(|error| match error {
        lockwright::OpenError::Address(_) => anyhow::Error::new(BadUsage(error.to_string())),
        error => error.into(),
    })?;
    let mut patience = args.patience().map(|patience| patience.saturating_sub(began.elapsed()));
    loop {
        let held = match take(args, patience, &client, &mut inbox)? {
            Ok(held) => held,
            Err(code) => return Ok(code),
        };
        if let Some(period) = args.once_per {
            match once::take_turn(args, period, &held, &mut inbox)? {
                Ok(Turn::Due) => {}
                Ok(Turn::Taken(run)) => {
                    held.unlock();
                    if !args.quiet {
                        say!("lockwright: {}: nothing to do, {run}", args.shown());
                    }
                    return Ok(0);
                }
                Err(signal) => return Ok(128 + signal),
            }
        }
        let ended = match &background {
            Some(background) => background.hold(args, &client, &held, &mut inbox)?,
            None => under(args, &client, &held, &mut inbox)?,
        };
        held.unlock();
        match (ended, args.keep_running) {
            (Ended::Lost { .. }, Some(_)) => {
                patience = args.patience();
                say!("lockwright: waiting for {} again", args.shown());
            }
            (Ended::Lost { code } | Ended::Exited { code } | Ended::Stopped { code }, _) => return Ok(code),
        }
    }
}

/// Waits for the locks. The error is the code to exit with.
fn take(
    args: &Args,
    patience: Option<Duration>,
    client: &Client,
    inbox: &mut signals::Inbox,
) -> anyhow::Result<Result<Held, u8>> {
    let asked = Instant::now();
    let acquire = held::begin(client, args, patience)?;
    let explain = || {
        if args.verbose || io::stderr().is_terminal() && !args.quiet {
            say!("lockwright: {}", whom_for(args));
        }
    };
    // Dropping the acquire takes us out of the queue.
    let held = match supervise::wait(acquire, inbox, explain)? {
        Ok(Ok(guards)) => Held::new(args, guards)?,
        Ok(Err(LockError::TimedOut)) => {
            if args.verbose {
                say!("lockwright: failed to get lock {} in time", args.shown());
            }
            client.settle(SETTLE);
            return Ok(Err(args.conflict_exit_code()));
        }
        Ok(Err(error @ (LockError::BadRange { .. } | LockError::Duplicate { .. }))) => {
            return Err(BadUsage(error.to_string()).into());
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(signal) => {
            client.settle(SETTLE);
            return Ok(Err(128 + signal));
        }
    };
    if args.verbose {
        let (name, tokens) = (args.shown(), held.tokens());
        say!("lockwright: got lock {name} after {:.6} s, token {tokens}", asked.elapsed().as_secs_f64());
    }
    Ok(Ok(held))
}

/// Runs the command under the locks, once or time and again, and keeps them for as long as is asked for.
fn under(args: &Args, client: &Client, held: &Held, inbox: &mut signals::Inbox) -> anyhow::Result<Ended> {
    let granted = Instant::now();
    let ended = loop {
        let ended = supervise::run(args, client, held, inbox)?;
        let (Ended::Exited { code }, Some(pause)) = (&ended, args.keep_running) else { break ended };
        if args.verbose {
            say!("lockwright: the command ended with code {code}; it is started again");
        }
        if let Some(ended) = supervise::pause(Instant::now() + pause, held, inbox)? {
            break ended;
        }
    };
    if let (Ended::Exited { .. }, Some(at_least)) = (&ended, args.hold_at_least)
        && let Some(until) = granted.checked_add(at_least)
    {
        // A signal ends the pause, and not with its own code: the command has had its say.
        let _ = supervise::pause(until, held, inbox)?;
    }
    Ok(ended)
}

/// Refuses a lock that would exclude nobody, and one that would wait for itself.
fn refuse_what_protects_nobody(args: &Args) -> anyhow::Result<()> {
    if args.space.starts_with("mem:") {
        return Err(BadUsage(
            "a lock in mem: is known to this process alone and would exclude nobody: say --space shm:, or a server's"
                .to_owned(),
        )
        .into());
    }
    let Some(name) = nested::would_wait_for_itself(args) else { return Ok(()) };
    match args.patience() {
        // It is taken, as -n and -w expect.
        Some(Duration::ZERO) => Ok(()),
        Some(_) => {
            say!("lockwright: this command already runs under the lock {name}, and will not get it again");
            Ok(())
        }
        None => Err(BadUsage(format!(
            "this command already runs under the lock {name}: it would wait for itself"
        ))
        .into()),
    }
}

/// What is waited for, as far as can be seen.
fn whom_for(args: &Args) -> String {
    let holders = held::in_the_way(args).unwrap_or_default();
    let whom = holders.first().map_or_else(|| args.shown(), held::describe);
    format!("waiting for {whom}")
}

/// An error of the system, with what was tried.
fn os(doing: &'static str) -> impl Fn(nix::errno::Errno) -> io::Error {
    move |errno| io::Error::other(format!("cannot {doing}: {errno}"))
}
