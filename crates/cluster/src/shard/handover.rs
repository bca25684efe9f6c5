//! What a server says to the next owner of a shard that it has handed over: that it grants nothing any more, and what its table was.
//!
//! By that the new owner opens the shard at once. Those who hold or want something by the table do so as before, and have as long to
//! go on there as they would have to claim it; until then nobody else gets what a silent one holds.
//!
//! | a table | is |
//! |---|---|
//! | that does not come, or too late | not needed: clients claim, as after a crash |
//! | of another change of owner | refused: each has an epoch of its own |
//! | that comes once a client has said what it holds, or again | refused: it may not be true any more |
//!
//! It is said by a server that is frozen, once etcd has made the other the owner. So nothing changes after it was written, and the
//! shard never thaws there.

use super::{Phase, Shard};
use crate::keys::{Owner, ServerId, SessionKey};
use std::collections::BTreeSet;

/// The head of a table: what the new owner goes by to hear it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handover {
    /// Which shard.
    pub number: u16,
    /// Whom it is for.
    pub owner: Owner,
    /// All who hold or want something by the table.
    pub sessions: BTreeSet<SessionKey>,
    /// No token in it is of this or above.
    pub tokens_below: u64,
}

impl Shard {
    /// The head of the table that is said to `to`, which is the owner now. `None`, unless nothing changes here any more.
    pub fn handover(&self, to: ServerId, sessions: BTreeSet<SessionKey>) -> Option<Handover> {
        let is_still = matches!(self.phase, Phase::Frozen { .. }) || self.rules.table_early;
        let owner = Owner { epoch: self.owner.epoch + 1, server: to };
        let (number, tokens_below) = (self.number, self.tokens_below);
        is_still.then_some(Handover { number, owner, sessions, tokens_below })
    }

    /// The last owner's table has come. `true`: the shard is open, and everybody holds what the table says; those in it are awaited.
    pub fn inherit(&mut self, table: &Handover) -> bool {
        let Handover { number, owner, sessions, tokens_below } = table;
        let until = match self.phase {
            Phase::Recovering { until, heard } if !heard || self.rules.table_over_claims => until,
            Phase::Open { until } if self.rules.table_when_open => until.unwrap_or_default(),
            _ => return false,
        };
        let is_ours = (*number, *owner) == (self.number, self.owner) || self.rules.table_of_any_epoch;
        let is_known = |key: &SessionKey| self.knows(*key);
        if !is_ours || *tokens_below > self.first_token || !sessions.iter().all(is_known) {
            return false;
        }
        for entry in &mut self.registry {
            entry.awaited = sessions.iter().any(|key| entry.session.was(*key));
        }
        self.phase = Phase::Open { until: Some(until).filter(|_| !sessions.is_empty()) };
        true
    }

    /// Whether the sessions `one` and `other` are of the same client, as far as is known here.
    pub fn are_of_one(&self, one: SessionKey, other: SessionKey) -> bool {
        self.registry.iter().any(|entry| entry.session.was(one) && entry.session.was(other))
    }
}
