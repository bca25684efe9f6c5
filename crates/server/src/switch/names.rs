//! Which lock of the decider a name stands for: exactly one, by a table, never by a hash alone.
//!
//! A name has its lock as long as some machine uses it. Then the lock may stand for another name, once the decider has it as
//! free: no machine has its agent then, which could grant it to the new name under tokens of the old one's time. A request of
//! the old name that is still under way is only one more contender for the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Free numbers that are looked at for a new name. They are given out again in the order in which they became free.
const LOOKS: usize = 64;

/// Why a name gets no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbound {
    /// Every lock has a name that is in use.
    Full,
    /// Locks without a name are still held under the one that they had.
    Busy,
}

#[derive(Debug)]
pub(super) struct Names {
    locks: u64,
    /// The lock, and the machines that use it.
    by_name: HashMap<Vec<u8>, (u64, BTreeSet<u8>)>,
    by_lock: HashMap<u64, Vec<u8>>,
    /// Numbers below `used` that have no name any more, by when they lost it; and when each did.
    nameless: BTreeMap<u64, u64>,
    since: HashMap<u64, u64>,
    turn: u64,
    used: u64,
}

impl Names {
    pub(super) fn new(locks: u64) -> Self {
        let (by_name, by_lock) = (HashMap::new(), HashMap::new());
        Self { locks, by_name, by_lock, nameless: BTreeMap::new(), since: HashMap::new(), turn: 0, used: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The lock called `name`, which machine `mid` uses from now on. A new name gets a lock of which `is_free` says that the
    /// decider has it as free.
    pub(super) fn bind(
        &mut self,
        name: &[u8],
        mid: u8,
        is_free: impl Fn(u64) -> bool,
    ) -> Result<u64, Unbound> {
        if let Some((lid, users)) = self.by_name.get_mut(name) {
            users.insert(mid);
            return Ok(*lid);
        }
        // After a restart a number above `used` can be a lock that was held under a name which nobody uses any more.
        let unused = (self.used..self.locks).take(LOOKS).find(|lid| is_free(*lid));
        let lid = self.nameless.values().copied().take(LOOKS).find(|lid| is_free(*lid)).or(unused);
        let Some(lid) = lid else {
            let is_full = self.nameless.is_empty() && self.used == self.locks;
            return Err(if is_full { Unbound::Full } else { Unbound::Busy });
        };
        self.take(lid);
        self.by_lock.insert(lid, name.to_vec());
        self.by_name.insert(name.to_vec(), (lid, BTreeSet::from([mid])));
        Ok(lid)
    }

    /// A number without a name gets one.
    fn take(&mut self, lid: u64) {
        for skipped in self.used..lid {
            self.lose_name(skipped);
        }
        self.used = self.used.max(lid + 1);
        if let Some(turn) = self.since.remove(&lid) {
            self.nameless.remove(&turn);
        }
    }

    fn lose_name(&mut self, lid: u64) {
        self.turn += 1;
        self.nameless.insert(self.turn, lid);
        self.since.insert(lid, self.turn);
    }

    /// A machine of before a restart used this lock by this name. `false` if that cannot be.
    pub(super) fn claim(&mut self, name: Vec<u8>, lid: u64, mid: u8) -> bool {
        if lid >= self.locks {
            return false;
        }
        match (self.by_name.get_mut(&name), self.by_lock.get(&lid)) {
            (Some((known, users)), _) => {
                users.insert(mid);
                *known == lid
            }
            (None, Some(_)) => false,
            (None, None) => {
                self.take(lid);
                self.by_lock.insert(lid, name.clone());
                self.by_name.insert(name, (lid, BTreeSet::from([mid])));
                true
            }
        }
    }

    /// A machine has no more use for a lock.
    pub(super) fn unbind(&mut self, lid: u64, mid: u8) {
        let Some(name) = self.by_lock.get(&lid) else { return };
        let Some((_, users)) = self.by_name.get_mut(name) else { return };
        users.remove(&mid);
        if users.is_empty() {
            self.by_name.remove(name);
            self.by_lock.remove(&lid);
            self.lose_name(lid);
        }
    }

    /// A machine is gone.
    pub(super) fn forget(&mut self, mid: u8) {
        let used: Vec<u64> =
            self.by_name.values().filter(|(_, users)| users.contains(&mid)).map(|(lid, _)| *lid).collect();
        used.into_iter().for_each(|lid| self.unbind(lid, mid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(_: u64) -> bool {
        true
    }

    #[test]
    fn a_name_keeps_its_lock_while_a_client_uses_it() {
        let mut names = Names::new(2);
        assert_eq!(names.bind(b"a", 1, any), Ok(0));
        assert_eq!(names.bind(b"a", 2, any), Ok(0));
        assert_eq!(names.bind(b"b", 2, any), Ok(1));
        assert_eq!(names.bind(b"c", 2, any), Err(Unbound::Full));
        names.unbind(0, 1);
        assert_eq!(names.bind(b"c", 2, any), Err(Unbound::Full));
        names.forget(2);
        assert_eq!(names.len(), 0);
        assert!(names.bind(b"c", 3, any).is_ok() && names.bind(b"a", 3, any).is_ok());
    }

    #[test]
    fn a_lock_that_is_held_under_its_last_name_gets_no_other() {
        let mut names = Names::new(2);
        assert_eq!((names.bind(b"a", 1, any), names.bind(b"b", 1, any)), (Ok(0), Ok(1)));
        names.unbind(0, 1);
        assert_eq!(names.bind(b"c", 1, |lid| lid != 0), Err(Unbound::Busy));
        names.unbind(1, 1);
        assert_eq!(names.bind(b"c", 1, |lid| lid != 0), Ok(1), "another is free");
        assert_eq!(names.bind(b"d", 1, any), Ok(0));
    }

    #[test]
    fn claims_of_before_a_restart_are_kept_apart_from_new_names() {
        let mut names = Names::new(4);
        assert!(names.claim(b"x".to_vec(), 2, 1) && names.claim(b"x".to_vec(), 2, 3));
        assert!(!names.claim(b"y".to_vec(), 2, 1) && !names.claim(b"x".to_vec(), 1, 1));
        assert!(!names.claim(b"z".to_vec(), 4, 1));
        let given = [b"a", b"b", b"c"].map(|name| names.bind(name, 1, any));
        assert_eq!(given, [Ok(0), Ok(1), Ok(3)]);
        assert_eq!(names.bind(b"d", 1, any), Err(Unbound::Full));
    }
}
