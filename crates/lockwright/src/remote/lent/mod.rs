//! `rdma://host:port/lent:NAME`: a guest that takes the locks of a space in memory which the server lends.
//!
//! The server lets it in, lends it the memory, and turns names into ids, once for each handle. Everything else is READs,
//! WRITEs and atomics of this client, and messages between clients. `crate::lent` says what is in the memory; `rooms` which
//! records are in use; `trees` takes ranges in spaces that keep them on trees.

mod rooms;
mod trees;

use self::rooms::Rooms;
use self::trees::Trees;
use super::guest::endpoint::GuestEndpoint;
use super::guest::{Client, Guest, GuestBackend, GuestKind, full};
use super::link::Remote;
use crate::error::OpenError;
use crate::home::{BoxFuture, GivenUp, Granted, Kind, ProtocolGrant, Refused};
use crate::lent::holders::{self, LentTable};
use crate::lent::layout::{self, Ranges, SCHEME};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, RegionId};
use lockwright_locks::Lost;
use lockwright_locks::holders::ranges::{RangeRecorder, RangeRecords};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use std::sync::Arc;

/// The space as the server is asked for it, if `space` is a lent one.
pub(crate) fn wanted(space: &[u8]) -> Option<Vec<u8>> {
    let name = space.strip_prefix(SCHEME.as_bytes())?;
    let name = if name.is_empty() { &b"default"[..] } else { name };
    Some([SCHEME.as_bytes(), name].concat())
}

/// The lent space that `remote` has entered, if its session can do what the locks take.
///
/// # Errors
/// In words.
pub(crate) fn open(remote: Arc<Remote>, address: &str) -> Result<GuestBackend<Lent>, OpenError> {
    let reach = remote.line().reach();
    let home = GuestBackend::new(remote);
    if let Some(ep) = reach {
        let refuse = |why: String| OpenError::Failed { space: address.to_owned(), why };
        is_large_enough(&ep).map_err(refuse)?;
        let fits = VersionedPortable::NEEDS.met_by("holders-portable", ep.capabilities());
        fits.map_err(|error| refuse(error.to_string()))?;
    }
    Ok(home)
}

/// Whether as much is lent as a space takes.
fn is_large_enough(ep: &GuestEndpoint) -> Result<(), String> {
    for (region, needs) in (0..).map(RegionId).zip(Ranges::Exact.regions()) {
        let has = ep.lends_in(region);
        if has < needs {
            return Err(format!(
                "the server lends {has} bytes where this client needs {needs}: it is of another release, or lends no \
                 memory"
            ));
        }
    }
    Ok(())
}

/// Guests of lent spaces: which records they use, and for which locks.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    rooms: Rooms,
    trees: Trees,
}

impl GuestKind for Lent {
    type Book = LentTable<GuestEndpoint>;
    type Layout = VersionedPortable;
    const IS: &'static str = "memory that is lent";

    fn client(_: &Arc<Remote>, _: u32, ep: GuestEndpoint) -> Client<Self> {
        holders::client(ep)
    }

    async fn claim(&self, lock: u64, wait: bool) -> Result<u8, Refused> {
        self.rooms.claim(lock, wait).await
    }

    fn free(&self, record: u8) {
        self.rooms.free(record);
    }

    fn take(
        guest: Arc<Guest<Self>>,
        kind: Kind,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> BoxFuture<Result<Granted, Refused>> {
        match kind {
            Kind::Keyed => Box::pin(async move { guest.take_lock(claim, given_up.is_some()).await }),
            Kind::Ranges => Box::pin(async move { guest.take_range(claim, given_up).await }),
        }
    }

    fn give_back(guest: Arc<Guest<Self>>, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        let record = granted.record.index();
        match granted.grant {
            ProtocolGrant::Shift(grant) => Box::pin(async move { guest.give_lock_back(record, grant).await }),
            ProtocolGrant::Range { token } => {
                Box::pin(async move { guest.give_range_back(record, claim, token).await })
            }
            _ => unreachable!("a space gets back the grants that it gave out"),
        }
    }

    fn holds(
        guest: Arc<Guest<Self>>,
        claim: Claim,
        granted: Granted,
    ) -> BoxFuture<Result<bool, FabricError>> {
        match granted.grant {
            ProtocolGrant::Shift(grant) => Box::pin(async move { guest.client.lock().holds(&grant).await }),
            _ => Box::pin(async move { guest.holds_range(granted.record.index(), claim).await }),
        }
    }
}

impl Guest<Lent> {
    async fn take_range(&self, claim: Claim, given_up: Option<GivenUp>) -> Result<Granted, Refused> {
        if self.has_trees(claim).await? {
            return self.take_on_tree(claim, given_up).await;
        }
        self.take_exactly(claim, given_up).await
    }

    /// Takes a range, under the lock that is its gate.
    async fn take_exactly(&self, claim: Claim, given_up: Option<GivenUp>) -> Result<Granted, Refused> {
        let rooms = &self.records.rooms;
        let gate = rooms.claim(layout::gate(claim.lock), given_up.is_some()).await?;
        let Some(range) = rooms.spare() else {
            rooms.free(gate);
            return Err(full());
        };
        let records = RangeRecords { gate, range };
        let taken = match given_up {
            Some(given_up) => self.client.take_range_unless(records, claim, || given_up.clone().wait()).await,
            None => self.client.try_range(records, claim).await,
        };
        rooms.free(gate);
        match taken {
            Ok(token) => Ok(self.granted(range, ProtocolGrant::Range { token })),
            Err(denied) => {
                rooms.free(range);
                Err(Refused::new(denied, claim))
            }
        }
    }

    async fn give_range_back(&self, record: u8, claim: Claim, token: u64) -> Result<(), Lost> {
        if let Some(trees) = self.records.trees.get() {
            return self.give_back_on_tree(trees, record, claim, token).await;
        }
        let given = self.client.give_range_back(record, claim).await;
        self.records.free(record);
        given
    }

    async fn holds_range(&self, record: u8, claim: Claim) -> Result<bool, FabricError> {
        match self.records.trees.get() {
            Some(_) => self.holds_on_tree(record, claim).await,
            None => self.client.recorder().is_range_held(record, claim).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_space_is_asked_for_by_its_name() {
        let of = |space: &str| wanted(space.as_bytes()).map(|space| String::from_utf8(space).unwrap());
        assert_eq!(of("lent:stock").as_deref(), Some("lent:stock"));
        assert_eq!(of("lent:").as_deref(), Some("lent:default"));
        assert_eq!(of("stock"), None);
        assert_eq!(of("shm:"), None);
    }
}
