//! `cargo xtask posix`: programs that are not ours, unmodified, with locks that are. They run with `liblockwright_posix.so`
//! loaded, on a folder whose locks it takes from a space: in shared memory, and over tcp.
//!
//! | step | passes if |
//! |---|---|
//! | ping_pong | ctdb's: with `-rw`, every process sees as many increments as there are processes |
//! | stress-ng | its lockers of record locks and flocks find nothing wrong, `--verify` |
//! | sqlite3 | eight processes insert into one database, and no row is lost or the file damaged |
//! | flock | util-linux's: a counter in a file, under it |
//! | python | the standard library's own tests of `fcntl` and mailboxes |
//!
//! What is left out, since a preloaded library cannot give it: locks of open file descriptions that a child shares with its
//! parent (stress-ng's `--lockofd`, `--lockmix`).

use crate::names::{COMMAND_PROGRAM, TESTED};
use crate::setup::Need;
use crate::steps::{self, Ended, step};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};

/// The package of the library, and what cargo calls its file.
const PACKAGE: &str = "lockwright-preload";
const LIBRARY: &str = "liblockwright_posix_preload.so";

/// All steps on every kind of space.
pub(crate) fn report(root: &Path, may: bool) -> ExitCode {
    steps::count(&all(root, may, 5, true))
}

/// The short version, as one step of the test command.
pub(crate) fn ended(root: &Path, may: bool) -> Ended {
    let ended = all(root, may, 2, false);
    let has = |what| ended.contains(&what);
    if has(Ended::Failed) {
        Ended::Failed
    } else if has(Ended::Skipped) {
        Ended::Skipped
    } else {
        Ended::Passed
    }
}

fn all(root: &Path, may: bool, secs: u32, served: bool) -> Vec<Ended> {
    if let Err(why) = Need::Lockers.get(root, may) {
        println!("skipped: {why}");
        return vec![Ended::Skipped];
    }
    let tried = build(root).and_then(|library| Place::new(library, secs)).and_then(|mut place| {
        let mut ended = place.steps("shm");
        if served {
            let server = Server::start(root, &place.folder)?;
            place.space.clone_from(&server.address);
            ended.extend(place.steps("tcp"));
        }
        Ok(ended)
    });
    tried.unwrap_or_else(|why| {
        println!("{why}");
        vec![Ended::Failed]
    })
}

