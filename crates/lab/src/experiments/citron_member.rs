//! What membership costs Citron: the tree whose holders only lose their ranges when they are dead, beside wait mode, which is the
//! paper's, and handshake mode, both of which recover by leases on ranges or not at all.
//!
//! A simulated client waits for the WRITEs of its record, which a real one only posts, and takes one unit for a leaf: round
//! trips and latencies of `citron-member` are upper bounds, its verbs are exact. The paper has no such lock, so the claims are
//! orderings that were expected beforehand.

use super::after_a_death::{self, Scene, recoveries, recovery_us};
use super::citron::{Handshake, Wait, kops, p99, row, table, timed};
use super::prelude::*;
use crate::testbeds;
use lockwright_fabric::observe::Mode;
use lockwright_locks::{Space, Want};
use lockwright_proofs::citron_member::{CitronMember, MemberParams};
use lockwright_sim::Ranges;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-member",
    title: "What membership costs Citron",
    source: "ours, after Citron (FAST '23) §4.2",
    run,
};

const MEMBER: &str = "citron-member";
/// A tree with membership has at most 2²⁴ units; this one has 4,194,304, as the others here.
const UNITS: u64 = 1 << 22;
const LENGTHS: [u64; 2] = [1, 16];
/// How long the others pause between two cycles while one is waited for that is dead.
const THINK_NS: u64 = 100_000;
const NOTE: &str = "a simulated client waits for its records, and leaves of one unit take more levels";

fn run(context: &Context) -> Result<Findings, LabError> {
    let clients: &[usize] = context.pick(&[8, 48, 96, 192], &[8, 48]);
    let mut points = Vec::new();
    for length in LENGTHS {
        for &clients in clients {
            let plan = || timed(context, clients, Ranges::borders(UNITS, &[length]));
            points.push((length, Wait.label(), Wait.run(plan(), length)));
            points.push((length, Handshake.label(), Handshake.run(plan(), length)));
            points.push((length, MEMBER.to_owned(), Run::new(MEMBER, plan())));
        }
    }
    let runs: Vec<Run> = points.iter().map(|(.., run)| run.clone()).collect();
    let reports = context.simulate(&runs)?;
    let mut table = table("costs", &["units"]);
    for ((length, label, _), report) in points.iter().zip(&reports) {
        row(&mut table, &[length.to_string()], label, report);
    }
    let mut after = recoveries();
    let mut times = [f64::NAN; 2];
    for &clients in clients {
        for (place, think_ns) in [None, Some(THINK_NS)].into_iter().enumerate() {
            times[place] = recovery(clients, think_ns)?;
            after_a_death::row(&mut after, clients, think_ns, times[place]);
        }
    }
    let mut findings = Findings { tables: vec![table, after], ..Findings::default() };
    findings.claims.extend(after_a_death::claims(times[0], times[1]));
    for length in LENGTHS {
        let of = |label: &str| -> Vec<(f64, &Report)> {
            let found = points
                .iter()
                .zip(&reports)
                .filter(|((units, name, _), _)| (*units, &name[..]) == (length, label));
            found.map(|((.., run), report)| (run.plan.clients as f64, report)).collect()
        };
        let (handshake, member) = (of(&Handshake.label()), of(MEMBER));
        let (Some((_, ours)), Some((_, theirs))) = (member.first(), handshake.first()) else { continue };
        let at_least = |id: &str, least: f64, ratio: f64| Claim {
            band: (least, 1e6),
            ..Claim::new(&format!("{length}-units-{id}"), 1.0, ratio).expected().note(NOTE)
        };
        findings.claims.push(at_least("goodput-of-handshake", 0.5, kops(ours) / kops(theirs)));
        findings.claims.push(at_least("handshake-p99-of-ours", 0.2, p99(theirs) / p99(ours)));
        findings
            .claims
            .push(Claim::new(&format!("{length}-units-aborts"), 0.0, ours.aborts as f64).expected());
        let curve = |of: Vec<(f64, &Report)>| of.into_iter().map(|(x, report)| (x, kops(report))).collect();
        findings.plots.push(Plot {
            name: format!("{length}-units"),
            title: format!("Ranges of {length} unit{}", if length == 1 { "" } else { "s" }),
            note: "simulated".into(),
            x: Axis::log("clients"),
            y: Axis::log("thousand cycles per second"),
            series: vec![
                Series::new(&Wait.label(), Style::Line, curve(of(&Wait.label()))),
                Series::new(&Handshake.label(), Style::Line, curve(handshake)),
                Series::new(MEMBER, Style::Line, curve(member)),
            ],
        });
    }
    Ok(findings)
}

/// Microseconds until a unit that a dead client held is granted, while the others take units of their own.
fn recovery(clients: usize, think_ns: Option<u64>) -> Result<f64, LabError> {
    let unit = |at: u64| Want::range(0, Mode::Exclusive, at, at + 1);
    recovery_us::<CitronMember>(&Scene {
        space: Space::of(1).units(4096),
        params: &MemberParams { clients: clients as u64, left_by_the_dead: true, ..MemberParams::default() },
        nic: testbeds::citron::nic(),
        clients,
        home: &|_| None,
        held: unit(0),
        beside: &|client| unit(16 * client as u64),
        think_ns,
    })
}
