//! Repairing the directory after its lock was taken over from a dead process.
//!
//! Chains are intact: they are changed by single stores. The dead process may have left a name or a use in no chain, a free
//! list that has lost entries, and counts that are off by one. Free lists and counts are rebuilt from the chains, in time
//! linear in the names ever used.

use super::super::layout::{AT_NAMES_FREE, AT_NAMES_LIVE, AT_REFS_FREE, AT_REFS_USED};
use super::table::{LIVE, PEER, STATE, Table};
use crate::addr::PeerId;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;

impl Table<'_> {
    /// Rebuilds free lists and counts.
    pub(super) fn repair(&self) {
        let shape = self.shared().layout.shape;
        let uses = self.word(AT_REFS_USED).load(SeqCst).min(shape.refs);
        let mut used = vec![false; uses as usize];
        let mut counts: HashMap<PeerId, u32> = HashMap::new();
        let mut live = 0;
        self.word(AT_NAMES_FREE).store(0, SeqCst);
        for id in 0..self.used() {
            if self.link(id, STATE).load(SeqCst) != LIVE || !self.is_reachable(id) {
                self.free_name(id);
                continue;
            }
            live += 1;
            for (_, index) in self.uses_of(id) {
                used[index as usize] = true;
                *counts.entry(PeerId(self.use_link(index, PEER).load(SeqCst))).or_default() += 1;
            }
        }
        self.word(AT_NAMES_LIVE).store(live, SeqCst);
        self.word(AT_REFS_FREE).store(0, SeqCst);
        for index in (0..uses).filter(|index| !used[*index as usize]) {
            self.free_use(index);
        }
        self.shared().recount_names(&counts);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::{AT_NAMES_LOCK, AT_NAMES_USED};
    use super::super::super::{Reclaim, ShmSpace, SpaceOptions};
    use super::*;
    use crate::endpoint::Endpoint;

    /// Leaves the lock to a peer that does not exist, as a killed owner would.
    fn die(table: Table<'_>) {
        let shared = table.shared();
        std::mem::forget(table);
        shared.map.u32(AT_NAMES_LOCK).store(9_999, SeqCst);
    }

    #[test]
    fn what_a_killed_process_left_hanging_is_collected() {
        let path = std::env::temp_dir().join(format!("lockwright-unit-{}-repair.space", std::process::id()));
        let space = ShmSpace::open(&path, &SpaceOptions::default().names(8)).unwrap();
        let ep = space.endpoint().unwrap();
        let (names, client) = (ep.names(), ep.client());
        let kept = names.open(b"kept").unwrap();

        // Killed after it had taken a name from the list, and after it had filled it in.
        let table = Table::lock(client).unwrap();
        table.word(AT_NAMES_USED).fetch_add(1, SeqCst);
        let half = table.insert(table.hash(b"half"), b"half", |_| Ok(())).unwrap();
        let chain = table.remove_from_chain(half);
        assert!(chain, "its last store had not happened yet");
        die(table);
        assert_eq!(names.find(b"half").unwrap(), None);
        assert_eq!(names.len(), 1);

        // Killed after it had taken a use out of its chain, before the use was free and the count right.
        names.open(b"other").unwrap();
        let table = Table::lock(client).unwrap();
        let other = table.find(table.hash(b"other"), b"other").unwrap().unwrap();
        table.link(other, super::super::FIRST_USE).store(0, SeqCst);
        die(table);
        assert_eq!(names.names_of(ep.me()).unwrap(), [kept.id]);
        assert_eq!(client.shared.refs_of(client.membership.slot).load(SeqCst), 1);
        assert_eq!(names.sweep(|_| Reclaim::Reuse { highest_token: 0, own_token: 0 }).unwrap(), 1);

        // Nothing is lost: all eight are there.
        for n in 0..7u8 {
            names.open(&[b'n', n + 1]).unwrap();
        }
        assert!(names.open(b"ninth").is_err());
        ShmSpace::remove(&path).unwrap();
    }
}
