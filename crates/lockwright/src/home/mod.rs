//! The seam between what users hold and where locks live.
//!
//! A [`Home`] is one opened space: it turns names into lock ids, and takes and gives back locks. Everything above it
//! (handles, guards, lock sets, cancelling) is written once; everything below it is one folder per kind of space.
//! The protocol is chosen when the space is opened: from the one virtual call on, the code is monomorphic.
//!
//! What this file must not do: know a fabric or a protocol by name, except in [`Ticket`].

#[cfg(target_os = "linux")]
pub(crate) mod holders;
pub(crate) mod mem;
mod mem_locks;
#[cfg(target_os = "linux")]
pub(crate) mod member;
#[cfg(target_os = "linux")]
pub(crate) mod members;
#[cfg(target_os = "linux")]
pub(crate) mod ranges;
#[cfg(target_os = "linux")]
mod slots;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
#[cfg(target_os = "linux")]
mod threads;

use crate::error::{ChangeError, HandleError, LockError};
use crate::name::LockName;
use lockwright_fabric::observe::{Claim, Mode};
#[cfg(target_os = "linux")]
use lockwright_locks::Denied;
use lockwright_locks::Lost;
#[cfg(target_os = "linux")]
use lockwright_locks::shiftlock::{ShiftGrant, prompt::Prompt};
use std::fmt::Debug;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

/// A future that can be handed to another thread.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A granted lock, whatever the space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// What the protocol wants back.
    pub(crate) grant: AnyGrant,
    /// Where the space has written it down.
    pub(crate) seat: Seat,
}

/// A grant of whatever protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyGrant {
    /// ShiftLock's.
    #[cfg(target_os = "linux")]
    Shift(ShiftGrant),
    /// The same, taken with one verb, and nobody has asked for more yet.
    #[cfg(target_os = "linux")]
    Prompt(Prompt),
    /// A range's, which is its card; or a lock's of this process, which is its seat.
    Range {
        /// The token.
        token: u64,
    },
    /// A server's.
    #[cfg(target_os = "linux")]
    Remote(crate::remote::RemoteGrant),
}

/// A place in a space's list of who holds what: which of this client's memberships, and which line of it. One whole word, as
/// are the other parts of a ticket: what is stored in pieces and copied as a whole makes the CPU wait.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seat(u64);

impl Seat {
    #[inline(always)]
    pub(crate) const fn new(member: u32, card: u8) -> Self {
        Self((member as u64) << 8 | card as u64)
    }

    #[inline(always)]
    pub(crate) const fn member(self) -> u32 {
        (self.0 >> 8) as u32
    }

    #[inline(always)]
    pub(crate) const fn card(self) -> u8 {
        self.0 as u8
    }
}

impl Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("member", &self.member()).field("card", &self.card()).finish()
    }
}

/// A name that was looked up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bound {
    /// The lock's id.
    pub(crate) lock: u64,
    /// To be added to the protocol's token: a name that was given up and made anew goes on where it was.
    pub(crate) token_base: u64,
    /// Which membership looked it up.
    pub(crate) by: u32,
}

/// The two tables of locks that a space has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Mutexes and reader-writer locks: one lock per name.
    Keyed,
    /// Range locks: many units under one name.
    Ranges,
}

/// What is known about a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    Uncertain,
    Lost,
}

/// Why a lock was not granted, as far as the seam is concerned.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Somebody has it, and it was only tried.
    Busy,
    /// Everything else.
    Error(LockError),
}

#[cfg(target_os = "linux")]
impl Refused {
    pub(crate) fn new(denied: Denied, claim: Claim) -> Self {
        match denied {
            Denied::Busy => Self::Busy,
            denied => Self::Error(LockError::from_denied(denied, (claim.start, claim.end))),
        }
    }
}

/// One opened space.
pub(crate) trait Home: Send + Sync + Debug {
    /// The lock called `name`, which keeps its id until it is unbound as often as it was bound.
    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError>;

    /// Whether a name that was looked up still leads where it did.
    fn is_bound(&self, bound: &Bound) -> bool;

