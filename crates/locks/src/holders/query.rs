//! What a client looks for in the holder records of the living: one question each.

use super::client::Holding;
use super::record::{First, Kind, State};
use super::space::RecordRules;
use crate::shiftlock::layout::{Layout, Member};
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::Claim;
use std::marker::PhantomData;

/// What a client looks for in the records of the living.
pub(super) trait Query {
    /// Whether the first word of a record leaves it in question.
    fn may_match(&self, peer: PeerId, record: u64, first: First) -> bool;

    /// Whether a range may be what is looked for, as long as its record is not read again.
    fn may_overlap(&self, _start: u64, _end: u64) -> bool {
        true
    }

    /// What settles it beyond the first word: nothing, or range and turn.
    fn matches(&self, first: First, range: Option<[u64; 3]>) -> bool;

    /// Whether a record that matches, of a client that is alive, settles the whole question.
    fn settles(&mut self, _first: First, _range: Option<[u64; 3]>) -> bool {
        true
    }

    /// Whether more than the first word has to be read.
    const READS_RANGE: bool;
}

/// Whether a keyed lock is held, but by the queue member that asks.
pub(super) struct IsHeld<L, R> {
    pub(super) lock: u64,
    pub(super) except: Member,
    pub(super) of: PhantomData<(L, R)>,
}

impl<L: Layout, R> IsHeld<L, R> {
    /// Whether a record is of the member that asks.
    #[inline(always)]
    pub(super) fn asks(&self, peer: PeerId, record: u64) -> bool {
        Member::new::<L>(peer, record & L::SLOT.max() as u64) == Some(self.except)
    }
}

impl<L: Layout, R: RecordRules> Query for IsHeld<L, R> {
    const READS_RANGE: bool = false;

    #[inline(always)]
    fn may_match(&self, peer: PeerId, record: u64, first: First) -> bool {
        let holds = first.holds() && (R::UPGRADING_HOLDS || first.state() != Some(State::Upgrading));
        holds && first.is_for(Kind::Keyed, self.lock) && !self.asks(peer, record)
    }

    fn matches(&self, _: First, _: Option<[u64; 3]>) -> bool {
        true
    }
}

/// Whether a reader of a keyed lock would be alone, but for the one that asks.
pub(super) struct IsUpgrading<L, R>(pub(super) IsHeld<L, R>);

impl<L: Layout, R: RecordRules> Query for IsUpgrading<L, R> {
    const READS_RANGE: bool = false;

    fn may_match(&self, peer: PeerId, record: u64, first: First) -> bool {
        first.state() == Some(State::Upgrading) && self.0.may_match(peer, record, first)
    }

    fn matches(&self, _: First, _: Option<[u64; 3]>) -> bool {
        true
    }
}

/// Whether a range is in the way of a request, but for the request's own record.
pub(super) struct IsBlocked {
    pub(super) mine: (PeerId, u64),
    pub(super) claim: Claim,
    pub(super) turn: u64,
}

impl Query for IsBlocked {
    const READS_RANGE: bool = true;

    #[inline(always)]
    fn may_match(&self, peer: PeerId, record: u64, first: First) -> bool {
        first.is_for(Kind::Range, self.claim.lock) && (peer, record) != self.mine
    }

    /// Only the holder of a lock's gate writes its ranges, and that is this client: a record that has changed meanwhile was
    /// given back.
    #[inline(always)]
    fn may_overlap(&self, start: u64, end: u64) -> bool {
        start < self.claim.end && self.claim.start < end
    }

    fn matches(&self, first: First, range: Option<[u64; 3]>) -> bool {
        let Some([start, end, turn]) = range else { return false };
        let Some(state) = first.state() else { return false };
        let claim = Claim { lock: first.lock(), mode: first.mode(), start, end };
        Holding { state, claim, turn }.is_in_the_way(&self.claim, self.turn)
    }
}

/// Whether a range is held by another record than that of an upgrade.
pub(super) struct BarsUpgrade {
    pub(super) mine: (PeerId, u64),
    pub(super) claim: Claim,
    /// Only those that want the same.
    pub(super) upgrading: bool,
}

impl Query for BarsUpgrade {
    const READS_RANGE: bool = true;

    fn may_match(&self, peer: PeerId, record: u64, first: First) -> bool {
        let wanted = !self.upgrading || first.state() == Some(State::Upgrading);
        wanted && first.holds() && first.is_for(Kind::Range, self.claim.lock) && (peer, record) != self.mine
    }

    /// As for [`IsBlocked`]; ranges that are narrowed meanwhile are read as they were, or as they are.
    fn may_overlap(&self, start: u64, end: u64) -> bool {
        start < self.claim.end && self.claim.start < end
    }

    fn matches(&self, _: First, range: Option<[u64; 3]>) -> bool {
        range.is_some_and(|[start, end, _]| self.may_overlap(start, end))
    }
}

/// Whether there are too few permits for a request, counting those that are held and those that were wanted before it.
pub(super) struct TooFew {
    pub(super) mine: (PeerId, u64),
    pub(super) claim: Claim,
    pub(super) turn: u64,
    /// Permits that others have.
    pub(super) held: u64,
    /// A record names another limit.
    pub(super) other_limit: bool,
}

impl Query for TooFew {
    const READS_RANGE: bool = true;

    fn may_match(&self, peer: PeerId, record: u64, first: First) -> bool {
        first.is_for(Kind::Range, self.claim.lock) && (peer, record) != self.mine
    }

    fn matches(&self, first: First, range: Option<[u64; 3]>) -> bool {
        let Some([.., turn]) = range else { return false };
        first.state().is_some_and(|state| Holding { state, claim: self.claim, turn }.is_before(self.turn))
    }

    fn settles(&mut self, first: First, range: Option<[u64; 3]>) -> bool {
        let Some([weight, end, _]) = range else { return false };
        self.other_limit |= end != self.claim.end;
        self.held = self.held.saturating_add(weight);
        let waits = first.state() == Some(State::Waiting);
        self.other_limit || waits || self.held.saturating_add(self.claim.start) >= self.claim.end
    }
}

/// Whether a lock is held or wanted, keyed or ranges.
pub(super) struct IsWanted(pub(super) u64);

impl Query for IsWanted {
    const READS_RANGE: bool = false;

    fn may_match(&self, _: PeerId, _: u64, first: First) -> bool {
        first.is_for(Kind::Keyed, self.0) || first.is_for(Kind::Range, self.0)
    }

    fn matches(&self, _: First, _: Option<[u64; 3]>) -> bool {
        true
    }
}
