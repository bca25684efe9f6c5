//! Holder records: ShiftLock for a space that writes down who holds what, so that only the dead lose their locks.
//!
//! The paper's recovery goes by a lease on the lock: a client that holds it for longer is taken for dead. Users of a lock
//! service hold locks for hours. Here every client has *records* that others can read, and a lease of its own: before a
//! waiter resets a lock it looks whether a record of a client that is alive says that the lock is held. A client that is
//! silent for longer than its lease is evicted, and from then on its verbs are refused.
//!
//! Three rules make that safe, if any client is killed or stopped between any two instructions:
//!
//! 1. **Written before taken.** A record says that its client holds the lock before the verb that takes it; or, if the lock
//!    was handed over, before the entry's version is [bumped](crate::shiftlock::versioned), and only then does the grant count.
//! 2. **Read before looked.** A resetter reads the entry, then looks at the records, then swaps exactly the entry it has
//!    read. A holder it did not see written down has changed the entry after that read, so the swap fails. That holds for
//!    a resetter that was stopped in between for however long, and for two resetters at once.
//! 3. **Confirmed after granted.** A grant counts only if its client finds itself still in *after* the verb that brought it:
//!    a client that is evicted can have one more verb under way. Who evicts it suspects it first and then waits for a
//!    heartbeat, so a client that has just woken up is not evicted for its sleep after it was granted a lock.
//!
//! There is nothing to clear after a resetter that dies: it leaves nothing behind.
//!
//! [`ranges`] are written down the same way, under a keyed lock.
//!
//! | file | |
//! |---|---|
//! | [`record`] | which word is where, and its bits |
//! | `writer` | the order in which a record is written |
//! | `table` | the scan of all records |
//! | `listed` | who there is to look at, for repairs |
//! | [`liveness`] | how a client is evicted |
//! | [`membership`] | how clients come and go |
//! | [`space`] | what a space provides: the table's memory, and who is alive |
//! | `client` | the three rules |
//! | [`changes`] | upgrade and downgrade of a keyed lock |
//! | [`ranges`], [`range_changes`] | range locks; upgrade, downgrade, a part given back |
//! | [`index_layout`], `index` | the tree by which ranges are found: its words, and the tree |
//! | [`indexed`] | how ranges are found, with it or without |
//!
//! The explorer runs all of them (`lockwright-proofs`, `holders/`); `lockwright` brings the spaces.

pub mod changes;
mod client;
mod index;
pub mod index_layout;
pub mod indexed;
pub(crate) mod listed;
pub mod liveness;
pub mod membership;
mod query;
pub mod range_changes;
pub mod ranges;
pub mod record;
pub mod space;
mod table;
mod writer;

pub use client::{DirectRecorder, HolderClient, Holding, Recorder};
pub use record::{ClientRecord, HolderRecord, Kind, State, TableLayout};
pub use space::{HolderSpace, Order, RangeSpace, RecordRules};
pub use table::{HolderTable, TableReader};
pub use writer::RecordWriter;
