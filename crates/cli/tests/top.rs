//! `lockwright top` on a real terminal: what it shows, and what its keys do.

mod started;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use started::Started;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A terminal on which a program runs, and all that it has written there.
struct Terminal {
    program: Child,
    keys: File,
    written: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let open = || File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        let program = command.stdin(open()).stdout(open()).stderr(open()).spawn().unwrap();
        let keys = File::from(master);
        let written = Arc::new(Mutex::new(String::new()));
        let (mut screen, seen) = (keys.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { program, keys, written }
    }

    /// Presses keys, and waits until `text` is written after that.
    fn press(&mut self, keys: &str, text: &str) {
        self.written.lock().unwrap().clear();
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.shows(text);
    }

    /// Waits until `text` is written, after the last keys.
    fn shows(&self, text: &str) {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.written.lock().unwrap().contains(text) {
            assert!(Instant::now() < until, "{text:?} is not in {:?}", self.written.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lockwright-top-{}-{name}", std::process::id())))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
        command
            .args(args)
            .env("LOCKWRIGHT_SPACE", format!("shm:{}", self.0.display()))
            .env_remove("NO_COLOR");
        command
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_holder_is_found_and_broken_by_keys_and_the_terminal_is_as_before() {
    let scratch = Scratch::new("break");
    let run = ["run", "backup", "--", "sh", "-c", "echo ready; exec sleep 600"];
    let mut holder = scratch.command(&run);
    let holder = Started::new({
        holder.stdout(Stdio::piped()).stderr(Stdio::piped());
        holder
    });
    let mut top = Terminal::start(&mut scratch.command(&["top", "--interval", "0.1"]));
    top.press("", "backup");
    top.press("\r", "held");
    top.press("b", "take backup from sh");
    top.press("x", "escape back");
    top.press("b", "take backup from sh");
    top.press("y", "broke backup");
    let (code, _, said) = holder.end();
    assert_ne!(code, Some(0), "its command was ended: {said}");
    top.press("q", "\x1b[?1049l");
    assert_eq!(top.program.wait().unwrap().code(), Some(0));
}

#[test]
fn a_signal_ends_it_with_the_terminal_as_it_was() {
    let scratch = Scratch::new("signal");
    assert!(scratch.command(&["run", "x", "--", "true"]).status().unwrap().success());
    let mut top = Terminal::start(&mut scratch.command(&["top", "--interval", "0.1"]));
    top.press("", "nothing is held");
    let pid = nix::unistd::Pid::from_raw(top.program.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    top.shows("\x1b[?1049l");
    assert_eq!(top.program.wait().unwrap().code(), Some(0));
}

#[cfg(feature = "fiss")]
#[test]
fn locks_of_a_decider_are_shown_too() {
    let scratch = Scratch::new("decider");
    let piped = |args: &[&str]| {
        let mut command = scratch.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Started::new(command)
    };
    let decider = piped(&["switch", "--listen", "127.0.0.1:0", "--state", "none"]);
    let address = decider.line.trim_start_matches("deciding on ").split(';').next().unwrap().to_owned();
    let space = format!("fiss://{address}/s");
    let script = "echo ready; exec sleep 600";
    let _holder = piped(&["run", "--space", &space, "backup", "--", "sh", "-c", script]);
    let mut top = Terminal::start(&mut scratch.command(&["top", "--space", &space, "--interval", "0.1"]));
    top.press("", "backup");
    top.press("\r", "held");
    top.press("q", "\x1b[?1049l");
    assert_eq!(top.program.wait().unwrap().code(), Some(0));
}
