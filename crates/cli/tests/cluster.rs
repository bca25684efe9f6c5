//! Three servers on three real etcds, and what clients notice when one of them is killed, paused or told to stop.

#[path = "../../cluster/tests/members/mod.rs"]
mod members;
mod outage;
mod servers;
mod started;
mod strangers;

use lockwright::inspect::Inspector;
use lockwright::{Client, GuardState};
use nix::sys::signal::Signal;
use servers::{Cluster, PATIENCE, lockwright, until_held};
use std::time::{Duration, Instant};

#[test]
fn a_lock_of_a_cluster_has_one_holder_whichever_way_its_clients_come() {
    let Some(cluster) = Cluster::start("ways") else { return };
    let near = cluster.client();
    let far = Client::open(&format!("tcp://{}/stock", cluster.servers[1].0)).wait().expect("a client");
    for number in 0..20 {
        let name = format!("orders/{number}");
        let (ours, theirs) = (near.mutex(&name).unwrap(), far.mutex(&name).unwrap());
        let guard = ours.lock().wait().unwrap();
        assert!(theirs.try_lock().wait().is_err(), "{name} is held");
        let first = guard.token();
        drop(guard);
        assert!(theirs.lock().wait().unwrap().token() > first);
    }
    let guard = near.mutex("orders/7").unwrap().lock().wait().unwrap();
    let inspector = Inspector::open(&cluster.space()).unwrap();
    let entries = inspector.entries().unwrap();
    assert_eq!(entries.iter().filter(|entry| entry.token == Some(guard.token())).count(), 1, "{entries:?}");
    let listed = lockwright(&["ls", "--space", &cluster.space()]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("orders/7"), "{listed:?}");
    inspector.break_grant("orders/7", guard.token()).unwrap();
    let began = Instant::now();
    while guard.state() != GuardState::Lost {
        assert!(began.elapsed() < PATIENCE, "it was broken");
        std::thread::sleep(Duration::from_millis(10));
    }
    let space = cluster.space();
    let said = lockwright(&["run", "--space", &space, "job", "--", "echo", "done"]).output().unwrap();
    assert!(said.status.success() && said.stdout == b"done\n", "{said:?}");
}

#[test]
fn when_a_server_is_killed_another_goes_on_and_live_clients_keep_their_locks() {
    let Some(mut cluster) = Cluster::start("kill") else { return };
    let (holder, other) = (cluster.client(), cluster.client());
    let guard = holder.mutex("held").unwrap().lock().wait().unwrap();
    let free = cluster.neighbour("held");
    // A session that is known to the owner, and holds nothing.
    let before = other.mutex(&free).unwrap().lock().wait().unwrap().token();
    let owner = cluster.owner("held");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    let killed = Instant::now();
    let after = other.mutex(&free).unwrap().lock().wait().unwrap();
    println!("the first grant came {:?} after its server was killed", killed.elapsed());
    assert!(after.token() > before);
    assert!(other.mutex("held").unwrap().try_lock().wait().is_err(), "its holder is alive");
    until_held(&guard);
    guard.unlock().wait().expect("it was held all the time");
    let next = other.mutex("held").unwrap().lock().wait().unwrap();
    drop((next, after));
    cluster.servers.remove(owner);
    // Again, and nobody but one server is left.
    let guard = holder.mutex("held").unwrap().lock().wait().unwrap();
    let owner = cluster.owner("held");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    let after = other.mutex(&free).unwrap().lock().wait().unwrap();
    assert!(after.token() > before);
    until_held(&guard);
}

#[test]
fn a_server_that_was_paused_past_its_lease_grants_nothing_that_counts() {
    let Some(cluster) = Cluster::start("pause") else { return };
    let (first, second) = (cluster.client(), cluster.client());
    let lock = first.mutex("job").unwrap();
    let guard = lock.lock().wait().unwrap();
    let owner = cluster.owner("job");
    cluster.servers[owner].1.send(Signal::SIGSTOP);
    // It is unlocked with the paused server, and given by the next.
    let before = guard.token();
    drop(guard);
    let guard = second.mutex("job").unwrap().lock().wait().unwrap();
    assert!(guard.token() > before);
    cluster.servers[owner].1.send(Signal::SIGCONT);
    assert!(first.mutex("job").unwrap().try_lock().wait().is_err(), "it is held");
    until_held(&guard);
    cluster.until("it serves again", |map| map.servers.len() == 3);
    guard.unlock().wait().expect("it was held all the time");
}

#[test]
fn a_server_that_is_told_to_stop_hands_its_locks_over_and_waiters_are_served_in_order() {
    let Some(mut cluster) = Cluster::start("stop") else { return };
    let holder = cluster.client();
    let guard = holder.mutex("job").unwrap().lock().wait().unwrap();
    let before = guard.token();
    let inspector = Inspector::open(&cluster.space()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let waiters: Vec<_> = (0..3)
        .map(|number| {
            let (client, tell) = (cluster.client(), tell.clone());
            let waits = std::thread::spawn(move || {
                let guard = client.mutex("job").unwrap().lock().wait().unwrap();
                tell.send((number, guard.token())).unwrap();
            });
            let began = Instant::now();
            while inspector.entries().unwrap().len() < 2 + number {
                assert!(began.elapsed() < PATIENCE, "{number} waits");
            }
            waits
        })
        .collect();
    drop(inspector);
    let owner = cluster.owner("job");
    let (_, server) = cluster.servers.remove(owner);
    server.send(Signal::SIGTERM);
    cluster.until("its shards are others'", |map| {
        map.servers.len() == 2 && map.serving.len() == 6 && map.serving.values().all(|shard| shard.is_open)
    });
    until_held(&guard);
    guard.unlock().wait().expect("it was held all the time");
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    let served: Vec<_> = told.try_iter().collect();
    let numbers: Vec<_> = served.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2], "who has waited longest is first");
    assert!(served.iter().all(|(_, token)| *token > before) && served.is_sorted_by_key(|(_, token)| *token));
}
