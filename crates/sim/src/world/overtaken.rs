//! How often a client that waits is overtaken, as a figure and not as a rule: what [`Bypass`](crate::check::Bypass) checks,
//! without a look at all waiters for every grant.
//!
//! As long as all claims of a lock are of the whole of it, a grant conflicts with every waiter, or with every writer: two
//! counters per lock say how many there were, and a waiter remembers what they said when it came. Claims of a part of a
//! lock are compared one by one.

use lockwright_fabric::observe::{Claim, Mode, Observation};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// The waiters of every lock, and the most often one was overtaken.
#[derive(Debug, Default)]
pub(crate) struct Overtaken {
    longest: u32,
    queues: FxHashMap<u64, WaitQueue>,
    /// Empty queues, kept for their memory.
    idle: Vec<WaitQueue>,
}

/// Clients that wait for one lock, in the order in which they came.
#[derive(Debug, Default)]
struct WaitQueue {
    /// Grants since a client first waited, and how many of them were exclusive.
    grants: u32,
    exclusive: u32,
    /// Some claim is of a part of the lock: `passed` counts for itself.
    in_parts: bool,
    waiting: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    client: u32,
    /// Conflicting grants to others: so far where the lock is claimed in parts; else when it came, counted by the queue.
    passed: u32,
    claim: Claim,
}

impl WaitQueue {
    /// What the queue counts for a claim of this mode.
    fn count(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Exclusive => self.grants,
            Mode::Shared => self.exclusive,
        }
    }

    /// From here on every waiter counts for itself.
    fn split(&mut self) {
        self.in_parts = true;
        let (grants, exclusive) = (self.grants, self.exclusive);
        for waiter in &mut self.waiting {
            let count = if waiter.claim.mode == Mode::Exclusive { grants } else { exclusive };
            waiter.passed = count - waiter.passed;
        }
    }

    /// Takes the waiter out. How often was it overtaken?
    fn leave(&mut self, client: u32, claim: Claim) -> Option<u32> {
        let place =
            self.waiting.iter().position(|waiter| waiter.client == client && waiter.claim == claim)?;
        let waiter = self.waiting.remove(place)?;
        Some(if self.in_parts { waiter.passed } else { self.count(claim.mode) - waiter.passed })
    }
}

impl Overtaken {
    /// The most often a client was overtaken, of clients that came to an end.
    pub(crate) fn longest(&self) -> u32 {
        self.longest
    }

    /// Whether a client waits for any part of `lock`.
    pub(crate) fn is_wanted(&self, lock: u64) -> bool {
        self.queues.contains_key(&lock)
    }

    /// Takes note of what `client` did.
    pub(crate) fn on(&mut self, client: u32, what: Observation) {
        match what {
            Observation::Waiting(claim) => self.wait(client, claim),
            Observation::Granted(claim, _) => self.grant(client, claim),
            Observation::GaveUp(claim) => self.leave(client, claim),
            _ => {}
        }
    }

    /// `client` waits for nothing any more.
    pub(crate) fn forget(&mut self, client: u32) {
        for queue in self.queues.values_mut() {
            queue.waiting.retain(|waiter| waiter.client != client);
        }
        self.queues.retain(|_, queue| !queue.waiting.is_empty());
    }

    fn wait(&mut self, client: u32, claim: Claim) {
        let idle = &mut self.idle;
        let queue = self.queues.entry(claim.lock).or_insert_with(|| idle.pop().unwrap_or_default());
        let whole = claim.start == 0 && claim.end == u64::MAX;
        if !whole && !queue.in_parts {
            queue.split();
        }
        let passed = if queue.in_parts { 0 } else { queue.count(claim.mode) };
        queue.waiting.push_back(Waiter { client, passed, claim });
    }

    fn grant(&mut self, client: u32, claim: Claim) {
        self.leave(client, claim);
        let Some(queue) = self.queues.get_mut(&claim.lock) else { return };
        let whole = claim.start == 0 && claim.end == u64::MAX;
        if !whole && !queue.in_parts {
            queue.split();
        }
        if queue.in_parts {
            let others = queue.waiting.iter_mut().filter(|waiter| waiter.client != client);
            others.filter(|waiter| waiter.claim.conflicts(&claim)).for_each(|waiter| waiter.passed += 1);
            return;
        }
        queue.grants += 1;
        queue.exclusive += u32::from(claim.mode == Mode::Exclusive);
    }

    fn leave(&mut self, client: u32, claim: Claim) {
        let Some(queue) = self.queues.get_mut(&claim.lock) else { return };
        if let Some(passed) = queue.leave(client, claim) {
            self.longest = self.longest.max(passed);
        }
        if queue.waiting.is_empty()
            && let Some(mut queue) = self.queues.remove(&claim.lock)
        {
            (queue.grants, queue.exclusive, queue.in_parts) = (0, 0, false);
            self.idle.push(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Bypass;
    use crate::rng::Rng;
    use lockwright_fabric::PeerId;

    /// Clients that wait for, get and release claims at random.
    fn agrees_with_bypass(claims: &[Claim], seed: u64) -> u32 {
        let (mut fast, mut slow) = (Overtaken::default(), Bypass::new(u32::MAX));
        let mut rng = Rng::new(seed, 0);
        let mut waits: Vec<Option<Claim>> = vec![None; 8];
        for _ in 0..2_000 {
            let client = rng.below(8) as usize;
            let what = match waits[client] {
                None => {
                    let claim = claims[rng.below(claims.len() as u64) as usize];
                    waits[client] = Some(claim);
                    Observation::Waiting(claim)
                }
                Some(claim) => {
                    waits[client] = None;
                    if rng.below(10) == 0 {
                        Observation::GaveUp(claim)
                    } else {
                        Observation::Granted(claim, None)
                    }
                }
            };
            fast.on(client as u32, what);
            slow.on(PeerId::client(client), what).unwrap();
        }
        // Bypass counts as it happens; here a client that still waits has not been asked yet.
        for (client, claim) in waits.into_iter().enumerate() {
            if let Some(claim) = claim {
                assert!(fast.is_wanted(claim.lock) && slow.is_wanted(claim.lock));
                fast.on(client as u32, Observation::GaveUp(claim));
            }
        }
        assert_eq!(fast.longest(), slow.longest());
        assert!(fast.queues.is_empty());
        fast.longest()
    }

    #[test]
    fn it_counts_what_the_checker_counts() {
        let whole = |lock, mode| Claim { lock, mode, start: 0, end: u64::MAX };
        let part = |start, end| Claim { lock: 1, mode: Mode::Exclusive, start, end };
        let wholes = [whole(1, Mode::Exclusive), whole(1, Mode::Shared), whole(2, Mode::Exclusive)];
        let mixed = [wholes[0], wholes[1], part(0, 10), part(5, 20), part(15, 30)];
        for seed in 1..20 {
            assert!(agrees_with_bypass(&wholes, seed) > 3);
            assert!(agrees_with_bypass(&mixed, seed) > 3);
        }
    }
}
