//! The network model: its parameters, and the queues of one memory node's NIC.
//!
//! The defaults are a 100 Gbit/s NIC, for simulations that are about no particular hardware. Papers were measured on different
//! hardware: the lab has one set of parameters per paper, each number with its source. Nothing in a set may suit one experiment.

use crate::server::ServerThreads;
use lockwright_fabric::{Addr, AtomicScope, Capabilities, Op, RawVerb, Width};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How long things take, and what the fabric can do.
#[derive(Clone, Debug, PartialEq)]
pub struct NicModel {
    /// Round trip of an 8-byte atomic without contention.
    pub atomic8_rtt_ns: u64,
    /// Round trip of a 16-byte atomic.
    pub atomic16_rtt_ns: u64,
    /// Round trip of a READ.
    pub read_rtt_ns: u64,
    /// Round trip of a WRITE.
    pub write_rtt_ns: u64,
    /// Added to every round trip for every doubling of clients above [`NicModel::growth_from`].
    pub growth_per_doubling_ns: u64,
    /// The number of clients the base round trips were measured with.
    pub growth_from: usize,
    /// Every way to the NIC is up to this much shorter or longer, at random. Small beside a round trip, so that means stay where
    /// they are while every seed has its own order of arrivals.
    pub jitter_ns: u64,
    /// The NIC's inbound pipeline, picoseconds per verb.
    pub service_ps: u64,
    /// How much later than the verb before it every further verb of a batch gets its turn, at least: verbs of one queue pair
    /// are executed one after the other, and some NICs take their time. Zero: no more than the pipeline takes.
    pub batch_step_ns: u64,
    /// One in so many verbs or batches takes long, for no reason that the network knows of; zero is never.
    pub slow_one_in: u64,
    /// How much longer those take at most; the least is nothing.
    pub slow_ns: u64,
    /// How long an 8-byte atomic keeps its address.
    pub same_address8_ns: u64,
    /// How long a 16-byte atomic keeps its address.
    pub same_address16_ns: u64,
    /// Verbs that can wait for a busy address before the pipeline itself stops.
    pub parking_slots: usize,
    /// A message from one peer to another, one way.
    pub message_ns: u64,
    /// Added to a message for every client, picoseconds.
    pub message_per_client_ps: u64,
    /// A client's own work per acquire+release cycle: picking a lock, posting, polling the completion.
    pub cycle_overhead_ns: u64,
    /// Pause between two polling READs of a wait.
    pub poll_ns: u64,
    /// One access of a CPU to a word of its own node that others write: a cache miss to another core.
    pub cpu_access_ns: u64,
    /// The threads of a role, unless a harness says otherwise
    /// ([`Simulation::new`](crate::Simulation::new)).
    pub server: ServerThreads,
    /// How long a client waits before it learns that a memory node is gone: a few retransmissions.
    pub node_lost_ns: u64,
    /// What the fabric offers. With [`AtomicScope::Nic`](lockwright_fabric::AtomicScope) a remote atomic is, to
    /// CPUs of its node, a read when it starts and a write when it ends.
    pub offers: Capabilities,
}

impl Default for NicModel {
    fn default() -> Self {
        Self {
            atomic8_rtt_ns: 1_770,
            atomic16_rtt_ns: 2_030,
            read_rtt_ns: 2_000,
            write_rtt_ns: 1_770,
            growth_per_doubling_ns: 80,
            growth_from: 5,
            jitter_ns: 50,
            service_ps: 30_500,
            batch_step_ns: 0,
            slow_one_in: 0,
            slow_ns: 0,
            same_address8_ns: 266,
            same_address16_ns: 520,
            parking_slots: 64,
            message_ns: 1_900,
            message_per_client_ps: 6_600,
            cycle_overhead_ns: 50,
            poll_ns: 1_862,
            cpu_access_ns: 100,
            server: ServerThreads::default(),
            node_lost_ns: 100_000,
            offers: Capabilities::CPU,
        }
    }
}

impl NicModel {
    /// What every round trip takes longer with this many clients.
    pub fn growth_ns(&self, clients: usize) -> u64 {
        if clients <= self.growth_from {
            return 0;
        }
        (self.growth_per_doubling_ns as f64 * (clients as f64 / self.growth_from as f64).log2()) as u64
    }

