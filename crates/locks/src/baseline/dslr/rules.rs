//! Where the mutants of DSLR differ from it: each rule that safety rests on can be left out.

use super::word::{Counters, Ticket};
use lockwright_fabric::observe::Mode;
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

/// A reader that does not look at how many writers are before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderIgnoresWriters;

impl Rules for ReaderIgnoresWriters {
    const NAME: &'static str = "dslr-reader-ignores-writers";
    const READER_WAITS: bool = false;
}

/// A full word is set back while others still hold the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResetsAtOnce;

impl Rules for ResetsAtOnce {
    const NAME: &'static str = "dslr-resets-at-once";
    const RESET_WAITS: bool = false;
}

/// Whoever clears the lock counts itself and those before it as served (the step of ShiftLock's artifact).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderClearsOwn;

impl Rules for ReaderClearsOwn {
    const NAME: &'static str = "dslr-reader-clears-own";

    fn cleared(ticket: Option<Ticket>, stuck: Counters, limit: u64) -> Counters {
        match ticket {
            Some(Ticket { mode: Mode::Exclusive, x, s }) => Counters { n_x: x + 1, n_s: s, ..stuck },
            Some(Ticket { mode: Mode::Shared, x, s }) => Counters { n_x: x, n_s: s + 1, ..stuck },
            None => stuck.cleared(limit),
        }
    }
}
