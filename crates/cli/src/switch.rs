//! `lockwright switch`: a decider of FissLock on this host, until it is told to stop; and how one is.

use crate::TrustArgs;
use crate::serve::{Events, address, state_file, stop_signals};
use anyhow::{Context, Result};
use lockwright_fabric::backend::tcp::{Secret, Subnet, TlsServer};
use lockwright_server::{DEFAULT_LOCKS, DEFAULT_SWITCH_LISTEN, Switch, SwitchOptions};
use lockwright_term::{Outcome, say};
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Run a decider: it grants locks to clients that keep their holders and waiters themselves (FissLock)
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright switch                                          for this machine, on port 5627 (UDP and TCP)
  lockwright run --space fiss://127.0.0.1/stock job -- cmd   a lock of its space `stock`, made on first use
  lockwright switch --status                                 how the one on this machine is
  lockwright switch --status=10.0.0.7 --json
  lockwright switch --metrics 127.0.0.1:9465                 answers Prometheus on /metrics
  lockwright switch --listen 0.0.0.0:5627 --secret-file secret   for other machines, with a secret that clients must know
  lockwright switch --listen 0.0.0.0:5627 --secret-file secret --allow 10.7.0.0/16   and for those of one rack

Its spaces have mutexes and reader-writer locks. It refuses to listen where other machines can reach it without
--secret-file or --tls-cert/--tls-key; packets carry a checksum under a key that each client gets when it joins.

Restarted, it waits for the clients that were there to come back, as long as their lease (--grace), and goes on with what
they hold. What it must remember for that is in --state; unless told otherwise that is lockwright/switch-PORT.state in
$STATE_DIRECTORY, $XDG_STATE_HOME or ~/.local/state.

Exit codes: 0, it was told to stop (SIGTERM, SIGINT); with --status: 0, it is open, 1, it is not; 2, it could not be
started or asked.")]
pub(crate) struct Args {
    /// Where to listen, for packets (UDP) and for sessions (TCP)
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_SWITCH_LISTEN, value_parser = address)]
    listen: SocketAddr,
    /// Say how the decider there is, and end
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1")]
    status: Option<String>,
    /// File with a secret that clients must know, of 16 bytes or more
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// Certificate chain (PEM) for sessions; packets are not encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// With --status: certificates (PEM) by which the decider is known
    #[arg(long, value_name = "FILE", env = "LOCKWRIGHT_TLS_CA", requires = "status")]
    tls_ca: Option<PathBuf>,
    /// Where clients may be, as 10.7.0.0/16 or 10.7.3.4; what comes from elsewhere is dropped. May be given several times
    #[arg(long, value_name = "SUBNET", value_delimiter = ',')]
    allow: Vec<Subnet>,
    /// Names that can be in use at a time
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LOCKS, value_parser = clap::value_parser!(u64).range(1..=1_680_000))]
    locks: u64,
    /// Seconds a silent client keeps its locks
    #[arg(long, value_name = "SECS", value_parser = crate::run::seconds, default_value = "5")]
    grace: Duration,
    /// Seconds between signs of life of idle clients
    #[arg(long, value_name = "SECS", value_parser = crate::run::seconds, default_value = "1")]
    heartbeat: Duration,
    /// What must outlive a restart is kept in this file; `none`: nothing is
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Never sleep while waiting for packets: takes a CPU, saves a wake-up per grant
    #[arg(long)]
    busy_poll: bool,
    /// Decide in the kernel, at the drivers of these interfaces (XDP); all clients must come by them, over IPv4. Takes root
    #[cfg(feature = "xdp")]
    #[arg(long, value_name = "IFACE", num_args = 1.., conflicts_with = "busy_poll")]
    xdp: Vec<String>,
    /// Where to answer Prometheus
    #[arg(long, value_name = "ADDR", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// What to log on standard error: error, warn, info, debug or trace, or that of a crate, as lockwright_server=debug
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "warn")]
    log: Targets,
    /// Say where it listens, or how it is, as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    if let Some(decider) = &args.status {
        return status(args, decider, out);
    }
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(args.log.clone()).init();
    let events = Events::open(stop_signals()?)?;
    // Files that are named can be pipes, file systems can hang: whatever starting waits for, a signal ends it.
    let told = args.clone();
    let start = move || -> Result<Switch> { Ok(Switch::start(options(&told)?)?) };
    let switch = match events.during("lockwright-start", start)? {
        Ok(switch) => switch?,
        Err(came) => {
            say!("stopped by {came} before it was started");
            return Ok(Outcome::Clean);
        }
    };
    let (address, metrics) = (switch.address(), switch.metrics());
    if args.json {
        let said = json!({
            "listening": address.to_string(),
            "recovering": switch.began_waiting(),
            "metrics": metrics.map(|address| address.to_string()),
        });
        writeln!(out, "{said}")?;
    } else {
        writeln!(out, "deciding on {address}; clients say --space fiss://{address}/NAME")?;
        if switch.began_waiting() {
            writeln!(out, "restarted: waiting for the clients of the last run")?;
        }
        if let Some(metrics) = metrics {
            writeln!(out, "metrics on http://{metrics}/metrics")?;
        }
    }
    out.flush()?;
    let came = events.signal()?;
    let _ = events.during("lockwright-stop", move || drop(switch))?;
    if !args.json {
        say!("stopped by {came}");
    }
    Ok(Outcome::Clean)
}

