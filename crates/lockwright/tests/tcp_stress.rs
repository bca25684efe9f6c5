//! Processes that work under locks of a server while they are killed and stopped, and the server is killed and started
//! again, all at random (`LOCKWRIGHT_STRESS_SECONDS` says for how long, sixteen seconds each unless told otherwise).
//!
//! Once with a space of the server's own, and once with a space of shared memory that the server exports, where local
//! processes, guests that run its protocol, and clients for whom the server takes the locks are all after the same ones.
//! The work, the merged history, the checkers and the counters are those of the stress on shared memory. Servers and workers
//! are this test's own binary, started again with a task in the environment.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "the parent of the stress on shared memory is not this one")]
mod stress;

use lockwright::server::{Server, ServerOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stress::counters;
use stress::history::{History, Log};
use stress::{Dice, TASK};

const OWN: &str = "processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in";
const EXPORTED: &str = "local_processes_and_guests_of_one_space_lose_no_update_and_let_no_two_in";
const WORKERS: usize = 8;
const HEARTBEAT: Duration = Duration::from_millis(50);
const GRACE: Duration = Duration::from_millis(400);

fn serve(folder: &Path, listen: &str, export: &str) {
    let mut options = ServerOptions::default()
        .listen(listen.parse().unwrap())
        .state(folder.join("state"))
        .heartbeat(HEARTBEAT)
        .grace(GRACE);
    if !export.is_empty() {
        options = options.export(export);
    }
    // The port may still be taken by a predecessor that is about to be gone.
    let until = Instant::now() + Duration::from_secs(10);
    let _server = loop {
        match Server::start(options.clone()) {
            Ok(server) => break server,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    while !folder.join("stop-server").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether this process was started to serve or to work, which it then has done.
fn is_child() -> bool {
    let Ok(task) = std::env::var(TASK) else { return false };
    match task.strip_prefix("serve\n").map(|task| task.split('\n').collect::<Vec<_>>()) {
        Some(parts) => serve(Path::new(parts[0]), parts[1], parts[2]),
        None => stress::child::work(&task),
    }
    true
}

#[test]
fn processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in() {
    if !is_child() {
        Stress::start(OWN, "", |server, _| format!("tcp://{server}/stress")).run().judge();
    }
}

#[test]
fn local_processes_and_guests_of_one_space_lose_no_update_and_let_no_two_in() {
    if is_child() {
        return;
    }
    let file = format!("/dev/shm/lockwright-test-stress-{}", std::process::id());
    let space = format!("shm:{file}");
    Stress::start(EXPORTED, &space, |server, worker| match worker % 3 {
        0 => space.clone(),
        1 => format!("tcp://{server}/{space}?verbs"),
        _ => format!("tcp://{server}/{space}"),
    })
    .run()
    .judge();
    let _ = fs::remove_file(file);
}

/// The parent.
struct Stress {
    test: &'static str,
    folder: PathBuf,
    place: String,
    export: String,
    server: Child,
    /// Each with its space.
    workers: Vec<(String, Child)>,
    dice: Dice,
    notes: Log,
    kills: u64,
    stops: u64,
    restarts: u64,
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

fn child(test: &str, task: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(TASK, task)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

impl Stress {
    fn start(test: &'static str, export: &str, space: impl Fn(&str, usize) -> String) -> Self {
        let seed = number("LOCKWRIGHT_SEED", std::process::id().into());
        println!("seed {seed}; LOCKWRIGHT_SEED={seed} repeats the choice of victims");
        let name = format!("tcp-stress-{}-{}", test.len(), std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        // A port that was free a moment ago.
        let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let server = child(test, &format!("serve\n{}\n{place}\n{export}", folder.display()));
        let (notes, dice) = (Log::open(&folder, "parent"), Dice(seed));
        let spaces = (0..WORKERS).map(|worker| space(&place, worker)).collect::<Vec<_>>();
        let (workers, export) = (Vec::new(), export.to_owned());
        let (kills, stops, restarts) = (0, 0, 0);
        let mut stress =
            Self { test, folder, place, export, server, workers, dice, notes, kills, stops, restarts };
        for space in spaces {
            let worker = stress.worker(&space);
            stress.workers.push((space, worker));
        }
        stress
    }

    fn worker(&mut self, space: &str) -> Child {
        let seed = self.dice.below(1 << 30);
        child(self.test, &format!("{space}\n{}\n{seed}", self.folder.display()))
    }

    fn run(mut self) -> Self {
        let end = Instant::now() + Duration::from_secs(number("LOCKWRIGHT_STRESS_SECONDS", 16));
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100 + self.dice.below(200)));
            let victim = self.dice.below(WORKERS as u64) as usize;
            match self.dice.below(4) {
                0 | 1 => self.kill(victim),
                2 => self.stop(victim),
                _ => self.restart(),
            }
        }
        self
    }

    fn kill(&mut self, victim: usize) {
        let space = self.workers[victim].0.clone();
        let child = &mut self.workers[victim].1;
        self.notes.write(&format!("K {}", child.id()));
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert!(ended.code().is_none(), "{space}: a worker failed before it was killed: {ended}");
        self.workers[victim].1 = self.worker(&space);
        self.kills += 1;
    }

    /// Sometimes for longer than others wait for it, sometimes not.
    fn stop(&mut self, victim: usize) {
        let pid = self.workers[victim].1.id();
        self.notes.write(&format!("S {pid}"));
        signal(pid, "STOP");
        std::thread::sleep(Duration::from_millis(100 + self.dice.below(900)));
        signal(pid, "CONT");
        self.notes.write(&format!("C {pid}"));
        self.stops += 1;
    }

    /// To a worker that is killed before it hears of it, this is as if it had been stopped: what it held may be another's.
    fn restart(&mut self) {
        let served = self.workers.iter().filter(|(space, _)| space.starts_with("tcp:"));
        let served: Vec<_> = served.map(|(_, child)| child.id()).collect();
        served.iter().for_each(|pid| self.notes.write(&format!("S {pid}")));
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        std::thread::sleep(Duration::from_millis(self.dice.below(300)));
        let task = format!("serve\n{}\n{}\n{}", self.folder.display(), self.place, self.export);
        self.server = child(self.test, &task);
        served.iter().for_each(|pid| self.notes.write(&format!("C {pid}")));
        self.restarts += 1;
    }

    /// Lets everybody finish, then looks at what they did.
    fn judge(mut self) {
        fs::write(self.folder.join("stop"), "").unwrap();
        for (space, child) in &mut self.workers {
            let ended = child.wait().unwrap();
            assert!(ended.success(), "{space}: a worker failed: {ended}");
        }
        fs::write(self.folder.join("stop-server"), "").unwrap();
        assert!(self.server.wait().unwrap().success());
        let history = History::read(&self.folder);
        println!(
            "{} kills, {} stops, {} restarts, {}",
            self.kills,
            self.stops,
            self.restarts,
            history.summary()
        );
        assert!(history.has_all_kinds(), "next to nothing was done");
        history.check();
        counters::check(&self.folder, self.kills);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}
