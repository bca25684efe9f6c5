//! The linked list by one-sided verbs: its cases, and two lists with one thing wrong.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::lld::{Lld, LldParams, Rules};
use lockwright_fabric::Time;
use lockwright_fabric::observe::Mode;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::{Round, Timeouts};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Lld>();
    visit_mutants(visitor);
}

fn case(name: &'static str, nodes_each: u32) -> Case<LldParams> {
    Case::new(name).params(LldParams { clients: 4, nodes_each }).space(Space::of(1).units(8))
}

const fn range(start: u64, end: u64) -> Want {
    Want::range(0, Mode::Exclusive, start, end)
}

impl Proof for Lld {
    fn cases() -> Vec<Case<LldParams>> {
        vec![
            case("overlapping", 1)
                .clients(1, &[range(0, 3)])
                .clients(1, &[range(2, 6)])
                .clients(1, &[range(5, 8)]),
            // Every client has one node, so each round begins with making sure that it is out of the list.
            case("nodes-used-again", 1).clients(2, &[range(2, 4)]).rounds(3),
            case("neighbours-used-again", 1)
                .clients(1, &[range(0, 2)])
                .clients(1, &[range(2, 4)])
                .clients(1, &[range(4, 6)])
                .rounds(2),
            case("whole-and-parts", 1)
                .clients(1, &[Want::exclusive(0)])
                .clients(1, &[range(0, 1)])
                .clients(1, &[range(7, 8)]),
            case("two-at-once", 2).clients(1, &[range(0, 2), range(4, 6)]).clients(2, &[range(1, 5)]),
            case("two-nodes", 1)
                .clients(2, &[range(0, 2), Want::range(1, Mode::Exclusive, 0, 2)])
                .space(Space::of(2).units(8).over(2)),
            case("tries", 1)
                .clients(1, &[range(0, 4).with(Patience::Try)])
                .clients(2, &[range(2, 6)])
                .rounds(2),
            case("timeouts", 1)
                .clients(1, &[range(0, 4).with(Patience::Until(Time(0)))])
                .clients(2, &[range(2, 6)])
                .timeouts(Timeouts::Any),
            case("cancel", 2).clients(1, &[range(0, 4)]).cancellable().clients(1, &[range(2, 6)]),
            case("crash", 1).clients(2, &[range(0, 4)]).clients(1, &[range(2, 6)]).crashes(1).may_hang(),
        ]
    }
}

crate::mutants! { Lld: Rules, LldParams, &'static str;
    mutant PassesMarked = "lld-passes-marked", "lld", Exclusion, { LOOKS_AT_MARK: false },
        "puts its node behind one that has been given back, and may be out of the list",
        vec![case("behind-a-marked-one", 1).clients(1, &[range(0, 2)]).clients(2, &[range(2, 4)])];
    mutant ReusesAtOnce = "lld-reuses-at-once", "lld", Livelock, { WAITS_UNTIL_OUT: false },
        "uses a node again while it is still in the list",
        {
            let moves = case("moves-left", 1).clients(1, &[range(4, 6)]).clients(1, &[range(2, 4)]);
            let mut moves = moves.clients(1, &[range(6, 8)]);
            // The first client comes back further left.
            moves.clients[0].rounds.push(Round { wants: vec![range(0, 2)], ..Default::default() });
            vec![moves]
        };
}
