//! A server of lock spaces: what `lockwright serve` runs, and what a program can run inside itself.
//!
//! It holds spaces of its own, decided by the [combiner](lockwright_locks::combiner), and can offer the spaces of this
//! host's shared memory to clients elsewhere. `docs/serve.md` says what happens when what breaks.
//!
//! | file | |
//! |---|---|
//! | `desk` | takes what clients send |
//! | `books` | sessions, requests, grants, claims |
//! | `directory` | names |
//! | `durable` | what must outlive a restart |
//! | `exported` | spaces of shared memory |
//! | `guests`, `guest` | clients that run the protocol of such a space themselves |
//! | `lent`, `lents`, `undertaker` | spaces in memory whose locks clients take by verbs of their own |
//! | `rdma` | the same desk behind queue pairs |
//! | `totals`, `metrics` | counts, and Prometheus |

mod books;
mod desk;
mod directory;
mod durable;
mod exported;
mod guest;
mod guests;
mod lent;
mod lents;
mod metrics;
#[cfg(feature = "rdma")]
mod rdma;
mod totals;
mod undertaker;

use self::books::Books;
use self::desk::Desk;
use self::durable::Durable;
use self::lent::Lent;
use crate::remote::secret;
use lockwright_fabric::backend::tcp;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Where a server listens unless told otherwise: this machine only. (The port spells LOCK on a telephone.)
pub const DEFAULT_LISTEN: &str = "127.0.0.1:5625";

/// How a server behaves: see [`Server::start`].
///
/// ```
/// use lockwright::server::ServerOptions;
/// let options = ServerOptions::default().listen("127.0.0.1:0".parse().unwrap());
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerOptions {
    listen: SocketAddr,
    token: Option<tcp::Token>,
    tls: Option<tcp::TlsServer>,
    metrics: Option<SocketAddr>,
    state: Option<PathBuf>,
    grace: Duration,
    heartbeat: Duration,
    exports: Vec<String>,
    lends: Vec<String>,
    #[cfg(feature = "rdma")]
    rdma: Option<rdma::Side>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.parse().expect("it is an address"),
            token: None,
            tls: None,
            metrics: None,
            state: None,
            grace: Duration::from_secs(5),
            heartbeat: Duration::from_secs(1),
            exports: Vec::new(),
            lends: Vec::new(),
            #[cfg(feature = "rdma")]
            rdma: None,
        }
    }
}

/// How long the session of a client outlives a connection that was closed without a goodbye, at most. Processes that
/// die are seen like that, and their locks should not wait; a living client is back within milliseconds.
const GRACE_CLOSED: Duration = Duration::from_secs(1);

impl ServerOptions {
    /// Where to listen. Port 0 is any free one. Addresses that other machines can reach need a token or TLS.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// let options = ServerOptions::default().listen("127.0.0.1:7000".parse().unwrap());
    /// ```
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// A secret that clients must know, of at least 16 bytes.
    ///
    /// # Errors
    /// If it is too short.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// assert!(ServerOptions::default().token("short").is_err());
    /// ```
    pub fn token(mut self, secret: impl AsRef<[u8]>) -> Result<Self, ServeError> {
        self.token = Some(tcp::Token::new(secret).map_err(|error| ServeError::Trust(error.to_string()))?);
        Ok(self)
    }

    /// The certificate chain and private key of the server, both PEM.
    ///
    /// # Errors
    /// If they cannot be used.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// assert!(ServerOptions::default().tls(b"no certificate", b"no key").is_err());
    /// ```
    pub fn tls(mut self, certificates: &[u8], key: &[u8]) -> Result<Self, ServeError> {
        let tls = tcp::TlsServer::from_pem(certificates, key);
        self.tls = Some(tls.map_err(|error| ServeError::Trust(error.to_string()))?);
        Ok(self)
    }

    /// Where to answer Prometheus (`GET /metrics`).
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// let options = ServerOptions::default().metrics("127.0.0.1:9000".parse().unwrap());
    /// ```
    pub fn metrics(mut self, address: SocketAddr) -> Self {
        self.metrics = Some(address);
        self
    }

