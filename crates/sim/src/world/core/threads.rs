//! The threads of a role: which of them takes a message, when it is through, and when its answers leave.

use super::messages::LastArrivals;
use crate::rng::Rng;
use crate::server::{ServerThreads, Spread};
use hashbrown::HashMap;
use lockwright_fabric::{BoxedRole, Message, NodeId, PeerId};
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// What of a role deals with a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Worker {
    /// The sender's own thread: the message is a call.
    #[default]
    Caller,
    /// A thread of the role, of this group.
    Thread(u32, u32),
}

#[derive(Debug)]
pub(super) struct RoleState {
    /// The node it is on; none for a switch, which is in the network.
    pub(super) node: Option<NodeId>,
    pub(super) role: BoxedRole,
    threads: Vec<Thread>,
    /// Each group, and its last thread and one.
    groups: Vec<(ServerThreads, usize)>,
    /// Until when one of them works alone.
    alone_until_ns: u64,
    /// What each peer has sent and is not served yet, in order: work that takes longer than was known must not let one
    /// message of a peer overtake another, at one group or at several. Threads that packets are spread over at random see
    /// them in any order; of one lock a peer's messages stay in order there, because it sends the next when it has heard of
    /// the last.
    queues: HashMap<(PeerId, u64), VecDeque<u32>, FxBuildHasher>,
    /// What it sent and has not arrived.
    pub(super) sent: LastArrivals,
}

#[derive(Debug, Default)]
struct Thread {
    /// When it is through with all it has.
    free_ns: u64,
    /// Until when its last message keeps it beyond the usual.
    late_ns: u64,
    /// When the batches begin that are not over, and how many messages the last of them has.
    batches: VecDeque<u64>,
    in_last: u32,
}

impl Thread {
    /// A message comes at `now_ns`: when is it done?
    fn take(&mut self, now_ns: u64, kind: &ServerThreads) -> u64 {
        let start_ns = now_ns.max(self.free_ns);
        self.free_ns = start_ns + kind.service_ns;
        if kind.batch > 1 {
            // A batch is what waits when the thread looks: no message joins one that has begun.
            let joins =
                self.in_last < kind.batch && self.batches.back().is_some_and(|begins| *begins > now_ns);
            if joins {
                self.in_last += 1;
            } else {
                self.batches.push_back(start_ns);
                self.in_last = 1;
            }
        }
        self.free_ns
    }

    /// When the batch is over that a message done at `now_ns` belongs to.
    fn batch_ends(&mut self, now_ns: u64) -> u64 {
        while self.batches.front().is_some_and(|begins| *begins < now_ns) {
            self.batches.pop_front();
        }
        self.batches.front().copied().unwrap_or(self.free_ns)
    }

    /// All that it has is done so much later.
    fn delay(&mut self, ns: u64) {
        self.free_ns += ns;
        self.batches.iter_mut().for_each(|begins| *begins += ns);
    }
}

impl RoleState {
    /// With these groups of threads.
    pub(super) fn new(node: Option<NodeId>, role: BoxedRole, groups: &[ServerThreads]) -> Self {
        let mut last = 0;
        let groups = groups.iter().map(|group| {
            last += group.threads.max(1);
            (*group, last)
        });
        let groups = groups.collect();
        Self {
            node,
            role,
            threads: (0..last).map(|_| Thread::default()).collect(),
            groups,
            alone_until_ns: 0,
            queues: HashMap::default(),
            sent: LastArrivals::default(),
        }
    }

