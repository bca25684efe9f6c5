//! The combiner against its definition: a list of requests in order of arrival, where a request is granted once nothing
//! that conflicts with it stands before it; permits, once all that stands before it and itself fit. Slow, short, and obviously
//! right.

use super::*;
use crate::combiner::test_random::more;
use Mode::{Exclusive, Shared};
use lockwright_fabric::random::SplitMix;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    client: u32,
    id: u32,
    lock: u64,
    mode: Mode,
    start: u64,
    end: u64,
    held: bool,
    upgrading: bool,
    arrival: u64,
}

/// The lock that is a semaphore.
const GPUS: u64 = 9;

impl Entry {
    fn meets(&self, other: &Entry) -> bool {
        self.lock == other.lock && self.start < other.end && other.start < self.end
    }

    /// Whether `other` stands in its way.
    fn waits_for(&self, other: &Entry) -> bool {
        if self == other || !self.meets(other) || self.lock == GPUS {
            return false;
        }
        if self.upgrading {
            return other.held;
        }
        let exclusive = self.mode == Exclusive || other.mode == Exclusive || other.upgrading;
        !self.held && exclusive && (other.held || other.arrival < self.arrival)
    }
}

/// The definition.
#[derive(Default)]
struct Naive {
    list: Vec<Entry>,
    arrivals: u64,
    /// Grants so far, to compare tokens with.
    tokens: u64,
}

impl Naive {
    fn find(&mut self, client: u32, id: u32) -> Option<&mut Entry> {
        self.list.iter_mut().find(|entry| (entry.client, entry.id) == (client, id))
    }

    /// Whether a request waits, or would, for permits.
    fn has_too_few(list: &[Entry], wanted: &Entry) -> bool {
        let before = |other: &&Entry| other.lock == GPUS && (other.held || other.arrival < wanted.arrival);
        let out: u64 = list.iter().filter(before).map(|other| other.start).sum();
        wanted.lock == GPUS && !wanted.held && out + wanted.start >= wanted.end
    }

    /// Grants all that can be granted: upgrades first, then by arrival.
    fn settle(&mut self, replies: &mut Vec<Reply>) {
        let list = self.list.clone();
        let free = |entry: &&Entry| {
            !list.iter().any(|other| entry.waits_for(other)) && !Self::has_too_few(&list, entry)
        };
        let waiting = |entry: &&Entry| !entry.held || entry.upgrading;
        let mut now: Vec<_> = list.iter().filter(waiting).filter(free).collect();
        now.sort_by_key(|entry| (!entry.upgrading, entry.arrival, entry.id));
        for entry in now {
            self.tokens += 1;
            let token = self.tokens;
            let mine = self.find(entry.client, entry.id).expect("it is in the list");
            mine.mode = if entry.upgrading { Exclusive } else { entry.mode };
            (mine.held, mine.upgrading, mine.arrival) = (true, false, token);
            let client = ClientId(entry.client);
            replies.push(Reply { client, id: entry.id, answer: Answer::Granted { token } });
        }
    }

