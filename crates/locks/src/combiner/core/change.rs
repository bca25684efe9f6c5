//! Changes to what is held, each in one step: giving back a part, upgrade, downgrade.
//!
//! Their places in the queue. A part that is kept keeps its place and its token. An upgrade's place is that of the
//! lock it has, so it stands before everybody who waits: a writer in the queue waits for that very lock, and standing
//! behind it would be waiting for oneself. Of two readers of a common unit only one can be upgraded, so the second is
//! refused at once and goes on reading. A downgrade lets in the readers that stand behind nothing else.
//! Never is the range given up and taken again: no writer can come in between.

use super::{Answer, ClientId, Core, Node, Owner, Refusal, Reply, Rules, State, bars, counts};
use lockwright_fabric::observe::Mode;

impl<R: Rules> Core<R> {
    pub(super) fn unlock_part(
        &mut self,
        client: ClientId,
        id: u32,
        (start, end): (u64, u64),
        rest: u32,
        replies: &mut Vec<Reply>,
    ) -> Result<Option<Answer>, Refusal> {
        let slot = self.held(client, id)?;
        let node = *self.trees.node(slot);
        if node.state != State::Granted {
            return Err(Refusal::StillWaiting);
        }
        if start >= end {
            return Err(Refusal::EmptyRange);
        }
        if start < node.start || node.end < end {
            return Err(Refusal::NotInside);
        }
        if (start, end) == (node.start, node.end) {
            return self.unlock(client, id, replies);
        }
        let (left, right) = ((node.start, start), (end, node.end));
        let two = left.0 < left.1 && right.0 < right.1;
        if two {
            self.free_id(client, rest)?;
        }
        // Whoever counted the whole now counts the pieces it overlaps.
        if node.blocks {
            let mut found = std::mem::take(&mut self.found);
            self.trees.overlapping(node.tree, node.start, node.end, &mut found);
            for other in found.drain(..) {
                let waiter = self.trees.node_mut(other);
                if counts(waiter, &node) {
                    let pieces = [left, right].into_iter().filter(|piece| piece.0 < piece.1);
                    let still = pieces.filter(|piece| waiter.overlaps(piece.0, piece.1)).count() as u32;
                    waiter.blocking = waiter.blocking + still - 1;
                    if waiter.blocking == 0 {
                        self.ready.push(other);
                    }
                }
            }
            self.found = found;
        }
        self.trees.remove(slot);
        let kept = if left.0 < left.1 { left } else { right };
        self.keep(node.cut_to(kept.0, kept.1), client, id);
        if two {
            self.keep(node.cut_to(right.0, right.1), client, rest);
            self.sessions[client.0 as usize].live += 1;
            self.locks[node.tree as usize].1 += u32::from(node.mode == Mode::Exclusive);
        }
        self.grant_ready(replies);
        Ok(None)
    }

    /// Puts a piece of a held range back into the tree.
    fn keep(&mut self, piece: Node, client: ClientId, id: u32) {
        let (slot, _) = self.trees.insert(piece, Owner { client: client.0, id });
        self.sessions[client.0 as usize].slots[id as usize] = slot;
    }

    pub(super) fn upgrade(
        &mut self,
        client: ClientId,
        id: u32,
        wait: bool,
        replies: &mut Vec<Reply>,
    ) -> Result<Option<Answer>, Refusal> {
        let slot = self.held(client, id)?;
        let node = *self.trees.node(slot);
        if node.state != State::Granted {
            return Err(Refusal::StillWaiting);
        }
        if node.mode == Mode::Exclusive {
            return Err(Refusal::SameMode);
        }
        if !R::UPGRADE_HOLDS {
            // The mutant: lets go and queues again, like everybody else.
            let lock = self.locks[node.tree as usize].0;
            self.take_out(slot);
            let answer = self.lock(client, id, lock, Node::new(node.start, node.end, Mode::Exclusive), wait);
            self.grant_ready(replies);
            return answer;
        }
        let mut found = std::mem::take(&mut self.found);
        self.trees.overlapping(node.tree, node.start, node.end, &mut found);
        found.retain(|other| *other != slot);
        let holders = || {
            found.iter().map(|other| self.trees.node(*other)).filter(|other| other.state != State::Waiting)
        };
        let blocking = holders().count() as u32;
        let refusal = if holders().any(|other| other.state == State::Upgrading) {
            Some(Err(Refusal::UpgradeConflict))
        } else if blocking > 0 && !wait {
            Some(Ok(Some(Answer::Busy)))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            found.clear();
            self.found = found;
            return refusal;
        }
        for other in found.drain(..) {
            let other = self.trees.node_mut(other);
            if other.state == State::Granted {
                other.blocks = true;
            } else if other.mode == Mode::Shared {
                // Waiting readers did not mind a reader; they stand behind a writer. Waiting writers minded already.
                other.blocking += 1;
            }
        }
        self.found = found;
        self.locks[node.tree as usize].1 += 1;
        let mine = self.trees.node_mut(slot);
        (mine.state, mine.blocking, mine.blocks) = (State::Upgrading, blocking, true);
        if blocking == 0 {
            return Ok(Some(Answer::Granted { token: self.grant(slot) }));
        }
        Ok(None)
    }

    pub(super) fn downgrade(
        &mut self,
        client: ClientId,
        id: u32,
        replies: &mut Vec<Reply>,
    ) -> Result<Option<Answer>, Refusal> {
        let slot = self.held(client, id)?;
        let node = *self.trees.node(slot);
        if node.state == State::Waiting {
            return Err(Refusal::StillWaiting);
        }
        if bars(&node) == Mode::Shared {
            return Err(Refusal::SameMode);
        }
        self.locks[node.tree as usize].1 -= 1;
        let mine = self.trees.node_mut(slot);
        (mine.mode, mine.state, mine.blocking) = (Mode::Shared, State::Granted, 0);
        // Its own new token comes before those of the readers it lets in.
        let token = self.grant(slot);
        replies.push(Reply { client, id, answer: Answer::Downgraded { token } });
        if node.blocks {
            let mut found = std::mem::take(&mut self.found);
            self.trees.overlapping(node.tree, node.start, node.end, &mut found);
            for other in found.drain(..) {
                let waiter = self.trees.node_mut(other);
                if waiter.state == State::Waiting && waiter.mode == Mode::Shared {
                    waiter.blocking -= 1;
                    if waiter.blocking == 0 {
                        self.ready.push(other);
                    }
                }
            }
            self.found = found;
        }
        self.grant_ready(replies);
        Ok(None)
    }
}
