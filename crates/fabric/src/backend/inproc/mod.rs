//! The in-process fabric: lock memory in this process, verbs as CPU atomics, clients as threads or tasks.
//!
//! ```
//! use lockwright_fabric::backend::inproc::{InProc, block_on};
//! use lockwright_fabric::{Addr, Cond, Endpoint, NodeId, PeerId, Word64};
//!
//! let fabric = InProc::new(1, 4096);
//! let flag = Word64::at(Addr::new(NodeId(0), 0));
//! let (waiter, setter) = (fabric.endpoint(PeerId::client(0)), fabric.endpoint(PeerId::client(1)));
//! std::thread::scope(|scope| {
//!     scope.spawn(move || block_on(waiter.wait_until(flag.until(Cond::Eq { mask: 1, value: 1 }))));
//!     scope.spawn(move || block_on(setter.go(flag.write(1))));
//! });
//! ```
//!
//! A verb is executed inside `go` and its future is ready at once, so generic protocol code compiles to the atomics. Waits
//! spin briefly and then park. This backend must not start a thread before it is needed (one timer thread for deadlines, one
//! per role), nor allocate on a verb's path.

mod endpoint;
pub(in crate::backend) mod mailbox;
mod memory;
mod park;
mod serve;
mod wait;

pub use super::run::block_on;
pub use endpoint::InProcEndpoint;

use super::clock::Clock;
use crate::addr::{Addr, NodeId, PeerId, Value, Width};
use crate::endpoint::FabricError;
use crate::message::{BoxedRole, Message};
use crate::random::mix;
use crate::{Word, verb::Op};
use endpoint::{Client, Presence};
use memory::Region;
use park::Parking;
use portable_atomic::AtomicU128;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;

/// The most regions a node can have. A constant, so that a word is found without loading it first.
pub const REGIONS: usize = 8;

/// A fabric inside this process.
///
/// Dropping it stops the threads of its roles; endpoints that are left can still reach the memory.
#[derive(Debug)]
pub struct InProc {
    shared: Arc<Shared>,
    seed: u64,
    servers: Mutex<Vec<Server>>,
}

#[derive(Debug)]
struct Server {
    client: Arc<Client>,
    thread: JoinHandle<()>,
}

/// A peer, as senders find it.
#[derive(Debug)]
struct Known {
    presence: Weak<Presence>,
    client: Arc<Client>,
}

/// What endpoints share.
#[derive(Debug)]
struct Shared {
    /// All nodes' regions, node by node, [`REGIONS`] each; those that were not asked for are empty.
    regions: Arc<[Region]>,
    parking: Parking,
    clock: Clock,
    /// Peers whose endpoint has not been dropped.
    peers: RwLock<HashMap<PeerId, Known>>,
    /// Roles that want a message when a peer departs.
    want_departures: RwLock<Vec<PeerId>>,
}

impl InProc {
    /// A fabric of `nodes` nodes, each with one region of `bytes` zeroed bytes.
    ///
    /// # Panics
    /// If this CPU has no lock-free 16-byte atomics.
    pub fn new(nodes: u16, bytes: u64) -> Self {
        Self::with_regions(nodes, &[bytes])
    }

    /// A fabric of `nodes` nodes, each with regions of these sizes.
    ///
    /// # Panics
    /// If this CPU has no lock-free 16-byte atomics, or there are more than [`REGIONS`] sizes.
    pub fn with_regions(nodes: u16, sizes: &[u64]) -> Self {
        assert!(
            AtomicU128::is_lock_free(),
            "this CPU has no lock-free 16-byte atomics (cmpxchg16b on x86-64), which lock memory needs"
        );
        assert!(sizes.len() <= REGIONS, "a node has at most {REGIONS} regions");
        let size = |region: usize| sizes.get(region).copied().unwrap_or(0);
        let regions =
            (0..nodes).flat_map(|_| (0..REGIONS).map(|region| Region::zeroed(size(region)))).collect();
        Self::of_regions(regions, Clock::new())
    }

