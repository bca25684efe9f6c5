//! A process that says a line when it is ready; killed when it is dropped.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// See the module.
pub(crate) struct Started {
    pub(crate) child: Child,
    /// What it said first.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) line: String,
    pub(crate) stdout: BufReader<ChildStdout>,
}

/// `command` with room for so many file descriptors.
#[allow(dead_code, reason = "not every test program needs it")]
pub(crate) fn limited(descriptors: u32, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!(r#"ulimit -n {descriptors}; exec "$0" "$@""#)]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

impl Started {
    /// Starts `command`, whose output goes into pipes, and waits for its line.
    pub(crate) fn new(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        Self { child, line: line.trim().to_owned(), stdout }
    }

    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Its exit code and everything else it said.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
