//! DSLR: its cases and mutants.

use crate::{Case, Checker, Mutant, Proof, Visitor};
use lockwright_baselines::dslr::rules::Rules;
use lockwright_baselines::dslr::word::{Counters, Ticket};
use lockwright_baselines::dslr::{Dslr, DslrParams};
use lockwright_fabric::observe::Mode;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::Timeouts;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Dslr>();
    let mutant = |of, caught_by, why| Mutant { of, caught_by, why };
    visitor.coarse_mutant::<Dslr<ReaderIgnoresWriters>>(mutant(
        "dslr",
        Checker::Exclusion,
        "a reader does not wait for the writers before it",
    ));
    visitor.mutant::<Dslr<ResetsAtOnce>>(mutant(
        "dslr",
        Checker::Exclusion,
        "a full word is set back while others hold the lock",
    ));
    visitor.mutant::<Dslr<ReaderClearsOwn>>(mutant(
        "dslr",
        Checker::Exclusion,
        "a reader that clears a stuck lock passes over itself and those before it (as in ShiftLock's artifact)",
    ));
}

impl<R: Rules> Proof for Dslr<R> {
    fn cases() -> Vec<Case<DslrParams>> {
        let (write, read) = (Want::exclusive(0), Want::shared(0));
        // Two tickets of a mode, so that four clients come to the end of them.
        let few_tickets = DslrParams { limit: 2, ..DslrParams::default() };
        vec![
            Case::new("four-writers").clients(4, &[write]).rounds(2),
            Case::new("readers-and-writers").clients(2, &[write]).clients(2, &[read]).rounds(2),
            // A client whose first verb comes later is served later, and every client has one ticket at a time.
            Case::new("fifo").clients(2, &[write]).clients(2, &[read]).rounds(2).bypass(3),
            Case::new("two-locks-in-order").clients(3, &[write, Want::exclusive(1)]).space(Space::of(2)),
            Case::new("two-nodes").clients(3, &[write, Want::exclusive(1)]).space(Space::of(2).over(2)),
            Case::new("tries")
                .clients(1, &[write])
                .clients(1, &[read])
                .clients(1, &[write.with(Patience::Try)])
                .clients(1, &[read.with(Patience::Try)])
                .rounds(2),
            Case::new("cancel").clients(2, &[write]).clients(1, &[read]).cancellable().clients(1, &[write]),
            Case::new("overflow")
                .clients(2, &[write])
                .clients(1, &[read])
                .rounds(3)
                .params(few_tickets.clone()),
            Case::new("overflow-readers")
                .clients(1, &[write])
                .clients(2, &[read])
                .rounds(3)
                .params(few_tickets.clone()),
            // A grant leaves no trace in the word, so a client that clears it must know that the living have looked: leases
            // are longer than everything they do.
            Case::new("crash")
                .clients(2, &[write])
                .clients(2, &[read])
                .crashes(1)
                .timeouts(Timeouts::WhenStuck),
            Case::new("crash-twice")
                .clients(2, &[write])
                .clients(2, &[read])
                .crashes(2)
                .timeouts(Timeouts::WhenStuck),
            Case::new("crash-overflow")
                .clients(2, &[write])
                .clients(1, &[read])
                .rounds(2)
                .params(few_tickets)
                .crashes(1)
                .timeouts(Timeouts::WhenStuck),
        ]
    }

    /// As the cases with a crash of their own: leases are longer than everything that the living do.
    fn with_recovery(case: Case<DslrParams>) -> Case<DslrParams> {
        case.timeouts(Timeouts::WhenStuck)
    }
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

/// A client that clears the lock counts itself and those before it as served (the step of ShiftLock's artifact).
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
