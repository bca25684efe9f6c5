//! What becomes of requests and of what is held when answers, breaks and restarts come.

use super::*;
use crate::error::ChangeError;
use crate::wire::DenyReason;
use lockwright_fabric::observe::Mode;

fn units(handle: u64) -> Option<Units> {
    Some(Units { handle, mode: Mode::Exclusive, start: 0, end: 1, thread: None })
}

fn asks(messages: &[Message]) -> Vec<Request> {
    messages.iter().map(|message| Request::decode(message).unwrap().1).collect()
}

fn origin(epoch: u64) -> Origin {
    Origin { epoch, key: u128::from(epoch) }
}

/// A table with one lock held and one wanted.
fn table() -> (Table, RequestId, RequestId) {
    let mut table = Table::default();
    assert_eq!(table.begin_session(origin(1), b"", false).len(), 1);
    let (handle, _) = table.name(Kind::Keyed, &LockName::new("a").unwrap());
    let held = table.open(units(handle), Stage::Wanted { wait: true });
    let wanted = table.open(units(handle), Stage::Wanted { wait: true });
    table.hear(1, Response::Granted { id: held, token: 5 });
    *table.stage(held).unwrap() = Stage::Held { token: 5, origin: table.origin };
    (table, held, wanted)
}

#[test]
fn after_a_restart_what_is_held_is_claimed_and_what_is_wanted_is_asked_for_again() {
    let (mut table, held, wanted) = table();
    table.end_session();
    for run in [2, 3] {
        let asks = asks(&table.begin_session(origin(run), b"stock", false));
        assert!(
            matches!(&asks[0], Request::Open { key, space, .. } if *key == u128::from(run) && space == b"stock")
        );
        assert!(matches!(&asks[1], Request::Name { .. }));
        // Also if the second run ended before it answered.
        assert!(
            matches!(asks[2], Request::Claim { id, token: 5, epoch: 1, key: 1, .. } if id == held),
            "{:?}",
            asks[2]
        );
        assert!(matches!(asks[3], Request::Lock { id, wait: true, .. } if id == wanted));
    }
    table.hear(9, Response::Granted { id: held, token: 5 });
    assert!(matches!(table.stage(held), Some(Stage::Held { origin, .. }) if origin.epoch == 3));
}

#[test]
fn a_claim_that_is_not_answered_within_the_lease_of_the_earlier_run_is_lost() {
    let (mut table, held, wanted) = table();
    table.end_session();
    assert!(!table.has_claims());
    let _ = table.begin_session(origin(2), b"", false);
    assert!(table.has_claims());
    table.expire_claims();
    assert!(matches!(table.stage(held), Some(Stage::Lost(_))) && !table.has_claims());
    assert!(matches!(table.stage(wanted), Some(Stage::Wanted { .. })), "others wait for their answers");
    table.hear(9, Response::Granted { id: held, token: 5 });
    assert!(matches!(table.stage(held), Some(Stage::Lost(_))), "an answer that comes later changes nothing");
}

#[test]
fn what_is_held_is_lost_with_the_session_if_the_server_goes_on() {
    let (mut table, held, _) = table();
    table.end_session();
    let asks = asks(&table.begin_session(origin(1), b"", false));
    assert!(!asks.iter().any(|ask| matches!(ask, Request::Claim { .. })));
    assert!(matches!(table.stage(held), Some(Stage::Lost(_))));
}

#[test]
fn an_answer_to_an_earlier_request_in_the_same_slot_changes_nothing() {
    let (mut table, held, _) = table();
    table.take(held);
    let later = table.open(units(0), Stage::Wanted { wait: true });
    assert_eq!(slot(later), slot(held));
    table.hear(0, Response::Granted { id: held, token: 6 });
    assert!(matches!(table.stage(later), Some(Stage::Wanted { .. })));
}

#[test]
fn what_the_server_took_is_not_said_again() {
    let mut table = Table::default();
    for _ in 0..5 {
        let _ = table.say(&Request::List { id: 1, of: None });
    }
    table.hear(3, Response::Ack);
    assert_eq!(table.unacked().count(), 2);
}