    fn handle(&mut self, client: ClientId, request: Request) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut say = |id, answer| replies.push(Reply { client, id, answer });
        let refuse = |refusal| Answer::Refused(refusal);
        match request {
            Request::Lock { id, lock, mode, start, end, wait } => {
                if start >= end {
                    say(id, refuse(Refusal::EmptyRange));
                } else if self.find(client.0, id).is_some() {
                    say(id, refuse(Refusal::IdInUse));
                } else {
                    self.arrivals += 1;
                    let (arrival, client) = (self.arrivals, client.0);
                    let entry =
                        Entry { client, id, lock, mode, start, end, held: false, upgrading: false, arrival };
                    if wait || !self.list.iter().any(|other| entry.waits_for(other)) {
                        self.list.push(entry);
                    } else {
                        say(id, Answer::Busy);
                    }
                }
            }
            Request::Permits { id, lock, weight, limit, wait } => {
                if weight == 0 || weight > limit {
                    say(id, refuse(Refusal::NotThatMany));
                } else if self.find(client.0, id).is_some() {
                    say(id, refuse(Refusal::IdInUse));
                } else if self.list.iter().any(|other| other.lock == lock && other.end != limit + 1) {
                    say(id, refuse(Refusal::OtherLimit));
                } else {
                    self.arrivals += 1;
                    let (start, end, arrival, client) = (weight, limit + 1, self.arrivals, client.0);
                    let (mode, held, upgrading) = (Shared, false, false);
                    let entry = Entry { client, id, lock, mode, start, end, held, upgrading, arrival };
                    if wait || !Self::has_too_few(&self.list, &entry) {
                        self.list.push(entry);
                    } else {
                        say(id, Answer::Busy);
                    }
                }
            }
            Request::Unlock { id } => match self.find(client.0, id) {
                None => say(id, refuse(Refusal::NotHeld)),
                Some(entry) if !entry.held => say(id, refuse(Refusal::StillWaiting)),
                Some(_) => self.list.retain(|entry| (entry.client, entry.id) != (client.0, id)),
            },
            Request::UnlockPart { id, start, end, rest } => {
                let taken = self.find(client.0, rest).is_some();
                match self.find(client.0, id) {
                    None => say(id, refuse(Refusal::NotHeld)),
                    Some(entry) if !entry.held || entry.upgrading => say(id, refuse(Refusal::StillWaiting)),
                    Some(entry) if entry.lock == GPUS => say(id, refuse(Refusal::IsPermits)),
                    Some(entry)
                        if start > end || start == end && !(entry.start < start && end < entry.end) =>
                    {
                        say(id, refuse(Refusal::EmptyRange));
                    }
                    Some(entry) if start < entry.start || entry.end < end => {
                        say(id, refuse(Refusal::NotInside));
                    }
                    Some(entry) => {
                        let whole = *entry;
                        if whole.start < start && end < whole.end && taken {
                            say(id, refuse(Refusal::IdInUse));
                        } else {
                            self.list.retain(|entry| *entry != whole);
                            let pieces = [(whole.start, start), (end, whole.end)];
                            let pieces = pieces.into_iter().filter(|piece| piece.0 < piece.1);
                            for ((start, end), id) in pieces.zip([id, rest]) {
                                self.list.push(Entry { start, end, id, ..whole });
                            }
                        }
                    }
                }
            }
            Request::Upgrade { id, wait } => match self.find(client.0, id).copied() {
                None => say(id, refuse(Refusal::NotHeld)),
                Some(entry) if !entry.held || entry.upgrading => say(id, refuse(Refusal::StillWaiting)),
                Some(entry) if entry.lock == GPUS => say(id, refuse(Refusal::IsPermits)),
                Some(entry) if entry.mode == Exclusive => say(id, refuse(Refusal::SameMode)),
                Some(entry) => {
                    let others = || {
                        self.list.iter().filter(|other| **other != entry && other.held && other.meets(&entry))
                    };
                    if others().any(|other| other.upgrading) {
                        say(id, refuse(Refusal::UpgradeConflict));
                    } else if others().next().is_some() && !wait {
                        say(id, Answer::Busy);
                    } else {
                        self.find(client.0, id).expect("just found").upgrading = true;
                    }
                }
            },
            Request::Downgrade { id } => {
                self.tokens += 1;
                let token = self.tokens;
                match self.find(client.0, id) {
                    Some(entry) if entry.held && (entry.mode == Exclusive || entry.upgrading) => {
                        (entry.mode, entry.upgrading, entry.arrival) = (Shared, false, token);
                        say(id, Answer::Downgraded { token });
                    }
                    other => {
                        let refusal = match other {
                            None => Refusal::NotHeld,
                            Some(entry) if !entry.held => Refusal::StillWaiting,
                            Some(_) => Refusal::SameMode,
                        };
                        say(id, refuse(refusal));
                        self.tokens -= 1;
                    }
                }
            }
            Request::Cancel { id } => {
                self.list.retain(|entry| (entry.client, entry.id) != (client.0, id));
                self.settle(&mut replies);
                replies.push(Reply { client, id, answer: Answer::Cancelled });
            }
            Request::Raise { token } => self.tokens = self.tokens.max(token),
        }
        self.settle(&mut replies);
        replies
    }

    fn depart(&mut self, client: ClientId) -> Vec<Reply> {
        self.list.retain(|entry| entry.client != client.0);
        let mut replies = Vec::new();
        self.settle(&mut replies);
        replies
    }
}

