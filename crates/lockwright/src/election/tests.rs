//! Elections of one process: one leads, others are told, and bad names are refused.

use super::observe::News;
use super::*;

fn leader(token: u64) -> Leader {
    Leader { name: format!("node-{token}"), token }
}

fn elected(client: &Client, name: &str) -> Leadership {
    client.election("e").unwrap().campaign(name).wait().unwrap()
}

#[test]
fn an_observer_is_told_of_rising_tokens_only() {
    let mut news = News::default();
    assert_eq!(news.of(Ok(None)), None);
    assert_eq!(news.of(Ok(Some(leader(3)))), Some(Ok(leader(3))));
    assert_eq!(news.of(Ok(Some(leader(3)))), None, "it is known");
    assert_eq!(news.of(Ok(None)), None);
    assert_eq!(news.of(Ok(Some(leader(2)))), None, "it is over");
    assert_eq!(news.of(Ok(Some(leader(7)))), Some(Ok(leader(7))));
}

#[test]
fn only_one_leads_and_the_next_is_seen_when_it_resigns() {
    let client = Client::open("mem:").wait().unwrap();
    let election = client.election("e").unwrap();
    let mut leaders = election.observe();
    let first = elected(&client, "a");
    assert_eq!(leaders.next().wait().unwrap(), Leader { name: "a".to_owned(), token: first.token() });
    let late = election.campaign_timeout("b", Duration::from_millis(1)).wait();
    assert_eq!(late.unwrap_err(), CampaignError::Lock(LockError::TimedOut));
    let next = std::thread::spawn({
        let client = client.clone();
        move || elected(&client, "b")
    });
    let token = first.token();
    first.resign().wait().unwrap();
    let second = next.join().unwrap();
    assert!(second.token() > token);
    assert_eq!(leaders.next().wait().unwrap(), Leader { name: "b".to_owned(), token: second.token() });
    drop(second);
    assert_eq!(election.leader().unwrap(), None);
}

#[test]
fn a_name_that_a_listing_would_show_otherwise_is_refused_in_one_line() {
    let client = Client::open("mem:").wait().unwrap();
    let election = client.election("e").unwrap();
    for bad in ["", " a", "a ", "a\nb", "\u{7}", &"x".repeat(65)] {
        let refused = election.campaign(bad).wait().unwrap_err();
        assert!(matches!(refused, CampaignError::Candidate(_)), "{bad:?}: {refused:?}");
        assert_eq!(refused.to_string().lines().count(), 1);
    }
    assert_eq!(election.leader().unwrap(), None);
}
