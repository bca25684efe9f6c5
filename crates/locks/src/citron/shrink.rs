//! Scaling the tree down (Citron §3.9.2), which grew before (`grow`).
//!
//! Under the spillover mutex and the lock of everything, so that nobody holds anything:
//! 1. Say so in the configuration.
//! 2. Retire the root, in one verb: its tickets become void, the shrinker's with them, and Retired sends every client that
//!    looks at it to the new configuration. From here on nobody is granted anything in the larger tree.
//! 3. Take Exp off the smaller tree's top, and publish.
//!
//! Retiring comes before publishing. The other way round, a shrinker that died in between would leave two trees in use.
//! A client that finds a shrinker dead finishes from 2 on if the root is retired, and else forgets that anything was to happen.

use super::acquire::Request;
use super::attempt::{Attempt, Piece, Pieces};
use super::grow::{SHRINKING, next, published};
use super::layout::{EXP, HERE, OCC, RETIRED, T_CNT, T_MAX, get};
use super::tree::Tree;
use super::words::Words;
use super::{CitronClient, Rules};
use crate::protocol::{Denied, Patience, Want};
use lockwright_fabric::{Endpoint, FabricError};

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// Lets the tree of `lock` shrink by a step if nobody uses it just now. Says whether it did.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn shrink(&self, lock: u64) -> Result<bool, Denied> {
        let tree = self.tree(lock);
        if tree.view.grown == 0 {
            return Ok(false);
        }
        let everything = Want::exclusive(lock).with(Patience::Try);
        let spill = match self.take_spill(everything, &tree, 0).await {
            Ok(Some(spill)) => spill,
            Ok(None) | Err(Denied::Busy) => return Ok(false),
            Err(denied) => return Err(denied),
        };
        let root = Request {
            units: self.shape.range(tree.root()),
            on_tree: None,
            patience: Patience::Try,
            words: Words::Exclusive,
            held: Pieces::new(),
            todo: std::iter::once(tree.root()).collect(),
            era: std::cell::Cell::new(0),
            spill: Some(spill),
            is_careful: false,
            claim: everything.claim,
            tree,
        };
        let has_shrunk = match self.attempt(&root).await? {
            Attempt::Locked(pieces, _) => self.shrink_a_step(&tree, &pieces[0]).await?,
            _ => false,
        };
        self.give_spill_back(&tree, spill).await?;
        Ok(has_shrunk)
    }

    /// Under the mutex, with the turn at the root.
    async fn shrink_a_step(&self, tree: &Tree, root: &Piece) -> Result<bool, FabricError> {
        let config = self.ep.go(tree.config_word().read()).await?;
        let shrinking = published(config) | SHRINKING;
        if config != tree.view.config
            || self.ep.go(tree.config_word().cas(config, shrinking)).await? != config
            || !self.retire(tree, root.begun.here).await?
        {
            // A client died here, or took us for dead; the next client sees to it.
            self.release_on_tree(tree, Words::Exclusive, &[*root]).await?;
            return Ok(false);
        }
        self.publish_smaller(tree, shrinking).await?;
        Ok(true)
    }

    /// A client died while it let the tree shrink: finishes that, or undoes it.
    pub(super) async fn finish_shrinking(&self, tree: &Tree, config: u64) -> Result<(), FabricError> {
        let root = self.ep.go(tree.word(tree.root()).read()).await?;
        if get(root, RETIRED) != 0 {
            return self.publish_smaller(tree, config).await;
        }
        self.ep.go(tree.config_word().cas(config, published(config))).await.map(drop)
    }

    /// The root is retired: from now on the tree is the smaller one.
    async fn publish_smaller(&self, tree: &Tree, shrinking: u64) -> Result<(), FabricError> {
        let small = tree.after(tree.view.grown - 1);
        let mask = EXP.mask() as u64;
        self.each(small.top_nodes(), |node| small.word(node).masked_cas(0, 0, 0, mask).raw()).await?;
        let config = next(shrinking, small.view.grown);
        self.ep.go(tree.config_word().cas(shrinking, config)).await?;
        self.remember(tree, config);
        Ok(())
    }

    /// Makes the root's tickets void, ours with them, and sends all clients to the smaller tree, in one verb. Not if they are
    /// void already.
    async fn retire(&self, tree: &Tree, here: u32) -> Result<bool, FabricError> {
        let word = tree.word(tree.root());
        let mut seen = self.ep.go(word.read()).await?;
        while get(seen, HERE) == u128::from(here) {
            let same = (T_MAX.mask() | HERE.mask()) as u64;
            let swap = T_CNT.put(get(seen, T_MAX)) | HERE.put(get(seen, HERE) + 1) | RETIRED.put(1);
            let mask = (T_CNT.mask() | OCC.mask() | HERE.mask() | RETIRED.mask()) as u64;
            let old = self.ep.go(word.masked_cas(seen & same, same, swap as u64, mask)).await?;
            if (old ^ seen) & same == 0 {
                return Ok(true);
            }
            seen = old;
        }
        Ok(false)
    }
}
