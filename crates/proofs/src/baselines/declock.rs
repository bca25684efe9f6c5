//! DecLock: its cases and mutants.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::declock::{DecLock, DecLockParams, Rules};
use lockwright_locks::{Space, Want};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<DecLock>();
    visit_mutants(visitor);
}

impl<R: Rules> Proof for DecLock<R> {
    fn cases() -> Vec<Case<DecLockParams>> {
        let (write, read) = (Want::exclusive(0), Want::shared(0));
        // As few entries as there may be, so that the queue goes around.
        let four = DecLockParams { capacity: 4 };
        let two = DecLockParams { capacity: 2 };
        vec![
            Case::new("three-writers").clients(3, &[write]).rounds(2).bypass(2).params(four.clone()),
            Case::new("writer-and-readers")
                .clients(1, &[write])
                .clients(2, &[read])
                .rounds(2)
                .params(four.clone()),
            Case::new("writers-and-reader")
                .clients(2, &[write])
                .clients(1, &[read])
                .rounds(2)
                .params(four.clone()),
            Case::new("writers-and-readers").clients(2, &[write]).clients(2, &[read]).params(four.clone()),
            Case::new("around").clients(1, &[write]).clients(1, &[read]).rounds(4).params(two),
            Case::new("two-locks-in-order")
                .clients(2, &[write, Want::exclusive(1)])
                .space(Space::of(2))
                .params(four.clone()),
            Case::new("two-nodes")
                .clients(2, &[write, Want::exclusive(1)])
                .space(Space::of(2).over(2))
                .params(four.clone()),
            // One round each: an abandoned waiter still queues under its client's id.
            Case::new("cancel").clients(2, &[write]).clients(1, &[read]).cancellable().params(four.clone()),
            Case::new("crash").clients(2, &[write]).clients(1, &[read]).crashes(1).may_hang().params(four),
        ]
    }
}

crate::mutants! { DecLock: Rules, DecLockParams, &'static str;
    coarse_mutant IgnoresWriters = "declock-ignores-writers", "declock", Exclusion, { READER_SEES_WRITERS: false },
        "a reader takes the lock although a writer holds it or waits";
    coarse_mutant LeavesUnwritten = "declock-leaves-unwritten", "declock", Deadlock, { WRITER_WAITS_FOR_ENTRY: false },
        "a writer that leaves takes an entry that is still being written for nobody";
    mutant CountsNobody = "declock-counts-nobody", "declock", Deadlock, { READER_COUNTS_WRITERS: false },
        "a reader that leaves takes a writer's entry that is still being written for a reader that holds the lock";
    mutant TakesOldEntries = "declock-takes-old-entries", "declock", Deadlock, { CHECKS_LAP: false },
        "an entry of an earlier lap is taken for the one that is waited for";
}
