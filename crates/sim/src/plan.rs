//! What a simulated run is asked to do.

use crate::fault::FaultPlan;
use crate::nic::NicModel;
use crate::ranges::Ranges;

/// A run: so many clients, each acquiring and releasing locks at random until enough has been done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Clients.
    pub clients: usize,
    /// How many of the clients run on memory nodes, round robin; the first ones do.
    pub local_clients: usize,
    /// Locks.
    pub locks: u64,
    /// Memory nodes the locks are spread over.
    pub nodes: u16,
    /// Zipf exponent of the choice of lock; zero is uniform.
    pub zipf: f64,
    /// Parts of locks instead of whole ones.
    pub ranges: Option<Ranges>,
    /// Percent of acquires in exclusive mode.
    pub writes_percent: f64,
    /// Acquire+release cycles of all clients together, after the warm-up.
    pub ops: u64,
    /// If set, clients go on for so many virtual nanoseconds instead, however many cycles that makes.
    pub duration_ns: Option<u64>,
    /// The run is cut off when its duration is over: what is under way then does not count, and memory is not looked at.
    /// For locks that under too much load get nowhere.
    pub cut_off: bool,
    /// Cycles that are run first and not counted.
    pub warmup_ops: u64,
    /// Nanoseconds a lock is held.
    pub hold_ns: u64,
    /// Before that the holder reads or writes what the lock protects: a word on the lock's own node, by a verb.
    pub data: bool,
    /// Nanoseconds between a release and the next acquire.
    pub think_ns: u64,
    /// Everything random comes from here.
    pub seed: u64,
    /// The chance that a client never releases what it was granted, and goes on with something else: to the other
    /// clients it has crashed (ShiftLock §4.8).
    pub abandon_rate: f64,
    /// What else goes wrong.
    pub faults: FaultPlan,
    /// Virtual time after which a run that is not done counts as stuck.
    pub max_virtual_ns: u64,
    /// The network.
    pub nic: NicModel,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            clients: 16,
            local_clients: 0,
            locks: 1_000,
            nodes: 1,
            zipf: 0.99,
            ranges: None,
            writes_percent: 100.0,
            ops: 100_000,
            duration_ns: None,
            cut_off: false,
            warmup_ops: 0,
            hold_ns: 0,
            data: false,
            think_ns: 0,
            seed: 1,
            abandon_rate: 0.0,
            faults: FaultPlan::default(),
            max_virtual_ns: 600_000_000_000,
            nic: NicModel::default(),
        }
    }
}

impl Plan {
    /// A short run in which clients meet: a dozen of them on twenty locks, seven wants in ten exclusive. For tests.
    pub fn small(seed: u64) -> Self {
        Self {
            clients: 12,
            locks: 20,
            ops: 3_000,
            writes_percent: 70.0,
            seed,
            max_virtual_ns: 1_000_000_000,
            ..Self::default()
        }
    }
}
