//! `tcp://host:port/shm:?verbs`: a guest that runs the protocol of an exported space.
//!
//! The server executes its verbs on the words of the host's shared memory, carries its messages to and from the processes
//! there, and lends it a place in the space. Local processes and guests are in one queue and hand the lock to each other.
//! What the server still does for a guest: names, and writing down what it does ([`book`]). Ranges are taken by the server,
//! as without `?verbs`.

mod book;

use self::book::GuestBook;
use super::guest::endpoint::GuestEndpoint;
use super::guest::{Client, Guest, Way, full};
use super::link::Remote;
use crate::home::members::{SHAPE, params};
use crate::home::{AnyGrant, BoxFuture, Kind, Refused, Ticket};
use lockwright_fabric::FabricError;
use lockwright_fabric::observe::Claim;
use lockwright_locks::Lost;
use lockwright_locks::holders::HolderClient;
use lockwright_locks::shiftlock::ShiftGrant;
use lockwright_locks::shiftlock::stirred::Stirred;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What an address ends with if the client is to run the protocol.
pub(crate) const SUFFIX: &str = "?verbs";

/// Guests of exported spaces. Bit n: card n is in use; any of them will do.
#[derive(Debug, Default)]
pub(crate) struct Verbs(AtomicU64);

impl Way for Verbs {
    type Book = GuestBook;
    type Layout = Stirred;
    const TAKES_RANGES: bool = false;
    const IS: &'static str = "shared memory";

    fn client(remote: &Arc<Remote>, number: u32, ep: GuestEndpoint) -> Client<Self> {
        let book = GuestBook::new(remote, ep.clone(), number);
        HolderClient::new(ep, &SHAPE, &params(), book)
    }

    async fn claim(&self, _: u64, _: bool) -> Result<u8, Refused> {
        let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let before = self.0.fetch_update(SeqCst, SeqCst, free).map_err(|_| full())?;
        Ok(before.trailing_ones() as u8)
    }

    fn free(&self, card: u8) {
        self.0.fetch_and(!(1 << card), SeqCst);
    }

    fn take(
        guest: Arc<Guest<Self>>,
        _: Kind,
        claim: Claim,
        wait: bool,
    ) -> BoxFuture<Result<Ticket, Refused>> {
        Box::pin(async move { guest.take_lock(claim, wait).await })
    }

    fn give_back(guest: Arc<Guest<Self>>, _: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        Box::pin(async move { guest.give_lock_back(ticket.seat.card(), shift(&ticket)).await })
    }

    fn holds(guest: Arc<Guest<Self>>, _: Claim, ticket: Ticket) -> BoxFuture<Result<bool, FabricError>> {
        Box::pin(async move { guest.client.lock().holds(&shift(&ticket)).await })
    }
}

fn shift(ticket: &Ticket) -> ShiftGrant {
    match ticket.grant {
        AnyGrant::Shift(grant) => grant,
        _ => unreachable!("a space gets back the grants that it gave out"),
    }
}
