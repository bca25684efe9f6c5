//! A client's side: its station, the queue pair to the host, and queue pairs to other clients, connected on first use.
//!
//! A client that writes to many others keeps at most [`RdmaOptions::max_peers`] connections of its own making: the one
//! unused for longest is given up for a new one. So N clients make at most N × `max_peers` connections, however many
//! pairs of them ever talk, where dynamically connected transport (DC, on mlx5 only) would need one queue pair each.

use super::control::{Frame, RegionInfo, VERSION};
use super::device::{Device, DeviceChoice, DeviceError};
use super::letter;
use super::station::{Keeper, Station};
use super::verbs::{Pair, PairInfo};
use crate::addr::PeerId;
use crate::backend::clock::Clock;
use crate::backend::inproc::mailbox::Mailbox;
use crate::capability::AtomicScope;
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::wait::Time;
use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long the host may take to answer.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How a client connects and behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self { device: DeviceChoice::default(), emulate_masks: false, max_peers: 64, pace_ns: 2_000 }
    }
}

/// Why a client did not get in.
#[derive(Debug, thiserror::Error)]
pub enum RdmaConnectError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The control connection.
    #[error("the host at {host} cannot be reached: {error}")]
    Unreachable {
        /// Where it should be.
        host: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The host said no.
    #[error("the host at {host} refuses: {text}")]
    Refused {
        /// Who.
        host: SocketAddr,
        /// Why.
        text: String,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Client {
    // Queue pairs go first: their station must outlive them.
    lines: Mutex<Lines>,
    pub(super) host: Pair,
    station: Arc<Station>,
    _keeper: Keeper,
    pub(super) post: Arc<Post>,
    pub(super) peer: PeerId,
    pub(super) scope: AtomicScope,
    pub(super) regions: Vec<RegionInfo>,
    pub(super) clock: Clock,
    control: Mutex<TcpStream>,
    pub(super) options: RdmaOptions,
    pub(super) random: AtomicU64,
    /// Compare-and-swaps that emulated verbs had to repeat.
    pub(super) retries: AtomicU64,
    pub(super) lost: AtomicBool,
}

/// Where letters go, and whom the queue pairs they come over belong to.
#[derive(Debug, Default)]
pub(super) struct Post {
    pub(super) mailbox: Mailbox,
    senders: RwLock<HashMap<u32, Option<PeerId>>>,
}

impl Post {
    fn know(&self, pair: u32, sender: Option<PeerId>) {
        self.senders.write().unwrap_or_else(PoisonError::into_inner).insert(pair, sender);
    }

    fn forget(&self, pair: u32) {
        self.senders.write().unwrap_or_else(PoisonError::into_inner).remove(&pair);
    }

    /// A letter came over queue pair `pair`. From the host it says whom it is from, from others whom it is for.
    fn deliver(&self, pair: u32, bytes: &[u8]) {
        let sender = self.senders.read().unwrap_or_else(PoisonError::into_inner).get(&pair).copied();
        let (Some(sender), Some((named, message))) = (sender, letter::decode(bytes)) else { return };
        self.mailbox.put(sender.unwrap_or(named), message);
    }
}

#[derive(Debug, Default)]
struct Lines {
    out: HashMap<PeerId, Line>,
    /// Queue pairs that others made to this client.
    called: HashMap<PeerId, Pair>,
    turn: u64,
}

#[derive(Debug)]
enum Line {
    Calling { pair: Pair, waiting: Vec<Waker> },
    Open { pair: Arc<Pair>, used: u64 },
    AtHost,
    Nobody,
}

/// The way to a peer.
enum Way {
    Host,
    Pair(Arc<Pair>),
}

impl Client {
    pub(super) fn connect(host: SocketAddr, options: RdmaOptions) -> Result<Arc<Self>, RdmaConnectError> {
        let device = Arc::new(Device::open(&options.device)?);
        let post = Arc::<Post>::default();
        let sink = Arc::clone(&post);
        let (station, keeper) =
            Station::open(&device, Box::new(move |pair, bytes| sink.deliver(pair, bytes)))?;
        let pair = station.pair()?;
        let unreachable = |error| RdmaConnectError::Unreachable { host, error };
        let mut control = TcpStream::connect_timeout(&host, HANDSHAKE).map_err(unreachable)?;
        control.set_nodelay(true).map_err(unreachable)?;
        control.set_read_timeout(Some(HANDSHAKE)).map_err(unreachable)?;
        Frame::Hello { version: VERSION, pair: pair.info }.write(&mut control).map_err(unreachable)?;
        let (peer, now_ns, other, scope, regions) = match Frame::read(&mut control).map_err(unreachable)? {
            Frame::Welcome { peer, now_ns, pair, scope, regions } => (peer, now_ns, pair, scope, regions),
            Frame::Refused { text } => return Err(RdmaConnectError::Refused { host, text }),
            _ => return Err(RdmaConnectError::Refused { host, text: "it makes no sense".to_owned() }),
        };
        control.set_read_timeout(None).map_err(unreachable)?;
        post.know(pair.info.number, None);
        pair.connect(&other, false)?;
        let reader = control.try_clone().map_err(unreachable)?;
        let client = Arc::new(Self {
            lines: Mutex::default(),
            host: pair,
            station,
            _keeper: keeper,
            post,
            peer,
            scope,
            regions,
            clock: Clock::showing(Time(now_ns)),
            control: Mutex::new(control),
            options,
            random: AtomicU64::new(u64::from(peer.0)),
            retries: AtomicU64::new(0),
            lost: AtomicBool::new(false),
        });
        let listener = Arc::downgrade(&client);
        let started =
            std::thread::Builder::new().name("lockwright-rdma-control".to_owned()).spawn(move || {
                let mut reader = reader;
                loop {
                    let frame = Frame::read(&mut reader);
                    let Some(client) = listener.upgrade() else { return };
                    let Ok(frame) = frame else { return client.lose() };
                    client.hear(&frame);
                }
            });
        started.map_err(unreachable)?;
        Ok(client)
    }

    pub(super) fn station(&self) -> &Arc<Station> {
        &self.station
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, frame: &Frame) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection that broke is seen by the thread that reads it.
        let _ = frame.write(&mut *control);
    }

    /// The host is gone: everything fails from now on.
    fn lose(&self) {
        self.lost.store(true, Relaxed);
        self.host.stop();
        self.post.mailbox.close();
        let mut lines = self.lines();
        for (_, line) in lines.out.drain() {
            if let Line::Calling { waiting, .. } = line {
                waiting.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// A frame from the host.
    fn hear(&self, frame: &Frame) {
        match *frame {
            Frame::Call { peer, pair } => match self.answer(peer, &pair) {
                Ok(pair) => self.say(&Frame::Answer { peer, pair }),
                Err(_) => self.say(&Frame::Nobody { peer }),
            },
            Frame::Answer { peer, pair } => self.settle(peer, Some(pair), Line::Nobody),
            Frame::AtHost { peer } => self.settle(peer, None, Line::AtHost),
            Frame::Nobody { peer } => self.settle(peer, None, Line::Nobody),
            Frame::HangUp { peer } => {
                if let Some(pair) = self.lines().called.remove(&peer) {
                    self.post.forget(pair.info.number);
                }
            }
            Frame::Hello { .. } | Frame::Welcome { .. } | Frame::Refused { .. } => self.lose(),
        }
    }

    /// Makes the other end of a queue pair that `peer` wants.
    fn answer(&self, peer: PeerId, other: &PairInfo) -> Result<PairInfo, DeviceError> {
        let pair = self.station.pair()?;
        self.post.know(pair.info.number, Some(peer));
        pair.connect(other, false)?;
        let info = pair.info;
        if let Some(old) = self.lines().called.insert(peer, pair) {
            self.post.forget(old.info.number);
        }
        Ok(info)
    }

    /// What came of calling `peer`.
    fn settle(&self, peer: PeerId, answer: Option<PairInfo>, otherwise: Line) {
        let mut lines = self.lines();
        let Some(Line::Calling { .. }) = lines.out.get(&peer) else { return };
        let Some(Line::Calling { pair, waiting }) = lines.out.remove(&peer) else { return };
        let connected = answer.is_some_and(|other| pair.connect(&other, false).is_ok());
        lines.turn += 1;
        let used = lines.turn;
        let line = if connected { Line::Open { pair: Arc::new(pair), used } } else { otherwise };
        lines.out.insert(peer, line);
        drop(lines);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The way to `peer`, called first if there is none yet; `None` if nobody is there.
    async fn way(&self, peer: PeerId) -> Option<Way> {
        if peer.index().1 {
            return Some(Way::Host);
        }
        std::future::poll_fn(|cx| {
            if self.lost.load(Relaxed) {
                return Poll::Ready(None);
            }
            let mut lines = self.lines();
            lines.turn += 1;
            let turn = lines.turn;
            match lines.out.get_mut(&peer) {
                Some(Line::Open { pair, used }) => {
                    *used = turn;
                    return Poll::Ready(Some(Way::Pair(Arc::clone(pair))));
                }
                Some(Line::AtHost) => return Poll::Ready(Some(Way::Host)),
                Some(Line::Nobody) => {
                    // It may come one day: the next letter asks again.
                    lines.out.remove(&peer);
                    return Poll::Ready(None);
                }
                Some(Line::Calling { waiting, .. }) => {
                    waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                None => {}
            }
            let gone = self.make_room(&mut lines);
            let Ok(pair) = self.station.pair() else { return Poll::Ready(None) };
            let info = pair.info;
            lines.out.insert(peer, Line::Calling { pair, waiting: vec![cx.waker().clone()] });
            drop(lines);
            if let Some(gone) = gone {
                self.say(&Frame::HangUp { peer: gone });
            }
            self.say(&Frame::Call { peer, pair: info });
            Poll::Pending
        })
        .await
    }

    /// Gives up the connection that was not used for longest, if there are too many and it is idle.
    fn make_room(&self, lines: &mut Lines) -> Option<PeerId> {
        let open = lines.out.iter().filter_map(|(peer, line)| match line {
            Line::Open { pair, used } => Some((*used, *peer, Arc::strong_count(pair) == 1)),
            _ => None,
        });
        let open: Vec<_> = open.collect();
        if open.len() < self.options.max_peers {
            return None;
        }
        let (_, oldest, _) = open.into_iter().filter(|(.., idle)| *idle).min()?;
        lines.out.remove(&oldest);
        Some(oldest)
    }

    pub(super) async fn send(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        let lost = Err(FabricError::PeerLost(to));
        if self.lost.load(Relaxed) {
            return lost;
        }
        if to == self.peer {
            return if self.post.mailbox.put(to, message.clone()) { Ok(()) } else { lost };
        }
        let bytes = letter::encode(to, message);
        let sent = match self.way(to).await {
            None => false,
            Some(Way::Host) => self.station.send(&self.host, &bytes).await,
            Some(Way::Pair(pair)) => {
                let sent = self.station.send(&pair, &bytes).await;
                if !sent {
                    self.lines().out.remove(&to);
                }
                sent
            }
        };
        if sent { Ok(()) } else { lost }
    }

    /// Says goodbye: the host sees the connection end.
    pub(super) fn close(&self) {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(Shutdown::Both);
    }
}
