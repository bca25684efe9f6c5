//! The interface between what users hold and where locks live.
//!
//! A [`Backend`] is one opened space. It has two halves: [`Space`] is about the space and this client's membership of it
//! (names, heartbeats), [`Locker`] about single locks (acquire, release, change). Handles, guards, lock sets and cancelling
//! are written once, above it. The protocol is chosen when the space is opened: below one virtual call, all code is
//! monomorphic.
//!
//! This file knows no fabric and no protocol by name, except in [`ProtocolGrant`].

#[cfg(target_os = "linux")]
mod changes;
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
pub(crate) mod recorded;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
#[cfg(target_os = "linux")]
pub(crate) mod slots;
#[cfg(target_os = "linux")]
pub(crate) mod threads;

use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, LostReason, ValueError};
#[cfg(target_os = "linux")]
use crate::inspect::Entry;
use crate::lock::Value;
use crate::lock::contention::Contention;
use crate::name::LockName;
use lockwright_fabric::observe::{Claim, Mode};
#[cfg(target_os = "linux")]
use lockwright_locks::Denied;
use lockwright_locks::Lost;
#[cfg(target_os = "linux")]
use lockwright_locks::shiftlock::{ShiftGrant, fast_grant::FastGrant};
use std::fmt::Debug;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
#[cfg(target_os = "linux")]
use std::task::Poll;
use std::time::Duration;

/// How long the user of a client needs to stop its work once a lock is lost: that is part of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopTime {
    Exactly(Duration),
    /// As much of it as the server's lease leaves room for.
    AtMost(Duration),
}

/// A future that can be handed to another thread.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Whether an acquire was given up. It is polled after that was said.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(crate) fn set(&self) {
        self.0.store(true, SeqCst);
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(SeqCst)
    }

    #[cfg(target_os = "linux")]
    pub(crate) async fn wait(self) {
        let Self(is_set) = self;
        std::future::poll_fn(|_| if is_set.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// A lock that was granted, in any kind of space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    /// What the protocol wants back.
    pub(crate) grant: ProtocolGrant,
    /// The holder record that says so.
    pub(crate) record: RecordId,
}

/// A grant of any protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProtocolGrant {
    /// ShiftLock's.
    #[cfg(target_os = "linux")]
    Shift(ShiftGrant),
    /// ShiftLock's, acquired with one verb; no other client has asked for the lock since.
    #[cfg(target_os = "linux")]
    FastGrant(FastGrant),
    /// A range's, or a lock's in this process: all there is to know is in the holder record.
    Range {
        /// The token.
        token: u64,
    },
    /// An asymmetric lock's.
    #[cfg(target_os = "linux")]
    Asymmetric {
        /// With which it was had.
        ticket: u64,
        /// The token.
        token: u64,
        /// Grants left to its side, this one included.
        budget: u16,
    },
    /// A server's.
    #[cfg(target_os = "linux")]
    Remote(crate::remote::RemoteGrant),
    /// A decider's.
    #[cfg(all(target_os = "linux", feature = "fiss"))]
    Fiss(crate::remote::fiss::FissHold),
}

/// Which holder record belongs to a grant: the number of this client's membership, and the record's index in it.
///
/// One whole word, as are the other parts of [`Granted`]: what is stored in pieces and loaded as a whole makes the CPU
/// wait (store forwarding fails).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RecordId(u64);

impl RecordId {
    #[inline(always)]
    pub(crate) const fn new(member: u32, index: u8) -> Self {
        Self((member as u64) << 8 | index as u64)
    }

    #[inline(always)]
    pub(crate) const fn member(self) -> u32 {
        (self.0 >> 8) as u32
    }

    #[inline(always)]
    pub(crate) const fn index(self) -> u8 {
        self.0 as u8
    }
}

impl Debug for RecordId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordId").field("member", &self.member()).field("index", &self.index()).finish()
    }
}

/// A name that was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The lock's id.
    pub(crate) lock: u64,
    /// To be added to the protocol's token: a name that was given up and made anew goes on where it was.
    pub(crate) token_base: u64,
    /// The membership that looked it up.
    pub(crate) by: u32,
}

/// What kind of lock it is: a name can stand for one of each, which have nothing to do with each other.
///
/// ```
/// # use lockwright::{LockName, inspect::{Entry, EntryState, Kind}};
/// let mut entry = Entry::new(LockName::new("gpu")?, EntryState::Held);
/// assert_eq!(entry.kind(), Kind::Keyed);
/// entry.range = Some(0..10);
/// assert_eq!(entry.kind(), Kind::Ranges);
/// # Ok::<(), lockwright::NameError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Mutexes and reader-writer locks: one lock per name.
    Keyed,
    /// Range locks: many units under one name.
    Ranges,
    /// Semaphores: so many permits under one name. A claim on `weight..limit + 1` is for `weight` of them.
    Semaphores,
}

