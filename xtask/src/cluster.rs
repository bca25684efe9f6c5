//! `cargo xtask cluster`: three etcds and three servers on this machine, to play with; and `--test`, what is asked of them when
//! they are killed, paused and cut off from each other.

use crate::etcd;
use crate::names::{COMMAND_PROGRAM, EXPLORER, TESTED};
use crate::setup::{self, Need};
use crate::steps::{self, Ended, step};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Ports to play with: of etcd's clients and members, three each, and of the first server.
const ETCD: u16 = 23_790;
const PEERS: u16 = 23_800;
const SERVERS: u16 = 23_900;
/// Between two servers: room for their shards.
const APART: u16 = 20;

/// Test programs: faults on one machine, and on several that are cut off from each other.
const FAULTS: &str = "cluster_faults";
const PARTITIONS: &str = "cluster_partitions";

/// All tests, each as a step.
pub(crate) fn test(root: &Path) -> ExitCode {
    steps::count(&[
        step("cluster", || tests(root, "cluster")),
        step("etcd", || etcd::ended(root, steps::run)),
        step("cluster: faults", || faults(root, FAULTS, "60")),
        step("cluster: partitions", || match setup::is_root() {
            true => faults(root, PARTITIONS, "90"),
            false => {
                println!("skipped: only root makes network namespaces");
                Ended::Skipped
            }
        }),
    ])
}

/// The short version, as one step of the test command.
pub(crate) fn ended(root: &Path, may: bool) -> Ended {
    match tests(root, "cluster") {
        Ended::Passed => {}
        ended => return ended,
    }
    // Only root makes network namespaces, and not every kernel has them.
    match setup::is_root().then(|| Need::Ip.get(root, may)) {
        Some(Ok(())) => match faults(root, PARTITIONS, "20") {
            Ended::Skipped => faults(root, FAULTS, "20"),
            ended => ended,
        },
        Some(Err(why)) => {
            println!("{why}; faults without partitions");
            faults(root, FAULTS, "20")
        }
        None => faults(root, FAULTS, "20"),
    }
}

/// A test program of the command, one test at a time.
fn tests_of(root: &Path, test: &str) -> Result<Command, String> {
    let path = etcd::path(root)?;
    let features = TESTED.join(",");
    let args = ["test", "--package", COMMAND_PROGRAM.package, "--features", &features, "--test", test];
    let mut command = steps::command(root, &args);
    command.args(["--", "--test-threads=1", "--nocapture"]).env("PATH", path).env(etcd::WANTED, "1");
    Ok(command)
}

fn skipped(why: &str) -> Ended {
    println!("skipped: there is no etcd, and {why}");
    Ended::Skipped
}

fn tests(root: &Path, test: &str) -> Ended {
    match tests_of(root, test) {
        Ok(mut command) => steps::run(&mut command),
        Err(why) => skipped(&why),
    }
}

/// Faults at random for so many seconds, unless the environment says otherwise; then the clients' records are judged.
fn faults(root: &Path, test: &str, secs: &str) -> Ended {
    let records = std::env::temp_dir().join(format!("lockwright-cluster-records-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir_all(&records) {
        println!("{}: {error}", records.display());
        return Ended::Failed;
    }
    let secs = std::env::var("LOCKWRIGHT_CLUSTER_SECS").unwrap_or_else(|_| secs.to_owned());
    let ended = match tests_of(root, test) {
        Ok(mut command) => {
            command.env("LOCKWRIGHT_CLUSTER_SECS", secs).env("LOCKWRIGHT_CLUSTER_RECORDS", &records);
            match steps::run(&mut command) {
                Ended::Passed => judge(root, &records),
                ended => ended,
            }
        }
        Err(why) => skipped(&why),
    };
    let _ = std::fs::remove_dir_all(&records);
    ended
}

/// Shows what the clients wrote down to the checkers. Without a record the test has skipped itself, and said why.
pub(crate) fn judge(root: &Path, records: &Path) -> Ended {
    let files = std::fs::read_dir(records).into_iter().flatten().flatten().map(|entry| entry.path());
    let files: Vec<_> = files.collect();
    if files.is_empty() {
        return Ended::Skipped;
    }
    match steps::program(root, &EXPLORER, &[]) {
        Ok(explorer) => steps::run(Command::new(explorer).args(["check", "--history"]).args(files)),
        Err(why) => {
            println!("{why}");
            Ended::Failed
        }
    }
}

/// Starts everything and says how to use it, until it is told to stop.
pub(crate) fn play(root: &Path) -> ExitCode {
    match Playground::start(root) {
        Ok(mut playground) => {
            playground.wait();
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Processes and their files, gone when it is dropped.
struct Playground {
    processes: Vec<Child>,
    folder: PathBuf,
}

impl Playground {
    fn start(root: &Path) -> Result<Self, String> {
        let path = etcd::path(root)?;
        let program = steps::program(root, &COMMAND_PROGRAM, TESTED)?;
        let folder = std::env::temp_dir().join(format!("lockwright-cluster-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut playground = Self { processes: Vec::new(), folder };
        let peer = |at: u16| format!("http://127.0.0.1:{}", PEERS + at);
        let all: Vec<_> = (0..3).map(|at| format!("m{at}={}", peer(at))).collect();
        for at in 0..3 {
            let client = format!("http://127.0.0.1:{}", ETCD + at);
            let mut etcd = Command::new("etcd");
            etcd.env("PATH", &path)
                .args(["--name", &format!("m{at}"), "--initial-cluster-state", "new"])
                .args(["--initial-cluster", &all.join(",")])
                .arg("--data-dir")
                .arg(playground.folder.join(format!("m{at}")))
                .args(["--listen-peer-urls", &peer(at), "--initial-advertise-peer-urls", &peer(at)])
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            playground.spawn(etcd, &format!("etcd-{at}.log"))?;
        }
        let members: Vec<_> = (0..3).map(|at| format!("127.0.0.1:{}", ETCD + at)).collect();
        let cluster = format!("{}/play", members.join(","));
        std::thread::sleep(Duration::from_secs(2));
        for at in 0..3 {
            let listen = format!("127.0.0.1:{}", SERVERS + APART * at);
            let mut server = Command::new(&program);
            server.args(["serve", "--listen", &listen, "--cluster", &format!("etcd://{cluster}")]);
            server.args(["--log", "info"]);
            playground.spawn(server, &format!("server-{at}.log"))?;
        }
        let (program, folder) = (program.display(), playground.folder.display());
        println!("logs are in {folder}; processes:");
        for (process, name) in
            playground.processes.iter().zip(["etcd", "etcd", "etcd", "server", "server", "server"])
        {
            println!("  {name} {}", process.id());
        }
        println!("export LOCKWRIGHT_SPACE=cluster://{cluster}/stock");
        println!("{program} run job -- sleep 100 &");
        println!("{program} ls");
        println!("kill a server (kill -9), and look again; Ctrl-C ends all of it");
        Ok(playground)
    }

    fn spawn(&mut self, mut command: Command, log: &str) -> Result<(), String> {
        let wrong = |error: std::io::Error| format!("{log}: {error}");
        let log = std::fs::File::create(self.folder.join(log)).map_err(wrong)?;
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(wrong)?).stderr(log);
        self.processes.push(command.spawn().map_err(wrong)?);
        Ok(())
    }

    /// Until the servers are gone: they get the terminal's signal, too.
    fn wait(&mut self) {
        for process in self.processes.iter_mut().skip(3) {
            let _ = process.wait();
        }
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let until = Instant::now() + Duration::from_secs(2);
        while std::fs::remove_dir_all(&self.folder).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
