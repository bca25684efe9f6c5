//! The cases of a server and its clients, and the servers and clients that are broken in one way.

use super::{Faults, Op, Served};
use crate::catalog::Mutant;
use crate::subject::CaseInfo;
use lockwright::internal::TableRules;
use lockwright_fabric::backend::tcp::SessionRules;
use lockwright_fabric::observe::Mode::{Exclusive, Shared};
use lockwright_locks::{Info, Offers};
use lockwright_server::MachineRules;
use lockwright_sim::check::Checker;
use lockwright_sim::explore::{Options, Outcome};
use lockwright_sim::model;

const WRITES: &[Op] = &[Op::Lock(Exclusive), Op::Unlock];
const READS: &[Op] = &[Op::Lock(Shared), Op::Unlock];
const SETS: &[Op] = &[Op::Lock(Exclusive), Op::Set, Op::Unlock];
const TRIES: &[Op] = &[Op::Try(Exclusive), Op::Unlock];
const CROSSING: &[&[Op]] = &[&[Op::LockSet(&[0, 1]), Op::Unlock], &[Op::LockSet(&[1, 0]), Op::Unlock]];
const NONE: Faults =
    Faults { breaks: 0, kills: 0, restarts: 0, deaths: 0, stops: 0, suspends: 0, expiries: 0, cancels: 0 };

/// A case: its name, what users do, what goes wrong.
type Case = (&'static str, &'static str, &'static [&'static [Op]], Faults);

/// Clients acknowledge every message: only here, since it multiplies the states.
const ACKS: &str = "acks";

