//! A fabric on which clients can be evicted, on top of one that knows no such thing: as shared memory does it.
//!
//! Every client has a [liveness] word. It looks there before every verb and refuses itself when it was evicted. The look and
//! the verb are two steps, so a client that is stopped between them has one more verb to come, however long ago it was
//! evicted. That is all there is to know about real zombies, and the explorer puts one everywhere.

use lockwright_fabric::{
    Addr, Batch, Endpoint, FabricError, Message, NodeId, PeerId, Value, Wait, Waited, Word64,
};
use lockwright_locks::holders::TableLayout;
use lockwright_locks::holders::liveness::{self, Liveness};
use lockwright_locks::holders::record::ClientWord;

/// An endpoint whose client can be evicted.
#[derive(Clone, Debug)]
pub(crate) struct Evictable<E> {
    ep: E,
    /// Where the liveness words begin, how far they are apart, and how many there are.
    first: u64,
    stride: u64,
    slots: u64,
}

impl<E: Endpoint> Evictable<E> {
    pub(crate) fn new(ep: E, first: u64) -> Self {
        Self { ep, first, stride: 8, slots: u64::MAX }
    }

    /// The liveness words are in a table as it is shipped.
    pub(crate) fn in_table(ep: E, layout: &TableLayout) -> Self {
        let [first, next] = [0, 1].map(|slot| layout.client(slot, ClientWord::Liveness).addr().offset);
        Self { ep, first, stride: next - first, slots: layout.clients() }
    }

    /// The fabric below, where nobody is refused: loads by instructions go there.
    pub(crate) fn inner(&self) -> &E {
        &self.ep
    }

    /// The liveness word of `peer`.
    fn liveness(&self, peer: PeerId) -> Word64 {
        let slot = peer.index().0 as u64 % self.slots;
        Word64::at(Addr::new(NodeId(0), self.first + self.stride * slot))
    }

    /// An error if this client was evicted.
    async fn look(&self) -> Result<(), FabricError> {
        let liveness = Liveness(self.ep.go(self.liveness(self.ep.me()).read()).await?);
        if liveness.is_evicted() { Err(FabricError::Evicted) } else { Ok(()) }
    }

    /// After a grant: whether this client was still in.
    pub(crate) async fn confirm(&self) -> Result<(), FabricError> {
        let word = self.liveness(self.ep.me());
        let seen = self.ep.go(word.read()).await?;
        liveness::refute(&self.ep, word, Liveness(seen)).await
    }

    /// Whether `peer` is evicted. A client that is dead or silent for too long is evicted here.
    pub(crate) async fn is_evicted(&self, peer: PeerId) -> Result<bool, FabricError> {
        liveness::evict(&self.ep, self.liveness(peer), async |_| self.ep.suspects(peer).await).await
    }
}

impl<E: Endpoint> Endpoint for Evictable<E> {
    lockwright_fabric::delegate!(ep: me home capabilities recv_by now passed alarm is_gone sleep suspects random mark checkpoint observe);

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        self.look().await?;
        self.ep.go(batch).await
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let waited = self.ep.wait_until(wait).await?;
        self.look().await?;
        Ok(waited)
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.look().await?;
        self.ep.send(to, message).await
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.look().await?;
        self.ep.send_datagram(to, message).await
    }
}
