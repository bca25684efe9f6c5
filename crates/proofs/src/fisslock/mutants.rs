//! Mutants of FissLock: the shipped code with one rule changed.

use super::cases::{
    DUP, LOSS, READ, RESTART, SERVER, WRITE, failing, machines, released_while_leaving, with,
};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_locks::fisslock::pipeline::Checks;
use lockwright_locks::fisslock::{FissLock, Params, Rules};
use lockwright_sim::case::Case;

macro_rules! mutants {
    ($(
        $(#[$doc:meta])*
        $mutant:ident = $name:literal, $checker:ident, { $($check:ident)* }, { $($rule:ident)* }, $why:literal, $case:expr;
    )+) => {
        /// Shows them all to `visitor`.
        pub(crate) fn visit_mutants(visitor: &mut impl Visitor) {
            $(visitor.mutant::<FissLock<$mutant>>(Mutant {
                of: "fisslock",
                caught_by: Checker::$checker,
                why: $why,
            });)+
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq, Hash)]
            pub(crate) struct $mutant;

            impl Checks for $mutant {
                $(const $check: bool = false;)*
            }

            impl Rules for $mutant {
                const NAME: Option<&'static str> = Some($name);
                $(const $rule: bool = false;)*
            }

            impl Proof for FissLock<$mutant> {
                fn cases() -> Vec<Case<Params>> {
                    vec![$case]
                }
            }
        )+
    };
}

mutants! {
    /// The agent leaves a reader behind that it never heard of (Fig. 10 left).
    NoIncarnation = "fisslock-no-incarnation", Exclusion, { GRANT_IS_CHECKED FREE_IS_CHECKED }, {},
        "a shared lock moves on while a shared ACQUIRE that the decider granted is on its way to the agent",
        machines("readers-and-writer", &[&[READ], &[READ], &[WRITE]]);
    /// The same, where nobody waits (Fig. 10 right).
    HastyFree = "fisslock-hasty-free", Exclusion, { FREE_IS_CHECKED }, {},
        "FREE of a shared lock ignores a delayed shared ACQUIRE",
        machines("readers-and-writer", &[&[READ], &[READ], &[WRITE]]);
    /// A FREE comes again when another client has the lock.
    NoNumbers = "fisslock-no-numbers", Exclusion, {}, { NUMBERS_ARE_CHECKED },
        "a packet that comes twice counts twice",
        with(DUP, machines("duplicate", &[&[WRITE], &[WRITE]]).rounds(2));
    /// A FREE that was lost is sent again after a later packet, and ignored.
    SharedCount = "fisslock-shared-count", Deadlock, {}, { ONE_AT_A_TIME },
        "several packets share a count, so that one sent again passes for a duplicate of itself, as printed (§4.2)",
        with(LOSS, machines("loss", &[&[WRITE], &[WRITE]]).rounds(2));
    /// A holder that has let go holds the lock for ever.
    HastyRelease = "fisslock-hasty-release", Deadlock, {}, { RELEASES_WAIT },
        "a release on a machine whose agent is leaving is told to that agent, though another may have granted the lock",
        released_while_leaving();
    /// Everything is free, it believes.
    OpensAtOnce = "fisslock-opens-at-once", Exclusion, {}, { RESTARTED_IS_CLOSED },
        "a decider that was restarted grants before its registers are back",
        with(RESTART, machines("restart", &[&[WRITE], &[WRITE]]));
    /// A GRANT of before gives the lock to a client that was counted as waiting.
    OldPackets = "fisslock-old-packets", Exclusion, {}, { EPOCHS_ARE_CHECKED },
        "packets from before a failure count after the recovery",
        with(RESTART, machines("restart", &[&[WRITE], &[WRITE]]).rounds(2));
    /// A reader whose agent was lost is forgotten with it.
    ForgetsHolders = "fisslock-forgets-holders", Exclusion, {}, { HOLDERS_ARE_GATHERED },
        "a recovery makes agents anew without asking who holds the lock",
        failing(SERVER, machines("server-lost", &[&[READ], &[READ], &[WRITE]]));
    /// The lost never release.
    KeepsTheLost = "fisslock-keeps-the-lost", Deadlock, {}, { AGENTS_ARE_SET_RIGHT },
        "an agent goes on waiting for a holder that was lost with its machine",
        failing(SERVER, machines("server-lost", &[&[READ], &[READ], &[WRITE]]));
    /// The lock is restored to a holder that has long let go.
    HastyDeparture = "fisslock-hasty-departure", Deadlock, {}, { DEPARTURES_WAIT },
        "an agent leaves while a recovery counts on it",
        failing(RESTART, machines("restart", &[&[WRITE], &[WRITE]]));
    /// Storage that has seen a later token refuses the new holder.
    TokensFall = "fisslock-tokens-fall", Tokens, {}, { STAMPS_LEAP },
        "a decider that was restarted counts grants from the beginning",
        failing(RESTART, machines("restart", &[&[WRITE], &[WRITE]]));
}
