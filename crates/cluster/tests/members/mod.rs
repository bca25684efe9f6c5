//! Three etcds of one test's own. Needs the program `etcd`, and says so.

use lockwright_cluster::etcd::{Etcd, EtcdOptions};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three members on ports of their own.
pub(crate) struct Members {
    /// One test at a time: three etcds are enough for a small machine.
    _alone: MutexGuard<'static, ()>,
    pub(crate) processes: Vec<Child>,
    pub(crate) endpoints: Vec<String>,
    /// How a client of them is known; the endpoints are added.
    pub(crate) access: EtcdOptions,
    ports: Vec<u16>,
    trust: Trust,
    folder: PathBuf,
}

/// How members and their clients know each other.
#[allow(dead_code, reason = "not every test program needs all of it")]
pub(crate) enum Trust {
    /// Not at all.
    Plain,
    /// By this certificate and key, PEM, of the members.
    Tls(String, String),
    /// The same, and clients by certificates of this authority.
    Mutual(String, String, String),
}

impl Members {
    /// `None`, and a line that says so, where there is no etcd.
    pub(crate) fn start(of: &str) -> Option<Self> {
        Self::start_with(of, Trust::Plain)
    }

    /// The same, with certificates.
    pub(crate) fn start_with(of: &str, trust: Trust) -> Option<Self> {
        if !is_wanted() {
            return None;
        }
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = std::env::temp_dir().join(format!("lockwright-etcd-{of}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        if let Trust::Tls(certificate, key) | Trust::Mutual(certificate, key, _) = &trust {
            std::fs::write(folder.join("cert.pem"), certificate).expect("written");
            std::fs::write(folder.join("key.pem"), key).expect("written");
        }
        if let Trust::Mutual(.., authority) = &trust {
            std::fs::write(folder.join("clients.pem"), authority).expect("written");
        }
        let ports = ports();
        let endpoints = ports[..3].iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let (processes, access) = (Vec::new(), EtcdOptions::default());
        let mut members = Self { _alone: alone, processes, endpoints, access, ports, trust, folder };
        members.processes = (0..3).map(|at| members.spawn(at)).collect();
        Some(members)
    }

    fn spawn(&self, at: usize) -> Child {
        let (ports, folder) = (&self.ports, &self.folder);
        let peer = |at: usize| format!("http://127.0.0.1:{}", ports[3 + at]);
        let all: Vec<_> = (0..3).map(|at| format!("m{at}={}", peer(at))).collect();
        let scheme = if let Trust::Plain = self.trust { "http" } else { "https" };
        let client = format!("{scheme}://127.0.0.1:{}", ports[at]);
        let log = folder.join(format!("m{at}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("a log");
        let mut etcd = Command::new("etcd");
        etcd.args(["--name", &format!("m{at}"), "--initial-cluster-state", "new", "--unsafe-no-fsync"])
            .args(["--initial-cluster", &all.join(",")])
            .arg("--data-dir")
            .arg(folder.join(format!("m{at}")))
            .args(["--listen-peer-urls", &peer(at), "--initial-advertise-peer-urls", &peer(at)])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        if !matches!(self.trust, Trust::Plain) {
            etcd.arg("--cert-file").arg(folder.join("cert.pem"));
            etcd.arg("--key-file").arg(folder.join("key.pem"));
        }
        if let Trust::Mutual(..) = self.trust {
            etcd.arg("--client-cert-auth").arg("--trusted-ca-file").arg(folder.join("clients.pem"));
        }
        etcd.spawn().expect("etcd starts")
    }

    /// Kills a member.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn kill(&mut self, at: usize) {
        self.processes[at].kill().expect("killed");
        self.processes[at].wait().expect("gone");
    }

    /// Starts a member again that was killed.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn restart(&mut self, at: usize) {
        self.processes[at] = self.spawn(at);
    }

    pub(crate) fn client(&self) -> Etcd {
        Etcd::new(EtcdOptions { endpoints: self.endpoints.clone(), ..self.access.clone() })
    }

    /// Where their files are, until the test ends.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// A client, when there is a leader.
    pub(crate) async fn ready(&self) -> Etcd {
        let mut etcd = self.client();
        until("there is a leader", async || etcd.range("/").await.is_ok()).await;
        etcd
    }
}

/// Whether tests on real etcds run here; a line says so if not. They take turns, and minutes, so they are steps of their own.
pub(crate) fn is_wanted() -> bool {
    if std::env::var_os("LOCKWRIGHT_ETCD").is_none() {
        println!("skipped: `cargo xtask cluster --test` runs this, or LOCKWRIGHT_ETCD=1 in the environment");
        return false;
    }
    let version = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
    let is_there = version.is_ok_and(|status| status.success());
    if !is_there {
        println!("skipped: there is no program `etcd` (apt-get install etcd-server)");
    }
    is_there
}

/// Six ports that are free, below those that the system gives to connections.
pub(crate) fn ports() -> Vec<u16> {
    let first = 10_000 + (std::process::id() % 20_000) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..32_000).filter(is_free).take(6).collect()
}

impl Drop for Members {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "it takes too long until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}
