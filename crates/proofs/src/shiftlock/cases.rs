//! What the explorer runs for ShiftLock: every mix of up to four readers and writers, more of them where the paper's
//! algorithm broke, and crashes, pauses and users who give up, at every point.

use lockwright_fabric::Time;
use lockwright_locks::shiftlock::ShiftParams;
use lockwright_locks::shiftlock::server::Resets;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::{Case, Clock, Timeouts};

pub(crate) const WRITE: Want = Want::exclusive(0);
pub(crate) const READ: Want = Want::shared(0);

/// A change of mode after `threshold` writers.
pub(crate) fn params(threshold: u32) -> ShiftParams {
    ShiftParams { threshold, ..ShiftParams::default() }
}

/// The paper's own: readers get their turn even if none waits.
fn as_printed(threshold: u32) -> ShiftParams {
    ShiftParams { skips_idle_readers: false, ..params(threshold) }
}

/// Zombies are about: a client that is handed the lock looks at it first.
pub(crate) fn wary(threshold: u32) -> ShiftParams {
    ShiftParams { trust_ns: 0, ..params(threshold) }
}

/// The paper's recovery: the server resets dead locks, one per era.
pub(crate) fn served(threshold: u32) -> ShiftParams {
    ShiftParams { resets: Resets::ByServer, ..params(threshold) }
}

/// As long as a grant may be believed.
fn trusting(threshold: u32) -> ShiftParams {
    let params = params(threshold);
    ShiftParams { trust_ns: 2 * params.lease_ns, ..params }
}

/// Some writers and readers, one round each, tokens checked. Leases are longer than everything the living do.
pub(crate) fn mixed(
    name: &'static str,
    writers: usize,
    readers: usize,
    params: ShiftParams,
) -> Case<ShiftParams> {
    let case = Case::new(name).params(params).clients(writers, &[WRITE]).clients(readers, &[READ]);
    case.timeouts(Timeouts::WhenStuckByFaults).tokens()
}

/// One client crashes.
fn crash(case: Case<ShiftParams>) -> Case<ShiftParams> {
    case.crashes(1)
}

/// One client stops until its locks have been taken away, and comes back.
pub(crate) fn zombie(case: Case<ShiftParams>) -> Case<ShiftParams> {
    case.pauses(1).timeouts(Timeouts::WhenStuckByFaults)
}

/// Locks are taken for dead far too early, twice: even so nothing may go wrong, only that nobody recovers a third time.
fn hasty(mut case: Case<ShiftParams>) -> Case<ShiftParams> {
    case.params.last_generation = 2;
    case.timeouts(Timeouts::WhenFaulty).may_hang()
}

/// One client stops for longer than it takes to recover its locks; the others take at most a tick for a step, and leases are
/// leases: a client that waited for at most one (or two) believes what it is told.
pub(crate) fn timed(mut case: Case<ShiftParams>) -> Case<ShiftParams> {
    const LEASE_TICKS: u32 = 4;
    let leases_of_trust = case.params.trust_ns / case.params.lease_ns;
    case.params = case.params.with_lease(u64::from(LEASE_TICKS));
    case.params.trust_ns *= leases_of_trust;
    let clock = Clock { tick_ns: 1, delay_ticks: 1, max_ticks: 20 * LEASE_TICKS };
    case.pauses(1).for_ticks(4 * LEASE_TICKS).clock(clock)
}

