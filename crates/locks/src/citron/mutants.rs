//! Citron with one rule left out, each with the case that shows it.

use super::cases::{INNER, INNER_AND_LEAF, LEAF, ROOT, case, range, small, timed};
use super::rw_cases::read;
use super::{Params, Rules};
use crate::case::{Case, Clock};

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
        vec![case("inner-and-leaf-under-root", small(1)).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT])]
    }
}

/// Keeps its turn at a node while it waits for an ancestor, as printed.
#[derive(Debug)]
pub struct KeepsTurn;

impl Rules for KeepsTurn {
    const NAME: &'static str = "citron-keeps-turn";
    const PASSES_TURN: bool = false;
    fn cases() -> Vec<Case<Params>> {
        // C0 holds a leaf and queues for the node behind C1, C1 waits for the root, C2 at the root waits for C0.
        vec![
            case("queue-under-a-root", small(2))
                .clients(1, &[range(3, 8)])
                .clients(1, &[range(4, 8)])
                .clients(1, &[ROOT]),
        ]
    }
}

/// Wait mode that trusts T_wait to be longer than any request below takes.
#[derive(Debug)]
pub struct NeverLate;

impl Rules for NeverLate {
    const NAME: &'static str = "citron-short-wait";
    const ABORTS_WHEN_LATE: bool = false;
    fn cases() -> Vec<Case<Params>> {
        let clock = Clock { tick_ns: 1, delay_ticks: 2, max_ticks: 40 };
        vec![case("leaf-and-root", timed(1, 1)).clients(1, &[ROOT]).clients(1, &[LEAF]).clock(clock)]
    }
}

/// A range over several token words leaves the lower ones behind.
#[derive(Debug)]
pub struct UnevenTokens;

impl Rules for UnevenTokens {
    const NAME: &'static str = "citron-uneven-tokens";
    const LEVELS_TOKENS: bool = false;
    fn cases() -> Vec<Case<Params>> {
        let four_words = Params { token_level: 2, ..small(1) };
        vec![
            case("across-words", four_words)
                .clients(1, &[LEAF, range(3, 5)])
                .clients(1, &[range(4, 5)])
                .tokens(),
        ]
    }
}

/// A writer that ignores readers above it.
#[derive(Debug)]
pub struct IgnoresReadersAbove;

impl Rules for IgnoresReadersAbove {
    const NAME: &'static str = "citron-rw-ignores-above";
    const READERS: bool = true;
    const YIELDS_TO_READERS: bool = false;
    fn cases() -> Vec<Case<Params>> {
        vec![case("reader-above-a-writer", small(1)).clients(1, &[read(INNER)]).clients(1, &[LEAF])]
    }
}

/// A writer that does not wait for readers below it.
#[derive(Debug)]
pub struct IgnoresReadersBelow;

impl Rules for IgnoresReadersBelow {
    const NAME: &'static str = "citron-rw-ignores-below";
    const READERS: bool = true;
    const WAITS_FOR_READERS_BELOW: bool = false;
    fn cases() -> Vec<Case<Params>> {
        vec![case("reader-below-a-writer", small(1)).clients(1, &[read(LEAF)]).clients(1, &[INNER])]
    }
}
