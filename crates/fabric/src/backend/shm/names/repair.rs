//! Putting the directory in order after its lock was taken over from a dead process.
//!
//! Chains are whole, whatever the dead process was doing: it changed them by single stores. What it may have left is a name
//! or a use that hangs on no chain, a list of free things that has lost some, and counts that are off by one. All of these
//! are made anew from what can be reached. Takes time with the number of names ever used, and only after such a death.

use super::super::layout::{AT_NAMES_FREE, AT_NAMES_LIVE, AT_REFS_FREE, AT_REFS_USED};
use super::table::{LIVE, PEER, STATE, Table};
use crate::addr::PeerId;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;

impl Table<'_> {
    /// Makes lists and counts anew.
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
        self.shared().count_names_anew(&counts);
    }
}
