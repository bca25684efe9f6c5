//! Mutants of locks with holder records: each breaks one of the three rules, or the order of what is written and read.

use super::cases::{
    READ, TRY_WRITE, WRITE, hasty, killed, left_by_the_dead, mixed, patient, spent, stopped, without_tries,
    wrapping,
};
use super::explored::{HolderParams, Holders, KeyedRules};
use super::memory::{Explored, InBatches};
use crate::shiftlock::narrow::Narrow;
use crate::{Checker, Mutant, Visitor};
use lockwright_fabric::Endpoint;
use lockwright_locks::Patience;
use lockwright_locks::holders::RecordRules;
use lockwright_locks::shiftlock::Rules;
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;
use lockwright_sim::case::Case;

/// Shows them all to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |why| Mutant { of: "holders", caught_by: Checker::Exclusion, why };
    visitor.mutant::<Holders<Unbumped>>(mutant(
        "a client that was handed the lock does not bump the entry's version",
    ));
    visitor.mutant::<Holders<HalfCompared>>(mutant(
        "a reset compares RelCnt only: a reader came in beside a dead one",
    ));
    visitor.mutant::<Holders<Unconfirmed>>(mutant(
        "a client believes its grant without looking whether it was evicted",
    ));
    visitor.mutant::<Holders<Unfenced, StirredPortable>>(Mutant {
        of: "holders-portable",
        caught_by: Checker::Exclusion,
        why: "a client that was evicted comes back, and its addition lands in the next generation",
    });
    let mutant = |of, caught_by, why| Mutant { of, caught_by, why };
    visitor.mutant::<Holders<Uncounted>>(mutant(
        "holders",
        Checker::Tokens,
        "whoever was handed the lock uses it before that is counted, and a recovery goes by what is",
    ));
    visitor.mutant::<Holders<ForgetsReaders, Narrow>>(mutant(
        "holders-narrow",
        Checker::Tokens,
        "a recovery raises RelCnt by one, however many readers are waited for",
    ));
    visitor.mutant::<Holders<Endless, Narrow>>(mutant(
        "holders-narrow",
        Checker::Tokens,
        "RelCnt is given out to its very end, and begins again",
    ));
    visitor.mutant::<Holders<WrittenLate>>(mutant(
        "holders",
        Checker::Exclusion,
        "a client writes its record after the verb that takes the lock",
    ));
    visitor.mutant::<Holders<ConfirmedEarly>>(mutant(
        "holders",
        Checker::Exclusion,
        "a client looks whether it was evicted before the verb that takes the lock, and not after it",
    ));
    visitor.mutant::<Holders<ClearedEarly, StirredPortable>>(mutant(
        "holders-portable",
        Checker::Tokens,
        "a client clears its record before it gives the lock back",
    ));
    super::explored_ranges::visit_mutants(visitor);
    super::observed::visit_mutants(visitor);
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $mutant:ident = $name:literal, $rules:ident::$rule:ident, $case:expr;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub(crate) struct $mutant;

            mutants!(@ $mutant, $name, $rules, $rule);

            impl KeyedRules for $mutant {
                type Space<E: Endpoint> = Explored<E>;

                fn space<E: Endpoint>(memory: Explored<E>) -> Explored<E> {
                    memory
                }

                fn keyed_cases() -> Vec<Case<HolderParams>> {
                    vec![$case]
                }
            }
        )+
    };
    (@ $mutant:ident, $name:literal, Rules, $rule:ident) => {
        impl RecordRules for $mutant {}

        impl Rules for $mutant {
            const NAME: Option<&'static str> = Some($name);
            const $rule: bool = false;
        }
    };
    (@ $mutant:ident, $name:literal, RecordRules, $rule:ident) => {
        impl RecordRules for $mutant {
            const $rule: bool = false;
        }

        impl Rules for $mutant {
            const NAME: Option<&'static str> = Some($name);
        }
    };
}

mutants! {
    /// It is found not to hold the lock, and loses it just when it begins to use it.
    Unbumped = "holders-unbumped", Rules::GRANTS_ARE_MADE_SURE,
        without_tries(hasty(stopped(mixed("stopped-among-three", &[WRITE, WRITE, WRITE], 2))));
    /// The reader's record is written after the look, and its coming does not change RelCnt.
    HalfCompared = "holders-half-compared", Rules::RESET_COMPARES_ALL,
        hasty(stopped(mixed("reader-beside-a-dead-one", &[READ, READ.with(Patience::Try), WRITE.with(Patience::Try)], 1)));
    /// The fabric does not fence it: what a reader gives back late was somebody else's by then.
    Unfenced = "holders-portable-unfenced", Rules::ADDS_ARE_GUARDED,
        hasty(stopped(mixed("stopped-reader", &[READ, READ, TRY_WRITE], 1)));
    /// The one that handed it over died before it counted that.
    Uncounted = "holders-uncounted-grant", Rules::GRANTS_ARE_COUNTED,
        patient(killed(mixed("killed-between-halves", &[WRITE, WRITE, WRITE], 2)));
    /// Two recoveries later RelCnt comes to what it waits for, in what looks like the same generation.
    ForgetsReaders = "holders-forgets-readers", Rules::RECOVERY_COUNTS_READERS, wrapping();
    /// The next token is the smallest.
    Endless = "holders-endless", Rules::TOKENS_END, spent();
    /// A zombie takes a lock, by then free, with its last verb, and others reset what the dead hold.
    Unconfirmed = "holders-unconfirmed", Rules::GRANTED_ARE_ALIVE,
        stopped(left_by_the_dead(mixed("stopped-before-it-takes", &[TRY_WRITE, TRY_WRITE], 1).rounds(2)));
    /// Who finds the lock taken looks at the records before the holder's is there, and resets it.
    WrittenLate = "holders-written-late", RecordRules::RECORDS_COME_FIRST,
        hasty(mixed("two-tries", &[TRY_WRITE, TRY_WRITE], 1));
    /// It is evicted between the look and the verb.
    ConfirmedEarly = "holders-confirmed-early", RecordRules::CONFIRMED_AFTER,
        stopped(left_by_the_dead(mixed("stopped-before-it-takes", &[TRY_WRITE, TRY_WRITE], 1).rounds(2)));
}

/// A reader that has cleared its record has yet to leave: the lock is reset meanwhile, and its leaving counts in the next
/// generation.
#[derive(Debug)]
pub(crate) struct ClearedEarly;

impl Rules for ClearedEarly {
    const NAME: Option<&'static str> = Some("holders-cleared-early");
    const ADDS_ARE_GUARDED: bool = false;
}

impl RecordRules for ClearedEarly {
    const RECORDS_ARE_CLEARED_LAST: bool = false;
}

impl KeyedRules for ClearedEarly {
    type Space<E: Endpoint> = InBatches<E>;

    fn space<E: Endpoint>(memory: Explored<E>) -> InBatches<E> {
        InBatches(memory)
    }

    fn keyed_cases() -> Vec<Case<HolderParams>> {
        vec![hasty(mixed("leaves-twice", &[READ, READ, TRY_WRITE], 1))]
    }
}
