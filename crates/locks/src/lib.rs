//! The lock protocols. Each is written once, generic over the fabric, and reads like its paper's pseudocode.
//!
//! A protocol is a folder (or, for a baseline, a file) with three things: a type that implements [`Protocol`],
//! a client that implements [`LockClient`], and cases for the explorer. [`catalog`] names them all; nothing else
//! has to be told about a new one.
//!
//! What this crate must not do: open a socket, read a clock, start a thread, draw a random number. All of that
//! comes from the [`Endpoint`](lockwright_fabric::Endpoint).

pub mod citron;
pub mod combiner;
pub mod fast;
pub mod fisslock;
pub mod join;
pub mod holders;
pub mod orphans;
mod protocol;
pub mod qplock;
pub mod shiftlock;
pub mod slots;

pub use fast::{Answer, AtOnce, Either, Erased, Fast, Quick, at_once, fast, finish};
pub use protocol::{
    Change, Denied, Grant, Held, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space,
    TokenGrant, Want,
};
