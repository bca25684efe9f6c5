//! Citron with one rule left out, each with the case that shows it.

use super::cases::{
    INNER, INNER_AND_LEAF, LEAF, ROOT, case, dying, growing, range, regrowing, sleeping, small, spilling,
    zombie,
};
use super::rw_cases::read;
use super::wait_cases::{self, HOLDING_INNER, HOLDING_LEAF, held, in_ticks, timed};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_locks::citron::{Citron, Params, Rules};
use lockwright_sim::case::{Case, Clock};

/// Shows every mutant of Citron to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |of, caught_by, why| Mutant { of, caught_by, why };
    visitor.mutant::<Citron<LooksFirst>>(mutant(
        "citron",
        Checker::Exclusion,
        "handshake without the look at the ancestors after they were told",
    ));
    visitor.mutant::<Citron<ClosesLate>>(mutant(
        "citron",
        Checker::Exclusion,
        "a client that waited for its turn looks for notes before it closes the gap that let requests below in",
    ));
    visitor.mutant::<Citron<ForgetsCount>>(mutant(
        "citron",
        Checker::Deadlock,
        "an attempt that is undone does not add to DCnt",
    ));
    visitor.mutant::<Citron<WaitsAbove>>(mutant(
        "citron",
        Checker::Deadlock,
        "waits for a request above a node that it holds (k > 1, as printed)",
    ));
    visitor.mutant::<Citron<KeepsTurn>>(mutant(
        "citron",
        Checker::Deadlock,
        "keeps its turn at a node while it waits for an ancestor (k > 1, as printed)",
    ));
    visitor.mutant::<Citron<NeverLate>>(mutant(
        "citron",
        Checker::Exclusion,
        "wait mode whose T_wait is too short for the delays, and that does not abort",
    ));
    visitor.mutant::<Citron<UnevenTokens>>(mutant(
        "citron",
        Checker::Tokens,
        "a range over several token words does not lift the lower ones",
    ));
    visitor.mutant::<Citron<IgnoresReadersAbove>>(mutant(
        "citron-rw",
        Checker::Exclusion,
        "a lower writer ignores an upper reader",
    ));
    visitor.mutant::<Citron<IgnoresReadersBelow>>(mutant(
        "citron-rw",
        Checker::Exclusion,
        "an upper writer does not wait for lower readers",
    ));
    visitor.mutant::<Citron<ForgetsTheRoot>>(mutant(
        "citron",
        Checker::Exclusion,
        "growing forgets an occupied node's extra DMax",
    ));
    visitor.mutant::<Citron<RegrowForgets>>(mutant(
        "citron",
        Checker::Deadlock,
        "only a request's highest note remembers that the tree grew past it: not so if the tree had shrunk before",
    ));
    visitor.mutant::<Citron<HalfGrown>>(mutant(
        "citron",
        Checker::Exclusion,
        "a client that goes on for a dead grower trusts that it left all notes of the nodes that it had swept",
    ));
    visitor.mutant::<Citron<IgnoresEra>>(mutant(
        "citron",
        Checker::Exclusion,
        "a client that was taken for dead while it acquired does not see the new era",
    ));
    visitor.mutant::<Citron<RecoversAtOnce>>(mutant(
        "citron",
        Checker::Exclusion,
        "what the dead left is taken away without a new era, so that nobody can tell",
    ));
    visitor.mutant::<Citron<EndsAnyway>>(mutant(
        "citron",
        Checker::Exclusion,
        "a client that was taken for dead gives back what is another's by now",
    ));
    visitor.mutant::<Citron<SpillKeepsMutex>>(mutant(
        "citron",
        Checker::Exclusion,
        "a client that has the spillover mutex and waits at a node does not see that others took the mutex away",
    ));
    visitor.mutant::<Citron<SpillTakenAtOnce>>(mutant(
        "citron",
        Checker::Exclusion,
        "the spillover mutex is taken away from a client that seems dead without a new era",
    ));
    visitor.mutant::<Citron<SpillEndsAnyway>>(mutant(
        "citron",
        Checker::Exclusion,
        "a client that was taken for dead passes the spillover mutex on, which is another's by now",
    ));
    visitor.mutant::<Citron<WaitIgnoresGrowth>>(mutant(
        "citron",
        Checker::Exclusion,
        "wait mode: a client that left its notes does not look whether the tree had grown past the highest",
    ));
    visitor.mutant::<Citron<WaitForgetsTheRoot>>(mutant(
        "citron",
        Checker::Exclusion,
        "wait mode: growing forgets an occupied node's extra DMax",
    ));
    visitor.mutant::<Citron<WaitIgnoresEra>>(mutant(
        "citron",
        Checker::Exclusion,
        "wait mode: a client that was taken for dead while it acquired does not see the new era",
    ));
    visitor.mutant::<Citron<WaitEndsAnyway>>(mutant(
        "citron",
        Checker::Quiet,
        "wait mode: a client that was taken for dead gives back what is another's by now",
    ));
}

