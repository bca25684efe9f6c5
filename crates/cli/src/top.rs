//! `lockwright top`: the hottest locks of a space, live or once.
//!
//! A server counts grants and waits of every lock. On shared memory a lock's own word counts how often it was given back,
//! and nobody counts waits; who holds and who waits is looked at several times per interval.

use crate::SpaceArg;
use anyhow::Result;
use lockwright::inspect::{Heat, Inspector};
use lockwright_term::say;
use lockwright_term::{Outcome, grid};
use serde_json::json;
use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Looks per interval.
const LOOKS: u32 = 10;

/// Show the hottest locks: who holds, who waits, how often they change hands
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright top                              this user's default space, until ^C
  lockwright top --space tcp://db7/stock      a space of a server, with waits per second
  lockwright top --json                       once, as a JSON object
  lockwright top --once --interval 10         once, over ten seconds

HELD, RETAINED and WAITING are averages over the interval. A retained lock stays with the client that used it last until
somebody else wants it; only that client knows whether it is in use, and counts its grants. Waits are counted by servers for their own spaces only.")]
pub(crate) struct Args {
    /// Seconds between two pictures
    #[arg(long, value_name = "SECS", value_parser = crate::run::seconds, default_value = "1")]
    interval: Duration,
    /// How many locks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    locks: usize,
    /// One picture, not one after the other
    #[arg(long)]
    once: bool,
    /// One picture, as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    space: SpaceArg,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let Some(inspector) = args.space.look()? else {
        if args.json {
            writeln!(out, "{}", json!({ "space": args.space.space, "locks": [] }))?;
        } else {
            say!("no lock space yet: nobody has taken a lock");
        }
        return Ok(Outcome::Clean);
    };
    let live = !args.json && !args.once && std::io::stdout().is_terminal();
    loop {
        let picture = Picture::take(&inspector, args)?;
        if args.json {
            writeln!(out, "{}", picture.to_json(args))?;
        } else {
            if live {
                // Home, and clear the rest.
                write!(out, "\x1b[H\x1b[J")?;
            }
            picture.print(args, out)?;
        }
        out.flush()?;
        if !live {
            return Ok(Outcome::Clean);
        }
    }
}

/// What a lock did in an interval.
struct Row {
    heat: Heat,
    held: f64,
    retained: f64,
    waiting: f64,
    grants: f64,
    contended: f64,
    mean_wait: Option<f64>,
}

struct Picture {
    seconds: f64,
    rows: Vec<Row>,
}

impl Picture {
    fn take(inspector: &Inspector, args: &Args) -> Result<Self> {
        let key = |heat: &Heat| (heat.name.clone(), heat.ranges);
        let began = Instant::now();
        let first: HashMap<_, _> = inspector.heat()?.into_iter().map(|heat| (key(&heat), heat)).collect();
        let mut seen: HashMap<_, (Heat, u64, u64, u64)> = HashMap::new();
        for _ in 0..LOOKS {
            std::thread::sleep(args.interval / LOOKS);
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
        let mut rows: Vec<_> = seen
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
        let hotness = |row: &Row| (row.waiting, row.grants, row.held);
        rows.sort_by(|a, b| hotness(b).partial_cmp(&hotness(a)).unwrap_or(std::cmp::Ordering::Equal));
        rows.truncate(args.locks);
        Ok(Self { seconds, rows })
    }

    fn to_json(&self, args: &Args) -> serde_json::Value {
        let counted = counted(args);
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
                    "grants_total": grants_counted(args).then_some(row.heat.grants),
                    "grants_per_second": grants_counted(args).then_some(row.grants),
                    "waits_per_second": counted.then_some(row.contended),
                    "mean_wait_seconds": row.mean_wait,
                })
            })
            .collect();
        json!({ "space": args.space.space, "interval_seconds": self.seconds, "locks": locks })
    }

    fn print(&self, args: &Args, out: &mut impl Write) -> Result<()> {
        if self.rows.is_empty() {
            writeln!(out, "nothing is held, waited for or granted in {}", args.space.space)?;
            return Ok(());
        }
        let counted = counted(args);
        let head = ["LOCK", "KIND", "HELD", "RETAINED", "WAITING", "GRANTS/s", "WAITS/s", "MEAN WAIT"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.rows.iter().map(|row| {
            let waits = if counted { lockwright_term::units::scaled(row.contended) } else { "-".to_owned() };
            [
                row.heat.name.to_string(),
                kind(&row.heat).to_owned(),
                format!("{:.1}", row.held),
                format!("{:.1}", row.retained),
                format!("{:.1}", row.waiting),
                if grants_counted(args) {
                    lockwright_term::units::scaled(row.grants)
                } else {
                    "-".to_owned()
                },
                waits,
                row.mean_wait.map_or_else(|| "-".to_owned(), |wait| format!("{:.2} ms", wait * 1e3)),
            ]
        }));
        grid(out, &rows)?;
        Ok(())
    }
}

fn kind(heat: &Heat) -> &'static str {
    if heat.ranges { "ranges" } else { "keyed" }
}

/// Whether waits are counted there.
fn counted(args: &Args) -> bool {
    !args.space.space.contains("shm:")
}

/// Whether grants are: not where a server only passes on what it sees of its host's space.
fn grants_counted(args: &Args) -> bool {
    counted(args) || args.space.space.starts_with("shm:")
}
