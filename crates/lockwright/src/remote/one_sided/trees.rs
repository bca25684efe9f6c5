//! Ranges of a one-sided space that keeps them on Citron's trees.
//!
//! A range is given back by verbs that are not waited for. If the connection breaks before they were executed, something of
//! the range is left in its tree; so the record stays in use until a later verb came back over the same connection, and is
//! disowned if that is another one. So is a range whose downgrade may not all have been executed: it is lost.

use super::endpoint::OneSidedEndpoint;
use super::member::{OneSidedMember, full};
use crate::backend::{GivenUp, Granted, ProtocolGrant, Refused};
use crate::one_sided::holders::{OneSidedTrees, trees};
use crate::one_sided::layout::{TABLE, setting};
use crate::one_sided::reach::Reach;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError};
use lockwright_locks::Lost;
use lockwright_locks::citron::member::Forest;
use lockwright_locks::holders::record::{First, Kind as RecordKind, RecordWord};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Tree {
    client: OneSidedTrees<OneSidedEndpoint>,
    ep: OneSidedEndpoint,
    released: Mutex<Vec<Released>>,
    /// Records that are being downgraded, or of which nobody knows whether all of that was executed.
    downgraded: Mutex<HashMap<u8, Downgraded>>,
}

/// How far a downgrade has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Downgraded {
    /// Not all of it was posted.
    Posting,
    /// All of it was, over the connection after so many had broken.
    Posted(u64),
    Failed,
}

/// A range that was given back over the connection after so many had broken.
#[derive(Clone, Copy, Debug)]
struct Released {
    record: u8,
    claim: Claim,
    breaks: u64,
}

impl Tree {
    pub(super) fn new(member: &OneSidedMember, forest: Forest) -> Self {
        let ep = member.client.lock().endpoint();
        let client = trees(ep.clone(), &member.client, forest);
        Self { client, ep: ep.clone(), released: Mutex::default(), downgraded: Mutex::default() }
    }

    fn downgraded(&self) -> MutexGuard<'_, HashMap<u8, Downgraded>> {
        self.downgraded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something was given back over a connection that has broken since.
    pub(super) fn has_broken(&self) -> bool {
        let breaks = self.ep.breaks();
        self.released().iter().any(|released| released.breaks != breaks)
    }

    fn released(&self) -> MutexGuard<'_, Vec<Released>> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes those out of the list for which `is_out` holds.
    fn drain(&self, is_out: impl Fn(&Released) -> bool) -> Vec<Released> {
        let mut released = self.released();
        let (out, kept) = released.drain(..).partition(|released| is_out(released));
        *released = kept;
        out
    }
}

