//! What the explorer runs for locks with holder records: a client is killed, or stopped and evicted, between any two steps
//! of everything that has to do with records and resets.

use super::HolderParams;
use super::change_cases::{self, DOWNGRADES, READS, UPGRADES, WRITES, changed};
use crate::shiftlock::narrow::Narrow;
use lockwright_locks::shiftlock::ShiftParams;
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::{Patience, Want};
use lockwright_sim::case::{Case, Timeouts};

pub(crate) const WRITE: Want = Want::exclusive(0);
pub(crate) const READ: Want = Want::shared(0);
pub(crate) const TRY_WRITE: Want = WRITE.with(Patience::Try);
pub(crate) const TRY_READ: Want = READ.with(Patience::Try);

/// Each of these once, with a record for each.
pub(crate) fn mixed(name: &'static str, wants: &[Want], threshold: u32) -> Case<HolderParams> {
    let shift = ShiftParams { threshold, ..ShiftParams::default() };
    let params = HolderParams { shift, clients: wants.len() as u64, ..HolderParams::default() };
    wants.iter().fold(Case::new(name).params(params).tokens(), |case, want| case.clients(1, &[*want]))
}

/// The same, and waiters have not tried before.
pub(crate) fn without_tries(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.tries_first = false;
    case
}

/// The same, and the lock was left behind by a client that is dead.
pub(crate) fn left_by_the_dead(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.left_by_the_dead = true;
    case.checks.quiet = false;
    case
}

/// The same, and the lock was left behind by so many dead readers.
pub(crate) fn left_by_readers(readers: u64, mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.left_by_readers = readers;
    case.checks.quiet = false;
    case
}

/// The same, and the lock has been released so often.
pub(crate) fn after(released: u64, mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.released = released;
    case
}

/// Waiters ask at any time, as often as they like, and reset what they find dead, once: nothing rests on how patient they
/// are. After that nobody recovers any more, so a client may wait for ever.
pub(crate) fn hasty(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.shift.last_generation = 1;
    case.timeouts(Timeouts::Any).may_hang()
}

/// Waiters ask when nothing moves any more: then every client comes to an end.
pub(crate) fn patient(case: Case<HolderParams>) -> Case<HolderParams> {
    case.timeouts(Timeouts::WhenStuck)
}

/// One of them is killed.
pub(crate) fn killed(case: Case<HolderParams>) -> Case<HolderParams> {
    case.crashes(1)
}

/// One of them is stopped, may be evicted meanwhile, and goes on. What a zombie's last verb leaves behind when the others are
/// done, the next client finds and resets; here none comes, so memory need not be free in the end.
pub(crate) fn stopped(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.checks.quiet = false;
    case.pauses(1)
}

pub(crate) fn all() -> Vec<Case<HolderParams>> {
    let mut cases = vec![
        patient(mixed("healthy", &[WRITE, WRITE, READ], 1)),
        hasty(mixed("healthy-and-hasty", &[WRITE, WRITE], 1)),
        hasty(mixed("tries", &[WRITE, TRY_WRITE, TRY_READ], 1)),
        patient(killed(mixed("killed", &[WRITE, WRITE, READ], 1))),
        patient(killed(mixed("killed-writer", &[WRITE, WRITE, WRITE], 2))),
        patient(killed(mixed("killed-reader", &[READ, READ, WRITE], 1))),
        hasty(killed(mixed("killed-and-hasty", &[WRITE, WRITE], 2))),
        hasty(killed(mixed("killed-and-tried", &[READ, TRY_READ, TRY_WRITE], 1))),
        patient(stopped(mixed("stopped", &[WRITE, WRITE, READ], 1))),
        patient(stopped(mixed("stopped-reader", &[READ, READ, WRITE], 1))),
        hasty(stopped(mixed("stopped-writers-hasty", &[WRITE, WRITE], 2))),
        hasty(stopped(mixed("stopped-reader-hasty", &[WRITE, READ], 1))),
        hasty(stopped(mixed("stopped-and-tried", &[READ, TRY_READ, TRY_WRITE], 1))),
        stopped(left_by_the_dead(mixed("stopped-before-it-takes", &[TRY_WRITE, TRY_WRITE], 1).rounds(2))),
    ];
    cases.extend(change_cases::all());
    cases
}

/// A writer waits for three readers who are dead, and sleeps through two recoveries: it is the same generation again.
pub(crate) fn wrapping() -> Case<HolderParams> {
    let case = mixed("sleeps-through-all-generations", &[TRY_WRITE], 1).rounds(2);
    let case = case.clients(1, &[TRY_WRITE]).clients(1, &[WRITE]);
    let mut case = without_tries(left_by_readers(3, case));
    case.params.clients = 3;
    patient(killed(case))
}

/// There are no tokens left.
pub(crate) fn spent() -> Case<HolderParams> {
    let last = Narrow::REL_CNT.max() as u64 - 1;
    patient(after(last, mixed("spent", &[WRITE, WRITE, READ], 1)))
}

/// Of an entry whose counts end soon: generations wrap, and tokens run out while a client is killed or stopped.
pub(crate) fn ending() -> Vec<Case<HolderParams>> {
    let last = Narrow::LIMIT;
    vec![
        wrapping(),
        spent(),
        patient(after(last - 1, mixed("one-token-left", &[WRITE, WRITE, READ], 1))),
        patient(after(last - 2, mixed("two-tokens-left", &[READ, READ, WRITE], 1))),
        patient(killed(after(last - 2, mixed("killed", &[WRITE, WRITE, READ], 2)))),
        patient(killed(after(last - 1, mixed("killed-reader", &[READ, READ, WRITE], 1)))),
        patient(killed(after(last - 1, mixed("killed-and-tried", &[READ, TRY_READ, TRY_WRITE], 1)))),
        patient(stopped(after(last - 2, mixed("stopped", &[WRITE, WRITE, READ], 1)))),
        patient(stopped(after(last - 1, mixed("stopped-reader", &[READ, READ, WRITE], 1)))),
        patient(after(last - 1, changed("upgraded-to-the-last-token", &[UPGRADES, READS, WRITES]))),
        patient(killed(after(last - 2, changed("upgraded-and-killed", &[UPGRADES, READS, WRITES])))),
        patient(killed(after(last - 1, changed("downgraded-and-killed", &[DOWNGRADES, WRITES, READS])))),
        patient(killed(mixed("killed-twice", &[WRITE, WRITE, WRITE], 2)).crashes(2)),
        patient(killed(mixed("killed-twice-among-readers", &[WRITE, READ, READ], 1)).crashes(2)),
    ]
}

/// Of a fabric that destroys a dead client's connection before its death is known: a client that is killed does nothing any
/// more.
pub(crate) fn fenced() -> Vec<Case<HolderParams>> {
    vec![
        patient(mixed("healthy", &[WRITE, WRITE, READ], 1)),
        hasty(mixed("healthy-and-hasty", &[WRITE, WRITE], 1)),
        hasty(mixed("tries", &[WRITE, TRY_WRITE, TRY_READ], 1)),
        patient(killed(mixed("killed", &[WRITE, WRITE, READ], 1))),
        patient(killed(mixed("killed-reader", &[READ, READ, WRITE], 1))),
        hasty(killed(mixed("killed-and-hasty", &[WRITE, WRITE], 2))),
        hasty(killed(mixed("killed-and-tried", &[READ, TRY_READ, TRY_WRITE], 1))),
    ]
}
