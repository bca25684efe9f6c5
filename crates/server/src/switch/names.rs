//! Which lock of the decider a name stands for: exactly one, by a table, never by a hash alone.
//!
//! A name has its lock as long as some machine uses it. Then the lock may stand for another name: whatever is still under
//! way about it is only one more contender for a lock, and fencing tokens count for all locks together.

use std::collections::{BTreeSet, HashMap};

#[derive(Debug)]
pub(super) struct Names {
    locks: u64,
    /// The lock, and the machines that use it.
    by_name: HashMap<Vec<u8>, (u64, BTreeSet<u8>)>,
    by_lock: HashMap<u64, Vec<u8>>,
    /// Below `used`, and free again.
    free: BTreeSet<u64>,
    used: u64,
}

impl Names {
    pub(super) fn new(locks: u64) -> Self {
        let (by_name, by_lock) = (HashMap::new(), HashMap::new());
        Self { locks, by_name, by_lock, free: BTreeSet::new(), used: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The lock called `name`, which machine `mid` uses from now on. `None` if there are no more locks.
    pub(super) fn bind(&mut self, name: Vec<u8>, mid: u8) -> Option<u64> {
        if let Some((lid, users)) = self.by_name.get_mut(&name) {
            users.insert(mid);
            return Some(*lid);
        }
        let lid = match self.free.pop_first() {
            Some(lid) => lid,
            None if self.used < self.locks => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        self.by_lock.insert(lid, name.clone());
        self.by_name.insert(name, (lid, BTreeSet::from([mid])));
        Some(lid)
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
                if lid >= self.used {
                    self.free.extend(self.used..lid);
                    self.used = lid + 1;
                }
                self.free.remove(&lid);
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
            self.free.insert(lid);
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

    #[test]
    fn a_name_keeps_its_lock_while_a_client_uses_it() {
        let mut names = Names::new(2);
        assert_eq!(names.bind(b"a".to_vec(), 1), Some(0));
        assert_eq!(names.bind(b"a".to_vec(), 2), Some(0));
        assert_eq!(names.bind(b"b".to_vec(), 2), Some(1));
        assert_eq!(names.bind(b"c".to_vec(), 2), None);
        names.unbind(0, 1);
        assert_eq!(names.bind(b"c".to_vec(), 2), None);
        names.forget(2);
        assert_eq!((names.bind(b"c".to_vec(), 3), names.bind(b"a".to_vec(), 3)), (Some(0), Some(1)));
    }

    #[test]
    fn claims_of_before_a_restart_are_kept_apart_from_new_names() {
        let mut names = Names::new(4);
        assert!(names.claim(b"x".to_vec(), 2, 1) && names.claim(b"x".to_vec(), 2, 3));
        assert!(!names.claim(b"y".to_vec(), 2, 1) && !names.claim(b"x".to_vec(), 1, 1));
        assert!(!names.claim(b"z".to_vec(), 4, 1));
        let given: Vec<_> = [b"a", b"b", b"c"].map(|name| names.bind(name.to_vec(), 1)).into();
        assert_eq!(given, [Some(0), Some(1), Some(3)]);
        assert_eq!(names.bind(b"d".to_vec(), 1), None);
    }
}
