//! What goes wrong in a simulation, as data: by plan (this client, at that verb) or by rate and seed.

use lockwright_fabric::{NodeId, PeerId};

/// Everything that will go wrong in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Clients that stop for ever.
    pub crashes: Vec<ClientFault>,
    /// Clients that stop, and come back later as if nothing had happened: zombies.
    pub pauses: Vec<Pause>,
    /// Chance that any one verb is its client's last.
    pub crash_rate: f64,
    /// Chance that a client pauses at any one verb, and for how long.
    pub pause_rate: f64,
    /// How long such a pause is, in nanoseconds.
    pub pause_ns: u64,
    /// Memory nodes that die: from this time on, their verbs fail with `NodeLost`, and clients and roles there are gone.
    pub node_deaths: Vec<(NodeId, u64)>,
    /// Roles, by their number, that are restarted at this time and lose what they kept in volatile memory.
    pub restarts: Vec<(usize, u64)>,
    /// What happens to datagrams. Reliable messages are only delayed.
    pub network: NetworkFaults,
    /// How far a client's clock may run fast or slow, in parts per million.
    pub clock_drift_ppm: u32,
}

/// A client stops at its `verb`-th verb (counted from zero), before or after it takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFault {
    /// Who.
    pub client: PeerId,
    /// At which of its verbs.
    pub verb: u64,
    /// Before or after the verb.
    pub when: CrashPoint,
}

/// Which side of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The verb never leaves.
    Before,
    /// The verb takes effect, but the client never learns of it.
    After,
}

/// A client stops at a verb, for `ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Where.
    pub at: ClientFault,
    /// For how long.
    pub ns: u64,
}

/// Rates, between 0 and 1, of what happens to a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// It never arrives.
    pub loss: f64,
    /// It arrives twice.
    pub duplication: f64,
    /// It arrives after the one sent next.
    pub reorder: f64,
    /// It takes up to this much longer, at random.
    pub extra_delay_ns: u64,
}

impl FaultPlan {
    /// Whether nothing goes wrong at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
