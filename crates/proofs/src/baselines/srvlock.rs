//! The lock managers that FissLock is compared with: SrvLock, ParLock and NetLock. Their cases.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::netlock::{NetLock, NetParams};
use lockwright_baselines::parlock::{ParLock, ParParams};
use lockwright_baselines::srvlock::{SrvLock, SrvParams};
use lockwright_fabric::Time;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::Timeouts;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<SrvLock>();
    visitor.protocol::<ParLock>();
    visitor.protocol::<NetLock>();
}

/// Cases for any of the three.
fn cases<P: Default>(space: Space) -> Vec<Case<P>> {
    let (write, read) = (Want::exclusive(0), Want::shared(0));
    let soon = write.with(Patience::Until(Time(1)));
    vec![
        Case::new("writers").clients(3, &[write]).rounds(2).space(space),
        Case::new("readers-and-writers").clients(2, &[read]).clients(2, &[write]).space(space),
        Case::new("two-locks").clients(2, &[write, Want::shared(1)]).clients(1, &[read]).space(space),
        Case::new("timeouts")
            .clients(2, &[write])
            .clients(1, &[soon])
            .space(space)
            .timeouts(Timeouts::WhenStuck),
        Case::new("cancel").clients(2, &[write]).cancellable().clients(1, &[read]).space(space),
        Case::new("crash").clients(2, &[write]).clients(1, &[read]).crashes(1).space(space),
    ]
}

impl Proof for SrvLock {
    fn cases() -> Vec<Case<SrvParams>> {
        cases(Space::of(2))
    }
}

impl Proof for ParLock {
    fn cases() -> Vec<Case<ParParams>> {
        cases(Space::of(2).over(2))
    }
}

impl Proof for NetLock {
    fn cases() -> Vec<Case<NetParams>> {
        let profiled = |hot_from, profile_every| NetParams { hot_locks: 1, hot_from, profile_every };
        let mut all: Vec<_> = cases(Space::of(2))
            .into_iter()
            .map(|case: Case<NetParams>| case.params(profiled(0, 0)))
            .collect();
        let other = Want::exclusive(1);
        all.extend([
            Case::new("on-the-server")
                .clients(3, &[Want::exclusive(0)])
                .params(profiled(1, 0))
                .space(Space::of(2)),
            Case::new("moves")
                .clients(2, &[other])
                .clients(1, &[Want::exclusive(0)])
                .rounds(3)
                .params(profiled(0, 2))
                .space(Space::of(2)),
            Case::new("moves-and-crash")
                .clients(2, &[other])
                .clients(1, &[Want::shared(0)])
                .rounds(2)
                .crashes(1)
                .params(profiled(0, 2))
                .space(Space::of(2)),
        ]);
        all
    }
}
