//! Kept locks: ShiftLock for a space that writes down who holds what, so that only the dead lose their locks.
//!
//! The paper's recovery goes by a lease on the lock: whoever holds it for longer is taken for dead. Users of a lock
//! service hold locks for hours. Here every client has *cards* that others can read, and a lease of its own: before a
//! waiter resets a lock it looks whether a card of somebody alive says that the lock is held. A client that is silent for
//! longer than its lease is declared dead, and from then on its verbs are refused.
//!
//! Three rules make that safe, whoever is killed or stopped between any two instructions:
//!
//! 1. **Written before taken.** A card says that its client holds the lock before the verb that takes it; or, if the
//!    lock was handed over, before the entry is [stirred](crate::shiftlock::stirred), and only what was stirred counts.
//! 2. **Read before looked.** A resetter reads the entry, then looks at the cards, then swaps exactly the entry it has
//!    read. A holder it did not see written down has changed the entry after that read, so the swap fails. That holds for
//!    a resetter that was stopped in between for however long, and for two resetters at once.
//! 3. **In after granted.** A grant counts only if its client finds itself still in *after* the verb that brought it: a
//!    client that is declared dead can have one more verb under way. Who declares it dead accuses it first and then waits
//!    for a sign of life, so somebody who has just woken up is not thrown out for its sleep after it was granted a lock.
//!
//! There is nothing to clear after a resetter that dies: it leaves nothing behind.
//!
//! [`ranges`] are kept the same way, under a kept lock.
//!
//! Files: `client` is the three rules; [`Book`] is what a space provides; [`verdict`] is how a client is declared dead; `mortal` and `ledger` provide it from plain
//! memory, for the explorer; `cases`, `mutants` and `explored_ranges` are what it runs. `lockwright` brings the book of a real space.

mod cases;
mod client;
mod explored;
mod explored_ranges;
mod ledger;
mod mortal;
pub(crate) mod mutants;
pub mod ranges;
pub mod verdict;

pub use client::{Book, KeptClient, PromptBook, Says, State};
pub use explored::{Ending, Fenced, Kept, KeptGrant, KeptParams};
pub use explored_ranges::{Believing, KeptRanges, Outside, RangeGrant};
