//! Restarts, claims and sessions, one story each, on the server's logic alone: with a clock that stands still, so that nothing
//! but the disk makes tokens rise.

use crate::durable::Journal;
use crate::machine::{Machine, MachineRules};
use lockwright::LockName;
use lockwright::wire::{Kind, Request, RequestId, Response, Units, VERSION};
use lockwright_fabric::backend::tcp::SessionEnd;
use lockwright_fabric::observe::Mode;

const UNITS: Units = Units { handle: 0, mode: Mode::Exclusive, start: 0, end: u64::MAX, thread: None };

/// A server, and who of its clients has said how much.
struct World {
    machine: Machine,
    said: Vec<(u32, u64)>,
}

impl World {
    fn start(journal: &Journal) -> Self {
        Self { machine: Machine::start(journal, 1, MachineRules::default()), said: Vec::new() }
    }

    /// The server is killed, and started again.
    fn restart(self) -> Self {
        Self::start(&self.machine.journal().after_death())
    }

    /// A client in a session with this key, which has named its lock.
    fn client(&mut self, key: u128) -> u32 {
        let client = self.machine.admit().unwrap();
        // Numbers are used again.
        self.said.retain(|(other, _)| *other != client);
        self.said.push((client, 0));
        self.say(client, &Request::Open { version: VERSION, key, space: vec![], one_sided: false, seen: 0 });
        let name = LockName::new("a").unwrap();
        self.say(client, &Request::Name { handle: 0, kind: Kind::Keyed, name });
        client
    }

    /// What is answered, to whom, in order.
    fn say(&mut self, client: u32, request: &Request) -> Vec<(u32, Response)> {
        let seq = self.said.iter_mut().find(|(of, _)| *of == client).map(|(_, seq)| {
            *seq += 1;
            *seq
        });
        self.machine.message(client, &request.encode(seq.unwrap()));
        self.answers()
    }

    fn answers(&mut self) -> Vec<(u32, Response)> {
        let decode = |(client, message)| (client, Response::decode(&message).unwrap().1);
        self.machine.take_sent().into_iter().map(decode).collect()
    }

    fn lock(&mut self, client: u32, id: RequestId) -> Vec<(u32, Response)> {
        self.say(client, &Request::Lock { id, units: UNITS, wait: true })
    }

    /// The token that a client gets at once.
    fn granted(&mut self, client: u32, id: RequestId) -> u64 {
        match self.lock(client, id)[..] {
            [(_, Response::Granted { token, .. })] => token,
            ref other => panic!("not granted: {other:?}"),
        }
    }

    fn claim(&mut self, client: u32, token: u64, epoch: u64, key: u128) -> Vec<(u32, Response)> {
        self.say(client, &Request::Claim { id: 7, units: UNITS, token, epoch, key })
    }
}

fn is_lost(answers: &[(u32, Response)], client: u32) -> bool {
    answers.contains(&(client, Response::Lost { id: 7 }))
}

fn is_granted(answers: &[(u32, Response)], client: u32) -> bool {
    answers.iter().any(|(to, answer)| *to == client && matches!(answer, Response::Granted { id: 7, .. }))
}

#[test]
fn of_two_who_claim_a_lock_the_one_with_the_larger_token_has_it_in_either_order() {
    for larger_first in [true, false] {
        let mut first = World::start(&Journal::default());
        let (earlier, holder) = (first.client(9), first.client(1));
        let stale_token = first.granted(earlier, 7);
        first.say(earlier, &Request::Unlock { id: 7, answer: false });
        let (token, epoch) = (first.granted(holder, 7), first.machine.epoch());
        let mut second = first.restart();
        let (stale, holder) = (second.client(2), second.client(3));
        let mut claims = [(stale, stale_token, 9), (holder, token, 1)];
        if larger_first {
            claims.reverse();
        }
        let answers: Vec<_> = claims
            .iter()
            .flat_map(|(client, token, key)| second.claim(*client, *token, epoch, *key))
            .collect();
        assert!(is_lost(&answers, stale) && is_granted(&answers, holder), "{answers:?}");
        assert!(!is_lost(&answers, holder), "{answers:?}");
    }
}

#[test]
fn waiters_keep_their_order_across_a_restart_in_whatever_order_they_come_back() {
    let mut first = World::start(&Journal::default());
    let holder = first.client(1);
    let (token, epoch) = (first.granted(holder, 7), first.machine.epoch());
    let mut second = first.restart();
    let (holder, waiters) = (second.client(11), [second.client(12), second.client(13), second.client(14)]);
    assert!(is_granted(&second.claim(holder, token, epoch, 1), holder));
    // The one that has waited longest comes last; one comes for the first time.
    for (waiter, waited) in waiters.into_iter().zip([Some(2_000_000_000), None, Some(3_000_000_000)]) {
        second.lock(waiter, 7);
        if let Some(ns) = waited {
            second.say(waiter, &Request::Waited { id: 7, ns });
        }
    }
    second.machine.end_recovery();
    let mut served = Vec::new();
    for leaves in [holder, waiters[2], waiters[0]] {
        let answers = second.say(leaves, &Request::Unlock { id: 7, answer: false });
        served.extend(waiters.into_iter().filter(|waiter| is_granted(&answers, *waiter)));
    }
    assert_eq!(served, [waiters[2], waiters[0], waiters[1]]);
}

