//! Citron's tunables.

use crate::protocol::Reason;

/// Tunables of a Citron space, the same for all its clients.
///
/// ```
/// use lockwright_locks::citron::{Params, Synchrony, Timing};
/// let papers = Params { synchrony: Synchrony::Wait(Timing::default()), ..Params::default() };
/// assert_eq!((papers.k, papers.m), (2, 4));
/// assert!(papers.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// How requests on one path of the tree learn of each other.
    pub synchrony: Synchrony,
    /// Nodes that a range is split into, at most.
    pub k: u32,
    /// The meet-in-the-middle distance: a request notifies every m-th ancestor.
    pub m: u32,
    /// Units of a leaf, a power of two up to 64. Smaller ones are for small trees.
    pub leaf_units: u32,
    /// The level whose nodes each have a word that fencing tokens come from; 0 gives no tokens. One word for the
    /// whole tree (level 1) would be hot.
    pub token_level: u32,
    /// After so many failed attempts at a node, a client locks a larger one, where it can queue; 0: never.
    pub escalate_after: u32,
    /// The longest that a client may hold a range, and that a step of the protocol takes it (T_lease, §3.10). A client that
    /// waits for three of these where nothing moves takes away what the dead have left. 0: nobody recovers anything.
    ///
    /// A client that was taken for dead and was not does no harm on a fabric that can compare before it adds, if leaves
    /// have at most 32 units (`leaf_units`; 4 on reader-writer trees): then every word has room for a generation. Else
    /// it goes by its clock, and touches nothing after its lease.
    pub lease_ns: u64,
    /// Wait mode: phases in batches, and the four leaves below a node locked explicitly, instead of one by one and T_wait
    /// (§3.8).
    pub fast_path: bool,
    /// How many units the tree has in the beginning, about: it grows to all the units of the lock in steps of 4^m. 0: it
    /// has all of them from the start. Reader-writer trees do not grow.
    pub start_units: u64,
    /// When the tree grows.
    pub growth: Growth,
}

/// When a tree grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Growth {
    /// When a client is notified to let it ([`CitronClient::grow`](super::CitronClient::grow)); a thread in the background,
    /// say, as in the paper.
    #[default]
    Asked,
    /// A client that asks for a range past the end lets the tree grow first.
    AtOnce,
    /// The same; and a client that gives such a range back lets it shrink, if nobody else uses it.
    Elastic,
}

/// How requests on one path of the tree learn of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchrony {
    /// Tell the ancestors, then look at them, and yield to the client that is there. Needs no clock.
    #[default]
    Handshake,
    /// As printed: look at the ancestors, then tell them; large requests let time pass, small ones that took too long
    /// abort.
    Wait(Timing),
}

/// What wait mode rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a request at an internal node waits for requests below to make themselves known (T_wait).
    pub t_wait_ns: u64,
    /// How much two clocks drift apart, parts per million (δ).
    pub drift_ppm: u64,
}

impl Default for Timing {
    /// §3.5.5: 15 µs, 100 ppm.
    fn default() -> Self {
        Self { t_wait_ns: 15_000, drift_ppm: 100 }
    }
}

impl Timing {
    /// The longest that a request may take from its look at the ancestors to its notes there (Inequation 1).
    pub const fn limit_ns(&self) -> u64 {
        self.t_wait_ns - self.t_wait_ns * self.drift_ppm / 1_000_000
    }
}

impl Default for Params {
    fn default() -> Self {
        Self {
            synchrony: Synchrony::Handshake,
            k: 2,
            m: 4,
            leaf_units: 64,
            token_level: 4,
            escalate_after: 16,
            lease_ns: 1_000_000_000,
            fast_path: true,
            start_units: 0,
            growth: Growth::Asked,
        }
    }
}

/// The largest k.
pub const MAX_K: usize = 8;
/// The largest m: a request at the top looks at (4^m − 1) / 3 nodes.
pub const MAX_M: u32 = 8;

impl Params {
    /// Whether the values make sense.
    ///
    /// # Errors
    /// Says which does not.
    pub const fn check(&self) -> Result<(), &'static Reason> {
        if self.k == 0 || self.k as usize > MAX_K {
            return Err(&Reason("k, the number of nodes per range, must be from 1 to 8"));
        }
        if self.m == 0 || self.m > MAX_M {
            return Err(&Reason("m, the meet-in-the-middle distance, must be from 1 to 8"));
        }
        if self.leaf_units > 64 || !self.leaf_units.is_power_of_two() {
            return Err(&Reason("a leaf must have 1, 2, 4, 8, 16, 32 or 64 units"));
        }
        if let Synchrony::Wait(timing) = self.synchrony
            && timing.drift_ppm >= 1_000_000
        {
            return Err(&Reason("the clock drift must be below 1,000,000 parts per million"));
        }
        Ok(())
    }
}
