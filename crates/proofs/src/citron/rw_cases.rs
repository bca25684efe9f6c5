//! What the explorer runs for reader-writer ranges: readers and writers at every level.

use super::cases::{INNER, LEAF, ROOT, case, crash, range, small, with_tokens, zombie};
use lockwright_fabric::Time;
use lockwright_fabric::observe::Mode;
use lockwright_locks::citron::Params;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::{Case, Timeouts};

/// The same units, shared.
pub(crate) const fn read(mut want: Want) -> Want {
    want.claim.mode = Mode::Shared;
    want
}

pub(crate) fn cases() -> Vec<Case<Params>> {
    let mut cases = levels();
    cases.extend(fairness_and_tokens());
    cases.extend(giving_up());
    cases.extend(recovery());
    cases
}

fn levels() -> Vec<Case<Params>> {
    vec![
        case("writer-above-readers-m1", small(1))
            .clients(1, &[ROOT])
            .clients(1, &[read(INNER)])
            .clients(1, &[read(LEAF)]),
        case("writer-above-readers-m2", small(2))
            .clients(1, &[ROOT])
            .clients(1, &[read(INNER)])
            .clients(1, &[read(LEAF)]),
        case("writer-between-readers-m1", small(1))
            .clients(1, &[read(ROOT)])
            .clients(1, &[INNER])
            .clients(1, &[read(LEAF)]),
        case("writer-between-readers-m2", small(2))
            .clients(1, &[read(ROOT)])
            .clients(1, &[INNER])
            .clients(1, &[read(LEAF)]),
        case("writer-below-readers-m1", small(1))
            .clients(1, &[read(ROOT)])
            .clients(1, &[read(INNER)])
            .clients(1, &[LEAF]),
        case("writer-below-readers-m2", small(2))
            .clients(1, &[read(ROOT)])
            .clients(1, &[read(INNER)])
            .clients(1, &[LEAF]),
        case("reader-above-writers", small(2))
            .clients(1, &[read(ROOT)])
            .clients(1, &[INNER])
            .clients(1, &[LEAF]),
        case("reader-between-writers", small(1))
            .clients(1, &[ROOT])
            .clients(1, &[read(INNER)])
            .clients(1, &[LEAF]),
        case("reader-below-writers", small(2))
            .clients(1, &[ROOT])
            .clients(1, &[INNER])
            .clients(1, &[read(LEAF)]),
        case("two-readers-and-a-writer-of-a-leaf", small(1))
            .clients(2, &[read(LEAF)])
            .clients(1, &[LEAF])
            .rounds(2),
        case("a-reader-and-two-writers-of-a-node", small(1)).clients(1, &[read(INNER)]).clients(2, &[INNER]),
        case("units-of-a-leaf", Params { leaf_units: 4, ..small(1) })
            .clients(1, &[read(range(0, 3))])
            .clients(1, &[read(range(1, 4))])
            .clients(1, &[range(0, 2)]),
        case("two-nodes-under-a-root", small(1))
            .clients(1, &[read(range(0, 5))])
            .clients(1, &[ROOT])
            .clients(1, &[range(4, 5)]),
        case("queue-under-a-root", small(2))
            .clients(1, &[read(range(3, 8))])
            .clients(1, &[range(4, 8)])
            .clients(1, &[ROOT]),
    ]
}

/// Nobody is held off by the other kind.
fn fairness_and_tokens() -> Vec<Case<Params>> {
    let soon = Params { escalate_after: 1, ..small(1) };
    let tokens = Params { token_level: 1, ..small(1) };
    vec![
        case("small-writer-under-large-readers", soon).clients(2, &[read(INNER)]).clients(1, &[LEAF]),
        case("small-reader-under-large-writers", soon).clients(2, &[INNER]).clients(1, &[read(LEAF)]),
        // A writer's ticket lets at most those past it that were there before.
        case("writer-among-readers", small(1))
            .clients(2, &[read(INNER)])
            .rounds(2)
            .clients(1, &[INNER])
            .bypass(4),
        case("tokens", tokens).clients(1, &[read(INNER)]).clients(1, &[INNER]).clients(1, &[LEAF]).tokens(),
    ]
}

fn giving_up() -> Vec<Case<Params>> {
    let tries = |want: Want| want.with(Patience::Try);
    let until = |want: Want| want.with(Patience::Until(Time(1)));
    vec![
        case("tries", small(1))
            .clients(1, &[tries(read(ROOT))])
            .clients(1, &[tries(INNER)])
            .clients(1, &[tries(read(LEAF))]),
        case("timeouts", small(1))
            .clients(1, &[until(read(INNER))])
            .clients(1, &[until(LEAF)])
            .clients(1, &[ROOT])
            .timeouts(Timeouts::Any),
        case("cancel", small(1))
            .clients(1, &[read(INNER)])
            .clients(1, &[LEAF])
            .cancellable()
            .clients(1, &[INNER]),
    ]
}

/// What the dead leave, readers and writers.
fn recovery() -> Vec<Case<Params>> {
    vec![
        crash("crash-of-readers", 1).clients(1, &[read(INNER)]).clients(1, &[read(LEAF)]).clients(1, &[ROOT]),
        crash("crash-of-writers", 2).clients(1, &[LEAF]).clients(1, &[read(ROOT)]),
        crash("crash-of-writers-below", 1).clients(1, &[LEAF]).clients(1, &[read(INNER)]).rounds(2),
        crash("crash-of-writers-above", 1).clients(1, &[INNER]).clients(1, &[read(LEAF)]).rounds(2),
        crash("crash-in-a-leaf", 1)
            .clients(2, &[read(LEAF)])
            .clients(1, &[LEAF])
            .space(Space::of(1).units(4)),
        crash("crash-in-a-queue", 1).clients(2, &[INNER]).clients(1, &[read(INNER)]),
        crash("crash-among-readers", 1).clients(2, &[read(INNER)]).clients(1, &[INNER]),
        with_tokens(zombie("zombie-reader-of-a-leaf", 1)).clients(1, &[read(LEAF)]).clients(1, &[LEAF]),
        with_tokens(zombie("zombie-reader-under-a-writer", 1)).clients(1, &[read(LEAF)]).clients(1, &[INNER]),
        zombie("zombie-reader-over-a-writer", 2).clients(1, &[read(ROOT)]).clients(1, &[LEAF]),
        zombie("zombie-reader-of-a-node", 1).clients(1, &[read(INNER)]).clients(1, &[INNER]).rounds(2),
    ]
}
