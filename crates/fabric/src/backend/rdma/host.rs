//! The host: lends its lock memory to remote clients, one protection domain, queue pair and set of keys for each, and
//! brings clients together that want to talk.
//!
//! A client that is gone, or is expelled, is **fenced** before anybody hears of it: its queue pair is destroyed and its
//! keys are revoked, so that a verb of its that is still under way finds nothing to act on.

#![allow(unsafe_code)]

use super::client::RdmaConnectError;
use super::control::{Frame, RegionInfo, VERSION};
use super::device::{Device, DeviceChoice, DeviceError};
use super::letter;
use super::local::RdmaLocal;
use super::station::{Keeper, Station};
use super::verbs::{Lent, Pair, PairInfo};
use crate::addr::{NodeId, PeerId};
use crate::backend::block_on;
use crate::backend::inproc::{InProc, InProcEndpoint};
use crate::capability::AtomicScope;
use crate::message::{BoxedRole, Message};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

type OnLost = Box<dyn Fn(PeerId) + Send + Sync>;

/// How a host behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// The device to use.
    pub device: DeviceChoice,
    /// Where the control connection listens.
    pub listen: SocketAddr,
    /// Remote clients get the ids from here on; those before are local. Where there are local ones, or roles, an atomic
    /// verb is one step to other verbs only ([`AtomicScope::Nic`]); where everybody comes through the NIC, to everybody.
    pub first_client: usize,
    /// Remote clients at most.
    pub max_clients: usize,
    /// How long a client may take to introduce itself.
    pub handshake: Duration,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            first_client: 0,
            max_clients: 1024,
            handshake: Duration::from_secs(10),
        }
    }
}

/// A host of lock memory. Dropping it fences everybody.
#[derive(Debug)]
pub struct RdmaHost {
    inner: Arc<Inner>,
    address: SocketAddr,
}

struct Inner {
    guests: Mutex<HashMap<PeerId, Arc<Guest>>>,
    device: Arc<Device>,
    fabric: InProc,
    /// Roles that want to hear of departures.
    hearers: Vec<PeerId>,
    scope: AtomicScope,
    next: AtomicUsize,
    options: HostOptions,
    on_lost: OnLost,
    closing: AtomicBool,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A remote client, as the host knows it.
struct Guest {
    // Dropped in this order: first nobody reaches the memory any more, then its keys go, then the rest.
    pair: Pair,
    _lent: Vec<Lent>,
    station: Arc<Station>,
    _keeper: Keeper,
    control: Mutex<TcpStream>,
    /// Letters of roles and local clients for this one; keeps the lent memory, too.
    inbox: InProcEndpoint,
    gone: AtomicBool,
}

impl Guest {
    fn say(&self, frame: &Frame) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = frame.write(&mut *control);
    }

    /// From here on nothing of it takes effect.
    fn fence(&self) {
        self.gone.store(true, Relaxed);
        self.pair.stop();
        self.inbox.close();
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(Shutdown::Both);
    }
}

impl RdmaHost {
    /// Lends `fabric`'s memory and runs `roles` beside it. `on_lost` is called for every remote client that is gone,
    /// after it was fenced.
    ///
    /// # Errors
    /// If there is no device, or the address cannot be listened at.
    pub fn start(
        fabric: InProc,
        roles: Vec<BoxedRole>,
        options: HostOptions,
        on_lost: impl Fn(PeerId) + Send + Sync + 'static,
    ) -> Result<Self, RdmaConnectError> {
        let device = Arc::new(Device::open(&options.device)?);
        let listen = options.listen;
        let failed = |error| RdmaConnectError::Unreachable { host: listen, error };
        let listener = TcpListener::bind(options.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let hears = roles.iter().enumerate().filter(|(_, role)| role.hears_departures());
        let hearers = hears.map(|(index, _)| PeerId::role(index)).collect();
        let cpus = options.first_client > 0 || !roles.is_empty();
        let scope = if cpus && !device.global_atomics { AtomicScope::Nic } else { AtomicScope::Global };
        fabric.serve(roles);
        let inner = Arc::new(Inner {
            guests: Mutex::default(),
            device,
            fabric,
            hearers,
            scope,
            next: AtomicUsize::new(options.first_client),
            options,
            on_lost: Box::new(on_lost),
            closing: AtomicBool::new(false),
        });
        let door = Arc::downgrade(&inner);
        let started = std::thread::Builder::new()
            .name("lockwright-rdma-door".to_owned())
            .spawn(move || accept(&listener, &door));
        started.map_err(failed)?;
        Ok(Self { inner, address })
    }

    /// Where the control connection listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The fabric whose memory is lent, for looking at it and setting it up.
    pub fn fabric(&self) -> &InProc {
        &self.inner.fabric
    }

    /// A client on this host, whose verbs on `home` are CPU instructions.
    ///
    /// # Panics
    /// If `peer` is not before the first remote one: remote clients were told that there are no others.
    pub fn local(&self, peer: PeerId, home: NodeId) -> RdmaLocal {
        let first = self.inner.options.first_client;
        assert!(peer.index().0 < first, "clients from {first} on are remote ones");
        RdmaLocal::new(self.inner.fabric.endpoint_at(peer, home))
    }

    /// Fences `peer`: its queue pair is destroyed before this returns. `false` if there is no such client.
    pub fn expel(&self, peer: PeerId) -> bool {
        self.inner.lose(peer)
    }
}

impl Drop for RdmaHost {
    fn drop(&mut self) {
        self.inner.closing.store(true, Relaxed);
        let peers: Vec<_> = self.inner.guests().keys().copied().collect();
        for peer in peers {
            self.inner.lose(peer);
        }
        // Wakes the door so that it sees that all is over.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, inner: &Weak<Inner>) {
    for control in listener.incoming() {
        let Some(inner) = inner.upgrade().filter(|inner| !inner.closing.load(Relaxed)) else { return };
        let Ok(control) = control else { continue };
        let serve = move || {
            // Whatever a stranger does wrong ends its own connection only.
            let _ = inner.serve(control);
        };
        let _ = std::thread::Builder::new().name("lockwright-rdma-guest".to_owned()).spawn(serve);
    }
}

impl Inner {
    fn guests(&self) -> MutexGuard<'_, HashMap<PeerId, Arc<Guest>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guest(&self, peer: PeerId) -> Option<Arc<Guest>> {
        self.guests().get(&peer).cloned()
    }

