//! RMA-RW: its cases and mutants.

use crate::{Case, Checker, Mutant, Proof, Visitor};
use lockwright_baselines::rma_rw::{RmaRw, RmaRwParams, Rules};
use lockwright_locks::{Patience, Space, Want};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<RmaRw>();
    let mutant = |of, caught_by, why| Mutant { of, caught_by, why };
    visitor.coarse_mutant::<RmaRw<ReaderIgnoresMode>>(mutant(
        "rma-rw",
        Checker::Exclusion,
        "a reader that counted itself in does not check the mode",
    ));
    visitor.coarse_mutant::<RmaRw<LooksOnce>>(mutant(
        "rma-rw",
        Checker::Exclusion,
        "a writer does not look again for readers that came before it set write mode",
    ));
    visitor.coarse_mutant::<RmaRw<StaysInWriteMode>>(mutant(
        "rma-rw",
        Checker::Deadlock,
        "the last writer leaves write mode on",
    ));
    visitor.mutant::<RmaRw<SetsBackBlindly>>(mutant(
        "rma-rw",
        Checker::Exclusion,
        "a reader sets the counts back without a CAS, and takes away the write mode of a writer that came meanwhile",
    ));
}

impl<R: Rules> Proof for RmaRw<R> {
    fn cases() -> Vec<Case<RmaRwParams>> {
        let (write, read) = (Want::exclusive(0), Want::shared(0));
        let two_in_a_row = RmaRwParams { writers_in_a_row: 2, ..RmaRwParams::default() };
        let few_readers = RmaRwParams { reader_limit: 2, ..two_in_a_row.clone() };
        vec![
            Case::new("three-writers").clients(3, &[write]).rounds(2).params(two_in_a_row.clone()),
            Case::new("writers-and-reader")
                .clients(2, &[write])
                .clients(1, &[read])
                .rounds(2)
                .params(two_in_a_row.clone()),
            Case::new("writers-and-readers").clients(2, &[write]).clients(2, &[read]).params(two_in_a_row),
            Case::new("three-writers-and-reader").clients(3, &[write]).clients(1, &[read]),
            Case::new("reader-limit")
                .clients(1, &[write])
                .clients(2, &[read])
                .rounds(2)
                .params(few_readers.clone()),
            Case::new("reader-limit-without-writers").clients(2, &[read]).rounds(4).params(few_readers),
            Case::new("two-locks-in-order").clients(2, &[write, Want::exclusive(1)]).space(Space::of(2)),
            Case::new("tries")
                .clients(1, &[write])
                .clients(1, &[write.with(Patience::Try)])
                .clients(1, &[read.with(Patience::Try)]),
            // One round each: an abandoned waiter still queues under its client's id.
            Case::new("cancel").clients(2, &[write]).clients(1, &[read]).cancellable(),
            Case::new("crash").clients(2, &[write]).clients(1, &[read]).crashes(1).may_hang(),
        ]
    }
}

/// RMA-RW whose readers come in whatever the mode.
#[derive(Debug)]
pub(crate) struct ReaderIgnoresMode;

impl Rules for ReaderIgnoresMode {
    const NAME: &'static str = "rma-rw-reader-ignores-mode";
    const READER_CHECKS_MODE: bool = false;
}

/// RMA-RW whose writers look for readers only before they set write mode.
#[derive(Debug)]
pub(crate) struct LooksOnce;

impl Rules for LooksOnce {
    const NAME: &'static str = "rma-rw-looks-once";
    const WRITER_LOOKS_AGAIN: bool = false;
}

/// RMA-RW that stays in write mode when the queue is empty.
#[derive(Debug)]
pub(crate) struct StaysInWriteMode;

impl Rules for StaysInWriteMode {
    const NAME: &'static str = "rma-rw-stays-in-write-mode";
    const GOES_BACK_TO_READ_MODE: bool = false;
}

/// RMA-RW whose readers set the counts back without looking whether a writer has come.
#[derive(Debug)]
pub(crate) struct SetsBackBlindly;

impl Rules for SetsBackBlindly {
    const NAME: &'static str = "rma-rw-sets-back-blindly";
    const SETS_BACK_BY_CAS: bool = false;
}
