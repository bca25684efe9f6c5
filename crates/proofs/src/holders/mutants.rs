//! Mutants of locks with holder records: each breaks one of the three rules, or the order of what is written and read.

use super::cases::{
    READ, TRY_WRITE, WRITE, hasty, killed, left_by_the_dead, mixed, patient, spent, stopped, without_tries,
    wrapping,
};
use super::change_cases::{DOWNGRADES, READS, TRIES, UPGRADES, WRITES, changed, trusting, without_tokens};
use super::explored::{HolderParams, Holders, KeyedRules};
use super::memory::{Explored, InBatches};
use crate::shiftlock::narrow::Narrow;
use crate::{Checker, Mutant, Visitor};
use lockwright_fabric::Endpoint;
use lockwright_locks::Patience;
use lockwright_locks::holders::RecordRules;
use lockwright_locks::shiftlock::Rules;
use lockwright_locks::shiftlock::versioned::Versioned;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use lockwright_sim::case::Case;

/// Shows them all to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visit_mutants(visitor);
    visitor.mutant::<Holders<ClearedEarly, VersionedPortable>>(Mutant {
        of: "holders-portable",
        caught_by: Checker::Tokens,
        why: "a client clears its record before it gives the lock back",
    });
    super::explored_ranges::visit_mutants(visitor);
    super::observed::visit_mutants(visitor);
}

