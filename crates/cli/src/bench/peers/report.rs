//! What came of a comparison: the table, the goals, and both as JSON.

use super::super::measure::median;
use super::Peer;
use super::faults::Fault;
use super::own;
use super::workload::Workload;
use anyhow::Result;
use lockwright_term::{Outcome, grid};
use serde_json::json;
use std::io::Write;

/// Rates of one contender in one workload: cycles per second, by round. Empty if it does not have what the workload needs.
pub(super) type Rates = Vec<f64>;

/// How ours should compare with the best of the others.
enum Bound {
    /// At least so many times its rate.
    Times(f64),
    /// A cycle takes at most so many times as long, and so many nanoseconds more.
    TakesAtMost(f64, f64),
}

/// A claim: this contender against the best of those.
struct Goal {
    what: &'static str,
    workload: Workload,
    ours: &'static str,
    against: &'static [&'static str],
    bound: Bound,
    /// What its time goes into, for a reader who wonders why it is missed.
    made_of: &'static str,
}

const SERVICES: &[&str] = &["redis", "etcd", "postgres", "zookeeper"];

const fn goal(
    what: &'static str,
    workload: Workload,
    ours: &'static str,
    against: &'static [&'static str],
    bound: Bound,
    made_of: &'static str,
) -> Goal {
    Goal { what, workload, ours, against, bound, made_of }
}

/// Where the time goes, by kind of workload.
const LOCAL: &str = "two compare-and-swaps, two reads of a clock, and the bench's own look for the name";
const ROUND_TRIP: &str = "a round trip: a write, a poll and a read at the client, a read and a write at the server; Redis needs two round \
     trips, of a write and a read at both sides";
const SHARED: &str = "processors shared by all: most of a round trip is the kernel's TCP and its wake-ups, which one of Redis has as well; its \
     one thread has a core to itself and never sleeps, and it needs two round trips";
const HANDOVER: &str = "a hand-over to the client that has waited longest: two wake-ups in a row, and the processor must get to that very \
     thread; locks without a queue let the thread that runs take it again";
const BANK: &str = "both locks in one round trip, where Redlock of three takes twelve; the bench's processes share the cores, and an account \
     that another client has is handed over, which wakes a thread";
const GUESS: &str =
    "a guess of the server that a lock should stay, which is wrong if others want it: one recall";

const GOALS: [Goal; 10] = [
    goal(
        "a lock that stays with its client, against parking_lot",
        Workload::Own(1),
        own::RETAINED,
        &["parking_lot"],
        Bound::TakesAtMost(3.0, 100.0),
        LOCAL,
    ),
    goal(
        "a lock that stays with its client, against redis",
        Workload::Own(1),
        own::RETAINED,
        &["redis"],
        Bound::Times(100.0),
        LOCAL,
    ),
    goal(
        "one round trip, against etcd",
        Workload::Own(1),
        own::ASKED,
        &["etcd"],
        Bound::Times(20.0),
        ROUND_TRIP,
    ),
    goal(
        "32 clients with names of their own, against redis",
        Workload::Own(32),
        own::ASKED,
        &["redis"],
        Bound::Times(2.0),
        SHARED,
    ),
    goal(
        "a hot name, 8 clients, against the best",
        Workload::Hot(8),
        own::RETAINED,
        SERVICES,
        Bound::Times(2.0),
        HANDOVER,
    ),
    goal(
        "a hot name, 64 clients, against the best",
        Workload::Hot(64),
        own::RETAINED,
        SERVICES,
        Bound::Times(2.0),
        HANDOVER,
    ),
    goal(
        "the bank, against redlock",
        Workload::Bank(8),
        own::RETAINED,
        &["redlock"],
        Bound::Times(6.6),
        BANK,
    ),
    goal(
        "the bank, against redlock: what is aimed for",
        Workload::Bank(8),
        own::RETAINED,
        &["redlock"],
        Bound::Times(33.0),
        BANK,
    ),
    goal(
        "zipf, half of it writes: locks that may stay, against locks that may not",
        Workload::Zipf { clients: 64, writes_percent: 50 },
        own::RETAINED,
        &[own::ASKED],
        Bound::Times(0.97),
        GUESS,
    ),
    goal(
        "zipf, 5 % writes: locks that may stay, against locks that may not",
        Workload::Zipf { clients: 64, writes_percent: 5 },
        own::RETAINED,
        &[own::ASKED],
        Bound::Times(0.97),
        GUESS,
    ),
];

/// What came of it.
pub(super) struct Report<'a> {
    pub(super) peers: &'a [Box<dyn Peer>],
    pub(super) workloads: &'a [Workload],
    pub(super) rates: &'a [Vec<Rates>],
    pub(super) faults: &'a [Fault],
    /// What else the machine did.
    pub(super) busy: Option<&'a str>,
}

