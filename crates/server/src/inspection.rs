//! What people ask a server about its locks: who holds and waits (`ls`), what each has seen (`top`), and to take one away from its
//! holder (`break`).
//!
//! What this file must not do: answer from anything but the table, or from the space that was asked about.

use super::directory::{Lock, SpaceNumber};
use super::exported::{Held, PROGRAM};
use super::one_sided::VerbExecutor;
use super::one_sided::sessions;
use super::session::{RequestRecord, Session, Space, Stage};
use crate::lock_table::LockTable;
use lockwright::LockName;
use lockwright::inspect::{Entry, EntryState, Heat, Inspector, Permits};
use lockwright::wire::Kind;
use lockwright::wire::RequestId;
use lockwright::wire::listing::Writer;
use lockwright_fabric::Time;
use lockwright_fabric::backend::shm::monotonic_ns;
use lockwright_fabric::observe::Mode;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;

/// Locks in one answer about what locks have seen: the hottest.
const HOTTEST: usize = 1000;

impl LockTable {
    /// Who holds and waits, of all locks or of those called by a name, as it is sent.
    pub(super) fn list(&mut self, peer: u32, of: Option<&LockName>) -> Result<Vec<u8>, String> {
        let version = self.session(peer).map_or(0, |session| session.version);
        let mut out = Writer::for_version(version);
        self.entries(peer, of)?.iter().for_each(|entry| out.entry(entry));
        Ok(out.into_bytes())
    }

    /// What locks have seen, as it is sent.
    pub(super) fn list_heat(&mut self, peer: u32) -> Result<Vec<u8>, String> {
        let mut out = Writer::default();
        self.heat(peer)?.iter().for_each(|heat| out.heat(heat));
        Ok(out.into_bytes())
    }

