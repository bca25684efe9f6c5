//! A server of lock spaces: what `lockwright serve` runs, and what a program can run inside itself.
//!
//! It holds spaces of its own, decided by the [combiner](lockwright_locks::combiner), and can offer the spaces of this
//! host's shared memory to clients elsewhere. `docs/serve.md` says what happens when what breaks.
//!
//! | file | |
//! |---|---|
//! | `options` | what it is told before it starts |
//! | `workers` | the threads that read connections |
//! | `dispatcher` | receives requests, queues them, and applies them in batches |
//! | `lock_table`, `session` | decides who holds what: sessions, requests, grants, claims |
//! | `socket_owner` | whose a connection over loopback is |
//! | `directory` | names |
//! | `durable` | what must outlive a restart |
//! | `exported` | spaces of shared memory |
//! | `inspection` | who holds and waits, for people |
//! | `one_sided` | spaces in memory whose locks clients take by verbs of their own |
//! | `rdma` | the same dispatcher behind queue pairs |
//! | `totals`, `metrics` | counts, and Prometheus |
//! | `page`, `http` | the locks in a browser |
//! | `cluster` | one of several servers |
//! | `switch` | not a server of spaces: a decider of FissLock, what `lockwright switch` runs |
//! | `bare` | all this without connections, to be measured |
//! | `machine` | the lock table and what it writes alone, to be explored |
//!
//! A request's way: `tcp::Server` reads a frame, `dispatcher` decodes it (`lockwright::wire`), queues and drains it,
//! `lock_table` applies it and encodes the response into the connection's buffer.

#![cfg(target_os = "linux")]

mod bare;
#[cfg(feature = "cluster")]
mod cluster;
mod combining;
#[cfg(test)]
mod crossing_tests;
mod directory;
mod dispatcher;
mod durable;
mod exported;
mod http;
mod inspection;
mod lock_table;
mod machine;
#[cfg(test)]
mod machine_tests;
mod metrics;
mod one_sided;
mod options;
mod page;
#[cfg(test)]
mod pass_tests;
#[cfg(feature = "rdma")]
mod rdma;
mod record;
mod retention;
mod session;
mod socket_owner;
#[cfg(feature = "fiss")]
mod switch;
mod totals;
mod workers;

#[doc(hidden)]
pub use self::bare::Bare;
#[cfg(feature = "cluster")]
pub use self::cluster::ClusterOptions;
#[doc(hidden)]
pub use self::durable::Journal;
#[doc(hidden)]
pub use self::machine::{Machine, MachineRules};
pub use self::options::{DEFAULT_LISTEN, ServeError, ServerOptions};
#[cfg(feature = "xdp")]
pub use self::switch::try_xdp;
#[cfg(feature = "fiss")]
pub use self::switch::{DEFAULT_LOCKS, DEFAULT_SWITCH_LISTEN, Switch, SwitchOptions};

use self::dispatcher::{Admission, Dispatcher};
use self::durable::Durable;
use self::lock_table::LockTable;
use self::one_sided::OneSidedSpace;
use self::page::Page;
use self::record::Record;
use self::workers::Workers;
use lockwright::internal::layout::Ranges;
use lockwright::internal::secret::{self, PublishedSecret};
use lockwright_fabric::backend::fork::Owner;
use lockwright_fabric::backend::tcp;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the session of a client whose process on this machine has ended outlives its connection, at most: time for what
/// died with it, such as the command of `run`.
const GRACE_ENDED: Duration = Duration::from_secs(1);

/// A running server, on threads of its own. Dropping it stops it.
///
/// ```
/// use lockwright::Client;
/// use lockwright_server::{Server, ServerOptions};
/// let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap()))?;
/// let client = Client::open(&format!("tcp://{}", server.address())).wait()?;
/// let guard = client.mutex("orders/42")?.lock().wait()?;
/// println!("held by way of {}, token {}", server.address(), guard.token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    http: Option<SocketAddr>,
    rdma: Option<RdmaSide>,
    recovering: bool,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The process that it runs in: a copy in a child has no threads.
    owner: Owner,
}

/// The server's RDMA side: where the control connection listens, and the device.
type RdmaSide = (SocketAddr, String);

