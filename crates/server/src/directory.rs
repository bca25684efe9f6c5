//! The names of a server's own spaces: exact, found in one look, given up when nobody uses them.
//!
//! A lock's id is never used again. Names that nobody uses stay for a while for what they have seen, which `top` shows.

use super::retention::Affinity;
use super::totals::Now;
use lockwright::LockName;
use lockwright::wire::{Kind, RequestId};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

/// Names in use at a time.
pub(super) const MAX_NAMES: usize = 1 << 20;
/// Names out of use that are remembered.
const REMEMBERED: usize = 4096;
/// Spaces of a server's own; those that no session uses make room for others.
const MAX_SPACES: usize = 4096;

/// Where a name belongs. A number is never used again.
pub(super) type SpaceNumber = u64;
type Key = (SpaceNumber, Kind, LockName);

/// One lock.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) space: SpaceNumber,
    pub(super) kind: Kind,
    pub(super) name: LockName,
    /// Handles, and requests that wait or are held.
    uses: u64,
    /// How often it went out of use.
    idle: u64,
    pub(super) now: Now,
    /// Who uses it, and grants of it that stay with their clients: session and request.
    pub(super) affinity: Affinity,
    pub(super) retained: Vec<(u32, RequestId)>,
    /// Grants whose holders want to hear of those who wait.
    pub(super) watched: Vec<(u32, RequestId)>,
    /// When a client other than its last user had asked for it.
    pub(super) other_at: Option<Instant>,
    pub(super) grants: u64,
    /// Grants that had to be waited for, and for how long altogether.
    pub(super) contended: u64,
    pub(super) waited: Duration,
}

/// One space.
#[derive(Clone, Debug)]
struct Space {
    name: Vec<u8>,
    sessions: usize,
    /// How often its last session went.
    left: u64,
}

/// All names.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    numbers: HashMap<Vec<u8>, SpaceNumber>,
    spaces: HashMap<SpaceNumber, Space>,
    next_space: SpaceNumber,
    /// Spaces without sessions, the longest first; some may have one again.
    unused: VecDeque<(SpaceNumber, u64)>,
    ids: HashMap<Key, u64>,
    /// Ids are this server's choice, one after the other, so nobody can make them collide.
    locks: HashMap<u64, Lock, foldhash::fast::RandomState>,
    /// The ids of `locks` in order, and some of locks that are gone: a walk over all of them can be interrupted.
    order: Vec<u64>,
    /// Out of use, the longest first; some may be in use again.
    idle: VecDeque<(u64, u64)>,
    in_use: usize,
    next: u64,
}

/// Which names there are, and which are in use. What they have seen decides about nothing.
impl Hash for Directory {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let of = |id: &u64| {
            let lock = self.lock(*id);
            (*id, lock.uses, lock.affinity, &lock.retained, &lock.watched)
        };
        let ids: BTreeMap<_, _> = self.ids.iter().map(|(key, id)| (key, of(id))).collect();
        (ids, self.next, self.in_use, self.next_space).hash(state);
    }
}

impl Directory {
    /// The space called `name`. `None` if there are too many.
    pub(super) fn space(&mut self, name: &[u8]) -> Option<SpaceNumber> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        while self.spaces.len() >= MAX_SPACES {
            let (oldest, time) = self.unused.pop_front()?;
            if self.spaces.get(&oldest).is_some_and(|space| space.sessions == 0 && space.left == time) {
                let space = self.spaces.remove(&oldest).expect("just seen");
                self.numbers.remove(&space.name);
            }
        }
        let number = self.next_space;
        self.next_space += 1;
        self.numbers.insert(name.to_vec(), number);
        self.spaces.insert(number, Space { name: name.to_vec(), sessions: 0, left: 0 });
        Some(number)
    }

    /// What the space is called.
    pub(super) fn space_name(&self, number: SpaceNumber) -> &[u8] {
        &self.spaces[&number].name
    }

    /// A session is in the space, which was just found.
    pub(super) fn enter(&mut self, number: SpaceNumber) {
        self.spaces.get_mut(&number).expect("a space that was found is there").sessions += 1;
    }

    /// A session that was in the space is over, with all its handles and requests.
    pub(super) fn leave(&mut self, number: SpaceNumber) {
        let space = self.spaces.get_mut(&number).expect("a space with sessions is there");
        space.sessions -= 1;
        if space.sessions == 0 {
            space.left += 1;
            self.unused.push_back((number, space.left));
        }
        // Every space is in it once, if it is to be: what is behind is about uses that ended before.
        if self.unused.len() > 2 * MAX_SPACES {
            let spaces = &self.spaces;
            self.unused.retain(|(number, time)| {
                spaces.get(number).is_some_and(|space| space.sessions == 0 && space.left == *time)
            });
        }
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
            affinity: Affinity::default(),
            retained: Vec::new(),
            watched: Vec::new(),
            other_at: None,
            grants: 0,
            contended: 0,
            waited: Duration::ZERO,
        };
        self.locks.insert(id, lock);
        self.ids.insert(key, id);
        if self.order.len() >= 2 * self.locks.len() + REMEMBERED {
            let locks = &self.locks;
            self.order.retain(|id| locks.contains_key(id));
        }
        self.order.push(id);
        Some(id)
    }

    /// One more use of a lock that is in the directory.
    #[inline]
    pub(super) fn use_again(&mut self, id: u64) -> &mut Lock {
        let lock = self.locks.get_mut(&id).expect("a lock that is used again was found here");
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

    /// The space called `name`, if there is one.
    pub(super) fn find_space(&self, name: &[u8]) -> Option<SpaceNumber> {
        self.numbers.get(name).copied()
    }

    /// The names of all spaces, in order.
    pub(super) fn space_names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.numbers.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        names.sort();
        names
    }

    /// The lock, if it is still there.
    pub(super) fn find(&self, id: u64) -> Option<&Lock> {
        self.locks.get(&id)
    }

    /// Some ids of locks from `from` on, in order, of which some may be gone; and where to go on.
    pub(super) fn some_ids(&self, from: u64, most: usize) -> (&[u64], Option<u64>) {
        let rest = &self.order[self.order.partition_point(|id| *id < from)..];
        let (some, rest) = rest.split_at(most.min(rest.len()));
        (some, rest.first().copied())
    }

    /// All locks of a space, with their ids.
    pub(super) fn with_ids(&self, space: SpaceNumber) -> impl Iterator<Item = (u64, &Lock)> {
        self.locks.iter().filter(move |(_, lock)| lock.space == space).map(|(id, lock)| (*id, lock))
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
        let (mut walked, mut from) = (Vec::<u64>::new(), Some(0));
        while let Some(at) = from {
            let (some, next) = directory.some_ids(at, 1000);
            walked.extend(some.iter().filter(|id| directory.find(**id).is_some()));
            from = next;
        }
        assert!(walked.is_sorted() && walked.len() == directory.locks.len(), "every lock once");
        assert!(directory.order.len() <= 3 * directory.locks.len());
        assert_ne!(directory.open(a, Kind::Keyed, name("x")), Some(one), "an id is never used again");
    }
}
