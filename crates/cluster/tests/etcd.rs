//! The client of etcd and the transactions of a shard, on three real etcds. Needs the program `etcd`, and says so.

use lockwright_cluster::etcd::{Etcd, EtcdError, EtcdOptions, Tls};
use lockwright_cluster::keys::{Keys, Registered};
use lockwright_cluster::map::ShardMap;
use lockwright_cluster::plan;
use lockwright_cluster::shard::{Shard, Taker};
use lockwright_cluster::txn::{Compare, Op, Outcome, Txn};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "test";

/// Three members on ports of their own.
struct Members {
    /// One test at a time: three etcds are enough for a small machine.
    _alone: MutexGuard<'static, ()>,
    processes: Vec<Child>,
    endpoints: Vec<String>,
    folder: PathBuf,
}

impl Members {
    /// `None`, and a line that says so, where there is no etcd.
    fn start(of: &str) -> Option<Self> {
        Self::start_with(of, None)
    }

    /// The same, with a certificate and a key, PEM, for clients.
    fn start_with(of: &str, tls: Option<(&str, &str)>) -> Option<Self> {
        let version = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            println!("skipped: there is no program `etcd` (apt-get install etcd-server)");
            return None;
        }
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = std::env::temp_dir().join(format!("lockwright-etcd-{of}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let ports = ports();
        let peer = |at: usize| format!("http://127.0.0.1:{}", ports[3 + at]);
        let all: Vec<_> = (0..3).map(|at| format!("m{at}={}", peer(at))).collect();
        let files = tls.map(|(certificate, key)| {
            let files = [folder.join("cert.pem"), folder.join("key.pem")];
            std::fs::write(&files[0], certificate).expect("written");
            std::fs::write(&files[1], key).expect("written");
            files
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let start = |at: usize| {
            let (client, log) =
                (format!("{scheme}://127.0.0.1:{}", ports[at]), folder.join(format!("m{at}.log")));
            let log = std::fs::File::create(log).expect("a log");
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
            if let Some([certificate, key]) = &files {
                etcd.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
            }
            etcd.spawn().expect("etcd starts")
        };
        let processes = (0..3).map(start).collect();
        let endpoints = ports[..3].iter().map(|port| format!("127.0.0.1:{port}")).collect();
        Some(Self { _alone: alone, processes, endpoints, folder })
    }

    fn client(&self) -> Etcd {
        Etcd::new(EtcdOptions { endpoints: self.endpoints.clone(), ..EtcdOptions::default() })
    }

    /// A client, when there is a leader.
    async fn ready(&self) -> Etcd {
        let mut etcd = self.client();
        until("there is a leader", async || etcd.range("/").await.is_ok()).await;
        etcd
    }
}

/// Six ports that are free, below those that the system gives to connections.
fn ports() -> Vec<u16> {
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

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "it takes too long until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

fn put(key: &str, value: &str) -> Txn {
    Txn { when: Vec::new(), then: vec![Op::Put(key.to_owned(), value.to_owned())] }
}

#[test]
fn a_transaction_is_done_once_and_a_lease_takes_its_keys_with_it() {
    let Some(members) = Members::start("lease") else { return };
    run(async {
        let mut etcd = members.ready().await;
        assert!(etcd.version().await.expect("it answers").starts_with("3."));
        let Ok(Outcome::Done(first)) = etcd.txn(&put("/a/x", "1"), 0).await else { panic!("it is done") };
        let mut next = put("/a/x", "2");
        next.when.push(Compare::Changed("/a/x".to_owned(), first));
        assert!(matches!(etcd.txn(&next, 0).await, Ok(Outcome::Done(second)) if second > first));
        assert_eq!(etcd.txn(&next, 0).await, Ok(Outcome::Refused));
        let (lease, ttl) = etcd.grant(Duration::from_secs(2)).await.expect("a lease");
        assert!(ttl >= Duration::from_secs(1), "{ttl:?}");
        let leased = Txn { when: Vec::new(), then: vec![Op::PutLeased("/a/y".to_owned(), "ü".to_owned())] };
        etcd.txn(&leased, lease).await.expect("done");
        assert_eq!(etcd.renew(lease).await, Ok(Some(ttl)));
        let (_, items) = etcd.range("/a/").await.expect("read");
        assert_eq!(items.iter().map(|item| item.value.as_str()).collect::<Vec<_>>(), ["2", "ü"]);
        until("the lease is over", async || {
            etcd.range("/a/y").await.is_ok_and(|(_, items)| items.is_empty())
        })
        .await;
        assert_eq!(etcd.renew(lease).await, Ok(None));
    });
}

#[test]
fn when_a_member_is_killed_the_next_one_is_asked() {
    let Some(mut members) = Members::start("killed") else { return };
    run(async {
        let mut etcd = members.ready().await;
        etcd.txn(&put("/a/x", "1"), 0).await.expect("done");
        let at =
            members.endpoints.iter().position(|endpoint| *endpoint == etcd.endpoint()).expect("one of them");
        members.processes[at].kill().expect("killed");
        members.processes[at].wait().expect("gone");
        until("another answers", async || etcd.range("/a/").await.is_ok_and(|(_, items)| items.len() == 1))
            .await;
        assert_ne!(etcd.endpoint(), members.endpoints[at]);
    });
}

/// A server of the cluster, with its lease.
async fn join(etcd: &mut Etcd, server: u64) -> (Taker, i64) {
    let keys = Keys::new(NAME);
    let (lease, ttl) = etcd.grant(Duration::from_secs(2)).await.expect("a lease");
    let key = Txn { when: Vec::new(), then: vec![Op::PutLeased(keys.server(server), "at x:1".to_owned())] };
    let Ok(Outcome::Done(made)) = etcd.txn(&key, lease).await else { panic!("it joins") };
    let rules = lockwright_cluster::Rules::default();
    (Taker { keys, server, made, block: 100, first_token: 1, ttl, rules }, lease)
}

async fn map(etcd: &mut Etcd) -> ShardMap {
    let (revision, items) = etcd.range(&Keys::new(NAME).map()).await.expect("read");
    ShardMap::read(NAME, revision, &items).expect("there is a config")
}

async fn sessions(etcd: &mut Etcd) -> Vec<Registered> {
    let prefix = Keys::new(NAME).sessions(0);
    let (_, items) = etcd.range(&prefix).await.expect("read");
    items.iter().filter_map(|item| Registered::parse(&item.key[prefix.len()..], &item.value)).collect()
}

/// Takes shard 0, if it is to be had.
async fn take(etcd: &mut Etcd, (taker, lease): &(Taker, i64)) -> Option<Shard> {
    let map = map(etcd).await;
    if !plan::takes(&map, taker.server).contains(&0) {
        return None;
    }
    let (taking, txn) = taker.take(0, &map.state(0));
    let Outcome::Done(revision) = etcd.txn(&txn, *lease).await.expect("an outcome") else { return None };
    let (now, wait) = (Duration::ZERO, Duration::from_secs(8));
    Some(taking.taken(revision, sessions(etcd).await, BTreeSet::new(), now, wait))
}

#[test]
fn a_shard_goes_to_another_server_when_the_lease_of_its_owner_is_over_and_not_before() {
    let Some(members) = Members::start("shard") else { return };
    run(async {
        let mut etcd = members.ready().await;
        let keys = Keys::new(NAME);
        etcd.txn(&put(&keys.config(), &ShardMap::config(1, 7)), 0).await.expect("done");
        let old = join(&mut etcd, 1).await;
        let mut first = take(&mut etcd, &old).await.expect("nobody has it");
        assert_eq!((first.epoch(), first.first_token(), first.is_recovering()), (1, 1, false));
        assert!(matches!(etcd.txn(&first.register(11, None), old.1).await, Ok(Outcome::Done(_))));
        first.registered(11, None);
        let new = join(&mut etcd, 2).await;
        assert!(take(&mut etcd, &new).await.is_none(), "its owner is alive");
        let mut taken = None;
        until("the old owner's lease is over", async || {
            etcd.renew(new.1).await.expect("renewed");
            taken = take(&mut etcd, &new).await;
            taken.is_some()
        })
        .await;
        let mut second = taken.expect("just seen");
        assert_eq!((second.epoch(), second.first_token(), second.awaited()), (2, 101, 1));
        // The old owner was paused, and knows of nothing.
        for txn in [first.register(12, None), first.evict(&[11]).expect("it is in"), first.announce("x:2")] {
            assert_eq!(etcd.txn(&txn, new.1).await, Ok(Outcome::Refused));
        }
        assert!(!first.is_still(&map(&mut etcd).await.state(0)));
        // The client goes on with the new owner.
        let again = second.register(21, Some(11));
        assert!(matches!(etcd.txn(&again, new.1).await, Ok(Outcome::Done(_))));
        second.registered(21, Some(11));
        assert!(second.accepts(11, 5) && second.has_claimed(11) && second.may_grant(21, 101));
        assert_eq!(sessions(&mut etcd).await, [Registered { key: 21, before: [11].into() }]);
        etcd.txn(&second.announce("y:3"), new.1).await.expect("done");
        assert!(map(&mut etcd).await.serving[&0].is_open);
    });
}

#[test]
fn what_is_no_etcd_is_named_in_one_line_and_who_is_not_there_too() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for mut stream in listener.incoming().flatten().take(1) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    run(async {
        let ask = async |endpoint: &str| {
            let endpoints = vec![endpoint.to_owned()];
            Etcd::new(EtcdOptions { endpoints, ..EtcdOptions::default() })
                .range("/")
                .await
                .expect_err("nobody is there")
        };
        let error = ask(&address).await;
        assert!(matches!(error, EtcdError::Foreign { .. }), "{error}");
        assert!(!error.to_string().contains('\n') && error.to_string().contains(&address), "{error}");
        let error = ask("127.0.0.1:1").await;
        assert!(matches!(error, EtcdError::Unreachable(_)), "{error}");
    });
}

#[test]
fn an_etcd_with_users_wants_the_right_password() {
    let Some(members) = Members::start("users") else { return };
    let etcdctl = |args: &[&str]| {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &members.endpoints.join(",")]).args(args);
        etcdctl.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !etcdctl(&["version"]) {
        println!("skipped: there is no program `etcdctl` (apt-get install etcd-client)");
        return;
    }
    run(async {
        members.ready().await;
        assert!(etcdctl(&["user", "add", "root:sesame"]) && etcdctl(&["auth", "enable"]));
        let with = |user: Option<(&str, &str)>| {
            let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
            Etcd::new(EtcdOptions { endpoints: members.endpoints.clone(), user, tls: None })
        };
        let mut right = with(Some(("root", "sesame")));
        until("users are known everywhere", async || right.txn(&put("/a/x", "1"), 0).await.is_ok()).await;
        for user in [None, Some(("root", "wrong"))] {
            let error = with(user).range("/a/").await.expect_err("it is refused");
            assert!(matches!(error, EtcdError::Denied(_)), "{error}");
        }
    });
}

#[test]
fn an_etcd_behind_tls_is_known_by_its_certificate_and_by_no_other() {
    let certificate = || rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("made");
    let (theirs, other) = (certificate(), certificate());
    let (pem, key) = (theirs.cert.pem(), theirs.signing_key.serialize_pem());
    let Some(members) = Members::start_with("tls", Some((&pem, &key))) else { return };
    run(async {
        let with = |roots: Option<&str>| {
            let tls = roots.map(|roots| Tls::from_pem(roots.as_bytes(), None).expect("certificates"));
            Etcd::new(EtcdOptions { endpoints: members.endpoints.clone(), user: None, tls })
        };
        let mut right = with(Some(&pem));
        until("it answers", async || right.txn(&put("/a/x", "1"), 0).await.is_ok()).await;
        for roots in [None, Some(other.cert.pem())] {
            let error = with(roots.as_deref()).range("/a/").await.expect_err("it is not trusted");
            let is_told = matches!(error, EtcdError::Unreachable(_) | EtcdError::Foreign { .. });
            assert!(is_told && !error.to_string().contains('\n'), "{error}");
        }
        assert!(Tls::from_pem(b"nonsense", None).is_err());
    });
}
