//! What one space looks like at this moment: the locks that matter most, who holds and waits for them, who waits for whom. Of a
//! cluster, in the shards that this server serves.
//!
//! Bounded, however many locks there are: one walk over the names keeps the busiest, one over the requests finds who they are. Both
//! let go of the table every [`CHUNK`] steps, since clients wait for it: what is shown did not hold all at one moment.

use super::{View, hex};
use crate::directory::SpaceNumber;
use crate::dispatcher::Dispatcher;
use crate::inspection::{entry, upgrade};
use crate::lock_table::LockTable;
use crate::lock_table::history::{GrantEnd, PastGrant};
use lockwright::inspect::{Entry, EntryState, Wait, waits_among};
use lockwright::wire::Kind;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::time::{Duration, Instant};

/// Locks that are shown, processes of one lock, and waits that are drawn.
const LOCKS: usize = 100;
const ENTRIES: usize = 1000;
const WAITS: usize = 200;
/// Waiters of one lock, and of each of them who is in its way, that are looked at for that.
const OF_LOCK: usize = 64;

/// Names or requests that are looked at before others get the table: less than a millisecond.
const CHUNK: usize = 1024;

/// What a page asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Question {
    pub(super) space: Vec<u8>,
    /// Part of the names to look for.
    pub(super) text: Vec<u8>,
    /// A lock to be shown with all its processes.
    pub(super) lock: Option<Vec<u8>>,
}

impl Question {
    pub(super) fn answer(&self, view: &dyn View) -> Value {
        let tables = view.tables();
        let mut seen = Seen::default();
        let mut names = Names::new(&self.text, self.lock.as_deref());
        for (shard, dispatcher) in &tables {
            seen.count(&dispatcher.lock_table());
            names.look(*shard, dispatcher, &self.space);
        }
        let Busiest { locks, found } = names.busiest();
        for (shard, dispatcher) in &tables {
            let ids = locks.iter().filter(|lock| lock.shard == *shard).map(|lock| lock.id);
            seen.look(*shard, dispatcher, ids.collect(), self.lock.as_deref());
        }
        // The order in which they were chosen, not that of the shards.
        let lines = locks.iter().filter_map(|lock| seen.lines.remove(&(lock.shard, lock.id)));
        let mut answer = json!({
            "names": seen.names,
            "sessions": seen.sessions,
            "held": seen.held,
            "retained": seen.retained,
            "waiting": seen.waiting,
            "grants": seen.grants,
            "waits": seen.waits,
            "waited_seconds": seen.waited.as_secs_f64(),
            "recovering": seen.recovering,
            "found": found,
            "locks": lines.collect::<Vec<_>>(),
        });
        seen.entries.sort_by_key(|entry| (entry.state, Reverse(entry.age)));
        let mut waits = waits_among(&seen.entries, OF_LOCK);
        waits.sort_by_key(|wait| !wait.deadlocked);
        answer["waits_for"] = waits.iter().take(WAITS).map(edge).collect();
        if let Some(lock) = &self.lock {
            let of_lock = seen.entries.iter().filter(|entry| entry.name.as_bytes() == lock);
            answer["entries"] = of_lock.take(ENTRIES).map(process).collect();
            answer["history"] = seen.past.into();
        }
        if let Some(cluster) = view.cluster() {
            answer["cluster"] = cluster;
        }
        answer
    }
}

/// What was found in one table after the other.
#[derive(Default)]
struct Seen {
    names: usize,
    /// In the table with most: a client has a session in every shard that its locks are in.
    sessions: u64,
    held: u64,
    retained: u64,
    waiting: u64,
    grants: u64,
    waits: u64,
    waited: Duration,
    recovering: bool,
    /// By shard and number.
    lines: BTreeMap<(u16, u64), Value>,
    entries: Vec<Entry>,
    past: Vec<Value>,
}

impl Seen {
    fn count(&mut self, table: &LockTable) {
        let (totals, counts) = (&table.totals, table.totals.counts());
        self.names += table.directory.in_use();
        self.sessions = self.sessions.max(totals.sessions);
        self.held += totals.now.holders - totals.retained;
        self.retained += totals.retained;
        self.waiting += totals.now.waiters;
        self.grants += counts.grants;
        self.waits += counts.waits;
        self.waited += counts.waited;
        self.recovering |= table.is_recovering();
    }

