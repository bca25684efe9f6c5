//! Lockwright: a distributed lock manager for networks where a round trip costs microseconds.
//!
//! Open a space, name a lock, take it:
//!
//! ```
//! use lockwright::Client;
//!
//! let client = Client::open("mem:").wait()?;
//! let orders = client.mutex("orders/42")?;
//! let guard = orders.lock().wait()?;
//! println!("alone here; writes carry token {}", guard.token());
//! guard.unlock().wait()?; // or just drop it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # One rule
//! Every call that may wait returns a future. `.await` it in async code, on any executor, or `.wait()` it to block the
//! calling thread, without any. Nothing happens before that; dropping it gives up.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lockwright::Client::open("shm:").await?;
//! let guard = client.rwlock("config")?.read().await?;
//! let guard = guard.upgrade().await?;
//! guard.unlock().await?;
//! # Ok(()) }
//! ```
//!
//! | to | call | returns |
//! |---|---|---|
//! | open a space | [`Client::open`], [`ClientOptions::open`] | [`Client`] |
//! | name a lock | [`Client::mutex`], [`rwlock`](Client::rwlock), [`range_lock`](Client::range_lock), [`semaphore`](Client::semaphore) | [`Mutex`], [`RwLock`], [`RangeLock`], [`Semaphore`] |
//! | wait for it | [`Mutex::lock`], [`RwLock::read`], [`RwLock::write`], [`RangeLock::read`], [`RangeLock::write`], [`Semaphore::acquire`]; `*_timeout` | [`MutexGuard`], [`RwLockReadGuard`], … |
//! | only try | `try_lock`, `try_read`, `try_write` | the same, or [`TryLockError::Busy`] |
//! | take several | [`LockSet`] | [`SetGuard`] |
//! | change it | [`upgrade`](RwLockReadGuard::upgrade), [`downgrade`](RwLockWriteGuard::downgrade), [`unlock_part`](RangeWriteGuard::unlock_part) | the other guard, or [`NotChanged`] |
//! | elect a leader | [`Client::election`], [`Election::campaign`], [`Election::observe`] | [`Leadership`], [`Observer`] |
//! | watch it | [`state`](AnyGuard::state), [`lost`](AnyGuard::lost), [`uncertain`](AnyGuard::uncertain) | [`GuardState`], [`LostReason`] |
//! | give it back | [`unlock`](AnyGuard::unlock), or drop the guard | what was found |
//! | take any guard | [`AnyGuard`], [`LockGuard`] | |
//!
//! # Addresses
//! | address | the space | who shares it | offers upgrade, downgrade, parts |
//! |---|---|---|---|
//! | `mem:` | a new one inside this process | clones of the client | yes |
//! | `shm:`, `shm:NAME`, `shm:/PATH` | in this host's shared memory; no server | processes of this user | yes |
//! | `tcp://HOST:PORT/NAME` | a server's own | every host that reaches the server | yes |
//! | `tcp://HOST:PORT/shm:` | the server's host's shared memory, exported by it | both of the above | no |
//! | `cluster://ETCD,ETCD/CLUSTER/NAME` | of several servers on one etcd (feature `cluster`) | every host that reaches them | yes |
//! | `rdma://HOST:PORT/NAME` | as `tcp:`, over RDMA (feature `rdma`) | | yes |
//! | `fiss://HOST:PORT/NAME` | locks that a decider in the network grants; no ranges (feature `fiss`) | every host that reaches the decider | no |
//! | `rdma://HOST:PORT/lent:NAME` | memory of the server that clients access one-sidedly | | no; downgrade of ranges on trees, and if it is local, too |
//! | `shm:lent:NAME` | the same on the server's host, by CPU instructions, if it is served with `--local` | processes of the server's user | downgrade |
//!
//! # When something fails
//! - A process that **dies** loses its locks at once; those who wait get them.
//! - A process that is **stopped** or cannot reach its server keeps its locks for its [lease](ClientOptions::lease), then
//!   loses them. Until it knows, its guards are [`Uncertain`](GuardState::Uncertain); then they are held again, or
//!   [`Lost`](GuardState::Lost), with a [reason](LostReason).
//! - A lost lock cannot call back a write that is under way. Every grant has a [token](AnyGuard::token) larger than that of
//!   every earlier conflicting grant: let the resource refuse smaller ones. See [`fenced`].
//! - A server that is **restarted** asks its clients what they hold, and lets them keep it.
//! - An attempt that is given up while it is queued loses nothing: the lock is passed on.
//! - Locks are **not re-entrant**: who takes a lock that it already holds waits for itself. Several are taken with a
//!   [`LockSet`].
//!
//! # Errors
//! One enum per operation ([`OpenError`], [`HandleError`], [`LockError`], [`TryLockError`], [`UnlockError`],
//! [`ChangeError`], [`ValueError`], [`ContentionError`], [`CampaignError`], [`ObserveError`]), with one word for one thing in
//! all of them:
//!
//! | word | means | what to do |
//! |---|---|---|
//! | `TimedOut` | the time given was over first | try again, or give up |
//! | `Busy` | another holder is in the way, and it was only tried | try again later, or wait |
//! | `Lost` | the lock was held and has been taken away | stop; do the work again under a new lock |
//! | `Evicted` | this process was silent for longer than its lease, again and again | a longer lease, or a less busy host |
//! | `Disconnected` | the space, or the server that has it, cannot be reached | see the text; try again |
//! | `Refused` | the server said no | see the text |
//! | `Unsupported` | this space, or this build, cannot do it | another address, or another call |
//! | `TooManyClients`, `TooManyLocks` | there is no more room | end clients; drop handles or guards |
//! | `BadRange`, `Duplicate` | what was asked for makes no sense | ask for something else |
//! | `TokensExhausted` | the lock has given out all its tokens | another name |
//! | `OtherProcess` | the client belongs to the process that forked this one | open a client of your own |
//!
//! # Further
//! [`inspect`] shows who holds what and breaks locks; the crate `lockwright-server` serves them to other hosts; [`fenced`] refuses writes from
//! the past. The [guide] goes through all of it with examples; the program `lockwright` does the same from a shell.