/// What the thread says when it is up.
struct Up {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    http: Option<SocketAddr>,
    rdma: Option<RdmaSide>,
    recovering: bool,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// If the address cannot be had or would be open to strangers, or the state cannot be used.
    ///
    /// ```
    /// use lockwright_server::{Server, ServerOptions};
    /// let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap()))?;
    /// # Ok::<(), lockwright_server::ServeError>(())
    /// ```
    pub fn start(options: ServerOptions) -> Result<Self, ServeError> {
        let system = |error: std::io::Error| ServeError::System(error.to_string());
        // The first of the threads that read connections; the others are its workers.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("lockwright-serve".to_owned())
            .spawn(move || runtime.block_on(serve(options, &tell, stopped)))
            .map_err(system)?;
        match told.recv() {
            Ok(Ok(Up { address, metrics, http, rdma, recovering })) => {
                let (owner, stop, thread) = (Owner::current(), Some(stop), Some(thread));
                Ok(Self { address, metrics, http, rdma, recovering, stop, thread, owner })
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ServeError::System("its thread ended".to_owned())),
        }
    }

    /// Where it listens.
    ///
    /// ```
    /// # use lockwright_server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert!(server.address().ip().is_loopback());
    /// ```
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers Prometheus, if it does.
    ///
    /// ```
    /// # use lockwright_server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert_eq!(server.metrics(), None);
    /// ```
    pub const fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Where it shows its locks to a browser, if it does.
    ///
    /// ```
    /// # use lockwright_server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert_eq!(server.http(), None);
    /// ```
    pub const fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Where it is reached over RDMA, and by which device, if it is.
    ///
    /// ```
    /// # use lockwright_server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert_eq!(server.rdma(), None);
    /// ```
    pub fn rdma(&self) -> Option<(SocketAddr, &str)> {
        self.rdma.as_ref().map(|(address, device)| (*address, device.as_str()))
    }