impl Report<'_> {
    fn rates(&self, workload: Workload, peer: &str) -> Option<&Rates> {
        let row = self.workloads.iter().position(|other| *other == workload)?;
        let column = self.peers.iter().position(|other| other.name() == peer)?;
        Some(&self.rates[row][column]).filter(|rates| !rates.is_empty())
    }

    /// How often the rate of ours is that of the best of the others, by round; and both rates. `None`: there are none.
    fn pair(&self, goal: &Goal) -> Option<(f64, f64, f64)> {
        let middle = |peer: &&&str| median(self.rates(goal.workload, peer).expect("it takes part").clone());
        let others = goal.against.iter().filter(|peer| self.rates(goal.workload, peer).is_some());
        let best = others.max_by(|one, other| middle(one).total_cmp(&middle(other)))?;
        let (ours, theirs) = (self.rates(goal.workload, goal.ours)?, self.rates(goal.workload, best)?);
        let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        Some((median(ratios), median(ours.clone()), median(theirs.clone())))
    }

    pub(super) fn print(&self, as_json: bool, out: &mut impl Write) -> Result<Outcome> {
        if as_json {
            self.cells_as_json(out)?;
        } else {
            self.cells_as_text(out)?;
        }
        for (peer, note) in self.peers.iter().filter_map(|peer| Some((peer.name(), peer.note()?))) {
            if as_json {
                writeln!(out, "{}", json!({ "noted": peer, "note": note }))?;
            } else {
                writeln!(out, "{peer}: {note}")?;
            }
        }
        let mut clean = true;
        for goal in &GOALS {
            let Some((ratio, ours, best)) = self.pair(goal) else {
                let why = "none of its peers takes part";
                if as_json {
                    writeln!(out, "{}", json!({ "untried": goal.what, "why": why }))?;
                } else {
                    writeln!(out, "not tried {}: {why}", goal.what)?;
                }
                continue;
            };
            let (holds, bound) = match goal.bound {
                Bound::Times(times) => (ratio >= times, format!("at least {times} times")),
                Bound::TakesAtMost(times, ns) => {
                    let holds = 1e9 / ours <= times * 1e9 / best + ns;
                    (holds, format!("a cycle takes at most {times} times as long and {ns} ns"))
                }
            };
            clean &= holds;
            let busy = self.busy.map(|busy| format!("; {busy}")).unwrap_or_default();
            let reason = (!holds).then(|| format!("{}{busy}", goal.made_of));
            if as_json {
                let line = json!({
                    "goal": goal.what, "ratio": ratio, "bound": bound, "holds": holds, "reason": reason,
                });
                writeln!(out, "{line}")?;
            } else {
                let verdict = if holds { "ok" } else { "MISS" };
                let why = reason.map(|reason| format!("; {reason}")).unwrap_or_default();
                writeln!(out, "{verdict} {}: {ratio:.2} times the rate; {bound}{why}", goal.what)?;
            }
        }
        Ok(Outcome::clean_if(clean))
    }

    fn cells(&self) -> impl Iterator<Item = (Workload, &dyn Peer, [f64; 3])> {
        let rows = self.workloads.iter().zip(self.rates);
        let cells = rows.flat_map(|(workload, rates)| {
            self.peers.iter().zip(rates).map(move |(peer, rates)| (*workload, &**peer, rates))
        });
        cells.filter(|(.., rates)| !rates.is_empty()).map(|(workload, peer, rates)| {
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rates.iter().copied().fold(0.0, f64::max);
            (workload, peer, [median(rates.clone()), least, most])
        })
    }

    fn cells_as_text(&self, out: &mut impl Write) -> Result<()> {
        let mut rows = vec![["workload, clients", "", "cycles/s", "least", "most"].map(str::to_owned)];
        rows.extend(self.cells().map(|(workload, peer, figures)| {
            let [middle, least, most] = figures.map(lockwright_term::units::scaled);
            [workload.text(), peer.name().to_owned(), middle, least, most]
        }));
        grid(out, &rows)?;
        if self.faults.is_empty() {
            return Ok(());
        }
        let mut rows =
            vec![["", "holder killed: free after", "holder paused: its late write"].map(str::to_owned)];
        rows.extend(self.faults.iter().map(|fault| [fault.peer.to_owned(), fault.freed(), fault.paused()]));
        grid(out, &rows)?;
        Ok(())
    }

    fn cells_as_json(&self, out: &mut impl Write) -> Result<()> {
        for (workload, peer, [middle, least, most]) in self.cells() {
            let line = json!({
                "workload": workload.text(), "peer": peer.name(), "remote": peer.is_remote(),
                "cycles_per_second": middle, "least": least, "most": most,
            });
            writeln!(out, "{line}")?;
        }
        for fault in self.faults {
            let line = json!({
                "fault": "killed and paused holders", "peer": fault.peer,
                "killed_free_after_s": fault.free_after.map(|time| time.as_secs_f64()),
                "killed": fault.freed(), "paused": fault.paused(),
            });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}