fn random_request(random: &mut SplitMix, units: u64) -> Request {
    let id = random.below(4) as u32;
    let start = random.below(units);
    let end = start + random.below(1 + units / 2);
    let wait = random.below(4) > 0;
    let lock = if random.below(3) == 0 { NAMES } else { random.below(2) };
    let mode = if random.below(2) == 0 { Exclusive } else { Shared };
    match random.below(20) {
        0..=6 => Request::Lock { id, lock, mode, start, end, wait },
        7..=9 => Request::Unlock { id },
        10 => Request::UnlockPart { id, start, end, rest: random.below(4) as u32 },
        11 | 12 => Request::Upgrade { id, wait },
        13 => Request::Downgrade { id },
        14 => Request::Raise { token: random.below(100) },
        15..=18 => {
            let (weight, limit) = (random.below(4), 3 + random.below(9) / 8);
            Request::Permits { id, lock: GPUS, weight, limit, wait }
        }
        _ => Request::Cancel { id },
    }
}

/// Deeper trees with few ranges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Narrow;

impl Rules for Narrow {
    type Trees = Wide<4, 4>;
}

fn agrees_with_the_definition<R: Rules>(seed: u64, steps: u32, clients: u64, units: u64) {
    let mut random = SplitMix::new(seed);
    let mut combiner: Core<R> = Core::new(Limits::default());
    let mut naive = Naive::default();
    for step in 0..steps {
        let client = ClientId(random.below(clients) as u32);
        let mut replies = Vec::new();
        let (what, expected) = if random.below(60) == 0 {
            combiner.depart(client, &mut replies);
            ("departs".to_owned(), naive.depart(client))
        } else {
            let request = random_request(&mut random, units);
            combiner.handle(client, request, &mut replies);
            (format!("{request:?}"), naive.handle(client, request))
        };
        assert_eq!(replies, expected, "seed {seed} step {step}: {client:?} {what}");
        assert_eq!(combiner.len(), naive.list.len());
    }
    for client in 0..clients as u32 {
        combiner.depart(ClientId(client), &mut Vec::new());
    }
    assert!(combiner.is_empty() && combiner.by_lock.is_empty() && combiner.permits.is_empty());
    assert!(combiner.locks.iter().all(|(_, writers)| *writers == 0));
}

#[test]
fn it_answers_as_its_definition_does() {
    for seed in 0..200 * more() {
        let (clients, units) = (2 + seed % 5, 2 + seed % 7);
        match seed % 2 {
            0 => agrees_with_the_definition::<Shipped>(seed, 1_000, clients, units),
            _ => agrees_with_the_definition::<Narrow>(seed, 1_000, clients, units),
        }
    }
}

#[test]
fn with_many_ranges_it_answers_as_its_definition_does() {
    for seed in 0..20 * more() {
        agrees_with_the_definition::<Shipped>(seed, 1_000, 40, 1 << (8 + seed % 4));
    }
}

/// What waits is served in batches, with hundreds of ranges held.
fn batches_are_answered_as_one_after_the_other<R: Rules>() {
    for seed in 0..8 * more() {
        let mut random = SplitMix::new(seed);
        let (mut one_by_one, mut batched): (Core<R>, Core<R>) =
            (Core::new(Limits::default()), Core::new(Limits::default()));
        let units = 1 << (6 + seed % 12);
        for step in 0..100 {
            let batch: Vec<_> = (0..random.below(80))
                .map(|_| (ClientId(random.below(200) as u32), random_request(&mut random, units)))
                .collect();
            let (mut expected, mut replies) = (Vec::new(), Vec::new());
            for (client, request) in &batch {
                one_by_one.handle(*client, *request, &mut expected);
            }
            batched.serve(&batch, &mut replies);
            assert_eq!(replies, expected, "seed {seed} step {step}");
        }
        assert_eq!(one_by_one, batched);
        assert!(batched.len() > 1 << 8, "hundreds of ranges are held");
    }
}