/// Identifies a space, alike in every process that can reach it, however it does. Lock sets are ordered by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpaceIdentity {
    /// A number given out by this process.
    Process(u64),
    /// Memory of a host, which its processes share and a server may offer: `ShmSpace::identity`.
    #[cfg(target_os = "linux")]
    Shm(u128),
    /// What the server calls itself, and the name of the space.
    #[cfg(target_os = "linux")]
    Served { server: u128, space: Vec<u8> },
}

/// What the space is called in records, and in what a command is told of the locks that it runs under.
impl std::fmt::Display for SpaceIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(number) => write!(f, "mem/{}/{number}", std::process::id()),
            #[cfg(target_os = "linux")]
            Self::Shm(number) => write!(f, "shm/{number:x}"),
            #[cfg(target_os = "linux")]
            Self::Served { server, space } => f.write_str(&crate::record::served_space(*server, space)),
        }
    }
}

/// What is known about a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    Uncertain,
    Lost(LostReason),
}

/// Why a lock was not granted.
#[derive(Clone, Debug)]
pub enum Refused {
    /// Another client holds it, and it was only tried.
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

/// An opened space.
pub(crate) trait Backend: Space + Locker {}

impl<T: Space + Locker> Backend for T {}

/// What concerns the space as a whole.
pub(crate) trait Space: Send + Sync + Debug {
    /// The same for every client of this space, and different from that of every other space.
    fn identity(&self) -> SpaceIdentity;

    /// The lock called `name`, which keeps its id until it is unbound as often as it was bound.
    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError>;

    /// Whether a name that was looked up still leads to the same lock.
    fn is_bound(&self, bound: &Bound) -> bool;

    /// This client has no more use for a lock that it had bound.
    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind);

    /// Renews this client's lease; returns when to do so again.
    fn heartbeat(&self) -> Duration;

    /// Polls `future` to its end on the calling thread.
    fn block_on(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        lockwright_fabric::backend::block_on(future);
    }

    /// How long a client's user may take to stop once a lock is lost, if the space sets a bound.
    fn stop_time(&self) -> Option<Duration> {
        None
    }

    /// Which protocols it runs.
    ///
    /// # Errors
    /// If the server cannot be asked.
    fn protocols(&self) -> Result<Protocols, LockError>;

    /// Lets the locks that this client holds now stay held while process `pid` lives. `false` if there is no such process,
    /// or the client was evicted; an error if the system does not say which process that is.
    fn hold_while_process_lives(&self, pid: u32) -> std::io::Result<bool> {
        let _ = pid;
        Ok(true)
    }

    /// What stays with this client of a lock of a server: the fast path to it, without a virtual call.
    #[cfg(target_os = "linux")]
    fn retained_lock(&self, bound: &Bound) -> Option<crate::remote::retained::RetainedLock> {
        let _ = bound;
        None
    }

    /// The membership that looked a name up, where the space is in this host's memory: the fast path to keyed locks,
    /// without a virtual call.
    #[cfg(target_os = "linux")]
    fn local_member(&self, bound: &Bound) -> Option<&Arc<member::Member>> {
        let _ = bound;
        None
    }

    /// This process's membership of a one-sided space of its host: likewise.
    #[cfg(target_os = "linux")]
    fn local_asymmetric(&self) -> Option<&Arc<crate::one_sided::local::LocalMember>> {
        None
    }
}

/// What concerns single locks.
pub(crate) trait Locker {
    /// Acquires the lock if it is free, without waiting for anything. `None`: that takes a [`try_acquire`](Self::try_acquire).
    fn try_acquire_fast(&self, kind: Kind, claim: Claim) -> Option<Result<Granted, Refused>>;

