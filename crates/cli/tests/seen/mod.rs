//! What operators see of a cluster: `cluster status`, `doctor --cluster` and metrics, while all is well and while something is not.

use crate::servers::{Cluster, PATIENCE, lockwright, until_held};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// What a command about the cluster at `address` says, and its exit code.
fn said(args: &[&str]) -> (Option<i32>, String) {
    let output = lockwright(args).output().expect("it runs");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

fn status(space: &str) -> (Option<i32>, String) {
    said(&["cluster", "status", "--space", space])
}

fn status_json(space: &str) -> (Option<i32>, Value) {
    let (code, text) = said(&["cluster", "status", "--json", "--space", space]);
    assert_eq!(text.lines().count(), 1, "{text}");
    (code, serde_json::from_str(&text).expect("JSON"))
}

/// By check: health and detail.
fn doctor(address: &str) -> (Option<i32>, Vec<(String, String, String)>) {
    let (code, text) = said(&["doctor", "--cluster", address, "--json"]);
    let checks = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let text = |key: &str| line[key].as_str().expect("text").trim().to_owned();
        (text("check"), text("health"), text("detail"))
    });
    (code, checks.collect())
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it takes too long until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn status_and_doctor_say_who_serves_what_and_what_is_wrong_with_whom() {
    let Some(mut cluster) = Cluster::start("seen") else { return };
    let (space, etcd) = (cluster.space(), cluster.etcd());
    let (code, text) = status(&space);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("cluster test: 3 servers, 6 of 6 shards served\n"), "{text}");
    let lines = |of: &str| text.lines().filter(|line| line.contains(of)).count();
    assert_eq!((lines("etcd 127.0.0.1:"), lines(": version 3."), lines(" open ")), (3, 3, 6), "{text}");
    for (listen, _) in &cluster.servers {
        assert!(text.contains(&format!("server {listen}\n")), "{text}");
    }
    let (code, json) = status_json(&space);
    assert_eq!((code, &json["cluster"], &json["shards"]), (Some(0), &"test".into(), &6.into()));
    let served = json["served"].as_array().expect("a list");
    let numbers: Vec<_> = served.iter().map(|shard| shard["shard"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    assert!(served.iter().all(|shard| shard["recovering"] == false && shard["epoch"].as_u64() >= Some(1)));
    let map = cluster.map();
    for shard in served {
        let number = u16::try_from(shard["shard"].as_u64().unwrap()).unwrap();
        assert_eq!(shard["epoch"], map.state(number).owner.expect("an owner").epoch);
        assert_eq!(shard["at"], *map.serving[&number].at);
    }
    assert!(json["etcd"].as_array().unwrap().iter().all(|member| member["error"].is_null()), "{json}");
    // By way of one server, which says nothing of etcd.
    let (code, json) = status_json(&format!("tcp://{}", cluster.servers[2].0));
    assert_eq!((code, json["served"].as_array().map(Vec::len)), (Some(0), Some(6)), "{json}");
    assert_eq!(json["etcd"].as_array().map(Vec::len), Some(0));
    let (code, checks) = doctor(&etcd);
    assert_eq!(code, Some(0), "{checks:?}");
    assert!(checks.iter().all(|(_, health, _)| health == "ok"), "{checks:?}");
    let count = |checks: &[(String, String, String)], of: &str| {
        checks.iter().filter(|(check, ..)| check == of).count()
    };
    assert_eq!(
        (count(&checks, "member"), count(&checks, "server"), count(&checks, "a lock of it")),
        (3, 3, 1)
    );

    // A member of etcd is gone: locks can be had, and both say which one it is.
    let gone = cluster.members.endpoints[0].clone();
    cluster.members.kill(0);
    until("etcd has a leader again", || status(&space).1.contains("6 of 6 shards served"));
    let (code, text) = status(&space);
    assert_eq!(code, Some(1), "{text}");
    let line = text.lines().find(|line| line.contains(&gone)).expect("it is named");
    assert!(!line.contains("version"), "{line}");
    let mut checks = Vec::new();
    until("a lock can be had", || {
        let (code, found) = doctor(&etcd);
        checks = found;
        code == Some(0)
    });
    let member = checks.iter().find(|(_, _, detail)| detail.contains(&gone)).expect("it is named");
    assert_eq!((member.0.as_str(), member.1.as_str()), ("member", "absent"));
    assert!(checks.iter().any(|(check, _, detail)| check == "etcd" && detail.starts_with("2 of the 3")));
    cluster.members.restart(0);

    // Nobody serves anything.
    cluster.servers.clear();
    until("the leases of the servers are over", || cluster.map().servers.is_empty());
    let failed = lockwright(&["cluster", "status", "--space", &space]).output().expect("it runs");
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(why.contains("has no server") && why.lines().count() == 1, "{why}");
    let (code, checks) = doctor(&etcd);
    assert_eq!((code, checks[0].1.as_str()), (Some(1), "BAD"), "{checks:?}");
}

#[test]
fn a_shard_that_waits_for_a_silent_holder_is_said_to_recover() {
    let Some(mut cluster) = Cluster::start("waits") else { return };
    let (space, holder) = (cluster.space(), cluster.client());
    let guard = holder.mutex("held").unwrap().lock().wait().unwrap();
    let shard = cluster.map().shard_of(b"stock", b"held");
    let silent = crate::runs(&cluster, &[&cluster.neighbour("held")]);
    silent.send(Signal::SIGSTOP);
    let owner = cluster.owner("held");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    cluster.servers.remove(owner);
    until("its next owner waits", || {
        let (code, json) = status_json(&space);
        let served = json["served"].as_array().expect("a list");
        let waits = served.iter().any(|it| it["shard"] == shard && it["recovering"] == true);
        assert!(!waits || code == Some(1), "{json}");
        waits && cluster.metric("lockwright_shards_recovering") == 1.0
    });
    assert!(status(&space).1.contains(" recovering "));
    silent.send(Signal::SIGCONT);
    until("it is open", || status(&space).0 == Some(0));
    until_held(&guard);
}

#[test]
fn metrics_count_failovers_claims_moves_and_the_time_until_a_shard_is_open_again() {
    let Some(mut cluster) = Cluster::start("metrics") else { return };
    // Shards have gone from the first server to the others.
    assert_eq!(cluster.metric("lockwright_shards_served"), 6.0);
    let moved = cluster.metric("lockwright_shards_handed_in_total");
    assert!(moved >= 4.0, "{moved}");
    assert_eq!(cluster.metric("lockwright_shards_handed_out_total"), moved);
    assert_eq!(cluster.metric("lockwright_failovers_total"), 0.0);
    assert_eq!(cluster.metric("lockwright_shard_reopen_seconds_count"), 6.0 + moved);
    assert!(cluster.metric("lockwright_lease_seconds") > 0.0);
    let holder = cluster.client();
    let guard = holder.mutex("held").unwrap().lock().wait().unwrap();
    let owner = cluster.owner("held");
    let lost = cluster.map().owned_by(cluster.server_id(owner)).count() as f64;
    cluster.servers[owner].1.send(Signal::SIGKILL);
    cluster.servers.remove(owner);
    let (claims, opened) =
        (cluster.metric("lockwright_claims_total"), cluster.metric("lockwright_shard_reopen_seconds_count"));
    until("its shards are served again", || cluster.metric("lockwright_shards_served") == 6.0);
    until("they are open", || {
        cluster.metric("lockwright_shard_reopen_seconds_count") == opened + lost
            && cluster.metric("lockwright_shards_recovering") == 0.0
    });
    assert_eq!(cluster.metric("lockwright_failovers_total"), lost);
    assert_eq!(cluster.metric("lockwright_claims_total"), claims + 1.0, "the one lock that was held");
    assert_eq!(cluster.metric("lockwright_lost_total"), 0.0);
    until_held(&guard);
}
