//! The RPC lock: its cases.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::rpc::{Rpc, RpcParams};
use lockwright_fabric::Time;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::Timeouts;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Rpc>();
}

impl Proof for Rpc {
    fn cases() -> Vec<Case<RpcParams>> {
        let want = Want::exclusive(0);
        vec![
            Case::new("three-clients").clients(3, &[want]).rounds(2),
            Case::new("two-nodes").clients(2, &[want, Want::exclusive(1)]).space(Space::of(2).over(2)),
            Case::new("tries").clients(2, &[want]).clients(1, &[want.with(Patience::Try)]).rounds(2),
            Case::new("timeouts")
                .clients(2, &[want])
                .clients(1, &[want.with(Patience::Until(Time(0)))])
                .timeouts(Timeouts::Any),
            Case::new("crash").clients(2, &[want]).rounds(2).crashes(1).may_hang(),
        ]
    }
}
