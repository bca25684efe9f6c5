//! The host: registers its lock memory for remote clients, with a protection domain, queue pair and set of keys for each, and
//! passes on the frames by which clients connect to each other.
//!
//! A client that is gone, or is expelled, is **fenced** before its end is reported: its queue pair is destroyed and its
//! keys are revoked, so that a verb of its that is still under way finds nothing to act on.

#![allow(unsafe_code)]

use super::client::RdmaConnectError;
use super::connection::Connection;
use super::control::{Frame, RegionInfo, Welcome};
use super::device::{Device, DeviceChoice, DeviceError};
use super::event_loop::EventLoop;
use super::handshake::{self, ClientHello};
use super::local::RdmaLocal;
use super::remote_client::{MessageSource, RemoteClient, RemoteClientHandler};
use super::service::RdmaService;
use super::verbs::RemoteMemory;
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
    /// Remote clients get the ids from here on; those before are local. Where there are local ones, or roles, an atomic verb
    /// is one step to other verbs only ([`AtomicScope::Nic`]); where all clients come through the NIC, to all of them.
    pub first_client: usize,
    /// Remote clients at most.
    pub max_clients: usize,
    /// How long a client may take to introduce itself.
    pub handshake: Duration,
    /// How often clients show that they are there.
    pub heartbeat: Duration,
    /// How long a client may be silent after three missed heartbeats before it is fenced.
    pub grace: Duration,
    /// A secret that clients must know. It keeps unauthenticated clients out; it does nothing against hosts that can forge
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

/// A host of lock memory. Dropping it fences all clients.
#[derive(Debug)]
pub struct RdmaHost {
    inner: Arc<Inner>,
    address: SocketAddr,
}

struct Inner {
    clients: Mutex<HashMap<PeerId, Arc<RemoteClient>>>,
    device: Arc<Device>,
    fabric: InProc,
    /// Roles that want to hear of departures.
    departure_roles: Vec<PeerId>,
    scope: AtomicScope,
    next: AtomicUsize,
    options: HostOptions,
    on_lost: OnLost,
    /// What messages go to, if not the fabric's roles and local clients.
    service: Option<Arc<dyn RdmaService>>,
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
        let departure_roles = hears.map(|(index, _)| PeerId::role(index)).collect();
        let cpus = options.first_client > 0 || !roles.is_empty();
        Self::open(fabric, options, None, cpus, departure_roles, Box::new(on_lost), |fabric| {
            fabric.serve(roles);
        })
    }

    /// Receives clients for `service`, which speaks with them by messages. What it does not [lend](RdmaService::memory) is not
    /// registered, and no client can reach it by itself.
    ///
    /// # Errors
    /// If there is no device, or the address cannot be listened at, or other machines could reach it and there is no secret.
    pub fn serve(service: Arc<dyn RdmaService>, options: HostOptions) -> Result<Self, RdmaConnectError> {
        if !options.listen.ip().to_canonical().is_loopback() && options.secret.is_none() {
            return Err(RdmaConnectError::Exposed(options.listen));
        }
        let nothing = InProc::new(0, 0);
        Self::open(nothing, options, Some(service), true, vec![], Box::new(|_| {}), |_| {})
    }

    fn open(
        fabric: InProc,
        options: HostOptions,
        service: Option<Arc<dyn RdmaService>>,
        cpus: bool,
        departure_roles: Vec<PeerId>,
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
            clients: Mutex::default(),
            device,
            fabric,
            departure_roles,
            scope,
            next: AtomicUsize::new(options.first_client),
            options,
            on_lost,
            service,
            closing: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&inner);
        let started = std::thread::Builder::new()
            .name("lockwright-rdma-accept".to_owned())
            .spawn(move || accept(&listener, &weak));
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
        self.inner.client(peer).map(|client| client.connection.break_queue_pair()).is_some()
    }

    /// Revokes the keys of `peer`, who is not told: for tests of what comes after. `false` if there is no such client.
    pub fn revoke_keys(&self, peer: PeerId) -> bool {
        self.inner.client(peer).map(|client| client.revoke()).is_some()
    }
}

