//! `lockwright serve`: lock spaces for other machines, until it is told to stop.

mod cluster;

use anyhow::{Context, Result, anyhow};
use listenfd::ListenFd;
use lockwright_fabric::backend::signals::is_ignored;
use lockwright_server::{DEFAULT_LISTEN, Server, ServerOptions};
use lockwright_term::Outcome;
use lockwright_term::say;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{getsockopt, sockopt::AcceptConn};
use serde_json::json;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Serve lock spaces over TCP and RDMA: its own, and those of this host's shared memory
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright serve                                          for this machine, on port 5625
  lockwright run --space tcp://127.0.0.1/stock job -- cmd   a lock of its space `stock`, made on first use
  lockwright serve --export shm:                            also the locks of this user's shared memory:
  lockwright run --space tcp://127.0.0.1/shm: job -- cmd    contends with `lockwright run job -- cmd`
  head -c 32 /dev/urandom | base64 > secret                 for other machines, with a secret that clients must know:
  lockwright serve --listen 0.0.0.0:5625 --secret-file secret
  lockwright serve --listen 0.0.0.0:5625 --tls-cert cert.pem --tls-key key.pem
  lockwright serve --metrics 127.0.0.1:9464                 answers Prometheus on /metrics
  lockwright serve --http                                   a page to look at, on http://127.0.0.1:5680
  lockwright serve --rdma 10.0.0.7:5626 --secret-file secret over RDMA too (builds with the feature `rdma`)
  lockwright serve --rdma --lend stock                      also memory whose locks clients take by verbs of their own:
  lockwright run --space rdma://127.0.0.1/lent:stock job -- cmd
  lockwright serve --rdma --lend stock,local                which processes of this machine take by CPU instructions:
  lockwright run --space shm:lent:stock job -- cmd          contends with the one above
  lockwright serve --cluster etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod   one of several servers (feature `cluster`):
  lockwright run --space cluster://10.0.0.1,10.0.0.2,10.0.0.3/prod/stock job -- cmd

It refuses to listen where other machines can reach it without --secret-file or --tls-cert/--tls-key. On loopback,
every user of this machine can use it; but with --export or --lend only those who know its secret: that of
--secret-file, or one that it makes and that clients of the same user find by themselves.

Restarted, it waits for those who held locks to claim them (--grace) before it grants anything. What it must remember
for that is in --state; unless told otherwise that is lockwright/serve-PORT.state in $STATE_DIRECTORY,
$XDG_STATE_HOME or ~/.local/state.

Exit codes: 0, it was told to stop (SIGTERM, SIGINT; the second one does not wait for an orderly end); 2, it could not
be started.")]
pub(crate) struct Args {
    /// Where to listen, unless a service manager passes a listening socket on
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN, value_parser = address)]
    listen: SocketAddr,
    /// File with a secret that clients must know, of 16 bytes or more
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve over RDMA too, and listen here for clients that come by it; builds with the feature `rdma` can
    #[arg(long, value_name = "ADDR", value_parser = address, num_args = 0..=1, default_missing_value = "127.0.0.1:5626")]
    rdma: Option<SocketAddr>,
    /// RDMA device, as NAME, NAME:PORT or NAME:PORT:GID [default: the first that will do]
    #[cfg(feature = "rdma")]
    #[arg(long, value_name = "DEVICE", env = "LOCKWRIGHT_RDMA_DEVICE")]
    rdma_device: Option<lockwright_fabric::backend::rdma::DeviceChoice>,
    /// Where to answer Prometheus
    #[arg(long, value_name = "ADDR", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Where to show the locks to a browser: who holds, who waits, for whom, live
    #[arg(long, value_name = "ADDR", value_parser = address, num_args = 0..=1, default_missing_value = "127.0.0.1:5680")]
    http: Option<SocketAddr>,
    /// Seconds a silent client keeps its locks, and a restarted server waits for claims
    #[arg(long, value_name = "SECS", value_parser = crate::run::seconds, default_value = "5")]
    grace: Duration,
    /// Seconds between signs of life of idle clients; silent for three of them, a client is on its own
    #[arg(long, value_name = "SECS", value_parser = crate::run::seconds, default_value = "1")]
    heartbeat: Duration,
    /// What must outlive a restart is kept in this file; `none`: nothing is
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Write down everything that is granted and taken back, for `lockwright-lab check --history FILE`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Space of this host's shared memory to offer to clients that know the secret; may be given several times
    #[arg(long, value_name = "SPACE")]
    export: Vec<String>,
    /// Lend memory for a space, lent:NAME, whose locks clients take by the verbs of their NICs (without --rdma by verbs over TCP,
    /// which this CPU executes: slower than a space of the server's own); may be given several times.
    /// NAME,tree: ranges on trees, in one round trip or a few, as whole units; with unit=N (numbers of a unit, 4096), units=N (of a
    /// range lock, 4096) and names=N (256).
    /// NAME,local[=BUDGET]: processes of this machine are in it, too: they say shm:lent:NAME and take the same locks by CPU
    /// instructions. Names only, no ranges; a side has at most BUDGET (8) grants in a row, and one that waits sees at most two such
    /// turns
    #[arg(long, value_name = "NAME[,tree...|,local...]", value_parser = one_sided_space)]
    lend: Vec<OneSidedSpace>,
    /// The same as `local` for every --lend that says neither `tree` nor `local`
    #[arg(long, value_name = "BUDGET", num_args = 0..=1, default_missing_value = DEFAULT_BUDGET, requires = "lend",
        value_parser = clap::value_parser!(u16).range(1..))]
    local: Option<u16>,
    /// Threads that read connections [default: one for every two cores, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Let no lock stay with the client that used it last, in this space or, without a name, in all; may be given several times
    #[arg(long, value_name = "SPACE", num_args = 0..=1, default_missing_value = "")]
    retain_off: Vec<String>,
    #[command(flatten)]
    cluster: cluster::ClusterArgs,
    /// What to log on standard error: error, warn, info, debug or trace, or that of a crate, as lockwright_server=debug
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "warn")]
    log: Targets,
    /// Say where it listens as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let found =
        text.to_socket_addrs().map_err(|error| format!("not an address such as 127.0.0.1:5625: {error}"))?;
    found.into_iter().next().ok_or_else(|| "the name has no address".to_owned())
}

