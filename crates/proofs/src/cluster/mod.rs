//! Two servers, two clients and one etcd: the shipped state machines of `lockwright-cluster`, in every order of what can happen
//! to them.
//!
//! | part | shipped as |
//! |---|---|
//! | certainty of a server, belief of a client | `Ownership`, `Belief` |
//! | a shard at its owner: claims, sessions, tokens, transactions | `Shard`, `Taker` |
//! | what is read from etcd, and who takes what | `ShardMap`, `plan` |
//!
//! etcd is a linearizable register with leases (`etcd`). The lock table is one lock, its holder and its queue: what
//! servers and clients do about claims beside this is explored in `served`. Time passes in ticks, and the clocks of some
//! machines miss every third: the drift that certainty and belief allow here.
//!
//! The world delays requests to etcd and their answers, pauses servers past their leases, kills them, lets leases expire,
//! kills clients, and suspends their machines. Operators break grants. A table that was handed over with the shard comes at any time,
//! any number of times, or never.
//!
//! Checked: no two clients believe that they hold the lock; tokens rise; every client gets the lock or is told that it does not;
//! and a live holder keeps it, unless it could not hear of an owner for longer than its lease, or its grant was broken; and no
//! owner lets go on whose grant was broken.

pub(crate) mod cases;
mod choices;
mod client;
mod etcd;
mod handed;
mod model;
mod server;
mod soak;
mod step;

pub use model::{Cluster, Faults};