#[test]
fn silence_beyond_the_lease_ends_everything() {
    let (mut table, held, wanted) = table();
    let (now, lease) = (Instant::now() + Duration::from_secs(60), Duration::from_secs(2));
    table.expire(now, Duration::from_secs(1), lease, "it is silent");
    table.expire(now, lease, lease, "it is silent");
    assert!(matches!(table.stage(held), Some(Stage::Held { .. })), "the lease is not over yet");
    table.expire(now, Duration::from_secs(3), lease, "it is silent");
    assert!(matches!(table.stage(held), Some(Stage::Lost(LostReason::Disconnected))));
    assert!(matches!(table.stage(wanted), Some(Stage::Failed(_))));
}

#[test]
fn a_waiter_that_began_when_the_server_was_silent_already_waits_for_a_lease_of_its_own() {
    let (mut table, held, wanted) = table();
    let (since, lease) = (table.request(wanted).unwrap().since, Duration::from_secs(2));
    table.expire(since + lease, Duration::from_secs(30), lease, "it is silent");
    assert!(matches!(table.stage(held), Some(Stage::Lost(_))));
    assert!(
        matches!(table.stage(wanted), Some(Stage::Wanted { wait: true })),
        "it has waited for a lease only"
    );
    table.expire(since + lease + Duration::from_millis(1), Duration::from_secs(30), lease, "it is silent");
    assert!(matches!(table.stage(wanted), Some(Stage::Failed(_))));
}

#[test]
fn a_grant_that_nobody_took_ends_with_its_session_and_is_asked_for_again() {
    let (mut table, _, wanted) = table();
    table.hear(1, Response::Granted { id: wanted, token: 6 });
    table.end_session();
    assert!(matches!(table.stage(wanted), Some(Stage::Wanted { wait: true })));
    // The same if the server goes on and if it was restarted.
    for run in [1, 2] {
        let asks = asks(&table.begin_session(origin(run), b"", false));
        assert!(asks.iter().any(|ask| matches!(ask, Request::Lock { id, .. } if *id == wanted)), "{asks:?}");
        table.end_session();
    }
}

#[test]
fn a_grant_that_nobody_took_is_not_taken_after_the_lease() {
    let (mut table, _, wanted) = table();
    table.hear(1, Response::Granted { id: wanted, token: 6 });
    let since = table.request(wanted).unwrap().since;
    table.expire(since, Duration::from_secs(3), Duration::from_secs(2), "it is silent");
    assert!(
        matches!(table.stage(wanted), Some(Stage::Failed(_))),
        "others may have the lock, however young it is"
    );
}

#[test]
fn waiters_ask_again_in_the_order_in_which_they_began_to_wait() {
    let mut table = Table::default();
    let _ = table.begin_session(origin(1), b"", false);
    let ids: Vec<_> = (0..3).map(|_| table.open(units(0), Stage::Wanted { wait: true })).collect();
    let began = Instant::now();
    // A slot that was free again was taken by the last waiter.
    for (id, place) in ids.iter().zip([2, 0, 1]) {
        table.request(*id).unwrap().since = began + Duration::from_secs(place);
    }
    table.end_session();
    let asked: Vec<_> = asks(&table.begin_session(origin(2), b"", false))
        .into_iter()
        .filter_map(|ask| if let Request::Lock { id, .. } = ask { Some(id) } else { None })
        .collect();
    assert_eq!(asked, [ids[1], ids[2], ids[0]]);
}

/// A table with one lock held in `mode`, and its id.
fn holding(mode: Mode) -> (Table, RequestId) {
    let (mut table, held, wanted) = table();
    table.take(wanted);
    table.request(held).unwrap().units = Some(Units { handle: 0, mode, start: 0, end: 10, thread: None });
    (table, held)
}

fn mode(table: &mut Table, id: RequestId) -> Mode {
    table.request(id).unwrap().units.unwrap().mode
}

#[test]
fn an_upgrade_is_believed_when_the_server_has_said_so_and_not_before() {
    let (mut table, id) = holding(Mode::Shared);
    assert!(matches!(table.begin_upgrade(id, true, 5), Upgrade::Said(Request::Upgrade { wait: true, .. })));
    assert!(matches!(table.upgrade(id, 5), Upgrade::Waiting));
    table.hear(2, Response::Changed { id, token: 6, mode: Mode::Shared });
    assert!(matches!(table.upgrade(id, 5), Upgrade::Waiting), "that was said of an earlier change");
    table.hear(2, Response::Changed { id, token: 7, mode: Mode::Exclusive });
    assert!(matches!(table.upgrade(id, 5), Upgrade::Done { token: 7 }));
    assert_eq!(mode(&mut table, id), Mode::Exclusive);
}