    /// A fabric of one node whose memory is that of `space`, by the clock of that space. Waiters here are woken by verbs that
    /// are executed here, and not by those of other processes.
    ///
    /// # Panics
    /// If the space has more than [`REGIONS`] regions.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    pub fn over(space: &super::shm::ShmSpace) -> Self {
        let region = |index: usize| {
            let id = crate::RegionId(index as u16);
            match space.bytes(NodeId(0), id) {
                0 => Region::zeroed(0),
                bytes => {
                    let first = Word::at(Addr { offset: 0, node: NodeId(0), region: id });
                    Region::shared(space.word_slice(first, bytes / 8))
                }
            }
        };
        assert_eq!(space.bytes(NodeId(0), crate::RegionId(REGIONS as u16)), 0, "too many regions");
        Self::of_regions(
            (0..REGIONS).map(region).collect(),
            Clock::from_fn(|| crate::Time(super::shm::monotonic_ns())),
        )
    }

    fn of_regions(regions: Arc<[Region]>, clock: Clock) -> Self {
        let shared = Shared {
            regions,
            parking: Parking::new(),
            clock,
            peers: RwLock::default(),
            want_departures: RwLock::default(),
        };
        Self { shared: Arc::new(shared), seed: 0, servers: Mutex::default() }
    }

    /// Derives the clients' random numbers from `seed`.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The endpoint of `peer`; the same client as long as one exists. When the last clone is dropped the peer departs: roles
    /// that want departures get a message, after everything that the peer sent.
    pub fn endpoint(&self, peer: PeerId) -> InProcEndpoint {
        InProcEndpoint::new(&self.shared, peer, None, self.presence(peer))
    }

    /// The endpoint of `peer`, which runs on `home`: a node that owns lock memory.
    pub fn endpoint_at(&self, peer: PeerId, home: NodeId) -> InProcEndpoint {
        InProcEndpoint::new(&self.shared, peer, Some(home), self.presence(peer))
    }

    fn presence(&self, peer: PeerId) -> Arc<Presence> {
        let mut peers = self.shared.peers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = peers.get(&peer) {
            if let Some(presence) = known.presence.upgrade() {
                return presence;
            }
            // Its last endpoint is being dropped by another thread: announce it before the new one exists.
            self.shared.announce_departure(&peers, peer);
        }
        let client = Arc::new(Client::new(mix(self.seed ^ mix(u64::from(peer.0)))));
        let presence = Arc::new(Presence::new(&self.shared, peer, Arc::clone(&client)));
        peers.insert(peer, Known { presence: Arc::downgrade(&presence), client });
        presence
    }

    /// From now on `role` gets a message when a peer departs.
    pub(in crate::backend) fn subscribe_departures(&self, role: PeerId) {
        let mut told = self.shared.want_departures.write().unwrap_or_else(PoisonError::into_inner);
        if !told.contains(&role) {
            told.push(role);
        }
    }

    /// Starts a thread for each of `roles`: the i-th is reached as `PeerId::role(i)` and lives on node i.
    /// They stop when the fabric is dropped or their node dies.
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn serve(&self, roles: Vec<BoxedRole>) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, role) in roles.into_iter().enumerate() {
            let peer = PeerId::role(index);
            let presence = self.presence(peer);
            let client = Arc::clone(&presence.client);
            if role.wants_departures() {
                self.subscribe_departures(peer);
            }
            let node = NodeId(index as u16);
            let ep = InProcEndpoint::new(&self.shared, peer, Some(node), presence);
            let thread = std::thread::Builder::new()
                .name(format!("lockwright-role-{index}"))
                .spawn(move || serve::serve(&ep, role))
                .expect("the system can start a thread for a role");
            servers.push(Server { client, thread });
        }
    }

    /// Kills `node`: from now on its memory answers `NodeLost`, its role `PeerLost`.
    pub fn kill(&self, node: NodeId) {
        for region in self.shared.regions.iter().skip(node.0 as usize * REGIONS).take(REGIONS) {
            region.kill();
        }
        self.shared.parking.wake_unreachable(|addr| addr.node == node);
        if let Some(role) = self.shared.peer(PeerId::role(node.0 as usize)) {
            role.mailbox.close();
        }
    }

    /// The fabric's clock.
    pub fn now(&self) -> crate::Time {
        self.shared.clock.now()
    }

    /// Whether `peer` can be sent messages.
    #[cfg(feature = "rdma")]
    pub(in crate::backend) fn knows(&self, peer: PeerId) -> bool {
        self.shared.peer(peer).is_some()
    }

    /// The addresses of the regions: for a NIC that accesses them.
    #[cfg(feature = "rdma")]
    pub(in crate::backend) fn places(&self) -> Vec<(NodeId, crate::RegionId, std::ptr::NonNull<u8>, u64)> {
        let regions = self.shared.regions.iter().enumerate().filter(|(_, region)| region.bytes() > 0);
        let place = |(index, region): (usize, &Region)| {
            let (node, number) = (index / REGIONS, index % REGIONS);
            (NodeId(node as u16), crate::RegionId(number as u16), region.base(), region.bytes())
        };
        regions.map(place).collect()
    }

    /// Puts a message into the mailbox of `to`; `false` if there is no such peer.
    #[cfg(any(feature = "tcp", feature = "rdma"))]
    pub(in crate::backend) fn post(&self, from: PeerId, to: PeerId, message: Message) -> bool {
        self.shared.post(from, to, message).is_ok()
    }

    /// The value of `word`, read without a client: for setup and inspection.
    ///
    /// # Panics
    /// If there is no such word, or its node is dead.
    pub fn peek<T: Value>(&self, word: Word<T>) -> T {
        T::narrow(self.shared.execute(word.addr(), T::WIDTH, &Op::Read))
    }

    /// Sets `word` without a client, waking nobody: for setup.
    ///
    /// # Panics
    /// If there is no such word, or its node is dead.
    pub fn poke<T: Value>(&self, word: Word<T>, value: T) {
        self.shared.execute(word.addr(), T::WIDTH, &Op::Write(value.widen()));
    }
}

