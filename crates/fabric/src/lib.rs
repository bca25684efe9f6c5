//! What one node may do to another: one-sided verbs, messages, time, and what a fabric is capable of.
//!
//! Lock protocols are written against [`Endpoint`] and nothing else, so the same code runs on the explorer, in
//! the simulator, on threads of one process, and over real networks. Verbs are values made from a [`Word`];
//! [`Endpoint::go`] executes one, or a batch of them in one round trip, and returns the whole old words:
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
//! What this crate must not do: know what a lock is. [`observe`] carries a lock user's words to whoever checks
//! them, and that is all.

mod addr;
pub mod backend;
mod capability;
pub mod conformance;
mod delegate;
mod endpoint;
pub mod fault;
pub mod layer;
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
pub use wait::{Cond, Deadline, Field, Time, Wait, Waited};
