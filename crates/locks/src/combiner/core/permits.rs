//! Semaphores: a request for permits waits until so many are free, behind all that came before it.
//!
//! A request stands in its lock's tree as the range `weight..limit + 1`, which is never empty and says all there is to say of
//! it in lists. Nothing is decided by the tree: how many permits are free, and who waits for them, is kept beside it. First
//! come, first served: a request for one permit does not overtake one for many, which would wait for ever.
//!
//! The limit is the one that the holders and waiters of permits named; a request that names another one meanwhile is refused.

use super::{ClientId, Core, IntervalTrees, Record, Refusal, Rules, Slot, State, Taken};
use lockwright_fabric::observe::Mode;
use std::collections::VecDeque;

/// The permits of one semaphore.
#[derive(Clone, Debug)]
pub(super) struct Permits {
    limit: u64,
    free: u64,
    /// Who waits, in order of arrival.
    queue: VecDeque<Slot>,
}

impl<R: Rules> Core<R> {
    pub(super) fn acquire_permits(
        &mut self,
        client: ClientId,
        id: u32,
        lock: u64,
        (weight, limit): (u64, u64),
        wait: bool,
    ) -> Result<Taken, Refusal> {
        if weight == 0 || weight > limit || limit == u64::MAX {
            return Err(Refusal::NotThatMany);
        }
        self.free_id(client, id)?;
        let known = self.known_tree(lock).and_then(|tree| self.permits.get(&tree));
        if known.is_some_and(|permits| permits.limit != limit) {
            return Err(Refusal::OtherLimit);
        }
        let first = |permits: &Permits| permits.queue.is_empty() || !R::FIFO;
        let fits = known.is_none_or(|permits| first(permits) && weight <= permits.free);
        if !fits && !wait {
            return Ok(Taken::Not);
        }
        self.arrivals += 1;
        let tree = self.tree_of(lock);
        // Its end may concern others, always.
        let record =
            Record { stamp: self.arrivals, blocks: true, ..Record::new(client.0, id, tree, Mode::Shared) };
        let slot = self.records.add(record);
        self.trees.insert(&mut self.records, slot, weight, limit + 1);
        self.sessions[client.0 as usize][id as usize] = slot;
        let permits = self.permits.entry(tree).or_insert_with(|| Permits {
            limit,
            free: limit,
            queue: VecDeque::new(),
        });
        if fits {
            permits.free -= weight;
            return Ok(Taken::Now { token: self.grant(slot) });
        }
        permits.queue.push_back(slot);
        self.request_mut(slot).blocking = 1;
        Ok(Taken::Later)
    }

    /// Whether a request is for permits: these can be given back, and not changed.
    pub(super) fn is_for_permits(&self, request: &Record) -> bool {
        self.permits.contains_key(&request.tree)
    }

    /// A request for permits is over: `gone` stood at `slot`. The first in the queue gets what is free.
    pub(super) fn pass_permits_on(&mut self, gone: &Record, slot: Slot, weight: u64) {
        let Some(permits) = self.permits.get_mut(&gone.tree) else { return };
        let waited = permits.queue.iter().position(|other| *other == slot);
        match waited {
            Some(place) if gone.state == State::Waiting => drop(permits.queue.remove(place)),
            // Held, or about to be.
            _ => permits.free += weight,
        }
        while let Some(&first) = permits.queue.front() {
            let weight = self.trees.range(&self.records, first).0;
            if weight > permits.free && R::PERMITS_ARE_COUNTED {
                break;
            }
            permits.free = permits.free.saturating_sub(weight);
            permits.queue.pop_front();
            self.records.get_mut(first).blocking = 0;
            self.ready.push(first);
        }
    }
}
