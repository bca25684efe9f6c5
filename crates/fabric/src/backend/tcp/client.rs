//! A client's connection: the handshake, the task that reads, and what it does to come back after a break.

use super::auth::{Exchange, Side, Token, secret};
use super::close_reason::CloseReason;
use super::connection::MISSED_BEATS;
use super::frame::{Frame, FrameError, Hello, Refusal, SessionId, Welcome};
use super::incoming::{Incoming, ReadError};
use super::link::Link;
use super::outgoing::Outgoing;
#[cfg(feature = "tls")]
use super::tls::TlsClient;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout, timeout_at};

/// Pauses between attempts to come back.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How a client connects.
///
/// ```
/// use lockwright_fabric::backend::tcp::ConnectOptions;
/// let options = ConnectOptions { name: "billing on db7".to_owned(), ..ConnectOptions::default() };
/// assert!(options.token.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// What the server must know too.
    pub token: Option<Token>,
    /// Whom to trust; without it nothing is encrypted.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsClient>,
    /// Who this is, for people who look at the server.
    pub name: String,
    /// How long connecting may take.
    pub timeout: Duration,
    /// The most bytes that wait to be written before the connection counts as broken.
    pub max_unwritten: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            token: None,
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
    /// The network says no.
    #[error("cannot reach the server: {0}")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The server said no.
    #[error("the server refused: {text}")]
    Refused {
        /// Why.
        why: Refusal,
        /// This run of the server.
        epoch: u64,
        /// Why, for people.
        text: String,
    },
    /// The server wants a token.
    #[error("the server wants a token, and none was given")]
    TokenWanted,
    /// The server does not know our token: it may be somebody else.
    #[error("the server did not prove that it knows the token: it is not the one this token is for")]
    Unproven,
    /// What it says makes no sense.
    #[error("this is not a Lockwright server: {0}")]
    Foreign(FrameError),
    /// Something else came than a welcome.
    #[error("the server broke off the handshake")]
    BrokenOff,
}

impl From<ReadError> for ConnectError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed => Self::BrokenOff,
            ReadError::Io(error) => Self::Io(error),
            ReadError::Frame(error) => Self::Foreign(error),
        }
    }
}

/// A connection that is in.
pub(super) struct Line {
    /// Read by the task below, and by threads that wait: whoever gets there first.
    pub(super) incoming: Arc<Mutex<Incoming>>,
    pub(super) out: Arc<Outgoing>,
    pub(super) welcome: Welcome,
}

/// Connects and shakes hands: for a new session, or to go on with one after message `seen`.
pub(super) async fn open(
    address: SocketAddr,
    options: &ConnectOptions,
    session: SessionId,
    epoch: u64,
    seen: u64,
) -> Result<Line, ConnectError> {
    let nonce = secret();
    let hello = Hello { features: 0, session, epoch, seen, nonce, name: options.name.clone() };
    let opening = async {
        let (mut incoming, out) = dial(address, options).await?;
        match shake_hands(&mut incoming, &out, options, hello).await {
            Ok(welcome) => Ok(Line { incoming: Arc::new(Mutex::new(incoming)), out, welcome }),
            Err(error) => {
                out.close();
                Err(error)
            }
        }
    };
    timeout(options.timeout, opening).await.unwrap_or(Err(ConnectError::TimedOut))
}

async fn dial(address: SocketAddr, options: &ConnectOptions) -> io::Result<(Incoming, Arc<Outgoing>)> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        let (reader, writer) = tokio::io::split(tls.connect(stream).await?);
        let out = Outgoing::new(None, options.max_unwritten);
        tokio::spawn(Arc::clone(&out).write(Some(Box::new(writer))));
        return Ok((Incoming::new(reader), out));
    }
    let (reader, writer) = stream.into_split();
    let out = Outgoing::new(Some(writer), options.max_unwritten);
    tokio::spawn(Arc::clone(&out).write(None));
    Ok((Incoming::new(reader), out))
}

