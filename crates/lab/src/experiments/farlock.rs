//! FARLock beside the asymmetric lock that it is to be fairer than (ALock in its paper), and beside ours in strict order.
//!
//! Public are its abstract and its program. The abstract says that locks are granted strictly by arrival order and that latencies are
//! lower than the state of the art's, without a figure; so the claims are these two. The workload is what the program's files ask
//! for: one machine has the locks, ten of them here (the fewest of `test.py`), its clients hold them for a moment and all others for
//! five microseconds. Their ALock has a budget for each side, five and one; ours has one for both, five, and beside it one.

use super::prelude::*;
use crate::testbeds::farlock::{HOLD_NS, LOCALS, REMOTES};
use crate::two_sides::{SidesReport, SidesRun, simulate_sides};
use lockwright_baselines::farlock::{FarLock, FarParams};
use lockwright_locks::qplock::{AsPrinted, InOrder, QpLock, QpParams};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "farlock",
    title: "FARLock beside the asymmetric lock",
    source: "FARLock (OSDI '26), abstract; its program's configuration",
    run,
};

const LOCKS: u64 = 10;
const BUDGET: u16 = 5;

type Simulate = fn(&SidesRun) -> Result<SidesReport, LabError>;

fn farlock(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<FarLock>(sides, &FarParams { clients: 128, waits_from_draw: true })
}

/// Its queues are entered by a fetch-and-store, as those of FARLock are.
const ASYMMETRIC: QpParams = QpParams { budget: BUDGET, swap: true, ..QpParams::DEFAULT };

fn printed(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<QpLock<AsPrinted>>(sides, &ASYMMETRIC)
}

fn printed_in_turn(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<QpLock<AsPrinted>>(sides, &QpParams { budget: 1, ..ASYMMETRIC })
}

fn ours(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<QpLock>(sides, &ASYMMETRIC)
}

fn ours_in_order(sides: &SidesRun) -> Result<SidesReport, LabError> {
    simulate_sides::<QpLock<InOrder>>(sides, &QpParams { waits_from_ticket: true, ..QpParams::DEFAULT })
}

const NAMES: [(&str, Simulate); 5] = [
    ("farlock", farlock),
    ("qplock-printed", printed),
    ("qplock", ours),
    ("qplock-fifo", ours_in_order),
    ("qplock-printed, budget 1", printed_in_turn),
];

/// Why latencies are higher here.
const STEPS: &str = "a release writes the current ticket, and the next head reads it some time later: more steps a handover than the one \
                     WRITE of the asymmetric lock, so longer queues; on which workload it is otherwise is not public";

fn run(context: &Context) -> Result<Findings, LabError> {
    let header = [
        "lock",
        "kops",
        "p50_us",
        "p99_us",
        "p999_us",
        "local_p99_us",
        "remote_p99_us",
        "remote_share_percent",
        "longest_bypass",
    ];
    let mut table = Table::new("sides", &header);
    let mut outcomes = Vec::new();
    for (name, simulate) in NAMES {
        let outcome = simulate(&SidesRun {
            locals: LOCALS,
            remotes: REMOTES,
            loopback: false,
            locks: LOCKS,
            hold_ns: HOLD_NS,
            think_ns: 0,
            until_ns: context.pick(50_000_000, 5_000_000),
            seed: 1,
        })?;
        let all = outcome.together();
        table.row([
            name.into(),
            format!("{:.1}", outcome.kops()),
            two(all.quantile_us(0.5)),
            two(all.quantile_us(0.99)),
            two(all.quantile_us(0.999)),
            two(outcome.local.quantile_us(0.99)),
            two(outcome.remote.quantile_us(0.99)),
            two(100.0 * outcome.remote.grants() as f64 / all.grants().max(1) as f64),
            outcome.longest_bypass.to_string(),
        ]);
        outcomes.push(outcome);
    }
    let [far, printed, ours, in_order, _] = &outcomes[..] else { unreachable!("five locks") };
    let p99 = |outcome: &SidesReport| outcome.together().quantile_us(0.99);
    let others = (LOCALS + REMOTES - 1) as u32;
    let claims = vec![
        // Each of the others once, and then it has a later ticket.
        statement("granted-by-arrival", far.longest_bypass <= others),
        explained(statement("p99-below-asymmetric-lock", p99(far) < p99(printed)), STEPS),
        statement("ours-in-order-granted-by-arrival", in_order.longest_bypass <= others),
        statement("ours-more-grants-than-farlock", ours.kops() > far.kops()),
    ];
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims })
}