#[test]
fn a_batch_is_answered_as_one_after_the_other() {
    batches_are_answered_as_one_after_the_other::<Shipped>();
    // Batches of a narrow tree are looked up together already; passes below are of a wide one that is large enough.
    const { assert!(<<Narrow as Rules>::Trees as IntervalTrees>::MANY < 1 << 8) };
    batches_are_answered_as_one_after_the_other::<Narrow>();
}

/// Ranges that come and go between `held` others, served one by one, as a batch and as two.
fn passes_are_alike(seed: u64, held: u64) {
    let mut random = SplitMix::new(seed);
    let mut one_by_one: Core = Core::new(Limits::default());
    // Half of them far apart, half of them side by side.
    for at in 0..held {
        let start = if at % 2 == 0 { at << 20 } else { at * 4 };
        let (client, id) = (ClientId(1_000 + (at / 64) as u32), (at % 64) as u32);
        let (mode, wait) = (Mode::Shared, true);
        one_by_one.handle(
            client,
            Request::Lock { id, lock: 0, mode, start, end: start + 3, wait },
            &mut Vec::new(),
        );
    }
    let (mut batched, mut divided) = (one_by_one.clone(), one_by_one.clone());
    for step in 0..100 {
        let mut batch = Vec::new();
        for _ in 0..random.below(80) {
            let request = match random_request(&mut random, held) {
                Request::Lock { id, lock, mode, start, end, wait } => {
                    let from = if random.below(2) == 0 { start << 20 } else { start * 4 };
                    Request::Lock { id, lock, mode, start: from, end: from + (end - start).min(64), wait }
                }
                other => other,
            };
            batch.push((ClientId(random.below(200) as u32), request));
        }
        let mut replies = [const { Vec::new() }; 3];
        for (client, request) in &batch {
            one_by_one.handle(*client, *request, &mut replies[0]);
        }
        batched.serve(&batch, &mut replies[1]);
        let (first, second) = batch.split_at((random.below(80) as usize).min(batch.len()));
        divided.serve(first, &mut replies[2]);
        divided.serve(second, &mut replies[2]);
        assert!(replies[0] == replies[1] && replies[0] == replies[2], "seed {seed} step {step}");
    }
    assert_eq!(one_by_one, batched);
    assert_eq!(one_by_one, divided);
}

#[test]
fn batches_between_many_others_are_answered_as_one_after_the_other() {
    for seed in 0..4 * more() {
        passes_are_alike(seed, 300);
        // So many that they are looked up together.
        passes_are_alike(seed, 2 * Wide::<8, 16>::MANY as u64);
    }
}

/// A combiner with a short way to speak to it.
struct TestCombiner(Core, Vec<Reply>);

impl TestCombiner {
    fn new() -> Self {
        Self(Core::new(Limits::default()), Vec::new())
    }

    fn lock(&mut self, client: u32, mode: Mode, start: u64, end: u64) -> Vec<(u32, Answer)> {
        self.ask(client, Request::Lock { id: 0, lock: 0, mode, start, end, wait: true })
    }

    fn ask(&mut self, client: u32, request: Request) -> Vec<(u32, Answer)> {
        self.1.clear();
        self.0.handle(ClientId(client), request, &mut self.1);
        self.1.iter().map(|reply| (reply.client.0, reply.answer)).collect()
    }
}

const fn granted(client: u32, token: u64) -> (u32, Answer) {
    (client, Answer::Granted { token })
}

#[test]
fn a_reader_does_not_overtake_a_writer_that_waits() {
    let mut told = TestCombiner::new();
    assert_eq!(told.lock(1, Shared, 0, 10), [granted(1, 1)]);
    assert_eq!(told.lock(2, Exclusive, 5, 15), []);
    assert_eq!(told.lock(3, Shared, 8, 9), []);
    // No common unit with the writer: no reason to wait.
    assert_eq!(told.lock(4, Shared, 0, 5), [granted(4, 2)]);
    assert_eq!(told.ask(1, Request::Unlock { id: 0 }), [granted(2, 3)]);
    assert_eq!(told.ask(2, Request::Unlock { id: 0 }), [granted(3, 4)]);
}

