//! `lockwright cluster`: what several servers do as one.

use crate::SpaceArg;
use anyhow::Result;
use lockwright::inspect::ClusterInfo;
use lockwright_term::{Outcome, grid};
use serde_json::json;
use std::io::Write;

/// Look at a cluster of servers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright cluster status --space cluster://10.0.0.1,10.0.0.2/prod   servers, shards, who is recovering, etcd's members
  lockwright cluster status --space tcp://10.0.0.7 --json              by way of one server, without etcd

Exit codes: 0, every shard is open and every member of etcd that was named is well; 1, not; 2, nobody could be asked.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Say who serves what
    Status(Status),
}

#[derive(Debug, clap::Args)]
struct Status {
    #[command(flatten)]
    space: SpaceArg,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let Action::Status(Status { space, json }) = &args.command;
    let info = ClusterInfo::of(&space.space, &space.trust.options()?)?;
    if *json {
        write_json(&info, out)?;
    } else {
        write_table(&info, out)?;
    }
    let is_open = info.served.len() == usize::from(info.shards) && info.served.iter().all(|s| !s.recovering);
    Ok(Outcome::clean_if(is_open && info.etcd.iter().all(|(_, version)| version.is_ok())))
}

fn write_json(info: &ClusterInfo, out: &mut impl Write) -> Result<()> {
    let shards: Vec<_> = info
        .served
        .iter()
        .map(|shard| json!({ "shard": shard.number, "epoch": shard.epoch, "at": shard.at, "recovering": shard.recovering }))
        .collect();
    let etcd: Vec<_> = info
        .etcd
        .iter()
        .map(|(at, version)| json!({ "at": at, "version": version.as_ref().ok(), "error": version.as_ref().err() }))
        .collect();
    let said = json!({
        "cluster": info.name, "shards": info.shards, "servers": info.servers, "served": shards, "etcd": etcd,
    });
    Ok(writeln!(out, "{said}")?)
}

fn write_table(info: &ClusterInfo, out: &mut impl Write) -> Result<()> {
    let ClusterInfo { name, shards, servers, served, etcd, .. } = info;
    writeln!(out, "cluster {name}: {} servers, {} of {shards} shards served", servers.len(), served.len())?;
    for (at, version) in etcd {
        match version {
            Ok(version) => writeln!(out, "etcd {at}: version {version}")?,
            Err(why) => writeln!(out, "etcd {at}: {why}")?,
        }
    }
    for at in servers {
        writeln!(out, "server {at}")?;
    }
    let mut rows = vec![["SHARD", "EPOCH", "STATE", "AT"].map(str::to_owned)];
    for number in 0..*shards {
        let row = match served.iter().find(|shard| shard.number == number) {
            Some(shard) => {
                let state = if shard.recovering { "recovering" } else { "open" };
                [number.to_string(), shard.epoch.to_string(), state.to_owned(), shard.at.clone()]
            }
            None => [number.to_string(), String::new(), "no owner".to_owned(), String::new()],
        };
        rows.push(row);
    }
    Ok(grid(out, &rows)?)
}
