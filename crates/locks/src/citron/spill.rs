//! Ranges past the end of a tree that grows: the spillover mutex and the maximizer (Citron §3.3, Alg. 1).
//!
//! The tree is for the units that it has by now; everything past them is behind one mutex. A request that needs both takes
//! the mutex first. How far the tree goes changes only under the mutex (`grow`), so a client that has it and looks knows. A client that
//! had to take it adds the end of its range to the maximizer, bit by bit: a masked CAS that compares nothing is an OR. So
//! the maximizer is less than twice the largest end.
//!
//! The mutex is a bakery by fetch-and-add, DSLR's, as in the paper; and as at every internal node, whose tickets are the
//! same bakery. So it is a node's word, of which TMax, TCnt and Here are used (`layout`), and what a dead client left of it
//! is taken away as at a node: nothing has moved for two leases, a new era, a third lease, the next generation (`recover`).
//! DSLR's own recovery would not do. It trusts that a client that has the mutex is done with it within a lease, and here the
//! mutex is held while nodes are waited for.
//!
//! Hence the **era** of a request past the end is the one from before its ticket at the mutex ([`Spill`]): a client that waits at
//! a node while others take the mutex away from it starts again, with the mutex. (`citron-spill-keeps-mutex` looks only at
//! the era of its nodes.)

use super::acquire::OnTree;
use super::params::Growth;
use super::recover::{End, LeaseWait, Queue};
use super::tree::Tree;
use super::words::{Gap, Words};
use super::{CitronClient, CitronGrant, Rules};
use crate::protocol::{Denied, LockClient, Patience, Want};
use arrayvec::ArrayVec;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Deadline, Endpoint, FabricError, MAX_BATCH, RawVerb};

/// The mutex, held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spill {
    /// The generation of the ticket.
    here: u32,
    /// The era before it was taken.
    pub(super) era: u64,
}

impl Spill {
    /// For marks.
    pub(super) const fn locals(self) -> [u64; 2] {
        [self.era, self.here as u64]
    }
}

/// What came of asking for the mutex once.
enum Asked {
    /// It is had; the configuration then.
    Had(Spill, u64),
    /// Another client has it, and this one does not queue.
    Busy,
    /// Another client recovered it meanwhile.
    Renewed,
}

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
                match self.acquire_on_tree(want, tree, (start, end), Some((start, end)), None).await? {
                    OnTree::Granted(grant) => return Ok(grant),
                    OnTree::Grown | OnTree::Renewed => self.learn(&tree).await?,
                }
                continue;
            }
            // lines 3, 4
            let Some(spill) = self.take_spill(want, &tree, end).await? else { continue };
            if self.params.growth != Growth::Asked && tree.view.grown < self.shape.growths() {
                self.grow_a_step(&tree).await?;
                self.give_spill_back(&tree, spill).await?;
                continue;
            }
            // lines 5, 6
            let on_tree = (start < units).then_some((start, units));
            match self.acquire_on_tree(want, tree, (start, end), on_tree, Some(spill)).await {
                Ok(OnTree::Granted(grant)) => return Ok(CitronGrant { spill: Some(spill), ..grant }),
                Ok(OnTree::Renewed) => {
                    self.give_spill_back(&tree, spill).await?;
                }
                Ok(OnTree::Grown) => {
                    self.give_spill_back(&tree, spill).await?;
                    self.learn(&tree).await?;
                }
                Err(denied) => {
                    self.give_spill_back(&tree, spill).await?;
                    return Err(denied);
                }
            }
        }
    }

    /// The spillover mutex. None if the tree is another by now.
    pub(super) async fn take_spill(
        &self,
        want: Want,
        tree: &Tree,
        end: u64,
    ) -> Result<Option<Spill>, Denied> {
        let (spill, config) = loop {
            match self.ask_for_spill(want, tree, end).await? {
                Asked::Had(spill, config) => break (spill, config),
                Asked::Busy => self.wait_for_spill(want, tree).await?,
                Asked::Renewed => self.ep.observe(Observation::Retried(want.claim)),
            }
        };
        if super::grow::published(config) == tree.view.config {
            return Ok(Some(spill));
        }
        self.give_spill_back(tree, spill).await?;
        self.remember(tree, config);
        Ok(None)
    }

    /// A ticket, and its turn. A client that may give up takes none that it would have to wait for.
    async fn ask_for_spill(&self, want: Want, tree: &Tree, end: u64) -> Result<Asked, FabricError> {
        let (word, words) = (tree.spill_word(), Words::Exclusive);
        let may_queue = matches!(want.patience, Patience::Forever);
        let mut free = None;
        if !may_queue {
            let seen = self.ep.go(word.read()).await?;
            if words.has_queue(seen) {
                return Ok(Asked::Busy);
            }
            free = Some(seen);
        }
        let take = free.map_or(words.ticket(word), |seen| words.ticket_if_free(word, seen)).raw();
        let maximizer = tree.maximizer().masked_cas(0, 0, end, end).raw();
        let config = tree.config_word().read().raw();
        let verbs = self.era_verb(tree).into_iter().chain([maximizer, take, config]);
        let verbs: ArrayVec<RawVerb, MAX_BATCH> = verbs.collect();
        let olds = self.ep.go(verbs.as_slice()).await?;
        let last = olds.len() - 1;
        let era = if self.recovers() { olds[0] as u64 } else { 0 };
        let (before, mut config) = (olds[last - 1] as u64, olds[last] as u64);
        if free.is_some_and(|seen| !words.same_queue(seen, before)) {
            return Ok(Asked::Busy);
        }
        let here = words.generation_here().get(before.into()) as u32;
        if words.has_queue(before) {
            let (ticket, queue) = (words.ticket_of(before), self.spill_queue(want, tree));
            if self.wait_for_turn(queue, ticket, before, here).await?.is_none() {
                return Ok(Asked::Renewed);
            }
            config = self.ep.go(tree.config_word().read()).await?;
        }
        Ok(Asked::Had(Spill { here, era }, config))
    }

    /// Waits until nobody has the mutex, as long as `want` is ready to, and recovers it if nothing moves there.
    async fn wait_for_spill(&self, want: Want, tree: &Tree) -> Result<(), Denied> {
        let Patience::Until(time) = want.patience else { return Err(Denied::Busy) };
        let words = Words::Exclusive;
        let queue = self.spill_queue(want, tree);
        let watch = LeaseWait {
            word: queue.word,
            cond: words.queue_empty(),
            or: None,
            moves: words.progress_here(),
            deadline: Deadline::At(time),
            pace_ns: 0,
        };
        match self.wait_watched(watch).await? {
            End::Met | End::Renewed => Ok(()),
            End::GaveUp => Err(Denied::TimedOut),
            End::Dead(seen) => Ok(self.take_away(queue, watch, seen).await?),
        }
    }

    fn spill_queue<'a>(&self, want: Want, tree: &'a Tree) -> Queue<'a> {
        Queue { tree, word: tree.spill_word(), words: Words::Exclusive, claim: want.claim }
    }

    /// Gives the mutex back. Says whether it was still this client's.
    pub(super) async fn give_spill_back(&self, tree: &Tree, spill: Spill) -> Result<bool, FabricError> {
        let pass = Words::Exclusive.pass(tree.spill_word(), Gap::Leave, spill.here, self.guards);
        let olds = self.ep.go([pass.verb].as_slice()).await?;
        Ok(pass.was_due(olds[0]))
    }
}
