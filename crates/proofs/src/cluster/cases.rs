//! The cases of several servers on one etcd, and the clusters that are broken in one way.

use super::{Cluster, Faults};
use crate::catalog::Mutant;
use crate::subject::CaseInfo;
use lockwright_cluster::Rules;
use lockwright_locks::{Info, Offers};
use lockwright_sim::check::Checker;
use lockwright_sim::explore::{Options, Outcome};
use lockwright_sim::model;

const NONE: Faults = Faults {
    crashes: 0,
    pauses: 0,
    cuts: 0,
    moves: 0,
    deaths: 0,
    suspends: 0,
    races: 0,
    breaks: 0,
    tables: 0,
};

/// A case: its name, what goes wrong.
type Case = (&'static str, &'static str, Faults);

const CASES: [Case; 14] = [
    ("healthy", "two writers, two servers, clocks of different rates", NONE),
    ("race", "the same, and both servers take a shard that nobody has", Faults { races: 1, ..NONE }),
    ("crash", "the same, and a server is killed", Faults { crashes: 1, ..NONE }),
    ("pause", "the same, and a server is paused past its lease", Faults { pauses: 1, ..NONE }),
    ("cut", "the same, and a server is cut off from etcd", Faults { cuts: 1, ..NONE }),
    ("move", "the same, and the shard is handed to the other server", Faults { moves: 1, ..NONE }),
    ("death", "the same, and a client is killed", Faults { deaths: 1, ..NONE }),
    (
        "suspend",
        "the same, a server is killed, and the machine of a client is suspended",
        Faults { crashes: 1, suspends: 1, ..NONE },
    ),
    (
        "crash in a move",
        "the same, the shard is handed over, and a server is killed",
        Faults { crashes: 1, moves: 1, ..NONE },
    ),
    (
        "break",
        "the same, a grant is broken, and a server is killed",
        Faults { crashes: 1, breaks: 1, ..NONE },
    ),
    (
        "silent in a move",
        "the same, the shard is handed over, and the machine of a holder is suspended",
        Faults { moves: 1, suspends: 1, ..NONE },
    ),
    (
        "death in a move",
        "the same, the shard is handed over, and a client is killed",
        Faults { moves: 1, deaths: 1, ..NONE },
    ),
    ("there and back", "the same, and the shard is handed over twice", Faults { moves: 2, ..NONE }),
    (
        "old table",
        "the same, a server is killed, and a table comes of when nobody held anything",
        Faults { crashes: 1, tables: 1, ..NONE },
    ),
];

/// What it is.
pub(crate) const INFO: Info = Info {
    name: "cluster",
    summary: "two servers, their leases in etcd, and clients that follow the owner of their shard",
    source: "this project",
    offers: Offers {
        shared: false,
        ranges: false,
        tokens: true,
        tries: false,
        timeouts: false,
        recovery: true,
    },
};

