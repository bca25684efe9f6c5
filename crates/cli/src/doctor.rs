//! `lockwright doctor`: what this machine can do, and what stands in the way.
//!
//! It only looks: at files under /proc and /sys, at the CPU, and at one small space of its own that it removes again; with
//! `--cluster` at several servers and their etcd, where it takes one lock in a space of its own.

mod cluster;

use crate::TrustArgs;
use anyhow::Result;
use lockwright::Client;
use lockwright_term::{Outcome, grid};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Say what this machine can do: atomics, shared memory, RDMA devices, XDP
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright doctor            a table; exit code 1 if `lockwright run` cannot work here
  lockwright doctor --json     one JSON object per line
  lockwright doctor --cluster etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod   etcd, servers, ports, shards, and a lock there

Exit codes: 0, all is well; 1, something is BAD.")]
pub(crate) struct Args {
    /// Look at this cluster instead: etcd://HOST,HOST/CLUSTER, or tcp://HOST of one of its servers
    #[arg(long, value_name = "ADDRESS")]
    cluster: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It works.
    Ok,
    /// It is not there, and only some fabrics need it.
    Absent,
    /// Locks on this host do not work without it.
    Bad,
}

struct Finding {
    what: &'static str,
    health: Health,
    detail: String,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let findings = find(args)?;
    if args.json {
        for finding in &findings {
            let said =
                json!({ "check": finding.what, "health": word(finding.health), "detail": finding.detail });
            writeln!(out, "{said}")?;
        }
    } else {
        let row = |finding: &Finding| {
            [finding.what.to_owned(), word(finding.health).to_owned(), finding.detail.clone()]
        };
        grid(out, &findings.iter().map(row).collect::<Vec<_>>())?;
    }
    Ok(Outcome::clean_if(findings.iter().all(|finding| finding.health != Health::Bad)))
}

fn find(args: &Args) -> Result<Vec<Finding>> {
    if let Some(address) = &args.cluster {
        return Ok(cluster::look(address, &args.trust.options()?));
    }
    // What is given for a cluster alone is looked at all the same.
    let _ = args.trust.options()?;
    Ok(vec![atomics(), shared_memory(), pidfds(), space(), rdma(), xdp()])
}

const fn word(health: Health) -> &'static str {
    match health {
        Health::Ok => "ok",
        Health::Absent => "absent",
        Health::Bad => "BAD",
    }
}

fn atomics() -> Finding {
    let lock_free = lockwright_fabric::backend::has_wide_atomics();
    let detail = if lock_free {
        "lock-free 16-byte compare-and-swap".to_owned()
    } else {
        "this CPU has no 16-byte compare-and-swap (cmpxchg16b on x86-64): no lock space can be opened"
            .to_owned()
    };
    Finding { what: "128-bit atomics", health: if lock_free { Health::Ok } else { Health::Bad }, detail }
}

fn shared_memory() -> Finding {
    let what = "shared memory";
    let folder = std::env::var("LOCKWRIGHT_DIR").unwrap_or_else(|_| "/dev/shm".to_owned());
    match nix::sys::statvfs::statvfs(folder.as_str()) {
        Ok(stat) => {
            let mib = |blocks: u64| blocks.saturating_mul(stat.fragment_size()) >> 20;
            let (free, size) = (mib(stat.blocks_available()), mib(stat.blocks()));
            // A space begins with a few pages; every client adds twenty KiB.
            let health = if free < 16 { Health::Bad } else { Health::Ok };
            Finding { what, health, detail: format!("{folder}: {free} MiB free of {size} MiB") }
        }
        Err(error) => Finding { what, health: Health::Bad, detail: format!("{folder}: {error}") },
    }
}

fn pidfds() -> Finding {
    let what = "pidfd";
    let release = match fs::read_to_string("/proc/sys/kernel/osrelease") {
        Ok(release) => release,
        Err(error) => {
            let detail = format!("the kernel's version cannot be read: {error}");
            return Finding { what, health: Health::Absent, detail };
        }
    };
    let mut numbers = release.trim().split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (health, detail) = if version >= (5, 3) {
        (Health::Ok, format!("Linux {}: deaths are seen at once", release.trim()))
    } else {
        (Health::Absent, format!("Linux {}: deaths are seen by looking every 20 ms", release.trim()))
    };
    Finding { what, health, detail }
}

/// Takes a lock, in a space of its own.
fn space() -> Finding {
    let what = "a lock";
    let folder = std::env::var("LOCKWRIGHT_DIR").unwrap_or_else(|_| "/dev/shm".to_owned());
    let path = Path::new(&folder).join(format!("lockwright-doctor-{}.space", std::process::id()));
    let took = || -> Result<u64> {
        let client = Client::open(&format!("shm:{}", path.display())).wait()?;
        let guard = client.mutex("doctor")?.lock().wait()?;
        let token = guard.token();
        guard.unlock().wait()?;
        Ok(token)
    };
    let finding = match took() {
        Ok(_) => {
            Finding { what, health: Health::Ok, detail: "made a space, took a lock, gave it back".to_owned() }
        }
        Err(error) => Finding { what, health: Health::Bad, detail: format!("{error:#}") },
    };
    let _ = fs::remove_file(&path);
    finding
}

/// What libibverbs says of the devices.
#[cfg(feature = "rdma")]
fn rdma() -> Finding {
    use lockwright_fabric::backend::rdma::{DeviceError, look};
    let (health, detail) = match look() {
        Err(error) => (Health::Absent, format!("{error}; only rdma: spaces need one")),
        Ok(devices) => {
            let usable = devices.iter().any(Result::is_ok);
            let say = |device: &Result<String, DeviceError>| match device {
                Ok(text) => text.clone(),
                Err(error) => error.to_string(),
            };
            let detail = devices.iter().map(say).collect::<Vec<_>>().join("; ");
            (if usable { Health::Ok } else { Health::Absent }, detail)
        }
    };
    Finding { what: "RDMA", health, detail }
}

/// What the kernel says of the devices.
#[cfg(not(feature = "rdma"))]
fn rdma() -> Finding {
    let mut devices: Vec<_> = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .collect();
    devices.sort();
    let (health, detail) = if devices.is_empty() {
        (Health::Absent, "no RDMA device; only rdma: spaces would need one".to_owned())
    } else {
        (Health::Ok, format!("{}; this build cannot use them (feature `rdma`)", devices.join(", ")))
    };
    Finding { what: "RDMA", health, detail }
}

/// Whether `switch --xdp` can be used.
fn xdp() -> Finding {
    let (health, detail) = match try_xdp() {
        Ok(()) => {
            let jit = fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").unwrap_or_default();
            let how =
                if jit.trim() == "0" { ", but interprets it: net.core.bpf_jit_enable is 0" } else { "" };
            (Health::Ok, format!("the kernel takes the decider's program{how}"))
        }
        Err(why) => (Health::Absent, format!("{why}; only `switch --xdp` would need it")),
    };
    Finding { what: "XDP", health, detail }
}

#[cfg(feature = "xdp")]
fn try_xdp() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        anyhow::bail!("only root loads programs into the kernel");
    }
    Ok(lockwright_server::try_xdp()?)
}

#[cfg(not(feature = "xdp"))]
fn try_xdp() -> Result<()> {
    anyhow::bail!("this build cannot use it (feature `xdp`)")
}
