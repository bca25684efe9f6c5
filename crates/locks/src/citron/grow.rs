//! Scaling the tree while it is in use (Citron §3.9, Alg. 4).
//!
//! A small tree is the leftmost subtree of a larger one. Nodes have their places in the largest tree from the start, so
//! nothing moves when the tree grows: its root goes up by m levels, and one word says how often that happened. (In the
//! paper the server allocates the new part. Here it is memory that nobody has touched yet.) m levels, so that no node is
//! ever in the top m levels of two trees, where growing leaves its marks.
//!
//! | word of the configuration | bits | |
//! |---|---|---|
//! | Grown | 0–7 | how often the tree has grown |
//! | Growing | 8 | it is about to once more |
//! | Version | 16–63 | how often this word was published: a tree that grew and shrank again is another |
//!
//! **Growing**, under the spillover mutex:
//! 1. For every node of the top m levels, the root first: set Exp, and look what was there. Every request below has
//!    exactly one note in these levels, its highest. Notes that are open are left again at every m-th node above, up to
//!    the new root.
//! 2. The old root's open tickets are requests, too, and have told nobody. Notes are left for them at the ancestors they
//!    would have told in the new tree. (Alg. 4 counts an occupied node among its own notes, for its m-th ancestor and so
//!    on. Then the root's parent learns nothing of it, and the request never takes those notes back.)
//! 3. Publish.
//!
//! Whoever leaves its highest note, or takes its ticket at the root, after that Exp was set sees it, undoes and learns of
//! the new tree. Whoever did so before has been told of further up, goes on as if nothing had happened, and when it ends
//! sees Exp and ends further up, too ([`Span`]).
//!
//! **Shrinking**, under the mutex and the lock of everything: nobody holds anything. The root's tickets become void, and
//! it gets Exp, which sends everybody who looks at it to the smaller tree.

use super::acquire::Request;
use super::ending::Span;
use super::layout::{D_CNT, D_MAX, EXP, HERE, T_CNT, T_MAX, get, has_grown};
use super::recover::{End, Vigil};
use super::tree::{Node, Tree};
use super::words::Words;
use super::{Attempt, CitronClient, Pieces, Rules};
use crate::protocol::{Denied, Patience, Want};
use arrayvec::ArrayVec;
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, MAX_BATCH, RawVerb};

const GROWING: u64 = 1 << 8;

/// How often the tree has grown.
pub(super) const fn grown(config: u64) -> u32 {
    (config & 0xff) as u32
}

/// The configuration without what is only about to happen.
pub(super) const fn published(config: u64) -> u64 {
    config & !GROWING
}

/// The next configuration.
const fn next(config: u64, grown: u32) -> u64 {
    ((config >> 16) + 1) << 16 | grown as u64
}

