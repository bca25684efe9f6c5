//! What the explorer runs for Citron: three-level trees, requests at every level.

use super::params::{Params, Synchrony, Timing};
use crate::case::{Case, Clock};
use crate::protocol::{Patience, Space, Want};
use lockwright_fabric::Time;
use lockwright_fabric::observe::Mode;

/// Three levels: a root, four internal nodes, sixteen leaves of one unit.
pub(super) const UNITS: u64 = 16;

/// The tunables of most cases: leaves of one unit, no tokens.
pub(super) fn small(m: u32) -> Params {
    Params { m, leaf_units: 1, token_level: 0, escalate_after: 0, ..Params::default() }
}

/// The same in wait mode.
pub(super) fn timed(m: u32, t_wait_ns: u64) -> Params {
    Params { synchrony: Synchrony::Wait(Timing { t_wait_ns, drift_ppm: 0 }), ..small(m) }
}

/// A case on a small tree.
pub(super) fn case(name: &'static str, params: Params) -> Case<Params> {
    Case::new(name).params(params).space(Space::of(1).units(UNITS))
}

/// A range of the one lock.
pub(super) const fn range(start: u64, end: u64) -> Want {
    Want::range(0, Mode::Exclusive, start, end)
}

/// The three levels, all on one path.
pub(super) const ROOT: Want = range(0, 16);
/// The leftmost internal node.
pub(super) const INNER: Want = range(0, 4);
/// The leftmost leaf.
pub(super) const LEAF: Want = range(0, 1);

pub(super) fn cases() -> Vec<Case<Params>> {
    let mut cases = Vec::new();
    for m in [1, 2] {
        let name = |one, two| if m == 1 { one } else { two };
        cases.push(
            case(name("three-levels-m1", "three-levels-m2"), small(m))
                .clients(1, &[ROOT])
                .clients(1, &[INNER])
                .clients(1, &[LEAF]),
        );
        cases.push(
            case(name("two-above-two-below-m1", "two-above-two-below-m2"), small(m))
                .clients(1, &[ROOT])
                .clients(1, &[INNER])
                .clients(2, &[LEAF]),
        );
    }
    cases.push(case("leaf-and-root-again", small(1)).clients(1, &[ROOT]).clients(1, &[LEAF]).rounds(2));
    cases.push(case("two-roots-and-a-leaf", small(1)).clients(2, &[ROOT]).clients(1, &[LEAF]));
    let _ = (Patience::Try, Time(0));
    let _ = Clock { tick_ns: 1, delay_ticks: 1, max_ticks: 1 };
    cases
}
