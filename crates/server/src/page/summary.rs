//! What one space looks like at this moment: the locks that matter most, who holds and waits for them, who waits for whom.
//!
//! Bounded, however many locks there are: one walk over the names keeps the busiest, one over the requests finds who they are. Both
//! let go of the table every [`CHUNK`] steps, since clients wait for it: what is shown did not hold all at one moment.

use super::hex;
use crate::directory::SpaceNumber;
use crate::dispatcher::Dispatcher;
use crate::inspection::{entry, upgrade};
use crate::lock_table::LockTable;
use crate::lock_table::history::{GrantEnd, PastGrant};
use lockwright::inspect::{Entry, EntryState, Wait, waits};
use lockwright::wire::Kind;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::time::Instant;

/// Locks that are shown, processes of one lock, and waits that are drawn.
const LOCKS: usize = 100;
const ENTRIES: usize = 1000;
const WAITS: usize = 200;

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
    pub(super) fn answer(&self, dispatcher: &Dispatcher) -> Value {
        let mut table = dispatcher.lock_table();
        let counts = table.totals.counts();
        let mut answer = json!({
            "names": table.directory.in_use(),
            "sessions": table.totals.sessions,
            "held": table.totals.now.holders - table.totals.retained,
            "retained": table.totals.retained,
            "waiting": table.totals.now.waiters,
            "grants": counts.grants,
            "waits": counts.waits,
            "waited_seconds": counts.waited.as_secs_f64(),
            "recovering": table.is_recovering(),
        });
        let Some(space) = table.directory.find_space(&self.space) else { return answer };
        let mut names = Names::new(space, &self.text, self.lock.as_deref());
        while names.step(&table) {
            drop(table);
            table = dispatcher.lock_table();
        }
        let Busiest { mut ids, found } = names.busiest();
        let mut requests = Requests::of(&ids);
        while requests.step(&table) {
            drop(table);
            table = dispatcher.lock_table();
        }
        let entries = requests.entries();
        ids.retain(|id| table.directory.find(*id).is_some());
        let locks: Vec<_> = ids.iter().map(|id| line(&table, *id)).collect();
        let past = self.lock.as_deref().map_or_else(Vec::new, |lock| past(&table, &ids, lock));
        // The rest needs no lock, and the server has other things to do.
        drop(table);
        answer["found"] = found.into();
        answer["locks"] = locks.into();
        let waits = waits(&entries, |_, _| false);
        answer["waits_for"] = waits.iter().take(WAITS).map(edge).collect();
        if let Some(lock) = &self.lock {
            let of_lock = entries.iter().filter(|entry| entry.name.as_bytes() == lock);
            answer["history"] = past.into();
            answer["entries"] = of_lock.take(ENTRIES).map(process).collect();
        }
        answer
    }
}

struct Busiest {
    ids: Vec<u64>,
    /// How many fit what was asked for, those that are not shown too.
    found: u64,
}

/// A walk over the names of a space, for the locks to be shown: those most waited for, then those held, then those used most.
struct Names<'a> {
    space: SpaceNumber,
    text: &'a [u8],
    chosen: Option<&'a [u8]>,
    heap: BinaryHeap<Reverse<(u64, u64, u64, u64)>>,
    found: u64,
    extra: Vec<u64>,
    /// Where to go on.
    next: u64,
}

impl<'a> Names<'a> {
    fn new(space: SpaceNumber, text: &'a [u8], chosen: Option<&'a [u8]>) -> Self {
        let (heap, extra) = (BinaryHeap::new(), Vec::new());
        Self { space, text, chosen, heap, found: 0, extra, next: 0 }
    }

    /// Looks at [`CHUNK`] names. `true` if there are more.
    fn step(&mut self, table: &LockTable) -> bool {
        let (ids, next) = table.directory.some_ids(self.next, CHUNK);
        for id in ids {
            let Some(lock) = table.directory.find(*id).filter(|lock| lock.space == self.space) else {
                continue;
            };
            let name = lock.name.as_bytes();
            if self.chosen == Some(name) {
                self.extra.push(*id);
            }
            if !self.text.is_empty() && !name.windows(self.text.len()).any(|part| part == self.text) {
                continue;
            }
            self.found += 1;
            self.heap.push(Reverse((lock.now.waiters, lock.now.holders, lock.grants, *id)));
            if self.heap.len() > LOCKS {
                self.heap.pop();
            }
        }
        self.next = next.unwrap_or(self.next);
        next.is_some()
    }

    fn busiest(mut self) -> Busiest {
        // Reversed twice: the busiest first.
        let mut ids: Vec<_> =
            self.heap.into_sorted_vec().into_iter().map(|Reverse((_, _, _, id))| id).collect();
        self.extra.retain(|id| !ids.contains(id));
        ids.extend(self.extra);
        Busiest { ids, found: self.found }
    }
}

/// A walk over all requests, for those who hold these locks and wait for them.
struct Requests {
    wanted: HashSet<u64>,
    entries: Vec<Entry>,
    /// Where to go on: session and slot.
    next: (usize, usize),
}

impl Requests {
    fn of(ids: &[u64]) -> Self {
        Self { wanted: ids.iter().copied().collect(), entries: Vec::new(), next: (0, 0) }
    }

    /// Looks at [`CHUNK`] sessions and requests. `true` if there are more.
    fn step(&mut self, table: &LockTable) -> bool {
        let (now, (mut at, mut from)) = (Instant::now(), self.next);
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

    fn entries(mut self) -> Vec<Entry> {
        self.entries.sort_by_key(|entry| (entry.state, Reverse(entry.age)));
        self.entries
    }
}

fn line(table: &LockTable, id: u64) -> Value {
    let lock = table.directory.lock(id);
    let retained = table.kept_without_word(lock);
    json!({
        "id": id,
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
    use crate::durable::Durable;
    use lockwright::LockName;
    use std::time::Duration;

    #[test]
    fn of_many_locks_the_busiest_are_shown_and_others_found_by_a_part_of_their_names() {
        let (durable, _) = Durable::begin(None, Duration::from_secs(8)).unwrap();
        let mut table = LockTable::new(durable, false, Vec::new(), Vec::new());
        let space = table.directory.space(b"s").unwrap();
        for n in 0..50_000_u64 {
            let name = LockName::new(format!("lock/{n}")).unwrap();
            let id = table.directory.open(space, Kind::Keyed, name).unwrap();
            table.directory.lock_mut(id).grants = n;
            table.directory.lock_mut(id).now.waiters = u64::from(n == 7);
        }
        let names = |seen: &Busiest| -> Vec<_> {
            seen.ids.iter().map(|id| table.directory.lock(*id).name.to_string()).collect()
        };
        let busiest = |text, chosen| {
            let mut names = Names::new(space, text, chosen);
            while names.step(&table) {}
            names.busiest()
        };
        let all = busiest(b"", None);
        assert_eq!((all.found, all.ids.len()), (50_000, LOCKS));
        assert_eq!(names(&all)[..2], ["lock/7", "lock/49999"], "who is waited for comes first");
        let some = busiest(b"/4242", Some(b"lock/1"));
        assert_eq!(some.found, 11);
        assert!(names(&some).contains(&"lock/4242".to_owned()));
        assert_eq!(names(&some).last().unwrap(), "lock/1", "the chosen one is always there");
    }
}
