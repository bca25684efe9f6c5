//! A client's session: its event loop, its connection to the host, and the control connection.
//!
//! A queue pair that is in error is replaced by another one of the same session: the host destroys its end before it answers,
//! so that nothing of the old one takes effect later. Verbs that were under way have failed, and their callers are told that
//! the node could not be reached; messages from the host are numbered, and none is lost or doubled. Only when the control
//! connection ends, or nothing is heard on it, is the client lost.

use super::connection::Connection;
use super::control::{Frame, RegionInfo, Welcome};
use super::device::{Device, DeviceChoice, DeviceError};
use super::encoding;
use super::event_loop::{EventLoop, LoopThread};
use super::handshake;
use super::incoming::Incoming;
use super::peers::{ConnectReply, PeerConnections, Route};
use super::queue_pair::QueuePair;
use crate::addr::PeerId;
use crate::backend::clock::Clock;
use crate::backend::tcp::{CloseReason, Secret};
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::random::SharedSplitMix;
use crate::wait::Time;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How a client connects and behaves.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// The device to use.
    pub device: DeviceChoice,
    /// Emulate masked and guarded verbs by compare-and-swap, retrying; batches with such verbs take several round
    /// trips. Without it the fabric says that it has none, and protocols choose their portable layouts.
    pub emulate_masks: bool,
    /// Connections to other clients at most.
    pub max_peers: usize,
    /// Nanoseconds between two READs of a wait, where the protocol does not say.
    pub pace_ns: u64,
    /// The secret that the host wants.
    pub secret: Option<Secret>,
    /// What the client calls itself. A [service](super::RdmaService) may read more out of it.
    pub name: String,
    /// How long the host may take to answer.
    pub timeout: Duration,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            emulate_masks: false,
            max_peers: 64,
            pace_ns: 2_000,
            secret: None,
            name: String::new(),
            timeout: Duration::from_secs(10),
        }
    }
}