    /// Whether it began by waiting for those who held locks before it was restarted.
    ///
    /// ```
    /// # use lockwright_server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert!(!server.began_recovering());
    /// ```
    pub const fn began_recovering(&self) -> bool {
        self.recovering
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return std::mem::forget((self.stop.take(), self.thread.take()));
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The server's thread.
async fn serve(
    options: ServerOptions,
    tell: &mpsc::Sender<Result<Up, ServeError>>,
    stopped: oneshot::Receiver<()>,
) {
    let started = match start(options).await {
        Ok(started) => started,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let Started { server, dispatcher, workers, metrics, http, recovering, left } = started.tcp;
    #[cfg(feature = "rdma")]
    let rdma = started.rdma.as_ref().map(|host| (host.address(), host.device().to_owned()));
    #[cfg(not(feature = "rdma"))]
    let rdma = None;
    let up = Up {
        rdma,
        address: server.address(),
        metrics: metrics.as_ref().and_then(|listener| listener.local_addr().ok()),
        http: http.as_ref().and_then(|(listener, _)| listener.local_addr().ok()),
        recovering: recovering.is_some(),
    };
    if let Some((listener, page)) = http {
        tokio::spawn(page.answer(listener));
    }
    if let Some(listener) = metrics {
        let front = dispatcher.clone();
        #[cfg(feature = "cluster")]
        let source: metrics::Source = match started.node.as_ref().map(cluster::Node::counts) {
            Some(counts) => Arc::new(move || counts.metrics(&front)),
            None => Arc::new(move || front.metrics()),
        };
        #[cfg(not(feature = "cluster"))]
        let source: metrics::Source = Arc::new(move || front.metrics());
        tokio::spawn(metrics::answer(listener, source));
    }
    if let Some(grace) = recovering {
        let dispatcher = dispatcher.clone();
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            dispatcher.lock_table().open();
        });
    }
    let watched = dispatcher.clone();
    let answers = tokio::spawn(async move {
        loop {
            tokio::time::sleep(lock_table::retained::ANSWER / 2).await;
            watched.lock_table().deny_late_tries(std::time::Instant::now());
        }
    });
    let _ = tell.send(Ok(up));
    let _ = stopped.await;
    answers.abort();
    #[cfg(feature = "cluster")]
    if let Some(node) = started.node {
        node.stop().await;
    }
    drop(left);
    server.shut_down().await;
    #[cfg(feature = "rdma")]
    drop(started.rdma);
    // Nothing is granted any more once they have ended.
    drop(workers);
    let mut table = dispatcher.lock_table();
    let one_sided = dispatcher.one_sided_spaces().iter().any(|space| space.is_in_use());
    let clean = table.requests() == 0 && !table.is_recovering() && !one_sided;
    table.durable.end(clean);
    if let Some(record) = table.record.take() {
        record.end();
    }
}

/// A server that is up.
struct Both {
    tcp: Started,
    #[cfg(feature = "rdma")]
    rdma: Option<lockwright_fabric::backend::rdma::RdmaHost>,
    #[cfg(feature = "cluster")]
    node: Option<cluster::Node>,
}

struct Started {
    server: tcp::Server<Dispatcher>,
    dispatcher: Dispatcher,
    workers: Workers,
    /// The secrets for this user's clients, if there are some.
    left: Vec<Option<PublishedSecret>>,
    metrics: Option<tokio::net::TcpListener>,
    http: Option<(tokio::net::TcpListener, Arc<Page>)>,
    recovering: Option<Duration>,
}

async fn start(options: ServerOptions) -> Result<Both, ServeError> {
    let ServerOptions {
        listen,
        listener,
        secret,
        tls,
        metrics,
        http,
        state,
        grace,
        heartbeat,
        exports,
        one_sided,
        threads,
        record,
        retain,
        retain_off_in,
        #[cfg(feature = "cluster")]
        certificates,
        ..
    } = options;
    let lease = tcp::Lease { heartbeat, grace };
    if lease.at_client(Duration::ZERO).is_none() {
        return Err(ServeError::ShortLease(lease.at_server()));
    }
    let exposed = !listen.ip().to_canonical().is_loopback() && secret.is_none() && tls.is_none();
    if exposed {
        return Err(ServeError::Exposed(listen));
    }
    if let Some(address) =
        http.filter(|address| !address.ip().to_canonical().is_loopback() && secret.is_none())
    {
        return Err(ServeError::Trust(format!(
            "refusing to show locks to other machines at {address} without a secret: give --secret-file"
        )));
    }
    let (secret, made) = admission(&exports, &one_sided, secret, listen)?;
    let admitted = if secret.is_some() { Admission::Secret } else { Admission::Anyone };
    let (durable, recovering) =
        Durable::begin(state.as_deref(), lease.at_server()).map_err(|error| ServeError::State {
            path: state.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            why: error.to_string(),
        })?;
    let (metrics, http) = (bind(metrics).await?, bind(http).await?);
    #[cfg(feature = "rdma")]
    let shared = rdma::Shared { secret: secret.clone(), heartbeat, grace, epoch: durable.epoch };
    let workers = Workers::start(threads).map_err(|error| ServeError::System(error.to_string()))?;
    let tcp_options = tcp::ServerOptions {
        secret,
        tls,
        heartbeat,
        grace,
        grace_ended: Some(grace.min(GRACE_ENDED)),
        keeps_lease: true,
        epoch: Some(durable.epoch),
        max_sessions: lock_table::MAX_SESSIONS,
        listener,
        workers: workers.handles(),
        ..tcp::ServerOptions::default()
    };
    #[cfg(feature = "rdma")]
    let by = if options.rdma.is_some() { one_sided::VerbExecutor::Nic } else { one_sided::VerbExecutor::Cpu };
    #[cfg(not(feature = "rdma"))]
    let by = one_sided::VerbExecutor::Cpu;
    let opened = one_sided
        .iter()
        .map(|(name, ranges)| OneSidedSpace::open(name, by, durable.epoch, *ranges))
        .collect::<Result<_, _>>()?;
    // So long may clients hold on that were cut off when the last run ended.
    let wait = durable.lease();
    if recovering {
        tracing::info!(?wait, "restarted: waiting for those who held locks");
    }
    let mut table = LockTable::new(durable, recovering, exports, opened);
    #[cfg(feature = "cluster")]
    let setup = options.cluster.map(|cluster| {
        let map = Arc::<std::sync::Mutex<String>>::default();
        table.map = Some(Arc::clone(&map));
        let tables = Arc::<lock_table::handed::Tables>::default();
        table.tables = Some(Arc::clone(&tables));
        cluster::Setup {
            options: cluster,
            front: listen,
            tcp: tcp_options.clone(),
            admission: admitted,
            record: record.clone(),
            map,
            tables,
            certificates,
            keeps_history: http.is_some(),
            runtime: tokio::runtime::Handle::current(),
        }
    });
    table.record = record.as_deref().map(open_record).transpose()?;
    (table.retention.off, table.retention.off_in) = (!retain, retain_off_in);
    if http.is_some() {
        table.keep_history();
    }
    let dispatcher = Dispatcher::new(table, admitted);
    let (page_secret, page_tls) = (tcp_options.secret.clone(), tcp_options.tls.clone());
    one_sided::sessions::employ(dispatcher.one_sided_spaces())?;
    let server = tcp::Server::bind(listen, dispatcher.clone(), vec![], tcp_options).await.map_err(
        |error| match error {
            tcp::BindError::Exposed(address) => ServeError::Exposed(address),
            tcp::BindError::Io { address, error } => ServeError::Listen { address, why: error.to_string() },
        },
    )?;
    // What the killed left behind is in nobody's way: a sweep that fails is no reason not to serve.
    let _ = secret::sweep();
    #[cfg_attr(not(feature = "rdma"), expect(unused_mut, reason = "the RDMA side has a port of its own"))]
    let mut left = vec![leave(made.as_deref(), listen.port(), server.address().port())?];
    #[cfg(feature = "rdma")]
    let rdma = options.rdma.as_ref().map(|side| rdma::open(side, &dispatcher, shared)).transpose()?;
    #[cfg(feature = "rdma")]
    if let (Some(host), Some(side)) = (&rdma, &options.rdma) {
        left.push(leave(made.as_deref(), side.listen.port(), host.address().port())?);
    }
    #[cfg(feature = "cluster")]
    let node = match setup {
        Some(setup) => Some(cluster::Node::start(cluster::Setup { front: server.address(), ..setup }).await?),
        None => None,
    };
    let view: Arc<dyn page::View> = Arc::new(dispatcher.clone());
    #[cfg(feature = "cluster")]
    let view: Arc<dyn page::View> = match node.as_ref().map(cluster::Node::counts) {
        Some(counts) => Arc::new(cluster::ClusterView { counts, front: dispatcher.clone() }),
        None => view,
    };
    let http = http.map(|listener| (listener, Page::new(view, page_secret, page_tls)));
    Ok(Both {
        #[cfg(feature = "rdma")]
        rdma,
        #[cfg(feature = "cluster")]
        node,
        tcp: Started {
            server,
            dispatcher,
            workers,
            metrics,
            http,
            recovering: recovering.then_some(wait),
            left,
        },
    })
}

/// Listens there, if anywhere.
async fn bind(address: Option<SocketAddr>) -> Result<Option<tokio::net::TcpListener>, ServeError> {
    let Some(address) = address else { return Ok(None) };
    let listener = tokio::net::TcpListener::bind(address).await;
    listener.map(Some).map_err(|error| ServeError::Listen { address, why: error.to_string() })
}

fn open_record(path: &Path) -> Result<Record, ServeError> {
    let why = |error: std::io::Error| ServeError::Record {
        path: path.display().to_string(),
        why: error.to_string(),
    };
    Record::open(path).map_err(why)
}

/// Leaves the secret where this user's clients of `port` find it, or none. Nobody comes back to a port that was not asked for.
fn leave(secret: Option<&str>, asked: u16, port: u16) -> Result<Option<PublishedSecret>, ServeError> {
    let left = match secret {
        Some(secret) => secret::leave(port, secret, asked == port).map(Some),
        None => secret::forget(port).map(|()| None),
    };
    left.map_err(|error| {
        ServeError::Trust(format!("the secret for this user's clients cannot be left: {error}"))
    })
}

/// What clients must know, and whether it has to be left for them: spaces of this user's are for nobody else, nor are words
/// that clients change by themselves.
fn admission(
    exports: &[String],
    one_sided: &[(String, Ranges)],
    secret: Option<tcp::Secret>,
    listen: SocketAddr,
) -> Result<(Option<tcp::Secret>, Option<String>), ServeError> {
    if exports.is_empty() && one_sided.is_empty() || secret.is_some() {
        return Ok((secret, None));
    }
    if !listen.ip().to_canonical().is_loopback() {
        let lent = one_sided.iter().map(|(name, _)| format!("lent:{name}"));
        let offered: Vec<_> = exports.iter().cloned().chain(lent).collect();
        return Err(ServeError::Trust(format!(
            "refusing to export {} to other machines without a secret that clients must know: give --secret-file",
            offered.join(", ")
        )));
    }
    let trust = |error: &dyn std::fmt::Display| ServeError::Trust(format!("no secret can be made: {error}"));
    let made = secret::make(listen.port()).map_err(|error| trust(&error))?;
    let secret = tcp::Secret::new(&made).map_err(|error| trust(&error))?;
    Ok((Some(secret), Some(made)))
}

/// The code of the page about servers, compiled and run like any other example.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/serve.md")]
struct Serve;
