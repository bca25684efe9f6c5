//! The recoverable asymmetric lock with one rule broken each, in the smallest case that shows what it is for.

use super::cases::{self, clients, crash, params, zombie};
use lockwright_locks::qplock::leased::{Leased, LeasedParams, Rules};
use lockwright_sim::case::Case;

/// One of each side, one of them asleep for a while. Tokens would show it as well, and sooner.
fn asleep() -> Case<LeasedParams> {
    let mut case = zombie(clients("one-each", [1, 1, 0], params(1)).rounds(2));
    case.checks.tokens = false;
    case
}

crate::mutants! { Leased: Rules, LeasedParams, &'static str;
    /// A claim that asks nobody.
    mutant Unfenced = "qplock-leased-unfenced", "qplock-leased", Exclusion, { CLAIMS_LOOK: false },
        "who gets the lock does not look whether the other side has recovered it",
        vec![asleep()];
    /// A recovery that is not announced.
    mutant Unannounced = "qplock-leased-unannounced", "qplock-leased", Exclusion, { ANNOUNCES: false },
        "who recovers does not announce it and look again",
        vec![asleep()];
    /// A claim that never grows old.
    mutant Sleepwalker = "qplock-leased-sleepwalker", "qplock-leased", Exclusion, { CLAIMS_EXPIRE: false },
        "who slept over its claim believes that it still holds",
        vec![asleep()];
    /// A new generation that goes on with the old queues.
    mutant ForgetsTurn = "qplock-leased-forgets-turn", "qplock-leased", Deadlock, { FORGETS_OLD_QUEUES: false },
        "a recovery leaves the dead client's side its turn",
        vec![crash(clients("one-each", [1, 1, 0], LeasedParams { last_generation: 2, ..params(1) }))];
    /// Tokens that count grants only.
    mutant RepeatsTokens = "qplock-leased-repeats-tokens", "qplock-leased", Tokens, { TOKENS_COUNT_GENERATIONS: false },
        "tokens begin again after a recovery",
        vec![crash(clients("one-each", [1, 1, 0], params(1)).rounds(2))];
    /// Passes without an address.
    mutant TakesAnyPass = "qplock-leased-takes-any-pass", "qplock-leased", Exclusion, { CHECKS_ADDRESS: false },
        "takes a pass for its own that was meant for an earlier acquisition",
        vec![zombie(clients("three-local", [3, 0, 0], params(2)))];
    /// A death is a death.
    mutant BuriesTheLiving = "qplock-leased-buries-the-living", "qplock-leased", Exclusion, { ASKS_FOR_THE_HOLDER: false },
        "recovers as soon as any predecessor has died, though another holds the lock",
        vec![cases::known_deaths()];
    /// Any change of `victim` is a yielding.
    mutant BelievesOldVictim = "qplock-leased-believes-old-victim", "qplock-leased", Exclusion, { CHECKS_VICTIM: false },
        "takes what a sleeper writes for the other side's yielding",
        vec![zombie(clients("two-local", [2, 1, 0], params(1)))];
}
