//! The server: listens, accepts clients, and executes their verbs on its host's memory.
//!
//! It refuses to listen on an address that other machines can reach without TLS or a secret. Everything that a client can
//! make it keep is bounded by [`ServerOptions`].

use super::auth::Secret;
use super::connection::serve;
use super::handshakes::{Handshake, Handshakes};
use super::host::{ConnectionInfo, VerbHost};
use super::lease::Lease;
use super::router::Router;
use super::session_state::Backlog;
use super::stream;
use super::subnet::Subnet;
#[cfg(feature = "tls")]
use super::tls::TlsServer;
use crate::message::BoxedRole;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

/// Connections that the system keeps until they are accepted. A client that finds no room tries again after a second, so there
/// is room for a burst.
const BACKLOG: u32 = 4096;
/// How long to wait without a file descriptor for the next connection: after one was closed, and if none could be.
const CLOSED_PAUSE: Duration = Duration::from_millis(1);
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// Options of a server.
///
/// ```
/// use lockwright_fabric::backend::tcp::{ServerOptions, Secret};
/// let secret = Secret::new("a long and random line of text").unwrap();
/// let options = ServerOptions { secret: Some(secret), max_sessions: 100, ..ServerOptions::default() };
/// assert!(options.grace > options.heartbeat);
/// ```
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The secret that clients must know.
    pub secret: Option<Secret>,
    /// The server's certificate and key.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsServer>,
    /// How often an idle client pings. A connection without frames for three intervals is given up.
    pub heartbeat: Duration,
    /// How long a session outlives its connection.
    pub grace: Duration,
    /// How long a session outlives its connection if its client's process has ended, as far as that is known here. `None`:
    /// nobody looks.
    pub grace_ended: Option<Duration>,
    /// Whether a session that cannot be resumed, such as that of a client that does not read, lasts until its client's
    /// [lease](Lease) is over all the same.
    pub keeps_lease: bool,
    /// The number of this run of the server, larger than those before. `None`: the time.
    pub epoch: Option<u64>,
    /// Clients from elsewhere are not heard. None: everybody is.
    pub allow: Vec<Subnet>,
    /// The time limit of the handshake.
    pub handshake: Duration,
    /// The most sessions.
    pub max_sessions: usize,
    /// The most unauthenticated connections: those in their handshake. The oldest is closed for a new one.
    pub max_unauthenticated: usize,
    /// The most of them from one source: an IPv4 address or a /64 of IPv6.
    pub max_unauthenticated_per_source: usize,
    /// The most waits of one client at once.
    pub max_waits: u32,
    /// The most unwritten bytes of one connection.
    pub max_unwritten: usize,
    /// The most unacknowledged messages of one session.
    pub backlog: Backlog,
    /// A socket that listens already, as a service manager passes it on. `None`: one is bound to the address.
    pub listener: Option<Arc<std::net::TcpListener>>,
    /// Further runtimes: connections are distributed over them and the one that listens, round robin.
    pub workers: Vec<Handle>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            secret: None,
            #[cfg(feature = "tls")]
            tls: None,
            heartbeat: Duration::from_secs(1),
            grace: Duration::from_secs(5),
            grace_ended: None,
            keeps_lease: false,
            epoch: None,
            allow: Vec::new(),
            handshake: Duration::from_secs(5),
            max_sessions: 64 << 10,
            max_unauthenticated: 512,
            max_unauthenticated_per_source: 256,
            max_waits: 4096,
            max_unwritten: 4 << 20,
            backlog: Backlog::default(),
            listener: None,
            workers: Vec::new(),
        }
    }
}

impl ServerOptions {
    /// The lease that clients have.
    pub const fn lease(&self) -> Lease {
        Lease { heartbeat: self.heartbeat, grace: self.grace }
    }

    fn is_guarded(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return true;
        }
        self.secret.is_some()
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Unauthenticated clients could reach the lock memory.
    #[error(
        "refusing to listen on {0}: other machines could reach it, and nothing would keep them out. Give the server a \
         certificate and key (TLS) or a secret that clients must know, or listen on a loopback address such as 127.0.0.1"
    )]
    Exposed(SocketAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
}

/// A running server. Dropping it closes all connections; clients try to reconnect until their grace period is over.
///
/// ```
/// use lockwright_fabric::backend::{inproc::InProc, tcp::{ConnectOptions, InProcHost, Server, ServerOptions, TcpEndpoint}};
/// use lockwright_fabric::{Addr, Endpoint, NodeId, Word64};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let host = InProcHost::new(InProc::new(1, 4096), 0);
/// let server = Server::bind("127.0.0.1:0".parse().unwrap(), host, vec![], ServerOptions::default()).await.unwrap();
/// let ep = TcpEndpoint::connect(server.address(), ConnectOptions::default()).await.unwrap();
/// let word = Word64::at(Addr::new(NodeId(0), 8));
/// assert_eq!(ep.go((word.fetch_add(5), word.read())).await, Ok((0, 5)));
/// # });
/// ```
#[derive(Debug)]
pub struct Server<H> {
    address: SocketAddr,
    router: Arc<Router<H>>,
    listening: JoinHandle<()>,
}