    /// The file that remembers what must outlive a restart. Without one, clients lose their locks when the server is
    /// restarted, and are told so.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// let options = ServerOptions::default().state("/var/lib/lockwright/serve.state");
    /// ```
    pub fn state(mut self, path: impl Into<PathBuf>) -> Self {
        self.state = Some(path.into());
        self
    }

    /// How long a silent client keeps its locks after three missed heartbeats, and how long a restarted server waits
    /// for claims before it grants anything: five seconds unless told otherwise.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// # use std::time::Duration;
    /// let options = ServerOptions::default().grace(Duration::from_secs(30));
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How often idle clients show that they are there: once a second unless told otherwise.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// # use std::time::Duration;
    /// let options = ServerOptions::default().heartbeat(Duration::from_millis(200));
    /// ```
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = heartbeat.max(Duration::from_millis(10));
        self
    }

    /// Offers a space of this host's shared memory, such as `shm:`, to clients, as `tcp://host:port/shm:`. It can be
    /// called several times.
    ///
    /// Such a space is its user's alone, so a server that offers one lets nobody in who does not know its secret. Without a
    /// [token](Self::token) it makes one that only processes of this user can read; they find it by themselves.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// let options = ServerOptions::default().export("shm:");
    /// ```
    pub fn export(mut self, space: impl Into<String>) -> Self {
        self.exports.push(space.into());
        self
    }

    /// Lends memory for a space called `name`, whose locks clients take by verbs of their own: `lent:NAME` of this server.
    /// With [RDMA](Self::rdma) the NIC executes them and clients come by `rdma://`, else the server does and they come by
    /// `tcp://`; never both, since a NIC and a CPU do not exclude each other. It can be called several times.
    ///
    /// Clients can write anything into the words of such locks, so nobody is let in who does not know the server's secret, as
    /// with [`export`](Self::export).
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// let options = ServerOptions::default().lend("stock");
    /// ```
    pub fn lend(mut self, name: impl Into<String>) -> Self {
        self.lends.push(name.into());
        self
    }

    /// Offers the same spaces over RDMA too, as `rdma://host:port/NAME`: `listen` is where clients and server meet, by TCP,
    /// before they talk over queue pairs of `device`. Addresses that other machines can reach need a token.
    ///
    /// ```
    /// # use lockwright::server::ServerOptions;
    /// let options = ServerOptions::default().rdma("127.0.0.1:5626".parse()?, "rxe0".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "rdma")]
    pub fn rdma(
        mut self,
        listen: SocketAddr,
        device: lockwright_fabric::backend::rdma::DeviceChoice,
    ) -> Self {
        self.rdma = Some(rdma::Side { listen, device });
        self
    }
}

/// Why a server did not start.
///
/// ```
/// use lockwright::server::{ServeError, Server, ServerOptions};
/// let options = ServerOptions::default().listen("0.0.0.0:0".parse().unwrap());
/// assert!(matches!(Server::start(options), Err(ServeError::Exposed(_))));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Strangers could reach it.
    #[error(
        "refusing to listen on {0}: other machines could reach it, and nothing would keep them out. Give \
         --tls-cert and --tls-key, or --token-file with a secret that clients must know; or listen on 127.0.0.1"
    )]
    Exposed(SocketAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        why: String,
    },
    /// The token, certificate or key is no good.
    #[error("{0}")]
    Trust(String),
    /// There is no RDMA device, or it cannot be used.
    #[error("cannot serve over RDMA: {0}")]
    Rdma(String),
    /// The state file cannot be used.
    #[error("the server's state in {path} cannot be used: {why}")]
    State {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// There is no thread or no runtime to be had.
    #[error("the server cannot be started: {0}")]
    System(String),
}

