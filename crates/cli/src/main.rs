//! The `lockwright` command: picks a command, turns its result into an exit code, and keeps errors to one line.
//!
//! Exit codes are those of `lockwright_term`; `run` has its own. What this crate must not do: compile the simulator, the
//! proofs or the baselines. The program `lockwright-lab` has those.

mod bench;
mod break_lock;
mod cluster;
mod doctor;
mod ls;
#[cfg(feature = "manuals")]
mod manuals;
#[cfg(feature = "mount")]
mod mount;
mod run;
mod serve;
mod spaces;
#[cfg(feature = "fiss")]
mod switch;
mod top;

use anyhow::Context;
use clap::{Parser, Subcommand};
use lockwright_term::{exit_code, refuse};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// A lock manager for networks where a round trip costs microseconds
#[derive(Debug, Parser)]
#[command(name = "lockwright", version = version(), max_term_width = 100)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it; how large depends on features")]
enum Command {
    Run(run::Args),
    #[command(name = "__exec", hide = true)]
    Exec(run::child::Args),
    #[cfg(feature = "manuals")]
    #[command(name = "__manuals", hide = true)]
    Manuals(manuals::Args),
    Ls(ls::Args),
    Break(break_lock::Args),
    Top(top::Args),
    Serve(serve::Args),
    #[cfg(feature = "fiss")]
    Switch(switch::Args),
    /// Run a decider (builds with the feature `fiss`)
    #[cfg(not(feature = "fiss"))]
    #[command(disable_help_flag = true)]
    Switch {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<std::ffi::OsString>,
    },
    #[cfg(feature = "mount")]
    Mount(mount::Args),
    /// Mount a folder's files, with locks that come from a space (builds with the feature `mount`)
    #[cfg(not(feature = "mount"))]
    #[command(disable_help_flag = true)]
    Mount {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<std::ffi::OsString>,
    },
    Cluster(cluster::Args),
    Spaces(spaces::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
}

/// Which space a command looks into.
#[derive(Debug, clap::Args)]
struct SpaceArg {
    /// Lock space: `shm:`, `shm:NAME`, `shm:/PATH`, `tcp://HOST:PORT/NAME`, `rdma://HOST:PORT/NAME`, `fiss://HOST:PORT/NAME`
    /// or `cluster://ETCD,ETCD/CLUSTER/NAME`
    #[arg(long, value_name = "SPACE", default_value = "shm:", env = "LOCKWRIGHT_SPACE")]
    space: String,
    #[command(flatten)]
    trust: TrustArgs,
}

/// What a server may want to know of its clients, and they of it.
#[derive(Clone, Debug, Default, clap::Args)]
struct TrustArgs {
    /// File with the secret that the server wants
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// Certificates (PEM) by which the server is known; the connection is encrypted
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// File with the user and the password, as USER:PASSWORD, that etcd wants before it says where cluster:// spaces are
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_ETCD_USER_FILE")]
    etcd_user_file: Option<PathBuf>,
    /// Certificates (PEM) by which etcd is known; the connection to it is encrypted
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_ETCD_CA")]
    etcd_ca: Option<PathBuf>,
    /// Certificate chain and private key (PEM), where etcd wants them of its clients
    #[cfg(feature = "cluster")]
    #[arg(
        long,
        value_name = "CERT,KEY",
        value_delimiter = ',',
        requires = "etcd_ca",
        env = "LOCKWRIGHT_ETCD_CERT"
    )]
    etcd_cert: Vec<PathBuf>,
    /// Device for rdma:// spaces, as NAME, NAME:PORT or NAME:PORT:GID [default: the first that will do]
    #[cfg(feature = "rdma")]
    #[arg(long, value_name = "DEVICE", env = "LOCKWRIGHT_RDMA_DEVICE")]
    rdma_device: Option<lockwright_fabric::backend::rdma::DeviceChoice>,
}

