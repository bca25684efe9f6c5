//! What the explorer runs for the asymmetric lock with membership. Every case has weak scope.

use super::{HERE, MemberParams};
use crate::member_cases::{gives_up, hasty, killed, soon};
use lockwright_locks::{Change, Patience, Want};
use lockwright_sim::case::{Case, Timeouts};

pub(crate) const WRITE: Want = Want::exclusive(0);
pub(crate) const READ: Want = Want::shared(0);
pub(crate) const TRY_WRITE: Want = WRITE.with(Patience::Try);
const TRY_READ: Want = READ.with(Patience::Try);

/// Each of these once, on either side.
pub(crate) fn sides(
    name: &'static str,
    budget: u16,
    locals: &[Want],
    remotes: &[Want],
) -> Case<MemberParams> {
    let (count, clients) = (locals.len() as u64, (locals.len() + remotes.len()) as u64);
    let params =
        MemberParams { budget, clients, locals: count, waits_from_ticket: true, ..MemberParams::default() };
    let case = Case::new(name).params(params).tokens().weak_scope();
    let case = locals.iter().fold(case, |case, want| case.clients(1, &[*want])).at_home(HERE);
    let case = remotes.iter().fold(case, |case, want| case.clients(1, &[*want]));
    case.timeouts(Timeouts::WhenStuck)
}

/// The dead left so many tickets in the queues of the local and the remote side.
pub(crate) fn left_by_the_dead(local: u64, remote: u64, mut case: Case<MemberParams>) -> Case<MemberParams> {
    case.params.left_by_the_dead = [local, remote];
    case
}

pub(crate) fn all() -> Vec<Case<MemberParams>> {
    let mut cases = healthy();
    cases.extend(with_deaths());
    cases
}

fn healthy() -> Vec<Case<MemberParams>> {
    vec![
        sides("one-each", 1, &[WRITE], &[WRITE]).rounds(3),
        sides("two-local", 1, &[WRITE, WRITE], &[WRITE]),
        sides("two-local-b2", 2, &[WRITE, WRITE], &[WRITE]),
        sides("two-remote-b2", 2, &[WRITE], &[WRITE, WRITE]).rounds(2),
        sides("two-each", 2, &[WRITE, WRITE], &[WRITE, WRITE]),
        sides("local-writer-remote-reader", 1, &[WRITE], &[READ]).rounds(2),
        sides("remote-writer-local-reader", 1, &[READ], &[WRITE]).rounds(2),
        sides("readers-of-both-sides", 2, &[READ, WRITE], &[READ]),
        sides("reader-and-two-writers", 1, &[WRITE, READ], &[WRITE]),
        sides("tries", 1, &[WRITE, TRY_READ], &[TRY_WRITE]),
        sides("tries-among-readers", 1, &[READ, TRY_WRITE], &[TRY_READ]),
        gives_up(sides("gives-up", 1, &[soon(WRITE), WRITE], &[soon(WRITE)])),
        gives_up(sides("gives-up-on-readers", 1, &[READ], &[soon(WRITE), WRITE])),
        sides("cancels", 1, &[WRITE], &[WRITE]).cancellable(),
        sides("downgrades", 1, &[READ], &[WRITE]).then(Change::Downgrade),
        hasty(sides("hasty", 2, &[WRITE, WRITE], &[WRITE])),
        fair_to_one(1).bypass(2),
        fair_to_one(2).bypass(4),
    ]
}

/// Two local clients, again and again, against a remote one that comes once. From when that one has its ticket, it is overtaken by
/// one turn of the other side, and by one more if it became the victim last.
pub(crate) fn fair_to_one(budget: u16) -> Case<MemberParams> {
    let name = if budget == 1 { "fair-to-one-remote" } else { "fair-to-one-remote-b2" };
    let mut case = sides(name, budget, &[WRITE, WRITE], &[WRITE]);
    for script in &mut case.clients[..2] {
        script.rounds = std::iter::repeat_n(script.rounds[0].clone(), 3).collect();
    }
    case
}

fn with_deaths() -> Vec<Case<MemberParams>> {
    vec![
        killed(sides("killed-one-each", 1, &[WRITE], &[WRITE])),
        killed(sides("killed-two-local", 2, &[WRITE, WRITE], &[WRITE])),
        killed(sides("killed-two-remote", 2, &[WRITE], &[WRITE, WRITE])),
        killed(sides("killed-three-local", 2, &[WRITE, WRITE, WRITE], &[])),
        killed(sides("killed-readers", 1, &[READ, WRITE], &[READ])),
        killed(sides("killed-remote-readers", 1, &[WRITE], &[READ, WRITE])),
        killed(sides("killed-and-tried", 1, &[WRITE, TRY_WRITE], &[TRY_READ])),
        killed(sides("killed-while-downgrading", 1, &[READ], &[WRITE]).then(Change::Downgrade)),
        killed(gives_up(sides("killed-while-others-give-up", 1, &[WRITE], &[soon(WRITE), WRITE]))),
        sides("killed-twice", 2, &[WRITE, WRITE], &[WRITE]).crashes(2),
        hasty(killed(sides("killed-and-hasty", 1, &[WRITE], &[WRITE]))),
        hasty(killed(sides("killed-and-hasty-remote", 2, &[], &[WRITE, WRITE]))),
        hasty(left_by_the_dead(1, 0, sides("left-on-the-local-side", 2, &[WRITE, WRITE], &[]))),
        hasty(left_by_the_dead(0, 1, sides("left-on-the-remote-side", 2, &[WRITE], &[WRITE, WRITE]))),
        hasty(left_by_the_dead(2, 1, sides("left-on-both-sides", 1, &[WRITE], &[WRITE]))),
        hasty(left_by_the_dead(1, 1, sides("left-and-tried", 1, &[TRY_WRITE, WRITE], &[TRY_WRITE]))),
        hasty(killed(left_by_the_dead(1, 0, sides("skipper-killed", 1, &[WRITE, WRITE], &[])))),
    ]
}