    /// Which thread deals with `message` of `from`, and when is it done if nothing comes in between? It is a call if `calls` and the
    /// group takes calls.
    pub(super) fn assign(
        &mut self,
        now_ns: u64,
        from: PeerId,
        message: &Message,
        calls: bool,
        random: &mut Rng,
    ) -> (Worker, u64) {
        let group = self.role.thread_group(message).min(self.groups.len() - 1);
        let (kind, end) = self.groups[group];
        if calls && let Some(call_ns) = kind.call_ns {
            return (Worker::Caller, now_ns + call_ns);
        }
        let first = if group == 0 { 0 } else { self.groups[group - 1].1 };
        let count = end - first;
        let thread = match kind.spread {
            _ if count == 1 => first,
            Spread::Session => first + from.index().0 % count,
            Spread::Random => first + random.below(count as u64) as usize,
            Spread::Idle => {
                (first..end).min_by_key(|thread| self.threads[*thread].free_ns).expect("a group has a thread")
            }
        };
        let done_ns = self.threads[thread].take(now_ns, &kind);
        (Worker::Thread(thread as u32, group as u32), done_ns)
    }

    /// What `from` sent and is not served yet, as far as its order matters.
    pub(super) fn queue_of(&mut self, from: PeerId, lock: u64) -> &mut VecDeque<u32> {
        let key = self.queue_key(from, lock);
        self.queues.entry(key).or_default()
    }

    /// It is empty. Where there is one per lock, there would be more and more.
    pub(super) fn forget_queue(&mut self, from: PeerId, lock: u64) {
        if self.groups[0].0.spread == Spread::Random {
            self.queues.remove(&self.queue_key(from, lock));
        }
    }

    fn queue_key(&self, from: PeerId, lock: u64) -> (PeerId, u64) {
        (from, if self.groups[0].0.spread == Spread::Random { lock } else { 0 })
    }

    /// When a message is served that was to be served now, if its thread was kept.
    pub(super) fn served_later(&self, worker: Worker, now_ns: u64) -> Option<u64> {
        let Worker::Thread(thread, group) = worker else { return None };
        let late_ns = self.threads[thread as usize].late_ns;
        let served_ns = late_ns + self.groups[group as usize].0.service_ns;
        (late_ns > 0 && served_ns > now_ns).then_some(served_ns)
    }

    /// When the answers to a message leave whose usual work is done at `now_ns`: after work on cache lines, of which some under
    /// a lock of all threads, and at the end of its batch.
    pub(super) fn work(&mut self, worker: Worker, now_ns: u64, lines_ns: (u64, u64)) -> u64 {
        let (lines_ns, alone_ns) = lines_ns;
        let kind = match worker {
            Worker::Caller => &self.groups[0].0,
            Worker::Thread(_, group) => &self.groups[group as usize].0,
        };
        let in_batches = kind.batch > 1;
        let mut done_ns = now_ns + lines_ns;
        if alone_ns > 0 {
            done_ns = done_ns.max(self.alone_until_ns) + alone_ns;
            self.alone_until_ns = done_ns;
        }
        let Worker::Thread(thread, _) = worker else { return done_ns };
        let thread = &mut self.threads[thread as usize];
        // Messages that wait for this thread have a time at which they are served: it moves by so much.
        if done_ns > now_ns {
            thread.delay(done_ns - now_ns);
        }
        if done_ns > now_ns || thread.late_ns > 0 {
            thread.late_ns = done_ns;
        }
        if in_batches { done_ns.max(thread.batch_ends(now_ns)) } else { done_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(batch: u32) -> ServerThreads {
        ServerThreads { service_ns: 10, batch, ..ServerThreads::default() }
    }

    #[test]
    fn a_batch_is_what_waits_when_the_thread_looks() {
        let mut thread = Thread::default();
        let done: Vec<_> = (0..4).map(|_| thread.take(100, &kind(2))).collect();
        assert_eq!(done, [110, 120, 130, 140]);
        // The first came to an idle thread, the next two were a batch, the last is one.
        let ends: Vec<_> = done.into_iter().map(|done_ns| thread.batch_ends(done_ns)).collect();
        assert_eq!(ends, [110, 130, 130, 140]);
    }

    #[test]
    fn a_thread_that_is_kept_ends_its_batches_later() {
        let mut thread = Thread::default();
        let done: Vec<_> = (0..3).map(|_| thread.take(100, &kind(8))).collect();
        assert_eq!(thread.batch_ends(done[0]), 110);
        thread.delay(5);
        assert_eq!(thread.batch_ends(done[1] + 5), 135);
    }
}
