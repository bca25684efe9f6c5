//! Range locks on a server, by list, interval tree and maple tree: their cases.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::served::{
    Served, ServedParams, Store, interval::Interval, list::List, maple::Maple,
};
use lockwright_fabric::Time;
use lockwright_fabric::observe::Mode;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::Timeouts;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Served<List>>();
    visitor.protocol::<Served<Interval>>();
    visitor.protocol::<Served<Maple>>();
}

impl<S: Store> Proof for Served<S> {
    fn cases() -> Vec<Case<ServedParams>> {
        let case = |name| Case::new(name).space(Space::of(1).units(8));
        let range = |start, end| Want::range(0, Mode::Exclusive, start, end);
        vec![
            case("overlapping")
                .clients(1, &[range(0, 3)])
                .clients(1, &[range(2, 6)])
                .clients(1, &[range(5, 8)])
                .rounds(2),
            case("whole-and-parts").clients(1, &[Want::exclusive(0)]).clients(1, &[range(0, 1)]).rounds(2),
            case("two-nodes")
                .clients(2, &[range(0, 2), Want::range(1, Mode::Exclusive, 0, 2)])
                .space(Space::of(2).units(8).over(2)),
            case("tries").clients(1, &[range(0, 4).with(Patience::Try)]).clients(2, &[range(2, 6)]),
            case("timeouts")
                .clients(1, &[range(0, 4).with(Patience::Until(Time(0)))])
                .clients(1, &[range(2, 6)])
                .timeouts(Timeouts::Any),
            case("crash").clients(2, &[range(0, 4)]).clients(1, &[range(2, 6)]).crashes(1),
        ]
    }
}
