//! What the explorer runs for Citron's tree with membership: three-level trees, ranges that overlap, nest and touch, and one
//! client that is killed anywhere.

use super::MemberParams;
use crate::member_cases::{gives_up, hasty, killed, soon};
use lockwright_fabric::observe::Mode;
use lockwright_locks::{Change, Patience, Space, Want};
use lockwright_sim::case::{Case, Timeouts};

/// Three levels: a root, four internal nodes, sixteen leaves.
const UNITS: u64 = 16;
/// Leaves right under the root.
const FEW_UNITS: u64 = 4;

pub(crate) const fn write(start: u64, end: u64) -> Want {
    Want::range(0, Mode::Exclusive, start, end)
}

pub(crate) const fn read(start: u64, end: u64) -> Want {
    Want::range(0, Mode::Shared, start, end)
}

const fn tries(want: Want) -> Want {
    want.with(Patience::Try)
}

pub(crate) const ROOT: Want = write(0, 16);
pub(crate) const INNER: Want = write(0, 4);
pub(crate) const LEAF: Want = write(0, 1);
/// The leaves on both sides of a boundary of internal nodes.
const TWO_LEAVES: Want = write(3, 5);
/// A leaf and the internal node to its right.
const LEAF_AND_INNER: Want = write(3, 8);

/// Each of these once, on a tree of three levels.
pub(crate) fn mixed(name: &'static str, m: u32, wants: &[Want]) -> Case<MemberParams> {
    on(UNITS, name, m, wants)
}

/// Each of these once, on a root with four leaves.
pub(crate) fn flat(name: &'static str, wants: &[Want]) -> Case<MemberParams> {
    on(FEW_UNITS, name, 1, wants)
}

fn on(units: u64, name: &'static str, m: u32, wants: &[Want]) -> Case<MemberParams> {
    let params =
        MemberParams { k: 2, m, clients: wants.len() as u64, sequence_bits: 3, ..MemberParams::default() };
    let case = Case::new(name).params(params).space(Space::of(1).units(units)).tokens();
    let case = wants.iter().fold(case, |case, want| case.clients(1, &[*want]));
    case.timeouts(Timeouts::WhenStuck)
}

/// The first unit was left behind by a client that is dead.
pub(crate) fn left_by_the_dead(mut case: Case<MemberParams>) -> Case<MemberParams> {
    case.params.left_by_the_dead = true;
    case.checks.quiet = false; // the end is not as the beginning
    case
}

/// The same, and it was in the middle of it.
pub(crate) fn left_in_the_middle(mut case: Case<MemberParams>) -> Case<MemberParams> {
    case.params.left_in_the_middle = true;
    left_by_the_dead(case)
}

pub(crate) fn all() -> Vec<Case<MemberParams>> {
    let mut cases = healthy();
    cases.extend(with_deaths());
    cases
}

fn healthy() -> Vec<Case<MemberParams>> {
    vec![
        mixed("nested-m1", 1, &[ROOT, INNER, LEAF]),
        mixed("nested-m2", 2, &[ROOT, INNER, LEAF]),
        mixed("nested-readers", 1, &[read(0, 16), INNER, read(0, 1)]),
        flat("same-leaf", &[write(0, 1), write(0, 1), tries(read(0, 1))]),
        flat("same-root", &[write(0, 4), read(0, 4), tries(write(0, 4))]),
        flat("writer-among-readers", &[write(0, 4), read(0, 4), read(0, 4)]),
        mixed("touching", 2, &[write(0, 2), write(2, 3), write(3, 4)]),
        mixed("overlapping", 1, &[TWO_LEAVES, LEAF_AND_INNER]),
        mixed("crossing", 1, &[LEAF_AND_INNER, write(4, 9)]),
        mixed("two-nodes-and-above", 2, &[TWO_LEAVES, INNER, ROOT]),
        flat("again", &[write(0, 4), write(0, 1)]).rounds(2),
        mixed("tries", 1, &[tries(ROOT), tries(INNER), tries(LEAF)]),
        gives_up(mixed("gives-up", 1, &[soon(INNER), soon(LEAF), ROOT])),
        gives_up(mixed("gives-up-between-two-nodes", 1, &[soon(LEAF_AND_INNER), write(4, 8)])),
        mixed("cancels", 1, &[INNER, LEAF]).cancellable(),
        mixed("downgrades", 1, &[read(0, 1), INNER]).then(Change::Downgrade),
    ]
}

fn with_deaths() -> Vec<Case<MemberParams>> {
    vec![
        killed(flat("killed-on-a-leaf", &[write(0, 1), write(0, 1)])),
        killed(flat("killed-beside", &[write(0, 1), write(0, 1), write(1, 2)])),
        killed(flat("killed-nested", &[write(0, 4), write(0, 1), write(1, 2)])),
        killed(flat("killed-reader", &[read(0, 4), read(0, 1), write(0, 1)])),
        killed(mixed("killed-on-every-level", 2, &[ROOT, INNER, LEAF])),
        killed(mixed("killed-across-nodes", 1, &[TWO_LEAVES, write(4, 8)])),
        killed(flat("killed-among-overlapping", &[tries(read(0, 2)), write(1, 2), tries(write(0, 1))])),
        killed(flat("killed-below-a-waiter", &[tries(write(0, 2)), tries(write(1, 2)), write(0, 4)])),
        killed(flat("killed-and-tried", &[tries(write(0, 1)), write(0, 4), tries(read(0, 1))])),
        killed(flat("killed-while-downgrading", &[read(0, 1), write(0, 4)]).then(Change::Downgrade)),
        flat("killed-twice", &[write(0, 1), write(0, 4)]).crashes(2),
        hasty(killed(flat("killed-and-hasty", &[write(0, 4), write(0, 1)]))),
        hasty(left_by_the_dead(flat("left-settled", &[write(0, 4), write(1, 2)]))),
        hasty(left_by_the_dead(flat("left-settled-on-a-leaf", &[write(0, 1), write(0, 1)]))),
        hasty(left_in_the_middle(flat("left-in-the-middle", &[write(0, 4), write(1, 2)]))),
        hasty(left_in_the_middle(flat("left-in-the-middle-of-a-leaf", &[write(0, 1), write(0, 1)]))),
        left_in_the_middle(flat("left-among-three", &[write(0, 4), write(1, 2), write(2, 3)])),
        hasty(killed(left_by_the_dead(flat("repairer-killed", &[write(0, 4), write(1, 2)])))),
        hasty(killed(left_in_the_middle(flat("repairer-killed-in-the-middle", &[write(0, 4), write(1, 2)])))),
    ]
}
