//! DrTM: its cases, and two that trust their clocks too much.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::drtm::{Drtm, DrtmParams, Rules};
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::Clock;

/// A tick of the explorer's clock.
const TICK: u64 = 1_000;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Drtm>();
    visit_mutants(visitor);
}

impl<R: Rules> Proof for Drtm<R> {
    fn cases() -> Vec<Case<DrtmParams>> {
        let (write, read) = (Want::exclusive(0), Want::shared(0));
        // Leases of a few ticks; nobody is slower than a tick; one clock is two ticks ahead of the other.
        let clock = Clock { tick_ns: TICK, delay_ticks: 1, max_ticks: 40 };
        let params = DrtmParams { lease_ns: 8 * TICK, hold_ns: TICK, drift_ns: 2 * TICK, skew_ns: 2 * TICK };
        vec![
            Case::new("three-writers").clients(3, &[write]).rounds(2),
            Case::new("two-locks-in-order").clients(3, &[write, Want::exclusive(1)]).space(Space::of(2)),
            Case::new("tries").clients(2, &[write]).clients(1, &[write.with(Patience::Try)]).rounds(2),
            Case::new("reader-and-writer")
                .clients(1, &[read])
                .clients(1, &[write])
                .rounds(2)
                .params(params.clone())
                .clock(clock),
            Case::new("readers-and-writer")
                .clients(1, &[read])
                .clients(1, &[write])
                .clients(1, &[read])
                .params(params)
                .clock(clock),
            // A client that reads for three ticks, which is more than the drift alone leaves room for.
            Case::new("slow-reader")
                .clients(1, &[read])
                .clients(1, &[write])
                .params(DrtmParams { lease_ns: 12 * TICK, hold_ns: 3 * TICK, drift_ns: TICK, skew_ns: TICK })
                .rounds(2)
                .clock(Clock { tick_ns: TICK, delay_ticks: 3, max_ticks: 80 }),
            Case::new("crash").clients(3, &[write]).crashes(1).may_hang(),
        ]
    }
}

crate::mutants! { Drtm: Rules, DrtmParams, &'static str;
    mutant TrustsClocks = "drtm-trusts-clocks", "drtm", Exclusion, { LEAVES_ROOM_FOR_DRIFT: false },
        "leaves no room for clocks that differ, and they do";
    mutant JoinsLate = "drtm-joins-late", "drtm", Exclusion, { LEAVES_ROOM_TO_HOLD: false },
        "a reader joins a lease that ends before it is done";
}
