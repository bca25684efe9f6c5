//! Looking into a space of this host: what its clients have written down in it, and what its words say.

use super::{BreakError, Entry, EntryState, Heat, InspectError, Permits, SpaceInfo, user};
use crate::backend::holders::{self, reader};
use crate::backend::member::Member;
use crate::backend::members::{Members, NAMES};
use crate::backend::ranges::gate;
use crate::backend::{Kind, shm, slots};
use crate::error::OpenError;
use crate::name::LockName;
use crate::one_sided::local as one_sided;
use lockwright_fabric::PeerId;
use lockwright_fabric::backend::shm::{ClientInfo, NameInfo, ShmSpace, space_path};
use lockwright_fabric::observe::Mode;
use lockwright_locks::holders::record::{is_semaphore, name_of};
use lockwright_locks::holders::{self as records, HolderRecord, State};
use lockwright_locks::shiftlock::shared::Snapshot;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A space of this host.
#[derive(Debug)]
pub(super) struct Local {
    space: ShmSpace,
    members: Members,
}

impl Local {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        /// An inspector holds nothing that could be lost.
        const LEASE_NS: u64 = u64::MAX;
        let space = shm::open(path, false, None)?;
        let refuse = |why: String| OpenError::Failed { space: path.display().to_string(), why };
        let members = Members::new(space.clone(), LEASE_NS).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { space, members })
    }

    fn names(&self) -> Result<Vec<NameInfo>, InspectError> {
        Ok(member(&self.members)?.names().all()?)
    }

    pub(super) fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        Look { members: &self.members, of: None }.entries(self.names()?)
    }

    pub(super) fn entries_of(&self, name: &LockName) -> Result<Vec<Entry>, InspectError> {
        let found = member(&self.members)?.names().find(name.as_bytes())?;
        found.map_or(Ok(Vec::new()), |lock| entries_of(&self.members, lock.id))
    }
    /// What is seen of holders and waiters, and how often locks were given back. Also of locks that nobody holds now.
    pub(super) fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        let member = member(&self.members)?;
        let mut seen: HashMap<_, _> = Heat::of(&self.entries()?)
            .into_iter()
            .map(|heat| ((heat.name.clone(), heat.kind), heat))
            .collect();
        let mut all = Vec::new();
        for info in self.names()? {
            let Ok(name) = LockName::new(&info.name) else { continue };
            for kind in [Kind::Keyed, Kind::Ranges, Kind::Semaphores] {
                let mut heat =
                    seen.remove(&(name.clone(), kind)).unwrap_or_else(|| Heat::none(name.clone(), kind));
                // Ranges and permits of a name change one count, which is shown once.
                let over = if kind == Kind::Semaphores { 0 } else { member.releases(kind, info.lock.id)? };
                heat.grants = over.saturating_add(heat.holders);
                if heat.grants > 0 || heat.waiters > 0 {
                    all.push(heat);
                }
            }
        }
        all.sort_by_key(|heat| std::cmp::Reverse((heat.waiters, heat.grants)));
        Ok(all)
    }

    pub(super) fn break_grant(&self, name: impl AsRef<[u8]>, token: u64) -> Result<(), BreakError> {
        let name = LockName::new(name)?;
        let infos = self.names()?;
        let info = infos.iter().find(|info| info.name == name.as_bytes());
        let Some(info) = info else { return Err(BreakError::NoSuchLock(name)) };
        let not_held = BreakError::NotHeld { name, token };
        let Some(own) = token.checked_sub(info.lock.token_base) else { return Err(not_held) };
        let holds = |record: &HolderRecord| {
            record.state.holds() && name_of(record.claim.lock) == info.lock.id && record.token() == own
        };
        let reader = reader(&self.space);
        let record = reader.clients().find_map(|client| reader.records(&client).find(holds));
        let Some(record) = record else { return Err(not_held) };
        let member = member(&self.members)?;
        let broken = match record.kind {
            records::Kind::Keyed => member.take_away(&record),
            records::Kind::Range => member.revoke(&record),
        };
        if broken.map_err(InspectError::from)? { Ok(()) } else { Err(not_held) }
    }

    pub(super) fn info(&self) -> Result<SpaceInfo, InspectError> {
        let member = member(&self.members)?;
        let path = self.space.path().to_owned();
        let now = self.space.now();
        // Not this one, which only looks.
        let reader = reader(&self.space);
        let others = reader.clients().filter(|client| client.peer != member.peer());
        Ok(SpaceInfo {
            address: address_of(&path),
            keyed: "holders",
            ranges: "holders-ranges",
            clients: others.filter(|client| member.holders().lives(client)).count(),
            max_clients: holders::SLOTS,
            names: member.names().len(),
            max_names: NAMES,
            age: Duration::from_nanos(now.since(self.space.created())),
            resident_bytes: resident(&path),
            path,
        })
    }
}