async fn shake_hands(
    incoming: &mut Incoming,
    out: &Outgoing,
    options: &ConnectOptions,
    hello: Hello,
) -> Result<Welcome, ConnectError> {
    let mut exchange = Exchange { client: hello.nonce, server: [0; 32], session: hello.session };
    out.push(|bytes| Frame::Hello(hello).encode(bytes));
    let mut proven = options.token.is_none();
    loop {
        match incoming.frame().await? {
            Frame::Challenge(nonce) => {
                let token = options.token.as_ref().ok_or(ConnectError::TokenWanted)?;
                exchange.server = nonce;
                let proof = token.prove(Side::Client, &exchange);
                out.push(|bytes| Frame::Proof(proof).encode(bytes));
                proven = true;
            }
            Frame::Welcome(welcome) => {
                let known = options
                    .token
                    .as_ref()
                    .is_none_or(|token| token.accepts(Side::Server, &exchange, &welcome.proof));
                return if proven && known { Ok(welcome) } else { Err(ConnectError::Unproven) };
            }
            Frame::Refused { why, epoch, text } => return Err(ConnectError::Refused { why, epoch, text }),
            _ => return Err(ConnectError::BrokenOff),
        }
    }
}

/// Keeps a session going until it is over. The keeper is an argument, so that it exists from the beginning: the runtime
/// may go away before this is polled for the first time.
pub(super) async fn keep_going(keeper: Keeper, address: SocketAddr, options: ConnectOptions, line: Line) {
    let link = &keeper.0;
    let mut line = line;
    loop {
        let fate = read(link, line).await;
        if let Some(fate) = fate {
            link.end(fate);
        }
        if !link.go_down() {
            return;
        }
        match come_back(link, address, &options).await {
            Ok(new) => line = new,
            Err(fate) => return link.end(fate),
        }
        if !link.go_up(&line) {
            line.out.push(|bytes| Frame::Goodbye.encode(bytes));
            line.out.finish();
            return;
        }
    }
}

/// Whoever keeps a session going. When it goes, so does the session: nobody may wait for ever.
pub(super) struct Keeper(pub(super) Arc<Link>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.end(CloseReason::Expired);
    }
}

/// Takes in what the server says until the connection breaks. The session's fate, if that was it.
async fn read(link: &Link, line: Line) -> Option<CloseReason> {
    let Line { incoming, out, .. } = line;
    let _close = CloseAtDrop(&out);
    let beat = Duration::from_nanos(link.welcome.heartbeat_ns.max(1_000_000));
    let mut beats = interval_at(Instant::now() + beat, beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut silent, mut heard) = (0, link.heard());
    // What came behind the welcome.
    if let Err(fate) = take_in(link, &mut incoming.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Some(fate);
    }
    loop {
        tokio::select! {
            biased;
            read = poll_fn(|cx| poll_read(link, &incoming, cx)) => match read {
                Ok(None) => {}
                Ok(fate) => return fate,
                Err(_) => return None,
            },
            () = out.closed() => return None,
            _ = beats.tick() => {
                // Threads that wait hear the server too.
                let last = std::mem::replace(&mut heard, link.heard());
                silent = if heard == last { silent + 1 } else { 1 };
                if silent > MISSED_BEATS {
                    return None;
                }
                let seen = link.seen();
                out.push(|bytes| Frame::Ping { seen }.encode(bytes));
            }
        }
    }
}

/// Reads once, and takes in what that completes: the session's fate, if it has come to that.
fn poll_read(
    link: &Link,
    incoming: &Mutex<Incoming>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<CloseReason>, ReadError>> {
    let mut incoming = incoming.lock().unwrap_or_else(PoisonError::into_inner);
    ready!(incoming.poll_fill(cx))?;
    link.hear();
    Poll::Ready(Ok(take_in(link, &mut incoming).err()))
}

/// Takes in every frame that has come completely.
pub(super) fn take_in(link: &Link, incoming: &mut Incoming) -> Result<(), CloseReason> {
    loop {
        match incoming.next() {
            Ok(Some(frame)) => link.take_in(frame)?,
            Ok(None) => return Ok(()),
            Err(error) => return Err(CloseReason::Refused(format!("it sent nonsense: {error}"))),
        }
    }
}

struct CloseAtDrop<'a>(&'a Outgoing);

impl Drop for CloseAtDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Tries to go on with the session until the server will have given it up.
async fn come_back(link: &Link, address: SocketAddr, options: &ConnectOptions) -> Result<Line, CloseReason> {
    let Welcome { session, epoch, grace_ns, .. } = link.welcome;
    let until = Instant::now() + Duration::from_nanos(grace_ns);
    let mut pause = FIRST_PAUSE;
    while link.close_reason().is_none() {
        let attempt = open(address, options, session, epoch, link.seen());
        match timeout_at(until, attempt).await {
            Ok(Ok(line)) => return Ok(line),
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
