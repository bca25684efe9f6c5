//! `lockwright bench`: how fast locks are on this machine, each against something measured in the same run.
//!
//! A figure alone says more about the machine than about the lock, so none stands alone: a mutex is held against bare
//! atomics and the system's own locks, a handover against a cache line that goes back and forth, a waiter against the clock
//! on the wall. Each ratio has a bound; a miss comes with what is known of its reason, and is an
//! exit code of 1.
//!
//! What it must not do: keep the bounds loose so that they hold.

mod ball;
mod bare;
#[cfg(all(feature = "cluster", feature = "compare"))]
mod cluster;
#[cfg(feature = "fiss")]
mod decider;
mod flood;
mod measure;
mod one_sided;
mod partner;
#[cfg(feature = "compare")]
mod peers;
mod posix;
mod ranges;
#[cfg(feature = "rdma")]
mod rdma;
mod shm;
mod tcp;
#[cfg(feature = "fiss")]
mod udp_lock;

use anyhow::{Context, Result};
use lockwright_fabric::backend::signals::set_ignored;
use lockwright_term::{Outcome, grid, spinner};
use nix::sys::signal::Signal;
use serde_json::json;
use std::io::Write;

/// Measure locks on this machine, each against something else in the same run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright bench             half a minute
  lockwright bench --quick     a few seconds, and less sure of itself
  lockwright bench --json      one JSON object per line
  lockwright bench --against redis,etcd,postgres   the same workloads on other lock services, started and stopped here
  lockwright bench --cluster etcd://127.0.0.1:2379   kills servers of a cluster on that etcd: the time until others grant
  lockwright bench --posix     record locks of existing programs: preloaded, and on a mount
  lockwright bench --fabric rdma   verbs and locks over this machine's RDMA device, and our counters against the port's
  lockwright bench --fabric switch   deciders, in the kernel and in user space, beside other servers (root, two minutes)

Run it on a machine that has nothing else to do: two processes that spin need two cores of their own.
Exit code 1 if a bound is missed.")]
pub(crate) struct Args {
    /// Fewer runs
    #[arg(long)]
    quick: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// What to measure: locks in shared memory, verbs over RDMA (builds with the feature `rdma`), or deciders (`fiss`)
    #[arg(long, value_enum, default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// RDMA device, as NAME, NAME:PORT or NAME:PORT:GID [default: the first that will do]
    #[cfg(feature = "rdma")]
    #[arg(long, value_name = "DEVICE", env = "LOCKWRIGHT_RDMA_DEVICE")]
    rdma_device: Option<lockwright_fabric::backend::rdma::DeviceChoice>,
    /// Compare with others instead, as far as they are installed (builds with the feature `compare`)
    #[arg(long, value_name = "PEER", value_delimiter = ',')]
    #[cfg_attr(feature = "compare", arg(value_parser = clap::builder::PossibleValuesParser::new(peers::NAMES)))]
    against: Vec<String>,
    /// Measure failover instead, of three servers that are started on this etcd: etcd://HOST:PORT,HOST:PORT
    #[arg(long, value_name = "ETCD")]
    cluster: Option<String>,
    /// Measure record locks of existing programs instead: under the preloaded library, and on a mount
    #[arg(long)]
    posix: bool,
    /// The library for --posix [default: liblockwright_posix_preload.so beside this program]
    #[arg(long, value_name = "FILE", requires = "posix")]
    preload: Option<std::path::PathBuf>,
    /// What the other process of a bench does, and in which space
    #[arg(long, hide = true, num_args = 2)]
    partner: Option<Vec<String>>,
    /// Hold a lock of this peer at this address, and write to that file afterwards
    #[cfg(feature = "compare")]
    #[arg(long, hide = true, num_args = 4)]
    holder: Option<Vec<String>>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Fabric {
    Shm,
    Rdma,
    Switch,
}

/// How a figure should compare with the other.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// At most so many times the other.
    AtMost(f64),
    /// At most so many times the other, and so many nanoseconds more.
    AtMostAnd(f64, f64),
    /// The other takes at least so many times as long.
    Faster(f64),
    /// However long it takes: it is only shown.
    Shown,
}

/// One comparison.
#[derive(Debug)]
struct Row {
    what: &'static str,
    ns: f64,
    against: &'static str,
    other_ns: f64,
    bound: Bound,
    /// What its time goes into, for a reader who wonders why a bound is missed.
    made_of: &'static str,
}

impl Row {
    /// The ratio that the bound is about.
    fn ratio(&self) -> f64 {
        match self.bound {
            Bound::AtMost(_) | Bound::AtMostAnd(..) | Bound::Shown => self.ns / self.other_ns,
            Bound::Faster(_) => self.other_ns / self.ns,
        }
    }

    fn holds(&self) -> bool {
        match self.bound {
            Bound::AtMost(most) => self.ratio() <= most,
            Bound::AtMostAnd(times, ns) => self.ns <= times * self.other_ns + ns,
            Bound::Faster(least) => self.ratio() >= least,
            Bound::Shown => true,
        }
    }

    fn to_row(&self) -> [String; 7] {
        let (words, bound) = match self.bound {
            Bound::AtMost(most) => (format!("{:.2} times as long", self.ratio()), format!("at most {most}")),
            Bound::AtMostAnd(times, ns) => {
                (format!("{:.2} times as long", self.ratio()), format!("at most {times} and {ns:.0} ns"))
            }
            Bound::Faster(least) => {
                (format!("{:.1} times as fast", self.ratio()), format!("at least {least}"))
            }
            Bound::Shown => (format!("{:.2} times as long", self.ratio()), String::new()),
        };
        let verdict = match self.bound {
            Bound::Shown => "",
            _ if self.holds() => "ok",
            _ => "MISS",
        };
        let [ns, other] = [self.ns, self.other_ns].map(time);
        [self.what.into(), ns, self.against.into(), other, words, bound, verdict.into()]
    }

