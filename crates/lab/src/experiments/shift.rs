//! What ShiftLock's experiments have in common: the locks, the microbenchmark of §4.2, and how claims are worded.
//!
//! Runs of locks without memory are as long as it takes for the figures to settle. CAS with backoff has a memory, the
//! cap that every client adapts; it is counted from its first moment and for seconds, as the paper's artifact does (ten
//! of them; from four on its figures change by less than a hundredth).

use super::prelude::*;
use crate::testbeds;
pub(super) use crate::testbeds::shiftlock::CLIENTS;
use lockwright_sim::{Plan, Report};

/// Locks, unless a figure is about their number (§4.1).
pub(super) const LOCKS: u64 = 10_000_000;
/// The exponent of "Zipf." in the figures.
pub(super) const ZIPF: f64 = 0.99;
/// Percent of writes: write-intensive, read-intensive, read-only (§4.2).
pub(super) const WI: f64 = 50.0;
pub(super) const RI: f64 = 5.0;
pub(super) const RO: f64 = 0.0;

pub(super) const SHIFTLOCK: &str = "shiftlock";
pub(super) const CAS_B: &str = "cas-backoff";
pub(super) const CAS_NB: &str = "cas";
/// What ShiftLock is compared with (Table 1).
pub(super) const BASELINES: [&str; 6] = [CAS_B, "drtm", "dslr", "mcs", "rma-rw", "rpc"];

/// ShiftLock, and what it is compared with.
pub(super) fn all_locks() -> impl Iterator<Item = &'static str> {
    std::iter::once(SHIFTLOCK).chain(BASELINES)
}

/// The microbenchmark: lock, unlock, again. `change` says how this run differs from the usual one.
pub(super) fn micro(context: &Context, protocol: &'static str, change: impl FnOnce(&mut Plan)) -> Run {
    let mut plan = Plan {
        clients: CLIENTS,
        locks: LOCKS,
        zipf: ZIPF,
        writes_percent: WI,
        ops: context.pick(500_000, 100_000),
        warmup_ops: context.pick(100_000, 20_000),
        nic: testbeds::shiftlock::nic(),
        ..Plan::default()
    };
    if protocol == CAS_B {
        plan.warmup_ops = 0;
        plan.duration_ns = Some(context.pick(4_000_000_000, 20_000_000));
    }
    change(&mut plan);
    Run::new(protocol, plan)
}

/// As [`micro`], but CAS with backoff too only for as long as a sweep can afford.
pub(super) fn micro_in_sweep(
    context: &Context,
    protocol: &'static str,
    change: impl FnOnce(&mut Plan),
) -> Run {
    let mut run = micro(context, protocol, change);
    if run.plan.duration_ns.is_some() {
        run.plan.duration_ns = Some(context.pick(1_000_000_000, 20_000_000));
    }
    run
}

/// Millions of cycles per second.
pub(super) fn mops(report: &Report) -> f64 {
    report.goodput_per_s / 1e6
}

/// Microseconds, of nanoseconds.
pub(super) fn us(ns: f64) -> f64 {
    ns / 1e3
}

/// A figure with two digits, for tables.
pub(super) fn two(value: f64) -> String {
    format!("{value:.2}")
}

/// The report of `protocol` among `reports`.
pub(super) fn of<'a>(reports: &'a [Report], protocol: &str) -> &'a Report {
    reports.iter().find(|report| report.protocol == protocol).expect("every lock of the experiment was run")
}

/// The baseline with the highest goodput.
pub(super) fn best_baseline(reports: &[Report]) -> &Report {
    let baselines = reports.iter().filter(|report| report.protocol != SHIFTLOCK);
    baselines.max_by(|a, b| a.goodput_per_s.total_cmp(&b.goodput_per_s)).expect("there are baselines")
}

/// Something that the paper says is so: an order, a shape.
pub(super) fn statement(id: &str, is_so: bool) -> Claim {
    Claim::new(id, 1.0, f64::from(u8::from(is_so)))
}

/// `claim` with what is known about it, if it does not hold.
pub(super) fn explained(claim: Claim, why_not: &str) -> Claim {
    if claim.holds() { claim } else { claim.note(why_not) }
}

/// A figure that differs by less is what the paper calls stable, and we call flat.
pub(super) const STABLE_PERCENT: f64 = 10.0;

/// Whether `b` is within `percent` of `a`.
pub(super) fn near(a: f64, b: f64, percent: f64) -> bool {
    (b / a - 1.0).abs() * 100.0 <= percent
}
