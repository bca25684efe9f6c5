//! What the explorer runs for Citron: three-level trees, requests at every level.

use super::wait_cases::in_ticks;
use lockwright_fabric::Time;
use lockwright_fabric::observe::Mode;
use lockwright_locks::citron::{Growth, Params};
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::{Case, Timeouts};

/// Three levels: a root, four internal nodes, sixteen leaves of one unit.
pub(crate) const UNITS: u64 = 16;

/// The tunables of most cases: leaves of one unit, no tokens, no escalation, no recovery.
pub(crate) fn small(m: u32) -> Params {
    Params { m, leaf_units: 1, token_level: 0, escalate_after: 0, lease_ns: 0, ..Params::default() }
}

/// A case on a small tree.
pub(crate) fn case(name: &'static str, params: Params) -> Case<Params> {
    Case::new(name).params(params).space(Space::of(1).units(UNITS))
}

/// A range of the one lock.
pub(crate) const fn range(start: u64, end: u64) -> Want {
    Want::range(0, Mode::Exclusive, start, end)
}

/// The three levels, all on one path.
pub(crate) const ROOT: Want = range(0, 16);
/// The leftmost internal node.
pub(crate) const INNER: Want = range(0, 4);
/// The leftmost leaf.
pub(crate) const LEAF: Want = range(0, 1);

/// An internal node and the leaf to its right: two attempts, and the root above both.
pub(crate) const INNER_AND_LEAF: Want = range(0, 5);

pub(crate) fn cases() -> Vec<Case<Params>> {
    let mut cases = levels();
    cases.extend(several_nodes());
    cases.extend(fairness_and_tokens());
    cases.extend(giving_up());
    cases.extend(recovery());
    cases.extend(growth());
    cases.extend(growth_and_death());
    cases.extend(super::wait_cases::cases());
    cases
}

/// Requests at every combination of levels.
fn levels() -> Vec<Case<Params>> {
    vec![
        case("three-levels-m1", small(1)).clients(1, &[ROOT]).clients(1, &[INNER]).clients(1, &[LEAF]),
        case("three-levels-m2", small(2)).clients(1, &[ROOT]).clients(1, &[INNER]).clients(1, &[LEAF]),
        case("four-clients-m2", small(2)).clients(1, &[ROOT]).clients(1, &[INNER]).clients(2, &[LEAF]),
        case("two-roots-two-leaves", small(2)).clients(2, &[ROOT]).clients(2, &[LEAF]),
        case("two-inners-and-a-leaf", small(1)).clients(2, &[INNER]).clients(1, &[LEAF]),
        case("leaf-and-inner-again", small(1)).clients(1, &[INNER]).clients(1, &[LEAF]).rounds(2),
        case("leaf-and-root-again", small(2)).clients(1, &[ROOT]).clients(1, &[LEAF]).rounds(2),
        // A queue leaves a gap for those below.
        case("gap-under-inners", small(1)).clients(3, &[INNER]).clients(1, &[LEAF]),
        case("gap-under-roots", small(2)).clients(3, &[ROOT]).clients(1, &[LEAF]),
        // Wide leaves, units that overlap in part.
        case("units-of-a-leaf", Params { leaf_units: 4, ..small(1) })
            .clients(1, &[range(0, 2)])
            .clients(1, &[range(1, 3)])
            .clients(1, &[range(2, 4)])
            .rounds(2),
    ]
}

/// Ranges of more than one node: where the printed algorithm deadlocks.
fn several_nodes() -> Vec<Case<Params>> {
    let two_leaves = range(3, 5);
    vec![
        case("two-nodes-under-a-root", small(1)).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT]),
        case("two-nodes-crossing", small(1)).clients(1, &[INNER_AND_LEAF]).clients(1, &[range(4, 9)]),
        case("two-leaves-and-above", small(2))
            .clients(1, &[two_leaves])
            .clients(1, &[INNER])
            .clients(1, &[ROOT]),
        case("two-leaves-and-their-neighbours", small(1))
            .clients(1, &[two_leaves])
            .clients(1, &[range(4, 5)])
            .clients(1, &[INNER]),
        // One holds a leaf and queues for an inner node behind another that waits for the root.
        case("queue-under-a-root", small(2))
            .clients(1, &[range(3, 8)])
            .clients(1, &[range(4, 8)])
            .clients(1, &[ROOT]),
    ]
}

/// Starvation avoidance and fencing tokens.
fn fairness_and_tokens() -> Vec<Case<Params>> {
    let soon = Params { escalate_after: 1, ..small(1) };
    let one_word = Params { token_level: 1, ..small(1) };
    let four_words = Params { token_level: 2, ..small(1) };
    vec![
        case("escalation", soon).clients(3, &[LEAF]),
        case("escalation-of-two-leaves", soon)
            .clients(1, &[range(0, 2)])
            .clients(1, &[range(1, 2)])
            .rounds(2),
        // Tickets are served in order: nobody is overtaken by more than those ahead of it.
        case("fifo", small(1)).clients(3, &[INNER]).rounds(2).bypass(2),
        case("tokens", one_word).clients(1, &[ROOT]).clients(1, &[INNER]).clients(1, &[LEAF]).tokens(),
        case("tokens-of-several-words", four_words)
            .clients(1, &[ROOT])
            .clients(1, &[LEAF])
            .rounds(2)
            .tokens(),
        case("tokens-across-words", four_words)
            .clients(1, &[range(3, 5)])
            .clients(1, &[range(4, 5)])
            .rounds(2)
            .tokens(),
    ]
}

