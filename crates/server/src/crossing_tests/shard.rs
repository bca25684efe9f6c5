//! The same with a shard of a cluster, which goes from server to server: with its table, or without.

use super::{CLIENTS, Held, RANGES, Seen, WHOLE, World};
use crate::dispatcher::{Admission, Dispatcher};
use crate::durable::Durable;
use crate::lock_table::LockTable;
use crate::lock_table::handed::HandedTable;
use crate::lock_table::sharded::{Gate, LeaseClock, Sharded};
use lockwright::LockName;
use lockwright::internal::{SetStage, Stage};
use lockwright::wire::{Kind, Request, RequestId, Units};
use lockwright_cluster::keys::{
    BrokenGrants, Keys, Owner, Registered, ServerId, SessionKey, ShardState, parse_broken,
};
use lockwright_cluster::shard::Taker;
use lockwright_cluster::txn::{Op, Txn};
use lockwright_fabric::observe::Mode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What etcd has of the shard.
#[derive(Debug, Default)]
pub(super) struct Registry {
    values: BTreeMap<String, String>,
    epoch: u64,
    tokens: u64,
}

const ME: ServerId = 1;
const PROOF: u128 = 77;

fn keys() -> Keys {
    Keys::new("test")
}

impl Registry {
    fn apply(&mut self, txn: &Txn) {
        for op in &txn.then {
            match op {
                Op::Put(key, value) | Op::PutLeased(key, value) => {
                    self.values.insert(key.clone(), value.clone());
                }
                Op::Delete(key) => drop(self.values.remove(key)),
                Op::DeletePrefix(prefix) => self.values.retain(|key, _| !key.starts_with(prefix)),
            }
        }
    }

    fn below<T>(&self, prefix: &str, parse: impl Fn(&str, &str) -> Option<T>) -> Vec<T> {
        let of = self.values.iter().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value)));
        of.map(|(key, value)| parse(key, value).expect("written so")).collect()
    }

    fn sessions(&self) -> Vec<Registered> {
        self.below(&keys().sessions(0), Registered::parse)
    }

    fn broken(&self) -> BrokenGrants {
        self.below::<(u64, SessionKey)>(&keys().brokens(0), parse_broken).into_iter().collect()
    }
}

impl World {
    /// A server takes the shard, with the table of the last owner or without.
    pub(super) fn take_shard(&mut self, handed: Option<&HandedTable>) {
        let registry = self.registry.as_mut().expect("it is a shard");
        let taker = Taker {
            keys: keys(),
            server: ME,
            made: 1,
            block: 1 << 20,
            first_token: 1,
            ttl: Duration::ZERO,
            rules: lockwright_cluster::Rules::default(),
        };
        let owner = handed.map(|table| table.of.owner).or(Some(Owner { epoch: registry.epoch, server: 9 }));
        let seen = ShardState { owner, owner_changed: 1, tokens_below: registry.tokens, tokens_changed: 1 };
        let (taking, _) = match handed {
            Some(_) => taker.adopt(0, &seen).expect("it is its own"),
            None => taker.take(0, &seen),
        };
        let clock = Arc::<LeaseClock>::default();
        clock.set(clock.now(), Some(Duration::from_secs(3600)));
        let shard = taking.taken(2, registry.sessions(), registry.broken(), clock.now(), Duration::ZERO);
        (registry.epoch, registry.tokens) = (shard.epoch(), shard.tokens_below());
        let recovering = shard.is_recovering();
        let tokens = (shard.first_token(), shard.tokens_below());
        let durable = Durable::of_shard(5, shard.epoch(), tokens, Duration::ZERO);
        self.epoch = shard.epoch();
        let mut table = LockTable::new(durable, recovering, vec![], vec![]);
        let gate = Arc::new(Gate { lease: clock, ..Gate::default() });
        table.map = Some(Arc::default());
        table.sharded = Some(Box::new(Sharded::new(shard, gate, Arc::default())));
        if let Some(handed) = handed.filter(|_| recovering) {
            table.inherit(handed).unwrap_or_else(|why| panic!("{why}: {handed:?} {:?}", table.sharded));
            assert!(!table.is_recovering());
            self.seen.moves += 1;
        }
        self.dispatcher = Some(Dispatcher::new(table, Admission::Secret));
    }

    /// etcd has what is to be there first.
    pub(super) fn write(&mut self) {
        let (Some(dispatcher), Some(registry)) = (&self.dispatcher, &mut self.registry) else { return };
        loop {
            let mut table = dispatcher.lock_table();
            let work = table.work(8);
            if work.is_empty() {
                return;
            }
            table.begin_batch(Instant::now(), 0);
            for (work, txn) in work {
                registry.apply(&txn);
                table.written(work);
            }
            table.decide();
        }
    }