    /// Why the bound is missed, as far as this run can tell.
    fn reason(&self, busy: Option<&str>) -> Option<String> {
        let over = match self.bound {
            Bound::AtMost(most) => self.ratio() / most,
            Bound::AtMostAnd(times, ns) => self.ns / (times * self.other_ns + ns),
            Bound::Faster(least) => least / self.ratio(),
            Bound::Shown => 1.0,
        };
        let disturbed = busy.map(|busy| format!("; {busy}")).unwrap_or_default();
        let why = || format!("{:.0} % too slow: {}{disturbed}", (over - 1.0) * 100.0, self.made_of);
        (!self.holds()).then(why)
    }

    fn to_json(&self, busy: Option<&str>) -> serde_json::Value {
        let (relation, bound) = match self.bound {
            Bound::AtMost(most) => ("at_most", most),
            Bound::AtMostAnd(times, ns) => ("at_most_ns", times * self.other_ns + ns),
            Bound::Faster(least) => ("times_faster_at_least", least),
            Bound::Shown => ("shown", 0.0),
        };
        json!({
            "what": self.what, "ns": self.ns, "against": self.against, "other_ns": self.other_ns,
            "ratio": self.ratio(), "bound": { "relation": relation, "value": bound }, "holds": self.holds(),
            "reason": self.reason(busy),
        })
    }
}

fn time(ns: f64) -> String {
    match ns {
        0.0..1e4 => format!("{ns:.1} ns"),
        1e4..1e7 => format!("{:.1} µs", ns / 1e3),
        _ => format!("{:.1} ms", ns / 1e6),
    }
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    // Ignored, as some programs leave it to those they start, nothing would be known of how partners end.
    set_ignored(Signal::SIGCHLD as i32, false)?;
    if let Some([what, space]) = args.partner.as_deref() {
        partner::run(what, space)?;
        return Ok(Outcome::Clean);
    }
    #[cfg(feature = "compare")]
    if let Some([peer, address, lock, file]) = args.holder.as_deref() {
        peers::hold(peer, address, lock, file)?;
        return Ok(Outcome::Clean);
    }
    let (runs, busy) = (measure::Runs::new(args.quick), measure::busy());
    if !args.against.is_empty() {
        #[cfg(feature = "compare")]
        return peers::run(&args.against, args.quick, args.json, out);
        #[cfg(not(feature = "compare"))]
        anyhow::bail!(
            "this build compares with nothing: `cargo build --features compare` makes one that does"
        );
    }
    if let Some(etcd) = &args.cluster {
        #[cfg(all(feature = "cluster", feature = "compare"))]
        return cluster::run(etcd, if args.quick { 3 } else { 20 }, args.json, out);
        #[cfg(not(all(feature = "cluster", feature = "compare")))]
        anyhow::bail!(
            "{etcd}: this build measures no clusters: `cargo build --features cluster,compare` makes one that does"
        );
    }
    if args.fabric == Fabric::Rdma {
        #[cfg(feature = "rdma")]
        return rdma::run(&runs, &args.rdma_device.clone().unwrap_or_default(), args.json, out);
        #[cfg(not(feature = "rdma"))]
        return Err(lockwright::OpenError::NO_RDMA.into());
    }
    if args.fabric == Fabric::Switch {
        #[cfg(feature = "fiss")]
        return decider::run(args.quick, busy.as_deref(), args.json, out);
        #[cfg(not(feature = "fiss"))]
        return Err(lockwright::OpenError::NO_FISS.into());
    }
    let place = shm::Place::new().context("the bench needs a lock space of its own")?;
    let bar = spinner("bench".to_owned());
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    if args.posix {
        bar.set_message("record locks");
        (rows, skipped) = posix::rows(&place, &runs, args.preload.as_ref())?;
    } else {
        bar.set_message("locks that nobody else wants");
        rows.extend(shm::uncontended(&place, &runs)?);
        bar.set_message("ranges while others are held");
        rows.extend(ranges::held(&place, &runs)?);
        bar.set_message("handovers between two processes");
        rows.extend(shm::handover(&place, &runs)?);
        bar.set_message("a waiter that sleeps");
        rows.push(shm::waiter(&place)?);
        bar.set_message("locks of a server");
        rows.extend(tcp::uncontended(&runs)?);
        bar.set_message("a server that is flooded with connections");
        match flood::flooded(&runs)? {
            Ok(flooded) => rows.extend(flooded),
            Err(why) => skipped.push(why),
        }
        bar.set_message("one-sided spaces");
        rows.push(one_sided::local(&place, &runs)?);
        rows.extend(one_sided::over_tcp(&runs)?);
    }
    bar.finish_and_clear();
    let busy = busy.as_deref();
    if args.json {
        for row in &rows {
            writeln!(out, "{}", row.to_json(busy))?;
        }
    } else {
        let mut lines = vec![["", "takes", "against", "takes", "ratio", "bound", ""].map(str::to_owned)];
        lines.extend(rows.iter().map(Row::to_row));
        grid(out, &lines)?;
        for (row, reason) in rows.iter().filter_map(|row| Some((row, row.reason(busy)?))) {
            writeln!(out, "MISS {} against {}: {reason}", row.what, row.against)?;
        }
    }
    for what in skipped {
        lockwright_term::say!("skipped {what}");
    }
    Ok(Outcome::clean_if(rows.iter().all(Row::holds)))
}