/// A one-sided space to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OneSidedSpace {
    name: String,
    tree: Option<Tree>,
    /// If processes of this host are in it, too: the budget.
    local: Option<u16>,
}

/// The trees of its ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tree {
    unit: u64,
    units: u64,
    names: u64,
}

/// How names are locked where processes of this host are not in the space.
const HOLDERS: &str = "names by holders, ShiftLock with membership";

impl OneSidedSpace {
    /// With what `--local` says of it.
    fn with(&self, local: Option<u16>) -> Self {
        Self { local: self.local.or(local.filter(|_| self.tree.is_none())), ..self.clone() }
    }

    /// What its locks are, in words.
    fn protocols(&self) -> String {
        match (self.tree, self.local) {
            (_, Some(budget)) => {
                format!("names by qplock-member, the asymmetric lock, budget {budget}; no ranges")
            }
            (None, None) => format!("{HOLDERS}; exact ranges by their records"),
            (Some(Tree { unit, units, .. }), None) => {
                format!("{HOLDERS}; ranges by citron-member, {units} units of {unit}")
            }
        }
    }

    /// The same for programs.
    fn json(&self) -> serde_json::Value {
        let space = format!("lent:{}", self.name);
        match (self.tree, self.local) {
            (_, Some(budget)) => json!({ "space": space, "keyed": "qplock-member", "budget": budget }),
            (None, None) => json!({ "space": space, "keyed": "holders", "ranges": "holders" }),
            (Some(Tree { unit, units, names }), None) => json!({
                "space": space, "keyed": "holders", "ranges": "citron-member",
                "unit": unit, "units": units, "names": names,
            }),
        }
    }

    fn add_to(&self, options: ServerOptions) -> Result<ServerOptions, String> {
        match (self.tree, self.local) {
            (Some(_), Some(_)) => unreachable!("a space is asked for as one or the other"),
            (None, Some(budget)) => options.lend_local(&self.name, budget),
            (None, None) => Ok(options.lend(&self.name)),
            (Some(Tree { unit, units, names }), None) => options.lend_tree(&self.name, unit, units, names),
        }
    }
}

/// Grants that one side of a local space has in a row, unless told otherwise.
const DEFAULT_BUDGET: &str = "8";

