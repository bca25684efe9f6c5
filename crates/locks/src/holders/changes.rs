//! Changing a keyed lock that is held: upgrade and downgrade, with what is written down about them.
//!
//! The entry's side is `shiftlock::change`. A record says that its client holds the lock from before the grant to after the
//! release, whatever it does in between, so no look that came after the grant takes the lock for dead:
//!
//! | | before the entry is changed | after |
//! |---|---|---|
//! | upgrade | upgrading, shared | held, exclusive, with the new mark; still alive? |
//! | upgrade that is refused or given up | upgrading, shared, until readers are let in again | held, shared |
//! | downgrade | held, exclusive | held, shared, with the new mark; still alive? |

use super::client::{HolderClient, Recorder};
use super::range_changes::NotUpgraded;
use super::ranges::unless;
use super::record::State;
use super::space::RecordRules;
use crate::protocol::{Denied, Lost};
use crate::shiftlock::change::Attempt;
use crate::shiftlock::versioned::VersionedLayout;
use crate::shiftlock::{Rules, ShiftGrant};
use lockwright_fabric::Endpoint;
use lockwright_fabric::observe::{Claim, Mode};

impl<E: Endpoint, B: Recorder, R: Rules + RecordRules, L: VersionedLayout> HolderClient<E, B, R, L> {
    /// Makes a reader the writer if nobody else who is alive reads.
    ///
    /// # Errors
    /// If others do, or the lock was lost. It is held as before, unless it is lost.
    pub async fn try_upgrade(
        &self,
        record: u8,
        claim: Claim,
        grant: ShiftGrant,
    ) -> Result<ShiftGrant, NotUpgraded> {
        self.upgrade(record, claim, grant, None::<fn() -> std::future::Ready<()>>).await
    }

    /// Makes a reader the writer, however long that takes, unless it is `given_up`, which is asked when it would wait.
    ///
    /// # Errors
    /// [`NotUpgraded::Busy`] if it was given up; if another reader does the same, or the lock was lost.
    pub async fn upgrade_unless<G: Future<Output = ()>>(
        &self,
        record: u8,
        claim: Claim,
        grant: ShiftGrant,
        given_up: impl Fn() -> G,
    ) -> Result<ShiftGrant, NotUpgraded> {
        self.upgrade(record, claim, grant, Some(given_up)).await
    }

    async fn upgrade<G: Future<Output = ()>>(
        &self,
        record: u8,
        claim: Claim,
        grant: ShiftGrant,
        given_up: Option<impl Fn() -> G>,
    ) -> Result<ShiftGrant, NotUpgraded> {
        if R::UPGRADES_ARE_WRITTEN_FIRST {
            self.recorder().restate(record, State::Upgrading, claim).await?;
        }
        let mut bars = false;
        match self.until_alone(record, claim, grant, given_up, &mut bars).await {
            Ok(alone) => {
                let exclusive = Claim { mode: Mode::Exclusive, ..claim };
                self.recorder().restate(record, State::Held, exclusive).await?;
                self.recorder().granted(record, alone.mark()).await?;
                Ok(alone)
            }
            Err(why) => {
                let lost = bars && !self.lock().let_readers_in(&grant).await?;
                self.recorder().restate(record, State::Held, claim).await?;
                Err(if lost { NotUpgraded::Lost } else { why })
            }
        }
    }

    async fn until_alone<G: Future<Output = ()>>(
        &self,
        record: u8,
        claim: Claim,
        grant: ShiftGrant,
        given_up: Option<impl Fn() -> G>,
        bars: &mut bool,
    ) -> Result<ShiftGrant, NotUpgraded> {
        let (slot, mut looked) = (Self::slot(record), 0);
        loop {
            let seen = match self.lock().try_alone(slot, &grant, given_up.is_some(), bars).await? {
                Attempt::Alone(alone) => return Ok(alone),
                Attempt::Shared(seen) => seen,
                Attempt::Barred => return Err(NotUpgraded::WouldDeadlock),
                Attempt::Exhausted => return Err(NotUpgraded::Denied(Denied::Exhausted)),
                Attempt::Lost => return Err(NotUpgraded::Lost),
            };
            let Some(given_up) = &given_up else { return Err(NotUpgraded::Busy) };
            if !R::UPGRADES_ARE_WRITTEN_FIRST {
                self.recorder().restate(record, State::Upgrading, claim).await?;
            }
            let changed = self.lock().until_changed(grant.lock(), seen, looked);
            let changed = unless(given_up(), changed).await.ok_or(NotUpgraded::Busy)??;
            looked = if changed { 0 } else { looked + 1 };
            self.lock().endpoint().mark("holders: looks again for an upgrade", &[u64::from(*bars)]);
        }
    }

    /// Makes a writer a reader.
    ///
    /// # Errors
    /// If the lock was lost.
    pub async fn downgrade(
        &self,
        record: u8,
        claim: Claim,
        grant: ShiftGrant,
    ) -> Result<ShiftGrant, NotUpgraded> {
        let shared = self.lock().downgrade(grant).await.map_err(|lost| match lost {
            Lost::Recovered => NotUpgraded::Lost,
            Lost::Fabric(error) => error.into(),
        })?;
        self.recorder().restate(record, State::Held, Claim { mode: Mode::Shared, ..claim }).await?;
        self.recorder().granted(record, shared.mark()).await?;
        Ok(shared)
    }
}
