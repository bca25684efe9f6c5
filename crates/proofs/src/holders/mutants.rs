//! Mutants of kept locks: each breaks one of the three rules.

use super::cases::{
    READ, TRY_WRITE, WRITE, hasty, killed, left_by_the_dead, mixed, patient, spent, stopped, without_tries,
    wrapping,
};
use super::explored::{Kept, KeptParams, KeptRules};
use crate::shiftlock::narrow::Narrow;
use crate::{Checker, Mutant, Visitor};
use lockwright_locks::Patience;
use lockwright_locks::shiftlock::Rules;
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;
use lockwright_sim::case::Case;

/// Shows them all to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |why| Mutant { of: "kept", caught_by: Checker::Exclusion, why };
    visitor.mutant::<Kept<Unstirred>>(mutant("whoever was handed the lock does not stir the entry"));
    visitor.mutant::<Kept<HalfCompared>>(mutant(
        "a reset compares RelCnt only: a reader came in beside a dead one",
    ));
    visitor.mutant::<Kept<Blind>>(mutant(
        "a client believes its grant without looking whether it was declared dead",
    ));
    visitor.mutant::<Kept<Unfenced, StirredPortable>>(Mutant {
        of: "kept-portable",
        caught_by: Checker::Exclusion,
        why: "a client that was declared dead comes back, and its addition lands in the next generation",
    });
    let mutant = |of, caught_by, why| Mutant { of, caught_by, why };
    visitor.mutant::<Kept<Uncounted>>(mutant(
        "kept",
        Checker::Tokens,
        "whoever was handed the lock uses it before that is counted, and a recovery goes by what is",
    ));
    visitor.mutant::<Kept<ForgetsReaders, Narrow>>(mutant(
        "kept-narrow",
        Checker::Tokens,
        "a recovery raises RelCnt by one, however many readers are waited for",
    ));
    visitor.mutant::<Kept<Endless, Narrow>>(mutant(
        "kept-narrow",
        Checker::Tokens,
        "RelCnt is given out to its very end, and begins again",
    ));
    super::explored_ranges::visit_mutants(visitor);
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $mutant:ident = $name:literal, $rule:ident, $case:expr;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub(crate) struct $mutant;

            impl Rules for $mutant {
                const NAME: Option<&'static str> = Some($name);
                const $rule: bool = false;
            }

            impl KeptRules for $mutant {
                fn kept_cases() -> Vec<Case<KeptParams>> {
                    vec![$case]
                }
            }
        )+
    };
}

mutants! {
    /// It is found not to hold the lock, and loses it just when it begins to use it.
    Unstirred = "kept-unstirred", GRANTS_ARE_MADE_SURE,
        without_tries(hasty(stopped(mixed("stopped-among-three", &[WRITE, WRITE, WRITE], 2))));
    /// The reader's card is written after the look, and its coming does not change RelCnt.
    HalfCompared = "kept-half-compared", RESET_COMPARES_ALL,
        hasty(stopped(mixed("reader-beside-a-dead-one", &[READ, READ.with(Patience::Try), WRITE.with(Patience::Try)], 1)));
    /// The fabric does not fence it: what a reader gives back late was somebody else's by then.
    Unfenced = "kept-portable-unfenced", ADDS_ARE_GUARDED,
        hasty(stopped(mixed("stopped-reader", &[READ, READ, TRY_WRITE], 1)));
    /// The one that handed it over died before it counted that.
    Uncounted = "kept-uncounted-grant", GRANTS_ARE_COUNTED,
        patient(killed(mixed("killed-between-halves", &[WRITE, WRITE, WRITE], 2)));
    /// Two recoveries later RelCnt comes to what it waits for, in what looks like the same generation.
    ForgetsReaders = "kept-forgets-readers", RECOVERY_COUNTS_READERS, wrapping();
    /// The next token is the smallest.
    Endless = "kept-endless", TOKENS_END, spent();
    /// A zombie takes a lock, by then free, with its last verb, and others reset what the dead hold.
    Blind = "kept-blind", GRANTED_ARE_ALIVE,
        stopped(left_by_the_dead(mixed("stopped-before-it-takes", &[TRY_WRITE, TRY_WRITE], 1).rounds(2)));
}
