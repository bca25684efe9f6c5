//! The lock protocols. Each is written once, generic over the fabric, and reads like its paper's pseudocode.
//!
//! A protocol is a folder with a type that implements [`Protocol`] and a client that implements [`LockClient`]. What the
//! papers compare with is in the crate `lockwright-baselines`; cases, mutants and the catalog are in `lockwright-proofs`.
//!
//! What this crate must not do: open a socket, read a clock, start a thread, draw a random number. All of that
//! comes from the [`Endpoint`](lockwright_fabric::Endpoint).

pub mod abandoned;
pub mod citron;
pub mod combiner;
mod fast;
pub mod fisslock;
pub mod holders;
pub mod join;
mod protocol;
pub mod qplock;
pub mod shiftlock;
pub mod slots;

pub use protocol::{
    Change, Denied, Grant, Held, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space,
    TokenGrant, Want,
};
