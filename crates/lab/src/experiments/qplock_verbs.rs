//! The asymmetric lock's promise in verbs: local clients none, ever; remote ones few, and none while they queue.
//!
//! The paper has no measurements; its claims are counts (§3.1). "One rCAS" is what entering an empty queue takes: the
//! leader's part in Peterson's lock comes on top, a WRITE and a READ as printed, a READ in the same round trip in ours.
//! The paper's count for a queue that is not empty assumes that one rCAS finds the tail, which the listing's loop does
//! not (it fails once to learn it): the claim is about the variant with fetch-and-store; the table has both.

use super::prelude::*;
use crate::two_sides::{Cost, SideReport, SidesReport, SidesRun, simulate_sides};
use lockwright_locks::qplock::{AsPrinted, QpLock, QpParams};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "qplock-verbs",
    title: "Verbs per acquire and release of the asymmetric lock, by side",
    source: "Asymmetric Mutual Exclusion for RDMA, §3.1",
    run,
};

fn run(context: &Context) -> Result<Findings, LabError> {
    let until_ns = context.pick(20_000_000, 2_000_000);
    let sides = |locals, remotes| SidesRun {
        locals,
        remotes,
        loopback: false,
        locks: 1,
        hold_ns: [0; 2],
        think_ns: 500,
        until_ns,
        seed: 1,
    };
    let (cas, swap) = (QpParams::default(), QpParams { swap: true, ..QpParams::default() });
    // A budget that is never used up keeps Peterson's lock out of the queue's figures.
    let queue_only = QpParams { budget: 60_000, ..swap };
    let lone_printed = simulate_sides::<QpLock<AsPrinted>>(&sides(0, 1), &cas)?;
    let lone = simulate_sides::<QpLock>(&sides(0, 1), &cas)?;
    let queue = simulate_sides::<QpLock<AsPrinted>>(&sides(0, 8), &queue_only)?;
    let mixed = simulate_sides::<QpLock>(&sides(8, 8), &cas)?;
    let mixed_swap = simulate_sides::<QpLock>(&sides(8, 8), &swap)?;
    let mixed_printed = simulate_sides::<QpLock<AsPrinted>>(&sides(8, 8), &cas)?;

    let mut table = Table::new(
        "costs",
        &["run", "side", "step", "cas", "writes", "reads", "messages", "round_trips", "times"],
    );
    let runs = [
        ("one remote, as printed", &lone_printed),
        ("one remote", &lone),
        ("8 remote, as printed, swap", &queue),
        ("8 local, 8 remote", &mixed),
        ("8 local, 8 remote, swap", &mixed_swap),
        ("8 local, 8 remote, as printed", &mixed_printed),
    ];
    for (name, outcome) in runs {
        rows(&mut table, name, outcome);
    }

    let local = runs.iter().map(|(_, outcome)| most(&outcome.local, total)).max().unwrap_or(0);
    // Clients that queued are told from leaders by the READ of Peterson's lock.
    let queued = |cost: fn(&Cost) -> u64| {
        let passed = queue.remote.acquires.keys().filter(|cost| cost.reads == 0);
        passed.map(cost).max().map_or(f64::NAN, |most| most as f64)
    };
    let claims = vec![
        Claim::new("local-verbs-and-messages", 0.0, local as f64),
        Claim::new("remote-empty-queue-cas", 1.0, most_acquire(&lone_printed, |cost| cost.cas)),
        Claim::new("remote-empty-queue-cas-looking-first", 1.0, most_acquire(&lone, |cost| cost.cas)),
        Claim::new("remote-queued-cas", 1.0, queued(|cost| cost.cas)),
        Claim::new("remote-queued-writes", 1.0, queued(|cost| cost.writes)),
        Claim::new("remote-queued-reads", 0.0, queued(|cost| cost.reads + cost.messages)),
        Claim::new("remote-release-cas", 1.0, most_release(&mixed, |cost| cost.cas)),
        Claim::new("remote-release-writes", 1.0, most_release(&mixed, |cost| cost.writes)),
        Claim::new("remote-release-reads", 0.0, most_release(&mixed, |cost| cost.reads + cost.messages)),
    ];
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims })
}

fn total(cost: &Cost) -> u64 {
    cost.cas + cost.writes + cost.reads + cost.messages
}

/// The dearest step of `side`.
fn most(side: &SideReport, what: fn(&Cost) -> u64) -> u64 {
    side.acquires.keys().chain(side.releases.keys()).map(what).max().unwrap_or(0)
}

fn most_acquire(outcome: &SidesReport, what: fn(&Cost) -> u64) -> f64 {
    outcome.remote.acquires.keys().map(what).max().map_or(f64::NAN, |most| most as f64)
}

fn most_release(outcome: &SidesReport, what: fn(&Cost) -> u64) -> f64 {
    outcome.remote.releases.keys().map(what).max().map_or(f64::NAN, |most| most as f64)
}

/// The ten commonest costs of every step.
fn rows(table: &mut Table, run: &str, outcome: &SidesReport) {
    for (side, name) in [(&outcome.local, "local"), (&outcome.remote, "remote")] {
        for (step, costs) in [("acquire", &side.acquires), ("release", &side.releases)] {
            let mut costs: Vec<_> = costs.iter().collect();
            costs.sort_by_key(|(cost, times)| (std::cmp::Reverse(**times), **cost));
            for (cost, times) in costs.into_iter().take(10) {
                table.row([
                    run.into(),
                    name.into(),
                    step.into(),
                    cost.cas.to_string(),
                    cost.writes.to_string(),
                    cost.reads.to_string(),
                    cost.messages.to_string(),
                    cost.round_trips.to_string(),
                    times.to_string(),
                ]);
            }
        }
    }
}
