//! What both programs do alike: errors in one line, exit codes, tables, progress, numbers with units.
//!
//! Exit codes: 0, all is well; 1, something was found (a violation, a claim that does not hold); 2, the command could not do
//! what it was asked to.

pub mod units;

use clap::error::ErrorKind;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Writes a line to stderr and ignores a closed pipe: that must not end a process that holds a lock.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// What a command came to, if it could do what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to object to.
    Clean,
    /// Something was found: a violation, a claim that does not hold.
    Found,
}

impl Outcome {
    /// [`Clean`](Self::Clean) if `clean`.
    pub const fn clean_if(clean: bool) -> Self {
        if clean { Self::Clean } else { Self::Found }
    }
}

/// The exit code of a command, after its output was flushed. An error is printed in one line.
pub fn exit_code(result: anyhow::Result<Outcome>, mut out: impl Write) -> ExitCode {
    match result.and_then(|outcome| Ok(out.flush().map(|()| outcome)?)) {
        Ok(Outcome::Clean) => ExitCode::SUCCESS,
        Ok(Outcome::Found) => ExitCode::from(1),
        // The reader has seen enough (`… | head`): not our failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints help and version if they were asked for; everything else that the parser says is cut down to one line, and
/// ends with the code `usage`.
pub fn refuse(error: &clap::Error, usage: u8) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is the only thing that can go wrong here.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(usage)
        }
        _ => {
            say!("{}", one_line(&error.to_string()));
            ExitCode::from(usage)
        }
    }
}

/// The first paragraph of the parser's message, and its tip if it has one, in one line.
fn one_line(message: &str) -> String {
    let trimmed = || message.lines().map(str::trim);
    let what: Vec<_> = trimmed().take_while(|line| !line.is_empty()).collect();
    let tip = trimmed().find(|line| line.starts_with("tip:")).map(|tip| format!(" ({tip})"));
    what.join(" ") + &tip.unwrap_or_default()
}

/// Writes rows with their columns aligned.
///
/// # Errors
/// If `out` cannot be written to.
pub fn grid<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> io::Result<()> {
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// How long something has been going on, in two parts at most.
pub fn age(age: Duration) -> String {
    let secs = age.as_secs();
    match secs {
        0 => format!("{} ms", age.as_millis()),
        1..60 => format!("{:.1} s", age.as_secs_f64()),
        60..3600 => format!("{} min {} s", secs / 60, secs % 60),
        3600..86400 => format!("{} h {} min", secs / 3600, secs % 3600 / 60),
        _ => format!("{} d {} h", secs / 86400, secs % 86400 / 3600),
    }
}

/// A line on stderr that says how far a command is, drawn only if that is a terminal.
///
/// # Panics
/// Never: its template is well formed.
pub fn spinner(what: String) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {prefix}: {msg} ({elapsed})")
        .expect("the template is well formed");
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style);
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_parser_becomes_one_line() {
        let message = "error: unexpected argument '--lock' found\n\n  tip: a similar argument exists: '--locks'\n\nUsage: …";
        assert_eq!(
            one_line(message),
            "error: unexpected argument '--lock' found (tip: a similar argument exists: '--locks')"
        );
    }
}
