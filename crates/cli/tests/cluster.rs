//! Three servers on three real etcds, and what clients notice when one of them is killed, paused or told to stop.

#[path = "../../cluster/tests/members/mod.rs"]
mod members;
mod moves;
mod outage;
mod seen;
mod servers;
mod started;
mod strangers;
mod trusted;

use lockwright::inspect::Inspector;
use lockwright::{Client, GuardState, LockError, TryLockError};
use nix::sys::signal::Signal;
use servers::{Cluster, PATIENCE, lockwright, until_held};
use started::Started;
use std::time::{Duration, Instant};

#[test]
fn a_lock_of_a_cluster_has_one_holder_whichever_way_its_clients_come() {
    let Some(cluster) = Cluster::start("ways") else { return };
    let near = cluster.client();
    for number in 0..20 {
        let file = near.range_lock(format!("files/{number}")).unwrap();
        assert!(
            file.holders().expect("its shard is served").is_empty(),
            "also by a link that has just begun"
        );
    }
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

/// A process that takes locks of the cluster and says so; killed when it is dropped.
fn runs(cluster: &Cluster, args: &[&str]) -> Started {
    let space = cluster.space();
    let script = ["--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN; exec sleep 600"];
    Started::new(lockwright(&[&["run", "--space", &space], args, &script].concat()))
}

#[test]
fn permits_are_counted_across_clients_and_servers_and_come_back_from_the_dead() {
    let Some(mut cluster) = Cluster::start("permits") else { return };
    let (one, two) = (cluster.client(), cluster.client());
    let (mine, theirs) = (one.semaphore("gpu", 3).unwrap(), two.semaphore("gpu", 3).unwrap());
    let held = mine.acquire_many(2).wait().unwrap();
    let other_limit = two.semaphore("gpu", 4).unwrap().acquire().wait();
    assert!(matches!(other_limit, Err(LockError::Refused(_))), "{other_limit:?}");
    let last = runs(&cluster, &["-j", "3", "gpu"]);
    assert_eq!(theirs.try_acquire().wait().unwrap_err(), TryLockError::Busy);
    // The next server of the shard hears from the holders what they hold.
    let owner = cluster.owner("gpu");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    cluster.servers.remove(owner);
    assert!(theirs.acquire_timeout(1, Duration::from_secs(10)).wait().is_err(), "all three are held");
    assert_eq!(held.state(), GuardState::Held);
    last.send(Signal::SIGKILL);
    let next = theirs.acquire().wait().unwrap();
    assert!(next.token() > held.token());
    held.unlock().wait().expect("it was held all the time");
    assert_eq!(mine.acquire_many(2).wait().unwrap().permits(), 2);
}

#[test]
fn leaders_of_a_cluster_follow_each_other_and_one_outlives_the_server_it_was_elected_by() {
    let Some(mut cluster) = Cluster::start("leaders") else { return };
    let (one, two) = (cluster.client(), cluster.client());
    let leads = one.election("scheduler").unwrap().campaign("node-1").wait().unwrap();
    let election = two.election("scheduler").unwrap();
    let mut leaders = election.observe();
    let seen = leaders.next().wait().unwrap();
    assert_eq!((seen.name.as_str(), seen.token), ("node-1", leads.token()));
    let owner = cluster.owner("scheduler");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    cluster.servers.remove(owner);
    let late = election.campaign_timeout("node-2", Duration::from_secs(10)).wait();
    assert!(late.is_err(), "node-1 leads");
    let token = leads.token();
    leads.resign().wait().expect("it led all the time");
    let next = election.campaign("node-3").wait().unwrap();
    assert!(next.token() > token);
    // That the server was gone may have been told, and is no end.
    let seen = leaders.next().wait().or_else(|_| leaders.next().wait()).unwrap();
    assert_eq!((seen.name.as_str(), seen.token), ("node-3", next.token()));
    next.resign().wait().unwrap();
    assert_eq!(election.leader().unwrap(), None);
}

#[test]
fn a_holder_of_a_cluster_is_told_that_a_client_waits_also_by_the_next_server() {
    let Some(mut cluster) = Cluster::start("contended") else { return };
    let (one, two) = (cluster.client(), cluster.client());
    for fails_over in [false, true] {
        let guard = one.mutex("job").unwrap().lock().wait().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        guard.on_contended(move || tell.send(()).unwrap()).unwrap();
        if fails_over {
            let owner = cluster.owner("job");
            cluster.servers[owner].1.send(Signal::SIGKILL);
            cluster.servers.remove(owner);
        }
        assert!(told.try_recv().is_err(), "nobody waits");
        let client = two.clone();
        let waiter = std::thread::spawn(move || drop(client.mutex("job").unwrap().lock().wait().unwrap()));
        told.recv_timeout(PATIENCE).expect("it is told");
        guard.unlock().wait().expect("it was held all the time");
        waiter.join().unwrap();
    }
}

#[test]
fn the_value_of_a_lock_outlives_its_holders_and_its_server() {
    let Some(mut cluster) = Cluster::start("values") else { return };
    let (one, two) = (cluster.client(), cluster.client());
    let (mine, theirs) = (one.mutex("journal").unwrap(), two.mutex("journal").unwrap());
    let guard = mine.lock().wait().unwrap();
    let value = guard.value().wait().unwrap();
    assert!(value.bytes().is_empty() && value.is_clean() && value.is_durable());
    guard.set_value(b"one").wait().unwrap();
    guard.unlock().wait().unwrap();
    let guard = theirs.lock().wait().unwrap();
    let value = guard.value().wait().unwrap();
    assert_eq!((value.bytes(), value.is_clean()), (&b"one"[..], true), "the close came before the unlock");
    // It is broken while it has the value open: the next holder is told.
    Inspector::open(&cluster.space()).unwrap().break_grant("journal", guard.token()).unwrap();
    let guard = mine.lock().wait().unwrap();
    let value = guard.value().wait().unwrap();
    assert_eq!((value.bytes(), value.is_clean()), (&b"one"[..], false));
    guard.set_value(b"two").wait().unwrap();
    let owner = cluster.owner("journal");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    cluster.servers.remove(owner);
    // The next server has it, and knows that its holder has it open.
    let free = two.mutex(cluster.neighbour("journal")).unwrap().lock().wait().unwrap();
    // Its link may still be on its way there.
    let began = Instant::now();
    let value = loop {
        match guard.value().wait() {
            Ok(value) => break value,
            Err(why) => assert!(began.elapsed() < PATIENCE, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((value.bytes(), value.is_clean()), (&b"two"[..], true), "its own");
    guard.unlock().wait().expect("it was held all the time");
    drop(free);
    let value = theirs.lock().wait().unwrap().value().wait().unwrap();
    assert_eq!((value.bytes(), value.is_clean()), (&b"two"[..], true));
}

#[test]
fn once_per_period_means_once_for_a_whole_cluster() {
    let Some(mut cluster) = Cluster::start("once") else { return };
    let space = cluster.space();
    let fire = || {
        let args = ["run", "--space", &space, "--once-per", "1d", "nightly", "--", "echo", "ran"];
        let said = lockwright(&args).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        said.stdout == b"ran\n"
    };
    assert!(fire() && !fire());
    let owner = cluster.owner("nightly");
    cluster.servers[owner].1.send(Signal::SIGKILL);
    cluster.servers.remove(owner);
    assert!(!fire(), "the next server knows");
}
