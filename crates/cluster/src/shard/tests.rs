//! A shard, step by step. What can happen in any order, the explorer shows.

use super::handover::Handover;
use super::*;

const S: Duration = Duration::from_secs(1);

fn taker(server: ServerId) -> Taker {
    let (keys, rules) = (Keys::new("test"), Rules::default());
    Taker { keys, server, made: 5, block: 100, first_token: 1000, ttl: 2 * S, rules }
}

fn session(key: SessionKey) -> Registered {
    Registered { key, before: BTreeSet::new() }
}

fn owned(by: ServerId, epoch: u64) -> ShardState {
    let owner = Some(Owner { epoch, server: by });
    ShardState { owner, owner_changed: 7, tokens_below: 1300, tokens_changed: 8 }
}

/// The shard of a dead server with these sessions, taken over.
fn recovering(sessions: &[SessionKey]) -> Shard {
    let (taking, _) = taker(2).take(0, &owned(1, 4));
    taking.taken(9, sessions.iter().map(|key| session(*key)), BrokenGrants::new(), S, 8 * S)
}

#[test]
fn a_takeover_raises_the_epoch_and_reserves_tokens_above_all_that_the_old_owner_could_give() {
    let (taking, txn) = taker(2).take(0, &owned(1, 4));
    assert!(txn.then.contains(&Op::Put("/lockwright/test/map/tokens/0000".into(), "1400".into())));
    assert!(txn.when.contains(&Compare::Made("/lockwright/test/map/servers/0000000000000001".into(), 0)));
    let shard = taking.taken(9, [], BrokenGrants::new(), S, 8 * S);
    assert_eq!((shard.epoch(), shard.first_token()), (5, 1300));
    assert!(!shard.is_recovering(), "nobody has to be waited for");
}

#[test]
fn it_opens_with_the_last_claim() {
    let mut shard = recovering(&[1, 2]);
    assert!(shard.accepts(1, 1200) && !shard.accepts(3, 1200), "only who is registered is believed");
    assert!(!shard.has_claimed(1));
    assert!(shard.is_recovering() && !shard.may_grant(1, 1300));
    assert!(shard.has_claimed(2));
    assert!(shard.may_grant(1, 1300) && !shard.accepts(1, 1200));
}

#[test]
fn who_does_not_claim_in_time_is_out_of_the_registry_before_it_opens() {
    let mut shard = recovering(&[1, 2]);
    shard.has_claimed(1);
    assert_eq!(shard.wait_over(10 * S), None);
    let txn = shard.wait_over(11 * S).expect("the wait is over");
    assert_eq!(txn.then, [Op::Delete(shard.keys.session(0, 2))]);
    assert!(!shard.accepts(2, 1200) && !shard.may_grant(1, 1300), "not before it is done");
    shard.evicted_all();
    assert!(shard.may_grant(1, 1300) && !shard.is_registered(2));
}

#[test]
fn a_session_that_goes_on_from_an_earlier_one_takes_its_place_and_claims_under_both_keys() {
    let mut shard = recovering(&[1]);
    let txn = shard.register(2, Some(1));
    assert_eq!(txn.then.len(), 2, "one is written and one removed");
    shard.registered(2, Some(1));
    assert!(shard.is_registered(2) && !shard.is_registered(1));
    assert!(shard.accepts(1, 1200) && shard.accepts(2, 1200));
    assert!(shard.has_claimed(1));
    assert_eq!(shard.registry.len(), 1);
}

#[test]
fn a_broken_grant_is_remembered_for_as_long_as_a_session_could_claim_it() {
    let mut shard = recovering(&[1, 2]);
    let broken = |token| shard.keys.broken(0, token);
    let (first, second) = (broken(1200), broken(1201));
    assert_eq!(shard.break_grant(1200, 1).then, [Op::Put(first.clone(), format!("{:032x}", 1))]);
    shard.broke(1200, 1);
    shard.broke(1201, 2);
    assert!(!shard.accepts(1, 1200) && shard.accepts(1, 1202));
    // Its client goes on in another session.
    shard.registered(3, Some(1));
    shard.has_claimed(1);
    let txn = shard.wait_over(11 * S).expect("the wait is over");
    assert_eq!(txn.then, [Op::Delete(shard.keys.session(0, 2)), Op::Delete(second)]);
    shard.evicted_all();
    let txn = shard.evict(&[3]).expect("it is registered");
    assert_eq!(txn.then, [Op::Delete(shard.keys.session(0, 3)), Op::Delete(first)]);
    shard.evicted(&[3]);
    assert!(shard.broken.is_empty());
}

#[test]
fn tokens_are_reserved_ahead_and_once() {
    let mut shard = recovering(&[]);
    assert_eq!(shard.reserve(1310), None);
    assert!(shard.reserve(1350).is_some());
    assert_eq!(shard.reserve(1390), None, "it is under way");
    shard.registered(1, None);
    assert!(!shard.may_grant(1, 1400));
    shard.reserved(true);
    assert!(shard.may_grant(1, 1400));
}

