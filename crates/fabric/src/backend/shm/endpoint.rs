//! A client's endpoint: verbs are instructions of this CPU, messages go through mailboxes in the file.

use super::area::{Area, Words};
use super::client::Client;
use super::error::SpaceError;
use super::receive::Receive;
use super::send::Sending;
use super::shared::Shared;
use super::wait::Waiting;
use crate::addr::{Addr, NodeId, PeerId, RegionId, Value, Width};
use crate::backend::fork::Owner;
use crate::backend::now::{Done, Now};
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::verb::{Batch, Executor, RawVerb};
use crate::wait::{Deadline, Time, Wait, Waited};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// One client of a [`ShmSpace`](super::ShmSpace).
///
/// A verb is executed when `go` is called; its future is ready at the first poll. Clones are the same client; when the last
/// one is dropped, the client leaves the space. An endpoint must not be used after a `fork`: the child has to join by
/// itself.
///
/// ```
/// use lockwright_fabric::backend::{block_on, shm::{ShmSpace, SpaceOptions}};
/// use lockwright_fabric::{Addr, Endpoint, NodeId, Word64};
///
/// # let path = std::env::temp_dir().join(format!("lockwright-doc-endpoint-{}.space", std::process::id()));
/// let space = ShmSpace::open(&path, &SpaceOptions::default())?;
/// let ep = space.endpoint()?;
/// let word = Word64::at(Addr::new(NodeId(0), 8));
/// assert_eq!(block_on(ep.go((word.fetch_add(5), word.read()))), Ok((0, 5)));
/// # ShmSpace::remove(&path)?;
/// # Ok::<_, lockwright_fabric::backend::shm::SpaceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShmEndpoint {
    /// Also reachable through `client`; here, a verb needs fewer loads.
    areas: Arc<[Area]>,
    /// The client's state word in the client table, and its value while the client is a member.
    state: Words,
    expected: u64,
    owner: Owner,
    hints: Words,
    me: PeerId,
    nodes: u16,
    regions: u16,
    client: Arc<Client>,
}

impl ShmEndpoint {
    pub(super) fn join(shared: &Arc<Shared>, label: &str) -> Result<Self, SpaceError> {
        let client = Client::join(shared, label)?;
        let shape = &shared.layout.shape;
        Ok(Self {
            areas: Arc::clone(&shared.areas),
            state: Words::new(&shared.map, shared.slot_at(client.membership.slot), 1),
            hints: shared.hints.clone(),
            expected: client.membership.state.0,
            owner: client.owner,
            me: client.membership.peer,
            nodes: shape.nodes as u16,
            regions: shape.regions as u16,
            client,
        })
    }

    /// Whether this client is still a member: it has not been evicted, and this is no copy in a child of its process.
    #[inline(always)]
    pub fn is_member(&self) -> bool {
        self.state.get(0).load(Relaxed) == self.expected && self.owner.is_current()
    }

    /// [`is_member`](Self::is_member), ordered after everything that this thread did before.
    #[inline(always)]
    pub fn is_member_seq_cst(&self) -> bool {
        self.state.get(0).load(SeqCst) == self.expected && self.owner.is_current()
    }

    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Executes one verb and wakes the waiters of its word.
    #[inline(always)]
    fn execute(&self, verb: RawVerb) -> u128 {
        let RawVerb { addr, width, op } = verb;
        let found = if addr.node.0 < self.nodes && addr.region.0 < self.regions {
            let index = addr.node.0 as usize * self.regions as usize + addr.region.0 as usize;
            self.areas.get(index).and_then(|area| area.execute(addr.offset, width, &op))
        } else {
            None
        };
        let Some((old, changed)) = found else { self.refuse(addr.node, addr.region, addr.offset, width) };
        if changed && super::park::has_waiters(&self.hints, addr) {
            self.wake_waiters(addr.node, addr.region, addr.offset);
        }
        old
    }

    // The cold paths take an address in parts: a whole one would be spilled to memory on the hot path too.

    #[cold]
    #[inline(never)]
    fn refuse(&self, node: NodeId, region: RegionId, offset: u64, width: Width) -> ! {
        self.client.shared.refuse(Addr { offset, node, region }, width)
    }

    #[cold]
    #[inline(never)]
    fn wake_waiters(&self, node: NodeId, region: RegionId, offset: u64) {
        self.client.shared.wake_waiters(Addr { offset, node, region });
    }
}

/// Executes a batch's verbs, unless the client was evicted.
struct Direct<'a> {
    ep: &'a ShmEndpoint,
    evicted: bool,
}

impl Executor for Direct<'_> {
    #[inline(always)]
    fn execute(&mut self, verb: RawVerb) -> u128 {
        if self.evicted {
            return 0;
        }
        self.ep.execute(verb)
    }
}

impl Endpoint for ShmEndpoint {
    const IS_IMMEDIATE: bool = true;

    #[inline(always)]
    fn me(&self) -> PeerId {
        self.me
    }

    /// Node 0.
    #[inline(always)]
    fn home(&self) -> Option<NodeId> {
        Some(NodeId(0))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    #[inline(always)]
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        let evicted = !self.is_member();
        let olds = batch.run(&mut Direct { ep: self, evicted });
        Done::new(olds, if evicted { Some(FabricError::Evicted) } else { None })
    }

    #[inline(always)]
    fn try_go<B: Batch>(&self, batch: B) -> Result<Result<B::Old, FabricError>, B> {
        if !self.is_member() {
            return Ok(Err(FabricError::Evicted));
        }
        Ok(Ok(batch.run(&mut Direct { ep: self, evicted: false })))
    }

    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        Waiting::new(&self.client, wait)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        Sending::new(&self.client, to, &message)
    }

    /// Never lost, but as on a network, an unreachable receiver is no error.
    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        let sending = Sending::new(&self.client, to, &message);
        async move {
            match sending.await {
                Err(FabricError::PeerLost(_)) => Ok(()),
                other => other,
            }
        }
    }

    #[inline(always)]
    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        Receive::new(&self.client, deadline, pick)
    }

    #[inline(always)]
    fn has_no_mail(&self) -> bool {
        self.client.has_no_message()
    }

    /// CLOCK_MONOTONIC, the same for all processes of the host.
    fn now(&self) -> impl Future<Output = Time> {
        Now::new(self.client.shared.clock.now())
    }

    /// Whether its process is known to have ended, or it was evicted. One system call.
    fn is_gone(&self, peer: PeerId) -> impl Future<Output = bool> {
        std::future::ready(!self.client.shared.is_alive_cached(peer))
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.client.shared.clock.sleep(ns)
    }

    fn random(&self) -> u64 {
        self.client.random()
    }
}
