//! A server, its clients and the connections between them: the shipped state machines of sessions, lock table, durable state
//! and client table, in every order of what can happen to them.
//!
//! | part | shipped as |
//! |---|---|
//! | what clients want and believe | `lockwright::internal::Table` |
//! | messages kept until they are acknowledged, connections by number | `lockwright_fabric::backend::tcp::SessionState` |
//! | which of them a client has received and acknowledged | `lockwright_fabric::backend::tcp::Received` |
//! | requests, grants, claims, what is on disk | `lockwright_server::Machine` |
//!
//! The world breaks connections on one side and lets the other side know late or never, loses what was on its way, kills the
//! server between any two steps and at any write to its disk, starts it again, kills clients, and stops them for longer than
//! their lease. Time is left out but for one rule, which `tcp::Lease` guarantees by clocks of any rate: **a server gives up
//! what a client holds only when the client is dead, stopped, or has found its lease to be over.** A restarted server waits
//! for as long.
//!
//! Checked: no two clients that run believe what cannot be true together; the token of a grant is higher than that of every
//! earlier grant in its way, across restarts; a sound client is never refused; every client that wants a lock gets it, or is
//! told; the locks of a set come in order; the value that a holder reads is what the last one left, and not clean if that one
//! ended without unlocking; and in the end the server keeps nothing, and never more than what clients do calls for.

pub(crate) mod cases;
mod client;
mod connection;
mod model;
mod sets;
mod soak;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod values;

pub use model::{Faults, Op, Served};
pub use state::State;
pub use step::Step;
