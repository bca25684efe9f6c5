//! Queue members: which of a client's acquisitions stand in which queue.
//!
//! Usually none or one, in slot 0. A client that comes while that is in use, for whichever lock, takes a higher slot that is free
//! in this lock's queue, so that predecessor and successor can tell a client's acquisitions of one lock apart.

use super::layout::{Layout, Member};
use lockwright_fabric::PeerId;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The live acquisitions in exclusive mode of one client.
#[derive(Debug)]
pub(super) struct Members {
    me: PeerId,
    /// The member in slot 0, if the layout can name this client at all.
    first: Option<Member>,
    /// The lock for which slot 0 is in use, counted from one: what most clients need, without a mutex.
    taken: AtomicU64,
    /// The acquisitions in other slots. A mutex, since a client's acquisitions may be driven by several threads.
    others: Mutex<Vec<(u64, Member)>>,
    /// Whether the user says which slot an acquisition has: then there is nothing to keep here.
    given: bool,
}

impl Members {
    pub(super) fn new<L: Layout>(me: PeerId) -> Self {
        let (first, taken) = (Member::new::<L>(me, 0), AtomicU64::new(0));
        Self { me, first, taken, others: Mutex::default(), given: false }
    }

    fn others(&self) -> MutexGuard<'_, Vec<(u64, Member)>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a client that acquires says as which slot.
    pub(super) fn leave_to_user(&mut self) {
        self.given = true;
    }

    /// Whether the layout can name this client at all.
    pub(super) fn fits(&self) -> bool {
        self.first.is_some()
    }

    /// A place in the queue of `lock` that none of this client's other acquisitions has.
    #[inline(always)]
    pub(super) fn join<L: Layout>(&self, lock: u64) -> Option<Member> {
        // A look first: where slot 0 is in use, which it is for long, the cache line is left alone.
        if self.taken.load(Relaxed) == 0
            && self.taken.compare_exchange(0, lock.wrapping_add(1).max(1), Acquire, Relaxed).is_ok()
        {
            return self.first;
        }
        self.join_others::<L>(lock)
    }

    /// As [`Members::join`], for a client that stays on its thread: nobody comes between the look and the store.
    #[inline(always)]
    pub(super) fn join_alone<L: Layout>(&self, lock: u64) -> Option<Member> {
        if self.taken.load(Relaxed) == 0 {
            self.taken.store(lock.wrapping_add(1).max(1), Relaxed);
            return self.first;
        }
        self.join_others::<L>(lock)
    }

    #[cold]
    fn join_others<L: Layout>(&self, lock: u64) -> Option<Member> {
        let mut others = self.others();
        let mut slot = 1;
        let member = loop {
            let member = Member::new::<L>(self.me, slot)?;
            if !others.contains(&(lock, member)) {
                break member;
            }
            slot += 1;
        };
        others.push((lock, member));
        Some(member)
    }

    /// The acquisition is over.
    #[inline(always)]
    pub(super) fn leave(&self, lock: u64, member: Member) {
        if self.given {
            return;
        }
        if Some(member) == self.first {
            self.taken.store(0, Release);
        } else {
            self.leave_others(lock, member);
        }
    }

    #[cold]
    fn leave_others(&self, lock: u64, member: Member) {
        let mut others = self.others();
        if let Some(place) = others.iter().rposition(|entry| *entry == (lock, member)) {
            others.swap_remove(place);
        }
    }

    /// For the explorer's marks.
    pub(super) fn locals(&self) -> Vec<u64> {
        let others = self.others();
        let others = others.iter().flat_map(|(lock, member)| [*lock, member.0]);
        std::iter::once(self.taken.load(Relaxed)).chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Wide;
    use super::super::portable::Portable;
    use super::*;

    #[test]
    fn two_acquisitions_of_one_lock_are_two_members() {
        let members = Members::new::<Wide>(PeerId::client(0));
        let (one, two) = (members.join::<Wide>(5).unwrap(), members.join::<Wide>(5).unwrap());
        assert_ne!(one, two);
        assert_eq!(members.join::<Wide>(6), Some(two), "another lock has another queue");
        members.leave(5, one);
        assert_eq!(members.join::<Wide>(5), Some(one));
        members.leave(5, two);
        assert_eq!(members.join::<Wide>(5), Some(two));
    }

    #[test]
    fn a_client_that_the_layout_cannot_name_is_told_so() {
        assert!(Members::new::<Portable>(PeerId(2047)).fits());
        assert!(!Members::new::<Portable>(PeerId(2048)).fits());
        assert_eq!(Members::new::<Portable>(PeerId(2048)).join::<Portable>(0), None);
    }

    #[test]
    fn the_portable_layout_has_room_for_eight_acquisitions_of_a_lock() {
        let members = Members::new::<Portable>(PeerId::client(0));
        let joined: Vec<_> = (0..9).map(|_| members.join::<Portable>(0).is_some()).collect();
        assert_eq!(joined.iter().filter(|joined| **joined).count(), 8);
    }

    #[test]
    fn the_last_lock_of_all_takes_a_place_too() {
        let members = Members::new::<Wide>(PeerId::client(0));
        let (one, two) = (members.join::<Wide>(u64::MAX).unwrap(), members.join::<Wide>(u64::MAX).unwrap());
        assert_ne!(one, two);
    }
}
