//! A client's connection: the handshake, the task that reads, and reconnecting.

use super::auth::{Exchange, Secret, Side, random_bytes};
use super::close_reason::CloseReason;
use super::frame::{ClientProcess, Frame, FrameError, Hello, Refusal, SessionId, Welcome};
use super::incoming::{Incoming, ReadError};
use super::lease::MISSED_HEARTBEATS;
use super::link::Link;
use super::outgoing::Outgoing;
use super::stream;
#[cfg(feature = "tls")]
use super::tls::TlsClient;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout, timeout_at};

/// Backoff between attempts to reconnect.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How a client connects.
///
/// ```
/// use lockwright_fabric::backend::tcp::ConnectOptions;
/// let options = ConnectOptions { name: "billing on db7".to_owned(), ..ConnectOptions::default() };
/// assert!(options.secret.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The secret that the server must know too.
    pub secret: Option<Secret>,
    /// The trusted certificates; without them nothing is encrypted.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsClient>,
    /// The client's name, shown by the server.
    pub name: String,
    /// The time limit of one attempt to connect.
    pub timeout: Duration,
    /// The most unwritten bytes before the connection counts as broken.
    pub max_unwritten: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            secret: None,
            #[cfg(feature = "tls")]
            tls: None,
            name: format!("process {}", std::process::id()),
            timeout: Duration::from_secs(5),
            max_unwritten: 16 << 20,
        }
    }
}

/// Why a client could not connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The network failed.
    #[error("cannot reach the server: {0}")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The server refused.
    #[error("the server refused: {text}")]
    Refused {
        /// Why.
        why: Refusal,
        /// This run of the server.
        epoch: u64,
        /// The reason in words.
        text: String,
    },
    /// The server requires a secret.
    #[error("the server wants a secret, and none was given")]
    SecretRequired,
    /// The server does not know the secret: it may be another server.
    #[error("the server did not prove that it knows the secret: it is not the one this secret is for")]
    Unproven,
    /// Its frames are malformed.
    #[error("this is not a Lockwright server: {0}")]
    Foreign(FrameError),
    /// The server ended the handshake.
    #[error("the server broke off the handshake")]
    HandshakeAborted,
}

impl ConnectError {
    /// Whether the server closed the connection without a word, as it does when too many clients connect at once: another
    /// attempt may succeed.
    pub fn is_broken_off(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match self {
            Self::HandshakeAborted => true,
            Self::Io(error) => {
                matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
            }
            _ => false,
        }
    }
}

impl From<ReadError> for ConnectError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed => Self::HandshakeAborted,
            ReadError::Io(error) => Self::Io(error),
            ReadError::Frame(error) => Self::Foreign(error),
        }
    }
}

/// An authenticated connection.
pub(super) struct Connection {
    /// Read by the session's task, and by threads in [`read_blocking`](super::TcpEndpoint::read_blocking).
    pub(super) incoming: Arc<Mutex<Incoming>>,
    pub(super) out: Arc<Outgoing>,
    pub(super) welcome: Welcome,
    /// Just before it was asked for.
    pub(super) asked: std::time::Instant,
}

/// Connects, for a new session or to resume one after message `seen`.
pub(super) async fn open(
    address: SocketAddr,
    options: &ConnectOptions,
    session: SessionId,
    epoch: u64,
    seen: u64,
) -> Result<Connection, ConnectError> {
    let (nonce, asked) = (random_bytes(), std::time::Instant::now());
    let (process, name) = (ClientProcess::own(), options.name.clone());
    let hello = Hello { features: 0, session, epoch, seen, nonce, process, name };
    let opening = async {
        let (mut incoming, out) = dial(address, options).await?;
        match handshake(&mut incoming, &out, options, hello).await {
            Ok(welcome) => Ok(Connection { incoming: Arc::new(Mutex::new(incoming)), out, welcome, asked }),
            Err(error) => {
                out.close();
                Err(error)
            }
        }
    };
    timeout(options.timeout, opening).await.unwrap_or(Err(ConnectError::TimedOut))
}

async fn dial(address: SocketAddr, options: &ConnectOptions) -> io::Result<(Incoming, Arc<Outgoing>)> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        return Ok(stream::sealed(tls.connect(tcp).await?, options.max_unwritten));
    }
    Ok(stream::plain(tcp, options.max_unwritten))
}

async fn handshake(
    incoming: &mut Incoming,
    out: &Outgoing,
    options: &ConnectOptions,
    hello: Hello,
) -> Result<Welcome, ConnectError> {
    let mut exchange = Exchange { client: hello.nonce, server: [0; 32], session: hello.session };
    out.push(|bytes| Frame::Hello(hello).encode(bytes));
    let mut proven = options.secret.is_none();
    loop {
        match incoming.frame().await? {
            Frame::Challenge(nonce) => {
                let secret = options.secret.as_ref().ok_or(ConnectError::SecretRequired)?;
                exchange.server = nonce;
                let proof = secret.prove(Side::Client, &exchange);
                out.push(|bytes| Frame::Proof(proof).encode(bytes));
                proven = true;
            }
            Frame::Welcome(welcome) => {
                let known = options
                    .secret
                    .as_ref()
                    .is_none_or(|secret| secret.accepts(Side::Server, &exchange, &welcome.proof));
                return if proven && known { Ok(welcome) } else { Err(ConnectError::Unproven) };
            }
            Frame::Refused { why, epoch, text } => return Err(ConnectError::Refused { why, epoch, text }),
            _ => return Err(ConnectError::HandshakeAborted),
        }
    }
}