impl<H: VerbHost> Server<H> {
    /// Listens on `address` and serves the memory of `host`. The i-th of `roles` is reached as `PeerId::role(i)`.
    /// Must be called on a tokio runtime, whose tasks do the work.
    ///
    /// # Errors
    /// If the address cannot be had, or is open to other machines while `options` has neither TLS nor a secret.
    pub async fn bind(
        address: SocketAddr,
        host: H,
        roles: Vec<BoxedRole>,
        options: ServerOptions,
    ) -> Result<Self, BindError> {
        if !address.ip().to_canonical().is_loopback() && !options.is_guarded() {
            return Err(BindError::Exposed(address));
        }
        let failed = |error| BindError::Io { address, error };
        let listener = match &options.listener {
            Some(listening) => adopt(listening).map_err(failed)?,
            None => bind(address).map_err(failed)?,
        };
        let address = listener.local_addr().map_err(failed)?;
        let epoch = options.epoch.unwrap_or_else(new_epoch);
        let router = Router::new(Arc::new(host), roles, options, epoch);
        let listening = tokio::spawn(listen(listener, Arc::clone(&router)));
        Ok(Self { address, router, listening })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// This run of the server: a later run has a larger number.
    pub fn epoch(&self) -> u64 {
        self.router.epoch
    }

    /// The owner of the memory.
    pub fn host(&self) -> &H {
        &self.router.host
    }

    /// Stops listening, closes all connections, and waits until that is done.
    pub async fn shut_down(mut self) {
        self.listening.abort();
        let _ = (&mut self.listening).await;
    }
}

impl<H> Drop for Server<H> {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Also while connections of the server before this one are on their way out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The same socket, for the runtime.
fn adopt(listening: &std::net::TcpListener) -> io::Result<TcpListener> {
    let listener = listening.try_clone()?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Nanoseconds since 1970: rises from run to run.
fn new_epoch() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Accepts connections. Dropping this future ends all of them: they are tasks of its set.
async fn listen<H: VerbHost>(listener: TcpListener, router: Arc<Router<H>>) {
    let ServerOptions { max_unauthenticated, max_unauthenticated_per_source, ref allow, .. } = router.options;
    let handshakes = Handshakes::new(max_unauthenticated, max_unauthenticated_per_source);
    let mut connections = JoinSet::new();
    // The runtime that listens, then the others in turn.
    let mut worker = std::iter::once(None).chain(router.options.workers.iter().map(Some)).cycle();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((_, client)) if !allow.is_empty() && !allow.iter().any(|net| net.contains(client.ip())) => {}
                Ok((stream, client)) => handshakes.begin(client.ip(), |handshake| {
                    let router = Arc::clone(&router);
                    match worker.next().flatten() {
                        None => connections.spawn(accept(stream, router, handshake)),
                        Some(worker) => connections.spawn_on(accept_on(stream, router, handshake), worker),
                    }
                }),
                // Out of file descriptors, most likely: close a connection that says nothing, or wait for one to end.
                Err(_) => {
                    let pause = if handshakes.close_oldest() { CLOSED_PAUSE } else { FULL_PAUSE };
                    tokio::time::sleep(pause).await;
                }
            },
            // A connection that panicked has printed its message; the others go on.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Accepts a client on another runtime than the one that listens.
async fn accept_on<H: VerbHost>(stream: TcpStream, router: Arc<Router<H>>, handshake: Handshake) {
    // Deregisters from one runtime and registers with the other.
    if let Ok(stream) = stream.into_std().and_then(TcpStream::from_std) {
        accept(stream, router, handshake).await;
    }
}

async fn accept<H: VerbHost>(stream: TcpStream, router: Arc<Router<H>>, handshake: Handshake) {
    let Some(info) = connection_info(&stream).filter(|_| stream.set_nodelay(true).is_ok()) else { return };
    let limit = router.options.max_unwritten;
    #[cfg(feature = "tls")]
    if let Some(tls) = &router.options.tls {
        let accepted = tokio::time::timeout(router.options.handshake, tls.accept(stream)).await;
        let Ok(Ok(stream)) = accepted else { return };
        let (incoming, out) = stream::sealed(stream, limit);
        return serve(router, info, incoming, out, handshake).await;
    }
    let (incoming, out) = stream::plain(stream, limit);
    serve(router, info, incoming, out, handshake).await;
}

/// The ends of a connection; `None` if it is closed already.
pub fn connection_info(stream: &TcpStream) -> Option<ConnectionInfo> {
    let (client, server) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    #[cfg(target_os = "linux")]
    let inode = rustix::fs::fstat(stream).ok()?.st_ino;
    #[cfg(not(target_os = "linux"))]
    let inode = 0;
    Some(ConnectionInfo { client, server, inode })
}
