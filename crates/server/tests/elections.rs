//! Elections between processes, on every kind of space: a leader that is killed is followed by the next candidate, and observers are
//! told of both.
#![cfg(target_os = "linux")]

mod apart;

use apart::{LONG, Scratch, TASK, address, holder, options, server};
use lockwright::{CampaignError, Client, LockError};
use lockwright_fabric::backend::shm::space_path;
use lockwright_server::Server;
use std::time::Duration;

const TEST: &str = "a_leader_that_is_killed_is_followed_by_the_next_candidate";

fn open(space: &str) -> Client {
    Client::options().timeout(LONG).open(space).wait().unwrap()
}

/// What the process does that leads first: it is killed while it does.
fn lead(space: &str) -> ! {
    let election = open(space).election("scheduler").unwrap();
    let leadership = election.campaign("node-1").wait().unwrap();
    println!("holds {}", leadership.token());
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// The leader that is killed comes to the space by `first`, the others and the observer by `space`.
fn leaders_follow_each_other(first: &str, space: &str) {
    let (mut first, token) = holder(first, TEST);
    let client = open(space);
    let election = client.election("scheduler").unwrap();
    let mut leaders = election.observe();
    let seen = leaders.next().wait().unwrap();
    assert_eq!((seen.name.as_str(), seen.token), ("node-1", token), "{space}");
    let late = election.campaign_timeout("node-2", Duration::from_millis(20)).wait();
    assert_eq!(late.unwrap_err(), CampaignError::Lock(LockError::TimedOut), "{space}: node-1 leads");
    first.kill().unwrap();
    first.wait().unwrap();
    let second = election.campaign("node-3").wait().unwrap();
    assert!(second.token() > token, "{space}");
    let seen = leaders.next().wait().unwrap();
    assert_eq!((seen.name.as_str(), seen.token), ("node-3", second.token()), "{space}");
    second.resign().wait().unwrap();
    assert_eq!(election.leader().unwrap(), None, "{space}: it stays with nobody");
}

#[test]
fn a_leader_that_is_killed_is_followed_by_the_next_candidate() {
    if let Ok(space) = std::env::var(TASK) {
        lead(&space);
    }
    let server = server();
    let file = Scratch::new("elections");
    for space in [address(&server), format!("shm:{}", file.0.display())] {
        leaders_follow_each_other(&space, &space);
    }
}

#[test]
fn leaders_follow_each_other_in_exported_spaces_and_the_host_knows_their_tokens() {
    let file = Scratch::new("exported-elections");
    let here = format!("shm:{}", file.0.display());
    let server = Server::start(options().export(here.clone())).unwrap();
    let there = format!("{}/{here}", address(&server));
    leaders_follow_each_other(&there, &there);
    leaders_follow_each_other(&here, &there);
    let leadership = open(&there).election("scheduler").unwrap().campaign("node-1").wait().unwrap();
    let seen = open(&here).election("scheduler").unwrap().leader().unwrap().unwrap();
    assert_eq!((seen.name.as_str(), seen.token), ("lockwright serve", leadership.token()));
}

#[test]
fn leaders_follow_each_other_in_one_sided_spaces() {
    let server = Server::start(options().lend("stock")).unwrap();
    let space = format!("{}/lent:stock", address(&server));
    leaders_follow_each_other(&space, &space);
}

#[test]
fn leaders_follow_each_other_by_verbs_and_by_instructions() {
    let name = format!("elections-{}", std::process::id());
    let _file = Scratch(space_path(&format!("lent.{name}")).unwrap());
    let server = Server::start(options().lend_local(&name, 4).unwrap()).unwrap();
    let (here, there) = (format!("shm:lent:{name}"), format!("{}/lent:{name}", address(&server)));
    for (first, then) in [(&here, &there), (&there, &here)] {
        leaders_follow_each_other(first, then);
    }
    // Room for the host, and what comes by verbs has the user before it, too.
    for space in [here, there] {
        let election = open(&space).election("long").unwrap();
        let refused = election.campaign(&"x".repeat(56)).wait().unwrap_err().to_string();
        let room =
            refused.split_once("has ").and_then(|(_, rest)| rest.split_once(" bytes")).expect(&refused).0;
        let longest = "x".repeat(room.parse().unwrap());
        let leadership = election.campaign(&longest).wait().unwrap();
        assert_eq!(election.leader().unwrap().unwrap().name, longest, "{space}");
        drop(leadership);
    }
}

#[cfg(feature = "fiss")]
#[test]
fn leaders_follow_each_other_behind_a_decider() {
    use lockwright_server::{Switch, SwitchOptions};
    let listen = "127.0.0.1:0".parse().unwrap();
    let switch = Switch::start(SwitchOptions { listen, locks: 1 << 10, ..SwitchOptions::default() }).unwrap();
    let space = format!("fiss://{}/stock", switch.address());
    leaders_follow_each_other(&space, &space);
}

#[test]
fn who_awaits_a_campaign_leads_and_who_drops_it_does_not() {
    let server = server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::open(&address(&server)).await.unwrap();
        let election = client.election("scheduler").unwrap();
        let leadership = election.campaign("node-7").await.unwrap();
        let mut leaders = election.observe();
        assert_eq!(leaders.next().await.unwrap().name, "node-7");
        let waits = tokio::time::timeout(Duration::from_millis(20), election.campaign("node-8"));
        assert!(waits.await.is_err(), "a campaign that is dropped is over");
        leadership.resign().await.unwrap();
        let next = election.campaign("node-9").await.unwrap();
        assert_eq!(leaders.next().await.unwrap().token, next.token());
    });
}
