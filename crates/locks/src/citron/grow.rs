//! Scaling the tree up while it is in use (Citron §3.9, Alg. 4).
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
//! | Shrinking | 9 | it is about to be smaller (`shrink`) |
//! | Version | 16–63 | how often this word was published: a tree that grew and shrank again is another |
//!
//! **Growing**, under the spillover mutex:
//! 1. Sweep: for every node of the top m levels, the root first, set Exp and change Swept in one verb, and look what was
//!    there. Every request below has exactly one note in these levels, its highest. Notes that are open are left again at
//!    every m-th node above, up to the new root.
//! 2. The old root's open tickets are requests, too, and have notified nobody. Notes are left for them at the ancestors they
//!    would have notified in the new tree. (Alg. 4 counts an occupied node among its own notes, for its m-th ancestor and so
//!    on. Then the root's parent learns nothing of it, and the request never takes those notes back.)
//! 3. The new root may have been one before the tree shrank: it is no longer retired. Publish.
//!
//! A client that leaves its highest note, or takes its ticket at the root, after that Exp was set sees it, undoes and learns of
//! the new tree. A client that did so before is known further up, goes on as if nothing had happened, and when it ends
//! sees that Swept has changed and ends further up, too ([`Span`]).
//!
//! Requests that began before the tree shrank may still leave notes and tickets that belong to a larger tree among those
//! of the smaller one, in passing, before they see that its root is retired. A sweep cannot tell them apart and leaves
//! them again further up. So it is not the highest note that remembers Swept, but every note and every ticket at what
//! may be a root. (`citron-regrow-forgets` has the other rule.) While anything that was left again is open, the new root's
//! window is not quiet and the tree does not shrink, so Swept changes at most once under a note, and one bit is enough.
//!
//! **Death of the grower.** A client that misses the new configuration takes the mutex and goes on ([`finish_growing`]). It
//! cannot know whether notes of nodes that were swept already were left further up. So it begins a new era and lets a lease
//! pass: a client that holds anything gives it back. Then it makes the swept nodes' notes and the old root's tickets void, lets a
//! lease pass for clients that saw Swept change just before that, and clears the new root's window of whatever they and the
//! dead have left there.
//!
//! [`finish_growing`]: CitronClient::finish_growing

use super::ending::Span;
use super::layout::{D_CNT, D_MAX, EXP, RETIRED, SWEPT, T_CNT, T_MAX, get, has_grown};
use super::recover::{End, LeaseWait, Leftover};
use super::shape::Node;
use super::tree::Tree;
use super::words::Words;
use super::{CitronClient, Rules};
use crate::protocol::{Denied, Want};
use arrayvec::ArrayVec;
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, MAX_BATCH, RawVerb};

const GROWING: u64 = 1 << 8;
/// The tree is about to be smaller.
pub(super) const SHRINKING: u64 = 1 << 9;

/// How often the tree has grown.
pub(super) const fn grown(config: u64) -> u32 {
    (config & 0xff) as u32
}

/// The configuration without what is only about to happen.
pub(super) const fn published(config: u64) -> u64 {
    config & !(GROWING | SHRINKING)
}

