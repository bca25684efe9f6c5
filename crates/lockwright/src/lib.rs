//! Lockwright: a distributed lock manager for networks where a round trip costs microseconds.
//!
//! What is here today: the [`fabric`] (what one node may do to another, and the backends that do it) and the
//! [`locks`] (the protocols, each written once and generic over the fabric), under one name. Threads of one
//! process can lock with them:
//!
//! ```
//! use lockwright::fabric::PeerId;
//! use lockwright::fabric::backend::inproc::{InProc, block_on};
//! use lockwright::locks::baseline::mcs::Mcs;
//! use lockwright::locks::{LockClient, Protocol, Space, Want};
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//!
//! let space = Space::of(1);
//! let fabric = InProc::new(space.nodes, <Mcs>::bytes_per_node(&space, &()));
//! let counter = AtomicU64::new(0);
//! std::thread::scope(|threads| {
//!     for n in 0..4 {
//!         let client = <Mcs>::client(fabric.endpoint(PeerId::client(n)), &space, &());
//!         let counter = &counter;
//!         threads.spawn(move || {
//!             block_on(async {
//!                 for _ in 0..1_000 {
//!                     let grant = client.acquire(Want::exclusive(0)).await.unwrap();
//!                     // A load and a store lose counts, unless one thread at a time is here.
//!                     counter.store(counter.load(Relaxed) + 1, Relaxed);
//!                     client.release(grant).await.unwrap();
//!                 }
//!             });
//!         });
//!     }
//! });
//! assert_eq!(counter.into_inner(), 4_000);
//! ```
//!
//! What is not here yet: named lock spaces, guards, leases, locks between processes and machines, a server, and
//! a command that runs under a lock. `ARCHITECTURE.md` has the map.
//!
//! What this crate must not do: see the simulator. Whoever links it compiles none of that.

pub use lockwright_fabric as fabric;
pub use lockwright_locks as locks;

/// The README's code, compiled and run like any other example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
