//! What the explorer runs for FissLock: readers and writers on two and three machines through all nine workflows, with
//! packets that are lost, doubled and overtaken; with a decider that is restarted and a machine that is lost.

use lockwright_fabric::{NodeId, Time};
use lockwright_locks::fisslock::Params;
use lockwright_locks::fisslock::pipeline::Preference;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::{Case, Faults, Timeouts};

pub(crate) const WRITE: Want = Want::exclusive(0);
pub(crate) const READ: Want = Want::shared(0);
const TRY: Want = WRITE.with(Patience::Try);
const TRY_READ: Want = READ.with(Patience::Try);
const SOON: Want = WRITE.with(Patience::Until(Time(1)));

/// One lane, no tokens: as little state as possible.
pub(crate) fn params() -> Params {
    Params { lanes: 1, tokens: false, readers_past_writer: 1, ..Params::default() }
}

/// No waiter goes along with an agent: all have to ask again.
fn cut() -> Params {
    Params { queue_limit: 0, ..params() }
}

/// Enough for every case as it is, and a bound where packet faults are added to all of them.
const MAX_STATES: u64 = 500_000;
/// The most that a case asks for beyond that.
const LARGE: u64 = 2_000_000;

/// One lock, and clients on machines: what each of them wants, machine by machine.
pub(crate) fn machines(name: &'static str, machines: &[&[Want]]) -> Case<Params> {
    let space = Space::of(1).over(machines.len() as u16);
    let mut case = Case::new(name).params(params()).space(space).max_states(MAX_STATES);
    for (node, wants) in machines.iter().enumerate() {
        for want in *wants {
            case = case.clients(1, &[*want]);
        }
        case = case.at_home(NodeId(node as u16));
    }
    case
}

/// Packets go wrong; what is lost is sent again when nothing else moves.
pub(crate) fn with(faults: Faults, case: Case<Params>) -> Case<Params> {
    Case { faults, ..case }.timeouts(Timeouts::WhenStuck)
}

pub(crate) const LOSS: Faults = Faults { losses: 1, ..Faults::NONE };
pub(crate) const DUP: Faults = Faults { duplicates: 1, ..Faults::NONE };
pub(crate) const REORDER: Faults = Faults { reorders: true, ..Faults::NONE };

/// Anything of it, in one run.
const ALL: Faults = Faults { losses: 1, duplicates: 1, reorders: true, ..Faults::NONE };

fn preferring(preference: Preference, case: Case<Params>) -> Case<Params> {
    case.params(Params { preference, ..params() })
}

pub(crate) fn all() -> Vec<Case<Params>> {
    let mut cases = without_faults();
    cases.extend(variants());
    cases.extend(with_faults());
    cases.extend(with_failures());
    let bounded = |case: Case<Params>| {
        if case.max_states <= LARGE { case } else { case.max_states(MAX_STATES) }
    };
    cases.into_iter().map(bounded).collect()
}

/// The nine workflows, in every order.
fn without_faults() -> Vec<Case<Params>> {
    vec![
        machines("two-writers", &[&[WRITE], &[WRITE]]).rounds(3),
        machines("three-writers", &[&[WRITE], &[WRITE], &[WRITE]]),
        machines("writers-side-by-side", &[&[WRITE, WRITE], &[WRITE]]),
        machines("three-readers", &[&[READ], &[READ], &[READ]]),
        machines("readers-and-writer", &[&[READ], &[READ], &[WRITE]]),
        machines("side-by-side", &[&[READ, WRITE], &[READ]]),
        machines("two-and-two", &[&[READ, WRITE], &[READ, WRITE]]),
        machines("three-machines", &[&[READ], &[WRITE, READ], &[WRITE]]),
    ]
}

/// Other preferences, other queues, more locks, more switches, none.
fn variants() -> Vec<Case<Params>> {
    let busy: &[&[Want]] = &[&[READ, WRITE], &[READ], &[READ]];
    let other = Want::shared(1);
    vec![
        preferring(Preference::Writers, machines("writers-preferred", busy)),
        preferring(Preference::ReadersAlways, machines("readers-always", busy)),
        released_while_leaving(),
        machines("tokens", &[&[WRITE, WRITE], &[WRITE, READ]])
            .params(Params { tokens: true, ..params() })
            .tokens(),
        machines("urgent", &[&[WRITE], &[WRITE, WRITE]]).params(Params { urgent_clients: 1, ..params() }),
        Case::new("two-locks")
            .params(params())
            .space(Space::of(2).over(2))
            .clients(1, &[WRITE, other])
            .at_home(NodeId(0))
            .clients(2, &[READ, other])
            .at_home(NodeId(1)),
        Case::new("two-racks")
            .params(Params { racks: 2, ..params() })
            .space(Space::of(2).over(2))
            .clients(1, &[WRITE, other])
            .at_home(NodeId(0))
            .clients(2, &[READ, other])
            .at_home(NodeId(1)),
        Case::new("sparse-ids")
            .params(Params { sparse_ids: true, ..params() })
            .space(Space::of(2).over(2))
            .clients(1, &[Want::exclusive(1 << 40), Want::shared(77)])
            .at_home(NodeId(0))
            .clients(1, &[Want::shared(77)])
            .rounds(2)
            .at_home(NodeId(1)),
        machines("beyond-the-switch", &[&[READ, WRITE], &[READ, WRITE]])
            .params(Params { switch_locks: 0, ..params() })
            .rounds(2),
        machines("cut-queue", &[&[WRITE], &[WRITE], &[READ, WRITE]]).params(cut()),
        machines("cut-queue-of-readers", &[&[READ, WRITE], &[READ, WRITE]]).params(cut()),
        machines("tries", &[&[TRY, READ], &[TRY]]),
        preferring(Preference::Writers, machines("reader-tries", &[&[TRY_READ, WRITE], &[READ]])),
        machines("timeout", &[&[WRITE], &[SOON, READ]]).timeouts(Timeouts::WhenStuck),
        machines("cancel", &[&[READ, WRITE], &[WRITE]]).cancellable().timeouts(Timeouts::WhenStuck),
        machines("crash", &[&[WRITE, READ], &[READ]]).crashes(1).timeouts(Timeouts::WhenStuck),
    ]
}