/// Try, timeout, cancel.
fn giving_up() -> Vec<Case<Params>> {
    let tries = |want: Want| want.with(Patience::Try);
    let until = |want: Want| want.with(Patience::Until(Time(1)));
    vec![
        case("tries", small(1))
            .clients(1, &[tries(ROOT)])
            .clients(1, &[tries(INNER)])
            .clients(1, &[tries(LEAF)]),
        case("tries-of-two-nodes", small(1)).clients(1, &[tries(INNER_AND_LEAF)]).clients(1, &[ROOT]),
        case("timeouts", small(1))
            .clients(1, &[until(INNER)])
            .clients(1, &[until(LEAF)])
            .clients(1, &[ROOT])
            .timeouts(Timeouts::Any),
        case("timeouts-of-two-nodes", small(1))
            .clients(1, &[until(INNER_AND_LEAF)])
            .clients(1, &[range(4, 8)])
            .timeouts(Timeouts::Any),
        case("cancel", small(1)).clients(1, &[INNER]).clients(1, &[LEAF]).cancellable().clients(1, &[ROOT]),
    ]
}

/// A lease, where there is no clock: longer than everything the living do.
const LEASE_NS: u64 = 1_000;

/// The same with leases, longer than everything the living do; users' deadlines come at any moment, as before.
pub(crate) fn with_leases(mut case: Case<Params>) -> Case<Params> {
    case.params.lease_ns = LEASE_NS;
    case.timeouts = match case.timeouts {
        Timeouts::Any => Timeouts::AnyUntil(Time(LEASE_NS - 1)),
        _ => Timeouts::WhenStuck,
    };
    if let Some(clock) = &mut case.clock {
        super::wait_cases::measure_leases(&mut case.params, clock);
    }
    case
}

/// A case that has no leases by itself, with a crash to come.
pub(crate) fn with_recovery(case: Case<Params>) -> Case<Params> {
    if case.params.lease_ns > 0 {
        return case;
    }
    let most_states = case.max_states.min(MOST_STATES_WITH_A_CRASH);
    with_leases(case).max_states(most_states)
}

/// Enough for three clients on one path of the tree, one round each. Larger searches end here and say so.
const MOST_STATES_WITH_A_CRASH: u64 = 650_000;

/// One client crashes, anywhere. Leases are longer than everything the living do.
pub(crate) fn crash(name: &'static str, m: u32) -> Case<Params> {
    dying(case(name, small(m)))
}

/// One client stops anywhere until others have taken away what it left, and comes back.
pub(crate) fn zombie(name: &'static str, m: u32) -> Case<Params> {
    sleeping(case(name, small(m)))
}

/// Tokens rise across recoveries, too.
pub(crate) fn with_tokens(mut case: Case<Params>) -> Case<Params> {
    case.params.token_level = 1;
    case.tokens()
}

/// What the dead leave, at every waiting place.
fn recovery() -> Vec<Case<Params>> {
    vec![
        crash("crash-m1", 1).clients(1, &[LEAF]).clients(1, &[ROOT]),
        crash("crash-m2", 2).clients(1, &[INNER]).clients(1, &[LEAF]).clients(1, &[ROOT]),
        // Two levels are enough here, and two of the living clean up at once.
        crash("crash-in-a-leaf", 1).clients(3, &[LEAF]).space(Space::of(1).units(4)),
        crash("crash-in-a-queue", 1).clients(3, &[INNER]),
        with_tokens(crash("crash-with-two-nodes", 1)).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT]),
        with_tokens(crash("crash-with-two-leaves", 2)).clients(1, &[range(3, 5)]).clients(1, &[range(4, 5)]),
        with_tokens(crash("crash-again", 1)).clients(1, &[INNER]).clients(1, &[LEAF]).rounds(2),
        with_tokens(zombie("zombie-leaf-and-leaf", 1)).clients(2, &[LEAF]),
        with_tokens(zombie("zombie-leaf-and-inner", 1)).clients(1, &[LEAF]).clients(1, &[INNER]),
        zombie("zombie-leaf-and-root-m1", 1).clients(1, &[LEAF]).clients(1, &[ROOT]),
        with_tokens(zombie("zombie-leaf-and-root-m2", 2)).clients(1, &[LEAF]).clients(1, &[ROOT]),
        with_tokens(zombie("zombie-inner-and-inner", 1)).clients(2, &[INNER]),
        with_tokens(zombie("zombie-inner-and-root", 2)).clients(1, &[INNER]).clients(1, &[ROOT]),
        with_tokens(zombie("zombie-with-two-nodes", 1)).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT]),
        zombie("zombie-with-two-leaves", 2).clients(1, &[range(3, 5)]).clients(1, &[range(4, 5)]),
        zombie("zombie-again", 1).clients(1, &[INNER]).clients(1, &[LEAF]).rounds(2),
        // Its turn has come with a gap before it, and is gone when it closes that. Here the node is the root.
        zombie("zombie-in-a-queue", 1).clients(3, &[INNER]).space(Space::of(1).units(4)),
    ]
}

