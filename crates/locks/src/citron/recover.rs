//! Recovery (Citron §3.10): how waiters notice that a client is dead, and take away what it left: lazily, node by node, by a
//! client that waits there.
//!
//! Three leases. A wait that ends after a lease without what it waited for takes note of the word; if nothing has moved a
//! lease later, a client is dead. Then the waiter begins a new **era** (`tokens`) and waits a third lease: a client that was
//! granted anything before has given it back by then, and a client that is granted nothing yet will see the era and start
//! again. What is left in the word now belongs to nobody, and one verb takes it away: it compares that nothing has moved since
//! before the era began, and goes on to the word's next generation.
//!
//! | where (Alg. 2) | what has not moved | what takes it away |
//! |---|---|---|
//! | line 11, for the turn | TCnt, Occ (R) | TCnt = TMax, Occ = 0 (R = 0), next generation: all tickets are void |
//! | line 36, for those below | DCnt, DMax (D, DR) | DCnt = DMax (D = DR = 0), next generation; then the leaves below, as for line 22 |
//! | line 18, for an ancestor | TCnt, Occ (R) | lock that ancestor for a moment: lines 11 and 36 |
//! | line 22, for units | those units | lock the parent for a moment; what is set in its leaves then is nobody's |
//!
//! As print has it, but: print knows neither eras nor generations, and rests on the connections of the dead being
//! destroyed; and in print the first in the queue takes over where the dead one was, which here would let in clients that
//! only seemed dead.
//!
//! Readers take nothing away that others may have left below them, for among those are readers who are well: they lock
//! the node alone for a moment, too.
//!
//! **Zombies**, clients that were taken for dead and come back: what they still do to end what they began compares the
//! generation (`ending`) and does not happen; they learn it, and their release says so. A client that had not been granted
//! anything sees the era and starts again. What time still decides: a living client gives back within a lease, and
//! a client that takes away does so within a lease of looking.

use super::acquire::Request;
use super::attempt::{Attempt, Obstacle, Piece, Pieces};
use super::params::Synchrony;
use super::shape::Node;
use super::tree::Tree;
use super::words::{GAP, NO_READERS, Words};
use super::{CitronClient, Rules};
use crate::protocol::Patience;
use lockwright_fabric::observe::{Claim, Observation};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, Word64};

/// What is waited for, and what tells that it may still come.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseWait {
    pub(super) word: Word64,
    pub(super) cond: Cond,
    /// What makes waiting pointless.
    pub(super) or: Option<Cond>,
    /// The bits that move as long as no client is dead.
    pub(super) moves: u64,
    pub(super) deadline: Deadline,
    /// Between two looks, where looking costs a round trip; zero for the fabric's own.
    pub(super) pace_ns: u64,
}

/// What a turn takes at the least, on a network: a round trip to give it back, and another to see it. Only ever a pause
/// between looks.
const TURN_NS: u64 = 4_000;

/// Tickets and turns: those of a node, or the spillover mutex's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue<'a> {
    pub(super) tree: &'a Tree,
    pub(super) word: Word64,
    pub(super) words: Words,
    pub(super) claim: Claim,
}

