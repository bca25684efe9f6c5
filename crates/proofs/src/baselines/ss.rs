//! Static segments: its cases.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::ss::{SsParams, StaticSegments};
use lockwright_fabric::observe::Mode;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::Timeouts;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<StaticSegments>();
}

impl Proof for StaticSegments {
    fn cases() -> Vec<Case<SsParams>> {
        let params = SsParams { segment_units: 2, ..SsParams::default() };
        let case = |name| Case::new(name).params(params.clone()).space(Space::of(1).units(6));
        let range = |start, end| Want::range(0, Mode::Exclusive, start, end);
        let read = |start, end| Want::range(0, Mode::Shared, start, end);
        vec![
            case("overlapping")
                .clients(1, &[range(0, 3)])
                .clients(1, &[range(2, 6)])
                .clients(1, &[range(5, 6)]),
            case("crossing-again").clients(2, &[range(1, 3)]).rounds(2),
            case("readers-and-a-writer").clients(2, &[read(0, 6)]).clients(1, &[range(1, 3)]),
            case("whole")
                .clients(1, &[Want::exclusive(0)])
                .clients(1, &[range(4, 5)])
                .clients(1, &[range(0, 1)]),
            case("tries").clients(1, &[range(0, 3).with(Patience::Try)]).clients(1, &[range(2, 3)]),
            // A dead client's segments are cleared one by one, each after its own lease.
            case("crash")
                .clients(1, &[range(0, 3)])
                .clients(1, &[range(2, 6)])
                .crashes(1)
                .timeouts(Timeouts::WhenStuck)
                .may_hang(),
        ]
    }

    fn refuses_crash(_: &Case<SsParams>) -> Option<&'static str> {
        Some("a client that waits for a dead one's segment cannot keep its leases of the segments before it")
    }
}
