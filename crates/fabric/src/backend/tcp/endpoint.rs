//! A client's endpoint over tcp.

#[cfg(target_os = "linux")]
use super::blocking::EventfdWaker;
use super::client::{ConnectError, ConnectOptions, EndOnDrop, open, run_session};
use super::close_reason::CloseReason;
use super::frame::SessionId;
use super::futures::{End, Go, Send, Waiting, verbs_of};
use super::handler::SessionHandler;
use super::lease::Lease;
use super::link::Link;
use super::wire::MAX_TAIL;
use crate::addr::{PeerId, Value};
use crate::backend::inproc::mailbox::Receive;
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::random::mix;
use crate::verb::Batch;
use crate::wait::{Deadline, Time, Wait, Waited};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One client of a [`Server`](super::Server).
///
/// A `go`, `send` or `wait_until` is sent when its future is first polled, in the order of these polls. Verbs and messages
/// are executed even if the future is dropped then; a wait is cancelled. The futures can be awaited anywhere: the tokio
/// runtime on which [`TcpEndpoint::connect`] was called does the reading.
///
/// When the connection breaks, verbs and messages in flight fail ([`FabricError`]): whether they were executed is not
/// known. Waits, and messages to this client, continue on the next connection. Without one within the grace period, or
/// if the server was restarted, the session is over: every request fails, a receive without deadline never ends, and
/// [`TcpEndpoint::closed`] says why.
///
/// Clones are the same client. Dropping the last one ends the session.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    link: Arc<Link>,
    _owner: Arc<Owner>,
}

/// Ends the session when the last clone is dropped; the reading task has its own reference.
#[derive(Debug)]
struct Owner(Arc<Link>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end(&CloseReason::Closed);
    }
}

impl TcpEndpoint {
    /// Connects to the server at `address` and begins a session. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or does not know the secret.
    pub async fn connect(address: SocketAddr, options: ConnectOptions) -> Result<Self, ConnectError> {
        let connection = open(address, &options, SessionId::default(), 0, 0).await?;
        let session = u128::from_le_bytes(connection.welcome.session);
        let seed = mix(session as u64 ^ (session >> 64) as u64);
        let link = Arc::new(Link::new(&connection, seed));
        tokio::spawn(run_session(EndOnDrop(Arc::clone(&link)), address, options, connection));
        Ok(Self { _owner: Arc::new(Owner(Arc::clone(&link))), link })
    }

    /// Executes `batch` like `go`, without an answer: the cheap way to release a lock. Ordered with all other requests. On a
    /// single-threaded runtime it leaves with the next request, or when the task yields.
    ///
    /// # Errors
    /// If the session is over.
    pub fn post<B: Batch>(&self, batch: B) -> Result<(), FabricError> {
        self.link.post(&verbs_of(batch))
    }

    /// Sends `message` like `send`, without an answer (an actor's `tell`). Ordered with all other requests; if there is no
    /// connection, it leaves on the next one.
    ///
    /// # Errors
    /// If the session is over.
    pub fn tell(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        check(message);
        self.link.tell_peer(to, message, true)
    }

    /// As [`tell`](Self::tell), for what nobody waits for: if messages usually follow each other closely, it leaves with the next
    /// one, or a fifth of a millisecond later at most.
    ///
    /// # Errors
    /// If the session is over.
    pub fn tell_deferrable(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        check(message);
        self.link.tell_peer(to, message, false)
    }

    /// Calls `handler` with every message from now on; only what it returns is kept for `recv`. Only the first call counts.
    pub fn set_handler(&self, handler: Weak<dyn SessionHandler>) {
        self.link.set_handler(handler);
    }

    /// Blocks the calling thread until frames arrive from the server, and processes them; returns early if `waker` is woken.
    /// `false` if neither happened within `limit`, or the connection cannot be read like this (TLS, or there is none). For a
    /// thread that blocks anyway: it saves the wake-up by the runtime's thread, which may read at the same time and sends
    /// the heartbeats; this does not.
    #[cfg(target_os = "linux")]
    pub fn read_blocking(&self, waker: &EventfdWaker, limit: Duration) -> bool {
        self.link.read_blocking(waker, limit)
    }

    /// Whether there is a connection. A hanging network is noticed after three heartbeats.
    pub fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    /// How many connections of this session have broken. If it is the same before a request and after its answer, everything
    /// in between was executed, in order.
    pub fn breaks(&self) -> u64 {
        self.link.breaks()
    }

    /// The time since the last frame from the server. On an idle connection there is one per heartbeat.
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(self.link.silence_ns())
    }

    /// The time since this client sent the last message that the server is known to have received. The client's
    /// [lease](Lease) is counted from there.
    pub fn acknowledged(&self) -> Duration {
        Duration::from_nanos(self.link.acknowledged_ns())
    }

    /// Whether there is a connection over which the server was heard lately, and what it is known to have received is younger
    /// than `lease`. Takes no lock.
    #[inline]
    pub fn is_certain(&self, lease: Duration) -> bool {
        self.link.is_certain(u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The lease that the server gives.
    pub fn lease(&self) -> Lease {
        self.link.lease()
    }

    /// The run of the server in which the session began.
    pub fn epoch(&self) -> u64 {
        self.link.welcome.epoch
    }

    /// How the session ended, if it did.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.link.close_reason()
    }

    /// Ready when the session is over, with the reason.
    pub fn closed(&self) -> impl Future<Output = CloseReason> + use<'_> {
        End::new(&self.link)
    }

    /// Ends the session, for all clones.
    pub fn close(&self) {
        self.link.end(&CloseReason::Closed);
    }
}

/// # Panics
/// If the message does not fit into a frame: a protocol that needs more has to split it.
fn check(message: &Message) {
    let words = message.tail.len();
    assert!(words <= MAX_TAIL, "a message over tcp has a tail of at most {MAX_TAIL} words, not {words}");
}

impl Endpoint for TcpEndpoint {
    fn me(&self) -> PeerId {
        self.link.welcome.peer
    }

    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        Go::new(&self.link, batch)
    }

    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        Waiting::new(&self.link, wait)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        check(&message);
        Send::new(&self.link, to, message)
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        check(&message);
        self.link.send_datagram(to, &message);
        Ok(())
    }

    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        Receive::new(&self.link.mailbox, &self.link.clock, deadline, pick)
    }

    /// The server's clock at the start of the session, advanced by this machine's.
    async fn now(&self) -> Time {
        self.link.clock.now()
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.link.clock.sleep(ns)
    }

    /// SplitMix64, one stream per session.
    fn random(&self) -> u64 {
        self.link.random.next()
    }
}
