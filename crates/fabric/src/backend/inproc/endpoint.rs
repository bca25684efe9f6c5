//! A client's endpoint: verbs are instructions of this CPU, messages go through mailboxes.

use super::mailbox::{Mailbox, Receive};
use super::memory::Region;
use super::park::Parking;
use super::wait::Waiting;
use super::{Shared, find};
use crate::addr::{Addr, NodeId, PeerId, RegionId, Value, Width};
use crate::backend::clock::Clock;
use crate::backend::now::{Done, Now};
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::random::SharedSplitMix;
use crate::verb::{Batch, Executor, Op, RawVerb};
use crate::wait::{Deadline, Time, Wait, Waited};
use std::sync::{Arc, Weak};

/// One client of an [`InProc`](super::InProc) fabric.
///
/// A verb is executed when `go` is called; its future is ready at the first poll. Clones are the same client.
///
/// ```
/// use lockwright_fabric::backend::inproc::{InProc, block_on};
/// use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Word64};
///
/// let fabric = InProc::new(1, 64);
/// let ep = fabric.endpoint(PeerId::client(0));
/// let word = Word64::at(Addr::new(NodeId(0), 8));
/// assert_eq!(block_on(ep.go((word.fetch_add(5), word.read()))), Ok((0, 5)));
/// ```
#[derive(Clone, Debug)]
pub struct InProcEndpoint {
    /// Also reachable through `shared`; here, a verb needs one load less.
    regions: Arc<[Region]>,
    me: PeerId,
    home: Option<NodeId>,
    /// Also in `_presence`; here, a check of the mailbox is one load.
    client: Arc<Client>,
    /// Held for its `Drop`.
    _presence: Arc<Presence>,
    shared: Arc<Shared>,
}

/// What the clones of one client share with the senders to it.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) mailbox: Mailbox,
    random: SharedSplitMix,
}

impl Client {
    pub(super) fn new(seed: u64) -> Self {
        Self { mailbox: Mailbox::default(), random: SharedSplitMix::new(seed) }
    }
}

/// What only the clones share: when the last of them is dropped, the client has departed, even if a sender still holds its
/// mailbox. Roles that want departures are told.
#[derive(Debug)]
pub(super) struct Presence {
    pub(super) client: Arc<Client>,
    me: PeerId,
    fabric: Weak<Shared>,
}

impl Presence {
    pub(super) fn new(shared: &Arc<Shared>, me: PeerId, client: Arc<Client>) -> Self {
        Self { client, me, fabric: Arc::downgrade(shared) }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(shared) = self.fabric.upgrade() {
            shared.depart(self.me, self);
        }
    }
}

impl InProcEndpoint {
    pub(super) fn new(
        shared: &Arc<Shared>,
        me: PeerId,
        home: Option<NodeId>,
        presence: Arc<Presence>,
    ) -> Self {
        let (regions, client) = (Arc::clone(&shared.regions), Arc::clone(&presence.client));
        Self { regions, me, home, client, _presence: presence, shared: Arc::clone(shared) }
    }

    pub(in crate::backend) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    pub(super) fn parking(&self) -> &Parking {
        &self.shared.parking
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.client.mailbox
    }

    /// Executes one verb and wakes the waiters of its word.
    #[inline(always)]
    pub(in crate::backend) fn execute(&self, verb: RawVerb) -> Result<u128, FabricError> {
        self.reach_and_wake(verb).ok_or(FabricError::NodeLost(verb.addr.node))
    }

    /// The same; `None` if the word's node is dead.
    #[inline(always)]
    fn reach_and_wake(&self, verb: RawVerb) -> Option<u128> {
        let RawVerb { addr, width, op } = verb;
        let Some((old, changed)) = self.reach(addr, width, &op) else {
            self.refuse(addr.node, addr.region, addr.offset, width);
            return None;
        };
        if changed && self.shared.parking.has_waiters(addr.offset) {
            self.wake(addr.node, addr.region, addr.offset);
        }
        Some(old)
    }

