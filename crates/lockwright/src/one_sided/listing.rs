//! Looking into a one-sided space of this host: who of either side holds and waits, by the records that they write.

use super::asymmetric::{NAMES, SLOTS, TABLE};
use super::local::{self, LocalMember, reader};
use crate::error::OpenError;
use crate::inspect::{BreakError, Entry, EntryState, Heat, InspectError, SpaceInfo, user};
use crate::name::LockName;
use lockwright_fabric::backend::shm::{ClientInfo, NameInfo, ShmSpace};
use lockwright_fabric::observe::Mode;
use lockwright_locks::holders::record::ClientWord;
use lockwright_locks::holders::{HolderRecord, State};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// An inspector in a process of the server's host.
#[derive(Debug)]
pub(crate) struct LocalInspector {
    space: ShmSpace,
    member: LocalMember,
}

impl LocalInspector {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let space = local::open(path, false, None)?;
        let refuse = |why: String| OpenError::Failed { space: path.display().to_string(), why };
        let member = LocalMember::join(&space).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { space, member })
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        entries(&self.space, &self.member)
    }

    pub(crate) fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        Ok(Heat::of(&self.entries()?))
    }

    /// Nobody can be kept from writing to memory that it has mapped.
    pub(crate) fn break_grant(&self, name: impl AsRef<[u8]>, token: u64) -> Result<(), BreakError> {
        let name = LockName::new(name)?;
        let holds = |entry: &Entry| entry.name == name && entry.token == Some(token);
        if !self.entries()?.iter().any(holds) {
            return Err(BreakError::NotHeld { name, token });
        }
        Err(BreakError::Inspect(InspectError::Space(
            "locks of a one-sided space cannot be broken: end the process that holds it, which `ls` names"
                .to_owned(),
        )))
    }

    /// What the space is, but for where it is.
    pub(crate) fn info(&self, address: String, resident_bytes: u64) -> SpaceInfo {
        let reader = reader(&self.space);
        let others = reader.clients().filter(|client| client.peer != self.member.peer());
        SpaceInfo {
            address,
            path: self.space.path().to_owned(),
            keyed: "qplock-member",
            ranges: "-",
            clients: others.filter(|client| self.space.is_alive(client.peer)).count(),
            max_clients: SLOTS,
            names: self.member.names().len(),
            max_names: NAMES,
            age: Duration::from_nanos(self.space.now().since(self.space.created())),
            resident_bytes,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.space.path()
    }
}

/// All holders and waiters, by name.
///
/// # Errors
/// If the directory of names cannot be had.
pub fn entries(space: &ShmSpace, member: &LocalMember) -> Result<Vec<Entry>, InspectError> {
    let names: HashMap<_, _> = member.names().all()?.into_iter().map(|info| (info.lock.id, info)).collect();
    let clients: HashMap<_, _> = space.clients().into_iter().map(|client| (client.peer, client)).collect();
    let (reader, now) = (reader(space), space.now());
    let mut entries = Vec::new();
    for owner in reader.clients() {
        let Some(client) = clients.get(&owner.peer) else { continue };
        let elsewhere = space.peek(TABLE.client(TABLE.slot(owner.peer), ClientWord::Elsewhere));
        for record in reader.records(&owner) {
            let Some(info) = names.get(&record.claim.lock) else { continue };
            let age = Duration::from_nanos(now.since(record.since));
            entries.extend(entry(&record, info, client, elsewhere).map(|entry| Entry { age, ..entry }));
        }
    }
    entries.sort_by(|a, b| {
        let key = |entry: &Entry| (entry.name.clone(), entry.state, std::cmp::Reverse(entry.age));
        key(a).cmp(&key(b))
    });
    Ok(entries)
}

/// What a record says (`lockwright_locks::qplock::member::record`).
fn entry(record: &HolderRecord, info: &NameInfo, client: &ClientInfo, elsewhere: u64) -> Option<Entry> {
    let is_held = record.mark != 0 && matches!(record.state, State::Taking | State::Held);
    let state = if is_held { EntryState::Held } else { EntryState::Waiting };
    let mut entry = Entry::new(LockName::new(&info.name).ok()?, state);
    entry.shared = record.claim.mode == Mode::Shared;
    entry.token = is_held.then(|| info.lock.token_base.saturating_add(record.mark));
    entry.set_process(&format!("{} {}", client.pid, client.label));
    entry.pid = u32::try_from(elsewhere).ok().and_then(|pid| pid.checked_sub(1)).unwrap_or(client.pid);
    entry.alive = client.alive;
    if elsewhere == 0 {
        entry.user = user::of_process(client.pid).unwrap_or_default();
    }
    Some(entry)
}