    /// Looks at these locks of a table.
    fn look(&mut self, shard: u16, dispatcher: &Dispatcher, mut ids: Vec<u64>, chosen: Option<&[u8]>) {
        if ids.is_empty() {
            return;
        }
        let mut table = dispatcher.lock_table();
        let mut requests = Requests::of(&ids);
        while requests.step(&table) {
            drop(table);
            table = dispatcher.lock_table();
        }
        ids.retain(|id| table.directory.find(*id).is_some());
        self.lines.extend(ids.iter().map(|id| ((shard, *id), line(&table, shard, *id))));
        self.past.extend(chosen.into_iter().flat_map(|lock| past(&table, &ids, lock)));
        // The rest needs no lock, and the server has other things to do.
        drop(table);
        self.entries.extend(requests.entries);
    }
}

struct Busiest {
    locks: Vec<Found>,
    /// How many fit what was asked for, those that are not shown too.
    found: u64,
}

/// A lock that may be shown. In order: those most waited for, then those held, then those used most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    waiters: u64,
    holders: u64,
    grants: u64,
    shard: u16,
    id: u64,
}

/// A walk over the names of a space, for the locks to be shown.
struct Names<'a> {
    text: &'a [u8],
    chosen: Option<&'a [u8]>,
    heap: BinaryHeap<Reverse<Found>>,
    found: u64,
    extra: Vec<Found>,
    /// Where to go on.
    next: u64,
}

impl<'a> Names<'a> {
    fn new(text: &'a [u8], chosen: Option<&'a [u8]>) -> Self {
        Self { text, chosen, heap: BinaryHeap::new(), found: 0, extra: Vec::new(), next: 0 }
    }

    /// Looks at all names of a space in a table.
    fn look(&mut self, shard: u16, dispatcher: &Dispatcher, space: &[u8]) {
        let mut table = dispatcher.lock_table();
        let Some(space) = table.directory.find_space(space) else { return };
        self.next = 0;
        while self.step(&table, shard, space) {
            drop(table);
            table = dispatcher.lock_table();
        }
    }

    /// Looks at [`CHUNK`] names. `true` if there are more.
    fn step(&mut self, table: &LockTable, shard: u16, space: SpaceNumber) -> bool {
        let (ids, next) = table.directory.some_ids(self.next, CHUNK);
        for id in ids {
            let Some(lock) = table.directory.find(*id).filter(|lock| lock.space == space) else {
                continue;
            };
            let name = lock.name.as_bytes();
            let (waiters, holders, grants) = (lock.now.waiters, lock.now.holders, lock.grants);
            let found = Found { waiters, holders, grants, shard, id: *id };
            if self.chosen == Some(name) {
                self.extra.push(found);
            }
            if !self.text.is_empty() && !name.windows(self.text.len()).any(|part| part == self.text) {
                continue;
            }
            self.found += 1;
            self.heap.push(Reverse(found));
            if self.heap.len() > LOCKS {
                self.heap.pop();
            }
        }
        self.next = next.unwrap_or(self.next);
        next.is_some()
    }

    fn busiest(mut self) -> Busiest {
        // Reversed twice: the busiest first.
        let mut locks: Vec<_> = self.heap.into_sorted_vec().into_iter().map(|Reverse(found)| found).collect();
        self.extra.retain(|extra| !locks.iter().any(|lock| (lock.shard, lock.id) == (extra.shard, extra.id)));
        locks.extend(self.extra);
        Busiest { locks, found: self.found }
    }
}

/// A walk over all requests, for those who hold these locks and wait for them.
struct Requests {
    wanted: HashSet<u64>,
    entries: Vec<Entry>,
    /// Ages are those of this moment, however long the walk takes: so they can be compared.
    now: Instant,
    /// Where to go on: session and slot.
    next: (usize, usize),
}

impl Requests {
    fn of(ids: &[u64]) -> Self {
        let wanted = ids.iter().copied().collect();
        Self { wanted, entries: Vec::new(), now: Instant::now(), next: (0, 0) }
    }

