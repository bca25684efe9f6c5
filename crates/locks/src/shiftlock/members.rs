//! Queue members: which of a client's acquisitions stand in which queue.
//!
//! Usually none or one. A second acquisition of the same lock by the same client, while an abandoned one still queues,
//! takes the next slot, so that predecessor and successor can tell the two apart.

use super::layout::{Layout, Member};
use lockwright_fabric::PeerId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The live acquisitions in exclusive mode of one client.
#[derive(Debug)]
pub(super) struct Members {
    me: PeerId,
    /// A mutex, since a client's acquisitions may be driven by several threads; hardly ever contended.
    live: Mutex<Vec<(u64, Member)>>,
    fits: bool,
    /// Whether the user says which slot an acquisition has: then there is nothing to keep here.
    given: bool,
}

impl Members {
    pub(super) fn new<L: Layout>(me: PeerId) -> Self {
        Self { me, live: Mutex::default(), fits: Member::new::<L>(me, 0).is_some(), given: false }
    }

    #[inline(always)]
    fn live(&self) -> MutexGuard<'_, Vec<(u64, Member)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on whoever acquires says as which slot.
    pub(super) fn leave_to_user(&mut self) {
        self.given = true;
    }

    /// Whether the layout can name this client at all.
    pub(super) fn fits(&self) -> bool {
        self.fits
    }

    /// A place in the queue of `lock` that none of this client's other acquisitions has.
    #[inline(always)]
    pub(super) fn join<L: Layout>(&self, lock: u64) -> Option<Member> {
        let mut live = self.live();
        let mut slot = 0;
        let member = loop {
            let member = Member::new::<L>(self.me, slot)?;
            if !live.contains(&(lock, member)) {
                break member;
            }
            slot += 1;
        };
        live.push((lock, member));
        Some(member)
    }

    /// The acquisition is over.
    #[inline(always)]
    pub(super) fn leave(&self, lock: u64, member: Member) {
        if self.given {
            return;
        }
        let mut live = self.live();
        if let Some(place) = live.iter().rposition(|entry| *entry == (lock, member)) {
            live.swap_remove(place);
        }
    }

    /// For the explorer's marks.
    pub(super) fn locals(&self) -> Vec<u64> {
        self.live().iter().flat_map(|(lock, member)| [*lock, member.0]).collect()
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
        assert_eq!(members.join::<Wide>(6), Some(one), "another lock has another queue");
        members.leave(5, one);
        assert_eq!(members.join::<Wide>(5), Some(one));
    }

    #[test]
    fn a_client_that_the_layout_cannot_name_is_told_so() {
        assert!(Members::new::<Portable>(PeerId(2047)).fits());
        assert!(!Members::new::<Portable>(PeerId(2048)).fits());
    }

    #[test]
    fn the_portable_layout_has_room_for_eight_acquisitions_of_a_lock() {
        let members = Members::new::<Portable>(PeerId::client(0));
        let joined: Vec<_> = (0..9).map(|_| members.join::<Portable>(0).is_some()).collect();
        assert_eq!(joined.iter().filter(|joined| **joined).count(), 8);
    }
}
