//! Who may reset a lock, and how that meets with those who are granted it at the same moment.
//!
//! A waiter may take a lock for dead while somebody else has just been handed it and not yet written its card. So both
//! sides write, then look. Region 2 has one word per lock, which holds the peer that is about to reset it:
//!
//! - a resetter writes its number there, *then* looks at the cards, and resets only if no living client's card says that
//!   it holds the lock;
//! - whoever is granted the lock writes its card, *then* looks at the word, and while it is not zero waits for the reset
//!   to be over: then the lock's generation says whether the grant still stands.
//!
//! Every write is a full barrier, so one of the two sees the other. A resetter that dies in between is found dead by
//! whoever waits for it, and its word is cleared.

use super::Kind;
use super::cards::{self, Card, Sheet};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace};
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Word64};
use lockwright_locks::shiftlock::witness::Witness;

const REGION: RegionId = RegionId(2);
/// Between two looks at a reset that is not over: it takes microseconds, unless its process is stopped.
const LOOK_NS: u64 = 100_000;

/// Bytes of the words of `locks` locks.
pub(crate) const fn bytes(locks: u64) -> u64 {
    locks * 8
}

fn word(lock: u64) -> Word64 {
    Word64::at(Addr { offset: lock * 8, node: NodeId(0), region: REGION })
}

/// Asks the cards, for one member.
#[derive(Debug)]
pub(crate) struct Cards {
    pub(crate) space: ShmSpace,
    pub(crate) ep: ShmEndpoint,
}

impl Witness for Cards {
    fn may_reset(&self, lock: u64) -> bool {
        let me = u64::from(self.ep.me().0);
        match block_on(self.ep.go(word(lock).cas(0, me))) {
            Ok(0) => {}
            Ok(other) => {
                clear_if_dead(&self.space, &self.ep, lock, other);
                return false;
            }
            Err(_) => return false,
        }
        let held = is_held(&self.space, lock);
        if held {
            self.reset_is_over(lock);
        }
        !held
    }

    fn reset_is_over(&self, lock: u64) {
        // An expelled client's word is cleared by those who find it dead.
        let _ = block_on(self.ep.go(word(lock).cas(u64::from(self.ep.me().0), 0)));
    }
}

/// Whether nobody is about to reset `lock`: one load.
#[inline]
pub(crate) fn is_undisturbed(ep: &ShmEndpoint, lock: u64) -> bool {
    matches!(block_on(ep.go(word(lock).read())), Ok(0))
}

/// Done when nobody is about to reset `lock`.
pub(crate) async fn undisturbed(space: &ShmSpace, ep: &ShmEndpoint, lock: u64) -> Result<(), FabricError> {
    loop {
        match ep.go(word(lock).read()).await? {
            0 => return Ok(()),
            resetter => clear_if_dead(space, ep, lock, resetter),
        }
        ep.sleep(LOOK_NS).await;
    }
}

fn clear_if_dead(space: &ShmSpace, ep: &ShmEndpoint, lock: u64, resetter: u64) {
    let peer = PeerId(resetter as u32);
    let now = space.now();
    if !cards::sheet(space, peer).is_some_and(|sheet| is_alive(space, &sheet, now)) {
        let _ = block_on(ep.go(word(lock).cas(resetter, 0)));
    }
}

/// Whether somebody who is alive holds the keyed `lock`.
fn is_held(space: &ShmSpace, lock: u64) -> bool {
    has_card(space, lock, |card| card.state.holds())
}

/// Whether somebody who is alive holds the keyed `lock` or waits for it.
pub(crate) fn is_wanted(space: &ShmSpace, lock: u64) -> bool {
    has_card(space, lock, |_| true)
}

fn has_card(space: &ShmSpace, lock: u64, which: impl Fn(&Card) -> bool) -> bool {
    let now = space.now();
    cards::sheets(space).any(|sheet| {
        let of_lock = |card: &Card| card.kind == Kind::Keyed && card.claim.lock == lock && which(card);
        sheet.cards(space).any(|card| of_lock(&card)) && is_alive(space, &sheet, now)
    })
}

/// Whether the client of `sheet` lives, by its process, its ward and its lease. Whoever has been silent for longer than its lease is
/// declared dead here.
pub(crate) fn is_alive(space: &ShmSpace, sheet: &Sheet, now: Time) -> bool {
    if !space.is_alive(sheet.peer) {
        return sheet.ward.lives();
    }
    if sheet.is_expired(now) {
        space.declare_dead(sheet.peer);
        return false;
    }
    true
}