#[test]
fn an_upgrade_that_is_refused_is_told_once_and_can_be_asked_for_again() {
    let (mut table, id) = holding(Mode::Shared);
    for (why, error) in
        [(DenyReason::Busy, ChangeError::Busy), (DenyReason::Deadlock, ChangeError::WouldDeadlock)]
    {
        assert!(matches!(table.begin_upgrade(id, false, 5), Upgrade::Said(_)));
        table.hear(2, Response::Unchanged { id, why });
        assert!(matches!(table.upgrade(id, 5), Upgrade::Failed(told) if told == error));
        assert!(matches!(table.stage(id), Some(Stage::Held { token: 5, .. })));
    }
}

#[test]
fn an_upgrade_that_is_given_up_is_shared_whatever_the_server_says_of_it_afterwards() {
    let crossings: [fn(RequestId) -> Option<Response>; 4] = [
        |_| None,
        |id| Some(Response::Unchanged { id, why: DenyReason::Busy }),
        |id| Some(Response::Unchanged { id, why: DenyReason::Deadlock }),
        |id| Some(Response::Changed { id, token: 6, mode: Mode::Exclusive }),
    ];
    for crossing in crossings {
        let (mut table, id) = holding(Mode::Shared);
        assert!(matches!(table.begin_upgrade(id, true, 5), Upgrade::Said(_)));
        assert_eq!(table.give_up_upgrade(id), Some(Request::Downgrade { id, gives_up: true }));
        if let Some(answer) = crossing(id) {
            table.hear(2, answer);
        }
        assert_eq!(mode(&mut table, id), Mode::Shared);
        assert!(matches!(table.begin_upgrade(id, true, 5), Upgrade::Waiting), "it has to settle first");
        table.hear(3, Response::Changed { id, token: 8, mode: Mode::Shared });
        assert_eq!((table.token(id), mode(&mut table, id)), (Some(8), Mode::Shared));
        assert!(matches!(table.begin_upgrade(id, true, 8), Upgrade::Said(_)));
    }
    // Granted, and dropped before its waiter looked.
    let (mut table, id) = holding(Mode::Shared);
    assert!(matches!(table.begin_upgrade(id, true, 5), Upgrade::Said(_)));
    table.hear(2, Response::Changed { id, token: 6, mode: Mode::Exclusive });
    assert_eq!(table.give_up_upgrade(id), Some(Request::Downgrade { id, gives_up: true }));
    assert_eq!(mode(&mut table, id), Mode::Shared);
}

#[test]
fn after_a_restart_what_was_changed_is_claimed_as_it_is_and_an_upgrade_asked_for_after_all_claims() {
    let (mut table, id) = holding(Mode::Exclusive);
    assert_eq!(table.begin_downgrade(id), Some(Request::Downgrade { id, gives_up: false }));
    let (part, rest) = table.cut(id, 4, 6).unwrap();
    let rest = rest.expect("two pieces are left");
    assert_eq!(part, Request::Part { id, start: 4, end: 6, rest });
    let claims = |asks: &[Request]| -> Vec<(RequestId, Mode, u64, u64)> {
        let of = |ask: &Request| match *ask {
            Request::Claim { id, units, token: 5, .. } => Some((id, units.mode, units.start, units.end)),
            _ => None,
        };
        asks.iter().filter_map(of).collect()
    };
    table.end_session();
    let said = asks(&table.begin_session(origin(2), b"", false));
    assert_eq!(claims(&said), [(id, Mode::Shared, 0, 4), (rest, Mode::Shared, 6, 10)]);
    assert!(matches!(table.downgrade(id, 5), Some(Ok(5))), "the claim is all there is to it");
    table.hear(4, Response::Granted { id, token: 5 });
    assert!(matches!(table.begin_upgrade(id, true, 5), Upgrade::Said(_)));
    table.end_session();
    let said = asks(&table.begin_session(origin(3), b"", false));
    assert_eq!(claims(&said).len(), 2);
    assert_eq!(said.last(), Some(&Request::Upgrade { id, wait: true }));
    assert!(matches!(table.upgrade(id, 5), Upgrade::Waiting));
    // Lost with the session, if the server goes on.
    table.end_session();
    let _ = table.begin_session(origin(3), b"", false);
    assert!(matches!(table.upgrade(id, 5), Upgrade::Failed(ChangeError::Lost { token: 5 })));
    assert!(table.begin_downgrade(rest).is_none() && table.cut(rest, 6, 7).is_none());
}

