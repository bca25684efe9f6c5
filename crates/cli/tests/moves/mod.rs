//! Planned moves of shards: the next owner goes on from the last one's table, also for clients that say nothing meanwhile.

use crate::members::{Members, run};
use crate::servers::{Cluster, PATIENCE, lockwright, until_held};
use crate::started::Started;
use lockwright::inspect::Inspector;
use lockwright::{Client, ClientOptions, TryLockError};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it takes too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The owner of the shard of `held` is told to stop while a holder of that lock does not run.
fn a_silent_holder_keeps_its_lock(cluster: &Cluster, options: &ClientOptions, trust: &[&str]) {
    let client = || options.open(&cluster.space()).wait().expect("a client");
    let (one, two, three) = (client(), client(), client());
    let space = cluster.space();
    let script = "echo $LOCKWRIGHT_TOKEN; exec sleep 600";
    let args = [&["run", "--space", &space], trust, &["held", "--", "sh", "-c", script]].concat();
    let mut holder = Started::new(lockwright(&args));
    let token: u64 = holder.line.parse().expect("its token");
    // One that runs holds a lock of the same shard, for which another one waits.
    let other = cluster.neighbour("held");
    let guard = one.mutex(&other).unwrap().lock().wait().unwrap();
    let waiter = std::thread::spawn({
        let lock = two.mutex(&other).unwrap();
        move || lock.lock().wait().unwrap().token()
    });
    let inspector = Inspector::open_with(&space, options).unwrap();
    let shown = |name: &str| {
        inspector.entries().unwrap().iter().filter(|entry| entry.name.as_bytes() == name.as_bytes()).count()
    };
    until("it waits", || shown(&other) == 2);
    let shard = cluster.map().shard_of(b"stock", b"held");
    let free = (0..).map(|n| format!("free-{n}"));
    let free = free.into_iter().find(|name| cluster.map().shard_of(b"stock", name.as_bytes()) == shard);
    let free = three.mutex(free.expect("some name is")).unwrap();
    drop(free.lock().wait().unwrap());

    holder.send(Signal::SIGSTOP);
    let owner = cluster.owner("held");
    let epoch = cluster.map().state(shard).owner.expect("an owner").epoch;
    cluster.servers[owner].1.send(Signal::SIGTERM);
    cluster.until("the shard is another server's", |map| {
        map.serving.get(&shard).is_some_and(|serving| serving.epoch > epoch)
    });
    // Nobody waits for the holder that says nothing: a free lock is granted, and one that is given back to who waits for it.
    let granted = free.lock().wait().unwrap();
    until_held(&guard);
    let before = guard.token();
    guard.unlock().wait().expect("it was held all the time");
    let next = waiter.join().unwrap();
    assert!(next > before && granted.token() > token);
    // Its own lock is still its: it has not been given up for dead meanwhile.
    let held = one.mutex("held").unwrap();
    assert_eq!(held.try_lock().wait().unwrap_err(), TryLockError::Busy);
    holder.send(Signal::SIGCONT);
    until("it has said that it holds it", || cluster.metric("lockwright_claims_total") >= 2.0);
    assert_eq!(held.try_lock().wait().unwrap_err(), TryLockError::Busy);
    let inspector = Inspector::open_with(&space, options).unwrap();
    let entries = inspector.entries().unwrap();
    assert!(entries.iter().any(|entry| entry.token == Some(token)), "with the same token: {entries:?}");
    assert!(holder.child.try_wait().unwrap().is_none(), "it goes on");
    assert_eq!(cluster.metric("lockwright_lost_total"), 0.0);
    // Given back, it is others'.
    holder.send(Signal::SIGTERM);
    assert!(held.lock().wait().unwrap().token() > token);
}

#[test]
fn when_a_server_is_told_to_stop_nobody_waits_for_a_silent_holder_and_it_keeps_its_lock() {
    let Some(cluster) = Cluster::start("silent") else { return };
    a_silent_holder_keeps_its_lock(&cluster, &Client::options(), &[]);
}

#[test]
fn servers_that_know_each_other_by_a_secret_and_certificates_hand_their_tables_over() {
    let Some(members) = Members::start("known") else { return };
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("made");
    let write = |name: &str, text: &str| {
        let path = members.folder().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a plain path").to_owned()
    };
    let text = "nobody else knows this, and it is long enough";
    let (secret, certificate) = (write("secret", text), write("server.pem", &made.cert.pem()));
    let key = write("server.key", &made.signing_key.serialize_pem());
    run(async { drop(members.ready().await) });
    let of_servers = ["--secret-file", &secret, "--tls-cert", &certificate, "--tls-key", &key];
    let cluster = Cluster::start_on(members, of_servers.map(str::to_owned).into());
    let options = Client::options().secret(text).tls(made.cert.pem());
    let trust = ["--secret-file", &secret, "--tls-ca", &certificate];
    a_silent_holder_keeps_its_lock(&cluster, &options, &trust);
}
