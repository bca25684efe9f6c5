//! Ranges of a lent space that keeps them on Citron's trees.
//!
//! A range is given back by verbs that are not waited for. If the connection breaks before they were executed, something of
//! the range is left in its tree; so the record stays in use until a later verb came back over the same connection, and is
//! disowned if that is another one.

use super::super::guest::endpoint::GuestEndpoint;
use super::super::guest::{Guest, full};
use super::Lent;
use crate::error::LockError;
use crate::home::{GivenUp, Granted, ProtocolGrant, Refused};
use crate::lent::holders::{LentTrees, trees};
use crate::lent::layout::{Ranges, SETTINGS, TABLE, setting};
use crate::lent::reach::Reach;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, RawVerb};
use lockwright_locks::holders::record::{First, Kind as RecordKind, RecordWord};
use lockwright_locks::{Denied, Lost};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// One membership's client of the trees, once it is known whether the space has some.
#[derive(Debug, Default)]
pub(super) struct Trees(OnceLock<Option<Tree>>);

#[derive(Debug)]
pub(super) struct Tree {
    client: LentTrees<GuestEndpoint>,
    ep: GuestEndpoint,
    released: Mutex<Vec<Released>>,
}

/// A range that was given back over the connection after so many had broken.
#[derive(Clone, Copy, Debug)]
struct Released {
    record: u8,
    claim: Claim,
    breaks: u64,
}

impl Trees {
    /// The client, if the space has trees.
    pub(super) fn get(&self) -> Option<&Tree> {
        self.0.get()?.as_ref()
    }
}

impl Tree {
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

impl Guest<Lent> {
    /// Whether the space keeps its ranges on trees. Asked once, by one round trip.
    pub(super) async fn has_trees(&self, claim: Claim) -> Result<bool, Refused> {
        let refused = |error: FabricError| Refused::new(Denied::Fabric(error), claim);
        let Trees(known) = &self.records.trees;
        if known.get().is_none() {
            let ep = self.client.lock().endpoint();
            let words: [RawVerb; SETTINGS] = std::array::from_fn(|index| setting(index).read().raw());
            let olds = ep.go(&words[..]).await.map_err(refused)?;
            let values = std::array::from_fn(|index| olds[index] as u64);
            let ranges = Ranges::from_settings(values).ok_or_else(|| {
                let why = "the server keeps its ranges in a way that this client does not know: it is of another release";
                Refused::Error(LockError::Disconnected(why.to_owned()))
            })?;
            let tree = ranges.forest().map(|forest| Tree {
                client: trees(ep.clone(), &self.client, forest),
                ep: ep.clone(),
                released: Mutex::default(),
            });
            let _ = known.set(tree);
        }
        Ok(self.records.trees.get().is_some())
    }

    /// Takes a range: now or never, or unless it is given up.
    pub(super) async fn take_on_tree(
        &self,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> Result<Granted, Refused> {
        let Some(tree) = self.records.trees.get() else { return Err(full()) };
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
                self.records.rooms.free(record);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// A record that nobody uses.
    async fn spare_record(&self, tree: &Tree) -> Result<Option<u8>, FabricError> {
        self.disown_broken(tree).await?;
        if let Some(record) = self.records.rooms.spare() {
            return Ok(Some(record));
        }
        // Some may be free as soon as it is known that they are.
        let breaks = tree.ep.breaks();
        tree.ep.go(setting(0).read()).await?;
        self.forget_released(tree, breaks);
        Ok(self.records.rooms.spare())
    }

    /// A verb came back over the connection after so many had broken: what was given back over it before is given back.
    fn forget_released(&self, tree: &Tree, breaks: u64) {
        if tree.ep.breaks() == breaks {
            for released in tree.drain(|released| released.breaks == breaks) {
                self.records.rooms.free(released.record);
            }
        }
    }

    /// Whether all of it was executed is not known of what was given back over a connection that broke.
    async fn disown_broken(&self, tree: &Tree) -> Result<(), FabricError> {
        let breaks = tree.ep.breaks();
        for released in tree.drain(|released| released.breaks != breaks) {
            tree.client.disown_released(released.record, released.claim).await?;
            self.records.rooms.free(released.record);
        }
        Ok(())
    }

    /// Gives a range back. Nothing is waited for.
    pub(super) async fn give_back_on_tree(
        &self,
        tree: &Tree,
        record: u8,
        claim: Claim,
        token: u64,
    ) -> Result<(), Lost> {
        let breaks = tree.ep.breaks();
        let given = tree.client.give_back(tree.client.grant_of(record, claim, token)).await;
        tree.released().push(Released { record, claim, breaks });
        given
    }

    /// Whether the record still says that the range is this client's: one READ.
    pub(super) async fn holds_on_tree(&self, record: u8, claim: Claim) -> Result<bool, FabricError> {
        let ep = self.client.lock().endpoint();
        let at = TABLE.record(TABLE.slot(ep.me()), u64::from(record));
        let first = First(ep.go(at.word(RecordWord::First).read()).await?);
        Ok(first.holds() && first.is_for(RecordKind::Range, claim.lock))
    }
}