    /// Holders and waiters in the session's space; holders first, then those who have waited longest.
    fn entries(&mut self, peer: u32, of: Option<&LockName>) -> Result<Vec<Entry>, String> {
        let mut entries: Vec<_> = match self.session(peer).and_then(|session| session.space.clone()) {
            None => return Err("the session has no space".to_owned()),
            Some(Space::Own(space)) => {
                let now = Instant::now();
                let requests = self.sessions.iter().flatten().flat_map(|session| {
                    session.slots.iter().flatten().map(move |request| (session, request))
                });
                // What stands behind another member of its set does not wait for its lock yet.
                let requests = requests.filter(|(_, request)| !matches!(request.stage, Stage::Behind));
                let own = requests.flat_map(|(session, request)| {
                    let lock = request.lock.map(|lock| self.directory.lock(lock));
                    let is_asked = |lock: &&Lock| lock.space == space && of.is_none_or(|of| lock.name == *of);
                    let lock = lock.filter(is_asked);
                    let entry = lock.map(|lock| entry(session, request, lock, now));
                    let upgrade = entry.as_ref().and_then(|entry| upgrade(request, entry, now));
                    entry.into_iter().chain(upgrade)
                });
                own.collect()
            }
            Some(Space::Exported(space)) => {
                let inspector = Inspector::open(&space.address).map_err(|error| error.to_string())?;
                let entries = of.map_or_else(|| inspector.entries(), |of| inspector.entries_of(of));
                let mut entries = entries.map_err(|error| error.to_string())?;
                name_sessions(self, &mut entries);
                entries
            }
            Some(Space::OneSided(space)) => space.entries(match space.by {
                VerbExecutor::Cpu => Time(monotonic_ns()),
                #[cfg(feature = "rdma")]
                VerbExecutor::Nic => space.memory.now(),
            }),
        };
        entries.retain(|entry| of.is_none_or(|of| entry.name == *of));
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| (entry.name.clone(), entry.state, std::cmp::Reverse(entry.age));
            key(a).cmp(&key(b))
        });
        Ok(entries)
    }

    fn heat(&mut self, peer: u32) -> Result<Vec<Heat>, String> {
        match self.session(peer).and_then(|session| session.space.clone()) {
            None => Err("the session has no space".to_owned()),
            Some(Space::Own(space)) => {
                // Of a million names only the few that are sent are copied: everybody waits meanwhile.
                let mut hottest = BinaryHeap::new();
                for (id, lock) in self.directory.with_ids(space) {
                    hottest.push(Reverse((lock.grants, lock.now.waiters, id)));
                    if hottest.len() > HOTTEST {
                        hottest.pop();
                    }
                }
                let heat = hottest.into_sorted_vec().into_iter().map(|Reverse((.., id))| {
                    let lock = self.directory.lock(id);
                    let mut heat = Heat::none(lock.name.clone(), lock.kind);
                    heat.retained = self.kept_without_word(lock);
                    heat.holders = lock.now.holders - heat.retained;
                    heat.waiters = lock.now.waiters;
                    (heat.grants, heat.contended, heat.waited) = (lock.grants, lock.contended, lock.waited);
                    heat
                });
                Ok(heat.collect())
            }
            Some(Space::Exported(_) | Space::OneSided(_)) => Ok(Heat::of(&self.entries(peer, None)?)),
        }
    }

    /// The same, of the server's own space.
    pub(super) fn break_own(
        &mut self,
        space: SpaceNumber,
        name: &LockName,
        token: u64,
    ) -> Result<bool, String> {
        for kind in [Kind::Keyed, Kind::Ranges, Kind::Semaphores] {
            let Some(lock) = self.directory.open(space, kind, name.clone()) else { continue };
            // The pieces of what was once one range have one token.
            let holders = self.holders(lock).filter(|(_, request, _)| request.is_held_with(token));
            let found: Vec<_> = holders
                .map(|(holder, request, held)| Broken {
                    holder,
                    id: request.id,
                    tokens: [Some(held), request.before],
                    block: request.block,
                })
                .collect();
            let broken = note_broken(self, &found);
            if broken.is_ok() {
                found.iter().for_each(|broken| self.take_away(broken.holder, broken.id));
            }
            self.directory.close(lock);
            broken?;
            if !found.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes a lock away from the client that holds it with `token`. `false` if there is none.
    pub(super) fn break_grant(&mut self, peer: u32, name: &LockName, token: u64) -> Result<bool, String> {
        match self.session(peer).and_then(|session| session.space.clone()) {
            None => Err("the session has no space".to_owned()),
            Some(Space::Own(space)) => self.break_own(space, name, token),
            Some(Space::OneSided(_)) => Err(sessions::NO_BREAKING.to_owned()),
            Some(Space::Exported(space)) => {
                use lockwright::inspect::BreakError::{NoSuchLock, NotHeld};
                let inspector = Inspector::open(&space.address).map_err(|error| error.to_string())?;
                match inspector.break_grant(name.as_bytes(), token) {
                    Ok(()) => Ok(true),
                    Err(NotHeld { .. } | NoSuchLock(_)) => Ok(false),
                    Err(error) => Err(error.to_string()),
                }
            }
        }
    }
}

/// What this process holds in shared memory, it holds for sessions: they are who people want to see.
fn name_sessions(table: &LockTable, entries: &mut [Entry]) {
    let mut holders = HashMap::new();
    for session in table.sessions.iter().flatten() {
        for request in session.slots.iter().flatten() {
            if let Stage::Exported(held) = &request.stage
                && let Held::Granted(guard) = &**held
            {
                let of = (&session.label, request.units.thread);
                holders.insert((guard.name().clone(), guard.token()), of);
            }
        }
    }
    let is_own = |entry: &&mut Entry| entry.pid == std::process::id() && entry.program == PROGRAM;
    for entry in entries.iter_mut().filter(is_own) {
        let held = entry.token.and_then(|token| holders.get(&(entry.name.clone(), token)));
        // Its own threads are not those that asked.
        entry.thread = held.and_then(|(_, thread)| *thread);
        // Granted, and the session's request does not say so yet.
        entry.changing |= held.is_none() && entry.token.is_some();
        if let Some((label, _)) = held {
            entry.set_process(label);
        }
    }
}

/// A grant that is broken: its tokens now and before the last change, and those that came with it.
struct Broken {
    holder: u32,
    id: RequestId,
    tokens: [Option<u64>; 2],
    block: Option<(u64, u64)>,
}

/// Notes that the grants found are over. Their holders may not have heard of their last change, and claim what was before.
fn note_broken(table: &mut LockTable, found: &[Broken]) -> Result<(), String> {
    let mut over: Vec<_> = found.iter().flat_map(|broken| broken.tokens).flatten().collect();
    over.sort_unstable();
    over.dedup();
    over.into_iter().try_for_each(|token| table.durable.broken(token))?;
    let mut blocks = found.iter().filter_map(|broken| broken.block);
    blocks.try_for_each(|block| table.durable.broken_block(block))
}

/// The upgrade that a holder waits for, as a line of its own.
pub(super) fn upgrade(request: &RequestRecord, held: &Entry, now: Instant) -> Option<Entry> {
    let age = now - request.upgrades?;
    let mut entry = held.clone();
    (entry.state, entry.shared, entry.token, entry.age) = (EntryState::Waiting, false, None, age);
    entry.upgrades = true;
    Some(entry)
}

pub(super) fn entry(session: &Session, request: &RequestRecord, lock: &Lock, now: Instant) -> Entry {
    let token = request.owners_token();
    let state = match token {
        Some(_) if request.is_retained() => EntryState::Retained,
        Some(_) => EntryState::Held,
        None => EntryState::Waiting,
    };
    let mut entry = Entry::new(lock.name.clone(), state);
    let units = request.units.start..request.units.end;
    match lock.kind {
        Kind::Keyed => {}
        Kind::Ranges => entry.range = Some(units),
        Kind::Semaphores => entry.permits = Some(Permits::of_units(&units)),
    }
    (entry.shared, entry.token) = (request.units.mode == Mode::Shared, token);
    entry.age = now - request.since;
    entry.thread = request.units.thread;
    entry.set_process(&session.label);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::{Admission, Dispatcher, Event};
    use crate::durable::Durable;
    use lockwright::Client;
    use lockwright::wire::listing::Reader;
    use lockwright::wire::{Request, Units, VERSION};
    use std::time::Duration;

    #[test]
    fn a_lock_that_a_session_has_just_got_on_shared_memory_is_nobodys_before_its_request_says_so() {
        let file = std::env::temp_dir().join(format!("lockwright-scratch-inspection-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let address = format!("shm:{}", file.display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let (durable, recovering) = Durable::begin(None, Duration::ZERO).unwrap();
        let table = LockTable::new(durable, recovering, vec![address.clone()], Vec::new());
        let dispatcher = Dispatcher::new(table, Admission::Secret);
        let here = Client::open(&address).wait().unwrap();
        let held = here.mutex("a").unwrap().lock().wait().unwrap();
        let mut table = dispatcher.lock_table();
        let peer = table.admit("1 far candidate").unwrap();
        let units = Units { handle: 1, mode: Mode::Exclusive, start: 0, end: u64::MAX, thread: None };
        let name = LockName::new("a").unwrap();
        for (seq, request) in (1..).zip([
            Request::Open {
                version: VERSION,
                key: 1,
                space: address.into_bytes(),
                one_sided: false,
                seen: 0,
            },
            Request::Name { handle: 1, kind: Kind::Keyed, name },
            Request::Lock { id: 1 << 32, units, wait: true },
        ]) {
            table.apply(peer, Event::Request { seq, request });
        }
        drop(held);
        let holder = |table: &mut LockTable| {
            let bytes = table.list(peer, None).unwrap();
            let mut reader = Reader(&bytes);
            let mut entries = std::iter::from_fn(|| reader.entry());
            entries.find(|entry| entry.state == EntryState::Held)
        };
        // Its task gets the lock, and cannot tell the table, which is locked.
        let got = loop {
            runtime.block_on(tokio::time::sleep(Duration::from_millis(1)));
            if let Some(entry) = holder(&mut table) {
                break entry;
            }
        };
        assert!(got.changing && got.program != "candidate", "{got:?}");
        drop(table);
        let got = holder(&mut dispatcher.lock_table()).unwrap();
        assert_eq!((got.changing, got.program.as_str(), got.pid), (false, "candidate", 1));
        let _ = std::fs::remove_file(file);
    }
}