    /// Looks at [`CHUNK`] sessions and requests. `true` if there are more.
    fn step(&mut self, table: &LockTable) -> bool {
        let (now, (mut at, mut from)) = (self.now, self.next);
        let mut left = CHUNK;
        while let Some(session) = table.sessions.get(at) {
            let slots = session.as_ref().map_or(&[][..], |session| &session.slots);
            let some = slots.iter().skip(from).take(left);
            for request in some.flatten() {
                let Some(id) = request.lock.filter(|id| self.wanted.contains(id)) else { continue };
                if self.entries.len() >= LOCKS * ENTRIES {
                    return false;
                }
                let (Some(lock), Some(session)) = (table.directory.find(id), session) else { continue };
                let entry = entry(session, request, lock, now);
                self.entries.extend(upgrade(request, &entry, now));
                self.entries.push(entry);
            }
            if slots.len().saturating_sub(from) > left {
                self.next = (at, from + left);
                return true;
            }
            left -= slots.len().saturating_sub(from);
            (at, from) = (at + 1, 0);
            // An empty session takes a moment, too.
            left = left.saturating_sub(1);
            if left == 0 {
                self.next = (at, 0);
                return true;
            }
        }
        false
    }
}

fn line(table: &LockTable, shard: u16, id: u64) -> Value {
    let lock = table.directory.lock(id);
    let retained = table.kept_without_word(lock);
    json!({
        "id": format!("{shard}.{id}"),
        "lock": hex(lock.name.as_bytes()),
        "name": lock.name.to_string(),
        "ranges": lock.kind == Kind::Ranges,
        "semaphore": lock.kind == Kind::Semaphores,
        "holders": lock.now.holders - retained,
        "retained": retained,
        "waiters": lock.now.waiters,
        "grants": lock.grants,
        "contended": lock.contended,
        "waited_seconds": lock.waited.as_secs_f64(),
    })
}

fn process(entry: &Entry) -> Value {
    json!({
        "state": match entry.state {
            EntryState::Held => "held",
            EntryState::Retained => "retained",
            _ => "waiting",
        },
        "shared": entry.shared,
        "permits": entry.permits.map(|permits| [permits.held, permits.limit]),
        "range": entry.range.as_ref().map(|range| [range.start, range.end].map(|end| end.to_string())),
        // As text: JavaScript's numbers have 53 bits.
        "token": entry.token.map(|token| token.to_string()),
        "seconds": entry.age.as_secs_f64(),
        "pid": entry.pid,
        "user": entry.user,
        "host": entry.host,
        "program": entry.program,
    })
}

/// The last grants of a lock, the latest first.
fn past(table: &LockTable, ids: &[u64], name: &[u8]) -> Vec<Value> {
    let now = Instant::now();
    let Some(history) = &table.history else { return Vec::new() };
    let of_lock = ids.iter().filter(|id| table.directory.lock(**id).name.as_bytes() == name);
    let mut grants: Vec<_> = of_lock.flat_map(|id| history.of(*id)).collect();
    grants.sort_by_key(|grant| Reverse(grant.at));
    let grant = |grant: &PastGrant| {
        let mut past = process(&grant.entry);
        past["ago"] = now.saturating_duration_since(grant.at).as_secs_f64().into();
        past["end"] = match grant.end {
            GrantEnd::Unlocked => "unlocked",
            GrantEnd::TakenAway => "broken",
            GrantEnd::Lost => "its client was gone",
        }
        .into();
        past
    };
    grants.into_iter().map(grant).collect()
}