    /// Those who have not come are waited for no longer.
    pub(super) fn end_wait(&mut self) {
        let Some(registry) = &mut self.registry else { return };
        let mut table = self.dispatcher.as_ref().expect("there is one").lock_table();
        if let Some(txn) = table.end_wait() {
            registry.apply(&txn);
            table.wait_ended();
        }
    }

    /// The shard goes to another server. One time in four its table is lost on the way.
    pub(super) fn hand_over(&mut self) {
        let arrives = self.dice.below(4) > 0;
        self.hand_over_with(arrives);
    }

    /// The same, and its table arrives or does not.
    fn hand_over_with(&mut self, arrives: bool) {
        let mut table = self.dispatcher().lock_table();
        let idle = table.idle_sessions();
        let shard = &mut table.sharded.as_mut().expect("it is one").shard;
        let txn = shard.freeze().then(|| shard.hand_over(ME, &idle, PROOF));
        let handed = txn.map(|txn| (txn, table.hand_over(ME, PROOF, Instant::now())));
        drop(table);
        let mut said = None;
        if let Some((txn, table)) = handed {
            self.registry.as_mut().expect("it is a shard").apply(&txn);
            let text = table.expect("nothing changes any more").text();
            said = HandedTable::parse(&text);
            assert_eq!(said.as_ref().map(HandedTable::text), Some(text));
        }
        self.dispatcher = None;
        (0..CLIENTS).for_each(|at| self.end_session(at));
        self.take_shard(said.as_ref().filter(|_| arrives));
        self.seen.restarts += 1;
    }
}

#[test]
fn whatever_crosses_on_its_way_a_shard_that_is_handed_over_gives_nobody_what_another_one_has() {
    let mut seen = Seen::default();
    for seed in 0..200 {
        let mut world = World::of(seed, Some(Registry::default()));
        (0..CLIENTS).for_each(|at| world.begin_session(at));
        for _ in 0..1_500 {
            world.step();
        }
        let some = world.finish();
        seen.moves += some.moves;
        seen.restarts += some.restarts;
        seen.claims += some.claims;
        seen.parts += some.parts;
        seen.upgrades += some.upgrades;
    }
    println!("{seen:?}");
    let all = [seen.moves, seen.restarts - seen.moves, seen.claims, seen.parts, seen.upgrades];
    assert!(all.iter().all(|times| *times > 100), "{seen:?}");
}

/// A shard in which client 0 holds the keyed lock alone; 1 and 2 wait for it, in that order.
fn held_and_awaited(seed: u64) -> (World, Held, [RequestId; 2]) {
    let mut world = World::of(seed, Some(Registry::default()));
    (0..CLIENTS).for_each(|at| world.begin_session(at));
    let held = world.take(0, ALONE);
    let waiting = [1, 2].map(|at| world.ask(at, ALONE));
    (world, held, waiting)
}

const ALONE: Units = Units { mode: Mode::Exclusive, ..WHOLE };

impl World {
    /// A client asks for a lock that it does not get at once.
    fn ask(&mut self, at: usize, units: Units) -> RequestId {
        let client = &mut self.clients[at];
        let id = client.table.open(Some(units), Stage::Wanted { wait: true });
        client.say(&Request::Lock { id, units, wait: true });
        client.wanted.push((id, units));
        self.exchange(at);
        id
    }

    fn holds(&self, at: usize, id: RequestId) -> bool {
        self.clients[at].held.iter().any(|held| held.id == id)
    }
}

#[test]
fn waiters_of_a_shard_that_is_handed_over_keep_their_places_whoever_comes_first() {
    let (mut world, held, [first, second]) = held_and_awaited(3);
    world.hand_over_with(true);
    // One that is new, and the last of those who waited, come before the others.
    world.begin_session(3);
    let newcomer = world.ask(3, ALONE);
    world.begin_session(2);
    world.exchange(2);
    world.begin_session(0);
    world.exchange(0);
    assert_eq!(world.clients[0].table.token(held.id), Some(held.token), "with its token");
    world.clients[0].unlock(held.id);
    world.exchange(0);
    (2..4).for_each(|at| world.exchange(at));
    assert!(!world.holds(2, second) && !world.holds(3, newcomer), "the first has it, and does not know yet");
    world.begin_session(1);
    world.exchange(1);
    assert!(world.holds(1, first));
    for (at, id, next, theirs) in [(1, first, 2, second), (2, second, 3, newcomer)] {
        world.clients[at].unlock(id);
        world.exchange(at);
        world.exchange(next);
        assert!(world.holds(next, theirs));
    }
    world.finish();
}

