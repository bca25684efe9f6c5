//! `lockwright break`: takes a lock away from one holder, who is named by its token.

use crate::SpaceArg;
use anyhow::{Result, bail};
use lockwright::inspect::BreakError;
use lockwright_term::Outcome;
use lockwright_term::say;
use serde_json::json;
use std::io::Write;

/// Take a lock away from the holder that has it with this token
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright ls --stuck                      find the lock and its holder's token
  lockwright break backup --token 17         take it away

Only the grant with that token is broken: if it is over, nothing happens, and the exit code is 1. The holder learns
of it (`run` ends its command), but what it has on its way to a disk or a database only the token can stop.
A shared lock is taken from all clients that share it.")]
pub(crate) struct Args {
    /// The lock
    name: std::ffi::OsString,
    /// The token of the grant, as `lockwright ls` shows it
    #[arg(long)]
    token: u64,
    /// Say what happened as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    space: SpaceArg,
}

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let Some(inspector) = args.space.look()? else { bail!("there is no lock space: nothing can be broken") };
    let why = match inspector.break_grant(args.name.as_encoded_bytes(), args.token) {
        Ok(()) => None,
        Err(why @ (BreakError::NotHeld { .. } | BreakError::NoSuchLock(_))) => Some(why.to_string()),
        Err(error) => return Err(error.into()),
    };
    let (name, token) = (args.name.display(), args.token);
    match &why {
        _ if args.json => {
            let said = json!({ "lock": name.to_string(), "token": token, "broken": why.is_none(), "why": why.clone() });
            writeln!(out, "{said}")?;
        }
        None => writeln!(out, "broke {name}, token {token}")?,
        Some(why) => say!("{why}"),
    }
    Ok(Outcome::clean_if(why.is_none()))
}
