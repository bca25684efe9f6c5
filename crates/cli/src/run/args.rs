//! The command line of `lockwright run`: which locks, how long to wait, what to run, and what to do when a lock is lost.

use super::BadUsage;
use clap::ValueEnum;
use nix::sys::signal::Signal;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Run a command while holding a lock: one at a time, or many readers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright run backup -- /usr/local/bin/backup.sh       wait for the lock, then run
  lockwright run -n backup -- backup.sh                   give up at once if it is taken (exit 1)
  lockwright run --skip backup -- backup.sh               the same, and that is fine (exit 0)
  lockwright run -w 10 -E 75 backup -- backup.sh          wait ten seconds at most, then exit 75
  lockwright run -s config -- cat app.conf                together with other readers
  lockwright run from to -- move-money                    both locks, without deadlock
  lockwright run -j 4 gpu -- train                        four at a time
  lockwright run --once-per 1d backup -- backup.sh        at most once a day, however many hosts fire it
  lockwright run --keep-running leader -- schedulerd      start it again whenever it ends, one in the cluster
  lockwright run --test backup                            is it taken, and by whom? (exit 0 free, 1 taken)
  token=$(lockwright run --for $$ backup) || exit         hold it for the rest of this script
  lockwright run --space tcp://db7/stock audit -- job     a lock of the server on db7
  lockwright run db -- sh -c 'write --fence \"$LOCKWRIGHT_TOKEN\"'   hand the fencing token on

The command sees LOCKWRIGHT_LOCK (the name) and LOCKWRIGHT_TOKEN (a number that rises with every grant); of several locks,
the names on lines of their own, and the tokens with blanks between them, in the order given. A `run` inside it that asks
for a lock it already runs under is refused, unless both share it.
After a second of waiting on a terminal (or with --verbose) it says who has the lock.
If this process dies, the command is killed with it. If a lock is lost (this process was stopped for longer
than its lease, its server is gone for longer than that, or an administrator broke it), the command gets SIGTERM (or
--signal), and SIGKILL after --kill-after. A server gives a lock to others only after that.

