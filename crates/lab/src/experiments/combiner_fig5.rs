//! The combiner thesis's Figures 5 to 8: throughput by number of clients, random ranges of 2^16 units, with 0, 1, 20
//! and 100 % writes. The thesis prints the curves without their figures; what it says of them in words is held against
//! ours as factors that have to be above one.

use super::combiner::{LOCKS, RANDOM, place, run_all, table};
use super::prelude::*;

macro_rules! figure {
    ($name:ident, $id:literal, $writes:literal, $figure:literal) => {
        pub(super) const $name: Experiment = Experiment {
            id: $id,
            title: concat!("Random ranges, ", $writes, " % writes, 1 to 96 clients"),
            source: concat!("Dezalos (EPFL 2024) ", $figure),
            run: |context| run(context, $writes as f64),
        };
    };
}

figure!(FIG5, "combiner-fig5", 0, "Fig. 5");
figure!(FIG6, "combiner-fig6", 1, "Fig. 6");
figure!(FIG7, "combiner-fig7", 20, "Fig. 7");
figure!(FIG8, "combiner-fig8", 100, "Fig. 8");

fn run(context: &Context, writes_percent: f64) -> Result<Findings, LabError> {
    let clients: &[usize] = context.pick(&[1, 2, 4, 8, 16, 24, 48, 72, 96], &[1, 16, 48]);
    let reports = run_all(context, clients, &RANDOM, writes_percent)?;
    let claims = claims(writes_percent, clients, &reports);
    Ok(Findings {
        tables: vec![table(clients, &reports)],
        plots: vec![plot(writes_percent, clients, &reports)],
        claims,
    })
}

/// What the thesis says in words: one is faster than the other, by however much.
fn claims(writes_percent: f64, clients: &[usize], reports: &[Vec<Report>]) -> Vec<Claim> {
    let at =
        |count: usize| clients.iter().position(|clients| *clients == count).expect("a count of the list");
    let faster = |id: &str, (one, other): (&str, &str), count: usize| {
        let ops = |name: &str| reports[place(name)][at(count)].goodput_per_s;
        Claim { band: (1.0, 1e6), ..Claim::new(id, 1.0, ops(one) / ops(other)) }
    };
    let mut claims = Vec::new();
    if writes_percent <= 20.0 {
        // "server-sided range locks perform better than the client-sided ones"
        claims.push(faster("combiner-over-citron", ("combiner-poll-rpc", "citron"), 48));
        let segments = faster("combiner-over-segments", ("combiner-poll-rpc", "ss"), 48);
        claims.push(
            segments.note("static segmentation is asked for eight segments at a time, as in the thesis"),
        );
    }
    if writes_percent == 0.0 {
        // "Interval tree performs better than combination when there is only one or two clients"
        claims.push(faster("interval-tree-first-at-one-client", ("interval-tree", "combiner-poll-rpc"), 1));
        // "polling with RDMA has a slightly better throughput"
        claims.push(faster("rdma-polling-over-rpc-polling", ("combiner-poll-flag", "combiner-poll-rpc"), 16));
    }
    if writes_percent == 100.0 {
        // "Combination with RDMA performs worse than combination with eRPC"
        let polling =
            faster("rpc-polling-over-rdma-polling", ("combiner-poll-rpc", "combiner-poll-flag"), 48);
        claims.push(
            polling.note("the thesis guesses at flags too close to each other; the model has no cache lines"),
        );
    }
    claims
}

fn plot(writes_percent: f64, clients: &[usize], reports: &[Vec<Report>]) -> Plot {
    let series = LOCKS.iter().zip(reports).map(|(lock, reports)| {
        let points = clients
            .iter()
            .zip(reports)
            .map(|(clients, report)| (*clients as f64, report.goodput_per_s / 1e3));
        Series::new(lock.label, Style::Line, points.collect())
    });
    Plot {
        name: "throughput".into(),
        title: format!("Random ranges, {writes_percent} % writes"),
        note: "simulated; the thesis prints its curves without figures".into(),
        x: Axis::linear("clients"),
        y: Axis::log("thousand operations per second"),
        series: series.collect(),
    }
}