#[test]
fn a_silent_client_keeps_its_own_locks_until_its_time_is_over_and_no_others() {
    let (mut world, held, [first, _]) = held_and_awaited(4);
    world.hand_over_with(true);
    assert!(!world.dispatcher().lock_table().is_recovering());
    world.begin_session(3);
    let free = Units { handle: RANGES, mode: Mode::Exclusive, start: 0, end: 9, thread: None };
    world.take(3, free);
    world.begin_session(1);
    world.exchange(1);
    assert!(!world.holds(1, first), "its holder has not come");
    world.end_wait();
    world.exchange(1);
    assert!(world.holds(1, first), "it was waited for long enough");
    // It comes at last.
    world.begin_session(0);
    world.exchange(0);
    assert_eq!(world.clients[0].table.token(held.id), None, "and is told that it has lost it");
    world.finish();
}

#[test]
fn a_client_that_lets_go_while_the_shard_is_handed_over_has_let_go() {
    let (mut world, held, [first, _]) = held_and_awaited(5);
    // What it says is lost with the session.
    world.clients[0].unlock(held.id);
    world.hand_over_with(true);
    world.begin_session(1);
    world.exchange(1);
    assert!(!world.holds(1, first));
    world.begin_session(0);
    world.exchange(0);
    world.exchange(1);
    assert!(world.holds(1, first), "its next session does not claim it");
    world.finish();
}

#[test]
fn parts_of_a_range_that_was_cut_on_the_way_are_claimed_one_by_one() {
    let mut world = World::of(6, Some(Registry::default()));
    (0..2).for_each(|at| world.begin_session(at));
    let units = |start, end| Units { handle: RANGES, mode: Mode::Exclusive, start, end, thread: None };
    let held = world.take(0, units(0, 9));
    let wanted = [units(0, 3), units(3, 6), units(6, 9)].map(|units| world.ask(1, units));
    // The middle is given back, and the server does not hear it.
    let (_, rest) = world.clients[0].table.cut(held.id, 3, 6).expect("it is held");
    let rest = rest.expect("two pieces are left");
    world.clients[0].held[0].units = units(0, 3);
    world.clients[0].held.push(Held { id: rest, units: units(6, 9), ..held });
    world.hand_over_with(true);
    (0..2).for_each(|at| world.begin_session(at));
    (0..2).for_each(|at| world.exchange(at));
    assert_eq!(world.clients[0].table.token(rest), Some(held.token));
    assert_eq!(wanted.map(|id| world.holds(1, id)), [false, true, false]);
    world.finish();
}

#[test]
fn a_set_that_waits_goes_on_with_what_it_has_and_permits_are_counted_on() {
    let mut world = World::of(7, Some(Registry::default()));
    for client in &mut world.clients {
        client.table.name(Kind::Semaphores, &LockName::new("gpu").unwrap());
    }
    (0..CLIENTS).for_each(|at| world.begin_session(at));
    // Two of three permits are had; and the second member of a set is held by another.
    let permits = |count| Units { handle: 2, mode: Mode::Shared, start: count, end: 4, thread: None };
    let two = world.take(0, permits(2));
    let more = world.ask(1, permits(2));
    let held = world.take(2, ALONE);
    let range = Units { handle: RANGES, mode: Mode::Exclusive, start: 0, end: 9, thread: None };
    let client = &mut world.clients[3];
    let set = client.table.lock_set(&[range, ALONE]);
    let members = set.iter().copied().zip([range, ALONE]).collect();
    client.say(&Request::LockSet { members });
    world.exchange(3);
    world.hand_over_with(true);
    // The set comes last: others wait behind it for what it has.
    (0..3).for_each(|at| world.begin_session(at));
    (0..3).for_each(|at| world.exchange(at));
    let behind = world.ask(1, range);
    assert!(!world.holds(1, more) && !world.holds(1, behind));
    world.begin_session(3);
    world.exchange(3);
    world.clients[2].unlock(held.id);
    [2, 3, 1].into_iter().for_each(|at| world.exchange(at));
    assert!(matches!(world.clients[3].table.set_stage(&set), SetStage::Granted));
    assert!(!world.holds(1, behind), "the set has it");
    world.clients[0].unlock(two.id);
    [0, 1].into_iter().for_each(|at| world.exchange(at));
    assert!(world.holds(1, more), "now there are enough");
    for id in set {
        world.clients[3].unlock(id);
    }
    world.finish();
}