/// Everything about one that is broken.
/// The last is the case that must catch it.
pub(crate) type Broken = (Info, Mutant, Rules, &'static str);

/// What is shipped.
const SHIPPED: Rules = Rules {
    no_margin: false,
    counts_from_answer: false,
    opens_early: false,
    tokens_unreserved: false,
    owner_uncompared: false,
    dead_sessions_claim: false,
    grants_unregistered: false,
    answers_uncertain: false,
    believes_all: false,
    promise_forgotten: false,
    tokens_reused: false,
    claims_refused: false,
    broken_unread: false,
    holders_forgotten: false,
    table_early: false,
    table_of_any_epoch: false,
    table_over_claims: false,
    table_when_open: false,
    table_unread: false,
    silent_for_ever: false,
};

const fn broken(
    name: &'static str,
    caught_by: Checker,
    why: &'static str,
    rules: Rules,
    case: &'static str,
) -> Broken {
    (Info { name, ..INFO }, Mutant { of: INFO.name, caught_by, why }, rules, case)
}

/// All that are broken.
pub(crate) const BROKEN: [Broken; 21] = [
    broken(
        "cluster-no-margin",
        Checker::Exclusion,
        "a server counts on its whole lease, though its clock may be slow",
        Rules { no_margin: true, ..SHIPPED },
        "pause",
    ),
    broken(
        "cluster-counts-from-answer",
        Checker::Exclusion,
        "a server's certainty counts from when the answer to its renewal came",
        Rules { counts_from_answer: true, ..SHIPPED },
        "pause",
    ),
    broken(
        "cluster-opens-early",
        Checker::Exclusion,
        "a new owner grants before claims are over",
        Rules { opens_early: true, ..SHIPPED },
        "crash",
    ),
    broken(
        "cluster-tokens-unreserved",
        Checker::Holders,
        "a new owner begins with the tokens that the old one had reserved",
        Rules { tokens_unreserved: true, ..SHIPPED },
        "crash",
    ),
    broken(
        "cluster-owner-uncompared",
        Checker::Exclusion,
        "transactions do not compare who owns the shard",
        Rules { owner_uncompared: true, ..SHIPPED },
        "race",
    ),
    broken(
        "cluster-dead-sessions-claim",
        Checker::Exclusion,
        "a claim of a session is accepted that the old owner had evicted",
        Rules { dead_sessions_claim: true, ..SHIPPED },
        "suspend",
    ),
    broken(
        "cluster-grants-unregistered",
        Checker::Exclusion,
        "a session is granted a lock before it is registered, and the next owner does not wait for it",
        Rules { grants_unregistered: true, ..SHIPPED },
        "crash",
    ),
    broken(
        "cluster-answers-uncertain",
        Checker::Exclusion,
        "a server answers probes that is not certain of its lease any more",
        Rules { answers_uncertain: true, ..SHIPPED },
        "pause",
    ),
    broken(
        "cluster-believes-all",
        Checker::Exclusion,
        "a client believes the late grant of a server that was paused",
        Rules { believes_all: true, ..SHIPPED },
        "pause",
    ),
    broken(
        "cluster-promise-forgotten",
        Checker::Exclusion,
        "a new owner does not wait for what an earlier one has promised",
        Rules { promise_forgotten: true, ..SHIPPED },
        "move",
    ),
    broken(
        "cluster-tokens-reused",
        Checker::Tokens,
        "a new owner gives tokens that the old one may have given",
        Rules { tokens_reused: true, ..SHIPPED },
        "crash",
    ),
    broken(
        "cluster-claims-refused",
        Checker::Holders,
        "a new owner does not let those go on who hold locks and are alive",
        Rules { claims_refused: true, ..SHIPPED },
        "crash",
    ),
    broken(
        "cluster-broken-unread",
        Checker::Holders,
        "a new owner lets a client go on whose grant was broken",
        Rules { broken_unread: true, ..SHIPPED },
        "break",
    ),
    broken(
        "cluster-holders-forgotten",
        Checker::Holders,
        "a server that hands the shard over takes holders out of the registry, too",
        Rules { holders_forgotten: true, ..SHIPPED },
        "move",
    ),
    broken(
        "cluster-table-early",
        Checker::Holders,
        "a server writes down what it hands over, and goes on granting",
        Rules { table_early: true, ..SHIPPED },
        "move",
    ),
    broken(
        "cluster-table-of-any-epoch",
        Checker::Exclusion,
        "a table is heard by a server that it is not for",
        Rules { table_of_any_epoch: true, ..SHIPPED },
        "old table",
    ),
    broken(
        "cluster-table-over-claims",
        Checker::Exclusion,
        "a table is heard by a server to which clients have said already what they hold",
        Rules { table_over_claims: true, ..SHIPPED },
        "move",
    ),
    broken(
        "cluster-table-when-open",
        Checker::Exclusion,
        "a table is heard again by a server that has gone on from it",
        Rules { table_when_open: true, ..SHIPPED },
        "move",
    ),
    broken(
        "cluster-table-unread",
        Checker::Holders,
        "a shard is opened by a table, and nobody holds what that says",
        Rules { table_unread: true, ..SHIPPED },
        "move",
    ),
    broken(
        "cluster-table-tokens",
        Checker::Tokens,
        "a new owner goes on with the tokens of the one that handed it the shard",
        Rules { tokens_reused: true, ..SHIPPED },
        "move",
    ),
    broken(
        "cluster-silent-for-ever",
        Checker::Livelock,
        "who holds the lock by a table and is dead keeps it",
        Rules { silent_for_ever: true, ..SHIPPED },
        "death in a move",
    ),
];

/// What the cases are about: all, or the one that must catch a mutant.
pub(crate) fn describe(only: Option<&str>) -> Vec<CaseInfo> {
    let cases = CASES.iter().filter(|(name, ..)| only.is_none_or(|only| only == *name));
    cases.map(|(name, what, _)| CaseInfo { name, what: (*what).to_owned() }).collect()
}

/// Explores the case called `name`.
pub(crate) fn explore_case(name: &str, rules: Rules, options: &mut Options) -> Outcome {
    let (name, _, faults) = *CASES.iter().find(|(case, ..)| *case == name).expect("it was described");
    model::explore_case(name, &Cluster { faults, rules }, options)
}