#[test]
fn who_cancels_in_the_queue_lets_those_behind_go_ahead() {
    let mut told = TestCombiner::new();
    told.lock(1, Shared, 0, 10);
    told.lock(2, Exclusive, 0, 10);
    told.lock(3, Shared, 0, 10);
    assert_eq!(told.ask(2, Request::Cancel { id: 0 }), [granted(3, 2), (2, Answer::Cancelled)]);
}

#[test]
fn a_cancel_that_crosses_its_grant_gives_the_lock_back() {
    let mut told = TestCombiner::new();
    told.lock(1, Exclusive, 0, 10);
    told.lock(2, Exclusive, 0, 10);
    assert_eq!(told.ask(1, Request::Cancel { id: 0 }), [granted(2, 2), (1, Answer::Cancelled)]);
}

#[test]
fn an_upgrade_waits_for_other_readers_and_lets_no_writer_in_between() {
    let mut told = TestCombiner::new();
    told.lock(1, Shared, 0, 10);
    told.lock(2, Shared, 5, 15);
    assert_eq!(told.lock(3, Exclusive, 0, 20), []);
    assert_eq!(told.ask(1, Request::Upgrade { id: 0, wait: true }), []);
    // The writer was in the queue before the upgrade was asked for, and comes after it all the same.
    assert_eq!(told.ask(2, Request::Unlock { id: 0 }), [granted(1, 3)]);
    assert_eq!(told.ask(1, Request::Unlock { id: 0 }), [granted(3, 4)]);
}

#[test]
fn of_two_upgrades_that_would_wait_for_each_other_the_second_is_refused_and_goes_on_reading() {
    let mut told = TestCombiner::new();
    told.lock(1, Shared, 0, 10);
    told.lock(2, Shared, 5, 15);
    assert_eq!(told.ask(1, Request::Upgrade { id: 0, wait: true }), []);
    let refused = Answer::Refused(Refusal::UpgradeConflict);
    assert_eq!(told.ask(2, Request::Upgrade { id: 0, wait: true }), [(2, refused)]);
    assert_eq!(told.ask(2, Request::Unlock { id: 0 }), [granted(1, 3)]);
}

#[test]
fn a_downgrade_lets_waiting_readers_in_but_not_past_a_writer() {
    let mut told = TestCombiner::new();
    told.lock(1, Exclusive, 0, 10);
    told.lock(2, Shared, 0, 5);
    told.lock(3, Exclusive, 4, 10);
    told.lock(4, Shared, 5, 6);
    let downgraded = (1, Answer::Downgraded { token: 2 });
    assert_eq!(told.ask(1, Request::Downgrade { id: 0 }), [downgraded, granted(2, 3)]);
}

#[test]
fn giving_back_the_middle_keeps_both_ends() {
    let mut told = TestCombiner::new();
    told.lock(1, Exclusive, 0, 30);
    told.lock(2, Exclusive, 10, 20);
    told.lock(3, Exclusive, 15, 25);
    told.lock(4, Exclusive, 5, 26);
    assert_eq!(told.ask(1, Request::UnlockPart { id: 0, start: 10, end: 20, rest: 7 }), [granted(2, 2)]);
    assert_eq!(told.ask(2, Request::Unlock { id: 0 }), []);
    assert_eq!(told.ask(1, Request::Unlock { id: 7 }), [granted(3, 3)]);
    assert_eq!(told.ask(3, Request::Unlock { id: 0 }), []);
    assert_eq!(told.ask(1, Request::Unlock { id: 0 }), [granted(4, 4)]);
}

