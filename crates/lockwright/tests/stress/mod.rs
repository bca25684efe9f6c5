//! The parent: starts the processes, kills and stops them, and judges what they noted.

pub(crate) mod changes;
pub(crate) mod child;

use lockwright::fenced::FencedFile;
use lockwright_fabric::random::SplitMix;
use lockwright_sim::check::history::{History, Log};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The variable that makes this binary a child.
pub(crate) const TASK: &str = "LOCKWRIGHT_TEST_TASK";
/// Short, so that many leases run out; long enough for a busy machine to give its sign of life in time.
pub(crate) const LEASE: Duration = Duration::from_millis(400);
const CHILDREN: usize = 8;
/// Children that are stopped at the same time, at most.
const STOPPED: usize = 3;
/// How long all workers have to come to an end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// CLOCK_MONOTONIC, the same for all processes.
pub(crate) fn now_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("there is a clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

struct Victim {
    process: Child,
    /// Stopped until then.
    stopped: Option<Instant>,
}

pub(crate) struct Stress {
    folder: PathBuf,
    path: String,
    dice: SplitMix,
    children: Vec<Victim>,
    notes: Log,
    kills: u64,
    stops: u64,
}

impl Stress {
    pub(crate) fn start(seed: u64) -> Self {
        let folder = folder("stress");
        let path = format!("/dev/shm/lockwright-test-{}", std::process::id());
        let notes = Log::of_parent(&folder, now_ns).unwrap();
        let mut stress =
            Self { folder, path, dice: SplitMix::new(seed), children: Vec::new(), notes, kills: 0, stops: 0 };
        for _ in 0..CHILDREN {
            let child = stress.child();
            stress.children.push(child);
        }
        stress
    }

    fn child(&mut self) -> Victim {
        let seed = self.dice.below(1 << 30);
        let task = format!("shm:{}\n{}\n{seed}", self.path, self.folder.display());
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["processes_that_are_killed_and_stopped_lose_no_update", "--exact", "--nocapture"])
            .env(TASK, task)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Victim { process, stopped: None }
    }

    pub(crate) fn run_for(mut self, time: Duration) -> Self {
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5 + self.dice.below(60)));
            for place in 0..CHILDREN {
                let due = self.children[place].stopped.is_some_and(|until| until <= Instant::now());
                if due {
                    self.go_on(place);
                }
            }
            let place = self.dice.below(CHILDREN as u64) as usize;
            let is_stopped = self.children[place].stopped.is_some();
            let may_stop = self.children.iter().filter(|child| child.stopped.is_some()).count() < STOPPED;
            match self.dice.below(8) {
                // A stopped worker may be killed while it is stopped.
                0..3 if !is_stopped || self.dice.below(4) == 0 => self.kill(place),
                3..7 if !is_stopped && may_stop => self.stop(place),
                _ => {}
            }
        }
        self
    }

    fn kill(&mut self, place: usize) {
        let pid = self.children[place].process.id();
        self.notes.write(&format!("K {pid}"));
        self.children[place].process.kill().unwrap();
        let ended = self.children[place].process.wait().unwrap();
        assert!(!ended.success(), "process {pid} was at its end before it was killed");
        // It may as well have failed by itself a moment before.
        assert!(ended.code().is_none(), "process {pid} failed: {ended}");
        self.children[place] = self.child();
        self.kills += 1;
    }

    fn stop(&mut self, place: usize) {
        // From much shorter than the lease to much longer.
        let time = LEASE / 10 * (1 + self.dice.below(25) as u32);
        self.notes.write(&format!("S {}", self.children[place].process.id()));
        self.signal(place, Signal::SIGSTOP);
        self.children[place].stopped = Some(Instant::now() + time);
        self.stops += 1;
    }

    fn go_on(&mut self, place: usize) {
        self.signal(place, Signal::SIGCONT);
        self.children[place].stopped = None;
        self.notes.write(&format!("C {}", self.children[place].process.id()));
    }

    fn signal(&self, place: usize, signal: Signal) {
        kill(Pid::from_raw(self.children[place].process.id() as i32), signal).unwrap();
    }

    /// Lets all workers finish, then judges what they did.
    pub(crate) fn judge(mut self) {
        fs::write(self.folder.join("stop"), "").unwrap();
        for place in 0..CHILDREN {
            if self.children[place].stopped.is_some() {
                self.go_on(place);
            }
        }
        let end = Instant::now() + PATIENCE;
        for place in 0..CHILDREN {
            let ended = ended_by(&mut self.children[place].process, end);
            let status = ended.unwrap_or_else(|| self.hangs(place));
            assert!(status.success(), "process {} failed: {status}", self.children[place].process.id());
        }
        println!("{} kills, {} stops", self.kills, self.stops);
        judge(&self.folder, self.kills);
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// A worker hangs: show who holds what, and fail.
    fn hangs(&self, place: usize) -> ! {
        let entries = lockwright::inspect::Inspector::open(&format!("shm:{}", self.path))
            .map(|inspector| inspector.entries().unwrap_or_default());
        let pid = self.children[place].process.id();
        panic!("process {pid} does not come to an end; the space says {entries:#?}");
    }
}

/// Processes that are left when a test fails would go on for ever.
impl Drop for Stress {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(|child| end(&mut child.process));
    }
}

/// Ends the process, unless it has come to its end by itself.
pub(crate) fn end(process: &mut Child) {
    let _ = process.kill();
    let _ = process.wait();
}

/// How the process ended, unless it goes on until then and longer.
pub(crate) fn ended_by(process: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match process.try_wait().unwrap() {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            ended => return ended,
        }
    }
}

/// An empty folder of this process's own.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("lockwright-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The locks of [`child`].
pub(crate) const LOCKS: [&str; 3] = ["mutex", "rwlock", "range"];

/// Judges what the workers noted, and the counters: only the killed may have left a gap in them.
pub(crate) fn judge(folder: &Path, kills: u64) {
    let history = History::read(folder).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{history}");
    assert!(
        LOCKS.iter().all(|lock| history.held(lock) > 0),
        "nothing is shown about a kind of lock that nobody took"
    );
    let last = |counter: &str| {
        let last = FencedFile::open(folder.join(counter)).unwrap().read().unwrap();
        String::from_utf8(last).unwrap().parse().unwrap()
    };
    let missing = history.check().and_then(|()| history.updates_missing(last));
    let missing = missing.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(missing <= kills, "{missing} updates are missing after {kills} kills");
}
