//! FissLock Fig. 15: how long transactions of TATP and TPC-C take, type by type.

use super::fiss::{FISSLOCK, MANAGERS, cdf, of};
use super::fiss_fig14::{benchmarks, transactions};
use super::prelude::*;
use crate::rack::{RackReport, quantile_us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "fiss-fig15",
    title: "Latency of transactions",
    source: "FissLock (OSDI '24) Fig. 15, §7.4",
    run,
};

fn run(context: &Context) -> Result<Findings, LabError> {
    let rows = transactions(context)?;
    let mut table =
        Table::new("latency", &["benchmark", "type", "manager", "p50_us", "p80_us", "p99_us", "count"]);
    let mut plots = Vec::new();
    for ((name, ..), row) in benchmarks().iter().zip(&rows) {
        for kind in of(row, FISSLOCK).txn_ns.keys() {
            let of_kind = |report: &RackReport| report.txn_ns.get(kind).cloned().unwrap_or_default();
            let curves: Vec<_> =
                MANAGERS.iter().map(|manager| (*manager, of_kind(of(row, manager)))).collect();
            for (manager, ns) in &curves {
                table.row([
                    (*name).to_owned(),
                    (*kind).to_owned(),
                    (*manager).to_owned(),
                    two(quantile_us(ns, 0.5)),
                    two(quantile_us(ns, 0.8)),
                    two(quantile_us(ns, 0.99)),
                    ns.len().to_string(),
                ]);
            }
            let curves: Vec<_> = curves.iter().map(|(manager, ns)| (*manager, &ns[..])).collect();
            plots.push(cdf(&format!("{name}-{}", kind.to_lowercase()), &format!("{name} {kind}"), &curves));
        }
    }
    Ok(Findings { tables: vec![table], plots, claims: claims(&rows) })
}

const LOAD_NOTE: &str = "fifteen clients share an application core and queue for it here, 7.1 µs a lock; published transactions of 14 \
                         locks take 125.5 µs, as if they had it for themselves";

fn claims(rows: &[Vec<RackReport>]) -> Vec<Claim> {
    let [tatp, tpcc] = rows else { unreachable!("two benchmarks") };
    let quantile = |row: &[RackReport], manager: &str, kind: &str, quantile: f64| {
        of(row, manager).txn_ns.get(kind).map_or(f64::NAN, |ns| quantile_us(ns, quantile))
    };
    let ours = |row: &[RackReport], kind: &str, at: f64| quantile(row, FISSLOCK, kind, at);
    let lower = |row: &[RackReport], kind: &str, manager: &str| {
        ours(row, kind, 0.5) < quantile(row, manager, kind, 0.5)
    };
    vec![
        explained(Claim::new("tatp-gs-p99-us", 17.5, ours(tatp, "GS", 0.99)).within_factor(1.5), LOAD_NOTE),
        explained(Claim::new("tatp-ga-p99-us", 15.4, ours(tatp, "GA", 0.99)).within_factor(1.5), LOAD_NOTE),
        explained(Claim::new("tatp-ul-p99-us", 27.7, ours(tatp, "UL", 0.99)).within_factor(1.5), LOAD_NOTE),
        explained(
            Claim::new("tpcc-new-p81-us", 125.5, ours(tpcc, "NEW", 0.81)).within_factor(1.5),
            LOAD_NOTE,
        ),
        explained(Claim::new("tpcc-pay-p85-us", 44.5, ours(tpcc, "PAY", 0.85)).within_factor(1.5), LOAD_NOTE),
        statement(
            "tatp-median-below-netlock",
            ["GS", "GA", "UL"].iter().all(|kind| lower(tatp, kind, "netlock")),
        ),
        statement(
            "tatp-median-below-srvlock",
            ["GS", "GA", "UL"].iter().all(|kind| lower(tatp, kind, "srvlock")),
        ),
        statement(
            "tpcc-median-below-netlock",
            ["NEW", "PAY"].iter().all(|kind| lower(tpcc, kind, "netlock")),
        ),
        statement(
            "tpcc-median-below-srvlock",
            ["NEW", "PAY"].iter().all(|kind| lower(tpcc, kind, "srvlock")),
        ),
    ]
}
