//! What the explorer compares: all of a lock table that decides about anything later. Counts, times and labels do not.

use super::LockTable;
use crate::session::{RequestRecord, Session, Space, Stage, Target};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

impl Hash for LockTable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        debug_assert!(!self.is_undecided(), "states are compared between batches");
        self.waiting_tries().hash(state);
        (&self.core, &self.directory, &self.sessions, &self.free, &self.durable, &self.held_back).hash(state);
    }
}

impl Hash for Session {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.key, &self.slots, self.taken, self.told, self.noted, &self.claimed).hash(state);
        let space = self.space.as_ref().map(|space| match space {
            Space::Own(number) => Some(*number),
            Space::Exported(_) | Space::OneSided(_) => None,
        });
        let handles: BTreeMap<_, _> =
            self.handles.iter().map(|(handle, target)| (handle, lock(target))).collect();
        (space, handles, self.retains, self.retained, self.absent).hash(state);
    }
}

const fn lock(target: &Target) -> Option<u64> {
    match target {
        Target::Own(lock) => Some(*lock),
        Target::Exported(_) | Target::OneSided { .. } => None,
    }
}

impl Hash for RequestRecord {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { id, lock, units, change, upgrades, before, known, kept, .. } = self;
        (id, lock, units, change, upgrades.is_some(), before, known, kept).hash(state);
        let stage = match &self.stage {
            Stage::HeldBack => (0, 0),
            Stage::Waiting => (1, 0),
            Stage::Held { token } => (2, *token),
            Stage::Exported(held) => (3, u64::from(held.is_held())),
            Stage::Behind => (4, 0),
        };
        (stage, self.retained, self.block, self.tries, self.next).hash(state);
    }
}
