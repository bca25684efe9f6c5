//! Citron with one rule left out, each with the case that shows it.

use super::cases::{INNER, LEAF, ROOT, case, range, small};
use super::{Params, Rules};
use crate::case::Case;

/// Looks at the ancestors before it tells them, not after.
#[derive(Debug)]
pub struct LooksFirst;

impl Rules for LooksFirst {
    const NAME: &'static str = "citron-looks-first";
    const LOOKS_AFTER_TELLING: bool = false;
    fn cases() -> Vec<Case<Params>> {
        vec![case("leaf-and-inner", small(1)).clients(1, &[INNER]).clients(1, &[LEAF])]
    }
}

/// An attempt that is undone forgets to add to DCnt.
#[derive(Debug)]
pub struct ForgetsCount;

impl Rules for ForgetsCount {
    const NAME: &'static str = "citron-forgets-dcnt";
    const UNDO_COUNTS: bool = false;
    fn cases() -> Vec<Case<Params>> {
        vec![case("two-leaves-and-inner", small(1)).clients(2, &[LEAF]).clients(1, &[INNER])]
    }
}

/// Waits for requests above a node that it holds.
#[derive(Debug)]
pub struct WaitsAbove;

impl Rules for WaitsAbove {
    const NAME: &'static str = "citron-waits-above";
    const SPARES_COMMON_ANCESTORS: bool = false;
    fn cases() -> Vec<Case<Params>> {
        // An internal node and a leaf: two attempts, one after the other.
        vec![case("inner-and-leaf-under-root", small(1)).clients(1, &[range(0, 5)]).clients(1, &[ROOT])]
    }
}