    /// Says that this client has no more use for a lock it had bound.
    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind);

    /// Takes the lock if it is free; neither queues nor waits for anybody. `None`: here that takes a while.
    fn try_now(&self, kind: Kind, claim: Claim) -> Option<Result<Ticket, Refused>>;

    /// The same, where it takes a while.
    fn try_soon(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        Box::pin(std::future::ready(self.try_now(kind, claim).unwrap_or(Err(Refused::Busy))))
    }

    /// How long somebody who blocks its thread until a try is over does so at most.
    fn try_patience(&self) -> Option<Duration> {
        None
    }

    /// Frees a lock that was busy, if all who hold it or wait for it are dead: somebody who only tries would never
    /// outwait them. Says whether it may be free now.
    fn rescue(&self, kind: Kind, claim: Claim) -> bool {
        let _ = (kind, claim);
        false
    }

    /// Whether futures of this space need nobody who drives them.
    fn is_near(&self) -> bool {
        true
    }

    /// Sees a future of this space through on the calling thread.
    fn drive(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        lockwright_fabric::backend::block_on(future);
    }

    /// Whether an `acquire` that is dropped gives up by itself. Else it has to be seen through to its end.
    fn cancels_by_drop(&self) -> bool {
        false
    }

    /// Takes the lock, however long it takes.
    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>>;

    /// Gives the lock back if nobody has to be waited for; `None` if nothing has happened. Allocates nothing.
    fn release_at_once(&self, kind: Kind, claim: Claim, ticket: &Ticket) -> Option<Result<(), Lost>> {
        let _ = (kind, claim, ticket);
        None
    }

    /// Gives the lock back.
    fn release(&self, kind: Kind, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>>;

    /// Gives the lock back at once where nobody wants to know what came of it; `false` if it takes a `release`.
    fn release_unheard(&self, ticket: &Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// What this space is, in an error's words.
    fn is(&self) -> &'static str {
        "shared memory"
    }

    /// Makes a shared grant exclusive, without letting go in between; without `wait`, only if that can be had at once.
    /// Dropped, or refused, it leaves the grant shared.
    fn upgrade(&self, ticket: &Ticket, wait: bool) -> BoxFuture<Result<Ticket, ChangeError>> {
        let _ = (ticket, wait);
        Box::pin(std::future::ready(Err(ChangeError::NotOffered(self.is()))))
    }

    /// Makes an exclusive grant shared. It counts as that from the first poll on, unless that fails.
    fn downgrade(&self, ticket: &Ticket) -> BoxFuture<Result<Ticket, ChangeError>> {
        let _ = ticket;
        Box::pin(std::future::ready(Err(ChangeError::NotOffered(self.is()))))
    }

    /// Gives back a part of a granted range that is neither empty nor all of it nor outside. Returns a grant for the second
    /// piece, if two are left.
    fn unlock_part(
        &self,
        ticket: &Ticket,
        claim: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Ticket>, ChangeError> {
        let _ = (ticket, claim, part);
        Err(ChangeError::NotOffered(self.is()))
    }

    /// The fencing token of a grant.
    fn token(&self, ticket: &Ticket) -> u64;

    /// Whether the grant is still good.
    fn standing(&self, kind: Kind, claim: Claim, ticket: &Ticket) -> Standing;

    /// Lets the locks that this client has now stay held while process `pid` lives. `false` if there is no such process.
    fn set_ward(&self, pid: u32) -> bool {
        let _ = pid;
        true
    }

    /// The membership that looked a name up, where the space is in this host's memory: a way to keyed locks without a
    /// virtual call.
    #[cfg(target_os = "linux")]
    fn nearby(&self, bound: &Bound) -> Option<&std::sync::Arc<member::Member>> {
        let _ = bound;
        None
    }

    /// Shows that this client is alive; returns when to do so again.
    fn heartbeat(&self) -> Duration;
}

/// The whole of a lock in `mode`; which lock is filled in later.
pub(crate) const fn whole(mode: Mode) -> Claim {
    Claim { lock: 0, mode, start: 0, end: u64::MAX }
}