Exit codes: the command's, or 128+n if signal n ended it; 1 (or -E) not to be had in time; 64 wrong usage;
69 cannot execute; 70 the lock space cannot be used.")]
pub(crate) struct Args {
    /// Share the lock with others who share it
    #[arg(short, long, conflicts_with = "exclusive")]
    pub(super) shared: bool,
    /// Hold the lock alone (the default)
    #[arg(short = 'x', short_alias = 'e', long)]
    exclusive: bool,
    /// Lock only these units of a range lock, for example 0..4096
    #[arg(long, value_name = "A..B", value_parser = range)]
    pub(super) range: Option<Range<u64>>,
    /// Let N run at a time: the name is that of a semaphore with N permits, of which this takes one
    #[arg(short = 'j', long, value_name = "N", conflicts_with_all = ["shared", "exclusive", "range"],
          value_parser = clap::value_parser!(u64).range(1..=lockwright::Semaphore::MAX_PERMITS))]
    pub(super) jobs: Option<u64>,
    /// Do not wait for the lock
    #[arg(short, long, visible_alias = "nb", conflicts_with = "wait")]
    pub(super) nonblock: bool,
    /// Wait for this many seconds at most
    #[arg(short, long, visible_alias = "timeout", value_name = "SECS", value_parser = seconds)]
    pub(super) wait: Option<Duration>,
    /// If the lock is not to be had in time (at once, without -w), do nothing and exit 0
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(super) skip: bool,
    /// Run the command at most once in this time, counted from start to start, however many hosts fire it and however soon it
    /// ends: else do nothing, say so, and exit 0. A number with s, m, h, d or w, as in 90m or 1d12h. Fired by a clock, leave some
    /// room: 23h for a job of every day. Who runs it is written down first: with the lock at its server, or for `shm:` in a file
    /// below ~/.local/state/lockwright
    #[arg(long, value_name = "TIME", value_parser = period,
          conflicts_with_all = ["shared", "range", "jobs", "test", "for_pid", "keep_running"])]
    pub(super) once_per: Option<Duration>,
    /// Say nothing if there is nothing to do: the command was run already, or the lock is not to be had
    #[arg(short, long, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Exit code if the lock is not to be had in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    conflict_exit_code: u8,
    /// Run nothing: say whether the lock is free (exit 0) or who has it (exit 1, or -E). A lock that is retained by a client of a
    /// server is asked for to find out, and let go at once
    #[arg(long, conflicts_with_all = ["wait", "nonblock", "skip", "for_pid", "keep_running", "shell"])]
    pub(super) test: bool,
    /// Run nothing: hold the lock in the background until the process PID ends, and print the token. In a script: `--for $$`
    #[arg(long = "for", value_name = "PID", conflicts_with_all = ["keep_running", "hold_at_least", "shell"])]
    pub(super) for_pid: Option<u32>,
    /// The `run --for` that waits for the word that the lock is there
    #[arg(long, hide = true, requires = "for_pid")]
    pub(super) holder_of: Option<i32>,
    /// When the command ends, start it again after SECS (1), until a signal ends this. If the lock is lost, wait for it again
    #[arg(long, value_name = "SECS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = seconds)]
    pub(super) keep_running: Option<Duration>,
    /// Keep the lock for this many seconds at least, even if the command ends sooner
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(super) hold_at_least: Option<Duration>,
    /// What to do with the command if the lock is lost
    #[arg(long, value_enum, default_value_t = OnLost::Term)]
    pub(super) on_lost: OnLost,
    /// The signal that the command gets if the lock is lost, before SIGKILL: TERM, INT, USR1, …
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    pub(super) signal: Signal,
    /// Seconds between that signal and SIGKILL [default: 5, or a quarter of the server's lease if that is less]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(super) kill_after: Option<Duration>,
    /// Write down what happens to the lock, for `lockwright-lab check --history FILE`
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Seconds without a sign of life after which others may take the lock
    #[arg(long, value_name = "SECS", value_parser = seconds, default_value = "10")]
    pub(super) lease: Duration,
    /// Lock space: `shm:`, `shm:NAME`, `shm:/PATH`, `tcp://HOST:PORT/NAME` or `rdma://HOST:PORT/NAME`
    #[arg(long, value_name = "SPACE", default_value = "shm:", env = "LOCKWRIGHT_SPACE")]
    pub(super) space: String,
    #[command(flatten)]
    pub(super) trust: crate::TrustArgs,
    /// Say what happens
    #[arg(long)]
    pub(super) verbose: bool,
    /// Run this line by sh(1) instead of a command
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    shell: Option<OsString>,
    /// As in flock(1): the command inherits nothing of the lock, with or without it
    #[arg(short = 'o', long, hide = true)]
    close: bool,
    /// Name of the lock, up to 255 bytes; before `--` there can be several
    name: OsString,
    /// The command and its arguments; no shell is involved
    #[arg(required_unless_present_any = ["test", "for_pid", "shell"], trailing_var_arg = true,
          allow_hyphen_values = true, value_name = "CMD")]
    words: Vec<OsString>,
    /// What the words mean; see [`Args::understand`].
    #[arg(skip)]
    pub(super) names: Vec<OsString>,
    #[arg(skip)]
    pub(super) command: Vec<OsString>,
}

/// What becomes of the command when its lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnLost {
    /// SIGTERM, then SIGKILL
    Term,
    /// A message; the command goes on, unprotected
    Warn,
}

impl Args {
    /// Tells names from the command. `line` is the whole command line: what stands before its first `--` are names; without
    /// one, the first word is the name.
    pub(super) fn understand(&mut self, line: impl IntoIterator<Item = OsString>) -> Result<(), BadUsage> {
        let runs_nothing = self.test || self.for_pid.is_some();
        let behind: Option<Vec<_>> = {
            let mut line = line.into_iter().skip_while(|word| word != "--");
            line.next().map(|_| line.collect())
        };
        let mut names = vec![self.name.clone()];
        let mut command = self.words.clone();
        match behind {
            Some(behind) if command.len() > behind.len() => {
                command.truncate(command.len() - behind.len() - 1);
                names.append(&mut command);
                command = behind;
            }
            None if runs_nothing || self.shell.is_some() => names.append(&mut command),
            _ => {}
        }
        match (&self.shell, command.is_empty()) {
            (Some(line), true) => {
                command = [OsStr::new("sh"), OsStr::new("-c"), line].map(OsStr::to_owned).into();
            }
            (Some(_), false) => return Err(BadUsage("either -c LINE or a command, not both".to_owned())),
            (None, false) if runs_nothing => {
                return Err(BadUsage("--test and --for run no command".to_owned()));
            }
            _ => {}
        }
        if names.len() > 1 && self.range.is_some() {
            return Err(BadUsage("--range is of one lock: give one name".to_owned()));
        }
        if names.len() > 1 && self.once_per.is_some() {
            return Err(BadUsage("--once-per is of one lock: give one name".to_owned()));
        }
        (self.names, self.command) = (names, command);
        Ok(())
    }

