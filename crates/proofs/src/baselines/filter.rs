//! The filter lock: its cases.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::filter::{Filter, FilterParams};
use lockwright_fabric::NodeId;
use lockwright_locks::{Space, Want};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Filter>();
}

impl Proof for Filter {
    fn cases() -> Vec<Case<FilterParams>> {
        let want = Want::exclusive(0);
        let of = |clients| FilterParams { clients, pace_ns: 0 };
        vec![
            Case::new("two-clients").params(of(2)).clients(2, &[want]).rounds(2),
            Case::new("three-clients").params(of(3)).clients(3, &[want]),
            Case::new("local-and-remote")
                .params(of(3))
                .clients(1, &[want])
                .at_home(NodeId(0))
                .clients(2, &[want])
                .weak_scope(),
            Case::new("two-locks-in-order")
                .params(of(2))
                .clients(2, &[want, Want::exclusive(1)])
                .space(Space::of(2)),
        ]
    }
}
