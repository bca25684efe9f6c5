//! A fabric on which clients can be declared dead, on top of one that knows no such thing: as shared memory does it.
//!
//! Every client has a word, its [verdict]. It looks there before every verb and refuses itself when it is
//! out. The look and the verb are two steps, so a client that is stopped between them has one more verb to come, however
//! long ago it was declared dead. That is all there is to know about real zombies, and the explorer puts one everywhere.

use lockwright_fabric::{
    Addr, Batch, Endpoint, FabricError, Message, NodeId, PeerId, Value, Wait, Waited, Word64,
};
use lockwright_locks::kept::verdict::{self, Verdict};

/// An endpoint whose client can be declared dead.
#[derive(Clone, Debug)]
pub(crate) struct Mortal<E> {
    ep: E,
    /// Where the verdicts begin.
    first: u64,
}

impl<E: Endpoint> Mortal<E> {
    pub(crate) fn new(ep: E, first: u64) -> Self {
        Self { ep, first }
    }

    /// The word of the verdict on `peer`.
    pub(crate) fn verdict(&self, peer: PeerId) -> Word64 {
        Word64::at(Addr::new(NodeId(0), self.first + 8 * peer.index().0 as u64))
    }

    /// An error if this client is out.
    async fn look(&self) -> Result<(), FabricError> {
        let verdict = Verdict(self.ep.go(self.verdict(self.ep.me()).read()).await?);
        if verdict.is_out() { Err(FabricError::Evicted) } else { Ok(()) }
    }

    /// After a grant: whether this client was still in.
    pub(crate) async fn defend(&self) -> Result<(), FabricError> {
        let word = self.verdict(self.ep.me());
        let seen = self.ep.go(word.read()).await?;
        verdict::defend(&self.ep, word, Verdict(seen)).await
    }

    /// Whether `peer` is out. Whoever is dead or silent for too long is declared dead here.
    pub(crate) async fn is_out(&self, peer: PeerId) -> Result<bool, FabricError> {
        verdict::judge(&self.ep, self.verdict(peer), async |_| self.ep.suspects(peer).await).await
    }
}

impl<E: Endpoint> Endpoint for Mortal<E> {
    lockwright_fabric::delegate!(ep: me home capabilities recv_by now passed alarm sleep suspects random mark checkpoint observe);

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