/// Holders and waiters of the locks whose name has this id.
pub(crate) fn entries_of(members: &Members, id: u64) -> Result<Vec<Entry>, InspectError> {
    let info = member(members)?.names().info(id)?;
    Look { members, of: Some(id) }.entries(info)
}

fn member(members: &Members) -> Result<Arc<Member>, InspectError> {
    members.any().map_err(|error| InspectError::TooManyClients(error.to_string()))
}

/// A look at the records of all locks, or of those `of` one name.
struct Look<'a> {
    members: &'a Members,
    of: Option<u64>,
}

impl Look<'_> {
    fn entries(&self, names: impl IntoIterator<Item = NameInfo>) -> Result<Vec<Entry>, InspectError> {
        let names: HashMap<_, _> = names.into_iter().map(|info| (info.lock.id, info)).collect();
        let space = &self.members.space;
        let clients: HashMap<_, _> =
            space.clients().into_iter().map(|client| (client.peer, client)).collect();
        let now = space.now();
        let members: HashMap<_, _> = reader(space).clients().map(|member| (member.peer, member)).collect();
        let (mut entries, mut users) = (Vec::new(), HashMap::new());
        let records = self.records()?;
        let crowded = self.crowded(&records);
        for (record, changing) in records {
            let peer = record.peer;
            let (Some(client), Some(member)) = (clients.get(&peer), members.get(&peer)) else { continue };
            let Some(info) = names.get(&name_of(record.claim.lock)) else { continue };
            let alive = client.alive && !member.is_expired(now);
            let Some(entry) = entry(&record, info, client, alive, now.since(record.since)) else { continue };
            let user = users.entry(client.pid).or_insert_with(|| user::of_process(client.pid));
            let user = user.clone().unwrap_or_default();
            let thread = slots::thread_of(record.record).filter(|_| !crowded.contains(&peer));
            let entry = Entry { changing, user, thread, ..entry };
            // A reader that waits to be alone is both.
            let waits = Entry { state: EntryState::Waiting, shared: false, token: None, ..entry.clone() };
            entries.extend((record.state == State::Upgrading).then_some(waits));
            entries.push(entry);
        }
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| (entry.name.clone(), entry.state, std::cmp::Reverse(entry.age));
            key(a).cmp(&key(b))
        });
        Ok(entries)
    }

    /// Clients of which a record does not say which thread it is of: where no other is left, tasks use those that belong to
    /// threads. Of one name's records that cannot be seen.
    fn crowded(&self, records: &[(HolderRecord, bool)]) -> HashSet<PeerId> {
        if self.of.is_some() {
            return records.iter().map(|(record, _)| record.peer).collect();
        }
        let mut shared: HashMap<_, usize> = HashMap::new();
        let of_none = records.iter().filter(|(record, _)| slots::thread_of(record.record).is_none());
        of_none.for_each(|(record, _)| *shared.entry(record.peer).or_default() += 1);
        shared.into_iter().filter(|(_, used)| *used >= slots::SHARED).map(|(peer, _)| peer).collect()
    }

    /// All records, and whether their lock changed while they were read: then they are read again, a few times.
    fn records(&self) -> Result<Vec<(HolderRecord, bool)>, InspectError> {
        let reader = reader(&self.members.space);
        let is_asked = |record: &HolderRecord| self.of.is_none_or(|id| name_of(record.claim.lock) == id);
        let all = || {
            reader.clients().flat_map(|client| reader.records(&client).filter(is_asked).collect::<Vec<_>>())
        };
        let mut open: HashSet<_> = all().map(|record| lock_of(&record)).collect();
        let mut listed = Vec::new();
        for look in 1..=LOOKS {
            let before = self.versions(&open)?;
            let records: Vec<_> = all().filter(|record| open.contains(&lock_of(record))).collect();
            let after = self.versions(&open)?;
            open.retain(|lock| before[lock] != after[lock]);
            for (lock, mut records) in by_lock(records) {
                if !open.contains(&lock) || look == LOOKS {
                    keep_current(&mut records, &after[&lock]);
                    listed.extend(records.into_iter().map(|record| (record, open.contains(&lock))));
                }
            }
            if open.is_empty() {
                break;
            }
        }
        Ok(listed)
    }

    fn versions(&self, locks: &HashSet<Lock>) -> Result<HashMap<Lock, Version>, InspectError> {
        let member = member(self.members)?;
        let versions = locks.iter().map(|lock| {
            let version = match *lock {
                (id, Kind::Keyed) => (member.snapshot(id)?, 0),
                (id, kind) => (member.snapshot(gate(id))?, member.releases(kind, id)?),
            };
            Ok((*lock, version))
        });
        versions.collect()
    }
}

