//! MCS: its cases, and two queues with one thing wrong.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::mcs::{Mcs, Rules};
use lockwright_locks::{Patience, Space, Want};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Mcs>();
    visit_mutants(visitor);
}

impl<R: Rules> Proof for Mcs<R> {
    fn cases() -> Vec<Case<()>> {
        let want = Want::exclusive(0);
        vec![
            Case::new("four-clients").clients(4, &[want]).rounds(2),
            // A queue: a client whose first verb comes later is served later.
            Case::new("fifo").clients(4, &[want]).rounds(2).bypass(3),
            Case::new("two-locks-in-order").clients(3, &[want, Want::exclusive(1)]).space(Space::of(2)),
            Case::new("two-nodes").clients(3, &[want, Want::exclusive(1)]).space(Space::of(2).over(2)),
            Case::new("tries").clients(2, &[want]).clients(2, &[want.with(Patience::Try)]).rounds(2),
            // One round each: an abandoned waiter still queues under its client's id.
            Case::new("cancel").clients(3, &[want]).cancellable().clients(1, &[want]),
            Case::new("crash").clients(3, &[want]).rounds(2).crashes(1).may_hang(),
        ]
    }
}

crate::mutants! { Mcs: Rules, (), &'static str;
    coarse_mutant ForgetsSuccessor = "mcs-forgets-successor", "mcs", Deadlock, { WAITS_FOR_SUCCESSOR: false },
        "release does not wait for the Successor message (Alg. 1 line 10)";
    coarse_mutant JumpsQueue = "mcs-jumps-queue", "mcs", Exclusion, { WAITS_FOR_HANDOVER: false },
        "a queued client does not wait for the handover (Alg. 1 line 5)";
}
