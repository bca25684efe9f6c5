//! FARLock (OSDI '26): what is public beside its abstract is its program, whose scripts name CloudLab and no machine type. So it
//! stands on the network of the asymmetric lock, which it is compared with. Nothing is fitted.

use super::{Figure, Testbed};

pub(crate) const TESTBED: Testbed = Testbed {
    paper: "farlock",
    hardware: "not public; the asymmetric lock's network",
    fitted_to: "nothing",
    figures: &[Figure::held_out("farlock")],
};

/// Ten machines of twelve threads, of which one machine has the locks (`config.json`).
pub(crate) const LOCALS: usize = 12;
pub(crate) const REMOTES: usize = 108;
/// How long a local and a remote client hold a lock: 300 and 15,000 empty loops (`config.json`), about a cycle each at 3 GHz.
pub(crate) const HOLD_NS: [u64; 2] = [100, 5_000];
