//! An agent: one lock's holders and waiters, on the machine of a holder (Fig. 7, §5.1). Plain bookkeeping; what leaves
//! the machine because of it is the machine's affair.

use super::packet::{Ticket, Waiter};
use super::pipeline::Preference;
use lockwright_fabric::observe::Mode;
use std::collections::{BTreeSet, VecDeque};

/// Puts a waiter behind all of the same or a higher priority: with one priority, first come, first served.
fn enqueue(queue: &mut VecDeque<Waiter>, waiter: Waiter) {
    let place = queue.iter().rposition(|other| other.priority >= waiter.priority).map_or(0, |at| at + 1);
    queue.insert(place, waiter);
}

/// A lock's participants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Agent {
    pub(super) mode: Mode,
    /// Shared ACQUIREs that the decider counted since the agent came here, as far as they have arrived.
    pub(super) inca: u8,
    /// The token of the last grant.
    pub(super) token: u64,
    pub(super) holders: BTreeSet<Ticket>,
    pub(super) queue: VecDeque<Waiter>,
    /// Tasks that released before its ACQUIRE, which the decider granted, arrived (Fig. 9 left).
    pub(super) early: BTreeSet<Ticket>,
    /// The incarnation with which the agent was not let go: it tries again only with a larger one.
    pub(super) refused_at: Option<u8>,
    /// The decider lets no more readers in, or will not once the BAR has arrived.
    pub(super) barred: bool,
    /// Readers that were let in past a waiting writer.
    pub(super) passed: u32,
}

impl Agent {
    /// An agent that came with the lock, for `holder`, with the tasks that wait.
    pub(super) fn new(mode: Mode, inca: u8, token: u64, holder: Ticket, queue: Vec<Waiter>) -> Self {
        Self {
            mode,
            inca,
            token,
            holders: BTreeSet::from([holder]),
            queue: queue.into(),
            early: BTreeSet::new(),
            refused_at: None,
            barred: false,
            passed: 0,
        }
    }

    /// An agent that nobody has given the lock yet.
    pub(super) fn idle(mode: Mode, token: u64) -> Self {
        let nobody = Ticket { mid: 0, tid: 0 };
        Self { holders: BTreeSet::new(), ..Self::new(mode, 0, token, nobody, Vec::new()) }
    }

    /// Puts a waiter into the queue, unless it only tries.
    pub(super) fn enqueue(&mut self, waiter: Waiter) {
        if !waiter.tries {
            enqueue(&mut self.queue, waiter);
        }
    }

    pub(super) fn writer_waits(&self) -> bool {
        self.queue.iter().any(|waiter| waiter.mode == Mode::Exclusive)
    }

    /// An ACQUIRE that the decider counted and, if `granted`, granted. If it was not, it waits, unless it only tries.
    pub(super) fn count(&mut self, waiter: Waiter, granted: bool) {
        self.inca = self.inca.wrapping_add(1);
        if !granted {
            self.enqueue(waiter);
        } else if !self.early.remove(&waiter.ticket) {
            self.holders.insert(waiter.ticket);
            self.passed += u32::from(self.writer_waits());
        }
    }

    /// A request that nobody has decided yet. True if it is granted; if not, it waits, unless it only tries.
    pub(super) fn ask(&mut self, waiter: Waiter) -> bool {
        let open = self.mode == Mode::Shared && !self.barred;
        let granted = waiter.mode == Mode::Shared && open;
        if granted {
            self.holders.insert(waiter.ticket);
            self.passed += u32::from(self.writer_waits());
        } else {
            self.enqueue(waiter);
        }
        granted
    }

    /// A holder lets go, or a task that will turn out to be one.
    pub(super) fn release(&mut self, ticket: Ticket) {
        if !self.holders.remove(&ticket) {
            self.early.insert(ticket);
        }
    }

    /// A waiter that has lost patience. True if it was in the queue.
    pub(super) fn forget(&mut self, ticket: Ticket) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiter| waiter.ticket != ticket);
        self.queue.len() < before
    }

    /// Whether the lock can be passed on: it has no holder, none is known to be on the way, and the decider has not said
    /// otherwise.
    pub(super) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.early.is_empty() && self.refused_at != Some(self.inca)
    }

    /// Readers that may hold the lock together with the one it was just given to (Fig. 7 lines 20–22): all that wait, or,
    /// where writers are preferred, those before the first writer.
    pub(super) fn take_readers(&mut self, preference: Preference) -> Vec<Ticket> {
        if self.mode == Mode::Exclusive {
            return Vec::new();
        }
        let before_writer = self.queue.iter().position(|waiter| waiter.mode == Mode::Exclusive);
        let end = match preference {
            Preference::Writers => before_writer.unwrap_or(self.queue.len()),
            Preference::Readers | Preference::ReadersAlways => self.queue.len(),
        };
        let (mut readers, mut rest) = (Vec::new(), VecDeque::new());
        for (place, waiter) in self.queue.drain(..).enumerate() {
            if place < end && waiter.mode == Mode::Shared {
                readers.push(waiter.ticket);
            } else {
                rest.push_back(waiter);
            }
        }
        self.queue = rest;
        self.holders.extend(&readers);
        readers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(tid: u32, mode: Mode, priority: u8) -> Waiter {
        Waiter { ticket: Ticket { mid: 1, tid }, mode, priority, tries: false }
    }

    fn tids(tickets: &[Ticket]) -> Vec<u32> {
        tickets.iter().map(|ticket| ticket.tid).collect()
    }

    fn reading(queue: &[Waiter]) -> Agent {
        Agent::new(Mode::Shared, 0, 0, Ticket { mid: 1, tid: 0 }, queue.to_vec())
    }

    #[test]
    fn waiters_queue_by_priority_and_in_order_within_one() {
        let mut agent = Agent::new(Mode::Exclusive, 0, 0, Ticket { mid: 1, tid: 0 }, Vec::new());
        for (tid, priority) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
            assert!(!agent.ask(waiter(tid, Mode::Exclusive, priority)));
        }
        let order: Vec<_> = agent.queue.iter().map(|waiter| waiter.ticket.tid).collect();
        assert_eq!(order, [2, 4, 1, 3]);
    }

    #[test]
    fn readers_go_together_past_a_writer_or_up_to_it() {
        let queue = [waiter(1, Mode::Shared, 0), waiter(2, Mode::Exclusive, 0), waiter(3, Mode::Shared, 0)];
        assert_eq!(tids(&reading(&queue).take_readers(Preference::Readers)), [1, 3]);
        assert_eq!(tids(&reading(&queue).take_readers(Preference::Writers)), [1]);
    }

    #[test]
    fn a_release_that_comes_before_its_acquire_keeps_the_agent_until_that_comes_too() {
        let mut agent = reading(&[]);
        agent.release(Ticket { mid: 2, tid: 5 });
        agent.release(Ticket { mid: 1, tid: 0 });
        assert!(!agent.is_idle());
        let late = Waiter { ticket: Ticket { mid: 2, tid: 5 }, ..waiter(5, Mode::Shared, 0) };
        agent.count(late, true);
        assert!(agent.is_idle() && agent.inca == 1);
    }
}
