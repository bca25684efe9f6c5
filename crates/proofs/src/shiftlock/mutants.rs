//! Mutants of ShiftLock: the shipped code with one rule changed, each in the smallest case that shows what it is for.

use super::cases::{READ, WRITE, mixed, params, served, timed, wary, zombie};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_fabric::Time;
use lockwright_locks::Patience;
use lockwright_locks::shiftlock::layout::Wide;
use lockwright_locks::shiftlock::{Rules, ShiftLock, ShiftParams};
use lockwright_sim::case::Case;

/// Shows them all to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "shiftlock", caught_by, why };
    visitor.mutant::<ShiftLock<Wide, LiteralEpoch>>(mutant(
        Checker::Deadlock,
        "a writer goes by the epoch it saw when it queued, as printed (Alg. 2 lines 20, 26)",
    ));
    visitor.mutant::<ShiftLock<Wide, UnguardedRelease>>(mutant(
        Checker::Exclusion,
        "a handover's halves leave together, but a release does not compare RelCnt",
    ));
    visitor.mutant::<ShiftLock<Wide, UncarriedCount>>(mutant(
        Checker::Exclusion,
        "a change of mode counts readers from the RelCnt in the entry, which may lag (Alg. 3 line 17)",
    ));
    visitor.coarse_mutant::<ShiftLock<Wide, UncountedHandover>>(mutant(
        Checker::Tokens,
        "a handover does not count as a release (Alg. 3 line 20)",
    ));
    visitor.mutant::<ShiftLock<Wide, NoLeap>>(mutant(
        Checker::Exclusion,
        "a recovery leaves generation and RelCnt as they were",
    ));
    visitor.mutant::<ShiftLock<Wide, SameGeneration>>(mutant(
        Checker::Exclusion,
        "a recovery raises RelCnt, but stays in the same generation",
    ));
    visitor.mutant::<ShiftLock<Wide, UncountedRecovery>>(mutant(
        Checker::Tokens,
        "a recovery goes to the next generation, but leaves RelCnt as it was",
    ));
    visitor.mutant::<ShiftLock<Wide, UnguardedReader>>(mutant(
        Checker::Exclusion,
        "a reader that slept through a recovery still leaves",
    ));
    visitor.mutant::<ShiftLock<Wide, DropsHandover>>(mutant(
        Checker::Deadlock,
        "a waiter that gives up forgets that it will be handed the lock",
    ));
    visitor.mutant::<ShiftLock<Wide, Sleepwalker>>(mutant(
        Checker::Exclusion,
        "a waiter that slept through its grant believes it without making sure",
    ));
    visitor.mutant::<ShiftLock<Wide, TimedSleepwalker>>(mutant(
        Checker::Exclusion,
        "the same with leases that are measured, and two clients",
    ));
    visitor.mutant::<ShiftLock<Wide, LateLook>>(mutant(
        Checker::Exclusion,
        "a client that is stopped between its first verb and its look at the clock takes a long wait for a short one",
    ));
    visitor.mutant::<ShiftLock<Wide, BlindServer>>(mutant(
        Checker::Exclusion,
        "a server resets whatever it is asked to, if only the era is right (§3.6)",
    ));
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $mutant:ident = $name:literal, $rule:ident, $case:expr;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $mutant;

            impl Rules for $mutant {
                const NAME: Option<&'static str> = Some($name);
                const $rule: bool = false;
            }

            impl Proof for ShiftLock<Wide, $mutant> {
                fn cases() -> Vec<Case<ShiftParams>> {
                    vec![$case]
                }
            }
        )+
    };
}

mutants! {
    /// The paper's literal version: the epoch is not carried. A reader waits for ever.
    LiteralEpoch = "shiftlock-literal-epoch", EPOCH_IS_CARRIED,
        mixed("three-and-one", 3, 1, params(1));
    /// The handover's FAA lands after the successor's release, and passes for a reader's.
    UnguardedRelease = "shiftlock-unguarded-release", RELEASE_COMPARES_REL_CNT,
        mixed("two-twice-and-one", 2, 0, params(2)).rounds(2).clients(1, &[READ]);
    /// The successor counts the straggling FAA of a writer for a reader's release.
    UncarriedCount = "shiftlock-uncarried-count", MODE_CHANGE_COMPARES_REL_CNT,
        Case::new("three-and-one").params(params(2)).clients(3, &[WRITE]).clients(1, &[READ]);
    /// Two writers in a row have the same token.
    UncountedHandover = "shiftlock-uncounted-handover", HANDOVER_COUNTS,
        mixed("two", 2, 0, params(2));
    /// A zombie's verbs hit a lock that looks as it did before the recovery.
    NoLeap = "shiftlock-no-leap", RECOVERY_LEAPS,
        zombie(Case::new("zombie").params(wary(2)).clients(3, &[WRITE]));
    /// What a zombie reader gives back is somebody else's.
    SameGeneration = "shiftlock-same-generation", RECOVERY_IS_A_GENERATION,
        zombie(Case::new("zombie").params(wary(1)).clients(1, &[READ]).clients(2, &[WRITE]));
    /// The next has the token of the dead one.
    UncountedRecovery = "shiftlock-uncounted-recovery", RECOVERY_COUNTS,
        mixed("crash", 2, 0, params(1)).crashes(1);
    /// RdrCnt goes below zero, and the next reader makes it zero again.
    UnguardedReader = "shiftlock-zombie-reader", ADDS_ARE_GUARDED,
        zombie(Case::new("zombie").params(wary(1)).clients(1, &[READ]).clients(2, &[WRITE]));
    /// The lock is handed to nobody.
    DropsHandover = "shiftlock-drops-handover", GIVING_UP_PASSES_ON,
        mixed("two", 1, 0, params(1)).clients(1, &[WRITE.with(Patience::Until(Time(1)))]).clients(1, &[WRITE]);
    /// The lock is taken for dead just when its sleeper wakes.
    Sleepwalker = "shiftlock-sleepwalker", LATE_GRANTS_ARE_CONFIRMED,
        zombie(mixed("zombie", 2, 1, wary(2)));
    /// Three leases are over on the others' clocks, too.
    TimedSleepwalker = "shiftlock-timed-sleepwalker", LATE_GRANTS_ARE_CONFIRMED,
        timed(mixed("timed", 0, 1, params(1)).rounds(2).clients(1, &[WRITE]));
    /// It believes that it has just come.
    LateLook = "shiftlock-late-look", WAITS_COUNT_FROM_BEFORE,
        timed(Case::new("timed").params(params(1)).clients(1, &[READ]).rounds(2).clients(1, &[WRITE]));
    /// The lock came back to life between the look and the reset.
    BlindServer = "shiftlock-blind-server", SERVER_COMPARES_REL_CNT,
        zombie(mixed("zombie", 3, 0, ShiftParams { trust_ns: 0, ..served(2) }));
}
