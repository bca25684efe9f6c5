//! Changing a range that is held by its record: upgrade, downgrade, giving back a part.
//!
//! What is held is never given up and taken again. Mode and state are in the record's first word, which is swapped for
//! another; a smaller range is one word, its start or its end. Why it is safe, if any client is killed or stopped:
//!
//! 1. **Judged inside.** An upgrade scans all records and swaps its own while it holds the gate, as a request does.
//! 2. **Split inside.** Of two pieces the second gets a record of its own before the first becomes shorter. A client that
//!    scans meanwhile might have passed the second's record and not yet come to the first's: the gate keeps it out.
//! 3. **Swapped, not stored.** A range that is taken away (its record is revoked) stays that.
//!
//! An upgrade that waits says so in its record. It bars those who come, as a writer would, and is barred by those who hold
//! and not by those who wait: they wait for the very range it has. Of two that share a unit the second is refused, since each
//! would wait for the other.

use super::client::HolderClient;
use super::indexed::GateHold;
use super::ranges::{RangeRecorder, RangeRecords, unless};
use super::record::State;
use super::space::RecordRules;
use crate::protocol::{Denied, Grant, Lost};
use crate::shiftlock::Rules;
use crate::shiftlock::versioned::VersionedLayout;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError};

/// Why a range was not upgraded. It is held as before, unless it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotUpgraded {
    /// Others read some of it, and it was only tried, or given up.
    Busy,
    /// Another reader of it waits for the same.
    WouldDeadlock,
    /// It was taken away.
    Lost,
    /// As a request for a range.
    Denied(Denied),
}

impl From<Denied> for NotUpgraded {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Fabric(FabricError::Evicted) => Self::Lost,
            denied => Self::Denied(denied),
        }
    }
}

impl From<FabricError> for NotUpgraded {
    fn from(error: FabricError) -> Self {
        Self::from(Denied::from(error))
    }
}

/// What bars an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// Nothing.
    No,
    /// Others read.
    ByReaders,
    /// One of them wants the same.
    ByAnUpgrade,
}

impl<E: Endpoint, B: RangeRecorder, R: Rules + RecordRules, L: VersionedLayout> HolderClient<E, B, R, L> {
    /// Makes a shared range exclusive if nobody else has any of it. Returns its token.
    ///
    /// # Errors
    /// If another client has, or the range was lost.
    pub async fn try_upgrade_range(&self, records: RangeRecords, claim: Claim) -> Result<u64, NotUpgraded> {
        self.upgrade_inside(records, claim, State::Held, false).await?.ok_or(NotUpgraded::Busy)
    }

    /// Makes a shared range exclusive, however long that takes, unless it is `given_up`, which is asked while it waits.
    ///
    /// # Errors
    /// [`NotUpgraded::Busy`] if it was given up; if another reader of it does the same, or it was lost.
    pub async fn upgrade_range_unless<G: Future<Output = ()>>(
        &self,
        records: RangeRecords,
        claim: Claim,
        given_up: impl Fn() -> G,
    ) -> Result<u64, NotUpgraded> {
        let (ep, changes) = (self.lock().endpoint(), self.recorder().changes(claim.lock));
        let (mut state, mut looked) = (State::Held, 0);
        loop {
            // Before the look: whatever changes after it ends the wait.
            let seen = ep.go(changes.read()).await?;
            if let Some(token) = self.upgrade_inside(records, claim, state, true).await? {
                return Ok(token);
            }
            state = State::Upgrading;
            looked += 1;
            let look_again = match self.recorder().patience_ns(looked) {
                Some(ns) => Deadline::At(ep.now().await.plus(ns)),
                None => Deadline::Never,
            };
            let changed = Cond::Ne { mask: u128::from(u64::MAX), value: u128::from(seen) };
            let changed = ep.wait_until(changes.until(changed).by(look_again));
            match unless(given_up(), changed).await {
                Some(changed) => drop(changed?),
                None => {
                    self.stop_upgrade(records.range, claim).await?;
                    return Err(NotUpgraded::Busy);
                }
            }
            ep.mark("holders: looks again for an upgrade", &[u64::from(looked)]);
        }
    }

    /// It is held and shared, as before, and bars nobody who reads.
    ///
    /// # Errors
    /// If it was lost.
    pub async fn stop_upgrade(&self, record: u8, claim: Claim) -> Result<(), NotUpgraded> {
        let shared = (State::Held, Mode::Shared);
        let back = self.recorder().swap_range(record, (State::Upgrading, Mode::Shared), shared).await?;
        self.tell(claim.lock).await?;
        if back { Ok(()) } else { Err(NotUpgraded::Lost) }
    }

