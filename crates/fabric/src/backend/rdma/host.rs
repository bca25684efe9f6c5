//! The host: lends its lock memory to remote clients, one protection domain, queue pair and set of keys for each, and
//! brings clients together that want to talk.
//!
//! A client that is gone, or is expelled, is **fenced** before anybody hears of it: its queue pair is destroyed and its
//! keys are revoked, so that a verb of its that is still under way finds nothing to act on.

#![allow(unsafe_code)]

use super::client::RdmaConnectError;
use super::control::{Frame, RegionInfo, Welcome};
use super::device::{Device, DeviceChoice, DeviceError};
use super::guest::{Desk, Guest, Inbox};
use super::hello::{self, Guested};
use super::local::RdmaLocal;
use super::reception::Reception;
use super::station::Station;
use super::verbs::Lent;
use super::wire::Wire;
use crate::addr::{NodeId, PeerId};
use crate::backend::clock::Clock;
use crate::backend::inproc::InProc;
use crate::backend::inproc::mailbox::Mailbox;
use crate::backend::tcp::{self, Secret, SessionEnd};
use crate::capability::AtomicScope;
use crate::message::{BoxedRole, Message};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

type OnLost = Box<dyn Fn(PeerId) + Send + Sync>;

/// How a host behaves.
#[derive(Clone, Debug)]
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
    /// How often clients show that they are there.
    pub heartbeat: Duration,
    /// How long a client may be silent after three missed heartbeats before it is fenced.
    pub grace: Duration,
    /// A secret that clients must know. It keeps strangers from being let in; it does nothing against those who can forge
    /// packets of others.
    pub secret: Option<Secret>,
    /// Which run of the host this is.
    pub epoch: u64,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            first_client: 0,
            max_clients: 1024,
            handshake: Duration::from_secs(10),
            heartbeat: Duration::from_secs(1),
            grace: Duration::from_secs(5),
            secret: None,
            epoch: 0,
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
    /// Who receives clients, if not the fabric's roles and local clients.
    reception: Option<Arc<dyn Reception>>,
    closing: AtomicBool,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("device", &self.device).finish_non_exhaustive()
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
        let hears = roles.iter().enumerate().filter(|(_, role)| role.wants_departures());
        let hearers = hears.map(|(index, _)| PeerId::role(index)).collect();
        let cpus = options.first_client > 0 || !roles.is_empty();
        Self::open(fabric, options, None, cpus, hearers, Box::new(on_lost), |fabric| fabric.serve(roles))
    }

    /// Receives clients for `reception`, which speaks with them by letters. What it does not [lend](Reception::memory) is not
    /// registered, and no client can reach it by itself.
    ///
    /// # Errors
    /// If there is no device, or the address cannot be listened at, or strangers could reach it and there is no secret.
    pub fn receive(reception: Arc<dyn Reception>, options: HostOptions) -> Result<Self, RdmaConnectError> {
        if !options.listen.ip().to_canonical().is_loopback() && options.secret.is_none() {
            return Err(RdmaConnectError::Exposed(options.listen));
        }
        let nothing = InProc::new(0, 0);
        Self::open(nothing, options, Some(reception), true, vec![], Box::new(|_| {}), |_| {})
    }

    fn open(
        fabric: InProc,
        options: HostOptions,
        reception: Option<Arc<dyn Reception>>,
        cpus: bool,
        hearers: Vec<PeerId>,
        on_lost: OnLost,
        begin: impl FnOnce(&InProc),
    ) -> Result<Self, RdmaConnectError> {
        let device = Arc::new(Device::open(&options.device)?);
        let listen = options.listen;
        let failed = |error| RdmaConnectError::Unreachable { host: listen, error };
        let listener = TcpListener::bind(options.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let scope = if cpus && !device.global_atomics { AtomicScope::Nic } else { AtomicScope::Global };
        begin(&fabric);
        let inner = Arc::new(Inner {
            guests: Mutex::default(),
            device,
            fabric,
            hearers,
            scope,
            next: AtomicUsize::new(options.first_client),
            options,
            on_lost,
            reception,
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
        self.inner.lose(peer, SessionEnd::Lost)
    }

    /// The device that is used.
    pub fn device(&self) -> &str {
        &self.inner.device.name
    }

    /// Puts the queue pair of `peer` into the error state, as a NIC does when something goes wrong: for tests of what comes
    /// after. `false` if there is no such client.
    pub fn break_queue_pair(&self, peer: PeerId) -> bool {
        self.inner.guest(peer).map(|guest| guest.wire.break_it()).is_some()
    }

    /// Revokes the keys of `peer`, who is not told: for tests of what comes after. `false` if there is no such client.
    pub fn revoke_keys(&self, peer: PeerId) -> bool {
        self.inner.guest(peer).map(|guest| guest.revoke()).is_some()
    }
}

impl Drop for RdmaHost {
    fn drop(&mut self) {
        self.inner.closing.store(true, Relaxed);
        let peers: Vec<_> = self.inner.guests().keys().copied().collect();
        for peer in peers {
            self.inner.lose(peer, SessionEnd::Lost);
        }
        // Wakes the door so that it sees that all is over.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, inner: &Weak<Inner>) {
    for control in listener.incoming() {
        let Some(inner) = inner.upgrade().filter(|inner| !inner.closing.load(Relaxed)) else { return };
        let Ok(control) = control else {
            // Out of file descriptors, most likely: a client has to hang up first.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
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
        control.set_write_timeout(Some(self.options.handshake))?;
        let Some(guested) = hello::meet(&mut control, self.options.secret.as_ref())? else { return Ok(()) };
        let (peer, guest) = match self.admit(&guested, &control) {
            Ok(admitted) => admitted,
            Err(text) => return Frame::Refused { text }.write(&mut control),
        };
        // Silent for longer, it is gone.
        control.set_read_timeout(Some(self.options.heartbeat * 3 + self.options.grace))?;
        let carrier = Arc::clone(&guest);
        std::thread::Builder::new()
            .name("lockwright-rdma-carrier".to_owned())
            .spawn(move || carrier.carry())?;
        let mut how = SessionEnd::Lost;
        while let Ok(frame) = Frame::read(&mut control) {
            if frame == Frame::Bye {
                how = SessionEnd::Goodbye;
            }
            if !self.hear(peer, &guest, &frame) {
                break;
            }
        }
        // Its id may be somebody else's by now.
        if self.guest(peer).is_some_and(|now| Arc::ptr_eq(&now, &guest)) {
            self.lose(peer, how);
        }
        Ok(())
    }

    fn admit(
        self: &Arc<Self>,
        guested: &Guested,
        control: &TcpStream,
    ) -> Result<(PeerId, Arc<Guest>), String> {
        let full = || "it has no room for another client".to_owned();
        if self.guests().len() >= self.options.max_clients {
            return Err(full());
        }
        let peer = match &self.reception {
            Some(reception) => reception.admit(&guested.name).ok_or_else(full)?,
            None => PeerId::client(self.next.fetch_add(1, Relaxed)),
        };
        let made = self.make(peer, guested, control).map_err(|error| error.to_string());
        if let (Err(_), Some(reception)) = (&made, &self.reception) {
            reception.on_lost(peer, SessionEnd::Lost);
        }
        made.map(|guest| (peer, guest))
    }

    fn make(
        self: &Arc<Self>,
        peer: PeerId,
        guested: &Guested,
        control: &TcpStream,
    ) -> Result<Arc<Guest>, DeviceError> {
        let post = Arc::downgrade(self);
        // A letter for a role or a local client, or for the reception; one for nobody is dropped.
        let deliver = move |to: PeerId, message: Message| {
            let Some(inner) = post.upgrade() else { return };
            match &inner.reception {
                Some(reception) => reception.deliver(peer, to, &message),
                None => drop(inner.fabric.post(peer, to, message)),
            }
        };
        let post = Arc::downgrade(self);
        let settle = move || {
            let inner = post.upgrade();
            inner
                .iter()
                .filter_map(|inner| inner.reception.as_ref())
                .for_each(|reception| reception.settle());
        };
        let known = Arc::<OnceLock<_>>::default();
        let (station, keeper) =
            Station::open(&self.device, Box::new(Desk { deliver, settle, guest: Arc::clone(&known) }))?;
        let inbox = match &self.reception {
            Some(_) => Inbox::Own(Arc::default(), Clock::new()),
            None => Inbox::InProc(self.fabric.endpoint(peer)),
        };
        let memory = self.reception.as_ref().and_then(|reception| reception.memory(peer));
        let (mut lent, mut regions) = (Vec::new(), Vec::new());
        for (node, region, start, bytes) in memory.as_deref().unwrap_or(&self.fabric).places() {
            // SAFETY: the memory belongs to the fabric's regions, which `inbox` keeps as long as the guest lives, or to those
            // of `memory`, which the guest keeps itself; they are only ever reached as atomics.
            let piece = unsafe { Lent::new(&station.base.domain, start, bytes as usize) }?;
            let (addr, key) = piece.key();
            regions.push(RegionInfo { node, region, addr, key, bytes });
            lent.push(piece);
        }
        let pair = station.pair(true)?;
        pair.connect(&guested.pair)?;
        let system = |error| DeviceError::System {
            what: "greeting a client",
            device: self.device.name.clone(),
            error,
        };
        let control = control.try_clone().map_err(system)?;
        let now_ns = match (&inbox, &memory) {
            (_, Some(memory)) => memory.now().0,
            (Inbox::InProc(ep), None) => ep.clock().now().0,
            (Inbox::Own(_, clock), None) => clock.now().0,
        };
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let welcome = Welcome {
            peer,
            now_ns,
            epoch: self.options.epoch,
            heartbeat_ms: ms(self.options.heartbeat),
            grace_ms: ms(self.options.grace),
            scope: if memory.is_some() { AtomicScope::Global } else { self.scope },
            pair: pair.info,
            proof: guested.proof,
            regions,
        };
        if let (Some(reception), Inbox::Own(mailbox, _)) = (&self.reception, &inbox) {
            let mailbox: Arc<Mailbox> = Arc::clone(mailbox);
            // The carrier is woken once all that is said together is there.
            let put =
                move |from, message| mailbox.put_quietly(from, message).map(tcp::wake_coalesced).is_some();
            reception.attach(peer, tcp::Inbox::new(put));
        }
        let guest = Arc::new(Guest {
            wire: Wire::new(&station, pair),
            lent: Mutex::new(lent),
            station,
            _keeper: keeper,
            control: Mutex::new(control),
            inbox,
            _memory: memory,
            gone: AtomicBool::new(false),
        });
        let _ = known.set(Arc::downgrade(&guest));
        // Known before it is greeted: its first letter may come at once.
        self.guests().insert(peer, Arc::clone(&guest));
        guest.say(&Frame::Welcome(Box::new(welcome)));
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
            Frame::Beat => guest.say(&Frame::Beat),
            Frame::Renew { pair } => match guest.renew(&pair) {
                Some(pair) => guest.say(&Frame::Renewed { pair }),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    /// Fences `peer` and tells everybody who wants to know. `false` if it is gone already.
    fn lose(&self, peer: PeerId, how: SessionEnd) -> bool {
        let Some(guest) = self.guests().remove(&peer) else { return false };
        guest.fence();
        for role in &self.hearers {
            self.fabric.post(peer, *role, Message { kind: Message::DEPARTED, ..Message::default() });
        }
        (self.on_lost)(peer);
        // When the whole host goes, clients have not left: they may come back to the next one.
        if let Some(reception) = self.reception.as_ref().filter(|_| !self.closing.load(Relaxed)) {
            reception.on_lost(peer, how);
        }
        // Whoever has letters for it under way need not wait until the NIC gives up on them.
        let others: Vec<_> = self.guests().values().cloned().collect();
        for other in others {
            other.say(&Frame::Nobody { peer });
        }
        true
    }
}