    /// Whether there is such a word, or was before its node was lost.
    #[cfg(feature = "tcp")]
    pub(in crate::backend) fn has(&self, addr: Addr, width: Width) -> bool {
        find(&self.regions, addr)
            .is_some_and(|region| addr.offset < region.bytes() && addr.offset.is_multiple_of(width.bytes()))
    }

    /// Closes the mailbox.
    #[cfg(feature = "rdma")]
    pub(in crate::backend) fn close(&self) {
        self.client.mailbox.close();
    }

    /// The next message; `None` once the mailbox is closed.
    #[cfg(any(feature = "tcp", feature = "rdma"))]
    pub(in crate::backend) async fn next_message(&self) -> Option<(PeerId, Message)> {
        self.recv_by(Deadline::Never, |from, message| Some((from, message.clone()))).await
    }

    #[inline(always)]
    fn reach(&self, addr: Addr, width: Width, op: &Op) -> Option<(u128, bool)> {
        find(&self.regions, addr)?.execute(addr.offset, width, op)
    }

    // The cold paths take an address in parts: a whole one would be spilled to memory on the hot path too.

    #[cold]
    #[inline(never)]
    fn refuse(&self, node: NodeId, region: RegionId, offset: u64, width: Width) {
        self.shared.refuse(Addr { offset, node, region }, width);
    }

    #[cold]
    #[inline(never)]
    fn wake(&self, node: NodeId, region: RegionId, offset: u64) {
        let look = |addr: Addr, width: Width| Some(self.reach(addr, width, &Op::Read)?.0);
        self.shared.parking.wake(Addr { offset, node, region }, look);
    }
}

/// Executes a batch's verbs.
struct Direct<'a> {
    ep: &'a InProcEndpoint,
    /// A lost node; smaller than the error it becomes, so that it stays in a register.
    lost: Option<NodeId>,
}

impl Executor for Direct<'_> {
    #[inline(always)]
    fn execute(&mut self, verb: RawVerb) -> u128 {
        match self.ep.reach_and_wake(verb) {
            Some(old) => old,
            None => {
                self.lost = Some(verb.addr.node);
                0
            }
        }
    }
}

impl Endpoint for InProcEndpoint {
    const IS_IMMEDIATE: bool = true;

    #[inline(always)]
    fn me(&self) -> PeerId {
        self.me
    }

    #[inline(always)]
    fn home(&self) -> Option<NodeId> {
        self.home
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    #[inline(always)]
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        let mut direct = Direct { ep: self, lost: None };
        let olds = batch.run(&mut direct);
        Done::new(olds, direct.lost.map(FabricError::NodeLost))
    }

    #[inline(always)]
    fn try_go<B: Batch>(&self, batch: B) -> Result<Result<B::Old, FabricError>, B> {
        let mut direct = Direct { ep: self, lost: None };
        let olds = batch.run(&mut direct);
        Ok(match direct.lost {
            None => Ok(olds),
            Some(node) => Err(FabricError::NodeLost(node)),
        })
    }

    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        Waiting::new(self, wait)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        Now::new(self.shared.post(self.me, to, message))
    }

    /// Never lost, but as on a network, an unreachable receiver is no error.
    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        let _ = self.shared.post(self.me, to, message);
        Now::new(Ok(()))
    }

    #[inline(always)]
    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        Receive::new(self.mailbox(), self.clock(), deadline, pick)
    }

    #[inline(always)]
    fn has_no_mail(&self) -> bool {
        self.client.mailbox.is_empty()
    }

    fn now(&self) -> impl Future<Output = Time> {
        Now::new(self.shared.clock.now())
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.shared.clock.sleep(ns)
    }

    /// SplitMix64, one stream per client.
    fn random(&self) -> u64 {
        self.client.random.next()
    }
}
