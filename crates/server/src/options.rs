//! What a server is told before it starts, and why it did not.

#[cfg(feature = "rdma")]
use super::rdma;
use lockwright::internal::layout::{NAMES, Ranges};
use lockwright::internal::local;
use lockwright_fabric::backend::tcp;
use lockwright_locks::citron::member::TreeParams;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where a server listens unless told otherwise: this machine only. (The port spells LOCK on a telephone.)
pub const DEFAULT_LISTEN: &str = "127.0.0.1:5625";

/// How a server behaves: see [`Server::start`](super::Server::start).
///
/// ```
/// use lockwright_server::ServerOptions;
/// let options = ServerOptions::default().listen("127.0.0.1:0".parse().unwrap());
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerOptions {
    pub(super) listen: SocketAddr,
    pub(super) listener: Option<Arc<TcpListener>>,
    pub(super) secret: Option<tcp::Secret>,
    pub(super) tls: Option<tcp::TlsServer>,
    /// What is shown to clients by that, PEM.
    #[cfg(feature = "cluster")]
    pub(super) certificates: Option<Vec<u8>>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) http: Option<SocketAddr>,
    pub(super) state: Option<PathBuf>,
    pub(super) grace: Duration,
    pub(super) heartbeat: Duration,
    pub(super) exports: Vec<String>,
    pub(super) one_sided: Vec<(String, Ranges)>,
    pub(super) threads: Option<usize>,
    pub(super) record: Option<PathBuf>,
    pub(super) retain: bool,
    pub(super) retain_off_in: Vec<Vec<u8>>,
    #[cfg(feature = "rdma")]
    pub(super) rdma: Option<rdma::Side>,
    #[cfg(feature = "cluster")]
    pub(super) cluster: Option<super::ClusterOptions>,
}

/// The most bytes of a space's trees.
const MAX_TREES: u64 = 1 << 30;
/// The most threads that read connections.
const MAX_THREADS: usize = 256;

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.parse().expect("it is an address"),
            listener: None,
            secret: None,
            tls: None,
            #[cfg(feature = "cluster")]
            certificates: None,
            metrics: None,
            http: None,
            state: None,
            grace: Duration::from_secs(5),
            heartbeat: Duration::from_secs(1),
            exports: Vec::new(),
            one_sided: Vec::new(),
            threads: None,
            record: None,
            retain: true,
            retain_off_in: Vec::new(),
            #[cfg(feature = "rdma")]
            rdma: None,
            #[cfg(feature = "cluster")]
            cluster: None,
        }
    }
}

