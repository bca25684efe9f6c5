//! What the explorer runs for keyed locks that are upgraded and downgraded: two and three clients, one of them killed, or
//! stopped and evicted, between any two steps.

use super::HolderParams;
use super::cases::{READ, TRY_READ, WRITE, hasty, killed, patient, stopped, without_tries};
use lockwright_fabric::Time;
use lockwright_locks::shiftlock::ShiftParams;
use lockwright_locks::{Change, Patience, Want};
use lockwright_sim::case::{Case, Round, Script, Timeouts};

pub(crate) const UP: Change = Change::Upgrade(Patience::Forever);
pub(crate) const TRY_UP: Change = Change::Upgrade(Patience::Try);
const SOON: Time = Time(1);
pub(crate) const SOON_UP: Change = Change::Upgrade(Patience::Until(SOON));
pub(crate) const DOWN: Change = Change::Downgrade;

/// What a client wants, and what it does with it then.
pub(crate) type Does = (Want, &'static [Change]);

pub(crate) const READS: Does = (READ, &[]);
pub(crate) const WRITES: Does = (WRITE, &[]);
pub(crate) const TRIES: Does = (TRY_READ, &[]);
pub(crate) const UPGRADES: Does = (READ, &[UP]);
pub(crate) const DOWNGRADES: Does = (WRITE, &[DOWN]);

/// A client for each, once.
pub(crate) fn changed(name: &'static str, clients: &[Does]) -> Case<HolderParams> {
    let shift = ShiftParams { threshold: 1, ..ShiftParams::default() };
    let params = HolderParams { shift, clients: clients.len() as u64, ..HolderParams::default() };
    let mut case = Case::new(name).params(params).tokens();
    for (want, changes) in clients {
        let changes = changes.iter().map(|change| (0, *change)).collect();
        let round = Round { wants: vec![*want], changes, ..Round::default() };
        case.clients.push(Script { home: None, rounds: vec![round] });
    }
    without_tries(case)
}

/// The same, and nobody ever takes a lock for dead.
pub(crate) fn trusting(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.shift = case.params.shift.with_lease(0);
    case
}

/// The same, and nobody looks at tokens, which may tell before anything else does.
pub(crate) fn without_tokens(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.checks.tokens = false;
    case
}

/// Who does not wait for long gives up at any moment; else as the patient.
fn gives_up(case: Case<HolderParams>) -> Case<HolderParams> {
    case.timeouts(Timeouts::AnyUntil(SOON))
}

pub(crate) fn all() -> Vec<Case<HolderParams>> {
    let late: Does = (READ, &[SOON_UP]);
    let tries: Does = (READ, &[TRY_UP]);
    let up_and_down: Does = (READ, &[UP, DOWN]);
    let down_and_up: Does = (WRITE, &[DOWN, UP]);
    vec![
        patient(changed("upgraded", &[UPGRADES, READS])),
        patient(changed("upgraded-among-three", &[UPGRADES, READS, WRITES])),
        patient(changed("upgraded-and-tried", &[UPGRADES, READS, TRIES])),
        patient(changed("upgraded-before-writers", &[UPGRADES, WRITES, WRITES])),
        patient(killed(changed("upgraded-before-writers-and-killed", &[UPGRADES, WRITES, WRITES]))),
        hasty(changed("upgraded-and-hasty", &[UPGRADES, WRITES])),
        patient(changed("both-upgraded", &[UPGRADES, UPGRADES])),
        patient(changed("both-upgraded-beside-a-writer", &[UPGRADES, UPGRADES, WRITES])),
        patient(changed("upgrade-tried", &[tries, UPGRADES, WRITES])),
        gives_up(changed("upgrade-given-up", &[late, READS])),
        gives_up(changed("upgrade-given-up-beside-an-upgrade", &[late, UPGRADES])),
        gives_up(changed("upgrade-given-up-among-three", &[late, READS, WRITES])),
        patient(killed(changed("upgraded-and-killed", &[UPGRADES, READS]))),
        patient(killed(changed("upgraded-and-killed-among-three", &[UPGRADES, READS, WRITES]))),
        patient(killed(changed("both-upgraded-and-killed", &[UPGRADES, UPGRADES]))),
        patient(killed(changed("both-upgraded-and-killed-among-three", &[UPGRADES, UPGRADES, READS]))),
        hasty(killed(changed("upgraded-and-killed-hasty", &[UPGRADES, WRITES]))),
        gives_up(killed(changed("upgrade-given-up-or-killed", &[late, READS]))),
        patient(stopped(changed("upgraded-and-stopped", &[UPGRADES, READS]))),
        patient(stopped(changed("upgraded-and-stopped-beside-a-writer", &[UPGRADES, WRITES]))),
        patient(stopped(changed("both-upgraded-and-stopped", &[UPGRADES, UPGRADES]))),
        patient(stopped(changed("upgraded-and-stopped-among-three", &[UPGRADES, READS, WRITES]))),
        hasty(stopped(changed("upgraded-and-stopped-hasty", &[UPGRADES, WRITES]))),
        trusting(changed("downgraded", &[DOWNGRADES, WRITES, READS])),
        patient(changed("downgraded-before-writers", &[DOWNGRADES, WRITES, WRITES])),
        hasty(changed("downgraded-and-hasty", &[DOWNGRADES, WRITES])),
        patient(killed(changed("downgraded-and-killed", &[DOWNGRADES, WRITES, READS]))),
        hasty(killed(changed("downgraded-and-killed-hasty", &[DOWNGRADES, WRITES]))),
        patient(stopped(changed("downgraded-and-stopped", &[DOWNGRADES, WRITES, READS]))),
        hasty(stopped(changed("downgraded-and-stopped-hasty", &[DOWNGRADES, WRITES]))),
        patient(changed("up-and-down", &[up_and_down, WRITES, READS])),
        patient(killed(changed("up-and-down-and-killed", &[up_and_down, WRITES]))),
        patient(changed("down-and-up", &[down_and_up, WRITES, READS])),
        patient(killed(changed("down-and-up-and-killed", &[down_and_up, READS]))),
        patient(stopped(changed("down-and-up-and-stopped", &[down_and_up, WRITES]))),
    ]
}
