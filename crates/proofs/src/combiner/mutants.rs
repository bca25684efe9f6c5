//! Combiners with one thing wrong. Each must be caught.

use super::{cases, semaphores};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_locks::Info;
use lockwright_locks::combiner::core::{Rules, Shipped};
use lockwright_locks::combiner::{Combiner, Learning, Params, Variant, info};
use lockwright_sim::case::Case;

/// Shows every mutant to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "combiner", caught_by, why };
    visitor.mutant::<Combiner<Overtaking>>(mutant(
        Checker::Bypass,
        "a request with nobody but waiters before it is granted at once",
    ));
    visitor.coarse_mutant::<Combiner<LosesCount>>(mutant(
        Checker::Deadlock,
        "a release lowers the count of one of the clients that wait for it, not of all (Alg. 4 line 15)",
    ));
    visitor.mutant::<Combiner<UpgradeLetsGo>>(mutant(
        Checker::Exclusion,
        "an upgrade gives up the shared lock and queues again, so that a writer comes in between",
    ));
    visitor.mutant::<Combiner<ForgetsDead>>(mutant(
        Checker::Deadlock,
        "what a client held when it died stays held",
    ));
    let of_semaphore = |caught_by, why| Mutant { of: "semaphore", caught_by, why };
    visitor.mutant::<Combiner<Uncounted>>(of_semaphore(
        Checker::Exclusion,
        "permits that come back go to all waiters, however many there are",
    ));
    visitor.mutant::<Combiner<KeepsPermits>>(of_semaphore(
        Checker::Deadlock,
        "permits of a client that died do not come back",
    ));
    visitor.mutant::<Combiner<SmallFirst>>(of_semaphore(
        Checker::Bypass,
        "a request that fits goes before one for more permits that waits",
    ));
}

macro_rules! mutant {
    ($doc:literal $name:ident $on_the_command_line:literal { $($rule:ident = $value:literal),+ } $learning:expr, $case:expr) => {
        mutant!($doc $name $on_the_command_line { $($rule = $value),+ } $learning, $case, false);
    };
    ($doc:literal $name:ident $on_the_command_line:literal { $($rule:ident = $value:literal),+ } $learning:expr, $case:expr, $permits:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name;

        impl Rules for $name {
            type Trees = <Shipped as Rules>::Trees;
            $(const $rule: bool = $value;)+
        }

        impl Variant for $name {
            type Rules = Self;
            const INFO: Info = info($on_the_command_line, "a combiner with one thing wrong", "here");
            const PERMITS: bool = $permits;
            fn learning(_: &Params, _: u16) -> Learning {
                $learning
            }
        }

        impl Proof for Combiner<$name> {
            fn cases() -> Vec<Case<Params>> {
                vec![$case]
            }
        }
    };
}

mutant!(
    "Lets requests go before others that wait."
    Overtaking "combiner-overtaking" { FIFO = false } Learning::PollRpc, cases::fairness()
);
mutant!(
    "Forgets some of the clients that wait."
    LosesCount "combiner-loses-count" { LOWERS_ALL = false } Learning::Pushed, cases::all_wait()
);
mutant!(
    "Lets go of the lock while it upgrades."
    UpgradeLetsGo "combiner-upgrade-lets-go" { UPGRADE_HOLDS = false } Learning::Pushed, cases::upgrades()
);
mutant!(
    "Does not release what the dead held."
    ForgetsDead "combiner-forgets-dead" { FREES_DEAD_CLIENTS = false } Learning::Pushed, cases::crash()
);

mutant!(
    "Gives out permits that it does not have."
    Uncounted "semaphore-uncounted" { PERMITS_ARE_COUNTED = false } Learning::Pushed, semaphores::weighted(), true
);
mutant!(
    "Permits of the dead stay out."
    KeepsPermits "semaphore-keeps-permits" { FREES_DEAD_CLIENTS = false } Learning::Pushed, semaphores::crash(), true
);
mutant!(
    "Who wants many permits starves."
    SmallFirst "semaphore-small-first" { FIFO = false } Learning::PollRpc, semaphores::fairness(), true
);

const _: () = assert!(Shipped::PERMITS_ARE_COUNTED);
const _: () =
    assert!(Shipped::FIFO && Shipped::LOWERS_ALL && Shipped::UPGRADE_HOLDS && Shipped::FREES_DEAD_CLIENTS);