#[test]
fn a_shard_that_is_handed_over_grants_nothing_and_is_adopted_only_by_its_new_owner() {
    let mut shard = recovering(&[]);
    shard.registered(1, None);
    assert!(shard.freeze() && !shard.may_grant(1, 1300));
    shard.registered(2, None);
    let txn = shard.hand_over(3, &[2], 77);
    assert!(txn.then.contains(&Op::Delete(shard.keys.session(0, 2))), "nobody has to wait for who is idle");
    assert!(!txn.then.contains(&Op::Delete(shard.keys.session(0, 1))));
    assert!(txn.then.contains(&Op::Put(shard.keys.shard(0), Owner { epoch: 6, server: 3 }.text())));
    let seen = ShardState { owner: Some(Owner { epoch: 6, server: 3 }), ..owned(2, 5) };
    assert!(taker(4).adopt(0, &seen).is_none() && !shard.is_still(&seen));
    let (taking, txn) = taker(3).adopt(0, &seen).expect("it is its own");
    assert!(txn.when.contains(&Compare::Changed(shard.keys.shard(0), 7)));
    assert_eq!(taking.taken(10, [], BrokenGrants::new(), S, S).epoch(), 6);
    shard.thaw();
    assert!(shard.may_grant(1, 1300));
}

#[test]
fn a_new_owner_waits_for_what_one_that_handed_the_shard_over_has_promised_to_clients() {
    // It may have been handed to a server that died of it, from which it is taken.
    for mut shard in [handed(&[1]), recovering(&[1])] {
        assert_eq!(shard.waits_until(), Some(S + 2 * S + 8 * S));
        assert_eq!(shard.wait_over(10 * S), None);
    }
    let (taking, _) = taker(2).take(0, &ShardState { tokens_changed: 7, ..owned(1, 4) });
    let shard = taking.taken(9, [session(1)], BrokenGrants::new(), S, 8 * S);
    assert_eq!(shard.waits_until(), Some(S + 8 * S), "its last owner had taken it");
}

/// Shard 0 in epoch 6, handed to server 3; those sessions are registered.
fn handed(sessions: &[SessionKey]) -> Shard {
    let (taking, _) = taker(3).adopt(0, &owned(3, 6)).expect("it is its own");
    taking.taken(10, sessions.iter().map(|key| session(*key)), BrokenGrants::new(), S, 8 * S)
}

/// A table for that owner in which these hold or want something.
fn table(sessions: &[SessionKey]) -> Handover {
    let owner = Owner { epoch: 6, server: 3 };
    Handover { number: 0, owner, sessions: sessions.iter().copied().collect(), tokens_below: 1300 }
}

#[test]
fn a_table_opens_the_shard_at_once_and_those_in_it_may_still_claim() {
    let mut shard = handed(&[1, 2, 3]);
    assert!(shard.inherit(&table(&[1, 2])) && !shard.is_recovering());
    assert!(shard.may_grant(3, 1300) && shard.may_grant(1, 1300), "also to who has not come yet");
    assert!(shard.accepts(1, 1200) && !shard.accepts(3, 1200), "the third holds nothing");
    shard.registered(4, Some(1));
    assert!(shard.are_of_one(1, 4) && !shard.are_of_one(2, 4));
    assert!(shard.accepts(1, 1200));
    assert!(!shard.has_claimed(1), "it is open already");
    assert!(!shard.accepts(1, 1200), "it has said all");
    assert_eq!(shard.waits_until(), Some(S + 2 * S + 8 * S));
    let txn = shard.wait_over(11 * S).expect("one has not come");
    assert_eq!(txn.then, [Op::Delete(shard.keys.session(0, 2))]);
    assert!(shard.may_grant(3, 1300) && !shard.accepts(2, 1200), "others go on meanwhile");
    shard.evicted_all();
    assert!(!shard.knows(2) && shard.knows(1) && shard.waits_until().is_none());
}

#[test]
fn a_table_of_another_change_of_owner_or_after_claims_or_again_is_refused() {
    let sound = table(&[1]);
    let others = [
        Handover { number: 1, ..sound.clone() },
        Handover { owner: Owner { epoch: 5, server: 3 }, ..sound.clone() },
        Handover { owner: Owner { epoch: 6, server: 4 }, ..sound.clone() },
        Handover { tokens_below: 1301, ..sound.clone() },
        table(&[1, 2]),
    ];
    for other in others {
        assert!(!handed(&[1]).inherit(&other), "{other:?}");
    }
    for goes_on in [true, false] {
        let mut shard = handed(&[1, 2]);
        match goes_on {
            true => shard.registered(7, Some(1)),
            false => drop(shard.has_claimed(9)),
        }
        assert!(!shard.inherit(&table(&[2])) && shard.is_recovering());
    }
    let mut shard = handed(&[1]);
    assert!(shard.inherit(&sound) && !shard.inherit(&sound));
    assert!(!recovering(&[1]).inherit(&sound), "it was taken over");
}

#[test]
fn only_a_frozen_shard_says_its_table_and_one_with_absent_clients_can_go_on() {
    let mut shard = handed(&[1]);
    assert!(shard.inherit(&table(&[1])));
    assert_eq!(shard.handover(5, [1].into()), None);
    assert!(shard.freeze() && shard.waits_until().is_none());
    let said = shard.handover(5, [1].into()).expect("it is frozen");
    assert_eq!((said.owner, said.tokens_below), (Owner { epoch: 7, server: 5 }, shard.tokens_below()));
    shard.thaw();
    assert_eq!(shard.waits_until(), Some(11 * S));
    assert!(shard.accepts(1, 1200));
}
