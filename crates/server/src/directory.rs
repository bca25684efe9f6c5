//! The names of a server's own spaces: exact, found in one look, given up when nobody uses them.
//!
//! A lock's id is never used again. Names that nobody uses stay for a while for what they have seen, which `top` shows.

use super::totals::Now;
use lockwright::LockName;
use lockwright::wire::Kind;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Names in use at a time.
pub(super) const MAX_NAMES: usize = 1 << 20;
/// Names out of use that are remembered.
const REMEMBERED: usize = 4096;
/// Spaces of a server's own.
const MAX_SPACES: usize = 4096;

/// Where a name belongs.
pub(super) type SpaceNumber = u32;
type Key = (SpaceNumber, Kind, LockName);

/// One lock.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) space: SpaceNumber,
    pub(super) kind: Kind,
    pub(super) name: LockName,
    /// Handles, and requests that wait or are held.
    uses: u64,
    /// How often it went out of use.
    idle: u64,
    pub(super) now: Now,
    pub(super) grants: u64,
    /// Grants that had to be waited for, and for how long altogether.
    pub(super) contended: u64,
    pub(super) waited: Duration,
}

/// All names.
#[derive(Debug, Default)]
pub(super) struct Directory {
    spaces: HashMap<Vec<u8>, SpaceNumber>,
    ids: HashMap<Key, u64>,
    /// Ids are this server's choice, one after the other, so nobody can make them collide.
    locks: HashMap<u64, Lock, foldhash::fast::RandomState>,
    /// Out of use, the longest first; some may be in use again.
    idle: VecDeque<(u64, u64)>,
    in_use: usize,
    next: u64,
}

impl Directory {
    /// The space called `name`. `None` if there are too many.
    pub(super) fn space(&mut self, name: &[u8]) -> Option<SpaceNumber> {
        if let Some(number) = self.spaces.get(name) {
            return Some(*number);
        }
        if self.spaces.len() >= MAX_SPACES {
            return None;
        }
        let number = self.spaces.len() as SpaceNumber;
        self.spaces.insert(name.to_vec(), number);
        Some(number)
    }

    pub(super) fn spaces(&self) -> usize {
        self.spaces.len()
    }

    /// The lock of that name, used once more. `None` if there are too many.
    pub(super) fn open(&mut self, space: SpaceNumber, kind: Kind, name: LockName) -> Option<u64> {
        let key = (space, kind, name);
        if let Some(id) = self.ids.get(&key).copied() {
            self.use_again(id);
            return Some(id);
        }
        if self.in_use >= MAX_NAMES {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.in_use += 1;
        let (space, kind, name) = key.clone();
        let lock = Lock {
            space,
            kind,
            name,
            uses: 1,
            idle: 0,
            now: Now::default(),
            grants: 0,
            contended: 0,
            waited: Duration::ZERO,
        };
        self.locks.insert(id, lock);
        self.ids.insert(key, id);
        Some(id)
    }

    /// One more use of a lock that is in the directory.
    #[inline]
    pub(super) fn use_again(&mut self, id: u64) -> &mut Lock {
        let lock = self.locks.get_mut(&id).expect("whoever uses a lock again has found it here");
        self.in_use += usize::from(lock.uses == 0);
        lock.uses += 1;
        lock
    }

    /// One use less.
    pub(super) fn close(&mut self, id: u64) {
        self.close_after(id, |_| {});
    }

    /// One use less, and before that something else.
    #[inline]
    pub(super) fn close_after(&mut self, id: u64, last: impl FnOnce(&mut Lock)) {
        let lock = self.locks.get_mut(&id).expect("a lock in use is in the directory");
        last(lock);
        lock.uses -= 1;
        if lock.uses == 0 {
            lock.idle += 1;
            let idle = lock.idle;
            self.out_of_use(id, idle);
        }
    }

    /// Nobody uses the lock any more, for the `time`th time.
    #[cold]
    fn out_of_use(&mut self, id: u64, time: u64) {
        self.in_use -= 1;
        self.idle.push_back((id, time));
        if self.idle.len() > REMEMBERED {
            let (oldest, time) = self.idle.pop_front().expect("there are more than none");
            let unused = |lock: &&mut Lock| lock.uses == 0 && lock.idle == time;
            if self.locks.get_mut(&oldest).filter(unused).is_some() {
                let lock = self.locks.remove(&oldest).expect("just seen");
                self.ids.remove(&(lock.space, lock.kind, lock.name));
            }
        }
    }

    #[inline]
    pub(super) fn lock(&self, id: u64) -> &Lock {
        &self.locks[&id]
    }

    #[inline]
    pub(super) fn lock_mut(&mut self, id: u64) -> &mut Lock {
        self.locks.get_mut(&id).expect("a lock in use is in the directory")
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// All locks of a space.
    pub(super) fn of(&self, space: SpaceNumber) -> impl Iterator<Item = &Lock> {
        self.locks.values().filter(move |lock| lock.space == space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn names_are_kept_apart_by_space_and_kind_and_given_up_when_unused() {
        let mut directory = Directory::default();
        let (a, b) = (directory.space(b"a").unwrap(), directory.space(b"b").unwrap());
        assert_eq!(directory.space(b"a"), Some(a));
        let one = directory.open(a, Kind::Keyed, name("x")).unwrap();
        assert_eq!(directory.open(a, Kind::Keyed, name("x")), Some(one));
        assert_ne!(directory.open(a, Kind::Ranges, name("x")), Some(one));
        assert_ne!(directory.open(b, Kind::Keyed, name("x")), Some(one));
        assert_eq!(directory.in_use(), 3);
        directory.close(one);
        directory.close(one);
        assert_eq!(directory.in_use(), 2);
        for n in 0..3 * REMEMBERED {
            let id = directory.open(a, Kind::Keyed, name(&n.to_string())).unwrap();
            directory.close(id);
        }
        assert!(directory.locks.len() <= REMEMBERED + 2 && directory.ids.len() == directory.locks.len());
        assert_ne!(directory.open(a, Kind::Keyed, name("x")), Some(one), "an id is never used again");
    }
}