/// The next configuration.
pub(super) const fn next(config: u64, grown: u32) -> u64 {
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
        if !self.shape.grows() {
            return Ok(false);
        }
        let (config, wanted) = self.ep.go((tree.config_word().read(), tree.maximizer().read())).await?;
        self.remember(&tree, config);
        let tree = self.tree(lock);
        if wanted <= self.shape.units_of(tree.view.grown) || tree.view.grown >= self.shape.growths() {
            return Ok(false);
        }
        let Some(spill) = self.take_spill(Want::exclusive(lock), &tree, 0).await? else { return Ok(false) };
        self.grow_a_step(&tree).await?;
        self.give_spill_back(&tree, spill).await?;
        Ok(true)
    }

    /// SCALEUPLOCKTREE, under the spillover mutex. Does nothing but finish the shrinking, if a client died in the middle of
    /// one.
    pub(super) async fn grow_a_step(&self, tree: &Tree) -> Result<(), FabricError> {
        let config = self.ep.go(tree.config_word().read()).await?;
        if config & SHRINKING != 0 {
            return self.finish_shrinking(tree, config).await;
        }
        let is_taken_over = config & GROWING != 0;
        let growing = config | GROWING;
        // Nothing happens if others took us for dead and went on.
        if !is_taken_over && self.ep.go(tree.config_word().cas(config, growing)).await? != config {
            return Ok(());
        }
        let new = tree.after(tree.view.grown + 1);
        let (verbs, doubtful) = self.sweep(tree, &new).await?;
        if is_taken_over && !doubtful.is_empty() {
            self.finish_growing(tree, &new, &doubtful).await?;
        }
        for batch in verbs.chunks(MAX_BATCH) {
            self.ep.go(batch).await?;
        }
        let config = next(config, new.view.grown);
        let unretire = new.word(new.root()).masked_cas(0, 0, 0, RETIRED.mask() as u64);
        // Nothing happens if others took us for dead and went on.
        let publish = tree.config_word().cas(growing, config);
        self.ep.go((unretire, publish, tree.maximizer().write(0))).await?;
        self.remember(tree, config);
        Ok(())
    }

    /// Sweeps the top of the tree. What is to be left further up for clients that were there before, and nodes that were
    /// swept already.
    async fn sweep(&self, old: &Tree, new: &Tree) -> Result<(Vec<RawVerb>, Vec<Node>), FabricError> {
        let seen = self.each(old.top_nodes(), |node| old.word(node).read().raw()).await?;
        let (todo, mut doubtful): (Vec<_>, Vec<_>) =
            seen.into_iter().partition(|(_, word)| !has_grown(*word));
        let mask = (EXP.mask() | SWEPT.mask()) as u64;
        let swept = |word: u64| EXP.put(1) | SWEPT.put(get(word, SWEPT) ^ 1);
        let mut verbs = Vec::new();
        for chunk in todo.chunks(MAX_BATCH) {
            let sweep: ArrayVec<RawVerb, MAX_BATCH> = chunk
                .iter()
                .map(|(node, word)| {
                    old.word(*node).masked_cas(word & mask, mask, swept(*word) as u64, mask).raw()
                })
                .collect();
            let befores = self.ep.go(sweep.as_slice()).await?;
            for ((node, _), before) in chunk.iter().zip(&befores) {
                let before = *before as u64;
                if has_grown(before) {
                    doubtful.push((*node, before));
                    continue;
                }
                let notes = open(get(before, D_MAX), get(before, D_CNT), D_MAX.bits);
                if notes > 0 {
                    verbs.extend(self.further_up(new, *node).map(|above| leave(new, above, notes)));
                }
                let tickets = open(get(before, T_MAX), get(before, T_CNT), T_MAX.bits);
                if *node == old.root() && tickets > 0 && R::GROWTH_COUNTS_THE_ROOT {
                    verbs.extend(new.notified(*node).map(|above| leave(new, above, tickets)));
                }
            }
        }
        Ok((verbs, doubtful.into_iter().map(|(node, _)| node).collect()))
    }

    /// A client died while it let the tree grow, and may or may not have left the notes of `swept` nodes further up.
    async fn finish_growing(&self, old: &Tree, new: &Tree, swept: &[Node]) -> Result<(), FabricError> {
        if !self.recovers() || !R::GROWTH_IS_FINISHED {
            return Ok(());
        }
        let words = Words::Exclusive;
        self.let_a_lease_pass(old).await?;
        for node in swept {
            self.forget(words, old.word(*node), Leftover::Notes).await?;
            if *node == old.root() {
                self.forget(words, old.word(*node), Leftover::Tickets).await?;
            }
        }
        self.let_a_lease_pass(old).await?;
        for node in new.top_nodes() {
            self.forget(words, new.word(node), Leftover::Notes).await?;
        }
        Ok(())
    }

    /// Runs a verb for each of `nodes`, in batches, and pairs them with what was there before.
    pub(super) async fn each(
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
        let (Span::Note(swept) | Span::Root(swept)) = span;
        let grown = self.shape.grown_at(swept.level).unwrap_or(0);
        for grown in grown + 1..=self.shape.growths() {
            let new = tree.after(grown);
            let above: ArrayVec<Node, MAX_BATCH> = match span {
                Span::Note(node) => self.further_up(&new, node).collect(),
                Span::Root(node) => new.notified(node).collect(),
            };
            // In whatever generation: nobody knows in which these were left.
            let verbs: ArrayVec<RawVerb, MAX_BATCH> =
                above.iter().map(|node| words.unnote(new.word(*node), 0, false).verb).collect();
            let olds = self.ep.go(verbs.as_slice()).await?;
            // When it was left, Exp was not set there, and it cannot have been taken off since.
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
        let flags = GROWING | SHRINKING;
        let another = Cond::Ne { mask: (!flags).into(), value: tree.view.config.into() };
        let deadline = Deadline::Never;
        let watch = LeaseWait { word, cond: another, or: None, moves: u64::MAX, deadline, pace_ns: 0 };
        if let End::Dead(_) = self.wait_watched(watch).await? {
            // The client that let the tree grow or shrink is dead. The mutex will be recovered; then another client has to go
            // on.
            if let Some(spill) = self.take_spill(Want::exclusive(tree.lock()), tree, 0).await? {
                self.finish_change(tree).await?;
                self.give_spill_back(tree, spill).await?;
            }
            return Ok(());
        }
        let config = self.ep.go(word.read()).await?;
        self.remember(tree, config);
        Ok(())
    }

    /// Finishes the change that a dead client began, under the spillover mutex, if there is anything.
    async fn finish_change(&self, tree: &Tree) -> Result<(), FabricError> {
        let config = self.ep.go(tree.config_word().read()).await?;
        if config & (GROWING | SHRINKING) != 0 { self.grow_a_step(tree).await } else { Ok(()) }
    }
}

/// Leaves `count` notes at `above`.
fn leave(tree: &Tree, above: Node, count: u128) -> RawVerb {
    tree.word(above).masked_fetch_add(D_MAX.put(count) as u64, super::layout::BOUNDARIES).raw()
}