    /// How long to wait for the lock; `None` without end.
    pub(super) fn patience(&self) -> Option<Duration> {
        let at_once = self.nonblock || self.skip && self.wait.is_none();
        if at_once { Some(Duration::ZERO) } else { self.wait }
    }

    /// The exit code if the lock is not to be had in time.
    pub(super) const fn conflict_exit_code(&self) -> u8 {
        if self.skip { 0 } else { self.conflict_exit_code }
    }

    /// What the listing shows: the command, without the folder that it is in.
    pub(super) fn program(&self) -> String {
        let word = |word: &OsString| Path::new(word).file_name().unwrap_or(word).display().to_string();
        match (self.for_pid, self.command.first()) {
            (Some(pid), _) => format!("run --for {pid}"),
            (None, first) => first.map(word).unwrap_or_default(),
        }
    }

    /// All names, for a reader.
    pub(super) fn shown(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| name.display().to_string()).collect();
        names.join(", ")
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// A time with units, the largest first: `1d12h`.
fn period(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no time such as 90m, 1d or 1d12h");
    let (mut rest, mut secs, mut smallest) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let (number, behind) = rest.split_at(digits);
        let unit = match behind.as_bytes()[0] {
            b'w' => 7 * 86_400,
            b'd' => 86_400,
            b'h' => 3_600,
            b'm' => 60,
            b's' => 1,
            _ => return Err(bad()),
        };
        if unit >= smallest {
            return Err(bad());
        }
        smallest = unit;
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(bad)?;
        secs = secs.checked_add(part).ok_or_else(bad)?;
        rest = &behind[1..];
    }
    if secs == 0 { Err(bad()) } else { Ok(Duration::from_secs(secs)) }
}

fn signal(text: &str) -> Result<Signal, String> {
    let known = match text.parse::<i32>() {
        Ok(number) => Signal::try_from(number).ok(),
        Err(_) => {
            let name = text.to_uppercase();
            Signal::from_str(&format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name))).ok()
        }
    };
    known.ok_or_else(|| "no such signal".to_owned())
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (start, end) = text.split_once("..").ok_or("a range is written A..B")?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
    let range = number(start)?..number(end)?;
    if range.is_empty() {
        return Err("the range is empty or reversed".to_owned());
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// The names, and the command.
    fn understood(line: &str) -> Result<(Vec<OsString>, Vec<OsString>), String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut args = Line::try_parse_from(&words).map_err(|error| error.to_string())?.args;
        args.understand(words).map_err(|error| error.to_string())?;
        Ok((args.names, args.command))
    }

    fn words(text: &str) -> Vec<OsString> {
        text.split_ascii_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn names_stand_before_the_dashes_and_without_them_there_is_one() {
        for (line, names, command) in [
            ("run a -- cmd", "a", "cmd"),
            ("run a -- cmd -- x", "a", "cmd -- x"),
            ("run a cmd -x", "a", "cmd -x"),
            ("run a b -- cmd", "a b", "cmd"),
            ("run -n a b c -- cmd -n -- y", "a b c", "cmd -n -- y"),
            ("run a -n -- cmd", "a", "cmd"),
            ("run --test a", "a", ""),
            ("run --test a b", "a b", ""),
            ("run --for 7 a b", "a b", ""),
        ] {
            assert_eq!(understood(line), Ok((words(names), words(command))), "{line}");
        }
        let (names, command) = understood("run a -c echo").unwrap();
        assert_eq!((names, command), (words("a"), words("sh -c echo")));
        for bad in ["run a", "run", "run --test a -- cmd", "run -c x a -- cmd", "run --range 0..1 a b -- cmd"]
        {
            assert!(understood(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn periods_have_units_the_largest_first() {
        for (text, secs) in
            [("45s", 45), ("90m", 5400), ("1d", 86_400), ("1d12h", 129_600), ("2w", 1_209_600)]
        {
            assert_eq!(period(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for bad in ["", "1", "d", "0s", "1h1d", "1d1d", "1.5d", "-1d", "1y", "99999999999999999999s", "1d "] {
            assert!(period(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(signal(text), Ok(Signal::SIGTERM));
        }
        assert!(signal("NOSUCH").is_err() && signal("0").is_err());
    }
}
