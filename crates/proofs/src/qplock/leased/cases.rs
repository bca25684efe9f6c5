//! What the explorer runs for the recoverable asymmetric lock, all with weak scope and tokens: crashes and sleepers at
//! every point of two and three clients. Leases are longer than what the living do: nobody recovers before nothing else
//! moves. Sleepers know from their clocks that they slept, once they look.

use lockwright_fabric::{NodeId, Time};
use lockwright_locks::qplock::leased::LeasedParams;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::{Case, Timeouts};

/// Where the lock is, and so its local clients.
const HERE: NodeId = NodeId(0);
/// Another node with memory.
const ELSEWHERE: NodeId = NodeId(1);

const WANT: Want = Want::exclusive(0);

/// One descriptor each, and two looks for the dead in the time of two leases.
pub(crate) const fn params(budget: u16) -> LeasedParams {
    LeasedParams { budget, slots: 1, lease_ns: 1, look_ns: 1, ..LeasedParams::DEFAULT }
}

/// Clients at home on the lock's node, on another one, and nowhere, who all want the lock once.
pub(crate) fn clients(name: &'static str, counts: [usize; 3], params: LeasedParams) -> Case<LeasedParams> {
    let [locals, remotes, homeless] = counts;
    Case::new(name)
        .params(LeasedParams { clients: (locals + remotes) as u32, ..params })
        .space(Space::of(1).over(if remotes > 0 { 2 } else { 1 }))
        .clients(locals, &[WANT])
        .at_home(HERE)
        .clients(remotes, &[WANT])
        .at_home(ELSEWHERE)
        .clients(homeless, &[WANT])
        .weak_scope()
        .tokens()
        .timeouts(Timeouts::WhenStuck)
}

/// One client crashes.
pub(crate) fn crash(case: Case<LeasedParams>) -> Case<LeasedParams> {
    case.crashes(1)
}

/// One client stops until the others have gone on without it, and comes back. It leaves names of an old generation
/// behind, which mean nothing but are not zero.
pub(crate) fn zombie(mut case: Case<LeasedParams>) -> Case<LeasedParams> {
    case.checks.quiet = false;
    case.pauses(1).sleepers_know()
}

/// The cases of what is shipped.
pub(crate) fn all() -> Vec<Case<LeasedParams>> {
    let (one, two) = (params(1), params(2));
    vec![
        clients("one-each", [1, 1, 0], one).rounds(2),
        clients("two-local", [2, 1, 0], one),
        clients("two-remote", [1, 2, 0], two),
        clients("two-each", [2, 2, 0], one),
        clients("mailboxes", [1, 0, 2], one),
        tries(),
        timeouts(),
        crash(clients("crash-one-each", [1, 1, 0], one).rounds(2)),
        crash(clients("crash-two-local", [2, 1, 0], one)),
        crash(clients("crash-two-remote", [1, 2, 0], two)),
        crash(clients("crash-three-local", [3, 0, 0], two)),
        crash(clients("crash-by-mailbox", [1, 0, 2], two)),
        known_deaths(),
        zombie(clients("zombie-one-each", [1, 1, 0], one).rounds(2)),
        zombie(clients("zombie-two-local", [2, 1, 0], one)),
        zombie(clients("zombie-two-remote", [1, 2, 0], two)),
        zombie(clients("zombie-three-local", [3, 0, 0], two)),
        zombie(clients("zombie-by-mailbox", [0, 0, 2], one).rounds(2)),
        // Two things go wrong.
        zombie(crash(clients("crash-and-zombie", [1, 1, 0], one))),
        clients("two-crashes", [2, 1, 0], one).crashes(2),
        two_locks(),
    ]
}

/// One that only tries, among others.
fn tries() -> Case<LeasedParams> {
    let case = clients("tries", [1, 1, 0], params(1)).clients(1, &[WANT.with(Patience::Try)]).at_home(HERE);
    let params = LeasedParams { clients: 3, ..case.params };
    case.params(params)
}

/// One that gives up when it likes, and one of the other side.
fn timeouts() -> Case<LeasedParams> {
    let until = WANT.with(Patience::Until(Time(1)));
    let case = clients("timeouts", [1, 0, 0], params(1)).clients(1, &[until]).at_home(ELSEWHERE);
    let params = LeasedParams { clients: 2, ..case.params };
    case.params(params).space(Space::of(1).over(2))
}

/// One client crashes, and its host's clients look for the dead at any moment. There are no leases, so that one who
/// dies before its turn is not found.
pub(crate) fn known_deaths() -> Case<LeasedParams> {
    let never = LeasedParams { lease_ns: u64::MAX, ..params(2) };
    clients("known-deaths", [3, 0, 0], never).crashes(1).timeouts(Timeouts::Any).may_hang()
}

/// Local to one lock, remote to the other, and holding both.
fn two_locks() -> Case<LeasedParams> {
    let both = [WANT, Want::exclusive(1)];
    let params = LeasedParams { slots: 2, clients: 2, ..params(1) };
    crash(
        Case::new("two-locks-in-order")
            .params(params)
            .space(Space::of(2).over(2))
            .clients(1, &both)
            .at_home(HERE)
            .clients(1, &both)
            .at_home(ELSEWHERE)
            .weak_scope()
            .tokens()
            .timeouts(Timeouts::WhenStuck),
    )
}
