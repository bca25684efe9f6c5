//! A space whose protocol this process runs itself, on a fabric it can reach: shared memory, this process.
//!
//! Each seat is a peer of the fabric with a protocol client of its own. [`Drive`] is what has to be written out for
//! every pair of protocol and fabric, because only there does the compiler see that the futures can be sent to another
//! thread; the macro [`drive!`] writes it.

use super::{BoxFuture, SEATS, Seat, Ticket};
use crate::error::LockError;
use lockwright_locks::{Denied, Lost, Want};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// One pair of protocol and fabric.
pub(crate) trait Drive: Debug + Send + Sync + 'static {
    /// The protocol's client on the fabric.
    type Client: Send + Sync + 'static;

    /// One attempt, on the stack.
    fn try_acquire(client: &Self::Client, want: Want) -> Result<Ticket, Denied>;
    /// An acquire that owns its client, so that it can outlive the call that began it.
    fn acquire(client: Arc<Self::Client>, want: Want) -> BoxFuture<Result<Ticket, Denied>>;
    /// A release that owns its client.
    fn release(client: Arc<Self::Client>, ticket: Ticket) -> BoxFuture<Result<(), Lost>>;
}

/// Implements [`Drive`] for a unit type: protocol, endpoint, and the ticket's variant for its grants.
macro_rules! drive {
    ($(#[$doc:meta])* $name:ident, $protocol:ty, $endpoint:ty, $ticket:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;

        impl $crate::home::hosted::Drive for $name {
            type Client = <$protocol as lockwright_locks::Protocol>::Client<$endpoint>;

            #[inline]
            fn try_acquire(
                client: &Self::Client,
                want: lockwright_locks::Want,
            ) -> Result<$crate::home::Ticket, lockwright_locks::Denied> {
                use lockwright_locks::LockClient as _;
                let want = want.with(lockwright_locks::Patience::Try);
                lockwright_fabric::backend::inproc::block_on(client.acquire(want)).map($ticket)
            }

            fn acquire(
                client: std::sync::Arc<Self::Client>,
                want: lockwright_locks::Want,
            ) -> $crate::home::BoxFuture<Result<$crate::home::Ticket, lockwright_locks::Denied>> {
                use lockwright_locks::LockClient as _;
                Box::pin(async move { client.acquire(want).await.map($ticket) })
            }

            fn release(
                client: std::sync::Arc<Self::Client>,
                ticket: $crate::home::Ticket,
            ) -> $crate::home::BoxFuture<Result<(), lockwright_locks::Lost>> {
                use lockwright_locks::LockClient as _;
                #[allow(irrefutable_let_patterns, reason = "there may be one kind of ticket only")]
                let $ticket(grant) = ticket else {
                    unreachable!("a space gets back the tickets that it gave out")
                };
                Box::pin(async move { client.release(grant).await })
            }
        }
    };
}
pub(crate) use drive;

/// The seats of one client, made when they are first needed.
pub(crate) struct Seats<D: Drive> {
    seats: [OnceLock<Arc<D::Client>>; SEATS],
    making: Mutex<()>,
}

impl<D: Drive> Seats<D> {
    pub(crate) fn new() -> Self {
        Self { seats: std::array::from_fn(|_| OnceLock::new()), making: Mutex::default() }
    }

    /// The seat, made by `make` if it is not there.
    #[inline]
    pub(crate) fn get_or_make(
        &self,
        seat: Seat,
        make: impl FnOnce() -> Result<D::Client, LockError>,
    ) -> Result<&Arc<D::Client>, LockError> {
        match self.seats[usize::from(seat)].get() {
            Some(client) => Ok(client),
            None => self.make(seat, make),
        }
    }

    #[cold]
    fn make(
        &self,
        seat: Seat,
        make: impl FnOnce() -> Result<D::Client, LockError>,
    ) -> Result<&Arc<D::Client>, LockError> {
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &self.seats[usize::from(seat)];
        if slot.get().is_none() {
            let made = Arc::new(make()?);
            return Ok(slot.get_or_init(|| made));
        }
        Ok(slot.get().expect("just seen"))
    }

    /// A seat that is known to be there.
    #[inline]
    pub(crate) fn get(&self, seat: Seat) -> &Arc<D::Client> {
        self.seats[usize::from(seat)].get().expect("whoever uses a seat has sat down before")
    }
}
