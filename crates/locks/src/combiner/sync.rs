//! What the list between threads stands on. The test under loom compiles `queue.rs` with loom's in
//! their place.

pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic;