impl Drop for InProc {
    fn drop(&mut self) {
        let servers = std::mem::take(self.servers.get_mut().unwrap_or_else(PoisonError::into_inner));
        for server in &servers {
            server.client.mailbox.close();
        }
        for server in servers {
            // A role that panicked has printed its message.
            let _ = server.thread.join();
        }
    }
}

impl Shared {
    fn peer(&self, peer: PeerId) -> Option<Arc<Client>> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let known = peers.get(&peer)?;
        (known.presence.strong_count() > 0).then(|| Arc::clone(&known.client))
    }

    fn post(&self, from: PeerId, to: PeerId, message: Message) -> Result<(), FabricError> {
        let delivered = self.peer(to).is_some_and(|peer| peer.mailbox.put(from, message));
        if delivered { Ok(()) } else { Err(FabricError::PeerLost(to)) }
    }

    /// The last endpoint of `peer` was dropped. If a new one has replaced it, that one has told the roles.
    fn depart(&self, peer: PeerId, gone: &Presence) {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        if peers.get(&peer).is_some_and(|known| std::ptr::eq(known.presence.as_ptr(), gone)) {
            peers.remove(&peer);
            self.announce_departure(&peers, peer);
        }
    }

    /// Tells the roles that `peer` has departed, after everything that it sent.
    fn announce_departure(&self, peers: &HashMap<PeerId, Known>, peer: PeerId) {
        let roles = self.want_departures.read().unwrap_or_else(PoisonError::into_inner);
        for role in roles.iter().filter_map(|role| peers.get(role)) {
            role.client.mailbox.put(peer, Message::new(0, Message::DEPARTED, &[]));
        }
    }

    /// Checks that an unreachable word belongs to a dead node.
    ///
    /// # Panics
    /// If there never was such a word.
    fn refuse(&self, addr: Addr, width: Width) {
        match find(&self.regions, addr) {
            Some(region) if region.is_dead() => {}
            Some(region) => panic!(
                "no word of {} bytes at {addr}: the region has {} bytes, and words are aligned to their size",
                width.bytes(),
                region.bytes()
            ),
            None => panic!("{addr} lies in no region of this fabric"),
        }
    }

    fn execute(&self, addr: Addr, width: Width, op: &Op) -> u128 {
        match find(&self.regions, addr).and_then(|region| region.execute(addr.offset, width, op)) {
            Some((old, _)) => old,
            None => {
                self.refuse(addr, width);
                panic!("{}", FabricError::NodeLost(addr.node));
            }
        }
    }
}

/// The region of `addr`.
#[inline(always)]
fn find(regions: &[Region], addr: Addr) -> Option<&Region> {
    if addr.region.0 as usize >= REGIONS {
        return None;
    }
    regions.get(addr.node.0 as usize * REGIONS + addr.region.0 as usize)
}
