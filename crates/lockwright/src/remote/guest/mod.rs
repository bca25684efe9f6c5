//! Guests: clients that take locks behind a server by verbs of their own.
//!
//! The server lets a client in, turns names into ids, and says when its session is over; taking and giving back locks,
//! waiting, and clearing away after the dead is the client's own doing. The one [`GuestKind`] there is, is [`lent`](super::lent): the
//! verbs change memory that the server lends, and the guest writes its holder records with WRITEs.
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

pub(crate) use home::GuestBackend;

use self::endpoint::GuestEndpoint;
use super::link::Remote;
use crate::error::LockError;
use crate::home::holders::RECORDS;
use crate::home::{BoxFuture, GivenUp, Granted, Kind, ProtocolGrant, RecordId, Refused};
use lockwright_fabric::FabricError;
use lockwright_fabric::observe::Claim;
use lockwright_locks::holders::{HolderClient, Recorder};
use lockwright_locks::shiftlock::versioned::VersionedLayout;
use lockwright_locks::shiftlock::{ShiftGrant, Shipped};
use lockwright_locks::{Denied, Lost};
use std::fmt::Debug;
use std::sync::Arc;

/// What differs between guests. The value is which of one membership's records are in use.
pub(crate) trait GuestKind: Debug + Default + Send + Sync + Sized + 'static {
    /// How others learn what a guest holds.
    type Book: Recorder + Debug + Send + Sync;
    /// The entry of a lock.
    type Layout: VersionedLayout + Send + Sync;
    /// What the space is, in an error's words.
    const IS: &'static str;

    /// The client of guest `number`.
    fn client(remote: &Arc<Remote>, number: u32, ep: GuestEndpoint) -> Client<Self>;

    /// A record by which `lock` can be taken; waited for only if one should.
    fn claim(&self, lock: u64, wait: bool) -> impl Future<Output = Result<u8, Refused>>;

    /// The record is free again.
    fn free(&self, record: u8);

    /// Takes a lock or a range: now or never, or however long it takes unless that is given up. Written out for each way, as are those below: only
    /// there does the compiler see that the future can be sent to another thread.
    fn take(
        guest: Arc<Guest<Self>>,
        kind: Kind,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> BoxFuture<Result<Granted, Refused>>;

    /// Gives a lock or a range back.
    fn give_back(guest: Arc<Guest<Self>>, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>>;

    /// Whether a grant is still good: one READ.
    fn holds(guest: Arc<Guest<Self>>, claim: Claim, granted: Granted)
    -> BoxFuture<Result<bool, FabricError>>;
}

/// A guest's lock client.
pub(crate) type Client<W> =
    HolderClient<GuestEndpoint, <W as GuestKind>::Book, Shipped, <W as GuestKind>::Layout>;

/// One membership of a space. It ends with its session, and everything it held with it.
#[derive(Debug)]
pub(crate) struct Guest<W: GuestKind> {
    /// Which of this client's.
    number: u32,
    pub(super) client: Client<W>,
    pub(super) records: W,
}

impl<W: GuestKind> Guest<W> {
    fn new(remote: &Arc<Remote>, number: u32, ep: GuestEndpoint) -> Self {
        Self { number, client: W::client(remote, number, ep), records: W::default() }
    }

    /// Takes a keyed lock: now or never, or however long it takes.
    pub(super) async fn take_lock(&self, claim: Claim, wait: bool) -> Result<Granted, Refused> {
        let record = self.records.claim(claim.lock, wait).await?;
        let client = &self.client;
        let granted = match client.try_take(record, claim).await {
            Err(Denied::Busy) if wait => client.take(record, claim).await,
            Err(Denied::Busy) => client.try_past_the_dead(record, claim).await,
            tried => tried,
        };
        match granted {
            Ok(grant) => Ok(self.granted(record, ProtocolGrant::Shift(grant))),
            Err(denied) => {
                // Whatever the attempt left in the lock's word, nobody's record says that it is held.
                let _ = client.recorder().write(record, None).await;
                self.records.free(record);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Gives a keyed lock back.
    pub(super) async fn give_lock_back(&self, record: u8, grant: ShiftGrant) -> Result<(), Lost> {
        let given = self.client.give_back(record, grant).await;
        self.records.free(record);
        given
    }

    pub(super) fn granted(&self, record: u8, grant: ProtocolGrant) -> Granted {
        Granted { grant, record: RecordId::new(self.number, record) }
    }
}

/// There is no record left.
pub(super) fn full() -> Refused {
    Refused::Error(LockError::TooManyLocks(format!(
        "a guest can hold and want {RECORDS} locks at a time, not more"
    )))
}
