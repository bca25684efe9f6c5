//! Seven machines: three etcds, three servers, and eight client processes on one, with faults at random from a seed. Servers are
//! killed, paused, and stopped and started again; links are cut between a server and etcd, a server and the clients, and the members
//! of etcd, in both directions or in one; the leader of etcd is killed, paused or cut off. Machines are network namespaces, so this
//! needs root.
//!
//! `LOCKWRIGHT_CLUSTER_SECS` says how long (20), `LOCKWRIGHT_CLUSTER_SEED` repeats the order of faults.

mod counting;
mod machines;
#[path = "../../cluster/tests/members/mod.rs"]
#[allow(dead_code, reason = "its members are of one machine")]
mod members;
mod started;

use counting::{Counting, count_as_told, is_client, seed_and_time};
use lockwright_cluster::ShardMap;
use lockwright_cluster::etcd::{Etcd, EtcdOptions};
use lockwright_cluster::keys::Keys;
use lockwright_fabric::random::SplitMix;
use machines::Machines;
use members::{is_wanted, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use started::Started;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ETCDS: [&str; 3] = ["e0", "e1", "e2"];
const SERVERS: [&str; 3] = ["s0", "s1", "s2"];
const CLIENTS: &str = "c";
const NAME: &str = "test";
/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn client() {
    count_as_told();
}

/// Everything, gone when it is dropped.
struct World {
    servers: Vec<Started>,
    etcds: Vec<Child>,
    folder: PathBuf,
    machines: Machines,
}

impl Drop for World {
    fn drop(&mut self) {
        self.servers.clear();
        for etcd in &mut self.etcds {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Both outputs go to a log in the folder.
fn logged(mut command: Command, folder: &Path, log: &str) -> Command {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join(log)).expect("a log");
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
    command
}

impl World {
    fn start() -> Option<Self> {
        if !is_wanted() {
            return None;
        }
        let names: Vec<_> = ETCDS.into_iter().chain(SERVERS).chain([CLIENTS]).collect();
        let machines = Machines::start(&names)?;
        let folder = std::env::temp_dir().join(format!("lockwright-partitions-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("counts")).expect("a folder");
        std::fs::write(folder.join("counts/secret"), "nobody else knows this, and it is long enough")
            .expect("written");
        machines.enter(CLIENTS);
        let mut world = Self { servers: Vec::new(), etcds: Vec::new(), folder, machines };
        for at in 0..ETCDS.len() {
            let etcd = world.etcd(at);
            world.etcds.push(etcd);
        }
        world.until("etcd has a leader", |world| world.leader().is_some());
        for at in 0..SERVERS.len() {
            let server = world.serve(at);
            world.servers.push(server);
        }
        world.until_even();
        Some(world)
    }

    fn etcd(&self, at: usize) -> Child {
        let url = |of: &str, port: u16| format!("http://{}:{port}", self.machines.address(of));
        let all: Vec<_> = ETCDS.iter().map(|of| format!("{of}={}", url(of, 2380))).collect();
        let name = ETCDS[at];
        let mut etcd = self.machines.command(name, "etcd");
        etcd.args(["--name", name, "--initial-cluster-state", "new", "--unsafe-no-fsync"])
            .args(["--initial-cluster", &all.join(",")])
            .arg("--data-dir")
            .arg(self.folder.join(name))
            .args(["--listen-peer-urls", &url(name, 2380), "--initial-advertise-peer-urls", &url(name, 2380)])
            .args(["--listen-client-urls", &url(name, 2379), "--advertise-client-urls", &url(name, 2379)])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        logged(etcd, &self.folder, &format!("{name}.log")).spawn().expect("etcd starts")
    }

    fn serve(&self, at: usize) -> Started {
        let mut server = self.machines.command(SERVERS[at], env!("CARGO_BIN_EXE_lockwright"));
        server.args(["serve", "--cluster", &format!("etcd:{}", self.cluster()), "--shards", "6"]);
        server.args(["--listen", &format!("{}:5625", self.machines.address(SERVERS[at])), "--log", "info"]);
        server.arg("--secret-file").arg(self.folder.join("counts/secret"));
        let mut server = logged(server, &self.folder, &format!("{}.log", SERVERS[at]));
        server.stdout(Stdio::piped()).env_remove("LOCKWRIGHT_SECRET_FILE");
        Started::new(server)
    }

    fn cluster(&self) -> String {
        let members: Vec<_> =
            ETCDS.iter().map(|etcd| format!("{}:2379", self.machines.address(etcd))).collect();
        format!("//{}/{NAME}", members.join(","))
    }

    fn client(&self, members: &[&str]) -> Etcd {
        let endpoint = |member: &&str| format!("{}:2379", self.machines.address(member));
        Etcd::new(EtcdOptions { endpoints: members.iter().map(endpoint).collect(), ..EtcdOptions::default() })
    }

    fn leader(&self) -> Option<usize> {
        let mut leader = None;
        run(async {
            for (at, member) in ETCDS.iter().enumerate() {
                if self.client(&[member]).is_leader().await.is_ok_and(|is_leader| is_leader) {
                    leader = Some(at);
                }
            }
        });
        leader
    }

    fn map(&self) -> Option<ShardMap> {
        let mut map = None;
        run(async {
            if let Ok((revision, items)) = self.client(&ETCDS).range(&Keys::new(NAME).map()).await {
                map = ShardMap::read(NAME, revision, &items);
            }
        });
        map
    }

    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "it takes too long until {what}: {:?}", self.map());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_even(&self) {
        self.until("every shard is open and served by three servers", |world| {
            let Some(map) = world.map() else { return false };
            let is_open = map.serving.values().all(|serving| serving.is_open);
            let least = map.servers.keys().map(|server| map.owned_by(*server).count()).min();
            map.serving.len() == usize::from(map.shards) && is_open && least >= Some(2)
        });
    }

    /// Cuts one machine off from others, for a while: what it sends (1), what it is sent (2), or both (3).
    fn cut(&self, one: &str, others: &[&str], ways: u64, pause: Duration) -> String {
        let others: Vec<_> = others.iter().copied().filter(|other| *other != one).collect();
        for other in &others {
            if ways & 1 != 0 {
                self.machines.cut(one, other);
            }
            if ways & 2 != 0 {
                self.machines.cut(other, one);
            }
        }
        std::thread::sleep(pause);
        self.machines.heal();
        let how = ["", "what it sends is lost", "what it is sent is lost", "both ways"][ways as usize];
        format!("{one} and {}: cut for {pause:?}, {how}", others.join(", "))
    }

    /// To a member of etcd.
    fn signal(&self, member: usize, signal: Signal) {
        kill(Pid::from_raw(self.etcds[member].id().cast_signed()), signal).expect("it runs");
    }

    /// One fault, for a while.
    fn fault(&mut self, random: &mut SplitMix) -> String {
        let (at, ways) = (random.below(3) as usize, 1 + random.below(3));
        let pause = Duration::from_millis(500 + random.below(4500));
        let (what, server) = (random.below(9), SERVERS[at]);
        // Mostly the leader.
        let member = self.leader().filter(|_| random.below(4) > 0).unwrap_or(at);
        match what {
            0 | 1 => {
                let how = if what == 0 { Signal::SIGKILL } else { Signal::SIGTERM };
                self.servers[at].send(how);
                let _ = self.servers[at].child.wait();
                std::thread::sleep(pause);
                self.servers[at] = self.serve(at);
                format!("{server}: {how}, and started again after {pause:?}")
            }
            2 => {
                self.servers[at].send(Signal::SIGSTOP);
                std::thread::sleep(pause);
                self.servers[at].send(Signal::SIGCONT);
                format!("{server}: paused for {pause:?}")
            }
            3 => self.cut(server, &ETCDS, ways, pause),
            4 => self.cut(server, &[CLIENTS], ways, pause),
            5 => self.cut(ETCDS[member], &ETCDS, ways, pause),
            6 => {
                // With everything that it is connected to.
                let all: Vec<_> = ETCDS.into_iter().chain(SERVERS).collect();
                self.cut(ETCDS[member], &all, ways, pause)
            }
            7 => {
                self.signal(member, Signal::SIGSTOP);
                std::thread::sleep(pause);
                self.signal(member, Signal::SIGCONT);
                format!("{}: paused for {pause:?}", ETCDS[member])
            }
            _ => {
                let _ = self.etcds[member].kill();
                let _ = self.etcds[member].wait();
                std::thread::sleep(pause);
                self.etcds[member] = self.etcd(member);
                format!("{}: killed, and started again after {pause:?}", ETCDS[member])
            }
        }
    }
}

#[test]
fn whatever_is_cut_killed_or_paused_no_count_under_a_lock_is_lost() {
    if is_client() {
        return;
    }
    let Some(mut world) = World::start() else { return };
    let (mut random, time) = seed_and_time();
    let clients =
        Counting::start(&format!("cluster:{}/stock", world.cluster()), &world.folder.join("counts"));
    let until = Instant::now() + time;
    while Instant::now() < until {
        println!("{}", world.fault(&mut random));
        std::thread::sleep(Duration::from_millis(200 + random.below(2500)));
    }
    // Whatever is wrong heals by itself.
    world.until_even();
    clients.end();
}
