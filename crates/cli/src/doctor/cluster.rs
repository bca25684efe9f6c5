//! `lockwright doctor --cluster`: whether a cluster works as seen from this machine. Its etcd, its servers, its shards, and a lock of
//! one's own in it.

use super::{Finding, Health};
use lockwright::ClientOptions;
use lockwright::inspect::ClusterInfo;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long a server may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// The oldest etcd that has the gateway.
const OLDEST: (u32, u32) = (3, 4);

/// All about the cluster at `address`: `etcd://…/NAME`, `cluster://…/NAME` or `tcp://SERVER`.
pub(super) fn look(address: &str, options: &ClientOptions) -> Vec<Finding> {
    let address = address.strip_prefix("etcd:").map_or(address.to_owned(), |rest| format!("cluster:{rest}"));
    let info = match ClusterInfo::of(&address, options) {
        Ok(info) => info,
        Err(error) => return vec![finding("cluster", Health::Bad, error.to_string())],
    };
    let mut findings = vec![members(&info)];
    findings.extend(info.etcd.iter().map(|(at, version)| member(at, version.as_deref())));
    findings.push(servers(&info));
    findings.extend(reached(&info));
    findings.push(shards(&info));
    findings.push(lock(&address, options));
    findings
}

fn finding(what: &'static str, health: Health, detail: String) -> Finding {
    Finding { what, health, detail }
}

const fn health(is_well: bool) -> Health {
    if is_well { Health::Ok } else { Health::Bad }
}

fn members(info: &ClusterInfo) -> Finding {
    let (all, up) = (info.etcd.len(), info.etcd.iter().filter(|(_, version)| version.is_ok()).count());
    let (health, detail) = match all {
        0 => (Health::Absent, "the address names a server, not etcd, which was not asked".to_owned()),
        1 | 2 => (Health::Absent, format!("{all} named: with three, one of them can fail")),
        _ => (health(up * 2 > all), format!("{up} of the {all} that are named are well")),
    };
    finding("etcd", health, detail)
}

fn member(at: &str, version: Result<&str, &String>) -> Finding {
    let (health, detail) = match version {
        Ok(version) => {
            let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
            let is_new = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST;
            let too_old = if is_new { "" } else { ", too old: 3.4 or later is needed" };
            (health(is_new), format!("{at}: version {version}{too_old}"))
        }
        // One of them may be down.
        Err(why) => (Health::Absent, format!("{at}: {why}")),
    };
    finding("  member", health, detail)
}

fn servers(info: &ClusterInfo) -> Finding {
    let servers = info.servers.len();
    let more = if servers < 2 { ": with two or more, one of them can fail" } else { "" };
    let health = match servers {
        0 => Health::Bad,
        1 => Health::Absent,
        _ => Health::Ok,
    };
    finding("servers", health, format!("{servers} of the cluster {}{more}", info.name))
}

/// Where each server and each shard listens must be open for clients.
fn reached(info: &ClusterInfo) -> Vec<Finding> {
    let shards = info.served.iter().map(|shard| ("  shard", &shard.at));
    let all = info.servers.iter().map(|at| ("  server", at)).chain(shards);
    let asked = all.map(|(what, at)| (what, at, connect(at)));
    let show = |(what, at, connected): (&'static str, &String, Result<Duration, String>)| match connected {
        Ok(took) if what == "  server" => {
            Some(finding(what, Health::Ok, format!("{at}: connected in {:.1} ms", took.as_secs_f64() * 1e3)))
        }
        // A line for each shard would say nothing.
        Ok(_) => None,
        Err(why) => Some(finding(what, Health::Bad, format!("{at}: {why}; clients must reach it"))),
    };
    asked.filter_map(show).collect()
}

fn connect(at: &str) -> Result<Duration, String> {
    let began = Instant::now();
    let mut addresses = at.to_socket_addrs().map_err(|error| error.to_string())?;
    let address = addresses.next().ok_or("the name has no address")?;
    TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| error.to_string())?;
    Ok(began.elapsed())
}

fn shards(info: &ClusterInfo) -> Finding {
    let recovering = info.served.iter().filter(|shard| shard.recovering).count();
    let orphans = usize::from(info.shards).saturating_sub(info.served.len());
    let detail = match (recovering, orphans) {
        (0, 0) => format!("all {} are open", info.shards),
        _ => format!("of {}, {recovering} wait for claims and {orphans} have no owner", info.shards),
    };
    finding("shards", health(recovering + orphans == 0), detail)
}

/// Takes a lock, in a space that nobody else uses.
fn lock(address: &str, options: &ClientOptions) -> Finding {
    let took = || -> anyhow::Result<Duration> {
        let client = options.clone().open(&format!("{}/doctor", address.trim_end_matches('/'))).wait()?;
        let name = format!("doctor-{}", std::process::id());
        let began = Instant::now();
        client.mutex(&name)?.lock_timeout(PATIENCE * 5).wait()?.unlock().wait()?;
        Ok(began.elapsed())
    };
    match took() {
        Ok(took) => {
            let detail = format!("taken and given back in {:.1} ms", took.as_secs_f64() * 1e3);
            finding("a lock of it", Health::Ok, detail)
        }
        Err(error) => finding("a lock of it", Health::Bad, format!("{error:#}")),
    }
}
