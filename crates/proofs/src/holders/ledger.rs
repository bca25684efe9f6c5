//! The book in plain memory: one word per card, one card per client. For the explorer.
//!
//! | card, bits | holds |
//! |---|---|
//! | 0–3 | state; 0: nothing is written |
//! | 8– | the lock |

use super::mortal::Mortal;
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, Word64};
use lockwright_locks::kept::{Book, Says, State};
use lockwright_locks::shiftlock::layout::{Layout, Member};
use lockwright_locks::shiftlock::stirred::Stirred;
use lockwright_locks::shiftlock::witness::{Fate, Witness};
use std::marker::PhantomData;

/// One client's view of all cards.
#[derive(Debug)]
pub(crate) struct Ledger<E, L = Stirred> {
    pub(crate) ep: Mortal<E>,
    /// Where the cards begin.
    first: u64,
    pub(crate) clients: u64,
    of: PhantomData<L>,
}

impl<E: Endpoint, L> Ledger<E, L> {
    pub(crate) const fn new(ep: Mortal<E>, first: u64, clients: u64) -> Self {
        Self { ep, first, clients, of: PhantomData }
    }

    fn card(&self, peer: PeerId) -> Word64 {
        Word64::at(Addr::new(NodeId(0), self.first + 8 * peer.index().0 as u64))
    }
}

const fn holds(word: u64, lock: u64) -> bool {
    let holds = word & 0xf == State::Taking as u64 || word & 0xf == State::Held as u64;
    holds && word >> 8 == lock
}

impl<E: Endpoint, L: Layout> Witness for Ledger<E, L> {
    /// What may be on its way to somebody alive counts as left by the dead: nothing rests on the difference, and resets are
    /// what is explored here.
    async fn fate(&self, lock: u64, except: Member) -> Result<Fate, FabricError> {
        for peer in (0..self.clients as usize).map(PeerId::client) {
            let says = self.ep.go(self.card(peer).read()).await?;
            let asks = except != Member::NOBODY && except.peer::<L>() == peer;
            if holds(says, lock) && !asks && !self.ep.is_out(peer).await? {
                return Ok(Fate::Held);
            }
        }
        Ok(Fate::Dead)
    }
}

impl<E: Endpoint, L: Layout> Book for Ledger<E, L> {
    async fn write(&self, _: u8, says: Option<Says>) -> Result<(), FabricError> {
        let word = says.map_or(0, |says| says.state as u64 | says.claim.lock << 8);
        self.ep.go(self.card(self.ep.me()).write(word)).await.map(drop)
    }

    async fn granted(&self, _: u8, _: u64) -> Result<(), FabricError> {
        self.ep.defend().await
    }
}
