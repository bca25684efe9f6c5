//! A client's endpoint over tcp.

#[cfg(target_os = "linux")]
use super::blocking::EventfdWaker;
use super::call::{End, Go, Send, Waiting, verbs_of};
use super::client::{ConnectError, ConnectOptions, Keeper, keep_going, open};
use super::close_reason::CloseReason;
use super::frame::SessionId;
use super::handler::SessionHandler;
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
/// A `go`, `send` or `wait_until` takes effect when its future is first polled, and then in the order in which they
/// were polled. Verbs and messages that were polled once happen even if the future is dropped; a wait is cancelled.
/// The futures need no runtime of their own: a tokio runtime, the one on which [`TcpEndpoint::connect`] was called,
/// does the reading, and they can be awaited anywhere.
///
/// When the connection breaks, verbs and messages that were under way fail ([`FabricError`]): whether they happened is
/// not known. Waits go on over the next connection, and so do messages for this client. If there is none within the
/// grace period, or the server was restarted, the session is over: everything fails from then on, a receive without
/// deadline never ends, and [`TcpEndpoint::closed`] says why.
///
/// Clones are the same client. Dropping the last one ends the session.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    link: Arc<Link>,
    _owner: Arc<Owner>,
}

/// Ends the session when the last clone is gone; the reading task has a link of its own.
#[derive(Debug)]
struct Owner(Arc<Link>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end(CloseReason::Closed);
    }
}

impl TcpEndpoint {
    /// Connects to the server at `address` and begins a session. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or is not the one the token is for.
    pub async fn connect(address: SocketAddr, options: ConnectOptions) -> Result<Self, ConnectError> {
        let line = open(address, &options, SessionId::default(), 0, 0).await?;
        let session = u128::from_le_bytes(line.welcome.session);
        let seed = mix(session as u64 ^ (session >> 64) as u64);
        let link = Arc::new(Link::new(&line, seed));
        tokio::spawn(keep_going(Keeper(Arc::clone(&link)), address, options, line));
        Ok(Self { _owner: Arc::new(Owner(Arc::clone(&link))), link })
    }

    /// Executes `batch` like `go`, but nobody wants to know what came of it: the cheap way to release a lock. It
    /// happens after everything that was issued before it, and before everything that is issued later. On a
    /// single-threaded runtime it leaves with the next request, or when the task yields.
    ///
    /// # Errors
    /// If the session is over.
    pub fn post<B: Batch>(&self, batch: B) -> Result<(), FabricError> {
        self.link.post(&verbs_of(batch))
    }

    /// Sends `message` like `send`, but nobody hears whether it arrived. It leaves in the order of everything else; if
    /// there is no connection, on the next one.
    ///
    /// # Errors
    /// If the session is over.
    pub fn tell(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        check(message);
        self.link.tell_peer(to, message)
    }

    /// Calls `listener` with every message from now on; only what it gives back is kept for `recv`. The first one counts.
    pub fn set_handler(&self, listener: Weak<dyn SessionHandler>) {
        self.link.set_handler(listener);
    }

    /// Waits on the calling thread until something comes from the server, and takes it in; also done when `bell` rings.
    /// `false` if neither happened within `limit`, or this connection cannot be read like that (TLS, or there is none).
    /// For a thread that blocks anyway: it saves the wake-up that it costs if the runtime's thread does the reading. That
    /// may go on beside it, and keeps the connection alive; this does not.
    #[cfg(target_os = "linux")]
    pub fn read_blocking(&self, bell: &EventfdWaker, limit: Duration) -> bool {
        self.link.read_blocking(bell, limit)
    }

    /// Whether there is a connection. A network that hangs is noticed after three heartbeats.
    pub fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    /// How many connections of this session broke so far. If it is the same before a request and after its answer,
    /// everything in between was executed, in order.
    pub fn breaks(&self) -> u64 {
        self.link.breaks()
    }

    /// How long nothing has come from the server. An idle connection says something at every heartbeat.
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(self.link.silence_ns())
    }

    /// How often an idle client shows that it is there.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_nanos(self.link.welcome.heartbeat_ns)
    }

    /// How long the session outlives its connection.
    pub fn grace(&self) -> Duration {
        Duration::from_nanos(self.link.welcome.grace_ns)
    }

    /// The run of the server that the session belongs to.
    pub fn epoch(&self) -> u64 {
        self.link.welcome.epoch
    }

    /// How the session ended, if it did.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.link.close_reason()
    }

    /// Done when the session is over, and says why.
    pub fn closed(&self) -> impl Future<Output = CloseReason> + use<'_> {
        End::new(&self.link)
    }

    /// Ends the session, for all clones.
    pub fn close(&self) {
        self.link.end(CloseReason::Closed);
    }
}

/// # Panics
/// If the message is longer than a frame can carry: a protocol that needs such has to cut it up.
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

    /// The server's clock as it was when the session began, kept going by this machine's own.
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