fn options(args: &Args) -> Result<SwitchOptions> {
    let read =
        |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let secret = args.secret_file.as_ref().map(|path| Ok::<_, anyhow::Error>(Secret::new(read(path)?)?));
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(TlsServer::from_pem(&read(cert)?, &read(key)?)?),
        _ => None,
    };
    Ok(SwitchOptions {
        listen: args.listen,
        secret: secret.transpose()?,
        tls,
        allow: args.allow.clone(),
        locks: args.locks,
        heartbeat: args.heartbeat,
        grace: args.grace,
        state: state_file(args.state.as_ref(), "switch", args.listen.port())?,
        busy_poll: args.busy_poll,
        metrics: args.metrics,
        #[cfg(feature = "xdp")]
        xdp: args.xdp.clone(),
    })
}

fn status(args: &Args, decider: &str, out: &mut impl Write) -> Result<Outcome> {
    #[allow(clippy::needless_update, reason = "features add fields")]
    let trust = TrustArgs {
        secret_file: args.secret_file.clone(),
        tls_ca: args.tls_ca.clone(),
        ..TrustArgs::default()
    };
    let space = format!("fiss://{decider}");
    let inspector = lockwright::inspect::Inspector::open_with(&space, &trust.options()?)?;
    let said = inspector.decider()?.context("it is no decider")?;
    let status: Value = serde_json::from_str(&said).context("the decider's answer cannot be read")?;
    if args.json {
        writeln!(out, "{status}")?;
    } else {
        write_status(&status, out)?;
    }
    Ok(Outcome::clean_if(status["state"] == "open"))
}

fn write_status(status: &Value, out: &mut impl Write) -> Result<()> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    writeln!(out, "{}, in {}, epoch {}", text(&status["state"]), text(&status["by"]), status["epoch"])?;
    writeln!(out, "clients    {} of {}", status["clients"], status["max_clients"])?;
    writeln!(out, "names      {} of {}", status["names"], status["locks"])?;
    writeln!(out, "recoveries {}", status["recoveries"])?;
    let packets = &status["packets"];
    writeln!(out, "packets    {} received, {} sent", packets["received"], packets["sent"])?;
    writeln!(out, "           {} grants, {} passed on", packets["grants"], packets["passed_on"])?;
    let dropped = ["malformed", "forged", "astray"].map(|why| format!("{} {why}", packets[why]));
    writeln!(out, "           {}: dropped", dropped.join(", "))?;
    Ok(())
}