impl Drop for RdmaHost {
    fn drop(&mut self) {
        self.inner.closing.store(true, Relaxed);
        let peers: Vec<_> = self.inner.clients().keys().copied().collect();
        for peer in peers {
            self.inner.lose(peer, SessionEnd::Lost);
        }
        // Wakes the accepting thread so that it sees that the host is closing.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, inner: &Weak<Inner>) {
    for control in listener.incoming() {
        let Some(inner) = inner.upgrade().filter(|inner| !inner.closing.load(Relaxed)) else { return };
        let Ok(control) = control else {
            // Out of file descriptors, most likely: a client has to disconnect first.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let serve = move || {
            // A malformed handshake ends its own connection only.
            let _ = inner.serve_client(control);
        };
        let _ = std::thread::Builder::new().name("lockwright-rdma-client".to_owned()).spawn(serve);
    }
}

impl Inner {
    fn clients(&self) -> MutexGuard<'_, HashMap<PeerId, Arc<RemoteClient>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self, peer: PeerId) -> Option<Arc<RemoteClient>> {
        self.clients().get(&peer).cloned()
    }

    /// One client, from its hello to its end.
    fn serve_client(self: Arc<Self>, mut control: TcpStream) -> io::Result<()> {
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(self.options.handshake))?;
        control.set_write_timeout(Some(self.options.handshake))?;
        let Some(hello) = handshake::accept(&mut control, self.options.secret.as_ref())? else {
            return Ok(());
        };
        let (peer, client) = match self.admit(&hello, &control) {
            Ok(admitted) => admitted,
            Err(text) => return Frame::Refused { text }.write(&mut control),
        };
        // Silent for longer, it is gone.
        control.set_read_timeout(Some(self.options.heartbeat * 3 + self.options.grace))?;
        let sender = Arc::clone(&client);
        std::thread::Builder::new()
            .name("lockwright-rdma-send".to_owned())
            .spawn(move || sender.send_messages())?;
        let mut how = SessionEnd::Lost;
        while let Ok(frame) = Frame::read(&mut control) {
            if frame == Frame::Goodbye {
                how = SessionEnd::Goodbye;
            }
            if !self.handle_frame(peer, &client, &frame) {
                break;
            }
        }
        // Its id may be that of a newer client by now.
        if self.client(peer).is_some_and(|now| Arc::ptr_eq(&now, &client)) {
            self.lose(peer, how);
        }
        Ok(())
    }

    fn admit(
        self: &Arc<Self>,
        hello: &ClientHello,
        control: &TcpStream,
    ) -> Result<(PeerId, Arc<RemoteClient>), String> {
        let full = || "it has no room for another client".to_owned();
        if self.clients().len() >= self.options.max_clients {
            return Err(full());
        }
        let peer = match &self.service {
            Some(service) => service.admit(&hello.name).ok_or_else(full)?,
            None => PeerId::client(self.next.fetch_add(1, Relaxed)),
        };
        let made = self.make(peer, hello, control).map_err(|error| error.to_string());
        if let (Err(_), Some(service)) = (&made, &self.service) {
            service.on_lost(peer, SessionEnd::Lost);
        }
        made.map(|client| (peer, client))
    }

    fn make(
        self: &Arc<Self>,
        peer: PeerId,
        hello: &ClientHello,
        control: &TcpStream,
    ) -> Result<Arc<RemoteClient>, DeviceError> {
        let host = Arc::downgrade(self);
        // A message for a role or a local client, or for the service; one for nobody is dropped.
        let deliver = move |to: PeerId, message: Message| {
            let Some(inner) = host.upgrade() else { return };
            match &inner.service {
                Some(service) => service.deliver(peer, to, &message),
                None => drop(inner.fabric.post(peer, to, message)),
            }
        };
        let host = Arc::downgrade(self);
        let settle = move || {
            let inner = host.upgrade();
            inner.iter().filter_map(|inner| inner.service.as_ref()).for_each(|service| service.settle());
        };
        let known = Arc::<OnceLock<_>>::default();
        let (event_loop, thread) = EventLoop::open(
            &self.device,
            Box::new(RemoteClientHandler { deliver, settle, client: Arc::clone(&known) }),
        )?;
        let source = match &self.service {
            Some(_) => MessageSource::Service(Arc::default(), Clock::new()),
            None => MessageSource::InProc(self.fabric.endpoint(peer)),
        };
        let memory = self.service.as_ref().and_then(|service| service.memory(peer));
        let (mut registered, mut regions) = (Vec::new(), Vec::new());
        for (node, region, start, bytes) in memory.as_deref().unwrap_or(&self.fabric).places() {
            // SAFETY: the memory belongs to the fabric's regions, which `source` keeps as long as the client lives, or to those
            // of `memory`, which the client keeps itself; they are only ever reached as atomics.
            let piece = unsafe { RemoteMemory::new(&event_loop.base.domain, start, bytes as usize) }?;
            let (addr, key) = piece.key();
            regions.push(RegionInfo { node, region, addr, key, bytes });
            registered.push(piece);
        }
        let pair = event_loop.queue_pair(true)?;
        pair.connect(&hello.pair)?;
        let system = |error| DeviceError::System {
            what: "greeting a client",
            device: self.device.name.clone(),
            error,
        };
        let control = control.try_clone().map_err(system)?;
        let now_ns = match (&source, &memory) {
            (_, Some(memory)) => memory.now().0,
            (MessageSource::InProc(ep), None) => ep.clock().now().0,
            (MessageSource::Service(_, clock), None) => clock.now().0,
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
            proof: hello.proof,
            regions,
        };
        if let (Some(service), MessageSource::Service(mailbox, _)) = (&self.service, &source) {
            let mailbox: Arc<Mailbox> = Arc::clone(mailbox);
            // The carrier is woken once all that is said together is there.
            let put =
                move |from, message| mailbox.put_quietly(from, message).map(tcp::wake_coalesced).is_some();
            service.attach(peer, tcp::Inbox::new(put));
        }
        let client = Arc::new(RemoteClient {
            connection: Connection::new(&event_loop, pair),
            regions: Mutex::new(registered),
            event_loop,
            _thread: thread,
            control: Mutex::new(control),
            source,
            _memory: memory,
            gone: AtomicBool::new(false),
        });
        let _ = known.set(Arc::downgrade(&client));
        // Known before it is greeted: its first message may come at once.
        self.clients().insert(peer, Arc::clone(&client));
        client.send_frame(&Frame::Welcome(Box::new(welcome)));
        Ok(client)
    }

    /// A frame from `peer`; `false` if it makes no sense.
    fn handle_frame(&self, peer: PeerId, client: &RemoteClient, frame: &Frame) -> bool {
        match *frame {
            Frame::Connect { peer: called, pair } => match self.client(called) {
                Some(other) => other.send_frame(&Frame::Connect { peer, pair }),
                None if self.fabric.knows(called) => client.send_frame(&Frame::ViaHost { peer: called }),
                None => client.send_frame(&Frame::Unreachable { peer: called }),
            },
            Frame::Accept { peer: caller, pair } => {
                if let Some(caller) = self.client(caller) {
                    caller.send_frame(&Frame::Accept { peer, pair });
                }
            }
            Frame::Unreachable { peer: caller } => {
                if let Some(caller) = self.client(caller) {
                    caller.send_frame(&Frame::Unreachable { peer });
                }
            }
            Frame::Close { peer: other } => {
                if let Some(other) = self.client(other) {
                    other.send_frame(&Frame::Close { peer });
                }
            }
            Frame::Heartbeat => client.send_frame(&Frame::Heartbeat),
            Frame::Renew { pair } => match client.renew(&pair) {
                Some(pair) => client.send_frame(&Frame::Renewed { pair }),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    /// Fences `peer` and tells all who have to know. `false` if it is gone already.
    fn lose(&self, peer: PeerId, how: SessionEnd) -> bool {
        let Some(client) = self.clients().remove(&peer) else { return false };
        client.fence();
        for role in &self.departure_roles {
            self.fabric.post(peer, *role, Message { kind: Message::DEPARTED, ..Message::default() });
        }
        (self.on_lost)(peer);
        // When the whole host goes, clients have not left: they may come back to the next one.
        if let Some(service) = self.service.as_ref().filter(|_| !self.closing.load(Relaxed)) {
            service.on_lost(peer, how);
        }
        // Clients with messages to it in flight need not wait until the NIC gives up on them.
        let others: Vec<_> = self.clients().values().cloned().collect();
        for other in others {
            other.send_frame(&Frame::Unreachable { peer });
        }
        true
    }
}
