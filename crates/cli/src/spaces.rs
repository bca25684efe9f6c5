//! `lockwright spaces`: the lock spaces of this user on this host, and how each of them works; or what others run.

use crate::TrustArgs;
use anyhow::{Context, Result};
use lockwright::Protocols;
use lockwright::inspect::{Inspector, SpaceInfo, spaces};
use lockwright_term::say;
use lockwright_term::{Outcome, age, grid};
use serde_json::json;
use std::io::Write;

/// List this user's lock spaces on this host, or say what those at these addresses run
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright spaces            a table
  lockwright spaces --json     one JSON object per line
  lockwright spaces rdma://10.0.0.7/lent:stock   protocols of names and ranges, with parameters such as a tree's unit

A space that nobody uses can be removed by removing its file.")]
pub(crate) struct Args {
    /// Spaces anywhere, by their addresses
    space: Vec<String>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: TrustArgs,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    if !args.space.is_empty() {
        return protocols(args, out);
    }
    let mut rows =
        vec![["SPACE", "KEYED", "RANGES", "CLIENTS", "NAMES", "MEMORY", "AGE", "FILE"].map(str::to_owned)];
    let mut trouble = false;
    for address in spaces().context("cannot list the lock spaces")? {
        let info = Inspector::open(&address).map_err(anyhow::Error::from);
        match info.and_then(|inspector| Ok(inspector.info()?)) {
            Ok(info) if args.json => writeln!(out, "{}", to_json(&info))?,
            Ok(info) => rows.push(to_row(&info)),
            Err(error) if args.json => {
                writeln!(out, "{}", json!({ "space": address, "error": format!("{error:#}") }))?;
                trouble = true;
            }
            Err(error) => {
                say!("{address}: {error:#}");
                trouble = true;
            }
        }
    }
    if !args.json {
        if rows.len() > 1 {
            grid(out, &rows)?;
        } else if !trouble {
            say!("no lock spaces yet: the first `lockwright run` makes one");
        }
    }
    Ok(Outcome::clean_if(!trouble))
}

/// What the spaces at the addresses run.
fn protocols(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let mut rows = vec![["SPACE", "KEYED", "RANGES", "PARAMETERS"].map(str::to_owned)];
    for address in &args.space {
        let Protocols { keyed, ranges, parameters, .. } = found(args, address)?;
        if args.json {
            let parameters: serde_json::Map<_, _> =
                parameters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            let line =
                json!({ "space": address, "keyed": keyed, "ranges": ranges, "parameters": parameters });
            writeln!(out, "{line}")?;
        } else {
            let parameters: Vec<_> =
                parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            rows.push([address.clone(), keyed.to_owned(), ranges.to_owned(), parameters.join(" ")]);
        }
    }
    if !args.json {
        grid(out, &rows)?;
    }
    Ok(Outcome::Clean)
}

fn found(args: &Args, address: &str) -> Result<Protocols> {
    let options = args.trust.options()?;
    // A client would make the space of a host that is not there.
    if address.starts_with("shm:") {
        Inspector::open_with(address, &options)?;
    }
    Ok(options.open(address).wait()?.protocols()?)
}

fn to_row(info: &SpaceInfo) -> [String; 8] {
    [
        info.address.clone(),
        info.keyed.to_owned(),
        info.ranges.to_owned(),
        format!("{}/{}", info.clients, info.max_clients),
        format!("{}/{}", info.names, info.max_names),
        format!("{} KiB", info.resident_bytes / 1024),
        age(info.age),
        info.path.display().to_string(),
    ]
}

fn to_json(info: &SpaceInfo) -> serde_json::Value {
    json!({
        "space": info.address,
        "file": info.path.display().to_string(),
        "keyed": info.keyed,
        "ranges": info.ranges,
        "clients": info.clients,
        "max_clients": info.max_clients,
        "names": info.names,
        "max_names": info.max_names,
        "resident_bytes": info.resident_bytes,
        "age_seconds": info.age.as_secs_f64(),
    })
}