#[test]
fn the_server_hears_that_work_has_stopped_once_nobody_has_a_guard_of_what_was_lost() {
    let mut table = Table::default();
    let _ = table.begin_session(Origin { epoch: 1, key: 11 }, b"stock", false);
    let units = Units { handle: 0, mode: Mode::Exclusive, start: 0, end: 1, thread: None };
    let origin = table.origin;
    let id = table.open(Some(units), Stage::Held { token: 5, origin });
    let _ = table.end_session();
    let _ = table.begin_session(Origin { epoch: 1, key: 12 }, b"stock", false);
    assert_eq!(table.stopped(), [], "its holder may still be at work");
    table.take(id);
    assert_eq!(table.stopped(), [Request::Stopped { key: 11 }]);
    assert_eq!(table.stopped(), []);
}

#[test]
fn of_grants_that_nobody_uses_those_go_back_first_that_were_used_last_a_while_ago() {
    let mut table = Table::new(true);
    let _ = table.begin_session(origin(1), b"", false);
    let mut stays = |name: &str, token| {
        let (handle, _) = table.name(Kind::Keyed, &LockName::new(name).unwrap());
        let units = units(handle).unwrap();
        let Begun::Request(id) = table.lock(units, true, true) else { panic!("it is not here") };
        table.hear(1, Response::Retained { id, token, first: token + 1, count: 10 });
        let granted = table.see_retained(id).unwrap();
        table.release(granted.id, true).unwrap();
        (id, units)
    };
    let ids = [("a", 100), ("b", 200), ("c", 300), ("d", 400)].map(|(name, token)| stays(name, token));
    table.look_at_retained(u8::MAX);
    // The first is used again, and the last is in use.
    let Begun::Granted(used) = table.lock(ids[0].1, true, true) else { panic!("it stays here") };
    table.release(used.id, true).unwrap();
    assert!(matches!(table.lock(ids[3].1, true, true), Begun::Granted(_)));
    let mut back = |count| {
        let _ = table.take_said();
        table.hear(2, Response::Relinquish { count });
        let said = table.take_said();
        let unlocked = |ask: &Request| if let Request::Unlock { id, .. } = ask { Some(*id) } else { None };
        said.iter().filter_map(unlocked).collect::<Vec<_>>()
    };
    assert_eq!(back(1), [ids[1].0]);
    assert_eq!(back(u64::MAX), [ids[2].0, ids[0].0], "and none that is in use");
    assert_eq!(table.idle_grants(), 0);
}

#[test]
fn a_set_is_seen_when_all_of_it_is_granted_and_asked_for_again_as_a_whole() {
    let mut table = Table::default();
    let _ = table.begin_session(origin(1), b"", false);
    let handles = ["a", "b"].map(|name| table.name(Kind::Keyed, &LockName::new(name).unwrap()).0);
    let ids = table.lock_set(&handles.map(|handle| units(handle).unwrap()));
    let members = |asks: &[Request]| {
        let sets = asks.iter().filter_map(|ask| match ask {
            Request::LockSet { members } => Some(members.iter().map(|(id, _)| *id).collect::<Vec<_>>()),
            Request::Lock { .. } => panic!("a member is asked for by itself"),
            _ => None,
        });
        sets.collect::<Vec<_>>()
    };
    assert_eq!(members(&table.take_said()), std::slice::from_ref(&ids));
    table.hear(1, Response::Granted { id: ids[0], token: 5 });
    assert!(matches!(table.set_stage(&ids), SetStage::Wanted));
    for run in [1, 2] {
        table.end_session();
        let asks = asks(&table.begin_session(origin(run), b"", false));
        assert_eq!(members(&asks), std::slice::from_ref(&ids), "nothing of it is claimed: {asks:?}");
        assert!(!asks.iter().any(|ask| matches!(ask, Request::Claim { .. })));
    }
    for (id, token) in ids.iter().zip([6, 7]) {
        table.hear(1, Response::Granted { id: *id, token });
    }
    assert!(matches!(table.set_stage(&ids), SetStage::Granted));
    let tokens: Vec<_> = table.see_granted_set(&ids).iter().map(|granted| granted.token).collect();
    assert_eq!(tokens, [6, 7]);
    // From now on they are locks like others.
    table.end_session();
    let asks = asks(&table.begin_session(origin(3), b"", false));
    assert_eq!(asks.iter().filter(|ask| matches!(ask, Request::Claim { .. })).count(), 2);
}
