//! The client's side of changes to what it holds: upgrade, downgrade, giving back a part.

use super::Variant;
use super::client::{CombinerClient, CombinerGrant, Stretch, reason, upgrade_claim};
use super::core::{Answer, Refusal, Request};
use super::shards::is_keyed;
use crate::protocol::{Denied, Patience, Reason};
use lockwright_fabric::Endpoint;

impl<E: Endpoint, V: Variant> CombinerClient<E, V> {
    /// Stretch by stretch, from the left like an acquire. If one is denied, those before it are downgraded again: the
    /// user holds what it held.
    pub(super) async fn upgrade(&self, grant: &mut CombinerGrant, patience: Patience) -> Result<(), Denied> {
        for place in 0..grant.stretches.len() {
            let stretch = grant.stretches[place];
            let request = Request::Upgrade { id: stretch.id, wait: patience != Patience::Try };
            let claim = upgrade_claim(0, &stretch);
            match self.ask(stretch.shard, request, stretch.id, patience, claim, grant).await {
                Ok(token) => grant.stretches[place].token = token,
                Err(denied) => {
                    for done in 0..place {
                        self.downgrade_one(&mut grant.stretches[done]).await?;
                    }
                    self.agree_on_token(grant).await?;
                    return Err(denied);
                }
            }
        }
        Ok(self.agree_on_token(grant).await?)
    }

    pub(super) async fn downgrade(&self, grant: &mut CombinerGrant) -> Result<(), Denied> {
        for stretch in &mut grant.stretches {
            self.downgrade_one(stretch).await?;
        }
        Ok(self.agree_on_token(grant).await?)
    }

    async fn downgrade_one(&self, stretch: &mut Stretch) -> Result<(), Denied> {
        self.tell(stretch.shard, Request::Downgrade { id: stretch.id }).await?;
        match self.hear(stretch.shard, stretch.id).await {
            Answer::Downgraded { token } => {
                stretch.token = token;
                Ok(())
            }
            Answer::Refused(refusal) => Err(Denied::BadRequest(reason(refusal))),
            _ => Err(Denied::BadRequest(reason(Refusal::NotHeld))),
        }
    }

    /// Both sides cut alike, so nothing has to be answered.
    pub(super) async fn shrink(&self, grant: &mut CombinerGrant, start: u64, end: u64) -> Result<(), Denied> {
        if is_keyed(&self.space) {
            return Err(Denied::Unsupported(&Reason("a name has no parts")));
        }
        if start >= end {
            return Err(Denied::BadRequest(reason(Refusal::EmptyRange)));
        }
        let common = |stretch: &Stretch| (stretch.start.max(start), stretch.end.min(end));
        let covered: u64 = grant.stretches.iter().map(common).map(|(from, to)| to.saturating_sub(from)).sum();
        if covered != end - start {
            return Err(Denied::BadRequest(reason(Refusal::NotInside)));
        }
        for stretch in std::mem::take(&mut grant.stretches) {
            let (from, to) = common(&stretch);
            if from >= to {
                grant.stretches.push(stretch);
                continue;
            }
            let left = Stretch { end: from, ..stretch };
            let mut right = Stretch { start: to, ..stretch };
            let mut spare = None;
            if left.start < left.end && right.start < right.end {
                right.id = self.ids.take();
                spare = Some(right.id);
            }
            let (shard, id) = (stretch.shard, stretch.id);
            self.tell(shard, Request::UnlockPart { id, start: from, end: to, rest: spare.unwrap_or(id) })
                .await?;
            if left.start == left.end && right.start == right.end {
                self.ids.free(id);
            }
            grant.stretches.extend([left, right].into_iter().filter(|piece| piece.start < piece.end));
        }
        Ok(())
    }
}
