//! Man pages and shell completions, made of the command line itself: for packages, so the command is hidden.

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use lockwright_term::Outcome;
use std::path::PathBuf;

/// Write man pages and shell completions into a folder
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let folder = &args.folder;
    let failed = || format!("cannot write to {}", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    let command = crate::Cli::command();
    clap_mangen::generate_to(command, folder).with_context(failed)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut crate::Cli::command(), "lockwright", folder)
            .with_context(failed)?;
    }
    Ok(Outcome::Clean)
}
