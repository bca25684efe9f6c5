//! Ranges past the end of a tree that grows: the spillover mutex and the maximizer (Citron §3.3, Alg. 1).
//!
//! The tree is for the units that it has by now; everything past them is behind one mutex, which is DSLR's, as in the
//! paper. A request that needs both takes the mutex first. How far the tree goes changes only under the mutex (`grow`),
//! so whoever has it and looks knows. Whoever had to take it adds the end of its range to the maximizer, bit by bit: a
//! masked CAS that compares nothing is an OR. So the maximizer is less than twice the largest end.

use super::params::Growth;
use super::tree::Tree;
use super::unmarked::Unmarked;
use super::{CitronClient, CitronGrant, Rules};
use crate::baseline::dslr::DslrParams;
use crate::baseline::dslr::client::{Bakery, Turn};
use crate::protocol::{Denied, LockClient, Patience, Want};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// ACQUIRERANGELOCK (Alg. 1).
    pub(super) async fn acquire_or_spill(
        &self,
        want: Want,
        start: u64,
        end: u64,
    ) -> Result<CitronGrant, Denied> {
        loop {
            let tree = self.tree(want.claim.lock);
            self.ep.mark("citron: a tree that grows", &self.locals());
            let units = self.shape.units_of(tree.view.grown);
            if end <= units {
                match self.acquire_on_tree(want, tree, (start, end), Some((start, end))).await? {
                    Some(grant) => return Ok(grant),
                    None => self.learn(&tree).await?,
                }
                continue;
            }
            // lines 3, 4
            let Some(turn) = self.take_spill(want, &tree, end).await? else { continue };
            if self.params.growth != Growth::Asked && tree.view.grown < self.shape.growths() {
                self.grow_a_step(&tree).await?;
                self.give_spill_back(&tree, turn).await?;
                continue;
            }
            // lines 5, 6
            let on_tree = (start < units).then_some((start, units));
            match self.acquire_on_tree(want, tree, (start, end), on_tree).await {
                Ok(Some(grant)) => return Ok(CitronGrant { spill: Some(turn), ..grant }),
                Ok(None) => {
                    self.give_spill_back(&tree, turn).await?;
                    self.learn(&tree).await?;
                }
                Err(denied) => {
                    self.give_spill_back(&tree, turn).await?;
                    return Err(denied);
                }
            }
        }
    }

    /// The spillover mutex. None if the tree is another by now.
    pub(super) async fn take_spill(&self, want: Want, tree: &Tree, end: u64) -> Result<Option<Turn>, Denied> {
        let turn = self.wait_for_spill(want, tree).await?;
        let maximizer = tree.maximizer().masked_cas(0, 0, end, end);
        let (_, config) = self.ep.go((maximizer, tree.config_word().read())).await?;
        if super::grow::published(config) == tree.view.config {
            return Ok(Some(turn));
        }
        self.give_spill_back(tree, turn).await?;
        self.remember(tree, config);
        Ok(None)
    }

    /// DSLR has no timeouts: whoever may give up takes the mutex when it is free.
    async fn wait_for_spill(&self, want: Want, tree: &Tree) -> Result<Turn, Denied> {
        let bakery = self.bakery();
        let (word, mutex) = (tree.spill_word(), Want::exclusive(want.claim.lock));
        let Patience::Until(time) = want.patience else {
            return bakery.acquire(word, mutex.with(want.patience)).await;
        };
        loop {
            let seen = self.ep.go(word.read()).await?;
            match bakery.acquire(word, mutex.with(Patience::Try)).await {
                Err(Denied::Busy) => {}
                outcome => return outcome,
            }
            let changed = Cond::Ne { mask: u64::MAX.into(), value: seen.into() };
            if !self.ep.wait_until(word.until(changed).by(Deadline::At(time))).await?.met {
                return Err(Denied::TimedOut);
            }
        }
    }

    /// Gives the mutex back. Says whether it was still this client's.
    pub(super) async fn give_spill_back(&self, tree: &Tree, turn: Turn) -> Result<bool, FabricError> {
        match self.bakery().release(tree.spill_word(), turn).await {
            Ok(()) => Ok(true),
            Err(crate::protocol::Lost::Recovered) => Ok(false),
            Err(crate::protocol::Lost::Fabric(error)) => Err(error),
        }
    }

    fn bakery(&self) -> Bakery<Unmarked<E>> {
        let lease_ns = if self.recovers() { self.params.lease_ns } else { u64::MAX / 8 };
        Bakery::new(Unmarked(self.ep.clone()), &DslrParams { lease_ns, ..DslrParams::default() })
    }
}
