//! A table that is handed over with the shard: what the last owner says, and how its clients go on at the next.

use super::client::Answer;
use super::server::Server;
use lockwright_cluster::keys::{Owner, ServerId};
use lockwright_cluster::shard::handover::Handover;
use std::collections::BTreeSet;

/// What a server tells the one that it has handed the shard to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Table {
    of: Handover,
    holder: Option<(u128, u64)>,
    queue: Vec<u128>,
}

impl Table {
    /// Of when nobody held anything.
    pub(super) fn old() -> Self {
        let owner = Owner { epoch: 0, server: 0 };
        let of = Handover { number: 0, owner, sessions: BTreeSet::new(), tokens_below: 0 };
        Self { of, holder: None, queue: Vec::new() }
    }
}

impl Server {
    /// Writes the table down for its next owner.
    pub(super) fn hand_table(&mut self, to: ServerId) {
        let sessions =
            self.holder.map(|(key, _)| key).into_iter().chain(self.queue.iter().copied()).collect();
        let of = self.shard.as_ref().and_then(|shard| shard.handover(to, sessions));
        let (holder, queue) = (self.holder, self.queue.clone());
        // The broken one has said it already.
        self.hands = self.hands.take().or(of.map(|of| Table { of, holder, queue }));
    }

    /// The table of the last owner arrives, or one of an earlier.
    pub(super) fn hear_table(&mut self, table: &Table) {
        if self.shard.as_mut().is_some_and(|shard| shard.inherit(&table.of)) {
            if !self.rules.table_unread {
                (self.holder, self.queue) = (table.holder, table.queue.clone());
            }
            self.grant();
        }
    }

    fn are_of_one(&self, one: u128, other: u128) -> bool {
        self.shard.as_ref().is_some_and(|shard| shard.are_of_one(one, other))
    }

    /// The session `key` claims what by the table its client holds.
    pub(super) fn attach(&mut self, key: u128, before: u128, token: u64) {
        let holder = self.holder.filter(|(holder, of)| *of == token && self.are_of_one(before, *holder));
        if holder.is_none() {
            return self.say(key, Answer::Lost);
        }
        self.holder = Some((key, token));
        self.say(key, Answer::Granted { token });
    }

    /// The session `key` has claimed all: what else its client held by the table it does not any more, unless it asks for it again;
    /// what it wanted it wants in this session, at the same place.
    pub(super) fn settle(&mut self, key: u128) {
        let asks = self.queue.contains(&key);
        let is_old = |server: &Self, other: u128| other != key && server.are_of_one(other, key);
        if let Some((holder, token)) = self.holder.filter(|(holder, _)| is_old(self, *holder)) {
            self.holder = asks.then_some((key, token));
            self.queue.retain(|other| *other != key && *other != holder);
            if asks {
                self.say(key, Answer::Granted { token });
            }
        } else if let Some(place) = self.queue.iter().position(|other| is_old(self, *other)) {
            self.queue.retain(|other| *other != key);
            match asks {
                true => self.queue[place] = key,
                false => drop(self.queue.remove(place)),
            }
        }
        self.grant();
    }

    /// Who was awaited in vain holds and wants nothing any more.
    pub(super) fn forget_evicted(&mut self) {
        let Some(shard) = &self.shard else { return };
        self.holder.take_if(|(key, _)| !shard.knows(*key));
        self.queue.retain(|key| shard.knows(*key));
    }
}