macro_rules! mutants {
    ($(
        $(#[$doc:meta])*
        $mutant:ident = $name:literal, $of:literal, $entry:ident, $checker:ident, $rules:ident::$rule:ident,
            $why:literal, $case:expr;
    )+) => {
        fn visit_mutants(visitor: &mut impl Visitor) {
            $(visitor.mutant::<Holders<$mutant, $entry>>(Mutant {
                of: $of,
                caught_by: Checker::$checker,
                why: $why,
            });)+
        }

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
    Unbumped = "holders-unbumped", "holders", Versioned, Exclusion, Rules::GRANTS_ARE_MADE_SURE,
        "a client that was handed the lock does not bump the entry's version",
        without_tries(hasty(stopped(mixed("stopped-among-three", &[WRITE, WRITE, WRITE], 2))));
    /// The reader's record is written after the look, and its coming does not change RelCnt.
    HalfCompared = "holders-half-compared", "holders", Versioned, Exclusion, Rules::RESET_COMPARES_ALL,
        "a reset compares RelCnt only: a reader came in beside a dead one",
        hasty(stopped(mixed("reader-beside-a-dead-one", &[READ, READ.with(Patience::Try), WRITE.with(Patience::Try)], 1)));
    /// A zombie takes a lock, by then free, with its last verb, and others reset what the dead hold.
    Unconfirmed = "holders-unconfirmed", "holders", Versioned, Exclusion, Rules::GRANTED_ARE_ALIVE,
        "a client believes its grant without looking whether it was evicted",
        stopped(left_by_the_dead(mixed("stopped-before-it-takes", &[TRY_WRITE, TRY_WRITE], 1).rounds(2)));
    /// The fabric does not fence it: what a reader gives back late belonged to another by then.
    Unfenced = "holders-portable-unfenced", "holders-portable", VersionedPortable, Exclusion, Rules::ADDS_ARE_GUARDED,
        "a client that was evicted comes back, and its addition lands in the next generation",
        hasty(stopped(mixed("stopped-reader", &[READ, READ, TRY_WRITE], 1)));
    /// The one that handed it over died before it counted that.
    Uncounted = "holders-uncounted-grant", "holders", Versioned, Tokens, Rules::GRANTS_ARE_COUNTED,
        "a client that was handed the lock uses it before that is counted, and a recovery goes by what is",
        patient(killed(mixed("killed-between-halves", &[WRITE, WRITE, WRITE], 2)));
    /// Two recoveries later RelCnt comes to what it waits for, in what looks like the same generation.
    ForgetsReaders = "holders-forgets-readers", "holders-narrow", Narrow, Tokens, Rules::RECOVERY_COUNTS_READERS,
        "a recovery raises RelCnt by one, however many readers are waited for",
        wrapping();
    /// The next token is the smallest.
    Endless = "holders-endless", "holders-narrow", Narrow, Tokens, Rules::TOKENS_END,
        "RelCnt is given out to its very end, and begins again",
        spent();
    /// A client that finds the lock taken looks at the records before the holder's is there, and resets it.
    WrittenLate = "holders-written-late", "holders", Versioned, Exclusion, RecordRules::RECORDS_COME_FIRST,
        "a client writes its record after the verb that takes the lock",
        hasty(mixed("two-tries", &[TRY_WRITE, TRY_WRITE], 1));
    /// It is evicted between the look and the verb.
    ConfirmedEarly = "holders-confirmed-early", "holders", Versioned, Exclusion, RecordRules::CONFIRMED_AFTER,
        "a client looks whether it was evicted before the verb that takes the lock, and not after it",
        stopped(left_by_the_dead(mixed("stopped-before-it-takes", &[TRY_WRITE, TRY_WRITE], 1).rounds(2)));
    /// Beside them it is the only one that may write.
    Hurried = "holders-hurried-upgrade", "holders", Versioned, Exclusion, Rules::UPGRADES_WAIT_FOR_READERS,
        "an upgrade does not wait for the other readers",
        without_tokens(patient(changed("upgraded", &[UPGRADES, READS])));
    /// Each waits for the other.
    BothUpgrade = "holders-both-upgrade", "holders", Versioned, Livelock, Rules::SECOND_UPGRADE_IS_REFUSED,
        "of two readers that would be alone the second waits, too",
        patient(changed("both-upgraded", &[UPGRADES, UPGRADES]));
    /// It was alone all the while, and wrote as nobody before it.
    UncountedUpgrade = "holders-uncounted-upgrade", "holders", Versioned, Tokens, Rules::UPGRADES_COUNT,
        "an upgrade does not count as a release, and its token is that of the reader",
        patient(changed("upgraded-alone", &[UPGRADES, TRIES]));
    /// A reader came in after the look and before the verb.
    UpgradesUnseen = "holders-upgrades-unseen", "holders", Versioned, Exclusion, Rules::UPGRADE_COMPARES_ALL,
        "an upgrade past the dead reads the entry after the holder records, and not before",
        without_tokens(patient(killed(changed("killed-beside-a-try", &[UPGRADES, READS, TRIES]))));
    /// It waits for a word that nobody gives.
    Untold = "holders-untold", "holders", Versioned, Deadlock, Rules::DOWNGRADES_TELL,
        "a writer that becomes a reader does not tell the writer behind it",
        trusting(changed("downgraded", &[DOWNGRADES, WRITES]));
    /// The next writer comes in while it reads.
    UncountedDowngrade = "holders-uncounted-downgrade", "holders", Versioned, Exclusion, Rules::DOWNGRADED_ARE_COUNTED,
        "a writer that becomes a reader does not count as one",
        without_tokens(hasty(changed("downgraded-and-hasty", &[DOWNGRADES, WRITES])));
    /// The second finds the bit set and nobody who set it, as if that one had died.
    UpgradesUnwritten = "holders-upgrades-unwritten", "holders", Versioned, Livelock, RecordRules::UPGRADES_ARE_WRITTEN_FIRST,
        "a reader writes down that it would be alone when it already keeps others out",
        patient(changed("both-upgraded", &[UPGRADES, UPGRADES]));
    /// It reads, and a writer takes the lock for dead.
    UpgradingForgotten = "holders-upgrading-forgotten", "holders", Versioned, Exclusion, RecordRules::UPGRADING_HOLDS,
        "a look at the records passes over a reader that would be alone",
        hasty(changed("upgraded-beside-readers", &[UPGRADES, READS, WRITES]));
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
