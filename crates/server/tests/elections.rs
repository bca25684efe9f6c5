//! Elections between processes: a leader that is killed is followed by the next candidate, and observers are told of both.
#![cfg(target_os = "linux")]

mod apart;

use apart::{Scratch, TASK, address, holder, server};
use lockwright::{CampaignError, Client, LockError};
use std::time::Duration;

const TEST: &str = "a_leader_that_is_killed_is_followed_by_the_next_candidate";

/// What the process does that leads first: it is killed while it does.
fn lead(space: &str) -> ! {
    let election = Client::open(space).wait().unwrap().election("scheduler").unwrap();
    let leadership = election.campaign("node-1").wait().unwrap();
    println!("holds {}", leadership.token());
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn leaders_follow_each_other(space: &str) {
    let (mut first, token) = holder(space, TEST);
    let client = Client::open(space).wait().unwrap();
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
    leaders_follow_each_other(&address(&server));
    let file = Scratch::new("elections");
    leaders_follow_each_other(&format!("shm:{}", file.0.display()));
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
