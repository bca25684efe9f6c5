//! `lockwright top`: the hottest locks of a space, live or once.

mod picture;
mod screen;
mod terminal;

use crate::SpaceArg;
use anyhow::Result;
use lockwright_term::Outcome;
use lockwright_term::say;
use picture::{Counts, Picture, Sort};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Show the hottest locks: who holds, who waits, how often they change hands
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright top                              this user's default space, until q or ^C
  lockwright top --space tcp://db7/stock      a space of a server, with waits per second
  lockwright top --sort grants                the busiest first
  lockwright top --json                       once, as a JSON object
  lockwright top --once --interval 10         once, over ten seconds

Keys: up and down (or k and j) select a lock, enter shows who holds it and who waits, escape goes back; w, g, h, m, n sort by
waiting, grants, held, mean wait and name; b takes a lock from the selected holder, after a question; q ends it.

A retained lock stays with the client that used it last until another client wants it; only that client knows whether it is in use,
and counts its grants. Waits are counted by servers for their own spaces only. In JSON, held, retained and waiting are averages over
the interval. Colours are left out where NO_COLOR is set.")]
pub(crate) struct Args {
    /// Seconds between two pictures
    #[arg(long, value_name = "SECS", value_parser = crate::run::seconds, default_value = "1")]
    interval: Duration,
    /// How many locks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    locks: usize,
    /// Which first
    #[arg(long, value_enum, value_name = "KEY", default_value = "waiting")]
    sort: Sort,
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
    let space = args.space.space.as_str();
    let Some(inspector) = args.space.look()? else {
        if args.json {
            writeln!(out, "{}", json!({ "space": space, "locks": [] }))?;
        } else {
            say!("no lock space yet: nobody has taken a lock");
        }
        return Ok(Outcome::Clean);
    };
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if is_terminal && !args.json && !args.once {
        return terminal::show(args, inspector, out);
    }
    let picture = Picture::take(&inspector, Counts::of(space), args.interval)?.sorted(args.sort, args.locks);
    if args.json {
        writeln!(out, "{}", picture.to_json(space))?;
    } else {
        picture.print(space, out)?;
    }
    Ok(Outcome::Clean)
}