impl TrustArgs {
    fn options(&self) -> anyhow::Result<lockwright::ClientOptions> {
        let read =
            |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut options = lockwright::Client::options();
        if let Some(path) = &self.secret_file {
            options = options.secret(read(path)?);
        }
        if let Some(path) = &self.tls_ca {
            options = options.tls(read(path)?);
        }
        #[cfg(feature = "cluster")]
        if let Some(path) = &self.etcd_user_file {
            let (name, password) = etcd_user(path)?;
            options = options.etcd_user(name, password);
        }
        #[cfg(feature = "cluster")]
        if let Some(path) = &self.etcd_ca {
            options = options.etcd_tls(read(path)?);
        }
        #[cfg(feature = "cluster")]
        match &self.etcd_cert[..] {
            [] => {}
            [chain, key] => options = options.etcd_cert(read(chain)?, read(key)?),
            _ => anyhow::bail!("--etcd-cert wants two files: the certificate chain, and its key"),
        }
        #[cfg(feature = "rdma")]
        if let Some(device) = &self.rdma_device {
            options = options.rdma_device(device.clone());
        }
        Ok(options)
    }
}

/// The user and the password in a file.
#[cfg(feature = "cluster")]
fn etcd_user(path: &PathBuf) -> anyhow::Result<(String, String)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let user = text.trim_end_matches(['\r', '\n']).split_once(':');
    let (name, password) = user.with_context(|| format!("{} is not USER:PASSWORD", path.display()))?;
    Ok((name.to_owned(), password.to_owned()))
}

impl SpaceArg {
    /// The space, or `None` if nobody has made it yet.
    fn look(&self) -> anyhow::Result<Option<lockwright::inspect::Inspector>> {
        match lockwright::inspect::Inspector::open_with(&self.space, &self.trust.options()?) {
            Ok(inspector) => Ok(Some(inspector)),
            Err(lockwright::OpenError::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // For `run`, the code that flock(1) and sysexits.h have taught.
            let is_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
            return refuse(&error, if is_run { run::USAGE } else { 2 });
        }
    };
    // These two have exit codes of their own.
    let command = match cli.command {
        Command::Run(args) => return run::run(args),
        Command::Exec(args) => return run::child::exec(&args),
        command => command,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let result = match &command {
        Command::Run(_) | Command::Exec(_) => unreachable!("done above"),
        #[cfg(feature = "manuals")]
        Command::Manuals(args) => manuals::run(args),
        Command::Ls(args) => ls::run(args, &mut out),
        Command::Break(args) => break_lock::run(args, &mut out),
        Command::Top(args) => top::run(args, &mut out),
        Command::Serve(args) => serve::run(args, &mut out),
        #[cfg(feature = "fiss")]
        Command::Switch(args) => switch::run(args, &mut out),
        #[cfg(not(feature = "fiss"))]
        Command::Switch { .. } => Err(lockwright::OpenError::NO_FISS.into()),
        #[cfg(feature = "mount")]
        Command::Mount(args) => mount::run(args, &mut out),
        #[cfg(not(feature = "mount"))]
        Command::Mount { .. } => {
            Err(anyhow::anyhow!("this build cannot mount: `cargo build --features mount` makes one that can"))
        }
        Command::Cluster(args) => cluster::run(args, &mut out),
        Command::Spaces(args) => spaces::run(args, &mut out),
        Command::Doctor(args) => doctor::run(args, &mut out),
        Command::Bench(args) => bench::run(args, &mut out),
    };
    exit_code(result, out)
}

const EXAMPLES: &str = "Examples:
  lockwright run backup -- rsync -a src dst   run a command while holding the lock `backup`
  lockwright ls                               who holds locks, who waits, since when
  lockwright top                              the hottest locks, live
  lockwright serve                            the same locks for other machines
  lockwright doctor                           what this machine can do

To study the locks (explorer, simulator, experiments): the program lockwright-lab.";

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
}