/// A tree of four leaves that grows to one of 4 · 4^m as soon as a client asks for more.
pub(crate) fn growing(name: &'static str, m: u32) -> Case<Params> {
    let params = Params { start_units: 4, growth: Growth::AtOnce, ..small(m) };
    case(name, params).space(Space::of(1).units(4 << (2 * m)))
}

/// A client lets the tree grow, shrink and grow again, under the clients that are added.
pub(crate) fn regrowing(name: &'static str, m: u32) -> Case<Params> {
    let mut case = growing(name, m);
    case.params.growth = Growth::Elastic;
    case.clients(1, &[ROOT]).rounds(2)
}

/// The tree grows under lockers in every phase, and shrinks; what lies past its end.
fn growth() -> Vec<Case<Params>> {
    let with = |mut case: Case<Params>, growth: Growth| {
        case.params.growth = growth;
        case
    };
    vec![
        growing("grow-over-a-leaf", 1).clients(1, &[LEAF]).clients(1, &[ROOT]),
        growing("grow-over-the-root", 1).clients(1, &[INNER]).clients(1, &[ROOT]),
        growing("grow-over-a-leaf-again", 1).clients(1, &[LEAF]).rounds(2).clients(1, &[ROOT]),
        growing("grow-over-leaf-and-root", 1).clients(1, &[LEAF]).clients(1, &[INNER]).clients(1, &[ROOT]),
        // m = 2: the root's parent is told, its grandparent is not.
        growing("grow-by-two-levels", 2).clients(1, &[LEAF]).clients(1, &[range(0, 64)]),
        growing("grow-under-the-parent", 2).clients(1, &[INNER]).clients(1, &[ROOT]),
        growing("grow-under-the-new-root", 2).clients(1, &[INNER]).clients(1, &[range(0, 64)]),
        growing("grow-twice", 1)
            .clients(1, &[LEAF])
            .clients(1, &[range(0, 64)])
            .space(Space::of(1).units(64)),
        growing("two-who-let-it-grow", 1).clients(1, &[LEAF]).clients(2, &[ROOT]),
        spilling("spillover").clients(1, &[range(3, 4)]),
        with(growing("spillover-tries", 1), Growth::Asked)
            .clients(1, &[range(3, 6).with(Patience::Try)])
            .clients(1, &[range(5, 9)])
            .clients(1, &[range(3, 4).with(Patience::Try)]),
        with(growing("shrink", 1), Growth::Elastic).clients(1, &[LEAF]).clients(1, &[ROOT]),
        regrowing("shrink-and-grow-leaf", 1).clients(1, &[LEAF]),
        regrowing("shrink-and-grow-root", 1).clients(1, &[ROOT]),
        regrowing("shrink-and-grow-m2", 2).clients(1, &[LEAF]),
    ]
}

/// Two ranges past the end of a tree that does not grow just now, one of them partly on the tree.
pub(crate) fn spilling(name: &'static str) -> Case<Params> {
    let mut case = growing(name, 1);
    case.params.growth = Growth::Asked;
    case.clients(1, &[range(3, 6)]).clients(1, &[range(5, 9)])
}

/// One client stops until others have taken away what it left, and comes back.
pub(crate) fn sleeping(case: Case<Params>) -> Case<Params> {
    with_leases(case).pauses(1)
}

/// One client crashes.
pub(crate) fn dying(case: Case<Params>) -> Case<Params> {
    with_leases(case).crashes(1)
}

/// A client that lets the tree grow or shrink dies, at any point; or another client does meanwhile.
fn growth_and_death() -> Vec<Case<Params>> {
    vec![
        dying(growing("grow-crash-leaf", 1)).clients(1, &[LEAF]).clients(1, &[ROOT]),
        dying(growing("grow-crash-root", 1)).clients(1, &[INNER]).clients(1, &[ROOT]),
        dying(growing("grow-crash-m2", 2)).clients(1, &[LEAF]).clients(1, &[range(0, 64)]),
        // Leases by the clock. (Without one these are clean, too, and have two million states.)
        dying(in_ticks(growing("grow-crash-two-growers", 1)))
            .clients(1, &[LEAF])
            .rounds(2)
            .clients(2, &[ROOT]),
        dying(in_ticks(growing("grow-crash-two-growers-root", 1))).clients(1, &[INNER]).clients(2, &[ROOT]),
        dying(regrowing("shrink-crash-leaf", 1)).clients(1, &[LEAF]),
        dying(spilling("spillover-crash")).clients(1, &[range(3, 4)]),
        sleeping(spilling("spillover-zombie")).rounds(2),
    ]
}