/// A running server, on a thread of its own. Dropping it stops it.
///
/// ```
/// use lockwright::Client;
/// use lockwright::server::{Server, ServerOptions};
/// let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap()))?;
/// let client = Client::open(&format!("tcp://{}", server.address()))?;
/// let guard = client.mutex("orders/42")?.lock().wait()?;
/// println!("held by way of {}, token {}", server.address(), guard.token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    rdma: Option<RdmaSide>,
    recovering: bool,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The server's RDMA side: where the control connection listens, and the device.
type RdmaSide = (SocketAddr, String);

/// What the thread says when it is up.
struct Up {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
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
    /// use lockwright::server::{Server, ServerOptions};
    /// let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap()))?;
    /// # Ok::<(), lockwright::server::ServeError>(())
    /// ```
    pub fn start(options: ServerOptions) -> Result<Self, ServeError> {
        let system = |error: std::io::Error| ServeError::System(error.to_string());
        // One thread: the combiner decides one request after the other anyway, and nobody has to be woken for it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("lockwright-serve".to_owned())
            .spawn(move || runtime.block_on(serve(options, &tell, stopped)))
            .map_err(system)?;
        match told.recv() {
            Ok(Ok(Up { address, metrics, rdma, recovering })) => {
                Ok(Self { address, metrics, rdma, recovering, stop: Some(stop), thread: Some(thread) })
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ServeError::System("its thread ended".to_owned())),
        }
    }

    /// Where it listens.
    ///
    /// ```
    /// # use lockwright::server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert!(server.address().ip().is_loopback());
    /// ```
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers Prometheus, if it does.
    ///
    /// ```
    /// # use lockwright::server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert_eq!(server.metrics(), None);
    /// ```
    pub const fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Where it is reached over RDMA, and by which device, if it is.
    ///
    /// ```
    /// # use lockwright::server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert_eq!(server.rdma(), None);
    /// ```
    pub fn rdma(&self) -> Option<(SocketAddr, &str)> {
        self.rdma.as_ref().map(|(address, device)| (*address, device.as_str()))
    }

    /// Whether it began by waiting for those who held locks before it was restarted.
    ///
    /// ```
    /// # use lockwright::server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    /// assert!(!server.began_recovering());
    /// ```
    pub const fn began_recovering(&self) -> bool {
        self.recovering
    }
}

impl Drop for Server {
    fn drop(&mut self) {
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
    let any_port = options.listen.port() == 0;
    let started = match start(options).await {
        Ok(started) => started,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let Started { server, desk, metrics, recovering } = started.tcp;
    #[cfg(feature = "rdma")]
    let rdma = started.rdma.as_ref().map(|host| (host.address(), host.device().to_owned()));
    #[cfg(not(feature = "rdma"))]
    let rdma = None;
    let up = Up {
        rdma,
        address: server.address(),
        metrics: metrics.as_ref().and_then(|listener| listener.local_addr().ok()),
        recovering: recovering.is_some(),
    };
    if let Some(listener) = metrics {
        tokio::spawn(metrics::answer(listener, desk.clone()));
    }
    if let Some(grace) = recovering {
        let desk = desk.clone();
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            desk.books().open();
        });
    }
    let _ = tell.send(Ok(up));
    let _ = stopped.await;
    // Nobody comes back to a port that was the system's choice.
    if any_port {
        let _ = secret::forget(server.address().port());
    }
    server.shut_down().await;
    #[cfg(feature = "rdma")]
    drop(started.rdma);
    let mut books = desk.books();
    let lent = desk.lends().iter().any(|space| space.is_in_use());
    let clean = books.requests() == 0 && !books.is_recovering() && !lent;
    books.durable.end(clean);
}

/// A server that is up.
struct Both {
    tcp: Started,
    #[cfg(feature = "rdma")]
    rdma: Option<lockwright_fabric::backend::rdma::RdmaHost>,
}

struct Started {
    server: tcp::Server<Desk>,
    desk: Desk,
    metrics: Option<tokio::net::TcpListener>,
    recovering: Option<Duration>,
}