#[test]
fn what_is_passed_on_to_another_client_stands_where_it_stood() {
    let mut told = TestCombiner::new();
    told.lock(1, Exclusive, 0, 10);
    told.lock(2, Exclusive, 0, 10);
    told.lock(3, Exclusive, 5, 6);
    let of = |client| (ClientId(client), 0);
    assert_eq!(told.0.pass_on(of(2), of(3)), Err(Refusal::IdInUse));
    assert_eq!(told.0.pass_on(of(4), of(5)), Err(Refusal::NotHeld));
    assert_eq!(told.0.pass_on(of(1), (ClientId(4), 7)), Ok(()));
    assert_eq!(told.0.pass_on(of(2), of(5)), Ok(()));
    assert_eq!((told.0.requests_of(ClientId(1)), told.0.requests_of(ClientId(2))), (0, 0));
    assert_eq!(told.ask(4, Request::Unlock { id: 7 }), [granted(5, 2)], "before the third");
    assert_eq!(told.ask(5, Request::Unlock { id: 0 }), [granted(3, 3)]);
}

#[test]
fn a_client_that_departs_releases_all_it_held_in_one_step() {
    let mut told = TestCombiner::new();
    told.lock(1, Exclusive, 0, 10);
    told.ask(1, Request::Lock { id: 1, lock: 0, mode: Exclusive, start: 20, end: 30, wait: true });
    told.ask(1, Request::Lock { id: 2, lock: 0, mode: Exclusive, start: 5, end: 25, wait: true });
    told.lock(2, Shared, 8, 9);
    told.lock(3, Shared, 22, 23);
    told.1.clear();
    told.0.depart(ClientId(1), &mut told.1);
    assert_eq!(told.1.iter().map(|reply| reply.client.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(told.0.requests_of(ClientId(1)), 0);
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut told = TestCombiner::new();
    told.lock(1, Exclusive, 0, 10);
    let before = told.0.clone();
    let lock = |id, start, end| Request::Lock { id, lock: 0, mode: Shared, start, end, wait: true };
    for (request, refusal) in [
        (lock(1, 5, 5), Refusal::EmptyRange),
        (lock(1, 6, 5), Refusal::EmptyRange),
        (lock(0, 50, 60), Refusal::IdInUse),
        (lock(u32::MAX, 50, 60), Refusal::TooLarge),
        (Request::Unlock { id: 9 }, Refusal::NotHeld),
        (Request::UnlockPart { id: 0, start: 5, end: 11, rest: 1 }, Refusal::NotInside),
        (Request::UnlockPart { id: 0, start: 10, end: 10, rest: 1 }, Refusal::EmptyRange),
        (Request::UnlockPart { id: 0, start: 6, end: 5, rest: 1 }, Refusal::EmptyRange),
        (Request::UnlockPart { id: 0, start: 5, end: 6, rest: 0 }, Refusal::IdInUse),
        (Request::Upgrade { id: 0, wait: true }, Refusal::SameMode),
    ] {
        assert_eq!(told.ask(1, request), [(1, Answer::Refused(refusal))], "{request:?}");
    }
    assert_eq!(told.ask(u32::MAX, lock(0, 50, 60)), [(u32::MAX, Answer::Refused(Refusal::TooLarge))]);
    // A foreign release.
    assert_eq!(told.ask(2, Request::Unlock { id: 0 }), [(2, Answer::Refused(Refusal::NotHeld))]);
    assert_eq!(told.0, before);
}

#[test]
fn states_that_answer_alike_are_equal_however_they_came_about() {
    let (mut one, mut other) = (TestCombiner::new(), TestCombiner::new());
    one.lock(1, Exclusive, 0, 10);
    one.lock(2, Exclusive, 20, 30);
    other.lock(1, Exclusive, 0, 10);
    // Another slot, and another number of arrival.
    other.ask(3, Request::Lock { id: 0, lock: 0, mode: Shared, start: 5, end: 6, wait: false });
    other.lock(3, Exclusive, 5, 6);
    other.lock(2, Exclusive, 20, 30);
    other.ask(3, Request::Cancel { id: 0 });
    assert_eq!(one.0, other.0);
    one.lock(4, Shared, 0, 1);
    assert_ne!(one.0, other.0);
}
