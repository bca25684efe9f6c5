//! What the explorer runs for wait mode: the paper's synchronisation, under a clock.
//!
//! *Slow* cases: every verb of a batch may take the clock's delay. A client that waits for something that has happened takes note
//! of it within that delay, too, so that these searches come to their end; being late is what the pauses are for.
//!
//! *Swift* cases, for recovery and growth: time passes only while nobody can move, so that T_wait and leases are longer than
//! everything the living do, and these searches are as small as those of handshake mode. A client that holds one lock while
//! it lets T_wait pass for another ([`HOLDING_LEAF`]) is what time passes for.

use super::cases::{
    INNER, INNER_AND_LEAF, LEAF, ROOT, case, dying, growing, range, regrowing, sleeping, small,
};
use lockwright_fabric::observe::Mode;
use lockwright_locks::citron::{Params, Synchrony, Timing};
use lockwright_locks::{Space, Want};
use lockwright_sim::case::{Case, Clock};

/// Verbs take up to a tick.
const SLOW: Clock = Clock { tick_ns: 1, delay_ticks: 1, max_ticks: 160 };
/// T_wait then: the slowest request below takes ten steps from its look to its notes.
const ENOUGH: u64 = 11;
/// A lease then: longer than a request takes from its grant to the end of its release, and than T_wait.
const SLOW_LEASE: u64 = 24;

/// Verbs take no time.
const SWIFT: Clock = Clock { tick_ns: 1, delay_ticks: 0, max_ticks: 200 };
/// A lease then. T_wait is a tick.
const SWIFT_LEASE: u64 = 2;

/// A leaf, held while T_wait passes at another lock.
pub(crate) const HOLDING_LEAF: [Want; 2] = [LEAF, ANOTHER];
/// The same with the leftmost internal node, the root of a tree that has not grown yet.
pub(crate) const HOLDING_INNER: [Want; 2] = [INNER, ANOTHER];
const ANOTHER: Want = Want::range(1, Mode::Exclusive, 0, 4);

/// Small trees in wait mode.
pub(crate) fn timed(m: u32, t_wait_ns: u64) -> Params {
    Params { synchrony: Synchrony::Wait(Timing { t_wait_ns, drift_ppm: 0 }), ..small(m) }
}

/// Leases go by the clock, which then runs for longer.
pub(crate) fn measure_leases(params: &mut Params, clock: &mut Clock) {
    let is_swift = clock.delay_ticks == 0;
    params.lease_ns = if is_swift { SWIFT_LEASE } else { SLOW_LEASE };
    clock.max_ticks = 50 * params.lease_ns as u32;
}

/// The same with a clock: time passes only when nobody can move.
pub(crate) fn in_ticks(case: Case<Params>) -> Case<Params> {
    case.clock(SWIFT).for_ticks(0)
}

/// The same in wait mode.
pub(crate) fn swift(mut case: Case<Params>) -> Case<Params> {
    case.params.synchrony = timed(1, 1).synchrony;
    in_ticks(case)
}

/// The same under a client that holds a lock for long: two locks, and T_wait for every internal node.
pub(crate) fn held(mut case: Case<Params>) -> Case<Params> {
    case.params.fast_path = false;
    case.space.locks = 2;
    swift(case)
}

pub(crate) fn cases() -> Vec<Case<Params>> {
    let mut cases = levels();
    cases.extend(recovery());
    cases.extend(growth());
    cases
}

fn levels() -> Vec<Case<Params>> {
    let fast_grant = |name, m| case(name, timed(m, ENOUGH)).clock(SLOW).for_ticks(0);
    let late = |name, m| fast_grant(name, m).pauses(1).for_ticks(ENOUGH as u32 + 2);
    vec![
        fast_grant("wait-leaf-and-inner", 1).clients(1, &[INNER]).clients(1, &[LEAF]),
        fast_grant("wait-leaf-and-root", 2).clients(1, &[ROOT]).clients(1, &[LEAF]),
        fast_grant("wait-inner-and-root", 1).clients(1, &[ROOT]).clients(1, &[INNER]),
        fast_grant("wait-two-nodes", 2).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT]),
        // One client is late: a request below aborts, and is safe.
        late("wait-late-leaf-and-root", 2).clients(1, &[ROOT]).clients(1, &[LEAF]),
        late("wait-late-inner-and-root", 1).clients(1, &[ROOT]).clients(1, &[INNER]),
    ]
}

/// One client stops until others have taken away what it left, and comes back.
pub(crate) fn zombie(name: &'static str, m: u32) -> Case<Params> {
    sleeping(swift(case(name, small(m)))).for_ticks(5 * SWIFT_LEASE as u32)
}

/// What the dead leave, at every waiting place.
fn recovery() -> Vec<Case<Params>> {
    let crash = |name, m| dying(swift(case(name, small(m))));
    vec![
        crash("wait-crash-m1", 1).clients(1, &[ROOT]).clients(1, &[INNER]).clients(1, &[LEAF]),
        crash("wait-crash-m2", 2).clients(1, &[ROOT]).clients(1, &[LEAF]).rounds(2),
        crash("wait-crash-in-a-leaf", 1).clients(2, &[LEAF]).rounds(2).space(Space::of(1).units(4)),
        crash("wait-crash-in-a-queue", 1).clients(3, &[INNER]),
        crash("wait-crash-with-two-nodes", 2).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT]),
        zombie("wait-zombie-leaf-and-leaf", 1).clients(2, &[LEAF]).space(Space::of(1).units(4)),
        zombie("wait-zombie-leaf-and-root", 2).clients(1, &[LEAF]).clients(1, &[ROOT]),
        zombie("wait-zombie-inner-and-inner", 1).clients(2, &[INNER]),
        zombie("wait-zombie-inner-and-root", 2).clients(1, &[INNER]).clients(1, &[ROOT]),
    ]
}

/// The tree grows under a locker in every phase.
fn growth() -> Vec<Case<Params>> {
    vec![
        held(growing("wait-grow-over-a-leaf", 1)).clients(1, &HOLDING_LEAF).clients(1, &[ROOT]),
        held(growing("wait-grow-over-the-root", 1)).clients(1, &HOLDING_INNER).clients(1, &[ROOT]),
        held(growing("wait-grow-over-leaf-and-root", 1))
            .clients(1, &HOLDING_LEAF)
            .clients(1, &[INNER])
            .clients(1, &[ROOT]),
        // With the leaves below an internal node locked explicitly.
        swift(growing("wait-grow-over-the-leaves", 1)).clients(1, &[INNER]).rounds(2).clients(1, &[ROOT]),
        held(growing("wait-grow-by-two-levels", 2)).clients(1, &HOLDING_LEAF).clients(1, &[range(0, 64)]),
        held(growing("wait-grow-under-the-parent", 2)).clients(1, &HOLDING_INNER).clients(1, &[ROOT]),
        held(growing("wait-grow-under-the-new-root", 2))
            .clients(1, &HOLDING_INNER)
            .clients(1, &[range(0, 64)]),
        held(regrowing("wait-shrink-and-grow-leaf", 1)).clients(1, &HOLDING_LEAF),
        swift(regrowing("wait-shrink-and-grow-root", 1)).clients(1, &[ROOT]),
        dying(swift(growing("wait-grow-crash-leaf", 1))).clients(1, &[LEAF]).clients(1, &[ROOT]),
        dying(swift(growing("wait-grow-crash-root", 1))).clients(1, &[INNER]).clients(1, &[ROOT]),
        dying(swift(regrowing("wait-shrink-crash-leaf", 1))).clients(1, &[LEAF]),
    ]
}
