//! The `lockwright` command: picks a command, turns its result into an exit code, and keeps errors to one line.
//!
//! Exit codes: 0, all is well; 1, something was found (a violation, a claim that does not hold); 2, the command
//! could not do what it was asked to. What this crate must not do: name a protocol. The catalog does.

/// Says something to the user. Nobody has to listen: a closed pipe must not end whoever holds a lock.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod bench;
mod break_lock;
mod doctor;
mod ls;
mod run;
mod serve;
mod spaces;
#[cfg(feature = "study")]
mod study;
mod top;
// Most of them are for what is studied.
#[cfg_attr(not(feature = "study"), allow(dead_code))]
mod units;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A lock manager for networks where a round trip costs microseconds, and the means to study its locks
#[derive(Debug, Parser)]
#[command(name = "lockwright", version = version(), max_term_width = 100)]
#[command(after_help = examples())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    #[command(name = "__exec", hide = true)]
    Exec(run::child::Args),
    Ls(ls::Args),
    Break(break_lock::Args),
    Top(top::Args),
    Serve(serve::Args),
    Spaces(spaces::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    #[cfg(feature = "study")]
    Check(study::check::Args),
    #[cfg(feature = "study")]
    Sim(study::sim::Args),
    #[cfg(feature = "study")]
    Lab(study::lab::Args),
}

/// Which space a command looks into.
#[derive(Debug, clap::Args)]
struct SpaceArg {
    /// Lock space: `shm:`, `shm:NAME`, `shm:/PATH`, `tcp://HOST:PORT/NAME` or `rdma://HOST:PORT/NAME`
    #[arg(long, value_name = "SPACE", default_value = "shm:", env = "LOCKWRIGHT_SPACE")]
    space: String,
    #[command(flatten)]
    trust: TrustArgs,
}

/// What a server may want to know of its clients, and they of it.
#[derive(Clone, Debug, clap::Args)]
struct TrustArgs {
    /// File with the secret that the server wants
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) by which the server is known; the connection is encrypted
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Device for rdma:// spaces, as NAME, NAME:PORT or NAME:PORT:GID [default: the first that will do]
    #[cfg(feature = "rdma")]
    #[arg(long, value_name = "DEVICE", env = "LOCKWRIGHT_RDMA_DEVICE")]
    rdma_device: Option<lockwright::fabric::backend::rdma::DeviceChoice>,
}

impl TrustArgs {
    fn options(&self) -> anyhow::Result<lockwright::ClientOptions> {
        let read =
            |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut options = lockwright::Client::options();
        if let Some(path) = &self.token_file {
            options = options.token(read(path)?)?;
        }
        if let Some(path) = &self.tls_ca {
            options = options.tls(read(path)?);
        }
        #[cfg(feature = "rdma")]
        if let Some(device) = &self.rdma_device {
            options = options.rdma_device(device.clone());
        }
        Ok(options)
    }
}

impl SpaceArg {
    /// The space, or `None` if nobody has made it yet.
    fn look(&self) -> anyhow::Result<Option<lockwright::inspect::Inspector>> {
        match lockwright::inspect::Inspector::open_with(&self.space, &self.trust.options()?) {
            Ok(inspector) => Ok(Some(inspector)),
            Err(lockwright::OpenError::Missing(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Clean,
    Found,
}

impl Verdict {
    fn clean_if(clean: bool) -> Self {
        if clean { Verdict::Clean } else { Verdict::Found }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            return refuse(&error, std::env::args_os().nth(1).is_some_and(|command| command == "run"));
        }
    };
    // These two have exit codes of their own.
    match &cli.command {
        Command::Run(args) => return run::run(args),
        Command::Exec(args) => return run::child::exec(args),
        _ => {}
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let result = match &cli.command {
        Command::Run(_) | Command::Exec(_) => unreachable!("done above"),
        Command::Ls(args) => ls::run(args, &mut out),
        Command::Break(args) => break_lock::run(args, &mut out),
        Command::Top(args) => top::run(args, &mut out),
        Command::Serve(args) => serve::run(args, &mut out),
        Command::Spaces(args) => spaces::run(args, &mut out),
        Command::Doctor(args) => doctor::run(args, &mut out),
        Command::Bench(args) => bench::run(args, &mut out),
        #[cfg(feature = "study")]
        Command::Check(args) => study::check::run(args, &mut out),
        #[cfg(feature = "study")]
        Command::Sim(args) => study::sim::run(args, &mut out),
        #[cfg(feature = "study")]
        Command::Lab(args) => study::lab::run(args, &mut out),
    };
    let result = result.and_then(|verdict| Ok(out.flush().map(|()| verdict)?));
    match result {
        Ok(Verdict::Clean) => ExitCode::SUCCESS,
        Ok(Verdict::Found) => ExitCode::from(1),
        // Whoever reads us has seen enough (`… | head`): not our failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Help and version are answers; everything else that the parser says is cut down to one line.
fn refuse(error: &clap::Error, of_run: bool) -> ExitCode {
    // Whoever runs commands under a lock expects what flock(1) and sysexits.h have taught.
    let usage = ExitCode::from(if of_run { run::USAGE } else { 2 });
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is the only thing that can go wrong here.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            usage
        }
        _ => {
            say!("{}", one_line(&error.to_string()));
            usage
        }
    }
}

/// The first paragraph of the parser's message, and its tip if it has one, in one line.
fn one_line(message: &str) -> String {
    let trimmed = || message.lines().map(str::trim);
    let what: Vec<_> = trimmed().take_while(|line| !line.is_empty()).collect();
    let tip = trimmed().find(|line| line.starts_with("tip:")).map(|tip| format!(" ({tip})"));
    what.join(" ") + &tip.unwrap_or_default()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Rows with their columns aligned.
fn grid<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> io::Result<()> {
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// How long something has been going on, in two parts at most.
fn age(age: Duration) -> String {
    let secs = age.as_secs();
    match secs {
        0 => format!("{} ms", age.as_millis()),
        1..60 => format!("{:.1} s", age.as_secs_f64()),
        60..3600 => format!("{} min {} s", secs / 60, secs % 60),
        3600..86400 => format!("{} h {} min", secs / 3600, secs % 3600 / 60),
        _ => format!("{} d {} h", secs / 86400, secs % 86400 / 3600),
    }
}

/// A line on stderr that says how far a command is, drawn only if that is a terminal.
fn spinner(what: String) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {prefix}: {msg} ({elapsed})")
        .expect("the template is well formed");
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style);
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn examples() -> String {
    let studies = if cfg!(feature = "study") {
        "
  lockwright check --all                      prove every protocol in small cases, and every checker by its mutants
  lockwright sim mcs --clients 240            simulate 240 clients and print what it costs
  lockwright lab run --all --quick            hold the simulator against the papers' figures"
    } else {
        ""
    };
    format!(
        "Examples:
  lockwright run backup -- rsync -a src dst   run a command while holding the lock `backup`
  lockwright ls                               who holds locks, who waits, since when
  lockwright top                              the hottest locks, live
  lockwright serve                            the same locks for other machines
  lockwright doctor                           what this machine can do{studies}"
    )
}

/// The version, with the commit if the build knew it.
fn version() -> &'static str {
    option_env!("LOCKWRIGHT_VERSION").unwrap_or(env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_message_of_the_parser_becomes_one_line() {
        let message = "error: unexpected argument '--lock' found\n\n  tip: a similar argument exists: '--locks'\n\nUsage: …";
        assert_eq!(
            one_line(message),
            "error: unexpected argument '--lock' found (tip: a similar argument exists: '--locks')"
        );
    }
}