    /// One client, from its hello to its end.
    fn serve(self: Arc<Self>, mut control: TcpStream) -> io::Result<()> {
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(self.options.handshake))?;
        let Frame::Hello { version, pair } = Frame::read(&mut control)? else { return Ok(()) };
        let refusal = if version != VERSION {
            Some("it speaks another version of the control protocol".to_owned())
        } else if self.guests().len() >= self.options.max_clients {
            Some("it has no room for another client".to_owned())
        } else {
            None
        };
        if let Some(text) = refusal {
            return Frame::Refused { text }.write(&mut control);
        }
        let peer = PeerId::client(self.next.fetch_add(1, Relaxed));
        let guest = match self.admit(peer, &pair, &control) {
            Ok(guest) => guest,
            Err(error) => return Frame::Refused { text: error.to_string() }.write(&mut control),
        };
        control.set_read_timeout(None)?;
        let carrier = Arc::clone(&guest);
        std::thread::Builder::new()
            .name("lockwright-rdma-carrier".to_owned())
            .spawn(move || carry(&carrier))?;
        while let Ok(frame) = Frame::read(&mut control) {
            if !self.hear(peer, &guest, &frame) {
                break;
            }
        }
        drop(guest);
        self.lose(peer);
        Ok(())
    }

    fn admit(
        self: &Arc<Self>,
        peer: PeerId,
        other: &PairInfo,
        control: &TcpStream,
    ) -> Result<Arc<Guest>, DeviceError> {
        let post = Arc::downgrade(self);
        // A letter for a role or a local client; one for nobody is dropped.
        let sink = move |_, bytes: &[u8]| {
            let (Some(inner), Some((to, message))) = (post.upgrade(), letter::decode(bytes)) else { return };
            inner.fabric.post(peer, to, message);
        };
        let (station, keeper) = Station::open(&self.device, Box::new(sink))?;
        let inbox = self.fabric.endpoint(peer);
        let (mut lent, mut regions) = (Vec::new(), Vec::new());
        for (node, region, start, bytes) in self.fabric.places() {
            // SAFETY: the memory belongs to the fabric's regions, which `inbox` keeps as long as the guest lives; they
            // are only ever reached as atomics.
            let piece = unsafe { Lent::new(&station.domain, start, bytes as usize) }?;
            let (addr, key) = piece.key();
            regions.push(RegionInfo { node, region, addr, key, bytes });
            lent.push(piece);
        }
        let pair = station.pair()?;
        pair.connect(other, true)?;
        let system = |error| DeviceError::System {
            what: "greeting a client",
            device: self.device.name.clone(),
            error,
        };
        let control = control.try_clone().map_err(system)?;
        let now_ns = inbox.clock().now().0;
        let welcome = Frame::Welcome { peer, now_ns, pair: pair.info, scope: self.scope, regions };
        let guest = Arc::new(Guest {
            pair,
            _lent: lent,
            station,
            _keeper: keeper,
            control: Mutex::new(control),
            inbox,
            gone: AtomicBool::new(false),
        });
        // Known before it is greeted: its first letter may come at once.
        self.guests().insert(peer, Arc::clone(&guest));
        guest.say(&welcome);
        Ok(guest)
    }

    /// A frame from `peer`; `false` if it makes no sense.
    fn hear(&self, peer: PeerId, guest: &Guest, frame: &Frame) -> bool {
        match *frame {
            Frame::Call { peer: called, pair } => match self.guest(called) {
                Some(other) => other.say(&Frame::Call { peer, pair }),
                None if self.fabric.knows(called) => guest.say(&Frame::AtHost { peer: called }),
                None => guest.say(&Frame::Nobody { peer: called }),
            },
            Frame::Answer { peer: caller, pair } => {
                if let Some(caller) = self.guest(caller) {
                    caller.say(&Frame::Answer { peer, pair });
                }
            }
            Frame::Nobody { peer: caller } => {
                if let Some(caller) = self.guest(caller) {
                    caller.say(&Frame::Nobody { peer });
                }
            }
            Frame::HangUp { peer: other } => {
                if let Some(other) = self.guest(other) {
                    other.say(&Frame::HangUp { peer });
                }
            }
            _ => return false,
        }
        true
    }

    /// Fences `peer` and tells everybody who wants to know. `false` if it is gone already.
    fn lose(&self, peer: PeerId) -> bool {
        let Some(guest) = self.guests().remove(&peer) else { return false };
        guest.fence();
        for role in &self.hearers {
            self.fabric.post(peer, *role, Message { kind: Message::DEPARTED, ..Message::default() });
        }
        (self.on_lost)(peer);
        true
    }
}

/// Carries letters of roles and local clients to a remote one.
fn carry(guest: &Guest) {
    while let Some((from, message)) = block_on(guest.inbox.next_letter()) {
        // From the host, a letter says whom it is from.
        let bytes = letter::encode(from, &message);
        if guest.gone.load(Relaxed) || !block_on(guest.station.send(&guest.pair, &bytes)) {
            return;
        }
    }
}
