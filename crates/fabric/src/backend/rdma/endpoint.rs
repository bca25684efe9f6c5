//! A client's endpoint over RDMA: verbs as work requests, waits by READing at a pace.

use super::client::{Client, RdmaConnectError, RdmaOptions};
use super::control::RegionInfo;
use super::fault::Fault;
use super::work::WorkKind;
use crate::addr::{Addr, NodeId, PeerId, RegionId, Value, Width};
use crate::backend::inproc::mailbox::Receive;
use crate::backend::tcp::{CloseReason, SessionHandler};
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::verb::{Batch, MaskedCas, Op, RawVerb};
use crate::wait::{Deadline, Time, Wait, Waited};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::event_loop::CHUNK;

/// One client of an [`RdmaHost`](super::RdmaHost).
///
/// A `go` or `send` takes effect when its future is first polled, and then even if it is dropped. Futures need no
/// runtime. When the host is gone everything fails; clones are the same client, and the last one dropped says goodbye.
///
/// A queue pair that fails is replaced. Verbs that were under way on it report that the node was lost: whether they took
/// effect is not known, and they will not later. Verbs after them go over the new one.
///
/// Verbs of a batch are posted together and execute in order; a verb that follows a READ is fenced, since a NIC may
/// otherwise let it pass (InfiniBand's ordering rules).
#[derive(Clone, Debug)]
pub struct RdmaEndpoint {
    client: Arc<Client>,
    _close: Arc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(Arc<Client>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl RdmaEndpoint {
    /// Connects to the host whose control connection listens at `host`.
    ///
    /// # Errors
    /// If there is no device, or the host cannot be reached or refuses.
    pub fn connect(host: SocketAddr, options: RdmaOptions) -> Result<Self, RdmaConnectError> {
        let client = Client::connect(host, options)?;
        Ok(Self { _close: Arc::new(CloseOnDrop(Arc::clone(&client))), client })
    }

    /// Whether the host is gone, or has expelled this client.
    pub fn is_lost(&self) -> bool {
        self.client.is_lost()
    }

    /// Puts the queue pair to the host into the error state, as a NIC does when something goes wrong: for tests of what comes
    /// after.
    pub fn break_queue_pair(&self) {
        self.client.host.break_queue_pair();
    }

    /// How often the queue pair to the host had to be replaced.
    pub fn renewals(&self) -> u64 {
        self.client.renewals.load(Relaxed)
    }

    /// What went wrong last, if anything did: the device, and what to do about it.
    pub fn last_fault(&self) -> Option<String> {
        let fault: Fault = self.client.event_loop().fault()?;
        Some(format!("{} port {}: {fault}", self.device(), self.client.event_loop().device().port))
    }

    /// The device that is used.
    pub fn device(&self) -> &str {
        &self.client.event_loop().device().name
    }

    /// Whether the host lends `bytes` bytes on each of `nodes` nodes.
    ///
    /// # Errors
    /// If it lends less: then it has another space, or other parameters.
    pub fn lends(&self, nodes: u16, bytes: u64) -> Result<(), RdmaConnectError> {
        for node in 0..nodes {
            let here = |region: &&RegionInfo| region.node.0 == node && region.region.0 == 0;
            let has = self.client.regions().iter().find(here).map_or(0, |region| region.bytes);
            if has < bytes {
                return Err(RdmaConnectError::TooSmall {
                    host: self.client.address,
                    node,
                    has,
                    needs: bytes,
                });
            }
        }
        Ok(())
    }

    /// Executes `batch` like `go`, but without waiting for the outcome or for a free slot: `false` if there is
    /// none, or no queue pair, or the NIC does not have such verbs; then nothing has happened. Verbs that are issued later come
    /// after it, unless the queue pair fails in between ([`renewals`](Self::renewals)).
    pub fn post<B: Batch>(&self, batch: B) -> bool {
        let mut verbs = Vec::with_capacity(4);
        batch.each(&mut |verb| {
            verbs.push(verb);
            0
        });
        let works: Option<Vec<_>> = verbs.iter().map(|verb| self.work(verb)).collect();
        !self.is_lost()
            && works.is_some_and(|works| works.len() <= CHUNK && self.client.host.post_batch(&works))
    }

    /// Bytes that the host lends in a region.
    pub fn lends_in(&self, node: NodeId, region: RegionId) -> u64 {
        let here = |lent: &&RegionInfo| lent.node == node && lent.region == region;
        self.client.regions().iter().find(here).map_or(0, |region| region.bytes)
    }

    /// How long ago the last heartbeat was sent that the host has answered.
    pub fn acknowledged(&self) -> Duration {
        self.client.acknowledged()
    }

    /// Sends `message` to a peer at the host without waiting, not even for a free slot: what cannot leave at once is kept in
    /// order. What was told before the queue pair failed may not have arrived.
    ///
    /// # Errors
    /// If the session is over or the queue pair is being replaced.
    pub fn tell(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        if self.client.tell(to, message) { Ok(()) } else { Err(FabricError::PeerLost(to)) }
    }

    /// Calls `handler` with every message from now on, instead of keeping them for `recv`. Only the first counts.
    pub fn set_handler(&self, handler: Weak<dyn SessionHandler>) {
        self.client.incoming.set_handler(handler);
    }

    /// How long nothing has come from the host. It says something at every heartbeat.
    pub fn silence(&self) -> Duration {
        self.client.silence()
    }

    /// How often a client shows that it is there.
    pub fn heartbeat(&self) -> Duration {
        self.client.heartbeat()
    }

    /// How long a client may be silent after three missed heartbeats.
    pub fn grace(&self) -> Duration {
        self.client.grace()
    }

    /// The run of the host that the session belongs to.
    pub fn epoch(&self) -> u64 {
        self.client.welcome.epoch
    }

    /// How the session ended, if it did.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.client.close_reason()
    }

    /// Ends the session, for all clones.
    pub fn close(&self) {
        self.client.close();
    }

    async fn execute(&self, verbs: &[RawVerb]) -> Result<Vec<u128>, FabricError> {
        let mut olds = Vec::with_capacity(verbs.len());
        let mut rest = verbs;
        while let Some(first) = rest.first() {
            let native = rest.iter().take(CHUNK).map_while(|verb| self.work(verb)).collect::<Vec<_>>();
            if native.is_empty() {
                olds.push(self.emulate(first).await?);
                rest = &rest[1..];
                continue;
            }
            olds.extend(self.batch(first.addr, &native).await?);
            rest = &rest[native.len()..];
        }
        Ok(olds)
    }

    async fn batch(&self, at: Addr, works: &[WorkKind]) -> Result<Vec<u128>, FabricError> {
        let lost = FabricError::NodeLost(at.node);
        if self.is_lost() {
            return Err(lost);
        }
        let olds = self.client.host.batch(works).await.map_err(|_| lost)?;
        Ok(olds.into_iter().map(u128::from).collect())
    }

    /// The verb as one work request; `None` if it must be emulated.
    fn work(&self, verb: &RawVerb) -> Option<WorkKind> {
        let all = u128::from(u64::MAX);
        if verb.width != Width::W64 {
            return None;
        }
        let (addr, key) = self.place(verb.addr, 8);
        Some(match verb.op {
            Op::Read => WorkKind::Read { addr, key },
            Op::Write(value) => WorkKind::Write { addr, key, value: value as u64 },
            Op::Cas { expect, new } => {
                WorkKind::CompareSwap { addr, key, expect: expect as u64, new: new as u64 }
            }
            Op::FetchAdd(add) => WorkKind::FetchAdd { addr, key, add: add as u64 },
            Op::MaskedCas(MaskedCas { compare, compare_mask, swap, swap_mask })
                if compare_mask & all == all =>
            {
                let new = (compare & !swap_mask) | (swap & swap_mask);
                WorkKind::CompareSwap { addr, key, expect: compare as u64, new: new as u64 }
            }
            // One field, as wide as the word: its carry is lost anyway.
            Op::MaskedFetchAdd(fields) if fields.boundaries & (all >> 1) == 0 => {
                WorkKind::FetchAdd { addr, key, add: fields.add as u64 }
            }
            Op::MaskedCas(_) | Op::MaskedFetchAdd(_) | Op::GuardedFetchAdd { .. } => return None,
        })
    }

    /// Where a word is, as the NIC sees it.
    ///
    /// # Panics
    /// If there is no such word.
    fn place(&self, addr: Addr, bytes: u64) -> (u64, u32) {
        let here = |region: &&RegionInfo| region.node == addr.node && region.region == addr.region;
        let region = self.client.regions().iter().find(here);
        let region = region.unwrap_or_else(|| panic!("{addr} lies in no region of this fabric"));
        assert!(
            addr.offset + bytes <= region.bytes,
            "{addr} lies past the end of its region of {} bytes",
            region.bytes
        );
        (region.addr + addr.offset, region.key)
    }

    /// A verb that the NIC does not have: READ, then compare-and-swap until nobody came in between.
    ///
    /// # Panics
    /// If emulation was not asked for, or the word is wider than the NIC's atomics: then the fabric's capabilities say
    /// so, and the protocol should not have been started on it.
    async fn emulate(&self, verb: &RawVerb) -> Result<u128, FabricError> {
        let as_one = |op: Op| {
            let asked = self.client.options.emulate_masks;
            let work = asked.then(|| self.work(&RawVerb { op, ..*verb })).flatten();
            let bytes = verb.width.bytes();
            work.unwrap_or_else(|| {
                panic!("{:?} on {bytes} bytes is beyond this fabric's capabilities", verb.op)
            })
        };
        let mut seen = self.batch(verb.addr, &[as_one(Op::Read)]).await?[0];
        loop {
            let Some(new) = verb.op.apply(verb.width, seen) else { return Ok(seen) };
            let found = self.batch(verb.addr, &[as_one(Op::Cas { expect: seen, new })]).await?[0];
            if found == seen {
                return Ok(seen);
            }
            seen = found;
        }
    }
}

impl Endpoint for RdmaEndpoint {
    fn me(&self) -> PeerId {
        self.client.peer
    }

