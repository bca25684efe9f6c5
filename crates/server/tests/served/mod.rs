//! The stress of a server: processes that work under its locks while they are killed and stopped, and the server is killed and
//! started again, all at random. Over which transport, the test says that runs it.
//!
//! The work, the merged history, the checkers and the counters are those of the stress on shared memory. Servers and workers
//! are the test's own binary, started again with a task in the environment.

#[path = "../loopback/mod.rs"]
mod loopback;

use self::loopback::own_address;
use crate::stress::child::LETS_GO;
use crate::stress::{LOCKS, PATIENCE, TASK, end, ended_by, folder, judge, now_ns};
use lockwright::inspect::Inspector;
use lockwright_fabric::backend::shm::space_path;
use lockwright_fabric::random::SplitMix;
use lockwright_server::{Server, ServerOptions};
use lockwright_sim::check::history::{History, Log};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How clients reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each test that runs this has one of them")]
pub(crate) enum Transport {
    Tcp,
    #[cfg(feature = "rdma")]
    Rdma,
}

impl Transport {
    /// What the server at `place` is called in a space's name.
    pub(crate) fn url(self, place: &str) -> String {
        match self {
            Self::Tcp => format!("tcp://{place}"),
            #[cfg(feature = "rdma")]
            Self::Rdma => format!("rdma://{place}"),
        }
    }

    /// How many times slower everything is: queue pairs are tried on an emulated machine.
    const fn slower(self) -> u32 {
        match self {
            Self::Tcp => 1,
            #[cfg(feature = "rdma")]
            Self::Rdma => 3,
        }
    }

    fn serve(self, options: ServerOptions, place: &str) -> ServerOptions {
        let place = place.parse().unwrap();
        // Short, so that clients that are stopped outlive it.
        let options = options
            .heartbeat(Duration::from_millis(50) * self.slower())
            .grace(Duration::from_millis(400) * self.slower());
        match self {
            Self::Tcp => options.listen(place),
            #[cfg(feature = "rdma")]
            Self::Rdma => options.listen("127.0.0.1:0".parse().unwrap()).rdma(place, Default::default()),
        }
    }
}

/// A space of another kind.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "each test that runs this has some of them")]
pub(crate) enum Offers<'a> {
    Nothing,
    /// A space of shared memory.
    Export(&'a str),
    /// A space in memory that clients change by verbs of their own.
    Lend(&'a str),
    /// The same with ranges on trees.
    LendTree(&'a str),
    /// A space that processes of the server's host are in, too.
    LendLocal(&'a str),
}

impl Offers<'_> {
    /// In one line of a task.
    fn line(self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Export(space) => format!("export {space}"),
            Self::Lend(name) => format!("lend {name}"),
            Self::LendTree(name) => format!("tree {name}"),
            Self::LendLocal(name) => format!("local {name}"),
        }
    }

    fn serve(line: &str, options: ServerOptions) -> ServerOptions {
        match line.split_once(' ') {
            Some(("export", space)) => options.export(space),
            Some(("tree", name)) => options.lend_tree(name, 1, 64, 16).unwrap(),
            Some(("local", name)) => options.lend_local(name, 4).unwrap(),
            Some((_, name)) => options.lend(name),
            None => options,
        }
    }
}

/// How hard it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// The test that runs this.
    pub(crate) test: &'static str,
    pub(crate) transport: Transport,
    /// What the server offers besides its own spaces.
    pub(crate) offers: Offers<'a>,
    pub(crate) workers: usize,
    /// Unless `LOCKWRIGHT_STRESS_SECONDS` says otherwise.
    pub(crate) seconds: u64,
    /// Between two blows, at least; three times that at most.
    pub(crate) pause_ms: u64,
    /// How often each kind of lock has to be held to its end, if that does not take too long.
    pub(crate) enough: usize,
    /// Whether upgrades unlock and lock again, which must be noticed.
    pub(crate) lets_go: bool,
}

impl Plan<'_> {
    /// Only a server's own spaces can change what is held.
    fn changes(&self) -> bool {
        matches!(self.offers, Offers::Nothing)
    }
}

/// The stress on a space that every other worker is in by CPU instructions.
#[allow(dead_code, reason = "each test that runs this has one of them")]
pub(crate) fn stress_both_sides(plan: Plan<'_>) {
    let name = format!("whole-{}", std::process::id());
    let plan = Plan { offers: Offers::LendLocal(&name), ..plan };
    Stress::start(plan, |server, worker| match worker % 2 {
        0 => format!("shm:lent:{name}"),
        _ => format!("{server}/lent:{name}"),
    })
    .run()
    .finish()
    .judge();
    let _ = fs::remove_file(space_path(&format!("lent.{name}")).unwrap());
}

/// Whether this process was started to serve or to work, which it then has done.
pub(crate) fn is_child(transport: Transport) -> bool {
    let Ok(task) = std::env::var(TASK) else { return false };
    match task.strip_prefix("serve\n").map(|task| task.split('\n').collect::<Vec<_>>()) {
        Some(parts) => serve(transport, Path::new(parts[0]), parts[1], parts[2]),
        None => crate::stress::child::work(&task),
    }
    true
}

