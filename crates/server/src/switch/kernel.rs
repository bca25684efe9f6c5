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
    /// Machine `mid` has this key, and no address yet; `None`: it is gone.
    fn peer(&mut self, mid: u8, key: Option<Key>);
    /// What it counted. Recoveries are not its own.
    fn counts(&self) -> Counts;
}