/// Reads and reconnects until the session is over. The guard is an argument, so that it exists even if the runtime is
/// dropped before the first poll.
pub(super) async fn run_session(
    guard: EndOnDrop,
    address: SocketAddr,
    options: ConnectOptions,
    connection: Connection,
) {
    let link = &guard.0;
    let mut connection = connection;
    loop {
        {
            let _close = CloseAtDrop(Arc::clone(&connection.out));
            if let Some(reason) = read(link, &connection).await {
                link.end(&reason);
            }
        }
        if !link.connection_lost() {
            return;
        }
        match reconnect(link, address, &options).await {
            Ok(new) => connection = new,
            Err(reason) => return link.end(&reason),
        }
        if !link.connection_resumed(&connection) {
            connection.out.push(|bytes| Frame::Goodbye.encode(bytes));
            connection.out.finish();
            return;
        }
    }
}

/// Ends the session when its task is dropped: otherwise requests would wait for ever.
pub(super) struct EndOnDrop(pub(super) Arc<Link>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(&CloseReason::Expired);
    }
}

/// Processes the server's frames until the connection is closed, breaks, or the server has not answered for some heartbeats:
/// the close reason, if the session is over.
async fn read(link: &Link, connection: &Connection) -> Option<CloseReason> {
    let Connection { incoming, out, .. } = connection;
    let heartbeat = link.lease().heartbeat.max(Duration::from_millis(1));
    let mut heartbeats = interval_at(Instant::now() + heartbeat, heartbeat);
    heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut silent, mut received) = (0, link.last_received());
    // Frames that followed the welcome.
    if let Err(reason) = process(link, &mut locked(incoming)) {
        return Some(reason);
    }
    loop {
        tokio::select! {
            biased;
            read = poll_fn(|cx| poll_read(link, incoming, cx)) => match read {
                Ok(None) => {}
                Ok(Some(reason)) => return Some(reason),
                Err(_) => return None,
            },
            () = out.closed() => return None,
            _ = heartbeats.tick() => {
                // Threads in `read_blocking` may have read the connection.
                let last = std::mem::replace(&mut received, link.last_received());
                silent = if received == last { silent + 1 } else { 1 };
                if silent > MISSED_HEARTBEATS {
                    return None;
                }
                let seen = link.seen();
                locked(incoming).pings.push_back(link.clock.now());
                out.push(|bytes| Frame::Ping { seen }.encode(bytes));
            }
        }
    }
}

/// Reads once and processes the completed frames: the close reason, if one ended the session.
fn poll_read(
    link: &Link,
    incoming: &Mutex<Incoming>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<CloseReason>, ReadError>> {
    let mut incoming = locked(incoming);
    ready!(incoming.poll_fill(cx))?;
    link.note_received();
    Poll::Ready(Ok(process(link, &mut incoming).err()))
}

fn locked(incoming: &Mutex<Incoming>) -> MutexGuard<'_, Incoming> {
    incoming.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processes every complete frame.
pub(super) fn process(link: &Link, incoming: &mut Incoming) -> Result<(), CloseReason> {
    loop {
        match incoming.next() {
            // Pings are answered in order.
            Ok(Some(Frame::Pong)) => {
                incoming.pings.pop_front().into_iter().for_each(|sent| link.acknowledge(sent));
            }
            Ok(Some(frame)) => link.process(frame)?,
            Ok(None) => return Ok(()),
            Err(error) => return Err(CloseReason::Refused(format!("it sent a malformed frame: {error}"))),
        }
    }
}

struct CloseAtDrop(Arc<Outgoing>);

impl Drop for CloseAtDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Tries to resume the session until its grace period is over.
async fn reconnect(
    link: &Link,
    address: SocketAddr,
    options: &ConnectOptions,
) -> Result<Connection, CloseReason> {
    let Welcome { session, epoch, .. } = link.welcome;
    let until = Instant::now() + link.lease().grace;
    let mut pause = FIRST_PAUSE;
    while link.close_reason().is_none() {
        let attempt = open(address, options, session, epoch, link.seen());
        match timeout_at(until, attempt).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(ConnectError::Refused { why: Refusal::UnknownSession, epoch: new, .. }))
                if new != epoch =>
            {
                return Err(CloseReason::Restarted { epoch: new });
            }
            Ok(Err(ConnectError::Refused { why: Refusal::UnknownSession, .. })) => {
                return Err(CloseReason::Expired);
            }
            Ok(Err(ConnectError::Refused { text, .. })) => return Err(CloseReason::Refused(text)),
            Ok(Err(_)) if Instant::now() + pause < until => sleep(pause).await,
            Ok(Err(_)) | Err(_) => return Err(CloseReason::Expired),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Err(CloseReason::Closed)
}
