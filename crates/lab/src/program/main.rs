//! The `lockwright-lab` program: explore, simulate and measure the locks.
//!
//! What it must not do: name a protocol. The catalog does.

mod check;
mod expect;
mod fault;
mod lab;
mod names;
mod sim;
mod soak;

use clap::{Parser, Subcommand};
use lockwright_term::{exit_code, refuse};
use std::io;
use std::process::ExitCode;

/// Studies Lockwright's locks: an explorer, a simulator, and the papers' experiments
#[derive(Debug, Parser)]
#[command(name = "lockwright-lab", version = version(), max_term_width = 100)]
#[command(after_help = "\
Examples:
  lockwright-lab check mcs                    explore every interleaving of one lock's cases
  lockwright-lab check --all                  prove every protocol in small cases, and every checker by its mutants
  lockwright-lab sim mcs --clients 240        simulate 240 clients and print what it costs
  lockwright-lab lab run --all --quick        hold the simulator against the papers' figures")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Args),
    Sim(sim::Args),
    Lab(lab::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, 2),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let result = match &cli.command {
        Command::Check(args) => check::run(args, &mut out),
        Command::Sim(args) => sim::run(args, &mut out),
        Command::Lab(args) => lab::run(args, &mut out),
    };
    exit_code(result, out)
}

/// The version, with the commit if the build knew it.
fn version() -> &'static str {
    option_env!("LOCKWRIGHT_VERSION").unwrap_or(env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
