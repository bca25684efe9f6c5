//! What is said comes out as it went in, and nothing that comes makes trouble.

use super::codec::pack;
use super::*;
use lockwright_fabric::Message;
use lockwright_fabric::random::SplitMix;

fn asks() -> Vec<Request> {
    let name = LockName::new("orders/42").unwrap();
    let units = |mode| Units { handle: 7, mode, start: 3, end: u64::MAX, thread: Some(9) };
    vec![
        Request::Open {
            version: VERSION,
            key: u128::MAX - 5,
            space: b"stock".to_vec(),
            one_sided: false,
            seen: 7,
        },
        Request::Open { version: 9, key: 1, space: Vec::new(), one_sided: true, seen: 0 },
        Request::Name { handle: 1, kind: Kind::Keyed, name: name.clone() },
        Request::Name { handle: u64::MAX, kind: Kind::Ranges, name: LockName::new([7; 255]).unwrap() },
        Request::Forget { handle: 4 },
        Request::Lock { id: 5 << 32 | 6, units: units(Mode::Exclusive), wait: false },
        Request::Lock { id: 1, units: units(Mode::Shared), wait: true },
        Request::LockSet { members: vec![(9, units(Mode::Shared))] },
        Request::LockSet {
            members: (0..MAX_SET as u64)
                .map(|id| (id << 32, units(if id % 3 == 0 { Mode::Exclusive } else { Mode::Shared })))
                .collect(),
        },
        Request::Unlock { id: 9, answer: true },
        Request::Unlock { id: 9, answer: false },
        Request::Claim { id: 2, units: units(Mode::Shared), token: 77, epoch: 5, key: 1 << 100 },
        Request::Claimed { key: 1 << 90 | 3 },
        Request::Stopped { key: u128::MAX },
        Request::Identify { id: 21 },
        Request::List { id: 11, of: None },
        Request::List { id: 11, of: Some(LockName::new("a/b").unwrap()) },
        Request::Heat { id: 12 },
        Request::Break { id: 13, token: 99, name },
        Request::Find { id: 14, handle: 3 },
        Request::Upgrade { id: 17, wait: true },
        Request::Upgrade { id: 17, wait: false },
        Request::Downgrade { id: 18, gives_up: false },
        Request::Downgrade { id: 18, gives_up: true },
        Request::Part { id: 19, start: 3, end: u64::MAX, rest: 1 << 40 | 2 },
        Request::Retains,
        Request::Kept { id: 5 << 32 | 6, thread: None },
        Request::Kept { id: 5 << 32 | 7, thread: Some((1 << 20) - 2) },
        Request::Probe { sent: u64::MAX },
        Request::Map { id: 22 },
        Request::Hand { id: 23, last: true, bytes: vec![7; PAGE] },
        Request::Hand { id: 24, last: false, bytes: Vec::new() },
        Request::Waited { id: 5 << 32 | 6, ns: u64::MAX },
        Request::ReadValue { id: 23, of: 5 << 32 | 6, token: u64::MAX },
        Request::SetValue { id: 24, of: 5 << 32 | 6, token: 7, bytes: vec![9; MAX_VALUE] },
        Request::SetValue { id: 25, of: 1, token: 7, bytes: Vec::new() },
        Request::CloseValue { of: 5 << 32 | 6, token: 7 },
        Request::Watch { id: 5 << 32 | 6 },
    ]
}

fn answers() -> Vec<Response> {
    vec![
        Response::Granted { id: 1, token: u64::MAX },
        Response::Busy { id: 2 },
        Response::Refused { id: 3, why: "no room".to_owned() },
        Response::Lost { id: 4 },
        Response::Unlocked { id: 5, held: true },
        Response::Unlocked { id: 5, held: false },
        Response::Page { id: 6, more: true, bytes: vec![1; PAGE] },
        Response::Page { id: 6, more: false, bytes: Vec::new() },
        Response::Ack,
        Response::Certain { sent: 5, left: u64::MAX },
        Response::Elsewhere,
        Response::Identity { id: 3, identity: Identity::Server(1 << 100 | 5) },
        Response::Identity { id: 3, identity: Identity::Memory(u128::MAX) },
        Response::Found { id: 7, lock: 8, token_base: 9 },
        Response::Joined { peer: PeerId(77) },
        Response::Changed { id: 8, token: u64::MAX, mode: Mode::Exclusive },
        Response::Changed { id: 8, token: 1, mode: Mode::Shared },
        Response::Unchanged { id: 9, why: DenyReason::Busy },
        Response::Unchanged { id: 9, why: DenyReason::Deadlock },
        Response::Unchanged { id: 9, why: DenyReason::Refused("not held".to_owned()) },
        Response::Retained { id: 10, token: 5, first: 9, count: u64::MAX },
        Response::Recall { id: 10 },
        Response::Contended { id: 10 },
        Response::Relinquish { count: u64::MAX },
        Response::Value { id: 11, value: ValueReport::default() },
        Response::Value {
            id: 12,
            value: ValueReport { bytes: Some(vec![3; 9]), clean: true, durable: true, age_ns: u64::MAX },
        },
    ]
}

#[test]
fn everything_comes_out_as_it_went_in() {
    for ask in asks() {
        assert_eq!(Request::decode(&ask.encode(8)), Some((8, ask)));
    }
    for answer in answers() {
        assert_eq!(Response::decode(&answer.encode(9)), Some((9, answer)));
    }
}

#[test]
fn a_page_and_a_set_fit_into_a_message() {
    let longest = pack(&[0; PAGE]).len().max(4 * MAX_SET);
    assert!(longest <= lockwright_fabric::backend::tcp::MAX_TAIL);
    #[cfg(feature = "rdma")]
    assert!(longest <= lockwright_fabric::backend::rdma::MAX_TAIL);
}

/// The corpus: every message, cut, stretched and with every word changed. Nothing may panic, and what comes out
/// as a request or an answer must say again what it was read from.
#[test]
fn whatever_comes_is_decoded_or_refused() {
    let whole: Vec<Message> = asks()
        .iter()
        .map(|ask| ask.encode(3))
        .chain(answers().iter().map(|answer| answer.encode(3)))
        .collect();
    let mut random = SplitMix::new(1);
    let mut next = || random.next();
    for message in &whole {
        for cut in 0..=message.tail.len().min(40) {
            let mut short = message.clone();
            short.tail.truncate(cut);
            try_both(&short);
        }
        for _ in 0..2000 {
            let mut bad = message.clone();
            match next() % 5 {
                0 => bad.kind = next() as u32,
                1 => bad.kind ^= 1 << (next() % 32),
                2 => bad.words[next() as usize % 4] = next(),
                3 if !bad.tail.is_empty() => {
                    let at = next() as usize % bad.tail.len();
                    bad.tail[at] = if next() % 2 == 0 { u64::MAX } else { next() };
                }
                _ => bad.tail.push(next()),
            }
            try_both(&bad);
        }
    }
}

fn try_both(message: &Message) {
    if let Some((seq, ask)) = Request::decode(message) {
        assert_eq!(Request::decode(&ask.encode(seq)), Some((seq, ask)));
    }
    if let Some((taken, answer)) = Response::decode(message) {
        assert_eq!(Response::decode(&answer.encode(taken)), Some((taken, answer)));
    }
}
