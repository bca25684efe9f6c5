//! The fabric: what one node may do to another (one-sided verbs, messages, time), and the backends that do it.
//!
//! Lock protocols use [`Endpoint`] and nothing else, so the same code runs in the explorer, in the simulator, on threads of
//! one process, and over real networks. A *verb* is an operation on one word of a node's memory, as RDMA NICs execute it:
//! READ, WRITE, compare-and-swap, fetch-and-add. Verbs are values made from a [`Word`]; [`Endpoint::go`] executes one, or a
//! batch in one round trip, and returns the old words:
//!
//! ```
//! use lockwright_fabric::*;
//!
//! async fn announce<E: Endpoint>(ep: &E, mine: Word64, other: Word64) -> Result<bool, FabricError> {
//!     let (_, seen) = ep.go((mine.write(1), other.read())).await?;
//!     Ok(seen == 0)
//! }
//! ```
//!
//! This crate must not know what a lock is; [`observe`] only carries a lock client's events to checkers.

mod addr;
pub mod backend;
mod capability;
pub mod conformance;
pub mod count;
mod delegate;
mod endpoint;
mod message;
pub mod observe;
pub mod random;
mod verb;
mod wait;

pub use addr::{Addr, NodeId, PeerId, RegionId, Value, Width, Word, Word64, Word128};
pub use capability::{AtomicScope, Capabilities, Mismatch, Missing, Needs};
pub use endpoint::{Endpoint, FabricError};
pub use message::{BoxedRole, Message, Outbox, Role};
pub use verb::{Batch, Executor, Fields, MAX_BATCH, MaskedCas, Olds, Op, RawVerb, Verb, VerbKind};
pub use wait::{Cond, Deadline, Field, RawWait, Time, Wait, Waited};
