//! What the explorer runs for semaphores: a claim on `weight..limit + 1` is for so many of the permits.
//!
//! Bypass counts conflicting grants, and permits do not conflict: where fairness is looked at, a claim on all permits is exclusive
//! in mode, which the semaphore does not look at. There clients also [poll](Polled), and so know when they came.

use lockwright_fabric::Time;
use lockwright_fabric::observe::Mode::{Exclusive, Shared};
use lockwright_locks::combiner::core::Shipped;
use lockwright_locks::combiner::{Learning, Params, Variant, info};
use lockwright_locks::{Info, Patience, Space, Want};
use lockwright_sim::case::{Case, Timeouts};

/// Semaphores whose clients are told that they wait, and poll.
#[derive(Debug)]
pub(crate) struct Polled;

impl Variant for Polled {
    type Rules = Shipped;
    const INFO: Info = info("semaphore-polled", "semaphores whose clients poll by RPC", "here");
    const PERMITS: bool = true;
    fn learning(_: &Params, _: u16) -> Learning {
        Learning::PollRpc
    }
}

const LIMIT: u64 = 2;
const SOON: Patience = Patience::Until(Time(1));

/// So many of two permits.
const fn permits(weight: u64) -> Want {
    Want::range(0, Shared, weight, LIMIT + 1)
}

fn case(name: &'static str) -> Case<Params> {
    Case::new(name).space(Space::of(1).units(LIMIT + 1)).permits()
}

pub(super) fn cases() -> Vec<Case<Params>> {
    vec![
        case("one-each").clients(3, &[permits(1)]).rounds(2),
        case("four").clients(4, &[permits(1)]),
        weighted(),
        case("all-at-once").clients(2, &[permits(2)]).clients(1, &[permits(1)]).rounds(2),
        case("tries").clients(2, &[permits(1)]).clients(1, &[permits(2).with(Patience::Try)]).rounds(2),
        case("timeouts")
            .clients(2, &[permits(2)])
            .clients(1, &[permits(1).with(SOON)])
            .rounds(2)
            .timeouts(Timeouts::Any),
        case("cancel").clients(2, &[permits(1)]).cancellable().clients(1, &[permits(2)]).rounds(2),
        crash(),
        case("two-crashes").clients(2, &[permits(1)]).clients(1, &[permits(2)]).crashes(2),
    ]
}

/// Some want all permits, others one.
pub(super) fn weighted() -> Case<Params> {
    case("weighted").clients(1, &[permits(2)]).clients(2, &[permits(1)]).rounds(2)
}

/// One dies, whether it holds permits or waits for them.
pub(super) fn crash() -> Case<Params> {
    case("crash").clients(2, &[permits(2)]).clients(1, &[permits(1)]).crashes(1)
}

/// Nobody who waits is overtaken by a request that came later and wants less.
pub(super) fn fairness() -> Case<Params> {
    let all = Want::range(0, Exclusive, LIMIT, LIMIT + 1);
    case("fairness")
        .clients(2, &[permits(1)])
        .clients(1, &[all])
        .rounds(2)
        .params(Params { waits_from_note: true, ..Params::default() })
        .bypass(2)
}