/// A name that can stand in an address, and how ranges are kept.
fn one_sided_space(text: &str) -> Result<OneSidedSpace, String> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let name = name.strip_prefix("lent:").unwrap_or(name);
    if name.is_empty() || name.len() > 200 || name.contains(['?', '/', ':', '\n']) {
        return Err("a name of a one-sided space has no `?`, `/`, `:` or `,` in it".to_owned());
    }
    let (mut tree, mut local) = (None, None);
    for (index, part) in parts.enumerate() {
        let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
        match (index, key, value) {
            (0, "tree", None) => tree = Some(Tree { unit: 4096, units: 4096, names: 256 }),
            (0, "local", _) => {
                let budget = value.unwrap_or(DEFAULT_BUDGET).parse().ok().filter(|budget| *budget > 0);
                local = Some(budget.ok_or("a budget is a number from 1 to 65535, as in NAME,local=8")?);
            }
            (0, ..) => return Err("after the name comes `tree`, `local`, or nothing".to_owned()),
            _ => {
                let Some(tree) = &mut tree else { return Err("nothing comes after `local`".to_owned()) };
                match (key, value.and_then(|value| value.parse::<u64>().ok())) {
                    ("unit", Some(value)) => tree.unit = value,
                    ("units", Some(value)) => tree.units = value,
                    ("names", Some(value)) => tree.names = value,
                    _ => return Err(format!("{part} is none of unit=N, units=N and names=N")),
                }
            }
        }
    }
    let space = OneSidedSpace { name: name.to_owned(), tree, local };
    space.add_to(ServerOptions::default()).map(|_| space.clone())
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(args.log.clone()).init();
    let events = Events::open(stop_signals()?)?;
    // Files that are named can be pipes, file systems can hang: whatever starting waits for, a signal ends it.
    let (told, passed) = (args.clone(), passed_socket()?);
    let start = move || -> Result<Server> { Ok(Server::start(options(&told, passed)?)?) };
    let server = match events.during("lockwright-start", start)? {
        Ok(server) => server?,
        Err(came) => {
            say!("stopped by {came} before it was started");
            return Ok(Outcome::Clean);
        }
    };
    let (address, metrics) = (server.address(), server.metrics());
    if args.json {
        let said = json!({
            "listening": address.to_string(),
            "metrics": metrics.map(|address| address.to_string()),
            "http": server.http().map(|address| address.to_string()),
            "rdma": server.rdma().map(|(address, _)| address.to_string()),
            "rdma_device": server.rdma().map(|(_, device)| device),
            "lends": args
                .lend
                .iter()
                .map(|space| space.with(args.local).json())
                .collect::<Vec<_>>(),
            "recovering": server.began_recovering(),
        });
        writeln!(out, "{said}")?;
    } else {
        writeln!(out, "listening on {address}; clients say --space tcp://{address}/NAME")?;
        if let Some(space) = args.cluster.space() {
            writeln!(out, "one of a cluster; clients say --space {space}")?;
        }
        if let Some((rdma, device)) = server.rdma() {
            writeln!(out, "RDMA by {device}; clients say --space rdma://{rdma}/NAME")?;
        }
        let lends_at = match server.rdma() {
            Some((rdma, _)) => format!("rdma://{rdma}"),
            None => format!("tcp://{address}"),
        };
        for space in &args.lend {
            let space = space.with(args.local);
            let (name, protocols) = (&space.name, space.protocols());
            writeln!(out, "lends memory to clients that say --space {lends_at}/lent:{name} ({protocols})")?;
            if space.local.is_some() {
                writeln!(out, "and to processes of this machine that say --space shm:lent:{name}")?;
            }
        }
        if let Some(metrics) = metrics {
            writeln!(out, "metrics on http://{metrics}/metrics")?;
        }
        if let Some(http) = server.http() {
            let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
            writeln!(out, "locks to look at on {scheme}://{http}/")?;
        }
        if server.began_recovering() {
            writeln!(out, "restarted: waiting for those who held locks")?;
        }
    }
    out.flush()?;
    let came = events.signal()?;
    // The second signal does not wait for an orderly end.
    let _ = events.during("lockwright-stop", move || drop(server))?;
    if !args.json {
        say!("stopped by {came}");
    }
    Ok(Outcome::Clean)
}

/// The signals that end a server, blocked from now on. Before any thread is started: they all inherit the mask, and the
/// signals come to this one. A shell's background job inherits SIGINT ignored: the one of the terminal is not meant for it.
pub(crate) fn stop_signals() -> Result<SigSet> {
    let mut signals = SigSet::from(Signal::SIGTERM);
    if !is_ignored(Signal::SIGINT as i32)? {
        signals.add(Signal::SIGINT);
    }
    signals.thread_block().context("cannot block signals")?;
    Ok(signals)
}

/// Signals that end the server, read by a thread of their own.
pub(crate) struct Events {
    signals: Receiver<Signal>,
}

impl Events {
    /// `signals` are blocked in all threads.
    pub(crate) fn open(signals: SigSet) -> Result<Self> {
        let (tell, told) = mpsc::channel();
        let read = move || while signals.wait().is_ok_and(|came| tell.send(came).is_ok()) {};
        spawn("lockwright-signals", read)?;
        Ok(Self { signals: told })
    }

    pub(crate) fn signal(&self) -> Result<Signal> {
        self.signals.recv().context("cannot wait for signals")
    }