/// What is left at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftover {
    /// By requests below.
    Notes,
    /// By requests at the node.
    Tickets,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With what was waited for.
    Met,
    /// What was waited for can come no more: another client recovered the node.
    Renewed,
    /// The user's patience ran out.
    GaveUp,
    /// Nothing has moved for two leases; the word.
    Dead(u64),
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// Whether anything is ever recovered.
    pub(super) const fn recovers(&self) -> bool {
        self.params.lease_ns > 0
    }

    /// Waits, and watches.
    pub(super) async fn wait_watched(&self, watch: LeaseWait) -> Result<End, FabricError> {
        self.wait_watched_and_read(watch).await.map(|(end, _)| end)
    }

    /// The same, and the word in the end.
    async fn wait_watched_and_read(&self, watch: LeaseWait) -> Result<(End, u64), FabricError> {
        let mut seen = None;
        loop {
            let (deadline, is_lease) = self.earlier(watch.deadline).await;
            let wait = watch.word.until(watch.cond).by(deadline).pace(watch.pace_ns);
            let wait = watch.or.map_or(wait, |or| wait.or(or));
            let waited = self.ep.wait_until(wait).await?;
            if waited.met {
                let renewed = watch.or.is_some_and(|or| or.holds(waited.value.into()));
                return Ok((if renewed { End::Renewed } else { End::Met }, waited.value));
            }
            if !is_lease {
                return Ok((End::GaveUp, waited.value));
            }
            let now = waited.value & watch.moves;
            if seen == Some(now) {
                return Ok((End::Dead(waited.value), waited.value));
            }
            seen = Some(now);
        }
    }

    /// The user's deadline or a lease from now, and whether it is the lease.
    async fn earlier(&self, deadline: Deadline) -> (Deadline, bool) {
        if !self.recovers() || deadline == Deadline::Now {
            return (deadline, false);
        }
        let lease = self.ep.now().await.plus(self.params.lease_ns);
        match deadline {
            Deadline::At(time) if time <= lease => (deadline, false),
            _ => (Deadline::At(lease), true),
        }
    }

    /// Begins a new era, and lets a lease pass. Says whether still nothing has moved since `seen`.
    async fn is_dead(&self, tree: &Tree, watch: LeaseWait, seen: u64) -> Result<bool, FabricError> {
        if R::RECOVERY_BEGINS_AN_ERA {
            self.begin_era(tree).await?;
        }
        let lease = self.ep.now().await.plus(self.params.lease_ns);
        let wait = watch.word.until(watch.cond).by(Deadline::At(lease));
        let waited = self.ep.wait_until(watch.or.map_or(wait, |or| wait.or(or))).await?;
        Ok(!waited.met && (waited.value ^ seen) & watch.moves == 0)
    }

    /// A client that is granted nothing yet has to start again.
    async fn begin_era(&self, tree: &Tree) -> Result<(), FabricError> {
        self.ep.go(tree.era_word().fetch_add(1)).await.map(drop)
    }

    /// Lets a lease pass in a new era: a client that was granted anything before has given it back.
    pub(super) async fn let_a_lease_pass(&self, tree: &Tree) -> Result<(), FabricError> {
        self.begin_era(tree).await?;
        let lease = self.ep.now().await.plus(self.params.lease_ns);
        let never = Cond::Ne { mask: 0, value: 0 };
        self.ep.wait_until(tree.era_word().until(never).by(Deadline::At(lease))).await.map(drop)
    }

    /// Line 11: waits for the turn of `ticket` of generation `here`, in a queue whose word was `seen`. The word when it
    /// came; none if the tickets were recovered. As in DSLR, looks are the rarer the more tickets are ahead.
    pub(super) async fn wait_for_turn(
        &self,
        queue: Queue<'_>,
        ticket: u128,
        mut seen: u64,
        here: u32,
    ) -> Result<Option<u64>, FabricError> {
        let words = queue.words;
        loop {
            if words.generation_here().get(seen.into()) != u128::from(here) {
                return Ok(None);
            }
            let ahead = words.ahead(ticket, seen) as u64;
            if ahead == 0 {
                return Ok(Some(seen));
            }
            let watch = LeaseWait {
                word: queue.word,
                cond: words.turn_has_moved(seen),
                or: None,
                moves: words.progress_here(),
                deadline: Deadline::Never,
                pace_ns: TURN_NS * (ahead - 1),
            };
            let (end, now) = self.wait_watched_and_read(watch).await?;
            match end {
                // Whichever client does it, the tickets are void then.
                End::Dead(dead) => self.take_away(queue, watch, dead).await?,
                End::Met | End::Renewed | End::GaveUp => seen = now,
            }
        }
    }

    /// Waits at a node where the client has a ticket of generation `here`, for its turn, or for readers to go; and
    /// recovers the node if nothing moves there.
    pub(super) async fn wait_here(
        &self,
        request: &Request,
        node: Node,
        cond: Cond,
        here: u32,
        deadline: Deadline,
    ) -> Result<End, FabricError> {
        let words = request.words;
        let watch = LeaseWait {
            word: request.tree.word(node),
            cond,
            // Void if the node was recovered, or if it was the root and the tree has shrunk.
            or: (self.recovers() || self.shape.grows()).then(|| words.renewed_here(here)),
            moves: words.progress_here(),
            deadline,
            pace_ns: 0,
        };
        loop {
            let end = self.wait_watched(watch).await?;
            let End::Dead(seen) = end else { return Ok(end) };
            self.take_away(request.queue(node), watch, seen).await?;
        }
    }

    /// Nothing has moved for two leases since the word of `queue` was `seen`: makes all tickets void, and readers forgotten,
    /// unless something moves within a third one.
    pub(super) async fn take_away(
        &self,
        queue: Queue<'_>,
        watch: LeaseWait,
        mut seen: u64,
    ) -> Result<(), FabricError> {
        if !self.is_dead(queue.tree, watch, seen).await? {
            return Ok(());
        }
        loop {
            let old = self.ep.go(queue.words.forget_here(queue.word, seen)).await?;
            if R::TAKING_AWAY_STOPS && (old ^ seen) & watch.moves != 0 {
                return Ok(());
            }
            if queue.words.same_queue(old, seen) {
                self.ep.observe(Observation::Recovered(queue.claim));
                return Ok(());
            }
            // Another client has taken a ticket.
            seen = old;
        }
    }

    /// Makes what was left at `word` void, whatever it is by now.
    pub(super) async fn forget(&self, words: Words, word: Word64, what: Leftover) -> Result<(), FabricError> {
        let mut seen = self.ep.go(word.read()).await?;
        loop {
            let (forget, compared) = match what {
                Leftover::Notes => (words.forget_below(word, seen), words.progress_below()),
                Leftover::Tickets => (words.forget_here(word, seen), words.progress_here() | words.queue()),
            };
            let old = self.ep.go(forget).await?;
            if (old ^ seen) & compared == 0 {
                return Ok(());
            }
            seen = old;
        }
    }

    /// Line 36: waits until nobody below `node` is in the way, and recovers the notes there if nothing moves. A reader
    /// does not ([`End::Dead`]).
    pub(super) async fn wait_below(&self, request: &Request, node: Node) -> Result<End, FabricError> {
        let words = request.words;
        let watch = LeaseWait {
            word: request.tree.word(node),
            cond: request.quiet_below::<R>(),
            or: None,
            moves: words.progress_below(),
            deadline: request.deadline(),
            pace_ns: 0,
        };
        loop {
            let end = self.wait_watched(watch).await?;
            let End::Dead(seen) = end else { return Ok(end) };
            if words.is_reader() {
                return Ok(end);
            }
            if self.is_dead(&request.tree, watch, seen).await? {
                let old = self.ep.go(words.forget_below(watch.word, seen)).await?;
                if (old ^ seen) & watch.moves == 0 {
                    self.ep.observe(Observation::Recovered(request.claim));
                    for leaf in request.tree.shape.leaves_below(node) {
                        self.clear_leaf(&request.tree, leaf).await?;
                    }
                    // Once more, for clients that left a note after the era began: it was forgotten with the others'.
                    self.begin_era(&request.tree).await?;
                }
            }
        }
    }

    /// Clears what is set in `leaf`, where the caller is alone. Says whether anything was.
    async fn clear_leaf(&self, tree: &Tree, leaf: Node) -> Result<bool, FabricError> {
        let word = tree.word(leaf);
        let mut seen = self.ep.go(word.read()).await?;
        while Words::is_leaf_taken(seen, self.leaf_generation) {
            let old = self.ep.go(Words::clear_leaf(word, seen, self.leaf_generation)).await?;
            if old == seen {
                return Ok(true);
            }
            seen = old;
        }
        Ok(false)
    }

    /// Waits until the obstacle is gone. If a client seems to be dead there, [`End::Dead`].
    pub(super) async fn wait_for(&self, request: &Request, obstacle: Obstacle) -> Result<End, FabricError> {
        if matches!(request.patience, Patience::Try) {
            return Ok(End::GaveUp);
        }
        let words = request.words;
        let (node, cond, moves) = match (obstacle, self.params.synchrony) {
            (Obstacle::Readers(_) | Obstacle::Grown, _) => unreachable!("nothing to wait for"),
            (Obstacle::Units(leaf, units), _) => (leaf, words.units_free(units), words.obstacles(units)),
            (Obstacle::Node(node), Synchrony::Wait(_)) if request.todo[0] != node => {
                (node, super::layout::NOT_OCC, words.progress_here())
            }
            (Obstacle::Node(node), _) => (node, words.queue_empty(), words.progress_here()),
        };
        let deadline = request.deadline();
        // A gap between two turns is as good as the end of the queue, for those below.
        let is_below = request.todo[0] != node && matches!(obstacle, Obstacle::Node(_));
        let may_slip_in =
            is_below && words == Words::Exclusive && self.params.synchrony == Synchrony::Handshake;
        let or = may_slip_in.then_some(GAP);
        let watch = LeaseWait { word: request.tree.word(node), cond, or, moves, deadline, pace_ns: 0 };
        let end = self.wait_watched(watch).await?;
        if end == End::Met && words == Words::Writer && matches!(obstacle, Obstacle::Node(_)) {
            return self.wait_watched(LeaseWait { cond: NO_READERS, ..watch }).await;
        }
        Ok(end)
    }

    /// Locks `node` alone, for a moment, and takes away what the dead have left at it and in the leaves below. If a client
    /// above it is dead, that node is cleaned up instead.
    pub(super) async fn clean_up(&self, request: &Request, mut node: Node) -> Result<(), FabricError> {
        let words = if R::READERS { Words::Writer } else { Words::Exclusive };
        loop {
            let cleaner = Request {
                units: self.shape.range(node),
                on_tree: None,
                patience: Patience::Forever,
                words,
                held: Pieces::new(),
                todo: std::iter::once(node).collect(),
                era: std::cell::Cell::new(0),
                spill: None,
                is_careful: false,
                claim: request.claim,
                tree: request.tree,
            };
            self.mark("citron: clean up", &cleaner, &[]);
            match self.attempt(&cleaner).await? {
                Attempt::Locked(pieces, _) => {
                    let era = self.ep.go(request.tree.era_word().read()).await?;
                    let is_mine = era == cleaner.era.get();
                    if is_mine {
                        self.clear_leaves_below(&cleaner, node, &pieces[0]).await?;
                    }
                    self.release_on_tree(&request.tree, words, &pieces).await?;
                    if is_mine {
                        return Ok(());
                    }
                }
                Attempt::Blocked(obstacle) => {
                    if let (End::Dead(_), Obstacle::Node(above)) =
                        (self.wait_for(&cleaner, obstacle).await?, obstacle)
                    {
                        node = above;
                    }
                }
                Attempt::Renewed | Attempt::Aborted => {}
                // A client that needs this will start again and learn of it.
                Attempt::Grown => return Ok(()),
                Attempt::GaveUp | Attempt::TooManyReaders | Attempt::Stuck(_) => {
                    unreachable!("a patient writer")
                }
            }
        }
    }

    /// Clears what is set in the leaves below `node`, which is locked.
    async fn clear_leaves_below(
        &self,
        cleaner: &Request,
        node: Node,
        piece: &Piece,
    ) -> Result<(), FabricError> {
        if piece.with_leaves {
            return Ok(()); // all of them were free
        }
        let mut any = false;
        for leaf in cleaner.tree.shape.leaves_below(node) {
            self.mark_begun(
                "citron: clear",
                cleaner,
                &[piece.begun],
                [node.index(), leaf.index(), any.into(), 0],
            );
            any |= self.clear_leaf(&cleaner.tree, leaf).await?;
        }
        if any {
            self.ep.observe(Observation::Recovered(cleaner.claim));
            // For clients that were about to take what is clear now, and will tell nobody else.
            self.begin_era(&cleaner.tree).await?;
        }
        self.mark_begun("citron: cleared", cleaner, &[piece.begun], [node.index(), 0, 0, 0]);
        Ok(())
    }
}
