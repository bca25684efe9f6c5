//! Keyed locks that are upgraded and downgraded between processes: `lockwright_locks::holders::changes`, for a record that is held.

use super::member::Member;
use super::members::{Members, token};
use super::ranges::{not_changed, stoppable};
use super::{BoxFuture, GivenUp, Granted, ProtocolGrant};
use crate::error::ChangeError;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::observe::Claim;
use lockwright_locks::holders::range_changes::NotUpgraded;
use lockwright_locks::shiftlock::ShiftGrant;
use std::sync::Arc;

impl Members {
    /// Makes a shared lock exclusive. Nothing is done before the first poll.
    pub(super) fn upgrade(
        self: &Arc<Self>,
        claim: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let (member, given_up, granted) = (self.member(granted.record).share(), GivenUp::default(), *granted);
        let stop = given_up.clone();
        let change = Box::pin(async move {
            let (record, grant) = (granted.record.index(), member.grant(claim, &granted));
            let client = &member.client;
            let upgraded = match wait {
                // Given up, it is so before anything else: what is dropped does not come through.
                true => client.upgrade_unless(record, claim, grant, || stop.clone().wait()).await,
                false => client.try_upgrade(record, claim, grant).await,
            };
            member.changed(&granted, upgraded)
        });
        stoppable(change, given_up)
    }

    /// Makes an exclusive lock shared. Blocks for the word of a writer that has queued behind and not said so yet: its next step.
    pub(super) fn downgrade(
        &self,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let (member, record) = (self.member(granted.record), granted.record.index());
        let changed = block_on(member.client.downgrade(record, claim, member.grant(claim, granted)));
        Box::pin(std::future::ready(member.changed(granted, changed)))
    }
}

impl Member {
    /// What came of a change of `granted`.
    fn changed(
        &self,
        granted: &Granted,
        changed: Result<ShiftGrant, NotUpgraded>,
    ) -> Result<Granted, ChangeError> {
        let changed = changed.map_err(|why| not_changed(why, token(&granted.grant)))?;
        Ok(self.granted(granted.record.index(), ProtocolGrant::Shift(changed)))
    }
}
