//! Processes that work under locks of a server while they are killed and stopped, and the server is killed and started
//! again, all at random.
//!
//! Every worker adds one to a counter file under its lock, and notes what it wrote, from when to when it held the lock
//! (if the server confirmed at the unlock that it was held until then), and with which token. Afterwards: no number was
//! written twice, no two confirmed holds of one lock overlap, and tokens rise in the order of the holds. Servers and
//! workers are this test's own binary, started again with a task in the environment.
//!
//! It runs over RDMA, where there is a device; over tcp, `crates/lockwright/tests/tcp_stress.rs` does the like.

use lockwright::fenced::{FencedError, FencedFile};
use lockwright::server::{Server, ServerOptions};
use lockwright::{Client, Guard};
use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TASK: &str = "LOCKWRIGHT_TEST_TASK";
const KINDS: [&str; 3] = ["mutex", "rwlock", "range"];
const HEARTBEAT: Duration = Duration::from_millis(50);
const GRACE: Duration = Duration::from_millis(400);

/// How hard it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stress {
    /// The test that runs this.
    pub(crate) test: &'static str,
    pub(crate) workers: usize,
    /// Unless `LOCKWRIGHT_STRESS_SECONDS` says otherwise.
    pub(crate) seconds: u64,
    /// Holds of every kind of lock, at least.
    pub(crate) holds: usize,
}

/// Nanoseconds on a clock that all processes share.
fn now() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    time.as_nanos() as u64
}

