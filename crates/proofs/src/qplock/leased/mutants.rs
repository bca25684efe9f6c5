//! The recoverable asymmetric lock with one rule broken each, in the smallest case that shows what it is for.

use super::cases::{self, cast, crash, params, zombie};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_locks::qplock::leased::{Leased, LeasedParams, Rules};
use lockwright_sim::case::Case;

/// Shows them all to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "qplock-leased", caught_by, why };
    visitor.mutant::<Leased<Unfenced>>(mutant(
        Checker::Exclusion,
        "who gets the lock does not look whether the other side has recovered it",
    ));
    visitor.mutant::<Leased<Unannounced>>(mutant(
        Checker::Exclusion,
        "who recovers does not announce it and look again",
    ));
    visitor.mutant::<Leased<Sleepwalker>>(mutant(
        Checker::Exclusion,
        "who slept over its claim believes that it still holds",
    ));
    visitor.mutant::<Leased<ForgetsTurn>>(mutant(
        Checker::Deadlock,
        "a recovery leaves the dead client's side its turn",
    ));
    visitor.mutant::<Leased<RepeatsTokens>>(mutant(Checker::Tokens, "tokens begin again after a recovery"));
    visitor.mutant::<Leased<TakesAnyPass>>(mutant(
        Checker::Exclusion,
        "takes a pass for its own that was meant for an earlier acquisition",
    ));
    visitor.mutant::<Leased<BuriesTheLiving>>(mutant(
        Checker::Exclusion,
        "recovers as soon as any predecessor has died, though another holds the lock",
    ));
    visitor.mutant::<Leased<BelievesOldVictim>>(mutant(
        Checker::Exclusion,
        "takes what a sleeper writes for the other side's yielding",
    ));
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $mutant:ident = $name:literal, $rule:ident, $case:expr;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub(crate) struct $mutant;

            impl Rules for $mutant {
                const NAME: &'static str = $name;
                const $rule: bool = false;
            }

            impl Proof for Leased<$mutant> {
                fn cases() -> Vec<Case<LeasedParams>> {
                    vec![$case]
                }
            }
        )+
    };
}

/// One of each side, one of them asleep for a while. Tokens would show it as well, and sooner.
fn asleep() -> Case<LeasedParams> {
    let mut case = zombie(cast("one-each", [1, 1, 0], params(1)).rounds(2));
    case.checks.tokens = false;
    case
}

mutants! {
    /// A claim that asks nobody.
    Unfenced = "qplock-leased-unfenced", CLAIMS_LOOK,
        asleep();
    /// A recovery behind everybody's back.
    Unannounced = "qplock-leased-unannounced", ANNOUNCES,
        asleep();
    /// A claim that never grows old.
    Sleepwalker = "qplock-leased-sleepwalker", CLAIMS_EXPIRE,
        asleep();
    /// A new generation that goes on with the old queues.
    ForgetsTurn = "qplock-leased-forgets-turn", FORGETS_OLD_QUEUES,
        crash(cast("one-each", [1, 1, 0], LeasedParams { last_generation: 2, ..params(1) }));
    /// Tokens that count grants only.
    RepeatsTokens = "qplock-leased-repeats-tokens", TOKENS_COUNT_GENERATIONS,
        crash(cast("one-each", [1, 1, 0], params(1)).rounds(2));
    /// Passes without an address.
    TakesAnyPass = "qplock-leased-takes-any-pass", CHECKS_ADDRESS,
        zombie(cast("three-local", [3, 0, 0], params(2)));
    /// A death is a death.
    BuriesTheLiving = "qplock-leased-buries-the-living", ASKS_FOR_THE_HOLDER,
        cases::known_deaths();
    /// Any change of `victim` is a yielding.
    BelievesOldVictim = "qplock-leased-believes-old-victim", CHECKS_VICTIM,
        zombie(cast("two-local", [2, 1, 0], params(1)));
}
