//! The client of etcd and the transactions of a shard, on three real etcds. Needs the program `etcd`, and says so.

mod members;

use lockwright_cluster::etcd::{Etcd, EtcdError, EtcdOptions, Tls};
use lockwright_cluster::keys::{BrokenGrants, Keys, Registered};
use lockwright_cluster::map::ShardMap;
use lockwright_cluster::plan;
use lockwright_cluster::shard::{Shard, Taker};
use lockwright_cluster::txn::{Compare, Op, Outcome, Txn};
use members::{Members, Trust, run, until};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

const NAME: &str = "test";

fn put(key: &str, value: &str) -> Txn {
    Txn { when: Vec::new(), then: vec![Op::Put(key.to_owned(), value.to_owned())] }
}

/// A put that goes with a lease.
fn leased(key: &str, value: &str) -> Txn {
    Txn { when: Vec::new(), then: vec![Op::PutLeased(key.to_owned(), value.to_owned())] }
}

#[test]
fn a_transaction_is_done_once_and_a_lease_takes_its_keys_with_it() {
    let Some(members) = Members::start("lease") else { return };
    run(async {
        let mut etcd = members.ready().await;
        assert!(etcd.health().await.expect("it answers").starts_with("3."));
        let Ok(Outcome::Done(first)) = etcd.txn(&put("/a/x", "1"), 0).await else { panic!("it is done") };
        let mut next = put("/a/x", "2");
        next.when.push(Compare::Changed("/a/x".to_owned(), first));
        assert!(matches!(etcd.txn(&next, 0).await, Ok(Outcome::Done(second)) if second > first));
        assert_eq!(etcd.txn(&next, 0).await, Ok(Outcome::Refused));
        // Long enough for whatever else the machine does.
        let (lease, ttl) = etcd.grant(Duration::from_secs(60)).await.expect("a lease");
        assert!(ttl >= Duration::from_secs(60), "{ttl:?}");
        etcd.txn(&leased("/a/y", "ü"), lease).await.expect("done");
        assert_eq!(etcd.renew(lease).await, Ok(Some(ttl)));
        let (_, items) = etcd.range("/a/").await.expect("read");
        assert_eq!(items.iter().map(|item| item.value.as_str()).collect::<Vec<_>>(), ["2", "ü"]);
        // On a busy machine the shortest lease may be over before there is a key.
        let mut short = 0;
        until("a key has a short lease", async || {
            short = etcd.grant(Duration::from_secs(2)).await.expect("a lease").0;
            etcd.txn(&leased("/a/z", "3"), short).await.is_ok()
        })
        .await;
        until("the lease is over", async || {
            etcd.range("/a/z").await.is_ok_and(|(_, items)| items.is_empty())
        })
        .await;
        assert_eq!(etcd.renew(short).await, Ok(None));
        assert_eq!(etcd.range("/a/").await.map(|(_, items)| items.len()), Ok(2), "the other lease goes on");
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
        members.kill(at);
        until("another answers", async || etcd.range("/a/").await.is_ok_and(|(_, items)| items.len() == 1))
            .await;
        assert_ne!(etcd.endpoint(), members.endpoints[at]);
    });
}

/// A server of the cluster, with its lease: long enough for whatever else the machine does.
async fn join(etcd: &mut Etcd, server: u64) -> (Taker, i64) {
    let keys = Keys::new(NAME);
    let (lease, ttl) = etcd.grant(Duration::from_secs(60)).await.expect("a lease");
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
    Some(taking.taken(revision, sessions(etcd).await, BrokenGrants::new(), now, wait))
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
        etcd.revoke(old.1).await.expect("its lease is over");
        let mut second = take(&mut etcd, &new).await.expect("its owner is gone");
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
fn a_member_without_a_leader_says_so_and_still_tells_what_it_knew() {
    let Some(mut members) = Members::start("alone") else { return };
    run(async {
        let mut etcd = members.ready().await;
        etcd.txn(&put("/a/x", "1"), 0).await.expect("done");
        let one = |at: usize| {
            let endpoints = vec![members.endpoints[at].clone()];
            Etcd::new(EtcdOptions { endpoints, ..EtcdOptions::default() })
        };
        let mut left = one(2);
        until("the last has heard of it", async || {
            left.range_here("/a/").await.is_ok_and(|(_, items)| items.len() == 1)
        })
        .await;
        assert!(left.health().await.expect("it is well").starts_with("3."));
        (0..2).for_each(|at| members.kill(at));
        until("it says that it has no leader", async || {
            matches!(left.health().await, Err(error @ EtcdError::Unwell { .. }) if error.to_string().contains("no leader"))
        })
        .await;
        assert!(left.range("/a/").await.is_err(), "nobody knows whether that is all");
        assert_eq!(left.range_here("/a/").await.map(|(_, items)| items.len()), Ok(1));
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
    let Some(members) = Members::start_with("tls", Trust::Tls(pem.clone(), key)) else { return };
    run(async {
        let with = |roots: Option<&str>| {
            let tls = roots.map(|roots| Tls::from_pem(roots.as_bytes(), None).expect("certificates"));
            Etcd::new(EtcdOptions { endpoints: members.endpoints.clone(), user: None, tls })
        };
        let mut right = with(Some(&pem));
        until("it answers", async || right.txn(&put("/a/x", "1"), 0).await.is_ok()).await;
        for roots in [None, Some(other.cert.pem())] {
            let error = with(roots.as_deref()).range("/a/").await.expect_err("it is not trusted");
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            assert!(text.contains(if roots.is_none() { "--etcd-ca" } else { "certificate" }), "{text}");
        }
        assert!(Tls::from_pem(b"nonsense", None).is_err());
    });
}
