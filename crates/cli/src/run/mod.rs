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

pub(crate) mod child;
mod nested;
mod signals;
mod supervise;

use crate::SpaceArg;
use clap::ValueEnum;
use lockwright::inspect::{Entry, EntryState};
use lockwright::{Acquire, AnyGuard, Client, LockError};
use lockwright_term::say;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
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

/// Run a command while holding a lock: one at a time, or many readers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright run backup -- /usr/local/bin/backup.sh       wait for the lock, then run
  lockwright run -n backup -- backup.sh                   give up at once if somebody has it (exit 1)
  lockwright run -w 10 -E 75 backup -- backup.sh          wait ten seconds at most, then exit 75
  lockwright run -s config -- cat app.conf                together with other readers
  lockwright run --space tcp://db7/stock audit -- job     a lock of the server on db7
  lockwright run db -- sh -c 'write --fence \"$LOCKWRIGHT_TOKEN\"'   hand the fencing token on

The command sees LOCKWRIGHT_LOCK (the name) and LOCKWRIGHT_TOKEN (a number that rises with every grant). A `run` inside
it that asks for a lock it already runs under is refused, unless both share it.
Whoever waits for more than a second on a terminal (or with --verbose) is told who has the lock.
If this process dies, the command is killed with it. If the lock is lost (this process was stopped for longer
than its lease, its server is gone for longer than that, or somebody broke the lock), the command gets SIGTERM, and
SIGKILL after --kill-after. A server gives a lock to others only after that.

