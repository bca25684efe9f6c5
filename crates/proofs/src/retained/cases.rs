//! The cases of locks that stay with their last user, and the clients and servers that are broken in one way.

use super::{Faults, Op, Retained};
use crate::catalog::Mutant;
use crate::subject::CaseInfo;
use lockwright::internal::RetentionRules;
use lockwright_fabric::observe::Mode::{Exclusive, Shared};
use lockwright_locks::{Info, Offers};
use lockwright_sim::check::Checker;
use lockwright_sim::explore::{Options, Outcome};
use lockwright_sim::model;

const WRITES: &[Op] = &[Op::Lock(Exclusive), Op::Unlock];
const WRITES_TWICE: &[Op] = &[Op::Lock(Exclusive), Op::Unlock, Op::Lock(Exclusive), Op::Unlock];
const READS: &[Op] = &[Op::Lock(Shared), Op::Unlock];
const READS_AND_WRITES: &[Op] = &[Op::Lock(Shared), Op::Unlock, Op::Lock(Exclusive), Op::Unlock];
const TRIES: &[Op] = &[Op::Try(Exclusive), Op::Unlock];
const NONE: Faults =
    Faults { expiries: 0, restarts: 0, deaths: 0, cancels: 0, hand_backs: 0, cuts: 0, broken: 0 };

/// By client and user.
type Programs = &'static [&'static [&'static [Op]]];
/// A case: its name, what users do, what happens to them.
type Case = (&'static str, &'static str, Programs, Faults);

const CASES: [Case; 13] = [
    ("three", "three clients, one of which writes twice", &[&[WRITES_TWICE], &[WRITES], &[WRITES]], NONE),
    ("local", "two users of one client, and one of another", &[&[WRITES_TWICE, WRITES], &[WRITES]], NONE),
    (
        "expiries",
        "two clients, and a lease is over",
        &[&[WRITES_TWICE], &[WRITES]],
        Faults { expiries: 1, ..NONE },
    ),
    (
        "crossing",
        "three clients, and what is not used comes back by itself, twice",
        &[&[WRITES_TWICE], &[WRITES], &[WRITES]],
        Faults { hand_backs: 2, ..NONE },
    ),
    (
        "readers",
        "two readers of one client, a reader and a writer elsewhere",
        &[&[READS, READS], &[READS_AND_WRITES]],
        Faults { hand_backs: 1, ..NONE },
    ),
    ("tries", "a writer, and two who only try", &[&[WRITES_TWICE], &[TRIES], &[TRIES]], NONE),
    (
        "local-restart",
        "two users of one client, and the server is killed",
        &[&[WRITES, WRITES_TWICE]],
        Faults { restarts: 1, ..NONE },
    ),
    (
        "cancels",
        "two users of one client, and one of another, one of whom gives up",
        &[&[WRITES_TWICE, WRITES], &[WRITES]],
        Faults { cancels: 1, ..NONE },
    ),
    (
        "restart",
        "two clients, and the server is killed",
        &[&[WRITES_TWICE], &[WRITES]],
        Faults { restarts: 1, ..NONE },
    ),
    (
        "deaths",
        "two clients, one of which is killed, and one that only tries",
        &[&[WRITES_TWICE], &[WRITES], &[TRIES]],
        Faults { deaths: 1, ..NONE },
    ),
    (
        "expiries-three",
        "three clients, and a lease is over",
        &[&[WRITES], &[WRITES], &[WRITES]],
        Faults { expiries: 1, ..NONE },
    ),
    (
        "cuts",
        "two clients, a connection breaks twice, and what was said is said again",
        &[&[WRITES_TWICE], &[WRITES]],
        Faults { cuts: 2, ..NONE },
    ),
    (
        "broken",
        "two clients, and an operator takes the lock away",
        &[&[WRITES_TWICE], &[WRITES]],
        Faults { broken: 1, ..NONE },
    ),
];

/// What it is.
pub(crate) const INFO: Info = Info {
    name: "retained",
    summary: "locks of a server that stay with their last user until another client wants them",
    source: "this project",
    offers: Offers {
        shared: true,
        ranges: false,
        tokens: true,
        tries: true,
        timeouts: false,
        recovery: true,
    },
};

/// Everything about one that is broken: at the client, and whether the server gives out tokens twice.
pub(crate) type Broken = (Info, Mutant, RetentionRules, bool);

/// What is shipped.
pub(crate) const SHIPPED: RetentionRules = RetentionRules {
    serves_waiters_first: false,
    obeys_stale_recalls: false,
    grants_uncertain: false,
    ignores_mode: false,
};

const fn broken(
    name: &'static str,
    caught_by: Checker,
    why: &'static str,
    rules: RetentionRules,
    reuses_tokens: bool,
) -> Broken {
    (Info { name, ..INFO }, Mutant { of: INFO.name, caught_by, why }, rules, reuses_tokens)
}

/// All that are broken.
pub(crate) const BROKEN: [Broken; 5] = [
    broken(
        "retained-waiters-first",
        Checker::Deadlock,
        "a recall is ignored while others of the same client wait",
        RetentionRules { serves_waiters_first: true, ..SHIPPED },
        false,
    ),
    broken(
        "retained-stale-recall",
        Checker::Deadlock,
        "a recall that crossed the unlock it asks for takes the next request",
        RetentionRules { obeys_stale_recalls: true, ..SHIPPED },
        false,
    ),
    broken(
        "retained-tokens-twice",
        Checker::Tokens,
        "the tokens that come with a grant that stays are given to others, too",
        SHIPPED,
        true,
    ),
    broken(
        "retained-uncertain",
        Checker::Exclusion,
        "a client grants what stays with it though its lease is over",
        RetentionRules { grants_uncertain: true, ..SHIPPED },
        false,
    ),
    broken(
        "retained-any-mode",
        Checker::Exclusion,
        "a client lets a writer in under a shared grant that stays with it",
        RetentionRules { ignores_mode: true, ..SHIPPED },
        false,
    ),
];

/// What the cases are about.
pub(crate) fn describe() -> Vec<CaseInfo> {
    CASES.iter().map(|(name, what, ..)| CaseInfo { name, what: (*what).to_owned() }).collect()
}

/// Explores the `case`-th.
pub(crate) fn explore_case(
    case: usize,
    rules: RetentionRules,
    reuses_tokens: bool,
    options: &mut Options,
) -> Outcome {
    let (name, _, programs, faults) = CASES[case];
    let programs =
        programs.iter().map(|users| users.iter().map(|program| program.to_vec()).collect()).collect();
    model::explore_case(name, &Retained { programs, faults, rules, reuses_tokens }, options)
}
