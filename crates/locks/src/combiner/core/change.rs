//! Changes to what is held, each in one step: giving back a part, upgrade, downgrade.
//!
//! Their places in the queue. A part that is kept keeps its place and its token. An upgrade's place is that of the lock it
//! has, so it stands before all waiters: a writer in the queue waits for that very lock, and standing behind it would be
//! waiting for oneself. Of two readers of a common unit only one can be upgraded, so the second is refused at once and goes
//! on reading. A downgrade lets in the readers that stand behind nothing else. Never is the range given up and taken again:
//! no writer can come in between.

use super::{
    Answer, ClientId, Core, IntervalTrees, NIL, Record, Refusal, Reply, Rules, State, Taken, bars, counts,
};
use lockwright_fabric::observe::Mode;

impl<R: Rules> Core<R> {
    pub(super) fn unlock_part(
        &mut self,
        client: ClientId,
        id: u32,
        (start, end): (u64, u64),
        rest: u32,
        replies: &mut Vec<Reply>,
    ) -> Result<(), Refusal> {
        let slot = self.held(client, id)?;
        let request = *self.request(slot);
        if request.state != State::Granted {
            return Err(Refusal::StillWaiting);
        }
        if self.is_for_permits(&request) {
            return Err(Refusal::IsPermits);
        }
        let (first, last) = self.range(slot);
        // Nothing at all, in the middle: what is held becomes two.
        let splits = start == end && first < start && end < last;
        if start >= end && !splits {
            return Err(Refusal::EmptyRange);
        }
        if start < first || last < end {
            return Err(Refusal::NotInside);
        }
        if (start, end) == (first, last) {
            return self.unlock(client, id, replies);
        }
        let (left, right) = ((first, start), (end, last));
        let two = left.0 < left.1 && right.0 < right.1;
        if two {
            self.free_id(client, rest)?;
        }
        // A request that counted the whole now counts the pieces it overlaps.
        if request.blocks {
            let mut found = std::mem::take(&mut self.found);
            self.trees.overlapping(request.tree, first, last, &mut found);
            for other in found.drain(..) {
                if counts(self.request(other), &request) {
                    let (from, to) = self.range(other);
                    let pieces = [left, right].into_iter().filter(|piece| piece.0 < piece.1);
                    let still = pieces.filter(|piece| from < piece.1 && piece.0 < to).count() as u32;
                    let waiter = self.request_mut(other);
                    waiter.blocking = waiter.blocking + still - 1;
                    if waiter.blocking == 0 {
                        self.ready.push(other);
                    }
                }
            }
            self.found = found;
        }
        self.trees.remove(&mut self.records, slot);
        self.records.give_back(slot);
        let kept = if left.0 < left.1 { left } else { right };
        self.keep(request, kept, id);
        if two {
            self.keep(request, right, rest);
            self.locks[request.tree as usize].1 += u32::from(request.mode == Mode::Exclusive);
        }
        self.grant_ready(replies);
        Ok(())
    }

    /// Puts a piece of a held range back into the tree, under that id of its client's.
    fn keep(&mut self, whole: Record, (start, end): (u64, u64), id: u32) {
        let slot = self.records.add(Record { id, ..whole });
        self.trees.insert(&mut self.records, slot, start, end);
        self.sessions[whole.client as usize][id as usize] = slot;
    }

    /// What client `from` holds or wants under `id` is from now on client `to`'s, under `as_id`, and stands where it stood.
    ///
    /// # Errors
    /// If there is no such request, or the other number is in use.
    pub fn pass_on(
        &mut self,
        (from, id): (ClientId, u32),
        (to, as_id): (ClientId, u32),
    ) -> Result<(), Refusal> {
        let slot = self.held(from, id)?;
        self.free_id(to, as_id)?;
        self.sessions[from.0 as usize][id as usize] = NIL;
        self.sessions[to.0 as usize][as_id as usize] = slot;
        let request = self.request_mut(slot);
        (request.client, request.id) = (to.0, as_id);
        Ok(())
    }

    pub(super) fn upgrade(
        &mut self,
        client: ClientId,
        id: u32,
        wait: bool,
        replies: &mut Vec<Reply>,
    ) -> Result<Taken, Refusal> {
        let slot = self.held(client, id)?;
        let request = *self.request(slot);
        if request.state != State::Granted {
            return Err(Refusal::StillWaiting);
        }
        if self.is_for_permits(&request) {
            return Err(Refusal::IsPermits);
        }
        if request.mode == Mode::Exclusive {
            return Err(Refusal::SameMode);
        }
        if !R::UPGRADE_HOLDS {
            // The mutant: lets go and queues again behind the others.
            let lock = self.locks[request.tree as usize].0;
            let range = self.range(slot);
            self.take_out(slot);
            let answer = self.lock(client, id, lock, Mode::Exclusive, range, wait);
            self.grant_ready(replies);
            return answer;
        }
        let mut found = std::mem::take(&mut self.found);
        let (start, end) = self.range(slot);
        self.trees.overlapping(request.tree, start, end, &mut found);
        found.retain(|other| *other != slot);
        let holders =
            || found.iter().map(|other| self.request(*other)).filter(|other| other.state != State::Waiting);
        let blocking = holders().count() as u32;
        let refusal = if holders().any(|other| other.state == State::Upgrading) {
            Some(Err(Refusal::UpgradeConflict))
        } else if blocking > 0 && !wait {
            Some(Ok(Taken::Not))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            found.clear();
            self.found = found;
            return refusal;
        }
        for other in found.drain(..) {
            let other = self.request_mut(other);
            if other.state == State::Granted {
                other.blocks = true;
            } else if other.mode == Mode::Shared {
                // Waiting readers did not mind a reader; they stand behind a writer. Waiting writers minded already.
                other.blocking += 1;
            }
        }
        self.found = found;
        self.locks[request.tree as usize].1 += 1;
        let mine = self.request_mut(slot);
        (mine.state, mine.blocking, mine.blocks) = (State::Upgrading, blocking, true);
        if blocking == 0 {
            return Ok(Taken::Now { token: self.grant(slot) });
        }
        Ok(Taken::Later)
    }

    pub(super) fn downgrade(
        &mut self,
        client: ClientId,
        id: u32,
        replies: &mut Vec<Reply>,
    ) -> Result<Option<Answer>, Refusal> {
        let slot = self.held(client, id)?;
        let request = *self.request(slot);
        if request.state == State::Waiting {
            return Err(Refusal::StillWaiting);
        }
        if bars(&request) == Mode::Shared {
            return Err(Refusal::SameMode);
        }
        self.locks[request.tree as usize].1 -= 1;
        let mine = self.request_mut(slot);
        (mine.mode, mine.state, mine.blocking) = (Mode::Shared, State::Granted, 0);
        // Its own new token comes before those of the readers it lets in.
        let token = self.grant(slot);
        replies.push(Reply { client, id, answer: Answer::Downgraded { token } });
        if request.blocks {
            let mut found = std::mem::take(&mut self.found);
            let (start, end) = self.range(slot);
            self.trees.overlapping(request.tree, start, end, &mut found);
            for other in found.drain(..) {
                let waiter = self.request_mut(other);
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
