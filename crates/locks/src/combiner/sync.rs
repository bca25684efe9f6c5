//! What the list between threads and its bell stand on. The tests under loom compile `queue.rs` and `bell.rs` with loom's in
//! their place.

pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic;