/// Looks at the ancestors before it tells them, not after.
#[derive(Debug)]
pub(crate) struct LooksFirst;

impl Rules for LooksFirst {
    const NAME: &'static str = "citron-looks-first";
    const LOOKS_AFTER_NOTIFYING: bool = false;
}

impl Proof for Citron<LooksFirst> {
    fn cases() -> Vec<Case<Params>> {
        vec![case("leaf-and-inner", small(1)).clients(1, &[INNER]).clients(1, &[LEAF])]
    }
}

/// Looks for notes before it closes the gap between two turns.
#[derive(Debug)]
pub(crate) struct ClosesLate;

impl Rules for ClosesLate {
    const NAME: &'static str = "citron-closes-late";
    const CLOSES_GAP_FIRST: bool = false;
}

impl Proof for Citron<ClosesLate> {
    fn cases() -> Vec<Case<Params>> {
        vec![case("gap-under-roots", small(2)).clients(3, &[ROOT]).clients(1, &[LEAF])]
    }
}

/// An attempt that is undone forgets to add to DCnt.
#[derive(Debug)]
pub(crate) struct ForgetsCount;

impl Rules for ForgetsCount {
    const NAME: &'static str = "citron-forgets-dcnt";
    const UNDO_COUNTS: bool = false;
}

impl Proof for Citron<ForgetsCount> {
    fn cases() -> Vec<Case<Params>> {
        vec![case("two-leaves-and-inner", small(1)).clients(2, &[LEAF]).clients(1, &[INNER])]
    }
}

/// Waits for requests above a node that it holds.
#[derive(Debug)]
pub(crate) struct WaitsAbove;

impl Rules for WaitsAbove {
    const NAME: &'static str = "citron-waits-above";
    const SPARES_COMMON_ANCESTORS: bool = false;
}

impl Proof for Citron<WaitsAbove> {
    fn cases() -> Vec<Case<Params>> {
        // An internal node and a leaf: two attempts, one after the other.
        vec![case("inner-and-leaf-under-root", small(1)).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT])]
    }
}

/// Keeps its turn at a node while it waits for an ancestor, as printed.
#[derive(Debug)]
pub(crate) struct KeepsTurn;

impl Rules for KeepsTurn {
    const NAME: &'static str = "citron-keeps-turn";
    const PASSES_TURN: bool = false;
}

