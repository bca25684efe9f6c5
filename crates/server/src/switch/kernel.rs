//! A decider that is somewhere else than in this process: what the control plane does to it, and reads of it.
//!
//! The state machine in `core` keeps the registers as they are after a recovery; from there on the other decider's are
//! what counts, and packets do not come here.

use super::core::Counts;
use lockwright_locks::fisslock::datagram::Key;
use lockwright_locks::fisslock::{Decider, Shipped};
use std::fmt::Debug;

/// A decider elsewhere. Nothing here can fail halfway: what goes wrong leaves it closed, and is logged.
pub(super) trait Elsewhere: Debug + Send {
    /// Where it is, in a few words.
    fn place(&self) -> &str;
    /// Its registers become those of `decider`; packets that come meanwhile are dropped.
    fn load(&mut self, decider: &Decider<Shipped>);
    /// Stamps go on above `stamp`, if they are not there yet.
    fn raise_stamp(&mut self, stamp: u64);
    /// How many grants were stamped.
    fn stamp(&self) -> u64;
    /// Whether nobody holds this lock. `false` also if that cannot be read.
    fn is_free(&self, lid: u64) -> bool;
    /// Machine `mid` has this key, and no address yet; `None`: it is gone.
    fn peer(&mut self, mid: u8, key: Option<Key>);
    /// What it counted. Recoveries, and packets that did not come to it, are not its own.
    fn counts(&self) -> Counts;
}

#[cfg(test)]
mod tests {
    use super::super::core::Core;
    use super::super::memory::{Memory, Past};
    use super::*;
    use lockwright_locks::fisslock::datagram::Limits;
    use std::time::Duration;

    #[derive(Debug)]
    struct Idle;

    impl Elsewhere for Idle {
        fn place(&self) -> &'static str {
            "a test"
        }

        fn load(&mut self, _: &Decider<Shipped>) {}

        fn raise_stamp(&mut self, _: u64) {}

        fn stamp(&self) -> u64 {
            0
        }

        fn is_free(&self, _: u64) -> bool {
            true
        }

        fn peer(&mut self, _: u8, _: Option<Key>) {}

        fn counts(&self) -> Counts {
            Counts { received: 7, ..Counts::default() }
        }
    }

    /// Those of a VLAN, with IP options, in fragments, or by another interface.
    #[test]
    fn packets_that_come_past_the_decider_in_the_kernel_are_counted() {
        let (memory, _) = Memory::begin(None, Duration::from_secs(8), 1).unwrap();
        let limits = Limits { locks: 1, lanes: 1 };
        let mut core = Core::new(limits, memory, Past::default(), || Key([1, 2]), Some(Box::new(Idle)));
        let mut sends = Vec::new();
        core.datagram(&[0; 56], "10.0.0.1:9".parse().unwrap(), &mut sends);
        let counts = core.report().counts;
        assert_eq!((counts.received, counts.astray, sends), (7, 1, vec![]));
    }
}
