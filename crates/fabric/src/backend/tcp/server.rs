//! The server: listens, lets clients in, and executes their verbs on its host's memory.
//!
//! It refuses to be reached from other machines without TLS or a secret. Everything a client can make it keep is
//! bounded, see [`ServerOptions`].

use super::auth::Secret;
use super::connection::serve;
use super::host::VerbHost;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::session::Kept;
use super::switchboard::Switchboard;
#[cfg(feature = "tls")]
use super::tls::TlsServer;
use crate::message::BoxedRole;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// How a server behaves.
///
/// ```
/// use lockwright_fabric::backend::tcp::{ServerOptions, Secret};
/// let secret = Secret::new("a long and random line of text").unwrap();
/// let options = ServerOptions { secret: Some(secret), max_sessions: 100, ..ServerOptions::default() };
/// assert!(options.grace > options.heartbeat);
/// ```
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What clients must know.
    pub secret: Option<Secret>,
    /// The certificate and key with which the server proves who it is.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsServer>,
    /// How often an idle client shows that it is there. Three beats missed, and its connection is given up.
    pub heartbeat: Duration,
    /// How long a session outlives its connection.
    pub grace: Duration,
    /// How long a session outlives a connection that was closed, as the system does for a process that died: a
    /// living client is back at once. As long as any other if there is none.
    pub grace_closed: Option<Duration>,
    /// This run of the server, larger than that of all before; the time if there is none.
    pub epoch: Option<u64>,
    /// How long a client may take to introduce itself.
    pub handshake: Duration,
    /// The most sessions.
    pub max_sessions: usize,
    /// The most connections that have not introduced themselves yet.
    pub max_strangers: usize,
    /// The most waits of one client at once.
    pub max_waits: u32,
    /// The most bytes that wait for one client to read them.
    pub max_unread: usize,
    /// What a session keeps for its client until it is acknowledged.
    pub kept: Kept,
    /// Further runtimes, each with a thread of its own: connections are dealt out to them and to the one that listens.
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
            grace_closed: None,
            epoch: None,
            handshake: Duration::from_secs(5),
            max_sessions: 64 << 10,
            max_strangers: 256,
            max_waits: 4096,
            max_unread: 4 << 20,
            kept: Kept::default(),
            workers: Vec::new(),
        }
    }
}

impl ServerOptions {
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
    /// Strangers could reach the lock memory.
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

/// A running server. Dropping it closes all connections; clients try to come back until their grace period is over.
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
    board: Arc<Switchboard<H>>,
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
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let epoch = options.epoch.unwrap_or_else(new_epoch);
        let board = Switchboard::new(Arc::new(host), roles, options, epoch);
        let listening = tokio::spawn(listen(listener, Arc::clone(&board)));
        Ok(Self { address, board, listening })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// This run of the server: a later run has a larger number.
    pub fn epoch(&self) -> u64 {
        self.board.epoch
    }

    /// The owner of the memory.
    pub fn host(&self) -> &H {
        &self.board.host
    }

    /// Stops listening, closes all connections and waits until that is done.
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

/// Nanoseconds since 1970: rises from run to run.
fn new_epoch() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Dropping this future ends all connections, which are tasks of its set.
async fn listen<H: VerbHost>(listener: TcpListener, board: Arc<Switchboard<H>>) {
    let strangers = Arc::new(Semaphore::new(board.options.max_strangers));
    let mut connections = JoinSet::new();
    // The one that listens, then the others in turn.
    let mut worker = std::iter::once(None).chain(board.options.workers.iter().map(Some)).cycle();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // A crowd that does not introduce itself keeps others out only until its time is over.
                    let Ok(permit) = Arc::clone(&strangers).try_acquire_owned() else { continue };
                    match worker.next().flatten() {
                        None => connections.spawn(welcome(stream, Arc::clone(&board), permit)),
                        Some(worker) => connections.spawn_on(move_in(stream, Arc::clone(&board), permit), worker),
                    };
                }
                // Out of file descriptors, most likely: somebody has to hang up first.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            // A connection that panicked has said so; the others go on.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Welcomes a client on another runtime than the one that listens.
async fn move_in<H: VerbHost>(
    stream: TcpStream,
    board: Arc<Switchboard<H>>,
    permit: tokio::sync::OwnedSemaphorePermit,
) {
    // From one runtime's events to the other's.
    if let Ok(stream) = stream.into_std().and_then(TcpStream::from_std) {
        welcome(stream, board, permit).await;
    }
}

async fn welcome<H: VerbHost>(
    stream: TcpStream,
    board: Arc<Switchboard<H>>,
    permit: tokio::sync::OwnedSemaphorePermit,
) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let limit = board.options.max_unread;
    #[cfg(feature = "tls")]
    if let Some(tls) = &board.options.tls {
        let accepted = tokio::time::timeout(board.options.handshake, tls.accept(stream)).await;
        let Ok(Ok(stream)) = accepted else { return };
        let (reader, writer) = tokio::io::split(stream);
        let out = Outgoing::new(None, limit);
        tokio::spawn(Arc::clone(&out).write(Some(Box::new(writer))));
        return serve(board, Incoming::new(reader), out, || drop(permit)).await;
    }
    let (reader, writer) = stream.into_split();
    let out = Outgoing::new(Some(writer), limit);
    tokio::spawn(Arc::clone(&out).write(None));
    serve(board, Incoming::new(reader), out, || drop(permit)).await;
}
