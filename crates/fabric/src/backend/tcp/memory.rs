//! The host whose lock memory is the server's own: an in-process fabric that remote clients share with local ones.

use super::host::{HostError, Inbox, RawWait, SessionEnd, VerbHost};
use crate::addr::{PeerId, Width, Word64, Word128};
use crate::backend::inproc::{InProc, InProcEndpoint};
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::{Time, Wait};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::AbortHandle;

type OnLost = Box<dyn Fn(PeerId, SessionEnd) + Send + Sync>;

/// Exports an [`InProc`] fabric. Local clients of it and remote ones contend for the same words and can write to each
/// other; remote clients get the ids from `first_client` on, and no id twice.
pub struct InProcHost {
    fabric: InProc,
    /// Executes everybody's verbs. Its own mailbox is never used.
    hand: InProcEndpoint,
    next: AtomicUsize,
    /// The tasks that carry local clients' messages to remote ones.
    carriers: Mutex<HashMap<PeerId, AbortHandle>>,
    on_lost: Option<OnLost>,
}

impl InProcHost {
    /// The id under which the host executes verbs.
    const HAND: PeerId = PeerId::client(u32::MAX as usize >> 2);

    /// Exports `fabric`; its clients up to `first_client` are local.
    pub fn new(fabric: InProc, first_client: usize) -> Self {
        let hand = fabric.endpoint(Self::HAND);
        Self { fabric, hand, next: AtomicUsize::new(first_client), carriers: Mutex::default(), on_lost: None }
    }

    /// Calls `on_lost` when a remote client is gone for good.
    #[must_use]
    pub fn on_lost(mut self, on_lost: impl Fn(PeerId, SessionEnd) + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Box::new(on_lost));
        self
    }

    /// The fabric, for local clients and for looking at the memory.
    pub fn fabric(&self) -> &InProc {
        &self.fabric
    }

    fn check(&self, addr: crate::Addr, width: Width) -> Result<(), HostError> {
        if self.hand.has(addr, width) { Ok(()) } else { Err(HostError::NoSuchWord { addr, width }) }
    }
}

impl fmt::Debug for InProcHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcHost").field("fabric", &self.fabric).finish_non_exhaustive()
    }
}

impl Drop for InProcHost {
    fn drop(&mut self) {
        for carrier in self.carriers.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
            carrier.abort();
        }
    }
}

impl From<FabricError> for HostError {
    /// Verbs and waits lose nodes only.
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::NodeLost(node) => Self::NodeLost(node),
            FabricError::PeerLost(peer) => unreachable!("a verb has nothing to do with peer {peer}"),
            FabricError::Evicted => unreachable!("nobody is expelled from a process of his own"),
        }
    }
}

impl VerbHost for InProcHost {
    fn capabilities(&self) -> Capabilities {
        self.hand.capabilities()
    }

    fn now(&self) -> Time {
        self.hand.clock().now()
    }

    fn execute(&self, _: PeerId, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError> {
        for verb in verbs {
            self.check(verb.addr, verb.width)?;
        }
        for verb in verbs {
            olds.push(self.hand.execute(*verb)?);
        }
        Ok(())
    }

    async fn watch(&self, _: PeerId, watch: RawWait) -> Result<u128, HostError> {
        let RawWait { addr, width, cond, or } = watch;
        self.check(addr, width)?;
        match width {
            Width::W64 => {
                let wait = Wait { or, ..Word64::at(addr).until(cond) };
                Ok(self.hand.wait_until(wait).await?.value.into())
            }
            Width::W128 => {
                let wait = Wait { or, ..Word128::at(addr).until(cond) };
                Ok(self.hand.wait_until(wait).await?.value)
            }
        }
    }

    fn admit(&self, _: &str) -> Option<PeerId> {
        let index = self.next.fetch_add(1, Relaxed);
        (PeerId::client(index) < Self::HAND).then(|| PeerId::client(index))
    }

    /// A task takes what local clients put into the peer's mailbox and hands it to the server.
    fn attach(&self, peer: PeerId, inbox: Inbox) {
        let ep = self.fabric.endpoint(peer);
        if peer.index().1 {
            self.fabric.tell_of_departures(peer);
        }
        let carrier = tokio::spawn(async move {
            while let Some((from, message)) = ep.next_letter().await {
                if !inbox.deliver(from, message) {
                    return;
                }
            }
        });
        let mut carriers = self.carriers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = carriers.insert(peer, carrier.abort_handle()) {
            old.abort();
        }
    }

    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        self.fabric.post(from, to, message.clone())
    }

    fn on_session_lost(&self, peer: PeerId, how: SessionEnd) {
        if let Some(carrier) = self.carriers.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer) {
            carrier.abort();
        }
        if let Some(on_lost) = &self.on_lost {
            on_lost(peer, how);
        }
    }
}

/// A host that several servers, one after the other, export: what outlives a restart.
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
    fn watch(&self, from: PeerId, watch: RawWait) -> impl Future<Output = Result<u128, HostError>> + Send {
        H::watch(self, from, watch)
    }
    fn admit(&self, name: &str) -> Option<PeerId> {
        H::admit(self, name)
    }
    fn attach(&self, peer: PeerId, inbox: Inbox) {
        H::attach(self, peer, inbox);
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