    /// The round trip of `verb` alone, without growth.
    #[inline]
    pub fn rtt_ns(&self, verb: &RawVerb) -> u64 {
        match (&verb.op, verb.width) {
            (Op::Read, _) => self.read_rtt_ns,
            (Op::Write(_), _) => self.write_rtt_ns,
            (_, Width::W64) => self.atomic8_rtt_ns,
            (_, Width::W128) => self.atomic16_rtt_ns,
        }
    }

    /// How long `verb` keeps its address to itself.
    #[inline]
    pub fn occupies_ns(&self, verb: &RawVerb) -> u64 {
        match (verb.op.is_atomic(), verb.width) {
            (false, _) => 0,
            (true, Width::W64) => self.same_address8_ns,
            (true, Width::W128) => self.same_address16_ns,
        }
    }

    /// One way of a message, with this many clients.
    pub fn message_ns(&self, clients: usize) -> u64 {
        self.message_ns + self.message_per_client_ps * clients as u64 / 1_000
    }
}

/// The queues of one NIC: a pipeline that every verb passes, and a place per address where atomics take turns.
///
/// Verbs are admitted in order of arrival and every queue is first come, first served, so the moment at which a
/// verb gets its turn is known when it arrives, and applying verbs to memory in order of arrival gives the
/// same memory as applying them at those moments.
#[derive(Debug)]
pub(crate) struct NicQueues {
    pipeline_free_ps: u64,
    /// When each parked verb leaves its parking slot.
    parked: BinaryHeap<Reverse<u64>>,
    busy: BusyTable,
}

impl NicQueues {
    pub(crate) fn new(model: &NicModel) -> Self {
        // Where atomics are a read and a later write, an 8-byte verb must not fall into a 16-byte one: there
        // sixteen bytes are one place. Elsewhere a word is, so that neighbouring locks do not delay each other.
        let granule = if model.offers.scope == AtomicScope::Nic { 4 } else { 3 };
        Self { pipeline_free_ps: 0, parked: BinaryHeap::new(), busy: BusyTable::new(granule) }
    }

    /// A verb has arrived at `at_ns`: when does it pass the pipeline and stand before its address?
    #[inline]
    fn pass_pipeline(&mut self, model: &NicModel, at_ns: u64) -> u64 {
        let start_ps = self.pipeline_free_ps.max(at_ns * 1_000);
        self.pipeline_free_ps = start_ps + model.service_ps;
        start_ps / 1_000
    }

    /// When does `verb`, which arrived at `at_ns` and must come after `not_before_ns`, get its turn?
    #[inline]
    pub(crate) fn admit(&mut self, model: &NicModel, verb: &RawVerb, at_ns: u64, not_before_ns: u64) -> u64 {
        let passed_ns = self.pass_pipeline(model, at_ns);
        let slot = self.busy.slot(verb.addr, at_ns);
        let mut turn = slot.until_ns.max(passed_ns).max(not_before_ns);
        let occupied = model.occupies_ns(verb);
        if turn > passed_ns {
            // Parked, or, where every slot is taken, at the head of the pipeline until one is free.
            while self.parked.peek().is_some_and(|Reverse(leaves)| *leaves <= passed_ns) {
                self.parked.pop();
            }
            if self.parked.len() >= model.parking_slots
                && let Some(Reverse(leaves)) = self.parked.pop()
            {
                self.pipeline_free_ps = self.pipeline_free_ps.max(leaves * 1_000);
                turn = turn.max(leaves);
            }
            self.parked.push(Reverse(turn));
        }
        if occupied > 0 {
            slot.until_ns = turn + occupied;
        }
        turn
    }
}

/// Until when which address is busy. Addresses that are not busy are not in it, so it stays small however many
/// locks there are: four places per bucket, any of which may be taken over once its time has passed.
#[derive(Debug)]
struct BusyTable {
    slots: Vec<Busy>,
    shift: u32,
    /// Addresses that share this many low bits are one place.
    granule: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    key: u64,
    until_ns: u64,
}

const WAYS: usize = 4;

