//! A fabric on which clients can be declared dead, on top of one that knows no such thing: as shared memory does it.
//!
//! Every client has a word, its *standing*:
//!
//! | bits | holds |
//! |---|---|
//! | 0 | it is out |
//! | 1– | signs of life so far |
//!
//! It looks there before every verb and refuses itself when it is out. The look and the verb are two steps, so a client
//! that is stopped between them has one more verb to come, however long ago it was declared dead. That is all there is to
//! know about real zombies, and the explorer puts one everywhere. Whoever declares it dead swaps the standing it read
//! before it began to suspect: a sign of life in between saves the client.

use lockwright_fabric::{
    Addr, Batch, Endpoint, FabricError, Message, NodeId, PeerId, Value, Wait, Waited, Word64,
};

/// The bit of a client that is out.
const OUT: u64 = 1;
/// A sign of life.
const BEAT: u64 = 2;

/// An endpoint whose client can be declared dead.
#[derive(Clone, Debug)]
pub(super) struct Mortal<E> {
    ep: E,
    /// Where the standings begin.
    first: u64,
}

impl<E: Endpoint> Mortal<E> {
    pub(super) fn new(ep: E, first: u64) -> Self {
        Self { ep, first }
    }

    fn standing(&self, peer: PeerId) -> Word64 {
        Word64::at(Addr::new(NodeId(0), self.first + 8 * peer.index().0 as u64))
    }

    /// An error if this client is out.
    async fn look(&self) -> Result<(), FabricError> {
        let standing = self.ep.go(self.standing(self.ep.me()).read()).await?;
        if standing & OUT == 0 { Ok(()) } else { Err(FabricError::Expelled) }
    }

    /// A sign of life, if it is not too late for one.
    pub(super) async fn beat(&self) -> Result<(), FabricError> {
        const ONE_FIELD: u64 = 1 << 63;
        let beat = self.standing(self.ep.me()).guarded_fetch_add(BEAT, ONE_FIELD, 0, OUT);
        if self.ep.go(beat).await? & OUT == 0 { Ok(()) } else { Err(FabricError::Expelled) }
    }

    /// Whether `peer` is out; whoever is dead or silent for too long is declared dead here.
    pub(super) async fn is_out(&self, peer: PeerId) -> Result<bool, FabricError> {
        let word = self.standing(peer);
        let standing = self.ep.go(word.read()).await?;
        if standing & OUT != 0 {
            return Ok(true);
        }
        if !self.ep.suspects(peer).await {
            return Ok(false);
        }
        let found = self.ep.go(word.cas(standing, standing | OUT)).await?;
        Ok(found == standing || found & OUT != 0)
    }
}

impl<E: Endpoint> Endpoint for Mortal<E> {
    lockwright_fabric::pass_on!(ep: me home capabilities recv_by now passed alarm sleep suspects random mark checkpoint observe);

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
