//! Taking a free lock and giving it back on a fabric whose verbs take no waiting: one verb each, and no future.
//!
//! The verbs are those of `try_as` and `give_back`; whatever they do not settle is left to those. What such a grant has
//! beyond the claim and the slot is two whole words, so that it can lie anywhere without being put together from pieces.

use super::acquire::{enqueue_if_free, enter_if_no_writer};
use super::layout::{Delta, Entry, Layout, Member, Stamp, happened};
use super::lookup::HolderLookup;
use super::shared::SharedClient;
use super::{Core, Rules, ShiftGrant};
use crate::protocol::Denied;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, Value, Word64};

/// A lock that was free and was taken with one verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastGrant {
    stamp: Stamp,
    /// 0 or 1.
    epoch: u64,
}

impl FastGrant {
    /// The fencing token.
    #[inline(always)]
    pub const fn token(&self) -> u64 {
        self.stamp.token()
    }

    /// As [`ShiftGrant::mark`].
    #[inline(always)]
    pub const fn mark(&self) -> u64 {
        self.stamp.mark()
    }
}

impl<E: Endpoint, L: Layout, R: Rules, W: HolderLookup> SharedClient<E, L, R, W> {
    /// Takes the lock if it is free, as the acquisition `slot`.
    ///
    /// # Errors
    /// [`Denied::Busy`] also where a second look might have settled it, and where verbs have to be waited for.
    #[inline(always)]
    pub(crate) fn try_now(&self, slot: u8, claim: Claim) -> Result<FastGrant, Denied> {
        let (core, word) = (&self.core, self.core.word(claim.lock));
        // Nothing happens to an entry that looks like this.
        let go = |verb| core.ep.try_go(verb).unwrap_or(Ok(L::Word::narrow(u128::MAX)));
        if claim.mode == Mode::Shared {
            let seen = Entry::<L>::of(go(word.read())?);
            if !seen.lets_readers_in() || Core::<E, L, R, (), W>::is_spent(seen) {
                return Err(Denied::Busy);
            }
            let enter = L::change(word, enter_if_no_writer::<L, R>(seen.rdr_cnt()), Some(seen.word()));
            let old = go(enter)?;
            let fast_grant = FastGrant { stamp: Entry::<L>::of(old).stamp(), epoch: 0 };
            return if happened(enter, old) { Ok(fast_grant) } else { Err(Denied::Busy) };
        }
        let me = Member::new::<L>(core.ep.me(), u64::from(slot)).ok_or(Denied::Busy)?;
        let enqueue = L::change(word, enqueue_if_free::<L, R>(me), None);
        let old = go(enqueue)?;
        let entry = Entry::<L>::of(old);
        let fast_grant = FastGrant { stamp: entry.stamp(), epoch: u64::from(entry.epoch()) };
        if happened(enqueue, old) { Ok(fast_grant) } else { Err(Denied::Busy) }
    }

    /// Whether a try would find the lock free. One load: half of the entry says it.
    #[inline(always)]
    pub(crate) fn looks_free_now(&self, claim: Claim) -> bool {
        let readers = if claim.mode == Mode::Shared { L::UPGRADING } else { L::RDR_CNT.mask() };
        let busy = L::TAIL.mask() | readers;
        let half = Word64::at(self.core.word(claim.lock).addr());
        let seen = self.core.ep.try_go(half.read());
        // Where it takes the other half, too: try.
        busy > u128::from(u64::MAX) || matches!(seen, Ok(Ok(seen)) if u128::from(seen) & busy == 0)
    }

    /// What the others know as a grant.
    #[inline(always)]
    pub fn grant(&self, slot: u8, claim: Claim, fast_grant: FastGrant) -> ShiftGrant {
        let me = Member::new::<L>(self.core.ep.me(), u64::from(slot));
        match (claim.mode, me) {
            (Mode::Exclusive, Some(me)) => {
                ShiftGrant::writer(claim.lock, fast_grant.stamp, me, 0, fast_grant.epoch != 0)
            }
            _ => ShiftGrant::reader(claim.lock, fast_grant.stamp),
        }
    }

    /// Gives the lock back if one verb settles it: nobody is behind, and the lock was not lost. Else nothing has happened.
    #[inline(always)]
    pub fn give_back_now(&self, slot: u8, claim: Claim, fast_grant: FastGrant) -> bool {
        let (core, word) = (&self.core, self.core.word(claim.lock));
        // Two calls and not one: which verb it is must be known where it is executed.
        if claim.mode == Mode::Shared {
            let leave = L::add(word, Delta::LEAVE, core.guard(fast_grant.stamp));
            return matches!(core.ep.try_go(leave), Ok(Ok(old)) if happened(leave, old));
        }
        let free = Core::<E, L, R, (), W>::freed(self.grant(slot, claim, fast_grant));
        let free = L::change(word, free, None);
        matches!(core.ep.try_go(free), Ok(Ok(old)) if happened(free, old))
    }
}