/// Cases that every layout has to pass.
pub(crate) fn common() -> Vec<Case<ShiftParams>> {
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
pub(crate) fn all() -> Vec<Case<ShiftParams>> {
    let mut cases = common();
    cases.extend([
        // Twice each, so that every client meets every other in every role.
        mixed("two-and-one-twice", 2, 1, params(1)).rounds(2),
        mixed("one-and-two-twice", 1, 2, params(2)).rounds(2),
        mixed("writers-only", 4, 0, params(2)),
        mixed("readers-only", 0, 4, params(1)),
        mixed("writers-and-reader-later", 3, 1, params(2)),
        mixed("as-printed", 3, 1, as_printed(1)),
        mixed("as-printed-later", 2, 2, as_printed(2)),
        // Where the printed epoch hangs a reader, and where the handover's halves in parallel break exclusion.
        mixed("four-and-one", 4, 1, params(2)),
        mixed("three-and-two", 3, 2, params(2)),
        mixed("three-twice-and-one", 3, 0, params(2)).rounds(2).clients(1, &[READ]),
        // Readers get their turn after so many writers, and writers theirs after those readers.
        mixed("fair", 2, 1, params(1)).rounds(2).bypass(3),
        // No more than those: the writers take turns, so that nobody but the reader is overtaken as often.
        mixed("fair-to-readers", 2, 0, params(3)).rounds(2).clients(1, &[READ]).bypass(2),
        mixed("two-locks", 1, 0, params(1))
            .clients(2, &[WRITE, Want::shared(1)])
            .clients(1, &[READ, Want::exclusive(1)])
            .space(Space::of(2).over(2)),
        // An abandoned waiter, and the same client again.
        mixed("cancel-and-again", 1, 0, params(1)).cancellable().rounds(2).clients(1, &[WRITE]),
        mixed("cancel-reading-and-again", 0, 1, params(1)).cancellable().rounds(2).clients(1, &[WRITE]),
        mixed("cancel-among-three", 3, 1, params(2)).cancellable(),
        mixed("timeout-and-again", 1, 0, params(1))
            .clients(1, &[WRITE.with(Patience::Until(Time(1)))])
            .rounds(2),
        crash(mixed("crash-of-three-writers", 3, 0, params(2))),
        crash(mixed("crash-among-readers", 1, 2, params(1))),
        crash(mixed("crash-twice-around", 2, 1, params(2)).rounds(2)),
        zombie(mixed("zombie-of-two-writers", 2, 0, wary(1)).rounds(2)),
        zombie(mixed("zombie-of-two-readers", 0, 2, wary(1)).rounds(2)),
        zombie(mixed("zombie-writer", 3, 0, wary(2))),
        zombie(mixed("zombie-reader", 1, 2, wary(1))),
        // The same with leases that are measured: a client that did not wait for long makes sure of nothing.
        timed(mixed("timed-reader-twice", 0, 1, params(1)).rounds(2).clients(1, &[WRITE])),
        timed(mixed("timed-writer-twice", 1, 0, params(1)).rounds(2).clients(1, &[READ])),
        timed(mixed("timed-writers", 2, 0, params(1))),
        timed(mixed("timed-readers", 0, 2, params(1))),
        timed(mixed("timed-trusting", 0, 1, trusting(1)).rounds(2).clients(1, &[WRITE])),
        timed(mixed("timed-trusting-writers", 2, 0, trusting(1))),
        // The paper's reset by the server: three clients and a crash, two and a pause, and two locks that die together,
        // of which one has to wait for the next era.
        crash(mixed("server-crash", 2, 1, served(1))),
        crash(mixed("server-crash-writers", 3, 0, served(2))),
        crash(mixed("server-crash-readers", 1, 2, served(1))),
        mixed("server-two-locks", 2, 0, served(1))
            .clients(2, &[Want::exclusive(1)])
            .space(Space::of(2))
            .crashes(2),
        zombie(mixed("server-zombie", 1, 1, ShiftParams { trust_ns: 0, ..served(1) }).rounds(2)),
        zombie(mixed("server-zombie-writers", 2, 0, ShiftParams { trust_ns: 0, ..served(2) }).rounds(2)),
        hasty(zombie(mixed("hasty-zombie", 2, 1, wary(1)))),
        hasty(crash(mixed("hasty-crash", 2, 1, wary(1)))),
    ]);
    cases
}