#[test]
fn a_session_that_was_lost_claims_nothing_after_a_restart() {
    let mut first = World::start(&Journal::default());
    let holder = first.client(1);
    let (token, epoch) = (first.granted(holder, 7), first.machine.epoch());
    first.machine.depart(holder, SessionEnd::Lost);
    let next = first.client(2);
    assert!(first.granted(next, 7) > token);
    let mut second = first.restart();
    let back = second.client(3);
    assert!(is_lost(&second.claim(back, token, epoch, 1), back));
}

#[test]
fn who_was_never_granted_anything_claims_nothing_with_a_made_up_key() {
    let mut first = World::start(&Journal::default());
    let holder = first.client(1);
    let (token, epoch) = (first.granted(holder, 7), first.machine.epoch());
    let mut second = first.restart();
    let (thief, holder) = (second.client(2), second.client(3));
    assert!(is_lost(&second.claim(thief, token, epoch, 9), thief));
    assert!(is_granted(&second.claim(holder, token, epoch, 1), holder));
}

#[test]
fn holders_of_an_earlier_run_claim_nothing_once_a_later_run_was_open() {
    let mut first = World::start(&Journal::default());
    let holder = first.client(1);
    let (token, epoch) = (first.granted(holder, 7), first.machine.epoch());
    let mut second = first.restart();
    assert!(second.machine.is_recovering());
    second.machine.end_recovery();
    let next = second.client(2);
    assert!(second.granted(next, 7) > token);
    let mut third = second.restart();
    let back = third.client(3);
    assert!(is_lost(&third.claim(back, token, epoch, 1), back));
}

#[test]
fn a_claim_that_was_accepted_and_never_answered_is_heard_by_the_next_run() {
    for opens in [false, true] {
        let mut first = World::start(&Journal::default());
        let holder = first.client(1);
        let (token, epoch) = (first.granted(holder, 7), first.machine.epoch());
        let mut second = first.restart();
        let back = second.client(2);
        assert!(is_granted(&second.claim(back, token, epoch, 1), back));
        if opens {
            second.machine.end_recovery();
        }
        let mut third = second.restart();
        assert!(third.machine.is_recovering(), "a client may hold something");
        let again = third.client(3);
        assert!(is_granted(&third.claim(again, token, epoch, 1), again));
    }
}

#[test]
fn a_session_that_claimed_and_was_lost_is_not_heard_under_its_old_key_either() {
    let mut first = World::start(&Journal::default());
    let holder = first.client(1);
    let (token, epoch) = (first.granted(holder, 7), first.machine.epoch());
    let mut second = first.restart();
    let back = second.client(2);
    assert!(is_granted(&second.claim(back, token, epoch, 1), back));
    second.machine.end_recovery();
    second.machine.depart(back, SessionEnd::Lost);
    let mut third = second.restart();
    let again = third.client(3);
    assert!(is_lost(&third.claim(again, token, epoch, 1), again));
}

#[test]
fn who_only_tries_while_claims_are_waited_for_is_told_that_it_is_busy() {
    let mut first = World::start(&Journal::default());
    let holder = first.client(1);
    first.granted(holder, 7);
    let mut second = first.restart();
    let tries = second.client(2);
    let answers = second.say(tries, &Request::Lock { id: 7, units: UNITS, wait: false });
    assert_eq!(answers, [(tries, Response::Busy { id: 7 })]);
    assert_eq!(second.machine.requests(), 0);
}

#[test]
fn a_message_behind_one_that_is_missing_is_not_taken() {
    let mut world = World::start(&Journal::default());
    let client = world.client(1);
    world.said[0].1 += 1;
    assert_eq!(world.lock(client, 7), []);
    world.said[0].1 -= 2;
    assert!(matches!(world.lock(client, 7)[..], [(_, Response::Granted { .. })]), "the missing one");
}

#[test]
fn tokens_beyond_those_that_were_promised_are_promised_first() {
    let mut first = World::start(&Journal::default());
    let client = first.client(1);
    let mut highest = 0;
    for id in 1..20 {
        highest = first.granted(client, id << 32);
        first.say(client, &Request::Unlock { id: id << 32, answer: false });
    }
    let mut second = first.restart();
    second.machine.end_recovery();
    let next = second.client(2);
    assert!(second.granted(next, 7) > highest);
}

#[test]
fn a_session_that_opens_a_second_space_is_refused_and_keeps_what_it_has() {
    let mut server = World::start(&Journal::default());
    let (holder, other) = (server.client(1), server.client(2));
    server.granted(holder, 7);
    let again =
        Request::Open { version: VERSION, key: 9, space: b"other".to_vec(), one_sided: false, seen: 0 };
    let answers = server.say(holder, &again);
    assert!(matches!(&answers[..], [(to, Response::Refused { id: 0, .. })] if *to == holder), "{answers:?}");
    assert_eq!(server.lock(other, 7), [], "it is still held, in the first space");
    assert!(is_granted(&server.say(holder, &Request::Unlock { id: 7, answer: false }), other));
}