Exit codes: the command's, or 128+n if signal n ended it; 1 (or -E) not to be had in time; 64 wrong usage;
69 cannot execute; 70 the lock space cannot be used.")]
pub(crate) struct Args {
    /// Share the lock with others who share it
    #[arg(short, long, conflicts_with = "exclusive")]
    shared: bool,
    /// Hold the lock alone (the default)
    #[arg(short = 'x', short_alias = 'e', long)]
    exclusive: bool,
    /// Lock only these units of a range lock, for example 0..4096
    #[arg(long, value_name = "A..B", value_parser = range)]
    range: Option<std::ops::Range<u64>>,
    /// Do not wait for the lock
    #[arg(short, long, visible_alias = "nb", conflicts_with = "wait")]
    nonblock: bool,
    /// Wait for this many seconds at most
    #[arg(short, long, visible_alias = "timeout", value_name = "SECS", value_parser = seconds)]
    wait: Option<Duration>,
    /// Exit code if the lock is not to be had in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    conflict_exit_code: u8,
    /// What to do with the command if the lock is lost
    #[arg(long, value_enum, default_value_t = OnLost::Term)]
    on_lost: OnLost,
    /// Seconds between SIGTERM and SIGKILL if the lock is lost [default: 5, or a quarter of the server's lease if that is less]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    kill_after: Option<Duration>,
    /// Write down what happens to the lock, for `lockwright-lab check --history FILE`
    #[arg(long, value_name = "FILE")]
    record: Option<std::path::PathBuf>,
    /// Seconds without a sign of life after which others may take the lock
    #[arg(long, value_name = "SECS", value_parser = seconds, default_value = "10")]
    lease: Duration,
    /// Lock space: `shm:`, `shm:NAME`, `shm:/PATH`, `tcp://HOST:PORT/NAME` or `rdma://HOST:PORT/NAME`
    #[arg(long, value_name = "SPACE", default_value = "shm:", env = "LOCKWRIGHT_SPACE")]
    space: String,
    #[command(flatten)]
    trust: crate::TrustArgs,
    /// Say what happens
    #[arg(long)]
    verbose: bool,
    /// Name of the lock: up to 255 bytes
    name: OsString,
    /// The command and its arguments; no shell is involved
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What becomes of the command when its lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLost {
    /// SIGTERM, then SIGKILL
    Term,
    /// A message; the command goes on, unprotected
    Warn,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (start, end) = text.split_once("..").ok_or("a range is written A..B")?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
    let range = number(start)?..number(end)?;
    if range.is_empty() {
        return Err("the range is empty or reversed".to_owned());
    }
    Ok(range)
}

/// Runs the command and says with which code to exit.
pub(crate) fn run(args: &Args) -> ExitCode {
    match try_run(args) {
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

fn try_run(args: &Args) -> anyhow::Result<u8> {
    refuse_what_protects_nobody(args)?;
    // Before signals are blocked: a file that is named here can be a pipe, and wait.
    let options = args.trust.options()?.lease(args.lease);
    // Before any thread is started: they all inherit the mask, and signals come to the supervisor alone.
    let mut inbox = signals::Inbox::open()?;
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
    let open = match supervise::wait(options.open(&args.space), &mut inbox, || {})? {
        Ok(open) => open,
        Err(signal) => return Ok(128 + signal),
    };
    let client = open.map_err(|error| match error {
        lockwright::OpenError::Address(_) => anyhow::Error::new(BadUsage(error.to_string())),
        error => error.into(),
    })?;
    let asked = Instant::now();
    let acquire = begin(&client, args)?;
    let say = |what: String| {
        if args.verbose {
            say!("lockwright: {what}");
        }
    };
    let explain = || {
        if args.verbose || io::stderr().is_terminal() {
            say!("lockwright: {}", whom_for(args));
        }
    };
    let guard = match supervise::wait_for(acquire, &mut inbox, explain)? {
        supervise::Waited::Granted(guard) => guard,
        supervise::Waited::Refused(LockError::TimedOut) => {
            say(format!("failed to get lock {} in time", args.name.display()));
            client.settle(Duration::from_millis(200));
            return Ok(args.conflict_exit_code);
        }
        supervise::Waited::Refused(error @ LockError::BadRange { .. }) => {
            return Err(anyhow::Error::new(BadUsage(error.to_string())));
        }
        supervise::Waited::Refused(error) => return Err(error.into()),
        supervise::Waited::Signal(signal) => {
            client.settle(Duration::from_millis(200));
            return Ok(128 + signal);
        }
    };
    say(format!(
        "got lock {} after {:.6} s, token {}",
        guard.name(),
        asked.elapsed().as_secs_f64(),
        guard.token()
    ));
    let code = supervise::run(args, &client, &guard, &mut inbox)?;
    if let Err(error) = guard.unlock().wait() {
        say!("lockwright: {error}");
    }
    Ok(code)
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
    if !nested::would_wait_for_itself(args) {
        return Ok(());
    }
    let name = args.name.display();
    match (args.nonblock, args.wait) {
        // It is taken, as -n and -w expect.
        (true, _) => Ok(()),
        (_, Some(_)) => {
            say!("lockwright: this command already runs under the lock {name}, and will not get it again");
            Ok(())
        }
        _ => Err(BadUsage(format!(
            "this command already runs under the lock {name}: it would wait for itself"
        ))
        .into()),
    }
}

/// What is waited for, as far as can be seen.
fn whom_for(args: &Args) -> String {
    let name = args.name.display();
    let space = SpaceArg { space: args.space.clone(), trust: args.trust.clone() };
    let entries = space.look().ok().flatten().and_then(|inspector| inspector.entries().ok());
    let entries = entries.unwrap_or_default();
    let here = |entry: &&Entry| {
        let overlaps = match (&args.range, &entry.range) {
            (Some(mine), Some(theirs)) => mine.start < theirs.end && theirs.start < mine.end,
            (mine, theirs) => mine.is_none() && theirs.is_none(),
        };
        let has = matches!(entry.state, EntryState::Held | EntryState::Retained);
        overlaps && has && entry.name.as_bytes() == args.name.as_bytes()
    };
    match entries.iter().find(here) {
        Some(Entry { pid, program, age, .. }) => {
            format!(
                "waiting for {name}: process {pid} ({program}) has had it for {}",
                lockwright_term::age(*age)
            )
        }
        None => format!("waiting for {name}"),
    }
}

fn begin(client: &Client, args: &Args) -> anyhow::Result<Acquire<AnyGuard>> {
    let name = args.name.as_bytes();
    let patience = if args.nonblock { Some(Duration::ZERO) } else { args.wait };
    let bad_name = |error: lockwright::HandleError| match error {
        lockwright::HandleError::Name(_) => anyhow::Error::new(BadUsage(error.to_string())),
        error => error.into(),
    };
    let acquire = match (&args.range, args.shared) {
        (Some(range), shared) => {
            let lock = client.range_lock(name).map_err(bad_name)?;
            match (shared, patience) {
                (true, None) => lock.read(range.clone()).into_any(),
                (true, Some(patience)) => lock.read_timeout(range.clone(), patience).into_any(),
                (false, None) => lock.write(range.clone()).into_any(),
                (false, Some(patience)) => lock.write_timeout(range.clone(), patience).into_any(),
            }
        }
        (None, shared) => {
            let lock = client.rwlock(name).map_err(bad_name)?;
            match (shared, patience) {
                (true, None) => lock.read().into_any(),
                (true, Some(patience)) => lock.read_timeout(patience).into_any(),
                (false, None) => lock.write().into_any(),
                (false, Some(patience)) => lock.write_timeout(patience).into_any(),
            }
        }
    };
    Ok(acquire)
}

/// What the command is told of its lock.
fn environment(args: &Args, guard: &AnyGuard) -> [(&'static str, OsString); 3] {
    let name = std::ffi::OsStr::from_bytes(guard.name().as_bytes()).to_owned();
    let token = guard.token().to_string().into();
    [("LOCKWRIGHT_LOCK", name), ("LOCKWRIGHT_TOKEN", token), (nested::VARIABLE, nested::with_own(args))]
}

/// An error of the system, with what was tried.
fn os(doing: &'static str) -> impl Fn(nix::errno::Errno) -> io::Error {
    move |errno| io::Error::other(format!("cannot {doing}: {errno}"))
}