/// Counts of requests, which wrap.
const fn open(max: u128, cnt: u128, bits: u32) -> u128 {
    max.wrapping_sub(cnt) & ((1 << bits) - 1)
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// Lets the tree of `lock` grow if ranges past its end were asked for. Says whether it did.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn grow(&self, lock: u64) -> Result<bool, Denied> {
        let tree = self.tree(lock);
        if !self.shape.grows() || tree.view.grown >= self.shape.growths() {
            return Ok(false);
        }
        let (config, wanted) = self.ep.go((tree.config_word().read(), tree.maximizer().read())).await?;
        self.remember(&tree, config);
        let tree = self.tree(lock);
        if wanted <= self.shape.units_of(tree.view.grown) || tree.view.grown >= self.shape.growths() {
            return Ok(false);
        }
        let Some(turn) = self.take_spill(Want::exclusive(lock), &tree, 0).await? else { return Ok(false) };
        self.grow_a_step(&tree).await?;
        self.give_spill_back(&tree, turn).await?;
        Ok(true)
    }

    /// SCALEUPLOCKTREE, under the spillover mutex.
    pub(super) async fn grow_a_step(&self, tree: &Tree) -> Result<(), FabricError> {
        let (old, new) = (*tree, tree.after(tree.view.grown + 1));
        let config = self.ep.go(tree.config_word().read()).await?;
        let taken_over = config & GROWING != 0;
        self.ep.go(tree.config_word().write(config | GROWING)).await?;
        // The nodes on top may have been there before the tree shrank.
        self.each(new.top_nodes(), |node| new.word(node).masked_cas(0, 0, 0, EXP.mask() as u64).raw())
            .await?;
        let (mut doubtful, mut verbs) = (false, Vec::new());
        let exp = EXP.mask() as u64;
        for (node, before) in
            self.each(old.top_nodes(), |node| old.word(node).masked_cas(0, 0, exp, exp).raw()).await?
        {
            if has_grown(before) {
                // Whoever began this died; what it did for this node is not known.
                doubtful |= taken_over;
                continue;
            }
            let tell = |above: Node, count: u128| {
                let sum = D_MAX.put(count) as u64;
                new.word(above).masked_fetch_add(sum, super::layout::BOUNDARIES).raw()
            };
            let notes = open(get(before, D_MAX), get(before, D_CNT), D_MAX.bits);
            if notes > 0 {
                verbs.extend(self.further_up(&new, node).map(|above| tell(above, notes)));
            }
            let tickets = open(get(before, T_MAX), get(before, T_CNT), T_MAX.bits);
            if node == old.root() && tickets > 0 && R::GROWTH_COUNTS_THE_ROOT {
                verbs.extend(new.told(node).map(|above| tell(above, tickets)));
            }
        }
        for batch in verbs.chunks(MAX_BATCH) {
            self.ep.go(batch).await?;
        }
        if doubtful {
            self.let_a_lease_pass(tree).await?;
        }
        let config = next(config, new.view.grown);
        self.ep.go((tree.config_word().write(config), tree.maximizer().write(0))).await?;
        self.remember(tree, config);
        Ok(())
    }

    /// Runs a verb for each of `nodes`, in batches, and pairs them with what was there before.
    async fn each(
        &self,
        nodes: impl Iterator<Item = Node>,
        verb: impl Fn(Node) -> RawVerb,
    ) -> Result<Vec<(Node, u64)>, FabricError> {
        let nodes: Vec<Node> = nodes.collect();
        let mut seen = Vec::with_capacity(nodes.len());
        for chunk in nodes.chunks(MAX_BATCH) {
            let verbs: ArrayVec<RawVerb, MAX_BATCH> = chunk.iter().map(|node| verb(*node)).collect();
            let olds = self.ep.go(verbs.as_slice()).await?;
            seen.extend(chunk.iter().copied().zip(olds.iter().map(|old| *old as u64)));
        }
        Ok(seen)
    }

    /// Every m-th node above `node`, up to the root of `tree`.
    fn further_up(&self, tree: &Tree, node: Node) -> impl Iterator<Item = Node> + use<E, R> {
        let (top, step) = (tree.root().level, self.params.m);
        tree.above(node)
            .filter(move |above| above.level >= top && (node.level - above.level).is_multiple_of(step))
    }

    /// Takes back what growing left further up for a request that has ended.
    pub(super) async fn end_further_up(
        &self,
        tree: &Tree,
        words: Words,
        mut span: Span,
    ) -> Result<(), FabricError> {
        for grown in tree.view.grown + 1..=self.shape.growths() {
            let new = tree.after(grown);
            let above: ArrayVec<Node, MAX_BATCH> = match span {
                Span::Note(node) => self.further_up(&new, node).collect(),
                Span::Root(node) => new.told(node).collect(),
            };
            // In whatever generation: nobody knows in which these were left.
            let verbs: ArrayVec<RawVerb, MAX_BATCH> =
                above.iter().map(|node| words.unnote(new.word(*node), 0, false).verb).collect();
            let olds = self.ep.go(verbs.as_slice()).await?;
            match (above.last(), olds.last()) {
                (Some(highest), Some(old)) if has_grown(*old as u64) => span = Span::Note(*highest),
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// The tree is not what this client thought it was: waits until it knows what it is.
    pub(super) async fn learn(&self, tree: &Tree) -> Result<(), Denied> {
        let word = tree.config_word();
        let another = Cond::Ne { mask: (!GROWING).into(), value: tree.view.config.into() };
        let vigil = Vigil { word, cond: another, or: None, moves: u64::MAX, deadline: Deadline::Never };
        if let End::Dead(_) = self.keep(vigil).await? {
            // Whoever let the tree grow is dead. The mutex will be recovered; then somebody has to go on.
            if let Some(turn) = self.take_spill(Want::exclusive(tree.lock()), tree, 0).await? {
                self.grow_a_step(tree).await?;
                self.give_spill_back(tree, turn).await?;
            }
            return Ok(());
        }
        let config = self.ep.go(word.read()).await?;
        self.remember(tree, config);
        Ok(())
    }

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
        let turn = match self.take_spill(everything, &tree, 0).await {
            Ok(Some(turn)) => turn,
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
            claim: everything.claim,
            tree,
        };
        let is_quiet = matches!(self.attempt(&root).await?, Attempt::Locked(..));
        if is_quiet {
            let small = tree.after(tree.view.grown - 1);
            let mask = EXP.mask() as u64;
            self.each(small.top_nodes(), |node| small.word(node).masked_cas(0, 0, 0, mask).raw()).await?;
            let config = next(tree.view.config, small.view.grown);
            self.ep.go(tree.config_word().write(config)).await?;
            self.retire(&tree).await?;
            self.remember(&tree, config);
        }
        self.give_spill_back(&tree, turn).await?;
        Ok(is_quiet)
    }

    /// Makes the root's tickets void, ours with them, and sends everybody to the smaller tree, in one verb.
    async fn retire(&self, tree: &Tree) -> Result<(), FabricError> {
        let word = tree.word(tree.root());
        let mut seen = self.ep.go(word.read()).await?;
        loop {
            let same = (T_MAX.mask() | HERE.mask()) as u64;
            let swap = T_CNT.put(get(seen, T_MAX)) | HERE.put(get(seen, HERE) + 1) | EXP.put(1);
            let mask = (T_CNT.mask() | HERE.mask() | EXP.mask()) as u64;
            let old = self.ep.go(word.masked_cas(seen & same, same, swap as u64, mask)).await?;
            if (old ^ seen) & same == 0 {
                return Ok(());
            }
            seen = old;
        }
    }
}