fn build(root: &Path) -> Result<PathBuf, String> {
    let built = steps::command(root, &["build", "--package", PACKAGE]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the library was not built".to_owned());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("debug").join(LIBRARY))
}

/// A server of this chore's own, ended with it.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(root: &Path, folder: &Path) -> Result<Self, String> {
        let program = steps::program(root, &COMMAND_PROGRAM, TESTED)?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the server does not start: {error}"))?;
        let mut line = String::new();
        let said = child.stdout.take().map(BufReader::new).map(|mut said| said.read_line(&mut line));
        let port = line
            .rsplit_once("127.0.0.1:")
            .map(|(_, port)| port.chars().take_while(char::is_ascii_digit).collect::<String>());
        match (said, port) {
            (Some(Ok(_)), Some(port)) if !port.is_empty() => {
                Ok(Self { child, address: format!("tcp://127.0.0.1:{port}/posix") })
            }
            _ => {
                let _ = child.kill();
                Err(format!("the server does not say where it is: {line:?}"))
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the programs work.
struct Place {
    library: PathBuf,
    folder: PathBuf,
    space: String,
    secs: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    fn new(library: PathBuf, secs: u32) -> Result<Self, String> {
        let folder = Path::new("/dev/shm").join(format!("lockwright-posix-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let space = format!("shm:{}", folder.join("space").display());
        Ok(Self { library, folder, space, secs })
    }

    fn steps(&self, kind: &str) -> Vec<Ended> {
        let pass = |name: &str, work: &dyn Fn() -> Result<String, String>| {
            step(&format!("{name} ({kind})"), || match work() {
                Ok(said) => {
                    println!("{said}");
                    Ended::Passed
                }
                Err(why) => {
                    println!("{why}");
                    Ended::Failed
                }
            })
        };
        vec![
            pass("ping_pong", &|| self.ping_pong()),
            pass("stress-ng", &|| self.stress_ng()),
            pass("sqlite3", &|| self.sqlite()),
            pass("flock", &|| self.flock()),
            pass("python", &|| self.python()),
        ]
    }

    /// A program whose locks below the folder are ours.
    fn with_locks(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.folder)
            .env("LD_PRELOAD", &self.library)
            .env("LOCKWRIGHT_POSIX", &self.folder)
            .env("LOCKWRIGHT_SPACE", &self.space)
            .env("TMPDIR", &self.folder);
        command
    }

    /// The same with the kernel's own locks, beside which ours are shown.
    fn without_locks(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        command
    }

    fn ping_pong(&self) -> Result<String, String> {
        let mut said = Vec::new();
        for (count, ours) in [(1, false), (1, true), (2, false), (2, true), (4, false), (4, true)] {
            let file = format!("ping-{count}-{ours}");
            let start = || {
                let mut timeout =
                    if ours { self.with_locks("timeout") } else { self.without_locks("timeout") };
                let locks = (count + 1).to_string();
                let args = [&self.secs.to_string(), "ping_pong", "-rw", &file, &locks];
                start(timeout.args(args))
            };
            let all = (0..count).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
            let mut rate = 0;
            for child in all {
                let output = output_of(child)?;
                let text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
                let seen =
                    text.lines().filter_map(|line| line.strip_prefix("data increment = ")?.parse().ok());
                let seen: Vec<u32> = seen.collect();
                if ours && !never_lost(&seen, count) {
                    let error = String::from_utf8_lossy(&output.stderr).into_owned();
                    return Err(format!("{count} processes, and the increments were {seen:?}: {error}"));
                }
                let rates = text.lines().filter_map(|line| line.trim().strip_suffix(" locks/sec"));
                rate += rates.filter_map(|rate| rate.trim().parse::<u64>().ok()).next_back().unwrap_or(0);
            }
            said.push(format!(
                "{count} processes, {}: {rate} locks/s",
                if ours { "ours" } else { "the kernel's" }
            ));
        }
        Ok(said.join("\n"))
    }

    fn stress_ng(&self) -> Result<String, String> {
        let secs = format!("{}s", self.secs);
        let mut stress = self.with_locks("stress-ng");
        stress.args(["--fcntl", "2", "--lockf", "2", "--flock", "2", "--verify", "--timeout", &secs]);
        stress.arg("--temp-path").arg(&self.folder);
        succeeded(&mut stress)
    }

    fn sqlite(&self) -> Result<String, String> {
        const PROCESSES: u32 = 8;
        const ROWS: u32 = 40;
        let base = format!("rows-{}.db", self.space.len());
        let shell = |sql: &str| {
            let mut shell = self.with_locks("sqlite3");
            shell.args(["-batch", "-cmd", ".timeout 60000", &base, sql]);
            shell
        };
        succeeded(&mut shell(
            "PRAGMA journal_mode=DELETE; CREATE TABLE rows (process INTEGER, row INTEGER);",
        ))?;
        let insert = |process: u32| {
            let rows = (0..ROWS).map(|row| format!("INSERT INTO rows VALUES ({process}, {row});"));
            start(&mut shell(&rows.collect::<String>()))
        };
        let all = (0..PROCESSES).map(insert).collect::<Result<Vec<_>, _>>()?;
        for child in all {
            let output = output_of(child)?;
            if !output.status.success() || !output.stderr.is_empty() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        let found = succeeded(&mut shell("SELECT count(*) FROM rows; PRAGMA integrity_check;"))?;
        let expected = format!("{}\nok", PROCESSES * ROWS);
        if found.trim() == expected {
            Ok(format!("{} rows of {PROCESSES} processes", PROCESSES * ROWS))
        } else {
            Err(format!("{found:?} and not {expected:?}"))
        }
    }

    fn flock(&self) -> Result<String, String> {
        const PROCESSES: u32 = 4;
        const TIMES: u32 = 25;
        let (counter, lock) = (self.folder.join("counter"), self.folder.join("counter.lock"));
        std::fs::write(&counter, "0").map_err(|error| error.to_string())?;
        let add = "n=$(cat counter); echo $((n + 1)) > counter";
        let script = format!("for i in $(seq {TIMES}); do flock {} -c '{add}'; done", lock.display());
        let all = (0..PROCESSES)
            .map(|_| start(self.with_locks("sh").args(["-c", &script])))
            .collect::<Result<Vec<_>, _>>()?;
        for child in all {
            let output = output_of(child)?;
            if !output.status.success() || !output.stderr.is_empty() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        let counted = std::fs::read_to_string(&counter).map_err(|error| error.to_string())?;
        if counted.trim() == (PROCESSES * TIMES).to_string() {
            Ok(format!("{} increments", PROCESSES * TIMES))
        } else {
            Err(format!("{counted:?} of {} increments", PROCESSES * TIMES))
        }
    }

    fn python(&self) -> Result<String, String> {
        let mut said = Vec::new();
        for test in ["test.test_fcntl", "test.test_mailbox"] {
            let output = self
                .with_locks("/usr/bin/python3")
                .args(["-m", "unittest", "-q", test])
                .output()
                .map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if !output.status.success() {
                return Err(text);
            }
            let ran = text.lines().find(|line| line.starts_with("Ran ")).unwrap_or_default().to_owned();
            said.push(format!("{test}: {ran}"));
        }
        Ok(said.join("\n"))
    }
}

/// Whether a process saw all increments from when all were there to when the first of them ended.
fn never_lost(seen: &[u32], processes: u32) -> bool {
    let all = seen.iter().position(|increment| *increment == processes);
    all.is_some_and(|all| seen[all..].is_sorted_by(|before, after| before >= after))
}

fn start(command: &mut Command) -> Result<Child, String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("{command:?}: {error}"))
}

fn output_of(child: Child) -> Result<Output, String> {
    child.wait_with_output().map_err(|error| error.to_string())
}

/// What a command says, if it succeeds.
fn succeeded(command: &mut Command) -> Result<String, String> {
    let output = output_of(start(command)?)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(if said.is_empty() { complaint } else { said })
    } else {
        Err(said + &complaint)
    }
}