/// Why a client did not get in, or a host did not start.
#[derive(Debug, thiserror::Error)]
pub enum RdmaConnectError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The control connection.
    #[error("the RDMA host at {host} cannot be reached: {error}")]
    Unreachable {
        /// Where it should be.
        host: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The host said no.
    #[error("the RDMA host at {host} refuses: {text}")]
    Refused {
        /// Who.
        host: SocketAddr,
        /// Why.
        text: String,
    },
    /// Two who share no secret.
    #[error("the RDMA host at {host} {what}")]
    Trust {
        /// Who.
        host: SocketAddr,
        /// What is wrong.
        what: &'static str,
    },
    /// The host's address would be open to other machines.
    #[error("{0} can be reached by other machines, and nothing would keep them out: a secret is needed")]
    Exposed(SocketAddr),
    /// The host lends nothing of that size.
    #[error(
        "the RDMA host at {host} lends {has} bytes on node {node}, where {needs} are needed: it has another space, or \
         other parameters"
    )]
    TooSmall {
        /// Who.
        host: SocketAddr,
        /// Which node.
        node: u16,
        /// What it lends there.
        has: u64,
        /// What is needed.
        needs: u64,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Client {
    // Queue pairs go first: their event loop must outlive them.
    peers: PeerConnections,
    /// A queue pair that the host does not know yet.
    renewing: Mutex<Option<QueuePair>>,
    pub(super) host: Arc<Connection>,
    event_loop: Arc<EventLoop>,
    _thread: LoopThread,
    pub(super) incoming: Arc<Incoming>,
    pub(super) peer: PeerId,
    pub(super) welcome: Welcome,
    pub(super) address: SocketAddr,
    pub(super) clock: Clock,
    control: Mutex<TcpStream>,
    pub(super) options: RdmaOptions,
    pub(super) random: SharedSplitMix,
    /// Queue pairs to the host that had to be replaced.
    pub(super) renewals: AtomicU64,
    lost: AtomicBool,
    closed: AtomicBool,
    /// When the last frame from the host came.
    last_frame: Mutex<Instant>,
    heartbeats: Mutex<Heartbeats>,
}

/// Heartbeats, and when the last one was sent that the host has answered.
#[derive(Debug)]
struct Heartbeats {
    answered: Instant,
    /// The oldest one that is not answered yet.
    unanswered: Option<Instant>,
}

impl Client {
    pub(super) fn connect(host: SocketAddr, options: RdmaOptions) -> Result<Arc<Self>, RdmaConnectError> {
        let device = Arc::new(Device::open(&options.device)?);
        let incoming = Arc::<Incoming>::default();
        let (event_loop, thread) = EventLoop::open(&device, Box::new(Arc::clone(&incoming)))?;
        let pair = event_loop.queue_pair(false)?;
        let unreachable = |error| RdmaConnectError::Unreachable { host, error };
        let began = Instant::now();
        let mut control = TcpStream::connect_timeout(&host, options.timeout).map_err(unreachable)?;
        control.set_nodelay(true).map_err(unreachable)?;
        control.set_read_timeout(Some(options.timeout)).map_err(unreachable)?;
        let welcome = handshake::connect(&mut control, host, &pair.info, &options)?;
        let heartbeat = Duration::from_millis(u64::from(welcome.heartbeat_ms.max(1)));
        control.set_read_timeout(Some(heartbeat)).map_err(unreachable)?;
        control.set_write_timeout(Some(options.timeout)).map_err(unreachable)?;
        incoming.set_sender(pair.info.number, None);
        pair.connect(&welcome.pair)?;
        let reader = control.try_clone().map_err(unreachable)?;
        let client = Arc::new(Self {
            peers: PeerConnections::default(),
            renewing: Mutex::default(),
            host: Connection::new(&event_loop, pair),
            event_loop,
            _thread: thread,
            incoming,
            peer: welcome.peer,
            clock: Clock::showing(Time(welcome.now_ns)),
            random: SharedSplitMix::new(u64::from(welcome.peer.0)),
            welcome,
            address: host,
            control: Mutex::new(control),
            options,
            renewals: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            last_frame: Mutex::new(Instant::now()),
            heartbeats: Mutex::new(Heartbeats { answered: began, unanswered: None }),
        });
        let _ = client.incoming.client.set(Arc::downgrade(&client));
        let weak = Arc::downgrade(&client);
        let started = std::thread::Builder::new()
            .name("lockwright-rdma-control".to_owned())
            .spawn(move || read_control(reader, &weak, heartbeat));
        started.map_err(unreachable)?;
        Ok(client)
    }

    pub(super) fn event_loop(&self) -> &Arc<EventLoop> {
        &self.event_loop
    }

    pub(super) fn regions(&self) -> &[RegionInfo] {
        &self.welcome.regions
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    pub(super) fn heartbeat(&self) -> Duration {
        Duration::from_millis(u64::from(self.welcome.heartbeat_ms))
    }

    pub(super) fn grace(&self) -> Duration {
        Duration::from_millis(u64::from(self.welcome.grace_ms))
    }

    /// How long no frame has come from the host.
    pub(super) fn silence(&self) -> Duration {
        self.last_frame.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// How long ago the last heartbeat was sent that the host has answered.
    pub(super) fn acknowledged(&self) -> Duration {
        self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner).answered.elapsed()
    }

    fn send_heartbeat(&self) {
        self.heartbeats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .unanswered
            .get_or_insert_with(Instant::now);
        self.send_frame(&Frame::Heartbeat);
    }

    /// How the session ended, if it did.
    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        if self.closed.load(Relaxed) {
            Some(CloseReason::Closed)
        } else {
            self.is_lost().then_some(CloseReason::Expired)
        }
    }

    pub(super) fn send_frame(&self, frame: &Frame) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection that broke is seen by the thread that reads it.
        let _ = frame.write(&mut *control);
    }

    /// The host is gone: everything fails from now on.
    fn lose(&self) {
        if self.lost.swap(true, Relaxed) {
            return;
        }
        self.host.close();
        drop(self.renewing.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.incoming.mailbox.close();
        self.peers.close();
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(Shutdown::Both);
        drop(control);
        if let (Some(handler), false) = (self.incoming.handler(), self.closed.load(Relaxed)) {
            handler.closed(&CloseReason::Expired);
        }
    }

    /// The queue pair to the host is in error: it is destroyed, and the host is asked for another.
    pub(super) fn renew(&self) {
        let mut renewing = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost() || renewing.is_some() {
            return;
        }
        self.host.disconnect();
        let Ok(pair) = self.event_loop.queue_pair(false) else {
            drop(renewing);
            return self.lose();
        };
        let info = pair.info;
        self.incoming.set_sender(info.number, None);
        *renewing = Some(pair);
        drop(renewing);
        self.renewals.fetch_add(1, Relaxed);
        self.send_frame(&Frame::Renew { pair: info });
    }

    /// A frame from the host.
    fn handle_frame(&self, frame: &Frame) {
        *self.last_frame.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        match *frame {
            Frame::Connect { peer, pair } => {
                match self.peers.accept(peer, &pair, &self.event_loop, &self.incoming) {
                    Ok(pair) => self.send_frame(&Frame::Accept { peer, pair }),
                    Err(_) => self.send_frame(&Frame::Unreachable { peer }),
                }
            }
            Frame::Accept { peer, pair } => self.finish_connect(peer, ConnectReply::Accepted(pair)),
            Frame::ViaHost { peer } => self.finish_connect(peer, ConnectReply::ViaHost),
            Frame::Unreachable { peer } => {
                self.peers.peer_lost(peer);
                self.finish_connect(peer, ConnectReply::Unreachable);
            }
            Frame::Close { peer } => self.peers.closed_by_peer(peer, &self.incoming),
            Frame::QueuePairFailed => self.renew(),
            Frame::Renewed { pair: other } => {
                let pair = self.renewing.lock().unwrap_or_else(PoisonError::into_inner).take();
                match pair.map(|pair| pair.connect(&other).map(|()| pair)) {
                    Some(Ok(pair)) => {
                        self.host.replace(pair);
                        if let Some(handler) = self.incoming.handler() {
                            handler.reconnected();
                        }
                    }
                    Some(Err(_)) | None => self.lose(),
                }
            }
            Frame::Heartbeat => {
                let mut heartbeats = self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner);
                // If several were sent meanwhile, it is the oldest that is answered.
                heartbeats.answered = heartbeats.unanswered.take().unwrap_or(heartbeats.answered);
            }
            _ => self.lose(),
        }
    }

    fn finish_connect(&self, peer: PeerId, reply: ConnectReply) {
        self.peers.finish_connect(peer, reply, &self.event_loop);
    }

    /// Sends a message to a peer at the host without waiting.
    pub(super) fn tell(&self, to: PeerId, message: &Message) -> bool {
        !self.is_lost() && self.host.tell(encoding::encode(to, 0, message))
    }

    pub(super) async fn send(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        let lost = Err(FabricError::PeerLost(to));
        if self.is_lost() {
            return lost;
        }
        if to == self.peer {
            return if self.incoming.mailbox.put(to, message.clone()) { Ok(()) } else { lost };
        }
        let bytes = encoding::encode(to, 0, message);
        let sent = match self.peers.route(to, self).await {
            None => false,
            Some(Route::Host) => self.host.send(&bytes).await,
            Some(Route::Direct(connection)) => {
                let sent = connection.send(&bytes).await;
                if !sent {
                    self.peers.close_failed(to);
                }
                sent
            }
        };
        if sent { Ok(()) } else { lost }
    }

    /// Says goodbye: the host sees the connection end.
    pub(super) fn close(&self) {
        if self.closed.swap(true, Relaxed) {
            return;
        }
        self.send_frame(&Frame::Goodbye);
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(Shutdown::Both);
    }
}

/// The thread that reads the control connection, and shows that the client is there.
fn read_control(mut control: TcpStream, client: &Weak<Client>, heartbeat: Duration) {
    let mut last_heartbeat = Instant::now();
    loop {
        // Reading would lose what came of a frame before time ran out; looking does not.
        let there = match control.peek(&mut [0]) {
            Ok(0) => Err(()),
            Ok(_) => Frame::read(&mut control).map(Some).map_err(drop),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(()),
            },
        };
        let Some(client) = client.upgrade() else { return };
        match there {
            Err(()) => return client.lose(),
            Ok(Some(frame)) => client.handle_frame(&frame),
            // By then the host has given it up, too.
            Ok(None) if client.silence() > heartbeat * 3 + client.grace() => return client.lose(),
            Ok(None) => {}
        }
        if last_heartbeat.elapsed() >= heartbeat {
            last_heartbeat = Instant::now();
            client.send_heartbeat();
        }
    }
}
