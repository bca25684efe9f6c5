//! Guests: clients that take locks behind a server by verbs of their own.
//!
//! The server lets a client in, turns names into ids, and says when its session is over; taking and giving back locks,
//! waiting, and clearing away after the dead is the client's own doing. There are two ways, and a [`Way`] is all that differs
//! between them: which words the verbs change, who writes the book, and which cards may be used together.
//!
//! | way | what the verbs change | the book is written | ranges are taken by |
//! |---|---|---|---|
//! | [`verbs`](super::verbs) | the host's shared memory, which its processes change too | by the server, in the order of the verbs | the server |
//! | [`lent`](super::lent) | memory that the server lends | by the guest, with WRITEs | the guest |
//!
//! A membership lives as long as its session: what it holds is free as soon as the session is over, whatever the reason, and
//! nothing is claimed. A guest is trusted: it could write anything into any lock's word.
//!
//! | file | |
//! |---|---|
//! | `endpoint` | the session's endpoint under the guest's name |
//! | `home` | the space as a whole: names, and whichever membership there is now |

pub(super) mod endpoint;
mod home;

pub(crate) use home::GuestHome;

use self::endpoint::GuestEndpoint;
use super::link::Remote;
use crate::error::LockError;
use crate::home::holders::RECORDS;
use crate::home::{AnyGrant, BoxFuture, Kind, Refused, Seat, Ticket};
use lockwright_fabric::FabricError;
use lockwright_fabric::observe::Claim;
use lockwright_locks::holders::{HolderClient, Recorder};
use lockwright_locks::shiftlock::stirred::Stir;
use lockwright_locks::shiftlock::{ShiftGrant, Shipped};
use lockwright_locks::{Denied, Lost};
use std::fmt::Debug;
use std::sync::Arc;

/// What differs between guests. The value is which of one membership's cards are in use.
pub(crate) trait Way: Debug + Default + Send + Sync + Sized + 'static {
    /// How others learn what a guest holds.
    type Book: Recorder + Debug + Send + Sync;
    /// The entry of a lock.
    type Layout: Stir + Send + Sync;
    /// Whether ranges are taken by verbs too. Else they are the server's.
    const TAKES_RANGES: bool;
    /// What the space is, in an error's words.
    const IS: &'static str;

    /// The client of guest `number`.
    fn client(remote: &Arc<Remote>, number: u32, ep: GuestEndpoint) -> Client<Self>;

    /// A card by which `lock` can be taken; waited for only if one should.
    fn claim(&self, lock: u64, wait: bool) -> impl Future<Output = Result<u8, Refused>>;

    /// The card is free again.
    fn free(&self, card: u8);

    /// Takes a lock or a range: now or never, or however long it takes. Written out for each way, as are those below: only
    /// there does the compiler see that the future can be sent to another thread.
    fn take(
        guest: Arc<Guest<Self>>,
        kind: Kind,
        claim: Claim,
        wait: bool,
    ) -> BoxFuture<Result<Ticket, Refused>>;

    /// Gives a lock or a range back.
    fn give_back(guest: Arc<Guest<Self>>, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>>;

    /// Whether a grant is still good: one READ.
    fn holds(guest: Arc<Guest<Self>>, claim: Claim, ticket: Ticket) -> BoxFuture<Result<bool, FabricError>>;
}

/// A guest's lock client.
pub(crate) type Client<W> = HolderClient<GuestEndpoint, <W as Way>::Book, Shipped, <W as Way>::Layout>;

/// One membership of a space. It ends with its session, and everything it held with it.
#[derive(Debug)]
pub(crate) struct Guest<W: Way> {
    /// Which of this client's.
    number: u32,
    pub(super) client: Client<W>,
    pub(super) cards: W,
}

impl<W: Way> Guest<W> {
    fn new(remote: &Arc<Remote>, number: u32, ep: GuestEndpoint) -> Self {
        Self { number, client: W::client(remote, number, ep), cards: W::default() }
    }

    /// Takes a keyed lock: now or never, or however long it takes.
    pub(super) async fn take_lock(&self, claim: Claim, wait: bool) -> Result<Ticket, Refused> {
        let card = self.cards.claim(claim.lock, wait).await?;
        let client = &self.client;
        let granted = match client.try_take(card, claim).await {
            Err(Denied::Busy) if wait => client.take(card, claim).await,
            Err(Denied::Busy) => client.try_past_the_dead(card, claim).await,
            tried => tried,
        };
        match granted {
            Ok(grant) => Ok(self.ticket(card, AnyGrant::Shift(grant))),
            Err(denied) => {
                // Whatever the attempt left in the lock's word, nobody's card says that it is held.
                let _ = client.recorder().write(card, None).await;
                self.cards.free(card);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Gives a keyed lock back.
    pub(super) async fn give_lock_back(&self, card: u8, grant: ShiftGrant) -> Result<(), Lost> {
        let given = self.client.give_back(card, grant).await;
        self.cards.free(card);
        given
    }

    pub(super) fn ticket(&self, card: u8, grant: AnyGrant) -> Ticket {
        Ticket { grant, seat: Seat::new(self.number, card) }
    }
}

/// There is no card left.
pub(super) fn full() -> Refused {
    Refused::Error(LockError::NoSeat(format!(
        "a guest can hold and want {RECORDS} locks at a time, not more"
    )))
}