impl BusyTable {
    fn new(granule: u32) -> Self {
        let bits = 5;
        Self { slots: vec![Busy::default(); WAYS << bits], shift: 64 - bits, granule }
    }

    #[inline]
    fn slot(&mut self, addr: Addr, now_ns: u64) -> &mut Busy {
        let key = (addr.offset >> self.granule) | (u64::from(addr.region.0) << 48);
        let bucket = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize * WAYS;
        // Which of them it is cannot be foreseen, so all are looked at without asking.
        let (mut mine, mut free) = (0, 0);
        for (way, busy) in self.slots[bucket..bucket + WAYS].iter().enumerate() {
            let is_free = u32::from(busy.until_ns <= now_ns);
            mine |= (u32::from(busy.key == key) & !is_free) << way;
            free |= is_free << way;
        }
        let found = if mine != 0 { mine } else { free };
        match found {
            0 => {
                self.grow(now_ns);
                self.slot(addr, now_ns)
            }
            _ => {
                let busy = &mut self.slots[bucket + found.trailing_zeros() as usize];
                if mine == 0 {
                    *busy = Busy { key, until_ns: 0 };
                }
                busy
            }
        }
    }

    #[cold]
    fn grow(&mut self, now_ns: u64) {
        let old = std::mem::take(&mut self.slots);
        self.shift -= 1;
        self.slots = vec![Busy::default(); old.len() * 2];
        for busy in old.into_iter().filter(|busy| busy.until_ns > now_ns) {
            let bucket = (busy.key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize * WAYS;
            let free = self.slots[bucket..bucket + WAYS].iter().position(|slot| slot.until_ns == 0);
            let way = free.expect("a bucket's entries are split between two buckets of the same size");
            self.slots[bucket + way] = busy;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::{NodeId, Word64};

    fn word(offset: u64) -> Word64 {
        Word64::at(Addr::new(NodeId(0), offset))
    }

    #[test]
    fn atomics_on_one_address_take_turns_and_reads_only_wait() {
        let (model, mut nic) = (NicModel::default(), NicQueues::new(&NicModel::default()));
        let faa = word(0).fetch_add(1).raw();
        assert_eq!(nic.admit(&model, &faa, 1_000, 0), 1_000);
        assert_eq!(nic.admit(&model, &faa, 1_000, 0), 1_266);
        assert_eq!(nic.admit(&model, &word(0).read().raw(), 1_000, 0), 1_532);
        assert_eq!(nic.admit(&model, &faa, 1_000, 0), 1_532);
        assert_eq!(nic.admit(&model, &word(8).fetch_add(1).raw(), 2_000, 0), 2_000);
    }

    #[test]
    fn the_pipeline_takes_one_verb_at_a_time() {
        let (model, mut nic) = (NicModel::default(), NicQueues::new(&NicModel::default()));
        let turns: Vec<_> = (0..5).map(|n| nic.admit(&model, &word(8 * n).read().raw(), 1_000, 0)).collect();
        assert_eq!(turns, [1_000, 1_030, 1_061, 1_091, 1_122]);
    }

    #[test]
    fn when_all_parking_slots_are_taken_everybody_waits() {
        let (model, mut nic) =
            (NicModel { parking_slots: 2, ..NicModel::default() }, NicQueues::new(&NicModel::default()));
        for _ in 0..3 {
            nic.admit(&model, &word(0).fetch_add(1).raw(), 1_000, 0);
        }
        // One is at work, two are parked; the fourth holds up the pipeline until the first parked one leaves.
        nic.admit(&model, &word(0).fetch_add(1).raw(), 1_000, 0);
        assert_eq!(nic.admit(&model, &word(64).read().raw(), 1_000, 0), 1_266);
    }

    #[test]
    fn the_table_of_busy_addresses_grows_when_more_are_busy() {
        let (model, mut nic) = (NicModel::default(), NicQueues::new(&NicModel::default()));
        let turns: Vec<_> =
            (0..4_000).map(|n| nic.admit(&model, &word(8 * n).fetch_add(1).raw(), 0, 0)).collect();
        assert!(turns.is_sorted());
        assert!(nic.admit(&model, &word(8 * 3_999).fetch_add(1).raw(), 0, 0) >= turns[3_999] + 266);
    }
}
