//! What the locks of a space did in an interval.
//!
//! A server counts grants and waits of every lock. On shared memory a lock's own word counts how often it was given back,
//! and nobody counts waits; who holds and who waits is looked at several times per interval.

use anyhow::Result;
use lockwright::inspect::{Heat, Inspector, Kind};
use lockwright_term::grid;
use lockwright_term::units::scaled;
use serde_json::json;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// Looks per interval.
const LOOKS: u32 = 10;

/// By what locks are sorted, the largest first; names from A on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// Waiting, then grants, then held
    Waiting,
    Grants,
    Held,
    /// The mean wait
    Wait,
    Name,
}

/// What a lock did in an interval. The counts of now are those of the last look.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) heat: Heat,
    held: f64,
    retained: f64,
    waiting: f64,
    pub(super) grants: f64,
    contended: f64,
    mean_wait: Option<f64>,
}

/// The columns of a row.
pub(super) const HEAD: [&str; 8] =
    ["LOCK", "KIND", "HELD", "RETAINED", "WAITING", "GRANTS/s", "WAITS/s", "MEAN WAIT"];

#[derive(Clone, Debug)]
pub(super) struct Picture {
    seconds: f64,
    pub(super) rows: Vec<Row>,
    /// What is counted in this space.
    counts: Counts,
}

/// What a space counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    waits: bool,
    /// Not where a server only passes on what it sees of its host's space.
    grants: bool,
}

impl Counts {
    /// What a space of this address counts.
    pub(super) fn of(space: &str) -> Self {
        let waits = !space.contains("shm:");
        Self { waits, grants: waits || space.starts_with("shm:") }
    }
}

impl Picture {
    /// Looks for an interval.
    pub(super) fn take(inspector: &Inspector, counts: Counts, interval: Duration) -> Result<Self> {
        let key = |heat: &Heat| (heat.name.clone(), heat.kind);
        let began = Instant::now();
        let first: HashMap<_, _> = inspector.heat()?.into_iter().map(|heat| (key(&heat), heat)).collect();
        let mut seen: HashMap<_, (Heat, u64, u64, u64)> = HashMap::new();
        for _ in 0..LOOKS {
            std::thread::sleep(interval / LOOKS);
            for heat in inspector.heat()? {
                let (last, held, retained, waiting) =
                    seen.entry(key(&heat)).or_insert_with(|| (heat.clone(), 0, 0, 0));
                *held += heat.holders;
                *retained += heat.retained;
                *waiting += heat.waiters;
                *last = heat;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let rows = seen
            .into_iter()
            .map(|(key, (heat, held, retained, waiting))| {
                // A name that was given up and made anew begins again.
                let before = first.get(&key).filter(|before| before.grants <= heat.grants);
                let since = |count: fn(&Heat) -> u64| count(&heat) - before.map_or(0, count);
                let (grants, contended) = (since(|heat| heat.grants), since(|heat| heat.contended));
                let waited =
                    heat.waited.saturating_sub(before.map_or(Duration::ZERO, |before| before.waited));
                Row {
                    held: held as f64 / f64::from(LOOKS),
                    retained: retained as f64 / f64::from(LOOKS),
                    waiting: waiting as f64 / f64::from(LOOKS),
                    grants: grants as f64 / seconds,
                    contended: contended as f64 / seconds,
                    mean_wait: (contended > 0).then(|| waited.as_secs_f64() / contended as f64),
                    heat,
                }
            })
            .filter(|row| row.grants + row.held + row.retained + row.waiting > 0.0)
            .collect();
        Ok(Self { seconds, rows, counts })
    }

    /// A picture of these counts, in which nothing changed.
    #[cfg(test)]
    pub(super) fn of(locks: impl IntoIterator<Item = Heat>) -> Self {
        let row = |heat| Row {
            heat,
            held: 0.0,
            retained: 0.0,
            waiting: 0.0,
            grants: 0.0,
            contended: 0.0,
            mean_wait: None,
        };
        Self { seconds: 1.0, rows: locks.into_iter().map(row).collect(), counts: Counts::of("shm:") }
    }

    /// The first `most` locks by `sort`.
    pub(super) fn sorted(mut self, sort: Sort, most: usize) -> Self {
        self.rows.sort_by(|a, b| {
            let largest = |key: fn(&Row) -> f64| key(b).total_cmp(&key(a));
            let hottest =
                || largest(|row| row.waiting).then(largest(|row| row.grants)).then(largest(|row| row.held));
            let first = match sort {
                Sort::Waiting => Ordering::Equal,
                Sort::Grants => largest(|row| row.grants),
                Sort::Held => largest(|row| row.held + row.retained),
                Sort::Wait => largest(|row| row.mean_wait.unwrap_or(0.0)),
                Sort::Name => a.heat.name.as_bytes().cmp(b.heat.name.as_bytes()),
            };
            first.then_with(hottest).then_with(|| a.heat.name.as_bytes().cmp(b.heat.name.as_bytes()))
        });
        self.rows.truncate(most);
        self
    }

    pub(super) fn to_json(&self, space: &str) -> serde_json::Value {
        let locks: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "lock": row.heat.name.to_text(),
                    "kind": kind(&row.heat),
                    "held": row.held,
                    "retained": row.retained,
                    "waiting": row.waiting,
                    "grants_total": self.counts.grants.then_some(row.heat.grants),
                    "grants_per_second": self.counts.grants.then_some(row.grants),
                    "waits_per_second": self.counts.waits.then_some(row.contended),
                    "mean_wait_seconds": row.mean_wait,
                })
            })
            .collect();
        json!({ "space": space, "interval_seconds": self.seconds, "locks": locks })
    }

    pub(super) fn print(&self, space: &str, out: &mut impl Write) -> Result<()> {
        if self.rows.is_empty() {
            writeln!(out, "nothing is held, waited for or granted in {space}")?;
            return Ok(());
        }
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(self.rows.iter().map(|row| self.cells(row)));
        grid(out, &rows)?;
        Ok(())
    }

    /// A row's cells, one for each column of [`HEAD`].
    pub(super) fn cells(&self, row: &Row) -> [String; 8] {
        let rate = |counted: bool, rate: f64| match rate {
            _ if !counted => "-".to_owned(),
            rate if rate > 0.0 && rate < 1.0 => "<1".to_owned(),
            rate if rate < 1e3 => format!("{rate:.0}"),
            rate => scaled(rate),
        };
        [
            row.heat.name.to_string(),
            kind(&row.heat).to_owned(),
            row.heat.holders.to_string(),
            row.heat.retained.to_string(),
            row.heat.waiters.to_string(),
            rate(self.counts.grants, row.grants),
            rate(self.counts.waits, row.contended),
            row.mean_wait.map_or_else(|| "-".to_owned(), |wait| format!("{:.2} ms", wait * 1e3)),
        ]
    }
}

fn kind(heat: &Heat) -> &'static str {
    match heat.kind {
        Kind::Keyed => "keyed",
        Kind::Ranges => "ranges",
        Kind::Semaphores => "permits",
    }
}