impl Proof for Citron<KeepsTurn> {
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
pub(crate) struct NeverLate;

impl Rules for NeverLate {
    const NAME: &'static str = "citron-short-wait";
    const ABORTS_WHEN_LATE: bool = false;
}

impl Proof for Citron<NeverLate> {
    fn cases() -> Vec<Case<Params>> {
        let clock = Clock { tick_ns: 1, delay_ticks: 2, max_ticks: 40 };
        vec![case("leaf-and-root", timed(1, 1)).clients(1, &[ROOT]).clients(1, &[LEAF]).clock(clock)]
    }
}

/// A range over several token words leaves the lower ones behind.
#[derive(Debug)]
pub(crate) struct UnevenTokens;

impl Rules for UnevenTokens {
    const NAME: &'static str = "citron-uneven-tokens";
    const LEVELS_TOKENS: bool = false;
}

impl Proof for Citron<UnevenTokens> {
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
pub(crate) struct IgnoresReadersAbove;

impl Rules for IgnoresReadersAbove {
    const NAME: &'static str = "citron-rw-ignores-above";
    const READERS: bool = true;
    const YIELDS_TO_READERS: bool = false;
}

impl Proof for Citron<IgnoresReadersAbove> {
    fn cases() -> Vec<Case<Params>> {
        vec![case("reader-above-a-writer", small(1)).clients(1, &[read(INNER)]).clients(1, &[LEAF])]
    }
}

/// A writer that does not wait for readers below it.
#[derive(Debug)]
pub(crate) struct IgnoresReadersBelow;

impl Rules for IgnoresReadersBelow {
    const NAME: &'static str = "citron-rw-ignores-below";
    const READERS: bool = true;
    const WAITS_FOR_READERS_BELOW: bool = false;
}

impl Proof for Citron<IgnoresReadersBelow> {
    fn cases() -> Vec<Case<Params>> {
        vec![case("reader-below-a-writer", small(1)).clients(1, &[read(LEAF)]).clients(1, &[INNER])]
    }
}

/// Growing forgets clients that hold or want the root.
#[derive(Debug)]
pub(crate) struct ForgetsTheRoot;

impl Rules for ForgetsTheRoot {
    const NAME: &'static str = "citron-grow-forgets-root";
    const GROWTH_COUNTS_THE_ROOT: bool = false;
}

impl Proof for Citron<ForgetsTheRoot> {
    fn cases() -> Vec<Case<Params>> {
        vec![growing("grow-over-the-root", 1).clients(1, &[INNER]).clients(1, &[ROOT])]
    }
}

/// Only the highest note of a request remembers that the tree grew past it.
#[derive(Debug)]
pub(crate) struct RegrowForgets;

impl Rules for RegrowForgets {
    const NAME: &'static str = "citron-regrow-forgets";
    const EVERY_NOTE_SPANS: bool = false;
}

impl Proof for Citron<RegrowForgets> {
    fn cases() -> Vec<Case<Params>> {
        vec![regrowing("shrink-and-grow-leaf", 1).clients(1, &[LEAF])]
    }
}

/// What a dead grower may have left half done is taken for done.
#[derive(Debug)]
pub(crate) struct HalfGrown;

impl Rules for HalfGrown {
    const NAME: &'static str = "citron-half-grown";
    const GROWTH_IS_FINISHED: bool = false;
}

impl Proof for Citron<HalfGrown> {
    fn cases() -> Vec<Case<Params>> {
        let case = dying(in_ticks(growing("grow-crash-two-growers", 1)));
        vec![case.clients(1, &[LEAF]).rounds(2).clients(2, &[ROOT])]
    }
}

/// A client that was taken for dead while it acquired goes on.
#[derive(Debug)]
pub(crate) struct IgnoresEra;

impl Rules for IgnoresEra {
    const NAME: &'static str = "citron-ignores-era";
    const ERA_IS_CHECKED: bool = false;
}

impl Proof for Citron<IgnoresEra> {
    fn cases() -> Vec<Case<Params>> {
        vec![zombie("zombie-leaf-and-inner", 1).clients(1, &[LEAF]).clients(1, &[INNER])]
    }
}

/// What the dead left is taken away without a new era.
#[derive(Debug)]
pub(crate) struct RecoversAtOnce;

impl Rules for RecoversAtOnce {
    const NAME: &'static str = "citron-recovers-at-once";
    const RECOVERY_BEGINS_AN_ERA: bool = false;
}

impl Proof for Citron<RecoversAtOnce> {
    fn cases() -> Vec<Case<Params>> {
        vec![zombie("zombie-inner-and-inner", 1).clients(2, &[INNER])]
    }
}

/// What a zombie gives back is not compared with the generation it took it in.
#[derive(Debug)]
pub(crate) struct EndsAnyway;

impl Rules for EndsAnyway {
    const NAME: &'static str = "citron-ends-anyway";
    const ENDINGS_ARE_GUARDED: bool = false;
}

impl Proof for Citron<EndsAnyway> {
    fn cases() -> Vec<Case<Params>> {
        vec![zombie("zombie-inner-and-inner", 1).clients(2, &[INNER]).rounds(2)]
    }
}

/// A client that has the spillover mutex goes by the era of its nodes alone.
#[derive(Debug)]
pub(crate) struct SpillKeepsMutex;

impl Rules for SpillKeepsMutex {
    const NAME: &'static str = "citron-spill-keeps-mutex";
    const SPILL_HAS_AN_ERA: bool = false;
}

impl Proof for Citron<SpillKeepsMutex> {
    fn cases() -> Vec<Case<Params>> {
        vec![sleeping(spilling("spillover-zombie")).rounds(2)]
    }
}

/// The spillover mutex is taken away without a new era.
#[derive(Debug)]
pub(crate) struct SpillTakenAtOnce;

impl Rules for SpillTakenAtOnce {
    const NAME: &'static str = "citron-spill-taken-at-once";
    const RECOVERY_BEGINS_AN_ERA: bool = false;
}

impl Proof for Citron<SpillTakenAtOnce> {
    fn cases() -> Vec<Case<Params>> {
        vec![sleeping(spilling("spillover-zombie")).rounds(2)]
    }
}

/// What a zombie gives back of the spillover mutex is not compared with the generation it took it in.
#[derive(Debug)]
pub(crate) struct SpillEndsAnyway;

impl Rules for SpillEndsAnyway {
    const NAME: &'static str = "citron-spill-ends-anyway";
    const ENDINGS_ARE_GUARDED: bool = false;
}

impl Proof for Citron<SpillEndsAnyway> {
    fn cases() -> Vec<Case<Params>> {
        vec![sleeping(spilling("spillover-zombie")).rounds(2)]
    }
}

/// Wait mode without Alg. 2 line 33.
#[derive(Debug)]
pub(crate) struct WaitIgnoresGrowth;

impl Rules for WaitIgnoresGrowth {
    const NAME: &'static str = "citron-wait-ignores-growth";
    const NOTES_SEE_GROWTH: bool = false;
}

impl Proof for Citron<WaitIgnoresGrowth> {
    fn cases() -> Vec<Case<Params>> {
        vec![held(growing("wait-grow-over-a-leaf", 1)).clients(1, &HOLDING_LEAF).clients(1, &[ROOT])]
    }
}

/// Growing in wait mode forgets clients that hold or want the root.
#[derive(Debug)]
pub(crate) struct WaitForgetsTheRoot;

impl Rules for WaitForgetsTheRoot {
    const NAME: &'static str = "citron-wait-grow-forgets-root";
    const GROWTH_COUNTS_THE_ROOT: bool = false;
}

impl Proof for Citron<WaitForgetsTheRoot> {
    fn cases() -> Vec<Case<Params>> {
        vec![held(growing("wait-grow-over-the-root", 1)).clients(1, &HOLDING_INNER).clients(1, &[ROOT])]
    }
}

/// Wait mode: a client that was taken for dead while it acquired goes on.
#[derive(Debug)]
pub(crate) struct WaitIgnoresEra;

impl Rules for WaitIgnoresEra {
    const NAME: &'static str = "citron-wait-ignores-era";
    const ERA_IS_CHECKED: bool = false;
}

impl Proof for Citron<WaitIgnoresEra> {
    fn cases() -> Vec<Case<Params>> {
        vec![wait_cases::zombie("wait-zombie-leaf-and-inner", 1).clients(1, &[LEAF]).clients(1, &[INNER])]
    }
}

/// Wait mode: what a zombie gives back is not compared with the generation it took it in.
#[derive(Debug)]
pub(crate) struct WaitEndsAnyway;

impl Rules for WaitEndsAnyway {
    const NAME: &'static str = "citron-wait-ends-anyway";
    const ENDINGS_ARE_GUARDED: bool = false;
}

impl Proof for Citron<WaitEndsAnyway> {
    fn cases() -> Vec<Case<Params>> {
        vec![
            wait_cases::zombie("wait-zombie-inner-again", 1)
                .clients(1, &[INNER])
                .rounds(2)
                .clients(1, &[INNER]),
        ]
    }
}
