//! Citron Fig. 6: throughput and latency of all range locks with ranges of 1, 16 and 256 units, by number of clients.
//!
//! The paper gives its figures in words: peaks are the highest throughput over all numbers of clients, and "on average"
//! is over them. Static segmentation comes in three sizes: what fits, eight times that, an eighth of it; below one unit
//! a unit is cut into eight.

use super::citron::{
    Handshake, LLC, Lld, Lock, MT, NOTE, SERVED, SsExact, SsOver, SsUnder, Wait, kops, largest, mean, micro,
    p50, p99, row, table,
};
use super::prelude::*;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "citron-fig6",
    title: "Citron: throughput and latency by range size",
    source: "Citron (FAST '23) §4.2, Fig. 6",
    run,
};

const LENGTHS: [u64; 3] = [1, 16, 256];
const LOCKS: [Lock; 9] = [Wait, Handshake, MT, super::citron::IT, LLC, Lld, SsExact, SsOver, SsUnder];

/// Reports by length, lock and number of clients.
struct Reports<'a> {
    counts: &'a [usize],
    all: Vec<Report>,
}

impl Reports<'_> {
    /// One lock at one length, for every number of clients.
    fn of(&self, length: u64, lock: Lock) -> &[Report] {
        let at = |place: Option<usize>| place.expect("one of the list");
        let length = at(LENGTHS.iter().position(|other| *other == length));
        let lock = at(LOCKS.iter().position(|other| *other == lock));
        &self.all[(length * LOCKS.len() + lock) * self.counts.len()..][..self.counts.len()]
    }

    fn peak(&self, length: u64, lock: Lock) -> f64 {
        largest(self.of(length, lock).iter().map(kops))
    }

    fn best_peak(&self, length: u64, locks: &[Lock]) -> f64 {
        largest(locks.iter().map(|lock| self.peak(length, *lock)))
    }

    /// The average over all numbers of clients of one's figure over the other's.
    fn on_average(&self, length: u64, (one, other): (Lock, Lock), figure: fn(&Report) -> f64) -> f64 {
        let pairs = self.of(length, one).iter().zip(self.of(length, other));
        mean(pairs.map(|(one, other)| figure(one) / figure(other)))
    }
}

fn run(context: &Context) -> Result<Findings, LabError> {
    let counts: &[usize] = context.pick(&[3, 12, 24, 48, 96, 144, 192], &[24, 192]);
    let mut runs = Vec::new();
    for length in LENGTHS {
        for lock in LOCKS {
            runs.extend(counts.iter().map(|clients| lock.run(micro(context, *clients, &[length]), length)));
        }
    }
    let reports = Reports { counts, all: context.simulate(&runs)? };
    let mut table = table("ranges", &["length"]);
    for length in LENGTHS {
        for lock in LOCKS {
            let of_lock = reports.of(length, lock);
            of_lock.iter().for_each(|report| row(&mut table, &[length.to_string()], &lock.label(), report));
        }
    }
    let plots = LENGTHS.iter().flat_map(|length| plots(&reports, *length)).collect();
    Ok(Findings { claims: claims(&reports), plots, tables: vec![table] })
}

/// Ratios: ±15 %. Orders: exact.
fn claims(reports: &Reports<'_>) -> Vec<Claim> {
    let ratio = |id: &str, paper: f64, ours: f64| Claim::new(id, paper, ours).within_percent(15.0);
    let over_peak = |length, lock: Lock| reports.peak(length, Wait) / reports.peak(length, lock);
    let ss = [SsExact, SsOver, SsUnder];
    let over_ss = |length| reports.peak(length, Wait) / reports.best_peak(length, &ss);
    let over_served = |length| reports.peak(length, Wait) / reports.best_peak(length, &SERVED);
    let p99_over = |length, one, other| reports.on_average(length, (one, other), p99);
    let aborts: u64 =
        LENGTHS.iter().flat_map(|length| reports.of(*length, Handshake)).map(|r| r.aborts).sum();
    let most = reports.counts.len() - 1;
    let best_p50 = |length| {
        let best = [MT, LLC, SsExact].map(|lock| p50(&reports.of(length, lock)[0]));
        p50(&reports.of(length, Wait)[0]) / best.into_iter().fold(f64::MAX, f64::min)
    };
    let mut claims = vec![
        ratio("l1-of-ss-exact-on-average", 0.554, reports.on_average(1, (Wait, SsExact), kops)),
        statement("l1-ss-exact-ahead", reports.peak(1, SsExact) > reports.peak(1, Wait)),
        ratio("l1-p99-of-ss-exact", 1.83, p99_over(1, Wait, SsExact)),
        ratio("l1-ss-over-of-citron", 0.832, 1.0 / over_peak(1, SsOver)),
        ratio("l1-ss-under-of-citron", 0.166, 1.0 / over_peak(1, SsUnder)),
        statement("l1-ss-over-and-under-behind", over_peak(1, SsOver) > 1.0 && over_peak(1, SsUnder) > 1.0),
        ratio("l1-p99-ss-over", 3.77, p99_over(1, SsOver, Wait)),
        ratio("l1-p99-ss-under", 4.68, p99_over(1, SsUnder, Wait)),
        ratio("l16-over-best-ss", 1.287, over_ss(16)),
        ratio("l256-over-best-ss", 1.386, over_ss(256)),
        ratio("l1-over-best-served", 1.56, over_served(1)),
        ratio("l16-over-best-served", 1.76, over_served(16)),
        Claim::new("l256-over-llc", 1.0, over_peak(256, LLC)).within_percent(10.0),
        ratio("l256-p99-of-llc", 0.754, p99_over(256, Wait, LLC)),
        statement(
            "llc-far-above-lld",
            LENGTHS.iter().all(|l| reports.peak(*l, LLC) > 2.0 * reports.peak(*l, Lld)),
        ),
        Claim::new("ours-handshake-aborts", 0.0, aborts as f64),
    ];
    for length in LENGTHS {
        // "comparably to the best of the baselines": within a factor of two.
        let comparable = Claim::new(&format!("l{length}-median-of-best"), 1.0, best_p50(length));
        claims.push(comparable.within_factor(2.0));
        let ahead = Claim {
            band: (1.0, f64::INFINITY),
            ..Claim::new(
                &format!("ours-l{length}-handshake-over-wait"),
                1.0,
                reports.peak(length, Handshake) / reports.peak(length, Wait),
            )
        };
        claims.push(ahead);
        let last = |lock| p99(&reports.of(length, lock)[most]);
        let tail = SERVED.iter().all(|lock| last(Wait) < last(*lock));
        claims.push(statement(&format!("l{length}-tail-below-served-with-many-clients"), tail));
    }
    claims.into_iter().map(|claim| explained(claim, NOTE)).collect()
}

fn plots(reports: &Reports<'_>, length: u64) -> [Plot; 2] {
    let plot = |name: &str, what: &str, y, figure: fn(&Report) -> f64| Plot {
        name: format!("{name}-l{length}"),
        title: format!("Ranges of {length} units: {what}"),
        note: "simulated".into(),
        x: Axis::linear("clients"),
        y,
        series: LOCKS
            .iter()
            .map(|lock| {
                let points = reports.of(length, *lock).iter().map(|r| (r.clients as f64, figure(r)));
                Series::new(&lock.label(), Style::Line, points.collect())
            })
            .collect(),
    };
    [
        plot("throughput", "throughput", Axis::linear("thousand locks per second"), kops),
        plot("p99", "99th percentile of acquire", Axis::log("microseconds"), p99),
    ]
}