/// A machine that has not heard yet that its agent has left: its reader has the lock from elsewhere, and lets go.
pub(crate) fn released_while_leaving() -> Case<Params> {
    preferring(Preference::Writers, Case::new("released-while-leaving"))
        .space(Space::of(1).over(2))
        .clients(1, &[READ])
        .at_home(NodeId(0))
        .clients(1, &[WRITE])
        .at_home(NodeId(1))
        .rounds(2)
        .clients(1, &[READ])
        .at_home(NodeId(1))
}

/// Packets are lost, doubled, overtaken (§4.2).
fn with_faults() -> Vec<Case<Params>> {
    let writers: &[&[Want]] = &[&[WRITE], &[WRITE]];
    let mixed: &[&[Want]] = &[&[READ], &[READ], &[WRITE]];
    let side: &[&[Want]] = &[&[READ, WRITE], &[READ]];
    vec![
        with(LOSS, machines("loss-writers", writers).rounds(2).max_states(1_000_000)),
        with(LOSS, machines("loss-mixed", mixed)),
        with(LOSS, machines("loss-side-by-side", side)),
        with(DUP, machines("duplicate-writers", writers).rounds(2)),
        with(DUP, machines("duplicate-mixed", mixed)),
        with(DUP, machines("duplicate-side-by-side", side)),
        with(REORDER, machines("reordering-mixed", mixed)),
        with(ALL, machines("anything-writers", writers)),
        with(ALL, machines("anything-mixed", &[&[READ], &[WRITE]])),
        with(ALL, machines("anything-readers", &[&[READ], &[READ]])),
        with(ALL, machines("anything-side-by-side", side).max_states(LARGE)),
        with(LOSS, machines("loss-cut-queue", &[&[WRITE, WRITE], &[WRITE]]).params(cut())),
        with(DUP, machines("duplicate-cut-queue", &[&[WRITE, WRITE], &[WRITE]]).params(cut())),
        with(ALL, machines("anything-tries", &[&[TRY], &[READ]])),
    ]
}

pub(crate) const RESTART: Faults = Faults { restarts: 1, ..Faults::NONE };
pub(crate) const SERVER: Faults = Faults { node_losses: 1, ..Faults::NONE };
const BOTH: Faults = Faults { restarts: 1, node_losses: 1, ..Faults::NONE };

/// With tokens, which have to rise across every failure.
pub(crate) fn failing(faults: Faults, case: Case<Params>) -> Case<Params> {
    let params = Params { tokens: true, ..case.params.clone() };
    with(faults, case.params(params).tokens())
}

/// The decider is restarted, a machine is lost, or both, at any moment (§5.3).
fn with_failures() -> Vec<Case<Params>> {
    let writers: &[&[Want]] = &[&[WRITE], &[WRITE]];
    let mixed: &[&[Want]] = &[&[READ], &[WRITE]];
    let side: &[&[Want]] = &[&[READ, WRITE], &[READ]];
    let away: &[&[Want]] = &[&[READ, WRITE], &[WRITE]];
    let three: &[&[Want]] = &[&[READ], &[READ], &[WRITE]];
    let beyond = |case: Case<Params>| case.params(Params { switch_locks: 0, ..params() });
    let twice = |name| {
        Case::new(name)
            .params(params())
            .space(Space::of(1).over(2))
            .clients(1, &[WRITE])
            .at_home(NodeId(0))
            .rounds(2)
            .clients(1, &[WRITE])
            .at_home(NodeId(1))
            .max_states(MAX_STATES)
    };
    vec![
        failing(RESTART, twice("restart-writers")),
        failing(RESTART, machines("restart-readers", &[&[READ], &[READ]])),
        failing(RESTART, machines("restart-side-by-side", side).max_states(1_000_000)),
        failing(RESTART, machines("restart-tries", &[&[TRY], &[READ]])),
        failing(Faults { restarts: 2, ..RESTART }, machines("restart-twice", mixed)),
        failing(Faults { restarts: 1, ..ALL }, machines("restart-and-anything", mixed).max_states(1_000_000)),
        failing(Faults { node_losses: 1, ..ALL }, machines("server-lost-and-anything", mixed)),
        failing(SERVER, machines("server-lost-writers", writers).rounds(2)),
        failing(SERVER, machines("server-lost-mixed", three).max_states(1_000_000)),
        failing(SERVER, machines("server-lost-side-by-side", side)),
        failing(SERVER, machines("server-lost-away", away)),
        failing(SERVER, beyond(machines("server-lost-beyond-the-switch", side))),
        failing(BOTH, machines("both-writers", writers)),
        failing(BOTH, machines("both-mixed", mixed)),
        failing(BOTH, machines("both-readers", &[&[READ], &[READ]])),
        failing(RESTART, one_of_two_racks()),
    ]
}

/// The first rack's decider, or the second's, is restarted; a client that wants the other's locks has no part in it.
fn one_of_two_racks() -> Case<Params> {
    Case::new("restart-of-one-rack")
        .params(Params { racks: 2, ..params() })
        .space(Space::of(2).over(2))
        .clients(1, &[WRITE])
        .at_home(NodeId(0))
        .clients(1, &[READ])
        .clients(1, &[Want::exclusive(1)])
        .at_home(NodeId(1))
        .max_states(MAX_STATES)
}
