//! What the budget buys: how the two sides share one lock, how often a lone remote client is overtaken, and what fairness
//! costs in throughput.
//!
//! The paper promises a bound by the budget (§3.1) and prints no figures: those in the claims are ours, and are labelled as
//! expected. The bound, 2 × budget − 1 for a client that comes alone, is what the explorer finds, tight, for budgets up to 3; for
//! larger ones it is the same argument, not explored.

use super::prelude::*;
use crate::two_sides::{SidesReport, SidesRun, simulate_sides};
use lockwright_locks::qplock::{InOrder, QpLock, QpParams};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "qplock-fairness",
    title: "The asymmetric lock's budget: shares of grants and longest bypass",
    source: "Asymmetric Mutual Exclusion for RDMA, §3.1",
    run,
};

/// The paper has none.
const OUR_FIGURE: &str =
    "the figure is ours, from exploring small cases: the paper only says that there is a bound";

fn run(context: &Context) -> Result<Findings, LabError> {
    let budgets: &[u16] = context.pick(&[1, 2, 3, 4, 8, 16, 32, 64], &[1, 3, 8]);
    let until_ns = context.pick(50_000_000, 3_000_000);
    let sides = |locals, remotes| SidesRun {
        locals,
        remotes,
        loopback: false,
        locks: 1,
        hold_ns: [0; 2],
        think_ns: 0,
        until_ns,
        seed: 1,
    };
    let header = [
        "budget",
        "locals",
        "remotes",
        "kops",
        "remote_share_percent",
        "longest_bypass",
        "local_p99_us",
        "remote_p99_us",
    ];
    let mut table = Table::new("budgets", &header);
    let (mut kops, mut shares, mut claims) = (Vec::new(), Vec::new(), Vec::new());
    for &budget in budgets {
        let params = QpParams { budget, swap: true, ..QpParams::default() };
        let crowd = simulate_sides::<QpLock>(&sides(8, 8), &params)?;
        let lone = simulate_sides::<QpLock>(&sides(2, 1), &params)?;
        rows(&mut table, &budget.to_string(), &crowd, &lone);
        kops.push((f64::from(budget), crowd.kops()));
        shares.push((f64::from(budget), remote_share(&crowd)));
        // With budget 1 the two locals' own bound, 2, is the larger one.
        let bound = f64::from(2 * budget - 1).max(2.0);
        claims.push(Claim {
            band: (0.0, bound),
            ..Claim::new(&format!("bypass-at-budget-{budget}"), bound, f64::from(lone.longest_bypass))
                .expected()
                .note(OUR_FIGURE)
        });
        // Turns of equal length, as long as both sides always have a waiter.
        claims.push(
            Claim::new(&format!("remote-share-at-budget-{budget}"), 50.0, remote_share(&crowd))
                .within_points(5.0)
                .expected()
                .note(OUR_FIGURE),
        );
    }
    // Strict order knows no budget.
    let defaults = QpParams::default();
    let crowd = simulate_sides::<QpLock<InOrder>>(&sides(8, 8), &defaults)?;
    rows(&mut table, "fifo", &crowd, &simulate_sides::<QpLock<InOrder>>(&sides(2, 1), &defaults)?);
    claims.push(
        Claim::new("remote-share-in-strict-order", 50.0, remote_share(&crowd))
            .within_points(5.0)
            .expected()
            .note("eight of each side, each of whom waits for all others: one grant each per round"),
    );
    let plot = |name: &str, title: &str, y: &str, points| Plot {
        name: name.into(),
        title: title.into(),
        note: "simulated; 8 local and 8 remote clients, one lock".into(),
        x: Axis::log("budget"),
        y: Axis::linear(y),
        series: vec![Series::new("qplock", Style::Line, points)],
    };
    let plots = vec![
        plot("throughput", "What fairness costs", "thousand grants per second", kops),
        plot("share", "Who gets the lock", "percent of grants to remote clients", shares),
    ];
    Ok(Findings { tables: vec![table], plots, claims })
}

/// A run of eight against eight, and one of two locals against a lone remote client.
fn rows(table: &mut Table, budget: &str, crowd: &SidesReport, lone: &SidesReport) {
    for (locals, remotes, outcome) in [(8, 8, crowd), (2, 1, lone)] {
        table.row([
            budget.to_owned(),
            locals.to_string(),
            remotes.to_string(),
            format!("{:.1}", outcome.kops()),
            format!("{:.1}", remote_share(outcome)),
            outcome.longest_bypass.to_string(),
            format!("{:.2}", outcome.local.quantile_us(0.99)),
            format!("{:.2}", outcome.remote.quantile_us(0.99)),
        ]);
    }
}

fn remote_share(outcome: &SidesReport) -> f64 {
    let (local, remote) = (outcome.local.grants() as f64, outcome.remote.grants() as f64);
    100.0 * remote / (local + remote)
}