    /// A signal that has come by now.
    #[cfg(feature = "mount")]
    pub(crate) fn came(&self) -> Result<Option<Signal>> {
        match self.signals.try_recv() {
            Err(mpsc::TryRecvError::Disconnected) => Err(anyhow!("cannot wait for signals")),
            came => Ok(came.ok()),
        }
    }

    /// Calls `act` on a thread of its own. The error is the signal that came before it was done; then it is left behind, and
    /// ends with the process.
    pub(crate) fn during<T: Send + 'static>(
        &self,
        name: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<std::result::Result<T, Signal>> {
        /// How long a signal can go unnoticed, and an end.
        const LOOK: Duration = Duration::from_millis(5);
        let (tell, told) = mpsc::channel();
        spawn(name, move || drop(tell.send(act())))?;
        loop {
            match told.recv_timeout(LOOK) {
                Ok(done) => return Ok(Ok(done)),
                Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("its thread ended")),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Ok(came) = self.signals.try_recv() {
                return Ok(Err(came));
            }
        }
    }
}

fn spawn(name: &str, act: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(act).map(drop).context("cannot start a thread")
}

/// The socket that a service manager listens on for this server, if there is one (sd_listen_fds(3)).
fn passed_socket() -> Result<Option<TcpListener>> {
    let mut passed = ListenFd::from_env();
    let wrong = "what was passed on is not a socket that listens for TCP";
    match passed.len() {
        0 => Ok(None),
        1 => {
            let socket = passed.take_tcp_listener(0).context(wrong)?;
            let listens = socket.as_ref().is_none_or(|socket| getsockopt(socket, AcceptConn) == Ok(true));
            listens.then_some(socket).context(wrong)
        }
        n => Err(anyhow!(
            "{n} sockets were passed on, and a server listens on one: give the unit one ListenStream="
        )),
    }
}

fn options(args: &Args, passed: Option<TcpListener>) -> Result<ServerOptions> {
    let read =
        |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut options =
        ServerOptions::default().listen(args.listen).grace(args.grace).heartbeat(args.heartbeat);
    let mut port = args.listen.port();
    if let Some(socket) = passed {
        port = socket.local_addr().context("the socket that was passed on has no address")?.port();
        options = options.listener(socket)?;
    }
    if let Some(path) = &args.secret_file {
        options = options.secret(read(path)?)?;
    }
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        options = options.tls(&read(cert)?, &read(key)?)?;
    }
    if let Some(listen) = args.rdma {
        #[cfg(feature = "rdma")]
        {
            options = options.rdma(listen, args.rdma_device.clone().unwrap_or_default());
        }
        #[cfg(not(feature = "rdma"))]
        return Err(anyhow::Error::from(lockwright::OpenError::NO_RDMA)
            .context(format!("cannot serve at {listen} over RDMA")));
    }
    if let Some(threads) = args.threads {
        options = options.threads(threads.into());
    }
    if let Some(metrics) = args.metrics {
        options = options.metrics(metrics);
    }
    if let Some(http) = args.http {
        options = options.http(http);
    }
    if args.cluster.is_asked_for() {
        options = args.cluster.add_to(options)?;
    } else if let Some(path) = state_file(args.state.as_ref(), "serve", port)? {
        options = options.state(path);
    }
    if let Some(path) = &args.record {
        options = options.record(path);
    }
    for space in &args.export {
        if !space.starts_with("shm:") {
            return Err(anyhow!(
                "only spaces of shared memory can be exported, such as shm: or shm:NAME, not {space}"
            ));
        }
        options = options.export(space);
    }
    for space in &args.lend {
        options = space.with(args.local).add_to(options).map_err(anyhow::Error::msg)?;
    }
    for space in &args.retain_off {
        options =
            if space.is_empty() { options.retain(false) } else { options.retain_off_in(space.as_str()) };
    }
    Ok(options)
}

/// Where the state is kept. A server on any free port is a new one each time, and has none.
pub(crate) fn state_file(given: Option<&PathBuf>, program: &str, port: u16) -> Result<Option<PathBuf>> {
    match given {
        Some(path) if path.as_os_str() == "none" => return Ok(None),
        Some(path) => return Ok(Some(path.clone())),
        None if port == 0 => return Ok(None),
        None => {}
    }
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = of("STATE_DIRECTORY")
        .or_else(|| of("XDG_STATE_HOME").map(|home| home.join("lockwright")))
        .or_else(|| of("HOME").map(|home| home.join(".local/state/lockwright")))
        .context(
            "there is no home directory to keep the server's state in: say --state FILE, or --state none",
        )?;
    Ok(Some(folder.join(format!("{program}-{port}.state"))))
}