fn edge(wait: &Wait) -> Value {
    let parts: BTreeMap<_, _> =
        [("from", wait.waiter.to_string()), ("to", wait.blocker.to_string()), ("why", wait.why.clone())]
            .into();
    let mut edge = json!(parts);
    edge["deadlock"] = wait.deadlocked.into();
    edge
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::Admission;
    use crate::durable::Durable;
    use lockwright::LockName;

    fn table() -> LockTable {
        let (durable, _) = Durable::begin(None, Duration::from_secs(8)).unwrap();
        LockTable::new(durable, false, Vec::new(), Vec::new())
    }

    /// So many locks of the space `s`, used once, twice, and so on; one is waited for.
    fn with_locks(mut table: LockTable, names: impl Iterator<Item = u64>, waited_for: u64) -> LockTable {
        let space = table.directory.space(b"s").unwrap();
        for n in names {
            let name = LockName::new(format!("lock/{n}")).unwrap();
            let id = table.directory.open(space, Kind::Keyed, name).unwrap();
            table.directory.lock_mut(id).grants = n;
            table.directory.lock_mut(id).now.waiters = u64::from(n == waited_for);
        }
        table
    }

    #[test]
    fn of_many_locks_the_busiest_are_shown_and_others_found_by_a_part_of_their_names() {
        let table = with_locks(table(), 0..50_000, 7);
        let names = |seen: &Busiest| -> Vec<_> {
            seen.locks.iter().map(|lock| table.directory.lock(lock.id).name.to_string()).collect()
        };
        let space = table.directory.find_space(b"s").unwrap();
        let busiest = |text, chosen| {
            let mut names = Names::new(text, chosen);
            while names.step(&table, 0, space) {}
            names.busiest()
        };
        let all = busiest(b"", None);
        assert_eq!((all.found, all.locks.len()), (50_000, LOCKS));
        assert_eq!(names(&all)[..2], ["lock/7", "lock/49999"], "who is waited for comes first");
        let some = busiest(b"/4242", Some(b"lock/1"));
        assert_eq!(some.found, 11);
        assert!(names(&some).contains(&"lock/4242".to_owned()));
        assert_eq!(names(&some).last().unwrap(), "lock/1", "the chosen one is always there");
    }

    #[test]
    fn a_million_names_are_walked_in_short_steps_and_the_answer_stays_small() {
        const NAMES: u64 = 1_000_000;
        let table = with_locks(table(), 0..NAMES, 7);
        let space = table.directory.find_space(b"s").unwrap();
        let (mut names, mut steps) = (Names::new(b"", None), 1);
        while names.step(&table, 0, space) {
            steps += 1;
            assert!(names.heap.len() <= LOCKS);
        }
        assert_eq!(
            (names.found, steps),
            (NAMES, NAMES.div_ceil(CHUNK as u64)),
            "others get the table between"
        );
        let view = Shards(vec![(0, Dispatcher::new(table, Admission::Anyone))]);
        let ask = |text: &str| Question { space: b"s".to_vec(), text: text.into(), lock: None }.answer(&view);
        let (all, found) = (ask(""), ask("/777777"));
        assert_eq!(
            (&all["names"], &all["found"], &found["found"]),
            (&json!(NAMES), &json!(NAMES), &json!(1))
        );
        assert_eq!(all["locks"].as_array().unwrap().len(), LOCKS);
        assert!(all.to_string().len() < 100_000, "{}", all.to_string().len());
    }

    #[derive(Debug)]
    struct Shards(Vec<(u16, Dispatcher)>);

    impl View for Shards {
        fn tables(&self) -> Vec<(u16, Dispatcher)> {
            self.0.clone()
        }

        fn cluster(&self) -> Option<Value> {
            Some(json!({ "name": "prod" }))
        }

        fn metrics(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn of_several_shards_the_busiest_of_all_are_shown_and_counts_are_sums() {
        let shard = |number: u16, waited_for| {
            let names = (0..1000).filter(|n| n % 2 == u64::from(number));
            (number, Dispatcher::new(with_locks(table(), names, waited_for), Admission::Anyone))
        };
        let shards = Shards(vec![shard(0, 8), shard(1, 1)]);
        let ask = |text: &[u8], lock: Option<&[u8]>| {
            let (space, text, lock) = (b"s".to_vec(), text.to_vec(), lock.map(<[u8]>::to_vec));
            Question { space, text, lock }.answer(&shards)
        };
        let all = ask(b"", None);
        assert_eq!((&all["names"], &all["found"]), (&json!(1000), &json!(1000)));
        let shown: Vec<_> = all["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
        assert_eq!(shown.len(), LOCKS);
        assert_eq!(shown[..4], ["lock/8", "lock/1", "lock/999", "lock/998"]);
        let ids: HashSet<_> =
            all["locks"].as_array().unwrap().iter().map(|lock| lock["id"].to_string()).collect();
        assert_eq!(ids.len(), LOCKS, "numbers of two tables are not mixed up");
        let found = ask(b"lock/99", Some(b"lock/2"));
        let last = found["locks"].as_array().unwrap().last().unwrap();
        assert_eq!((&found["found"], &last["name"]), (&json!(11), &json!("lock/2")));
        assert_eq!(all["cluster"]["name"], "prod");
    }
}
