//! The programs, and what shows that their locks exclude each other.

use super::ways::Way;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// Where the programs work, and how they come to their locks.
pub(super) struct Programs<'a> {
    pub(super) way: &'a Way,
    /// Where the same files have the kernel's locks.
    pub(super) source: PathBuf,
    pub(super) secs: u32,
}

/// A step, which says what it has seen.
pub(super) type Step = (&'static str, fn(&Programs<'_>) -> Result<String, String>);

pub(super) const STEPS: [Step; 7] = [
    ("ping_pong", |programs| programs.ping_pong()),
    ("stress-ng", |programs| programs.stress_ng()),
    ("sqlite3", |programs| programs.sqlite()),
    ("flock", |programs| programs.flock()),
    ("git", |programs| programs.git()),
    ("dpkg", |programs| programs.dpkg()),
    ("python", |programs| programs.python()),
];

impl Programs<'_> {
    /// The same with the kernel's own locks, beside which ours are shown.
    fn without_locks(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.source);
        command
    }

    fn ping_pong(&self) -> Result<String, String> {
        let mut said = Vec::new();
        for (count, ours) in [(1, false), (1, true), (2, false), (2, true), (4, false), (4, true)] {
            let file = format!("ping-{count}-{ours}");
            let start = || {
                let mut timeout =
                    if ours { self.way.command("timeout") } else { self.without_locks("timeout") };
                let locks = (count + 1).to_string();
                let args = [&self.secs.to_string(), "ping_pong", "-rw", &file, &locks];
                start(timeout.args(args))
            };
            let all = (0..count).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
            let mut rate = 0;
            for child in all {
                let output = output_of(child)?;
                let text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
                if let Some(refused) = text.lines().find(|line| ours && line.contains("failed")) {
                    return Err(format!("{count} processes: {refused}"));
                }
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
        let mut stress = self.way.command("stress-ng");
        stress.args(["--fcntl", "2", "--lockf", "2", "--flock", "2", "--verify", "--timeout", &secs]);
        if self.way.has_shared_descriptions() {
            // Older ones have no mix.
            let help = Command::new("stress-ng").arg("--help").output().map_err(|error| error.to_string())?;
            let help = String::from_utf8_lossy(&help.stdout).into_owned();
            let known = ["--lockofd", "--lockmix"].into_iter().filter(|it| help.contains(it));
            stress.args(known.flat_map(|it| [it, "2"]));
        }
        stress.args(["--temp-path", "."]);
        let said = succeeded(&mut stress)?;
        // Not every failure is one of its exit code.
        if said.contains("stress-ng: fail:") { Err(said) } else { Ok(said) }
    }

    fn sqlite(&self) -> Result<String, String> {
        const PROCESSES: u32 = 8;
        const ROWS: u32 = 40;
        let base = "rows.db";
        let shell = |sql: &str| {
            let mut shell = self.way.command("sqlite3");
            shell.args(["-batch", "-cmd", ".timeout 60000", base, sql]);
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
            quiet(child)?;
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
        let add = "n=$(cat counter); echo $((n + 1)) > counter";
        let mut scripts = vec![format!("for i in $(seq {TIMES}); do flock counter.lock -c '{add}'; done")];
        if self.way.has_shared_descriptions() {
            let script = format!("for i in $(seq {TIMES}); do (flock 9; {add}) 9> counter.lock; done");
            scripts.push(script);
        }
        for script in &scripts {
            std::fs::write(self.source.join("counter"), "0").map_err(|error| error.to_string())?;
            let start = |_| start(self.way.command("sh").args(["-c", script]));
            for child in (0..PROCESSES).map(start).collect::<Result<Vec<_>, _>>()? {
                quiet(child)?;
            }
            let counted =
                std::fs::read_to_string(self.source.join("counter")).map_err(|error| error.to_string())?;
            if counted.trim() != (PROCESSES * TIMES).to_string() {
                return Err(format!("{counted:?} of {} increments: {script}", PROCESSES * TIMES));
            }
        }
        Ok(format!("{} increments in {} ways", PROCESSES * TIMES, scripts.len()))
    }

    fn git(&self) -> Result<String, String> {
        const PROCESSES: u32 = 4;
        const TAGS: u32 = 15;
        let git = |script: &str| {
            let mut shell = self.way.command("sh");
            for role in ["AUTHOR", "COMMITTER"] {
                shell.env(format!("GIT_{role}_NAME"), "n").env(format!("GIT_{role}_EMAIL"), "e@example.org");
            }
            shell.args(["-ec", script]);
            shell
        };
        succeeded(&mut git(
            "git init -q repository; cd repository; echo x > x; git add x; git commit -qm x",
        ))?;
        let tag = |process| {
            start(&mut git(&format!(
                "cd repository; for i in $(seq {TAGS}); do git tag t-{process}-$i; \
                 until git config --add lock.taken {process}-$i 2>/dev/null; do :; done; done"
            )))
        };
        for child in (0..PROCESSES).map(tag).collect::<Result<Vec<_>, _>>()? {
            quiet(child)?;
        }
        let count =
            "cd repository; git fsck --strict; git tag | wc -l; git config --get-all lock.taken | wc -l";
        let found = succeeded(&mut git(count))?;
        let counts: Vec<_> = found.split_whitespace().collect();
        let all = (PROCESSES * TAGS).to_string();
        if counts.ends_with(&[&all, &all]) {
            Ok(format!("{all} tags, and as many lines of one file"))
        } else {
            Err(format!("{found:?} and not {all} tags and lines"))
        }
    }

    /// Its database is guarded by record locks of two files. One that comes second says so, and ends.
    fn dpkg(&self) -> Result<String, String> {
        const PROCESSES: u32 = 4;
        const TIMES: u32 = 3;
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            return Ok("there is no dpkg here".to_owned());
        }
        let make = "mkdir -p admin/info admin/updates admin/triggers installed; touch admin/status admin/available; \
             for n in $(seq $0); do mkdir -p p$n/DEBIAN p$n/opt; echo $n > p$n/opt/p$n; chmod 755 p$n/DEBIAN; \
             printf 'Package: p%s\nVersion: 1\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: n\n' $n \
             > p$n/DEBIAN/control; dpkg-deb --root-owner-group --build p$n > /dev/null; done";
        succeeded(self.way.command("sh").args(["-ec", make, &PROCESSES.to_string()]))?;
        let install = "for i in $(seq $1); do tries=0; \
             until dpkg --admindir=admin --instdir=installed --force-not-root --force-bad-path \
             --force-script-chrootless --log=/dev/null --install p$0.deb > said-$0 2>&1; do \
             grep -q 'lock was locked by another process' said-$0 || { cat said-$0 >&2; exit 1; }; \
             tries=$((tries + 1)); [ $tries -lt 5000 ]; done; echo $tries; done";
        let start = |process: u32| {
            let (process, times) = ((process + 1).to_string(), TIMES.to_string());
            start(self.way.command("sh").args(["-ec", install, &process, &times]))
        };
        let mut refused = 0;
        for child in (0..PROCESSES).map(start).collect::<Result<Vec<_>, _>>()? {
            let output = output_of(child)?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
            let tries = String::from_utf8_lossy(&output.stdout).into_owned();
            refused += tries.lines().filter_map(|tries| tries.parse::<u32>().ok()).sum::<u32>();
        }
        let look = "dpkg --admindir=admin --audit; dpkg-query --admindir=admin -W -f '${db:Status-Abbrev}'; ls installed/opt";
        let found = succeeded(self.way.command("sh").args(["-ec", look]))?;
        let all = format!("{}{}", "ii ".repeat(PROCESSES as usize), "p1\np2\np3\np4\n");
        if found != all {
            return Err(format!("{found:?} and not {all:?}"));
        }
        Ok(format!(
            "{} packages by {PROCESSES} processes, which were told {refused} times to wait",
            PROCESSES * TIMES
        ))
    }

    fn python(&self) -> Result<String, String> {
        let mut said = Vec::new();
        for test in ["test.test_fcntl", "test.test_mailbox"] {
            let output = self
                .way
                .command("/usr/bin/python3")
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

/// It succeeds, and complains of nothing.
fn quiet(child: Child) -> Result<(), String> {
    let output = output_of(child)?;
    if output.status.success() && output.stderr.is_empty() {
        return Ok(());
    }
    Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
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