    /// Acquires the lock if no living client holds it; asks the server, or recovers it from the dead, where that is needed.
    fn try_acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        Box::pin(std::future::ready(self.try_acquire_fast(kind, claim).unwrap_or(Err(Refused::Busy))))
    }

    /// How long a try may take before it counts as [`Refused::Busy`].
    fn try_limit(&self) -> Option<Duration> {
        None
    }

    /// How long a try may take, awaited or waited for, before it ends with [`no_answer`](Self::no_answer); what it has begun is
    /// then seen through, and given back.
    fn answer_limit(&self) -> Option<Duration> {
        None
    }

    /// What such a try says.
    fn no_answer(&self) -> LockError {
        LockError::TimedOut
    }

    /// Acquires the lock, however long it takes.
    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>>;

    /// Acquires locks in this order: the first of them and as many others as its server takes in one exchange. Dropped, it gives
    /// back what it has. `None`: they are to be acquired one by one.
    fn acquire_set(&self, claims: &[Claim]) -> Option<BoxFuture<Result<Vec<Granted>, Refused>>> {
        let _ = claims;
        None
    }

    /// As [`acquire`](Self::acquire), but given up it ends as soon as it can: with the lock, or without it. Worth overriding where
    /// [`acquire`](Self::acquire) waits for what may take hours.
    fn acquire_unless(
        &self,
        kind: Kind,
        claim: Claim,
        given_up: GivenUp,
    ) -> BoxFuture<Result<Granted, Refused>> {
        let _ = given_up;
        self.acquire(kind, claim)
    }

    /// Whether dropping the future of [`acquire`](Self::acquire) takes the request out of the queue. If not, it has to be
    /// polled to its end, and the lock released.
    fn acquire_cancels_on_drop(&self) -> bool {
        false
    }

    /// Releases the lock if that waits for nothing; `None` if nothing has happened. Allocates nothing.
    fn release_fast(&self, kind: Kind, claim: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        let _ = (kind, claim, granted);
        None
    }

    /// Releases the lock.
    fn release(&self, kind: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>>;

    /// Releases the lock without waiting, where nobody wants to know the outcome; `false` if it takes a
    /// [`release`](Self::release).
    fn release_unobserved(&self, kind: Kind, claim: Claim, granted: &Granted) -> bool {
        self.release_fast(kind, claim, granted).is_some()
    }

    /// What this space is, for the error that says what it cannot do.
    fn description(&self) -> &'static str {
        "shared memory"
    }

    /// Makes a shared grant exclusive, without releasing it in between; without `wait`, only if that can be had at once.
    /// Dropped, or refused, it leaves the grant shared.
    fn upgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let _ = (kind, claim, granted, wait);
        Box::pin(std::future::ready(Err(ChangeError::Unsupported(self.description()))))
    }

    /// Makes an exclusive grant shared. It counts as that from the first poll on, unless that fails.
    fn downgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let _ = (kind, claim, granted);
        Box::pin(std::future::ready(Err(ChangeError::Unsupported(self.description()))))
    }

    /// Releases a part of a granted range that is neither all of it nor outside; empty, it is in the middle. Returns a grant for
    /// the second piece, if two are left.
    fn unlock_part(
        &self,
        granted: &Granted,
        claim: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Granted>, ChangeError> {
        let _ = (granted, claim, part);
        Err(ChangeError::Unsupported(self.description()))
    }

    /// The value of the name `name`, whose lock was granted. Read by an exclusive holder it is open from then on.
    fn value(
        &self,
        name: &LockName,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Value, ValueError>> {
        let _ = (name, claim, granted);
        Box::pin(std::future::ready(Err(ValueError::Unsupported(self.description()))))
    }

    /// Sets the value of the name `name`, whose lock was granted to this holder alone; it is open from then on.
    fn set_value(
        &self,
        name: &LockName,
        claim: Claim,
        granted: &Granted,
        bytes: &[u8],
    ) -> BoxFuture<Result<(), ValueError>> {
        let _ = (name, claim, granted, bytes);
        Box::pin(std::future::ready(Err(ValueError::Unsupported(self.description()))))
    }

    /// The holder leaves the value as it is, and unlocks next.
    fn close_value(&self, name: &LockName, granted: &Granted) {
        let _ = (name, granted);
    }

    /// From now on `contention` is told when a client waits for what was granted. `false`: it is to be
    /// [looked for](Self::is_contended).
    fn watch_contention(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
        contention: &Arc<Contention>,
    ) -> bool {
        let _ = (kind, claim, granted, contention);
        false
    }

    /// Looks whether a client waits for what was granted. `None`: spaces of this kind do not know.
    fn is_contended(&self, kind: Kind, claim: Claim) -> Option<bool> {
        let _ = (kind, claim);
        None
    }

    /// Holders and waiters of the locks called `name`, of all clients and kinds. Takes nothing, and blocks until a server has
    /// answered.
    #[cfg(target_os = "linux")]
    fn entries_of(&self, name: &LockName, claim: Claim) -> Result<Vec<Entry>, LockError> {
        let _ = (name, claim);
        Err(LockError::Unsupported("it does not tell its clients who holds what"))
    }

    /// The fencing token of a grant.
    fn token(&self, granted: &Granted) -> u64;

    /// Whether the grant is still good.
    fn standing(&self, kind: Kind, claim: Claim, granted: &Granted) -> Standing;
}

/// So many of a semaphore's permits; which semaphore is filled in later.
pub(crate) const fn permits(weight: u64, limit: u64) -> Claim {
    Claim { lock: 0, mode: Mode::Shared, start: weight, end: limit + 1 }
}

/// The whole of a lock in `mode`; which lock is filled in later.
pub(crate) const fn whole(mode: Mode) -> Claim {
    Claim { lock: 0, mode, start: 0, end: u64::MAX }
}