const CASES: [Case; 27] = [
    ("healthy", "two writers", &[WRITES, WRITES], NONE),
    (
        "restart",
        "two writers, the server is killed, anywhere",
        &[WRITES, WRITES],
        Faults { kills: 1, ..NONE },
    ),
    (
        "restart-and-try",
        "a writer, and one who only tries; the server is killed",
        &[WRITES, TRIES],
        Faults { kills: 1, ..NONE },
    ),
    (
        "breaks",
        "two writers, a connection breaks twice at either end",
        &[WRITES, WRITES],
        Faults { breaks: 2, ..NONE },
    ),
    (
        "readers",
        "a reader and a writer, a connection breaks, a waiter gives up",
        &[READS, WRITES],
        Faults { breaks: 1, cancels: 1, ..NONE },
    ),
    (
        "expiries",
        "two writers, a connection breaks, and a lease is over",
        &[WRITES, WRITES],
        Faults { breaks: 1, expiries: 1, ..NONE },
    ),
    ("three", "two writers and a reader", &[WRITES, WRITES, READS], NONE),
    (
        "ranges",
        "three writers of ranges, of which one is in the way of both others",
        &[
            &[Op::Range(Exclusive, 0, 1), Op::Unlock],
            &[Op::Range(Exclusive, 0, 3), Op::Unlock],
            &[Op::Range(Exclusive, 2, 3), Op::Unlock],
        ],
        NONE,
    ),
    (
        "changes",
        "a reader who wants the lock alone, a writer who shares it, a connection breaks",
        &[&[Op::Lock(Shared), Op::Upgrade, Op::Unlock], &[Op::Lock(Exclusive), Op::Downgrade, Op::Unlock]],
        Faults { breaks: 1, ..NONE },
    ),
    (
        "upgrades",
        "two readers who want the lock alone, one of whom is refused; the server is killed between two steps",
        &[&[Op::Lock(Shared), Op::Upgrade, Op::Unlock], &[Op::Lock(Shared), Op::Upgrade, Op::Unlock]],
        Faults { restarts: 1, ..NONE },
    ),
    (
        ACKS,
        "two writers who acknowledge every message, a connection breaks at either end",
        &[WRITES, WRITES],
        Faults { breaks: 1, ..NONE },
    ),
    ("deaths", "two writers, one is killed", &[WRITES, WRITES], Faults { deaths: 1, ..NONE }),
    (
        "stops",
        "two writers, one is stopped for longer than its lease, a connection breaks",
        &[WRITES, WRITES],
        Faults { stops: 1, breaks: 1, ..NONE },
    ),
    (
        "restarts",
        "two writers, the server is killed twice, anywhere",
        &[WRITES, WRITES],
        Faults { kills: 2, ..NONE },
    ),
    (
        "restarts-thrice",
        "a writer, the server is killed three times, anywhere",
        &[WRITES],
        Faults { kills: 3, ..NONE },
    ),
    (
        "restart-and-sleep",
        "two writers, the server is killed between two steps, a client's machine is suspended and knows of nothing",
        &[WRITES, WRITES],
        Faults { restarts: 1, suspends: 1, ..NONE },
    ),
    (
        "restart-and-stop",
        "two writers, the server is killed between two steps, and a client is stopped for longer than its lease",
        &[WRITES, WRITES],
        Faults { restarts: 1, stops: 1, ..NONE },
    ),
    (
        "ranges-and-restart",
        "two writers of ranges that overlap, the server is killed, anywhere",
        &[&[Op::Range(Exclusive, 0, 2), Op::Unlock], &[Op::Range(Exclusive, 1, 3), Op::Unlock]],
        Faults { kills: 1, ..NONE },
    ),
    (
        "ranges-and-break",
        "a writer and a reader of ranges that overlap, a connection breaks at either end, a waiter gives up",
        &[&[Op::Range(Exclusive, 0, 2), Op::Unlock], &[Op::Range(Shared, 1, 3), Op::Unlock]],
        Faults { breaks: 1, cancels: 1, ..NONE },
    ),
    ("values", "two writers of the lock's value", &[SETS, SETS], NONE),
    (
        "values-and-death",
        "two writers of the lock's value, one is killed, a connection breaks",
        &[SETS, SETS],
        Faults { deaths: 1, breaks: 1, ..NONE },
    ),
    (
        "values-and-restart",
        "two writers of the lock's value, one is killed, and the server, anywhere",
        &[SETS, SETS],
        Faults { deaths: 1, kills: 1, ..NONE },
    ),
    (
        "sets",
        "three clients with sets of two of three names, which they name in any order",
        &[
            &[Op::LockSet(&[0, 1]), Op::Unlock],
            &[Op::LockSet(&[1, 0]), Op::Unlock],
            &[Op::LockSet(&[2, 1]), Op::Unlock],
        ],
        NONE,
    ),
    (
        "sets-and-restart",
        "two clients with the same set, named in crossing order, the server is killed, anywhere",
        CROSSING,
        Faults { kills: 1, ..NONE },
    ),
    (
        "sets-and-break",
        "the same, a connection breaks at either end, a waiter gives up",
        CROSSING,
        Faults { breaks: 1, cancels: 1, ..NONE },
    ),
    (
        "sets-and-expiry",
        "the same, a connection breaks, and a lease is over",
        CROSSING,
        Faults { breaks: 1, expiries: 1, ..NONE },
    ),
    (
        "sets-and-death",
        "the same, one is killed, the other gives up",
        CROSSING,
        Faults { deaths: 1, cancels: 1, ..NONE },
    ),
];

/// What it is.
pub(crate) const INFO: Info = Info {
    name: "served",
    summary: "a server, its clients, their sessions, and what is on its disk",
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

/// Where server, clients and sessions are broken: by default, nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    server: MachineRules,
    client: TableRules,
    session: SessionRules,
}