mod backend;
mod client;
mod election;
mod error;
pub mod fenced;
#[cfg(target_os = "linux")]
pub mod inspect;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod internal;
mod lock;
mod name;
#[cfg(target_os = "linux")]
#[allow(missing_docs, reason = "what the server sees of it is no API")]
mod one_sided;
mod progress;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod record;
#[cfg(target_os = "linux")]
#[allow(missing_docs, reason = "what the server sees of it is no API")]
mod remote;
#[cfg(target_os = "linux")]
#[doc(hidden)]
#[allow(missing_docs, reason = "for the project's own server; its files say what is what")]
pub mod wire;

pub use client::{Client, ClientOptions, Open, Protocols};
pub use election::{
    Campaign, CampaignError, Election, Leader, Leadership, NextLeader, ObserveError, Observer,
};
pub use error::{
    ChangeError, ContentionError, HandleError, LockError, LostReason, OpenError, TryLockError, UnlockError,
    ValueError,
};
pub use lock::{
    Acquire, AcquireSet, AnyGuard, ContendedSignal, Downgrade, DowngradeInPlace, GuardState, LockGuard,
    LockSet, LostSignal, Mutex, MutexGuard, NotChanged, RangeLock, RangeReadGuard, RangeWriteGuard,
    ReadGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit, SetGuard, TryAcquire,
    UncertainSignal, Unlock, Upgrade, UpgradeInPlace, Value, ValueCall, WriteGuard,
};
#[cfg(feature = "rdma")]
pub use lockwright_fabric::backend::rdma::{DeviceChoice, DeviceError};
pub use name::{LockName, MAX_NAME_BYTES, NameError};

/// The README's code, compiled and run like any other example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(any(doc, doctest))]
#[doc = include_str!("../guide.md")]
pub mod guide {}
