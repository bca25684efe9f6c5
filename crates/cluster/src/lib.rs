//! Several servers as one: who serves which shard of the locks, how long that is certain, and what becomes of a shard when
//! its server dies. etcd decides; grants never touch it. State machines without I/O: times, messages and the outcomes of
//! etcd's transactions go in, transactions and decisions come out. The server and the client run them, and so does the explorer.
//!
//! | file | |
//! |---|---|
//! | `address` | where a cluster is |
//! | `certainty` | how long a server is certain of its lease, and how long a client may believe that |
//! | `keys` | what is in etcd: keys and their values |
//! | `txn` | etcd's transactions, as values |
//! | `shard` | one shard at the server that owns it: taking it over, claims, sessions, tokens |
//! | `shard/handover` | what a server tells the next owner of a shard that it hands over |
//! | `map` | which shard a lock is in, and who serves it |
//! | `plan` | which server should take or give which shard |
//! | `etcd` | the client of etcd: the only part with I/O, and behind a feature |
//!
//! | time | |
//! |---|---|
//! | a server grants | until (its last renewal was *sent*) + TTL − TTL/[`DRIFT`](certainty::DRIFT), by its own clock |
//! | a client believes a grant | until (it *sent* a probe) + (what the server said was left, less the same drift) |
//! | a client keeps what it holds | for its lease after it last believed |
//! | a new owner grants | when the last one has told it who holds what, or every registered session has claimed, or after the server's side of that lease |
//!
//! What this crate must not do, outside of `etcd`: read a clock, open a socket, or know what a lock table looks like.

pub mod address;
pub mod certainty;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod keys;
pub mod map;
pub mod plan;
pub mod shard;
pub mod txn;

pub use certainty::{Belief, Ownership};
pub use map::ShardMap;
pub use shard::{Rules, Shard};
