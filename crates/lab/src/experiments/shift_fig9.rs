//! ShiftLock Fig. 9: how ShiftLock scales under more and less skewed choices of lock.

use super::prelude::*;
use super::shift::{RI, SHIFTLOCK, STABLE_PERCENT, WI, micro, mops, near, us};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shift-fig9",
    title: "ShiftLock by skew and clients",
    source: "ShiftLock (FAST '25) Fig. 9, §4.3",
    run,
};

const SKEWS: [f64; 5] = [0.0, 0.8, 0.9, 0.95, 0.99];

/// See Fig. 8, which says the same.
const FLAT_NOTE: &str =
    "falls by a quarter from 80 clients to 240, as the paper's own Table 3 does: see shift-fig8";

fn run(context: &Context) -> Result<Findings, LabError> {
    let counts: &[usize] = context.pick(&[40, 80, 120, 160, 200, 240], &[80, 240]);
    let points: Vec<(f64, f64, usize)> = [WI, RI]
        .into_iter()
        .flat_map(|writes| SKEWS.into_iter().map(move |zipf| (writes, zipf)))
        .flat_map(|(writes, zipf)| counts.iter().map(move |clients| (writes, zipf, *clients)))
        .collect();
    let runs: Vec<_> = points
        .iter()
        .map(|(writes, zipf, clients)| {
            micro(context, SHIFTLOCK, |plan| {
                (plan.writes_percent, plan.zipf, plan.clients) = (*writes, *zipf, *clients);
                plan.ops /= 2;
            })
        })
        .collect();
    let reports = context.simulate(&runs)?;
    let mut table = Table::new("by-skew", &["writes_percent", "zipf", "clients", "mops", "p99_us", "seed"]);
    for ((writes, zipf, clients), report) in points.iter().zip(&reports) {
        table.row([
            writes.to_string(),
            zipf.to_string(),
            clients.to_string(),
            two(mops(report)),
            two(us(report.acquire.p99_ns as f64)),
            report.seed.to_string(),
        ]);
    }
    let at = |writes: f64, zipf: f64, clients: usize| -> &Report {
        let place = points.iter().position(|point| *point == (writes, zipf, clients));
        &reports[place.expect("a point of the sweep")]
    };
    let falls = |writes| {
        SKEWS.windows(2).all(|pair| mops(at(writes, pair[1], 240)) <= 1.02 * mops(at(writes, pair[0], 240)))
    };
    let plot = |name: &str, title: &str, writes| Plot {
        name: name.into(),
        title: title.into(),
        note: "simulated; the paper's curves are ShiftLock Fig. 9".into(),
        x: Axis::linear("clients"),
        y: Axis::linear("million cycles per second"),
        series: SKEWS
            .iter()
            .map(|zipf| {
                let curve = counts.iter().map(|clients| (*clients as f64, mops(at(writes, *zipf, *clients))));
                Series::new(&format!("Zipf {zipf}"), Style::Line, curve.collect())
            })
            .collect(),
    };
    let claims = vec![
        statement("wi-falls-with-skew", falls(WI)),
        statement("ri-falls-with-skew", falls(RI)),
        statement("writes-cost-under-skew", mops(at(WI, 0.99, 240)) < 0.8 * mops(at(RI, 0.99, 240))),
        statement(
            "mix-does-not-matter-without-skew",
            near(mops(at(WI, 0.0, 240)), mops(at(RI, 0.0, 240)), STABLE_PERCENT),
        ),
        explained(
            statement(
                "wi-skewed-is-flat-from-80",
                near(mops(at(WI, 0.99, 80)), mops(at(WI, 0.99, 240)), STABLE_PERCENT),
            ),
            FLAT_NOTE,
        ),
    ];
    Ok(Findings {
        tables: vec![table],
        plots: vec![
            plot("wi", "ShiftLock by skew, half of it writes", WI),
            plot("ri", "ShiftLock by skew, one write in twenty", RI),
        ],
        claims,
    })
}
