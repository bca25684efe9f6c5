//! RMA-RW: its cases and mutants.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::rma_rw::{RmaRw, RmaRwParams, Rules};
use lockwright_locks::{Patience, Space, Want};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<RmaRw>();
    visit_mutants(visitor);
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

crate::mutants! { RmaRw: Rules, RmaRwParams, &'static str;
    coarse_mutant ReaderIgnoresMode = "rma-rw-reader-ignores-mode", "rma-rw", Exclusion, { READER_CHECKS_MODE: false },
        "a reader that counted itself in does not check the mode";
    coarse_mutant LooksOnce = "rma-rw-looks-once", "rma-rw", Exclusion, { WRITER_LOOKS_AGAIN: false },
        "a writer does not look again for readers that came before it set write mode";
    coarse_mutant StaysInWriteMode = "rma-rw-stays-in-write-mode", "rma-rw", Deadlock, { GOES_BACK_TO_READ_MODE: false },
        "the last writer leaves write mode on";
    mutant SetsBackBlindly = "rma-rw-sets-back-blindly", "rma-rw", Exclusion, { SETS_BACK_BY_CAS: false },
        "a reader sets the counts back without a CAS, and takes away the write mode of a writer that came meanwhile";
}