async fn start(options: ServerOptions) -> Result<Both, ServeError> {
    let ServerOptions { listen, token, tls, metrics, state, grace, heartbeat, exports, lends, .. } = options;
    let exposed = !listen.ip().to_canonical().is_loopback() && token.is_none() && tls.is_none();
    if exposed {
        return Err(ServeError::Exposed(listen));
    }
    let (token, secret) = admission(&exports, &lends, token, listen)?;
    let (durable, recovering) = Durable::begin(state.as_deref()).map_err(|error| ServeError::State {
        path: state.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        why: error.to_string(),
    })?;
    let metrics = match metrics {
        Some(address) => Some(
            tokio::net::TcpListener::bind(address)
                .await
                .map_err(|error| ServeError::Listen { address, why: error.to_string() })?,
        ),
        None => None,
    };
    #[cfg(feature = "rdma")]
    let shared = rdma::Shared { token: token.clone(), heartbeat, grace, epoch: durable.epoch };
    let tcp_options = tcp::ServerOptions {
        token,
        tls,
        heartbeat,
        grace,
        grace_closed: Some(grace.min(GRACE_CLOSED)),
        epoch: Some(durable.epoch),
        max_sessions: books::MAX_SESSIONS,
        ..tcp::ServerOptions::default()
    };
    #[cfg(feature = "rdma")]
    let by = if options.rdma.is_some() { lent::By::Nic } else { lent::By::Cpu };
    #[cfg(not(feature = "rdma"))]
    let by = lent::By::Cpu;
    let lends = lends.iter().map(|name| Lent::new(name, by, durable.epoch)).collect();
    let desk = Desk::new(Books::new(durable, recovering), exports, lends);
    lents::employ(desk.lends())?;
    let server =
        tcp::Server::bind(listen, desk.clone(), vec![], tcp_options).await.map_err(|error| match error {
            tcp::BindError::Exposed(address) => ServeError::Exposed(address),
            tcp::BindError::Io { address, error } => ServeError::Listen { address, why: error.to_string() },
        })?;
    leave(secret.as_deref(), server.address().port())?;
    #[cfg(feature = "rdma")]
    let rdma = options.rdma.as_ref().map(|side| rdma::open(side, &desk, shared)).transpose()?;
    #[cfg(feature = "rdma")]
    if let Some(host) = &rdma {
        leave(secret.as_deref(), host.address().port())?;
    }
    Ok(Both {
        #[cfg(feature = "rdma")]
        rdma,
        tcp: Started { server, desk, metrics, recovering: recovering.then_some(grace) },
    })
}

/// Leaves the secret where this user's clients of `port` find it, or none.
fn leave(secret: Option<&str>, port: u16) -> Result<(), ServeError> {
    let left = match secret {
        Some(secret) => secret::leave(port, secret),
        None => secret::forget(port),
    };
    left.map_err(|error| {
        ServeError::Trust(format!("the secret for this user's clients cannot be left: {error}"))
    })
}

/// What clients must know, and whether it has to be left for them: spaces of this user's are for nobody else, nor are words
/// that clients change by themselves.
fn admission(
    exports: &[String],
    lends: &[String],
    token: Option<tcp::Token>,
    listen: SocketAddr,
) -> Result<(Option<tcp::Token>, Option<String>), ServeError> {
    if exports.is_empty() && lends.is_empty() || token.is_some() {
        return Ok((token, None));
    }
    if !listen.ip().to_canonical().is_loopback() {
        let lent = lends.iter().map(|name| format!("lent:{name}"));
        let offered: Vec<_> = exports.iter().cloned().chain(lent).collect();
        return Err(ServeError::Trust(format!(
            "refusing to offer {} to other machines without a secret that clients must know: give --token-file",
            offered.join(", ")
        )));
    }
    let trust = |error: &dyn std::fmt::Display| ServeError::Trust(format!("no secret can be made: {error}"));
    let secret = secret::make(listen.port()).map_err(|error| trust(&error))?;
    let token = tcp::Token::new(&secret).map_err(|error| trust(&error))?;
    Ok((Some(token), Some(secret)))
}