impl OneSidedMember {
    /// Takes a range: now or never, or unless it is given up.
    pub(super) async fn take_on_tree(
        &self,
        tree: &Tree,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> Result<Granted, Refused> {
        let record = self.spare_record(tree).await.map_err(|error| Refused::new(error.into(), claim))?;
        let record = record.ok_or_else(full)?;
        let breaks = tree.ep.breaks();
        let taken = match given_up {
            Some(given_up) => tree.client.take_unless(record, claim, || given_up.clone().wait()).await,
            None => tree.client.try_take(record, claim).await,
        };
        if taken.is_ok() {
            self.forget_released(tree, breaks);
        }
        match taken {
            Ok(grant) => Ok(self.granted(record, ProtocolGrant::Range { token: grant.token() })),
            Err(denied) => {
                // The client has disowned it, unless that failed as well.
                if tree.ep.breaks() == breaks {
                    self.rooms.free(record, breaks);
                } else {
                    self.disown(tree, record, claim).await;
                }
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// What a request has left in its tree is nobody's, and is cleared away, however often the connection breaks meanwhile. Then
    /// the record is free.
    async fn disown(&self, tree: &Tree, record: u8, claim: Claim) {
        loop {
            let breaks = tree.ep.breaks();
            let disowned = match tree.client.disown_released(record, claim).await {
                Ok(()) => tree.ep.go(setting(0).read()).await.map(drop),
                failed => failed,
            };
            if disowned.is_ok() && tree.ep.breaks() == breaks {
                return self.rooms.free(record, breaks);
            }
            if self.client.recorder().space().pause().await.is_err() {
                return; // the session is over, and its records with it
            }
        }
    }

    /// A record that nobody uses.
    async fn spare_record(&self, tree: &Tree) -> Result<Option<u8>, FabricError> {
        self.disown_broken(tree).await;
        if let Some(record) = self.rooms.spare() {
            return Ok(Some(record));
        }
        // Some may be free as soon as it is known that they are.
        let breaks = tree.ep.breaks();
        tree.ep.go(setting(0).read()).await?;
        self.forget_released(tree, breaks);
        Ok(self.rooms.spare())
    }

    /// A verb came back over the connection after so many had broken: what was given back over it before is given back.
    fn forget_released(&self, tree: &Tree, breaks: u64) {
        if tree.ep.breaks() == breaks {
            for released in tree.drain(|released| released.breaks == breaks) {
                self.rooms.free(released.record, breaks);
            }
        }
    }

    /// Whether all of it was executed is not known of what was given back over a connection that broke.
    pub(super) async fn disown_broken(&self, tree: &Tree) {
        let breaks = tree.ep.breaks();
        for released in tree.drain(|released| released.breaks != breaks) {
            self.disown(tree, released.record, released.claim).await;
        }
    }

    /// Gives a range back. Nothing is waited for, unless the server has not answered lately: then it may have struck this client off,
    /// and what was posted went nowhere.
    pub(super) async fn give_back_on_tree(
        &self,
        tree: &Tree,
        record: u8,
        claim: Claim,
        token: u64,
    ) -> Result<(), Lost> {
        let breaks = tree.ep.breaks();
        let downgraded = tree.downgraded().remove(&record);
        if downgraded.is_some_and(|far| far != Downgraded::Posted(breaks)) {
            self.disown(tree, record, claim).await;
            return Err(Lost::Recovered);
        }
        let given = tree.client.give_back(tree.client.grant_of(record, claim, token)).await;
        tree.released().push(Released { record, claim, breaks });
        if given.is_ok() && !tree.ep.is_fresh() {
            tree.ep.go(setting(0).read()).await?;
        }
        given
    }

    /// Makes an exclusive range shared. Dropped once it was polled, it happens all the same, with the old token.
    pub(super) async fn downgrade_on_tree(
        &self,
        tree: &Tree,
        record: u8,
        claim: Claim,
        token: u64,
    ) -> Result<Granted, Lost> {
        let breaks = tree.ep.breaks();
        let mut grant = tree.client.grant_of(record, Claim { mode: Mode::Exclusive, ..claim }, token);
        tree.downgraded().insert(record, Downgraded::Posting);
        let changed = async {
            tree.client.post_downgrade(&mut grant).await?;
            tree.downgraded().insert(record, Downgraded::Posted(breaks));
            tree.client.renew_token(&mut grant).await
        };
        let changed = changed.await.map_err(Lost::from);
        if changed.is_err() || tree.ep.breaks() != breaks {
            tree.downgraded().insert(record, Downgraded::Failed);
            return changed.and(Err(Lost::Recovered));
        }
        tree.downgraded().remove(&record);
        self.forget_released(tree, breaks);
        Ok(self.granted(record, ProtocolGrant::Range { token: grant.token() }))
    }

    /// Whether the record still says that the range is this client's: one READ.
    pub(super) async fn holds_on_tree(
        &self,
        tree: &Tree,
        record: u8,
        claim: Claim,
    ) -> Result<bool, FabricError> {
        match tree.downgraded().get(&record) {
            Some(Downgraded::Failed) => return Ok(false),
            Some(Downgraded::Posted(breaks)) if *breaks != tree.ep.breaks() => return Ok(false),
            _ => {}
        }
        let ep = self.client.lock().endpoint();
        let at = TABLE.record(TABLE.slot(ep.me()), u64::from(record));
        let first = First(ep.go(at.word(RecordWord::First).read()).await?);
        Ok(first.holds() && first.is_for(RecordKind::Range, claim.lock))
    }
}
