//! Mutants of ShiftLock: the shipped code with one rule changed, each in the smallest case that shows what it is for.

use super::cases::{READ, WRITE, mixed, params, served, timed, wary, zombie};
use lockwright_fabric::Time;
use lockwright_locks::Patience;
use lockwright_locks::shiftlock::layout::Wide;
use lockwright_locks::shiftlock::{Rules, ShiftLock, ShiftParams};
use lockwright_sim::case::Case;

type Mutated<R> = ShiftLock<Wide, R>;

crate::mutants! { Mutated: Rules, ShiftParams, Option<&'static str>;
    /// The paper's literal version: the epoch is not carried. A reader waits for ever.
    mutant LiteralEpoch = Some("shiftlock-literal-epoch"), "shiftlock", Deadlock, { EPOCH_IS_CARRIED: false },
        "a writer goes by the epoch it saw when it queued, as printed (Alg. 2 lines 20, 26)",
        vec![mixed("three-and-one", 3, 1, params(1))];
    /// The handover's FAA lands after the successor's release, and passes for a reader's.
    mutant UnguardedRelease = Some("shiftlock-unguarded-release"), "shiftlock", Exclusion, { RELEASE_COMPARES_REL_CNT: false },
        "a handover's halves leave together, but a release does not compare RelCnt",
        vec![mixed("two-twice-and-one", 2, 0, params(2)).rounds(2).clients(1, &[READ])];
    /// The successor counts the straggling FAA of a writer for a reader's release.
    mutant UncarriedCount = Some("shiftlock-uncarried-count"), "shiftlock", Exclusion, { MODE_CHANGE_COMPARES_REL_CNT: false },
        "a change of mode counts readers from the RelCnt in the entry, which may lag (Alg. 3 line 17)",
        vec![Case::new("three-and-one").params(params(2)).clients(3, &[WRITE]).clients(1, &[READ])];
    /// Two writers in a row have the same token.
    coarse_mutant UncountedHandover = Some("shiftlock-uncounted-handover"), "shiftlock", Tokens, { HANDOVER_COUNTS: false },
        "a handover does not count as a release (Alg. 3 line 20)",
        vec![mixed("two", 2, 0, params(2))];
    /// A zombie's verbs hit a lock that looks as it did before the recovery.
    mutant NoLeap = Some("shiftlock-no-leap"), "shiftlock", Exclusion, { RECOVERY_LEAPS: false },
        "a recovery leaves generation and RelCnt as they were",
        vec![zombie(Case::new("zombie").params(wary(2)).clients(3, &[WRITE]))];
    /// What a zombie reader gives back belongs to another.
    mutant SameGeneration = Some("shiftlock-same-generation"), "shiftlock", Exclusion, { RECOVERY_IS_A_GENERATION: false },
        "a recovery raises RelCnt, but stays in the same generation",
        vec![zombie(Case::new("zombie").params(wary(1)).clients(1, &[READ]).clients(2, &[WRITE]))];
    /// The next has the token of the dead one.
    mutant UncountedRecovery = Some("shiftlock-uncounted-recovery"), "shiftlock", Tokens, { RECOVERY_COUNTS: false },
        "a recovery goes to the next generation, but leaves RelCnt as it was",
        vec![mixed("crash", 2, 0, params(1)).crashes(1)];
    /// RdrCnt goes below zero, and the next reader makes it zero again.
    mutant UnguardedReader = Some("shiftlock-zombie-reader"), "shiftlock", Exclusion, { ADDS_ARE_GUARDED: false },
        "a reader that slept through a recovery still leaves",
        vec![zombie(Case::new("zombie").params(wary(1)).clients(1, &[READ]).clients(2, &[WRITE]))];
    /// The lock is handed to nobody.
    mutant DropsHandover = Some("shiftlock-drops-handover"), "shiftlock", Deadlock, { GIVING_UP_PASSES_ON: false },
        "a waiter that gives up forgets that it will be handed the lock",
        vec![mixed("two", 1, 0, params(1)).clients(1, &[WRITE.with(Patience::Until(Time(1)))]).clients(1, &[WRITE])];
    /// The lock is taken for dead just when its sleeper wakes.
    mutant Sleepwalker = Some("shiftlock-sleepwalker"), "shiftlock", Exclusion, { LATE_GRANTS_ARE_CONFIRMED: false },
        "a waiter that slept through its grant believes it without making sure",
        vec![zombie(mixed("zombie", 2, 1, wary(2)))];
    /// Three leases are over on the others' clocks, too.
    mutant TimedSleepwalker = Some("shiftlock-timed-sleepwalker"), "shiftlock", Exclusion, { LATE_GRANTS_ARE_CONFIRMED: false },
        "the same with leases that are measured, and two clients",
        vec![timed(mixed("timed", 0, 1, params(1)).rounds(2).clients(1, &[WRITE]))];
    /// It believes that it has just come.
    mutant LateLook = Some("shiftlock-late-look"), "shiftlock", Exclusion, { WAITS_COUNT_FROM_BEFORE: false },
        "a client that is stopped between its first verb and its look at the clock takes a long wait for a short one",
        vec![timed(Case::new("timed").params(params(1)).clients(1, &[READ]).rounds(2).clients(1, &[WRITE]))];
    /// The lock came back to life between the look and the reset.
    mutant BlindServer = Some("shiftlock-blind-server"), "shiftlock", Exclusion, { SERVER_COMPARES_REL_CNT: false },
        "a server resets whatever it is asked to, if only the era is right (§3.6)",
        vec![zombie(mixed("zombie", 3, 0, ShiftParams { trust_ns: 0, ..served(2) }))];
}