/// Everything about one that is broken. The last is the case that must catch it, if not any.
pub(crate) type Broken = (Info, Mutant, Rules, Option<&'static str>);

const SHIPPED: MachineRules = MachineRules {
    claims_unwritten: false,
    tokens_unwritten: false,
    grants_early: false,
    values_never_open: false,
    values_unwritten: false,
    sets_at_once: false,
};
const CLIENT: TableRules = TableRules {
    claims_nothing: false,
    keeps_untaken_grants: false,
    gives_up_first_only: false,
    asks_apart: false,
};
const SESSION: SessionRules =
    SessionRules { resumes_at_the_end: false, acks_are_of_all: false, old_ends_count: false };

const fn broken(name: &'static str, caught_by: Checker, why: &'static str, rules: Rules) -> Broken {
    (Info { name, ..INFO }, Mutant { of: INFO.name, caught_by, why }, rules, None)
}

/// The same, to be caught in one case.
const fn broken_in(
    case: &'static str,
    name: &'static str,
    caught_by: Checker,
    why: &'static str,
    rules: Rules,
) -> Broken {
    (Info { name, ..INFO }, Mutant { of: INFO.name, caught_by, why }, rules, Some(case))
}

const fn server(server: MachineRules) -> Rules {
    Rules { server, client: CLIENT, session: SESSION }
}

const fn client(client: TableRules) -> Rules {
    Rules { server: SHIPPED, client, session: SESSION }
}

const fn session(session: SessionRules) -> Rules {
    Rules { server: SHIPPED, client: CLIENT, session }
}

/// All that are broken.
pub(crate) const BROKEN: [Broken; 13] = [
    broken(
        "served-claims-unwritten",
        Checker::Exclusion,
        "a claim is not written down, and after a second restart nobody is waited for",
        server(MachineRules { claims_unwritten: true, ..SHIPPED }),
    ),
    broken(
        "served-tokens-unwritten",
        Checker::Exclusion,
        "grants and their tokens are not written down, and nobody is waited for after a restart",
        server(MachineRules { tokens_unwritten: true, ..SHIPPED }),
    ),
    broken(
        "served-grants-early",
        Checker::Exclusion,
        "a server that was restarted grants before claims are over",
        server(MachineRules { grants_early: true, ..SHIPPED }),
    ),
    broken(
        "served-claims-nothing",
        Checker::Exclusion,
        "a client does not claim what it holds from a server that was restarted",
        client(TableRules { claims_nothing: true, ..CLIENT }),
    ),
    broken(
        "served-keeps-untaken-grants",
        Checker::Exclusion,
        "a client takes a grant that came before its session was over",
        client(TableRules { keeps_untaken_grants: true, ..CLIENT }),
    ),
    broken_in(
        "breaks",
        "served-resumes-at-the-end",
        Checker::Quiet,
        "a new connection continues behind all that was sent, also what its client has not received",
        session(SessionRules { resumes_at_the_end: true, ..SESSION }),
    ),
    broken_in(
        ACKS,
        "served-acks-are-of-all",
        Checker::Deadlock,
        "an acknowledgement is taken for all that was sent",
        session(SessionRules { acks_are_of_all: true, ..SESSION }),
    ),
    broken_in(
        "breaks",
        "served-old-ends-count",
        Checker::Exclusion,
        "the end of a connection that was replaced ends the session",
        session(SessionRules { old_ends_count: true, ..SESSION }),
    ),
    broken_in(
        "values-and-restart",
        "served-values-never-open",
        Checker::Values,
        "nobody notes that a holder has read or set the value, and its death is not told of",
        server(MachineRules { values_never_open: true, ..SHIPPED }),
    ),
    broken_in(
        "values-and-restart",
        "served-values-unwritten",
        Checker::Values,
        "a value is not written down before its holder is told that it is set",
        server(MachineRules { values_unwritten: true, ..SHIPPED }),
    ),
    broken_in(
        "sets",
        "served-sets-at-once",
        Checker::Bypass,
        "all locks of a set are asked for at once, and kept from others while it waits for the first",
        server(MachineRules { sets_at_once: true, ..SHIPPED }),
    ),
    broken_in(
        "sets-and-restart",
        "served-sets-apart",
        Checker::Bypass,
        "after a session the locks of a set are asked for by themselves",
        client(TableRules { asks_apart: true, ..CLIENT }),
    ),
    broken_in(
        "sets-and-death",
        "served-sets-given-up-in-part",
        Checker::Quiet,
        "of a set that is given up only the first lock goes back",
        client(TableRules { gives_up_first_only: true, ..CLIENT }),
    ),
];

/// What the cases are about, or `only` one of them.
pub(crate) fn describe(only: Option<&str>) -> Vec<CaseInfo> {
    let cases = CASES.iter().filter(|(name, ..)| only.is_none_or(|only| only == *name));
    cases.map(|(name, what, ..)| CaseInfo { name, what: (*what).to_owned() }).collect()
}

/// Explores the case called `name`.
pub(crate) fn explore_case(name: &str, rules: Rules, options: &mut Options) -> Outcome {
    let found = CASES.into_iter().find(|case| case.0 == name);
    let (name, _, programs, faults) = found.expect("it was described");
    let Rules { server: rules, client: client_rules, session: session_rules } = rules;
    let programs = programs.iter().map(|program| program.to_vec()).collect();
    let acks_every = (name == ACKS).then_some(1);
    let served = Served { programs, faults, rules, client_rules, session_rules, acks_every, endless: false };
    model::explore_case(name, &served, options)
}