    fn capabilities(&self) -> Capabilities {
        let emulated = self.client.options.emulate_masks;
        Capabilities {
            masked: emulated,
            wide: false,
            guarded: emulated,
            messages: true,
            scope: self.client.welcome.scope,
        }
    }

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let mut verbs = Vec::with_capacity(4);
        batch.each(&mut |verb| {
            verbs.push(verb);
            0
        });
        let mut olds = self.execute(&verbs).await?.into_iter();
        Ok(batch.each(&mut |_| olds.next().expect("every verb has an old word")))
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let pace = if wait.pace_ns == 0 { self.client.options.pace_ns } else { wait.pace_ns };
        let mut polls = 0;
        loop {
            let value = self.go(wait.word.read()).await?;
            polls += 1;
            let met = wait.met_by(value);
            if met || self.client.clock.reached(wait.deadline) {
                return Ok(Waited { value, met, polls });
            }
            self.client.clock.sleep(pace).await;
        }
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.client.send(to, &message).await
    }

    /// Carried reliably: what is lost is only what nobody is there to receive.
    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        let _ = self.client.send(to, &message).await;
        Ok(())
    }

    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        Receive::new(&self.client.incoming.mailbox, &self.client.clock, deadline, pick)
    }

    /// The host's clock as it was when the client came, kept going by this machine's own.
    async fn now(&self) -> Time {
        self.client.clock.now()
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.client.clock.sleep(ns)
    }

    /// SplitMix64, one stream per client.
    fn random(&self) -> u64 {
        self.client.random.next()
    }
}