/// How often the records of a lock that changes are read.
const LOOKS: usize = 16;

/// The keyed lock of an id, or its ranges.
type Lock = (u64, Kind);
/// What changes whenever a lock changes hands: of ranges, that of their gate, and the count of those given back.
type Version = (Snapshot, u64);

fn lock_of(record: &HolderRecord) -> Lock {
    let kind = match record.kind {
        records::Kind::Keyed => Kind::Keyed,
        records::Kind::Range => Kind::Ranges,
    };
    (record.claim.lock, kind)
}

fn by_lock(records: Vec<HolderRecord>) -> HashMap<Lock, Vec<HolderRecord>> {
    let mut locks: HashMap<_, Vec<_>> = HashMap::new();
    for record in records {
        locks.entry(lock_of(&record)).or_default().push(record);
    }
    locks
}

/// Drops records of grants that are over: a record is cleared after its lock was given back.
fn keep_current(records: &mut Vec<HolderRecord>, (snapshot, _): &Version) {
    let says_held = |record: &HolderRecord| record.kind == records::Kind::Keyed && record.state.holds();
    let holds = |record: &HolderRecord| snapshot.can_be_held_by(record.claim.mode, record.mark);
    records.retain(|record| !says_held(record) || holds(record));
    let is_writer = |record: &HolderRecord| says_held(record) && record.claim.mode == Mode::Exclusive;
    if records.iter().any(is_writer) {
        records.retain(|record| !says_held(record) || is_writer(record));
    }
}

fn entry(
    record: &HolderRecord,
    info: &NameInfo,
    client: &ClientInfo,
    alive: bool,
    age_ns: u64,
) -> Option<Entry> {
    let (state, token) = match record.state {
        State::Taking if record.mark == 0 => return None,
        State::Taking | State::Held | State::Upgrading => {
            (EntryState::Held, Some(info.lock.token_base + record.token()))
        }
        State::Waiting => (EntryState::Waiting, None),
        State::Revoked => return None,
    };
    let (host, program) = client.label.split_once(' ').unwrap_or((&client.label, ""));
    let (units, is_semaphore) = (record.claim.start..record.claim.end, is_semaphore(record.claim.lock));
    Some(Entry {
        name: LockName::new(&info.name).ok()?,
        state,
        shared: record.claim.mode == Mode::Shared,
        range: (record.kind == records::Kind::Range && !is_semaphore).then(|| units.clone()),
        permits: is_semaphore.then(|| Permits::of_units(&units)),
        token,
        age: Duration::from_nanos(age_ns),
        pid: client.pid,
        user: String::new(),
        host: host.to_owned(),
        program: program.to_owned(),
        thread: None,
        upgrades: false,
        alive,
        changing: false,
    })
}

/// The spaces of this user on this host, by address.
///
/// # Errors
/// If their folder cannot be read.
///
/// ```
/// for address in lockwright::inspect::spaces()? {
///     println!("{address}");
/// }
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn spaces() -> io::Result<Vec<String>> {
    let Some((folder, prefix, suffix)) = usual_place() else { return Ok(Vec::new()) };
    let files = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut spaces = Vec::new();
    for file in files {
        let name = file?.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(&suffix));
        spaces.extend(name.map(address_of_name));
    }
    spaces.sort();
    Ok(spaces)
}

pub(super) fn address_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let usual = usual_place().filter(|(folder, ..)| path.parent() == Some(folder));
    let name = usual
        .and_then(|(_, prefix, suffix)| Some(name.strip_prefix(&prefix)?.strip_suffix(&suffix)?.to_owned()));
    name.map_or_else(|| format!("shm:{}", path.display()), |name| address_of_name(&name))
}

fn address_of_name(name: &str) -> String {
    match name.strip_prefix(one_sided::FILE_PREFIX) {
        Some(name) => format!("shm:{}{name}", one_sided::SCHEME),
        None => format!("shm:{name}"),
    }
}

/// The folder of this user's spaces, and how their files' names begin and end.
fn usual_place() -> Option<(PathBuf, String, String)> {
    const PROBE: &str = "PROBE";
    let path = space_path(PROBE).ok()?;
    let name = path.file_name()?.to_str()?;
    let (prefix, suffix) = name.split_once(PROBE)?;
    Some((path.parent()?.to_owned(), prefix.to_owned(), suffix.to_owned()))
}

pub(super) fn resident(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(0, |file| file.blocks() * 512)
}
