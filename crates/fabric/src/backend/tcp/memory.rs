//! A host whose lock memory is an in-process fabric, shared by remote and local clients.

use super::host::{ConnectionInfo, HostError, Inbox, SessionEnd, VerbHost};
use super::session_state::Backlog;
use crate::addr::{PeerId, Width, Word64, Word128};
use crate::backend::inproc::{InProc, InProcEndpoint};
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::{RawWait, Time, Wait};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::AbortHandle;

type OnLost = Box<dyn Fn(PeerId, SessionEnd) + Send + Sync>;

/// Exports an [`InProc`] fabric. Local and remote clients share its words and can send to each other; remote clients send
/// to each other only if [`relay`](Self::relay) allows it. Remote clients get ids from `first_client` on, none twice.
pub struct InProcHost {
    fabric: InProc,
    /// Executes the verbs of all clients. Its mailbox is not used.
    executor: InProcEndpoint,
    next: AtomicUsize,
    /// Tasks that forward messages of local clients to remote ones.
    forwarders: Mutex<HashMap<PeerId, AbortHandle>>,
    on_lost: Option<OnLost>,
    relay: Option<Backlog>,
}

impl InProcHost {
    /// The id under which the host executes verbs.
    const EXECUTOR: PeerId = PeerId::client(u32::MAX as usize >> 2);

    /// Exports `fabric`; its clients up to `first_client` are local.
    pub fn new(fabric: InProc, first_client: usize) -> Self {
        let executor = fabric.endpoint(Self::EXECUTOR);
        Self {
            fabric,
            executor,
            next: AtomicUsize::new(first_client),
            forwarders: Mutex::default(),
            on_lost: None,
            relay: None,
        }
    }

    /// Lets remote clients send to each other: up to `limit` unacknowledged messages per receiver, and no more.
    #[must_use]
    pub fn relay(mut self, limit: Backlog) -> Self {
        self.relay = Some(limit);
        self
    }

    /// Calls `on_lost` when the session of a remote client has ended.
    #[must_use]
    pub fn on_lost(mut self, on_lost: impl Fn(PeerId, SessionEnd) + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Box::new(on_lost));
        self
    }

    /// The fabric: for local clients, and to inspect the memory.
    pub fn fabric(&self) -> &InProc {
        &self.fabric
    }

    fn check(&self, addr: crate::Addr, width: Width) -> Result<(), HostError> {
        if self.executor.has(addr, width) { Ok(()) } else { Err(HostError::NoSuchWord { addr, width }) }
    }
}

impl fmt::Debug for InProcHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcHost").field("fabric", &self.fabric).finish_non_exhaustive()
    }
}

impl Drop for InProcHost {
    fn drop(&mut self) {
        for forwarder in self.forwarders.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
            forwarder.abort();
        }
    }
}

impl From<FabricError> for HostError {
    /// Verbs and waits fail only with a lost node.
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::NodeLost(node) => Self::NodeLost(node),
            FabricError::PeerLost(peer) => unreachable!("a verb has nothing to do with peer {peer}"),
            FabricError::Evicted => unreachable!("an in-process fabric evicts no client"),
        }
    }
}

impl VerbHost for InProcHost {
    fn capabilities(&self) -> Capabilities {
        self.executor.capabilities()
    }

    fn now(&self) -> Time {
        self.executor.clock().now()
    }

    fn execute(&self, _: PeerId, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError> {
        for verb in verbs {
            self.check(verb.addr, verb.width)?;
        }
        for verb in verbs {
            olds.push(self.executor.execute(*verb)?);
        }
        Ok(())
    }

    async fn watch(&self, _: PeerId, wait: RawWait) -> Result<u128, HostError> {
        let RawWait { addr, width, cond, or } = wait;
        self.check(addr, width)?;
        match width {
            Width::W64 => {
                let wait = Wait { or, ..Word64::at(addr).until(cond) };
                Ok(self.executor.wait_until(wait).await?.value.into())
            }
            Width::W128 => {
                let wait = Wait { or, ..Word128::at(addr).until(cond) };
                Ok(self.executor.wait_until(wait).await?.value)
            }
        }
    }

    fn admit(&self, _: &str) -> Option<PeerId> {
        let index = self.next.fetch_add(1, Relaxed);
        (PeerId::client(index) < Self::EXECUTOR).then(|| PeerId::client(index))
    }

    /// Starts a task that forwards messages from the peer's in-process mailbox to the server.
    fn attach(&self, peer: PeerId, inbox: Inbox) {
        let ep = self.fabric.endpoint(peer);
        if peer.index().1 {
            self.fabric.subscribe_departures(peer);
        }
        let forwarder = tokio::spawn(async move {
            while let Some((from, message)) = ep.next_message().await {
                if !inbox.deliver(from, message) {
                    return;
                }
            }
        });
        let mut forwarders = self.forwarders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = forwarders.insert(peer, forwarder.abort_handle()) {
            old.abort();
        }
    }

    fn relay(&self) -> Option<Backlog> {
        self.relay
    }

    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        self.fabric.post(from, to, message.clone())
    }

    fn on_session_lost(&self, peer: PeerId, how: SessionEnd) {
        if let Some(forwarder) = self.forwarders.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer)
        {
            forwarder.abort();
        }
        if let Some(on_lost) = &self.on_lost {
            on_lost(peer, how);
        }
    }
}

/// A host that outlives its server: several servers export it, one after the other.
impl<H: VerbHost> VerbHost for Arc<H> {
    fn capabilities(&self) -> Capabilities {
        H::capabilities(self)
    }
    fn now(&self) -> Time {
        H::now(self)
    }
    fn execute(&self, from: PeerId, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError> {
        H::execute(self, from, verbs, olds)
    }
    fn watch(&self, from: PeerId, wait: RawWait) -> impl Future<Output = Result<u128, HostError>> + Send {
        H::watch(self, from, wait)
    }
    fn admit(&self, name: &str) -> Option<PeerId> {
        H::admit(self, name)
    }
    fn on_connected(&self, peer: PeerId, connection: ConnectionInfo) {
        H::on_connected(self, peer, connection);
    }
    fn attach(&self, peer: PeerId, inbox: Inbox) {
        H::attach(self, peer, inbox);
    }
    fn relay(&self) -> Option<Backlog> {
        H::relay(self)
    }
    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        H::deliver(self, from, to, message)
    }
    fn settle(&self) {
        H::settle(self);
    }
    fn on_session_lost(&self, peer: PeerId, how: SessionEnd) {
        H::on_session_lost(self, peer, how);
    }
}
