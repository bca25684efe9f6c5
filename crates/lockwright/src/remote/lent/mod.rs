//! `rdma://host:port/lent:NAME`: a guest that takes the locks of a space in memory which the server lends.
//!
//! The server lets it in, lends it the memory, and turns names into ids, once for each handle. Everything else is READs,
//! WRITEs and atomics of this client, and messages between clients. `crate::lent` says what is in the memory; `rooms` which
//! cards are in use.

mod rooms;

use self::rooms::Rooms;
use super::guest::endpoint::GuestEndpoint;
use super::guest::{Client, Guest, GuestHome, Way, full};
use super::link::Remote;
use super::verbs::SUFFIX;
use crate::error::OpenError;
use crate::home::{AnyGrant, BoxFuture, Kind, Refused, Ticket};
use crate::lent::holders::{self, LentTable};
use crate::lent::layout::{self, SCHEME};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, RegionId};
use lockwright_locks::Lost;
use lockwright_locks::holders::ranges::{RangeRecorder, RangeRecords};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;
use std::sync::Arc;

/// The space as the server is asked for it, if `space` is a lent one.
pub(crate) fn wanted(space: &[u8]) -> Option<Vec<u8>> {
    let space = space.strip_suffix(SUFFIX.as_bytes()).unwrap_or(space);
    let name = space.strip_prefix(SCHEME.as_bytes())?;
    let name = if name.is_empty() { &b"default"[..] } else { name };
    Some([SCHEME.as_bytes(), name, SUFFIX.as_bytes()].concat())
}

/// The lent space that `remote` has entered, if its session can do what the locks take.
///
/// # Errors
/// In words.
pub(crate) fn open(remote: Arc<Remote>, address: &str) -> Result<GuestHome<Lent>, OpenError> {
    let reach = remote.line().reach();
    let home = GuestHome::new(remote);
    if let Some(ep) = reach {
        let refuse = |why: String| OpenError::Space { space: address.to_owned(), why };
        is_large_enough(&ep).map_err(refuse)?;
        let fits = StirredPortable::NEEDS.met_by("holders-portable", ep.capabilities());
        fits.map_err(|error| refuse(error.to_string()))?;
    }
    Ok(home)
}

/// Whether as much is lent as a space takes.
fn is_large_enough(ep: &GuestEndpoint) -> Result<(), String> {
    for (region, needs) in (0..).map(RegionId).zip(layout::regions()) {
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

/// Guests of lent spaces: which cards they use, and for which locks.
#[derive(Debug, Default)]
pub(crate) struct Lent(Rooms);

impl Way for Lent {
    type Book = LentTable<GuestEndpoint>;
    type Layout = StirredPortable;
    const TAKES_RANGES: bool = true;
    const IS: &'static str = "memory that is lent";

    fn client(_: &Arc<Remote>, _: u32, ep: GuestEndpoint) -> Client<Self> {
        holders::client(ep)
    }

    async fn claim(&self, lock: u64, wait: bool) -> Result<u8, Refused> {
        self.0.claim(lock, wait).await
    }

    fn free(&self, card: u8) {
        self.0.free(card);
    }

    fn take(
        guest: Arc<Guest<Self>>,
        kind: Kind,
        claim: Claim,
        wait: bool,
    ) -> BoxFuture<Result<Ticket, Refused>> {
        match kind {
            Kind::Keyed => Box::pin(async move { guest.take_lock(claim, wait).await }),
            Kind::Ranges => Box::pin(async move { guest.take_range(claim, wait).await }),
        }
    }

    fn give_back(guest: Arc<Guest<Self>>, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        let card = ticket.seat.card();
        match ticket.grant {
            AnyGrant::Shift(grant) => Box::pin(async move { guest.give_lock_back(card, grant).await }),
            _ => Box::pin(async move { guest.give_range_back(card, claim).await }),
        }
    }

    fn holds(guest: Arc<Guest<Self>>, claim: Claim, ticket: Ticket) -> BoxFuture<Result<bool, FabricError>> {
        match ticket.grant {
            AnyGrant::Shift(grant) => Box::pin(async move { guest.client.lock().holds(&grant).await }),
            _ => Box::pin(
                async move { guest.client.recorder().is_range_held(ticket.seat.card(), claim).await },
            ),
        }
    }
}

impl Guest<Lent> {
    /// Takes a range, under the lock that is its gate.
    async fn take_range(&self, claim: Claim, wait: bool) -> Result<Ticket, Refused> {
        let Lent(rooms) = &self.cards;
        let gate = rooms.claim(layout::gate(claim.lock), wait).await?;
        let Some(range) = rooms.spare() else {
            rooms.free(gate);
            return Err(full());
        };
        let cards = RangeRecords { gate, range };
        let taken = match wait {
            true => self.client.take_range(cards, claim).await,
            false => self.client.try_range(cards, claim).await,
        };
        rooms.free(gate);
        match taken {
            Ok(token) => Ok(self.ticket(range, AnyGrant::Range { token })),
            Err(denied) => {
                rooms.free(range);
                Err(Refused::new(denied, claim))
            }
        }
    }

    async fn give_range_back(&self, card: u8, claim: Claim) -> Result<(), Lost> {
        let given = self.client.give_range_back(card, claim).await;
        self.cards.free(card);
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_space_is_asked_for_by_its_name_however_its_address_ends() {
        let of = |space: &str| wanted(space.as_bytes()).map(|space| String::from_utf8(space).unwrap());
        assert_eq!(of("lent:stock").as_deref(), Some("lent:stock?verbs"));
        assert_eq!(of("lent:stock?verbs").as_deref(), Some("lent:stock?verbs"));
        assert_eq!(of("lent:").as_deref(), Some("lent:default?verbs"));
        assert_eq!(of("stock"), None);
        assert_eq!(of("shm:?verbs"), None);
    }
}
