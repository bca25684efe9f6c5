//! What is measured in a process of its own: started with pipes, says a line when it is ready, and ends when its input does.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// A process, and what it said.
pub(crate) struct Apart {
    pub(crate) child: Child,
    pub(crate) line: String,
}

impl Apart {
    pub(crate) fn start(program: &str, args: &[&str]) -> Self {
        let mut child =
            Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, line: line.trim().to_owned() }
    }

    /// Lets it end.
    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// In that process: says `line`, and goes on until its input ends.
pub(crate) fn serve_until_the_end(line: &str) {
    println!("{line}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// This program.
pub(crate) fn this_program() -> String {
    std::env::current_exe().unwrap().display().to_string()
}
