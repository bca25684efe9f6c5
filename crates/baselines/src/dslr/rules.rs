//! Where the mutants of DSLR differ from it: each rule that safety rests on can be left out.

use super::word::{Counters, Ticket};
use std::fmt::Debug;

/// The rules of a DSLR lock. The defaults are the lock that is shipped.
pub trait Rules: Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A reader waits for the writers before it.
    const READER_WAITS: bool = true;
    /// A full word is set back only when every ticket is served.
    const RESET_WAITS: bool = true;

    /// What the word becomes when the one with `ticket` finds that nothing moves.
    fn cleared(ticket: Option<Ticket>, stuck: Counters, limit: u64) -> Counters {
        let _ = ticket;
        stuck.cleared(limit)
    }
}

/// The rules that are shipped.
#[derive(Clone, Copy, Debug)]
pub struct AsShipped;

impl Rules for AsShipped {
    const NAME: &'static str = "dslr";
}