impl ServerOptions {
    /// Where to listen. Port 0 is any free one. Addresses that other machines can reach need a secret or TLS.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().listen("127.0.0.1:7000".parse().unwrap());
    /// ```
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Serves on a socket that listens already, as a service manager passes it on.
    ///
    /// # Errors
    /// If it has no address.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let options = ServerOptions::default().listener(socket)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn listener(mut self, socket: TcpListener) -> io::Result<Self> {
        self.listen = socket.local_addr()?;
        self.listener = Some(Arc::new(socket));
        Ok(self)
    }

    /// A secret that clients must know, of at least 16 bytes.
    ///
    /// # Errors
    /// If it is too short.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// assert!(ServerOptions::default().secret("short").is_err());
    /// ```
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Result<Self, ServeError> {
        self.secret = Some(tcp::Secret::new(secret).map_err(|error| ServeError::Trust(error.to_string()))?);
        Ok(self)
    }

    /// The certificate chain and private key of the server, both PEM.
    ///
    /// # Errors
    /// If they cannot be used.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// assert!(ServerOptions::default().tls(b"no certificate", b"no key").is_err());
    /// ```
    pub fn tls(mut self, certificates: &[u8], key: &[u8]) -> Result<Self, ServeError> {
        let tls = tcp::TlsServer::from_pem(certificates, key);
        self.tls = Some(tls.map_err(|error| ServeError::Trust(error.to_string()))?);
        #[cfg(feature = "cluster")]
        {
            self.certificates = Some(certificates.to_vec());
        }
        Ok(self)
    }

    /// Where to answer Prometheus (`GET /metrics`).
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().metrics("127.0.0.1:9000".parse().unwrap());
    /// ```
    pub fn metrics(mut self, address: SocketAddr) -> Self {
        self.metrics = Some(address);
        self
    }

    /// Where to show the server's locks to a browser. Addresses that other machines can reach need a secret.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().http("127.0.0.1:5680".parse().unwrap());
    /// ```
    pub fn http(mut self, address: SocketAddr) -> Self {
        self.http = Some(address);
        self
    }

    /// A file that everything is written to that is granted and taken back, for `lockwright-lab check --history FILE...`, which
    /// judges it beside those of [clients](lockwright::ClientOptions::record). Spaces of shared memory are left out.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().record("/var/log/lockwright.jsonl");
    /// ```
    pub fn record(mut self, path: impl Into<PathBuf>) -> Self {
        self.record = Some(path.into());
        self
    }

    /// The file that remembers what must outlive a restart. Without one, clients lose their locks when the server is
    /// restarted, and are told so.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
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
    /// # use lockwright_server::ServerOptions;
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
    /// # use lockwright_server::ServerOptions;
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
    /// [secret](Self::secret) it makes one that only processes of this user can read; they find it by themselves.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().export("shm:");
    /// ```
    pub fn export(mut self, space: impl Into<String>) -> Self {
        self.exports.push(space.into());
        self
    }

    /// How many threads read connections: one for every two cores unless told otherwise, but not more than eight. What they
    /// read is decided by one of them at a time. More are of use where clients are on other machines.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().threads(16);
    /// ```
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.clamp(1, MAX_THREADS));
        self
    }

    /// Whether locks may stay with the client that used them last until another client wants them: they may, unless told
    /// otherwise. Clients can decline, too.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().retain(false);
    /// ```
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// The locks of the server's own space `space` do not stay with clients. It can be called several times.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().retain_off_in("stock");
    /// ```
    pub fn retain_off_in(mut self, space: impl Into<Vec<u8>>) -> Self {
        self.retain_off_in.push(space.into());
        self
    }

    /// Lends memory for a space called `name`, whose locks clients take by verbs of their own: `lent:NAME` of this server.
    /// It is meant for servers with RDMA, where the NIC executes the verbs and clients come by `rdma://`. Without, the
    /// server's CPU executes them, and clients come by `tcp://`: that is slower than a space of the server's own, and there
    /// for tests on machines without a NIC. It can be called several times.
    ///
    /// Clients can write anything into the words of such locks, so nobody is let in who does not know the server's secret, as
    /// with [`export`](Self::export).
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().lend("stock");
    /// ```
    pub fn lend(mut self, name: impl Into<String>) -> Self {
        self.one_sided.push((name.into(), Ranges::Exact));
        self
    }

    /// The same for processes of this host, too, which open it as `shm:lent:NAME` and take its locks by CPU instructions: mutexes
    /// and reader-writer locks, no ranges. A side has at most `budget` grants in a row, and a client that waits on the other side sees at
    /// most two such turns.
    ///
    /// # Errors
    /// In words, if there can be no such space.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().lend_local("stock", 8).unwrap();
    /// assert!(ServerOptions::default().lend_local("stock", 0).is_err());
    /// ```
    pub fn lend_local(mut self, name: impl Into<String>, budget: u16) -> Result<Self, String> {
        let name = name.into();
        if budget == 0 {
            return Err("a side may have at least one grant in a row".to_owned());
        }
        local::path_of(&name).map_err(|error| error.to_string())?;
        self.one_sided.push((name, Ranges::None { budget }));
        Ok(self)
    }

    /// The same with ranges on trees, which takes one round trip for a range: in whole units, each `unit` numbers, up to
    /// `units` of them, and for at most `names` names.
    ///
    /// # Errors
    /// In words, if there can be no such trees.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
    /// let options = ServerOptions::default().lend_tree("stock", 4096, 1024, 256).unwrap();
    /// assert!(ServerOptions::default().lend_tree("stock", 0, 1024, 256).is_err());
    /// ```
    pub fn lend_tree(
        mut self,
        name: impl Into<String>,
        unit: u64,
        units: u64,
        names: u64,
    ) -> Result<Self, String> {
        let params = TreeParams { locks: names, units, unit, ..TreeParams::default() };
        params.check().map_err(|why| why.to_string())?;
        let [.., bytes] = Ranges::Tree(TreeParams { locks: 1, ..params }).regions();
        if names > NAMES || bytes.saturating_mul(names) > MAX_TREES {
            return Err(format!(
                "trees of {units} units for {names} names: there are at most {NAMES} names, and they take {} MiB at most",
                MAX_TREES >> 20
            ));
        }
        self.one_sided.push((name.into(), Ranges::Tree(params)));
        Ok(self)
    }

    /// Takes part in a cluster: see `docs/cluster.md`. Nothing is kept in a [file](Self::state) then, and neither shared memory
    /// nor one-sided spaces nor RDMA is offered.
    ///
    /// ```
    /// # use lockwright_server::{ClusterOptions, ServerOptions};
    /// let options = ServerOptions::default().cluster(ClusterOptions::at("etcd://10.0.0.1/prod")?);
    /// # Ok::<(), lockwright_server::ServeError>(())
    /// ```
    #[cfg(feature = "cluster")]
    pub fn cluster(mut self, cluster: super::ClusterOptions) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Offers the same spaces over RDMA too, as `rdma://host:port/NAME`: `listen` is where clients and server meet, by TCP,
    /// before they talk over queue pairs of `device`. Addresses that other machines can reach need a secret.
    ///
    /// ```
    /// # use lockwright_server::ServerOptions;
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
/// use lockwright_server::{ServeError, Server, ServerOptions};
/// let options = ServerOptions::default().listen("0.0.0.0:0".parse().unwrap());
/// assert!(matches!(Server::start(options), Err(ServeError::Exposed(_))));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Strangers could reach it.
    #[error(
        "refusing to listen on {0}: other machines could reach it, and nothing would keep them out. Give \
         --tls-cert and --tls-key, or --secret-file with a secret that clients must know; or listen on 127.0.0.1"
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
    /// The secret, certificate or key is no good.
    #[error("{0}")]
    Trust(String),
    /// Its heartbeat and grace period leave clients no time to notice that they have lost their locks.
    #[error(
        "a server that gives the locks of a silent client away after {0:?} is not safe: clients need --grace of a second or so"
    )]
    ShortLease(Duration),
    /// A one-sided space that processes of this host are in, too, cannot be opened.
    #[error("cannot serve shm:lent:{name}: {why}")]
    Local {
        /// The space.
        name: String,
        /// Why.
        why: String,
    },
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
    /// The record cannot be written.
    #[error("the record {path} cannot be written: {why}")]
    Record {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// It cannot take part in the cluster.
    #[error("cannot take part in the cluster: {0}")]
    Cluster(String),
    /// There is no thread or no runtime to be had.
    #[error("the server cannot be started: {0}")]
    System(String),
}