    /// One look, and the swap if nothing bars it. `None` if something does: then its record is upgrading, if it `waits`.
    async fn upgrade_inside(
        &self,
        records: RangeRecords,
        claim: Claim,
        state: State,
        waits: bool,
    ) -> Result<Option<u64>, NotUpgraded> {
        let inside = self.take_gate(records, claim).await?;
        let token = inside.token().unwrap_or_default();
        if !R::UPGRADES_ARE_JUDGED_INSIDE {
            self.give_gate_back(records.gate, inside).await.map_err(of_gate)?;
        }
        let judged = self.judge_upgrade(records.range, claim, (state, waits), GateHold::new(&inside)).await;
        let given = match R::UPGRADES_ARE_JUDGED_INSIDE {
            true => self.give_gate_back(records.gate, inside).await,
            false => Ok(()),
        };
        let upgraded = judged?;
        match given {
            Ok(()) if upgraded => {
                self.recorder().granted(records.range, token).await?;
                Ok(Some(token))
            }
            Ok(()) => Ok(None),
            // The gate was lost meanwhile: others may have looked and seen a reader. Look again.
            Err(Lost::Recovered) if upgraded => {
                let back = if waits { State::Upgrading } else { State::Held };
                let exclusive = (State::Held, Mode::Exclusive);
                match self.recorder().swap_range(records.range, exclusive, (back, Mode::Shared)).await? {
                    true => Ok(None),
                    false => Err(NotUpgraded::Lost),
                }
            }
            Err(Lost::Recovered) => Ok(None),
            Err(Lost::Fabric(error)) => Err(error.into()),
        }
    }

    async fn judge_upgrade(
        &self,
        record: u8,
        claim: Claim,
        (state, waits): (State, bool),
        inside: GateHold,
    ) -> Result<bool, NotUpgraded> {
        let shared = (state, Mode::Shared);
        let barred = self.recorder().bars_upgrade(record, claim, inside).await?;
        let next = match barred {
            Barred::No => (State::Held, Mode::Exclusive),
            // The first to write that it waits is not refused later.
            Barred::ByAnUpgrade if state == State::Held => return Err(NotUpgraded::WouldDeadlock),
            _ if waits => (State::Upgrading, Mode::Shared),
            _ => shared,
        };
        if self.recorder().swap_range(record, shared, next).await? {
            Ok(barred == Barred::No)
        } else {
            Err(NotUpgraded::Lost)
        }
    }

    /// Makes an exclusive range shared. Returns its token from then on.
    ///
    /// # Errors
    /// If it was lost.
    pub async fn downgrade_range(&self, records: RangeRecords, claim: Claim) -> Result<u64, NotUpgraded> {
        let inside = self.take_gate(records, claim).await?;
        let token = inside.token().unwrap_or_default();
        let (exclusive, shared) = ((State::Held, Mode::Exclusive), (State::Held, Mode::Shared));
        let swapped = self.recorder().swap_range(records.range, exclusive, shared).await;
        if swapped == Ok(true) {
            // Before the gate is given back: readers that come have larger ones.
            self.recorder().granted(records.range, token).await?;
        }
        // Lost or not: less is held than before.
        let _ = self.give_gate_back(records.gate, inside).await;
        self.tell(claim.lock).await?;
        if swapped? { Ok(token) } else { Err(NotUpgraded::Lost) }
    }

    /// Gives back `start..end` of a range, which is inside, and leaves something; empty, it is in the middle. `rest` is a
    /// free record for the second piece, if two are left, whose token is that of the first.
    ///
    /// # Errors
    /// If it was lost.
    pub async fn shrink_range(
        &self,
        records: RangeRecords,
        rest: Option<u8>,
        claim: Claim,
        token: u64,
        (start, end): (u64, u64),
    ) -> Result<(), NotUpgraded> {
        let Some(rest) = rest else {
            let kept = if claim.start < start {
                Claim { end: start, ..claim }
            } else {
                Claim { start: end, ..claim }
            };
            self.recorder().narrow_range(records.range, kept).await?;
            return self.shrunk(records.range, claim).await;
        };
        let (left, right) = (Claim { end: start, ..claim }, Claim { start: end, ..claim });
        self.leave_other_index(records.gate, rest, claim).await;
        let inside = self.take_gate(records, claim).await?;
        if !R::RANGES_ARE_SPLIT_INSIDE {
            self.give_gate_back(records.gate, inside).await.map_err(of_gate)?;
        }
        let split =
            self.split_range(records.range, rest, (left, right), (token, GateHold::new(&inside))).await;
        if R::RANGES_ARE_SPLIT_INSIDE {
            // Lost or not: what is held now was held before.
            let _ = self.give_gate_back(records.gate, inside).await;
        }
        split?;
        self.shrunk(records.range, claim).await
    }

    /// Rule 2.
    async fn split_range(
        &self,
        record: u8,
        rest: u8,
        (left, right): (Claim, Claim),
        (token, inside): (u64, GateHold),
    ) -> Result<(), NotUpgraded> {
        if R::SECOND_PIECES_ARE_ENTERED {
            self.recorder().enter(rest, right, inside).await?;
        }
        let holding = super::client::Holding { state: State::Held, claim: right, turn: 0 };
        self.recorder().write_range(rest, Some(holding)).await?;
        self.recorder().granted(rest, token).await?;
        if !self.recorder().is_range_held(record, left).await? {
            self.recorder().write_range(rest, None).await?;
            return Err(NotUpgraded::Lost);
        }
        Ok(self.recorder().narrow_range(record, left).await?)
    }

    async fn shrunk(&self, record: u8, claim: Claim) -> Result<(), NotUpgraded> {
        self.tell(claim.lock).await?;
        if self.recorder().is_range_held(record, claim).await? { Ok(()) } else { Err(NotUpgraded::Lost) }
    }
}

fn of_gate(lost: Lost) -> NotUpgraded {
    match lost {
        Lost::Recovered => NotUpgraded::Busy,
        Lost::Fabric(error) => error.into(),
    }
}