fn serve(transport: Transport, folder: &Path, place: &str, offers: &str) {
    // Connections are read by two threads, whatever the number of cores: the one that has the lock table serves for both.
    let options = ServerOptions::default().threads(2).state(folder.join("state"));
    let options = Offers::serve(offers, transport.serve(options, place));
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

/// Whether locks of every kind were held to their ends, and changed in every way, some times each; or something is wrong
/// already.
fn has_enough(folder: &Path, plan: &Plan<'_>) -> bool {
    History::read(folder).map_or(true, |history| {
        let changes = history.changes();
        let times = [changes.upgrades, changes.downgrades, changes.parts];
        LOCKS.iter().all(|lock| history.held(lock) >= plan.enough)
            && (!plan.changes() || times.iter().all(|times| *times >= plan.enough))
    })
}

/// The parent.
pub(crate) struct Stress<'a> {
    plan: Plan<'a>,
    pub(crate) folder: PathBuf,
    place: String,
    server: Child,
    /// Each with its space.
    workers: Vec<(String, Child)>,
    dice: SplitMix,
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

fn server(plan: &Plan<'_>, folder: &Path, place: &str) -> Child {
    child(plan.test, &format!("serve\n{}\n{place}\n{}", folder.display(), plan.offers.line()))
}

impl<'a> Stress<'a> {
    /// Starts a server and workers, each in the space that `space` says for the server's URL and the worker's turn.
    pub(crate) fn start(plan: Plan<'a>, space: impl Fn(&str, usize) -> String) -> Self {
        let seed = number("LOCKWRIGHT_SEED", std::process::id().into());
        println!("seed {seed}; LOCKWRIGHT_SEED={seed} repeats the choice of victims");
        let folder = folder(&format!("served-{}", plan.test.len()));
        let place = own_address().to_string();
        let server = server(&plan, &folder, &place);
        let (notes, dice) = (Log::of_parent(&folder, now_ns).unwrap(), SplitMix::new(seed));
        let url = plan.transport.url(&place);
        let spaces: Vec<_> = (0..plan.workers).map(|worker| space(&url, worker)).collect();
        let (workers, kills, stops, restarts) = (Vec::new(), 0, 0, 0);
        let mut stress = Self { plan, folder, place, server, workers, dice, notes, kills, stops, restarts };
        for space in spaces {
            let worker = stress.worker(&space);
            stress.workers.push((space, worker));
        }
        stress
    }

    fn worker(&mut self, space: &str) -> Child {
        let seed = self.dice.below(1 << 30);
        let wrong = if self.plan.lets_go { LETS_GO } else { "" };
        child(self.plan.test, &format!("{space}\n{}\n{seed}\n{wrong}", self.folder.display()))
    }

    pub(crate) fn run(mut self) -> Self {
        let seconds = number("LOCKWRIGHT_STRESS_SECONDS", self.plan.seconds);
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            let pause = self.plan.pause_ms;
            std::thread::sleep(Duration::from_millis(pause + self.dice.below(2 * pause)));
            let victim = self.dice.below(self.workers.len() as u64) as usize;
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
        let signal = |signal| kill(Pid::from_raw(pid as i32), signal).unwrap();
        self.notes.write(&format!("S {pid}"));
        signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(100 + self.dice.below(900)) * self.plan.transport.slower());
        signal(Signal::SIGCONT);
        self.notes.write(&format!("C {pid}"));
        self.stops += 1;
    }

    /// To a worker that is killed before it hears of it, this is as if it had been stopped: what it held may be another's.
    fn restart(&mut self) {
        let served = self.workers.iter().filter(|(space, _)| !space.starts_with("shm:"));
        let served: Vec<_> = served.map(|(_, child)| child.id()).collect();
        served.iter().for_each(|pid| self.notes.write(&format!("S {pid}")));
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        std::thread::sleep(Duration::from_millis(self.dice.below(300)));
        self.server = server(&self.plan, &self.folder, &self.place);
        served.iter().for_each(|pid| self.notes.write(&format!("C {pid}")));
        self.restarts += 1;
    }

    /// Lets the workers go on without faults until there is enough to judge, and then finish.
    pub(crate) fn finish(mut self) -> Self {
        let patience = Instant::now() + Duration::from_secs(60);
        while !has_enough(&self.folder, &self.plan) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(100));
        }
        fs::write(self.folder.join("stop"), "").unwrap();
        let patience = Instant::now() + PATIENCE;
        for worker in 0..self.workers.len() {
            let (space, child) = &mut self.workers[worker];
            match ended_by(child, patience) {
                Some(ended) => assert!(ended.success(), "{space}: a worker failed: {ended}"),
                None => self.hangs(worker),
            }
        }
        fs::write(self.folder.join("stop-server"), "").unwrap();
        assert!(self.server.wait().unwrap().success());
        self
    }

    /// A worker hangs: show who holds what, and fail.
    fn hangs(&self, worker: usize) -> ! {
        let (space, pid) = (self.workers[worker].0.clone(), self.workers[worker].1.id());
        // If it is the server that hangs, it does not answer this, either.
        let entries = Inspector::open(&space).map(|inspector| inspector.entries());
        panic!("{space}: process {pid} does not come to an end; the space says {entries:#?}");
    }

    /// Judges what the workers did.
    pub(crate) fn judge(self) {
        println!("{} kills, {} stops, {} restarts", self.kills, self.stops, self.restarts);
        judge(&self.folder, self.kills);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Processes that are left when a test fails would go on for ever.
impl Drop for Stress<'_> {
    fn drop(&mut self) {
        for child in self.workers.iter_mut().map(|(_, child)| child).chain([&mut self.server]) {
            end(child);
        }
        // A server that exports a space leaves its secret for when it comes back, which it will not.
        let port = self.place.rsplit_once(':').map_or("", |(_, port)| port);
        if let Ok(beside) = space_path(&format!("serve-{port}")) {
            let _ = fs::remove_file(beside.with_extension("secret"));
        }
    }
}
