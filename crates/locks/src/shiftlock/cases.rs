//! What the explorer runs for ShiftLock: every mix of up to four readers and writers, more of them where the paper's
//! algorithm broke, and crashes, pauses and users who give up, at every point.

use super::ShiftParams;
use crate::case::{Case, Timeouts};
use crate::protocol::{Patience, Space, Want};
use lockwright_fabric::Time;

pub(super) const WRITE: Want = Want::exclusive(0);
pub(super) const READ: Want = Want::shared(0);

/// A change of mode after `threshold` writers.
pub(super) fn params(threshold: u32) -> ShiftParams {
    ShiftParams { threshold, ..ShiftParams::default() }
}

/// The paper's own: readers get their turn even if none waits.
fn as_printed(threshold: u32) -> ShiftParams {
    ShiftParams { skips_idle_readers: false, ..params(threshold) }
}

/// Zombies are about: whoever is handed the lock looks at it first.
pub(super) fn wary(threshold: u32) -> ShiftParams {
    ShiftParams { trust_ns: 0, ..params(threshold) }
}

/// Some writers and readers, one round each, tokens checked.
pub(super) fn mixed(
    name: &'static str,
    writers: usize,
    readers: usize,
    params: ShiftParams,
) -> Case<ShiftParams> {
    Case::new(name).params(params).clients(writers, &[WRITE]).clients(readers, &[READ]).tokens()
}

/// One client crashes. Leases are longer than everything the living do.
fn crash(case: Case<ShiftParams>) -> Case<ShiftParams> {
    case.crashes(1).timeouts(Timeouts::WhenStuck)
}

/// One client stops until its locks have been taken away, and comes back.
pub(super) fn zombie(case: Case<ShiftParams>) -> Case<ShiftParams> {
    case.pauses(1).timeouts(Timeouts::WhenStuck)
}

/// Locks are taken for dead far too early, twice: even so nothing may go wrong, only that nobody recovers a third time.
fn hasty(mut case: Case<ShiftParams>) -> Case<ShiftParams> {
    case.params.last_generation = 2;
    case.timeouts(Timeouts::WhenFaulty).may_hang()
}

/// Cases that every layout has to pass.
pub(super) fn common() -> Vec<Case<ShiftParams>> {
    vec![
        mixed("two-and-two", 2, 2, params(1)),
        mixed("writer-and-readers", 1, 3, params(1)),
        mixed("writers-and-reader", 3, 1, params(1)),
        mixed("tries", 1, 1, params(1))
            .clients(1, &[WRITE.with(Patience::Try)])
            .clients(1, &[READ.with(Patience::Try)]),
        mixed("timeouts", 1, 0, params(1))
            .clients(1, &[WRITE.with(Patience::Until(Time(1)))])
            .clients(1, &[READ.with(Patience::Until(Time(1)))]),
        mixed("cancel", 2, 1, params(2)).cancellable(),
        crash(mixed("crash", 2, 1, params(1))),
        zombie(mixed("zombie", 1, 1, wary(1)).rounds(2)),
        zombie(mixed("zombie-in-queue", 2, 1, wary(2))),
    ]
}

/// Larger ones, for the layout of one verb each way.
pub(super) fn all() -> Vec<Case<ShiftParams>> {
    let mut cases = common();
    cases.extend([
        // Twice each, so that everybody meets everybody in every role.
        mixed("two-and-one-twice", 2, 1, params(1)).rounds(2),
        mixed("one-and-two-twice", 1, 2, params(2)).rounds(2),
        mixed("writers-only", 4, 0, params(2)),
        mixed("writers-and-reader-later", 3, 1, params(2)),
        mixed("as-printed", 3, 1, as_printed(1)),
        mixed("as-printed-later", 2, 2, as_printed(2)),
        // Where the printed epoch hangs a reader, and where the handover's halves in parallel break exclusion.
        mixed("four-and-one", 4, 1, params(2)),
        mixed("three-and-two", 3, 2, params(2)),
        mixed("three-twice-and-one", 3, 0, params(2)).rounds(2).clients(1, &[READ]),
        // Readers get their turn after so many writers, and writers theirs after those readers.
        mixed("fair", 2, 1, params(1)).rounds(2).bypass(3),
        mixed("two-locks", 1, 0, params(1))
            .clients(2, &[WRITE, Want::shared(1)])
            .clients(1, &[READ, Want::exclusive(1)])
            .space(Space::of(2).over(2)),
        // An abandoned waiter, and the same client again.
        mixed("cancel-and-again", 1, 0, params(1))
            .cancellable()
            .rounds(2)
            .clients(1, &[WRITE])
            .clients(1, &[READ]),
        mixed("cancel-among-three", 3, 1, params(2)).cancellable(),
        mixed("timeout-and-again", 1, 0, params(1))
            .rounds(2)
            .clients(1, &[WRITE.with(Patience::Until(Time(1)))])
            .rounds(2),
        crash(mixed("crash-of-three-writers", 3, 0, params(2))),
        crash(mixed("crash-among-readers", 1, 2, params(1))),
        crash(mixed("crash-twice-around", 2, 1, params(2)).rounds(2)),
        zombie(mixed("zombie-writer", 3, 0, wary(2))),
        zombie(mixed("zombie-reader", 1, 2, wary(1))),
        hasty(zombie(mixed("hasty-zombie", 2, 1, wary(1)))),
        hasty(crash(mixed("hasty-crash", 2, 1, wary(1)))),
    ]);
    cases
}
