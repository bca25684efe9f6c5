//! What the combiner asks of its interval trees: many trees (one for each lock that has ranges, one for all names
//! together), in which requests stand by their range, held and waiting alike.
//!
//! [`Wide`](super::wide::Wide) is the one that is shipped; tests run the combiner on a narrower one, which is deep with few
//! ranges. The thesis has a red-black tree, one range a node, which touches more cache lines.
//!
//! What a tree must not do: know who blocks whom. It finds what overlaps; the rest is the combiner's.

use super::records::{Records, Slot};
use std::fmt::Debug;

/// As many are looked up at once: as many misses as a core can have under way, and some for those that hit.
pub(super) const TOGETHER: usize = 32;

/// A range in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Which tree.
    pub tree: u32,
    /// First unit.
    pub start: u64,
    /// One past the last unit.
    pub end: u64,
}

/// Some trees of requests. The table of requests is the combiner's, which may change anything in it but which tree a
/// request is in; it is always the same one.
pub trait IntervalTrees: Clone + Debug + Default + Send + 'static {
    /// A new, empty tree. The first is number 0.
    fn plant(&mut self) -> u32;

    /// The request's range.
    fn range(&self, records: &Records, slot: Slot) -> (u64, u64);

    /// With more requests than this they are far enough away to be looked up together.
    const MANY: usize;

    /// Puts a request into the tree that its record names, with the range `start..end`. Says whether nothing there overlaps it.
    fn insert(&mut self, records: &mut Records, slot: Slot, start: u64, end: u64) -> bool;

    /// Takes the request out of its tree; its record is good for nothing then but to be given back. Says whether nothing
    /// is left in the tree.
    fn remove(&mut self, records: &mut Records, slot: Slot) -> bool;

    /// Adds to `found` every request of `tree` that has a unit in common with `start..end`, by their starts.
    fn overlapping(&self, tree: u32, start: u64, end: u64, found: &mut Vec<Slot>);

    /// Adds to `found` every request of `tree`, by their starts.
    fn walk(&self, tree: u32, found: &mut Vec<Slot>);

    /// Forgets what was found out before.
    fn begin_places(&mut self);

    /// The place of this range, one of at most [`TOGETHER`], is wanted.
    fn want_place(&mut self, range: Range);

    /// Finds out where each of the ranges wanted belongs, all of them in step, so that their cache misses overlap. They should
    /// be inserted soon, in this order. Nothing is changed.
    fn find_places(&mut self);

    /// Brings into the cache what the end of these requests will touch, and waits for as little as can be.
    fn fetch(&self, records: &Records, slots: &[Slot]);

    /// Bytes of memory taken, without the table's.
    fn bytes(&self) -> usize;
}
