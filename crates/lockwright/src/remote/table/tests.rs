//! What becomes of requests and of what is held when answers, breaks and restarts come.

use super::*;
use lockwright_fabric::observe::Mode;

fn units(handle: u64) -> Option<Units> {
    Some(Units { handle, mode: Mode::Exclusive, start: 0, end: 1 })
}

fn asks(messages: &[Message]) -> Vec<Ask> {
    messages.iter().map(|message| Ask::decode(message).unwrap().1).collect()
}

fn origin(epoch: u64) -> Origin {
    Origin { epoch, key: u128::from(epoch) }
}

/// A table with one lock held and one wanted.
fn table() -> (Table, RequestId, RequestId) {
    let mut table = Table::default();
    assert_eq!(table.begin_session(origin(1), b"").len(), 1);
    let (handle, _) = table.name(Kind::Keyed, &LockName::new("a").unwrap());
    let held = table.open(units(handle), Stage::Wanted { wait: true });
    let wanted = table.open(units(handle), Stage::Wanted { wait: true });
    table.hear(1, Answer::Granted { id: held, token: 5 });
    *table.stage(held).unwrap() = Stage::Held { token: 5, origin: table.origin };
    (table, held, wanted)
}

#[test]
fn after_a_restart_what_is_held_is_claimed_and_what_is_wanted_is_asked_for_again() {
    let (mut table, held, wanted) = table();
    table.end_session();
    for run in [2, 3] {
        let asks = asks(&table.begin_session(origin(run), b"stock"));
        assert!(
            matches!(&asks[0], Ask::Open { key, space, .. } if *key == u128::from(run) && space == b"stock")
        );
        assert!(matches!(&asks[1], Ask::Name { .. }));
        // Also if the second run ended before it answered.
        assert!(
            matches!(asks[2], Ask::Claim { id, token: 5, epoch: 1, key: 1, .. } if id == held),
            "{:?}",
            asks[2]
        );
        assert!(matches!(asks[3], Ask::Lock { id, wait: true, .. } if id == wanted));
    }
    table.hear(9, Answer::Granted { id: held, token: 5 });
    assert!(matches!(table.stage(held), Some(Stage::Held { origin, .. }) if origin.epoch == 3));
}

#[test]
fn what_is_held_is_lost_with_the_session_if_the_server_goes_on() {
    let (mut table, held, _) = table();
    table.end_session();
    let asks = asks(&table.begin_session(origin(1), b""));
    assert!(!asks.iter().any(|ask| matches!(ask, Ask::Claim { .. })));
    assert!(matches!(table.stage(held), Some(Stage::Lost)));
}

#[test]
fn an_answer_to_an_earlier_request_in_the_same_slot_changes_nothing() {
    let (mut table, held, _) = table();
    table.take(held);
    let later = table.open(units(0), Stage::Wanted { wait: true });
    assert_eq!(slot(later), slot(held));
    table.hear(0, Answer::Granted { id: held, token: 6 });
    assert!(matches!(table.stage(later), Some(Stage::Wanted { .. })));
}

#[test]
fn what_the_server_took_is_not_said_again() {
    let mut table = Table::default();
    for _ in 0..5 {
        let _ = table.say(&Ask::List { id: 1 });
    }
    table.hear(3, Answer::Ack);
    assert_eq!(table.unacked().count(), 2);
}

#[test]
fn silence_beyond_the_lease_ends_everything() {
    let (mut table, held, wanted) = table();
    assert!(table.expire(Duration::from_secs(1), Duration::from_secs(2)).is_empty());
    table.expire(Duration::from_secs(3), Duration::ZERO);
    assert!(matches!(table.stage(held), Some(Stage::Lost)));
    assert!(matches!(table.stage(wanted), Some(Stage::Failed(_))));
}
