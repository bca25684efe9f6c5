//! Mutants of FissLock: the shipped code with one rule changed.

use super::cases::{
    DUP, LOSS, READ, RESTART, SERVER, WRITE, failing, machines, released_while_leaving, with,
};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_locks::fisslock::pipeline::Checks;
use lockwright_locks::fisslock::{FissLock, Params, Rules};
use lockwright_sim::case::Case;

/// Shows them all to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "fisslock", caught_by, why };
    visitor.mutant::<FissLock<NoIncarnation>>(mutant(
        Checker::Exclusion,
        "a shared lock moves on while a shared ACQUIRE that the decider granted is on its way to the agent",
    ));
    visitor.mutant::<FissLock<HastyFree>>(mutant(
        Checker::Exclusion,
        "FREE of a shared lock ignores a delayed shared ACQUIRE",
    ));
    visitor
        .mutant::<FissLock<NoNumbers>>(mutant(Checker::Exclusion, "a packet that comes twice counts twice"));
    visitor.mutant::<FissLock<SharedCount>>(mutant(
        Checker::Deadlock,
        "several packets share a count, so that one sent again passes for a duplicate of itself, as printed (§4.2)",
    ));
    visitor.mutant::<FissLock<HastyRelease>>(mutant(
        Checker::Deadlock,
        "a release on a machine whose agent is leaving is told to that agent, though another may have granted the lock",
    ));
    visitor.mutant::<FissLock<OpensAtOnce>>(mutant(
        Checker::Exclusion,
        "a decider that was restarted grants before its registers are back",
    ));
    visitor.mutant::<FissLock<OldPackets>>(mutant(
        Checker::Exclusion,
        "packets from before a failure count after the recovery",
    ));
    visitor.mutant::<FissLock<ForgetsHolders>>(mutant(
        Checker::Exclusion,
        "a recovery makes agents anew without asking who holds the lock",
    ));
    visitor.mutant::<FissLock<KeepsTheLost>>(mutant(
        Checker::Deadlock,
        "an agent goes on waiting for a holder that was lost with its machine",
    ));
    visitor.mutant::<FissLock<HastyDeparture>>(mutant(
        Checker::Deadlock,
        "an agent leaves while a recovery counts on it",
    ));
    visitor.mutant::<FissLock<TokensFall>>(mutant(
        Checker::Tokens,
        "a decider that was restarted counts grants from the beginning",
    ));
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $mutant:ident = $name:literal, { $($check:ident)* }, { $($rule:ident)* }, $case:expr;)+) => {
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
    NoIncarnation = "fisslock-no-incarnation", { GRANT_IS_CHECKED FREE_IS_CHECKED }, {},
        machines("readers-and-writer", &[&[READ], &[READ], &[WRITE]]);
    /// The same, where nobody waits (Fig. 10 right).
    HastyFree = "fisslock-hasty-free", { FREE_IS_CHECKED }, {},
        machines("readers-and-writer", &[&[READ], &[READ], &[WRITE]]);
    /// A FREE comes again when somebody else has the lock.
    NoNumbers = "fisslock-no-numbers", {}, { NUMBERS_ARE_CHECKED },
        with(DUP, machines("duplicate", &[&[WRITE], &[WRITE]]).rounds(2));
    /// A FREE that was lost is sent again after a later packet, and ignored.
    SharedCount = "fisslock-shared-count", {}, { ONE_AT_A_TIME },
        with(LOSS, machines("loss", &[&[WRITE], &[WRITE]]).rounds(2));
    /// A holder that has let go holds the lock for ever.
    HastyRelease = "fisslock-hasty-release", {}, { RELEASES_WAIT },
        released_while_leaving();
    /// Everything is free, it believes.
    OpensAtOnce = "fisslock-opens-at-once", {}, { RESTARTED_IS_CLOSED },
        with(RESTART, machines("restart", &[&[WRITE], &[WRITE]]));
    /// A GRANT of before gives the lock to a client that was counted as waiting.
    OldPackets = "fisslock-old-packets", {}, { EPOCHS_ARE_CHECKED },
        with(RESTART, machines("restart", &[&[WRITE], &[WRITE]]).rounds(2));
    /// A reader whose agent was lost is forgotten with it.
    ForgetsHolders = "fisslock-forgets-holders", {}, { HOLDERS_ARE_GATHERED },
        failing(SERVER, machines("server-lost", &[&[READ], &[READ], &[WRITE]]));
    /// The lost never release.
    KeepsTheLost = "fisslock-keeps-the-lost", {}, { AGENTS_ARE_SET_RIGHT },
        failing(SERVER, machines("server-lost", &[&[READ], &[READ], &[WRITE]]));
    /// The lock is restored to a holder that has long let go.
    HastyDeparture = "fisslock-hasty-departure", {}, { DEPARTURES_WAIT },
        failing(RESTART, machines("restart", &[&[WRITE], &[WRITE]]));
    /// Storage that has seen a later token refuses the new holder.
    TokensFall = "fisslock-tokens-fall", {}, { STAMPS_LEAP },
        failing(RESTART, machines("restart", &[&[WRITE], &[WRITE]]));
}