fn serve(folder: &Path, listen: &str) {
    let options = ServerOptions::default()
        .listen("127.0.0.1:0".parse().unwrap())
        .rdma(listen.parse().unwrap(), Default::default())
        .state(folder.join("state"))
        .heartbeat(HEARTBEAT)
        .grace(GRACE);
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

fn work(folder: &Path, space: &str, kind: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    let client = loop {
        match Client::options().lease(Duration::from_secs(5)).open(space) {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let log = folder.join(format!("log-{kind}-{}", std::process::id()));
    let mut log = OpenOptions::new().create(true).append(true).open(log).unwrap();
    let mut file = FencedFile::open(folder.join(kind)).unwrap();
    let take = |shared: bool| -> Option<Guard> {
        let taken = match kind {
            "mutex" => client.mutex("a").ok()?.lock(),
            "rwlock" if shared => client.rwlock("b").ok()?.read(),
            "rwlock" => client.rwlock("b").ok()?.write(),
            _ => client.range_lock("c").ok()?.write(3..9),
        };
        taken.wait().ok()
    };
    let mut round = 0_u64;
    while !folder.join("stop").exists() {
        round += 1;
        if kind == "rwlock" && round.is_multiple_of(3) {
            let Some(guard) = take(true) else { continue };
            let (first, second) = (file.read().unwrap(), file.read().unwrap());
            if guard.unlock().wait().is_ok() {
                assert_eq!(first, second, "a reader saw a writer at work");
            }
            continue;
        }
        let Some(guard) = take(false) else {
            // The server is away, or we were stopped for too long.
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let (token, began) = (guard.token(), now());
        let seen = String::from_utf8(file.read().unwrap()).unwrap();
        let next = seen.parse::<u64>().unwrap_or(0) + 1;
        let wrote = match file.write(token, next.to_string().as_bytes()) {
            Ok(()) => true,
            Err(FencedError::Stale(_)) => false,
            Err(error) => panic!("{error}"),
        };
        if round.is_multiple_of(8) {
            std::thread::sleep(Duration::from_millis(3));
        }
        let ended = now();
        let held = guard.unlock().wait().is_ok();
        writeln!(log, "{} {next} {held} {token} {began} {ended}", if wrote { "wrote" } else { "fenced" })
            .unwrap();
    }
}

struct Processes {
    stress: Stress,
    folder: PathBuf,
    server: String,
}

impl Processes {
    /// Starts a process that serves or works, as `task` says.
    fn start(&self, task: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([self.stress.test, "--exact", "--nocapture"])
            .env(TASK, format!("{}\n{}\n{task}", self.folder.display(), self.server))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// The whole of it; in a process that was started for a task, only that.
pub(crate) fn run(stress: Stress) {
    if let Ok(task) = std::env::var(TASK) {
        let parts: Vec<_> = task.split('\n').collect();
        let [folder, server, task] = parts[..] else { panic!("a task has three parts") };
        return match task {
            "server" => serve(Path::new(folder), server),
            kind => work(Path::new(folder), &format!("rdma://{server}/stress"), kind),
        };
    }
    let number =
        |name: &str, or: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or);
    let seed = number("LOCKWRIGHT_SEED", std::process::id().into());
    let seconds = number("LOCKWRIGHT_STRESS_SECONDS", stress.seconds);
    println!(
        "seed {seed}; LOCKWRIGHT_SEED={seed} repeats the choice of victims, LOCKWRIGHT_STRESS_SECONDS lasts longer"
    );
    let mut random = seed;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    // In a virtual machine the build's own folder is not there.
    let temporary = Some(PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).filter(|folder| folder.is_dir());
    let temporary = temporary.unwrap_or_else(std::env::temp_dir);
    let folder = temporary.join(format!("rdma-stress-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    // A port that was free a moment ago.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let processes = Processes { stress, folder: folder.clone(), server };
    let mut server = processes.start("server");
    let mut workers: Vec<_> =
        KINDS.iter().cycle().take(stress.workers).map(|kind| (*kind, processes.start(kind))).collect();
    let began = Instant::now();
    let (mut kills, mut stops, mut restarts) = (0_u64, 0, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(100 + next(200)));
        let victim = next(workers.len() as u64) as usize;
        let (kind, child) = &mut workers[victim];
        match next(4) {
            0 | 1 => {
                child.kill().unwrap();
                let ended = child.wait().unwrap();
                assert!(ended.code().is_none(), "{kind}: a worker failed before it was killed: {ended}");
                *child = processes.start(kind);
                kills += 1;
            }
            2 => {
                signal(child, "STOP");
                // Sometimes for longer than the server waits for it, sometimes not.
                std::thread::sleep(Duration::from_millis(200 + next(800)));
                signal(child, "CONT");
                stops += 1;
            }
            _ => {
                server.kill().unwrap();
                server.wait().unwrap();
                std::thread::sleep(Duration::from_millis(next(300)));
                server = processes.start("server");
                restarts += 1;
            }
        }
    }
    fs::write(folder.join("stop"), "").unwrap();
    for (kind, child) in &mut workers {
        assert!(child.wait().unwrap().success(), "{kind}: a worker failed");
    }
    fs::write(folder.join("stop-server"), "").unwrap();
    assert!(server.wait().unwrap().success());
    for kind in KINDS {
        check(&folder, kind, kills, stress.holds);
    }
    println!("{kills} kills, {stops} stops, {restarts} restarts");
    let _ = fs::remove_dir_all(folder);
}

fn check(folder: &Path, kind: &str, kills: u64, least: usize) {
    let logs = fs::read_dir(folder).unwrap().flatten();
    let logs = logs.filter(|file| file.file_name().to_string_lossy().starts_with(&format!("log-{kind}-")));
    let text: String = logs.map(|log| fs::read_to_string(log.path()).unwrap()).collect();
    let (mut numbers, mut holds, mut fenced) = (HashSet::new(), Vec::new(), 0);
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        // A worker that was killed may have left half a line.
        let [wrote, number, held, token, began, ended] = words[..] else { continue };
        let Ok(ended) = ended.parse::<u64>() else { continue };
        match wrote {
            "wrote" => assert!(numbers.insert(number.to_owned()), "{kind}: {number} was written twice"),
            _ => fenced += 1,
        }
        if held == "true" {
            let [token, began] = [token, began].map(|number| number.parse::<u64>().unwrap());
            holds.push((began, ended, token));
        }
    }
    holds.sort_unstable();
    for pair in holds.windows(2) {
        let [(_, ended, token), (began, _, later)] = pair else { unreachable!("pairs") };
        assert!(ended <= began, "{kind}: two held it at once: {pair:?}");
        assert!(token < later, "{kind}: tokens fell: {pair:?}");
    }
    let last = String::from_utf8(FencedFile::open(folder.join(kind)).unwrap().read().unwrap()).unwrap();
    println!(
        "{kind}: {} updates noted of {last}, {} holds confirmed, {fenced} fenced",
        numbers.len(),
        holds.len()
    );
    // Whoever is killed between writing and noting leaves a gap, and nobody else does.
    let gaps = last.parse::<u64>().unwrap() - numbers.len() as u64;
    assert!(gaps <= kills, "{kind}: {gaps} updates are missing after {kills} kills");
    assert!(holds.len() > least, "{kind}: next to nothing was done");
}
