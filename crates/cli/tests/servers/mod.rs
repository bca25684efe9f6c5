//! Three servers on three real etcds.

use crate::members::{Members, ports, run};
use crate::started::Started;
use lockwright::{Client, GuardState, MutexGuard};
use lockwright_cluster::ShardMap;
use lockwright_cluster::keys::{Keys, ServerId};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may take that has to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "test";

pub(crate) fn lockwright(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
    command.args(args).env_remove("LOCKWRIGHT_SPACE").env_remove("LOCKWRIGHT_SECRET_FILE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ports of a server: its own, those of six shards, and the last for its metrics.
const ROOM: u16 = 10;

fn metrics_of(listen: &str) -> String {
    let (host, port) = listen.split_once(':').expect("host:port");
    format!("{host}:{}", port.parse::<u16>().expect("a port") + ROOM - 1)
}

/// Waits until a guard is `Held`: after a change of owner its state is uncertain until it is confirmed.
#[allow(dead_code, reason = "not every test program needs it")]
pub(crate) fn until_held(guard: &MutexGuard) {
    let began = Instant::now();
    loop {
        match guard.state() {
            GuardState::Held => return,
            GuardState::Uncertain => {}
            state => panic!("it is {state:?}"),
        }
        assert!(began.elapsed() < PATIENCE, "it stays uncertain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Three servers on three etcds.
pub(crate) struct Cluster {
    pub(crate) members: Members,
    /// Where each listens.
    pub(crate) servers: Vec<(String, Started)>,
    /// What every server and command is told of etcd, besides where it is.
    pub(crate) access: Vec<String>,
}

#[allow(dead_code, reason = "not every test program needs all of it")]
impl Cluster {
    /// `None`, and a line that says so, where there is no etcd.
    pub(crate) fn start(of: &str) -> Option<Self> {
        let members = Members::start(of)?;
        run(async { drop(members.ready().await) });
        Some(Self::start_on(members, Vec::new()))
    }

    /// The same on etcds that are ready, and want to know so much of their clients.
    pub(crate) fn start_on(members: Members, access: Vec<String>) -> Self {
        let mut cluster = Self { members, servers: Vec::new(), access };
        (0..3).for_each(|_| cluster.serve());
        cluster.until_even();
        cluster
    }

    pub(crate) fn until_even(&self) {
        self.until("every shard is open and served by three servers", |map| {
            let is_open = map.serving.values().all(|serving| serving.is_open);
            let least = map.servers.keys().map(|server| map.owned_by(*server).count()).min();
            map.serving.len() == usize::from(map.shards) && is_open && least >= Some(2)
        });
    }

    /// One more server.
    pub(crate) fn serve(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port());
        let server = self.start_at(&listen, &self.etcd());
        self.servers.push((listen, server));
    }

    /// A port for one more server: those above it are free for its shards, and one for its metrics.
    pub(crate) fn port(&self) -> u16 {
        let first = ports().first().copied().expect("a port") + 100 * (1 + self.servers.len() as u16);
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let mut rooms = (first..).step_by(usize::from(ROOM)).take(50);
        rooms.find(|port| (*port..port + ROOM).all(is_free)).expect("ports for a server")
    }

    /// A server that listens there, and reaches etcd by that address.
    pub(crate) fn start_at(&self, listen: &str, etcd: &str) -> Started {
        let args = ["serve", "--cluster", etcd, "--listen", listen, "--shards", "6", "--log", "info"];
        let mut command = lockwright(&args);
        command.args(["--metrics", &metrics_of(listen)]).args(&self.access);
        let log = self.members.folder().join(format!("server-{listen}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
        command.stderr(log.expect("a log"));
        let server = Started::new(command);
        assert!(server.line.contains(listen), "{}", server.line);
        server
    }

    pub(crate) fn etcd(&self) -> String {
        format!("etcd://{}/{NAME}", self.members.endpoints.join(","))
    }

    pub(crate) fn space(&self) -> String {
        format!("cluster://{}/{NAME}/stock", self.members.endpoints.join(","))
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(&self.space()).wait().expect("a client")
    }

    /// The map. On a busy machine etcd may elect a leader anew, and answers nobody meanwhile.
    pub(crate) fn map(&self) -> ShardMap {
        let began = Instant::now();
        let mut map = None;
        run(async {
            let mut etcd = self.members.client();
            while map.is_none() {
                let read = etcd.range(&Keys::new(NAME).map()).await;
                assert!(began.elapsed() < PATIENCE, "there is no map: {read:?}");
                map = read.ok().and_then(|(revision, items)| ShardMap::read(NAME, revision, &items));
            }
        });
        map.expect("it was read")
    }

    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&ShardMap) -> bool) {
        let began = Instant::now();
        while !is_so(&self.map()) {
            assert!(began.elapsed() < PATIENCE, "it takes too long until {what}: {:?}", self.map());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The sum of a metric over all servers that answer.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let of = |listen: &String| -> Option<f64> {
            let mut stream = TcpStream::connect(metrics_of(listen)).ok()?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        self.servers.iter().filter_map(|(listen, _)| of(listen)).sum()
    }

    /// Which of the servers serves this lock.
    pub(crate) fn owner(&self, name: &str) -> usize {
        let map = self.map();
        let state = map.state(map.shard_of(b"stock", name.as_bytes()));
        let (_, at) = &map.servers[&state.owner.expect("an owner").server];
        self.servers.iter().position(|(listen, _)| listen == at).expect("one of them")
    }

    /// The number that a server has in the map.
    pub(crate) fn server_id(&self, at: usize) -> ServerId {
        let (listen, map) = (&self.servers[at].0, self.map());
        *map.servers.iter().find(|(_, (_, at))| at == listen).expect("it is in the map").0
    }

    /// A lock of the same shard.
    pub(crate) fn neighbour(&self, name: &str) -> String {
        let map = self.map();
        let shard = |name: &str| map.shard_of(b"stock", name.as_bytes());
        let mut names = (0..).map(|n| format!("neighbour-{n}"));
        names.find(|other| shard(other) == shard(name)).expect("some name is")
    }
}
