//! Subjects: the protocols and mutants of the catalog, as values.
//!
//! The catalog shows each protocol as a type of its own. Here the types become a list, so that a command line
//! or an experiment can pick one by name. Nothing in this file names a protocol.

use crate::catalog::{self, Mutant, Visitor};
use crate::cluster::cases as cluster;
use crate::{Case, Proof};
#[cfg(target_os = "linux")]
use crate::{retained::cases as retained, served::cases as served};
#[cfg(target_os = "linux")]
use lockwright::internal::RetentionRules;
use lockwright_locks::Info;
use lockwright_sim::explore::{Options, Outcome, explore};
use lockwright_sim::{Failure, Plan, Progress, Report, run_with};

/// A protocol, or a deliberately broken one, that can be studied.
///
/// ```
/// let cas = lockwright_proofs::subject::find("cas").unwrap();
/// assert!(cas.mutant.is_none() && !cas.cases.is_empty());
/// assert!(lockwright_proofs::subject::find("no-such-lock").is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name, source and what it offers.
    pub info: Info,
    /// What is broken, if something is.
    pub mutant: Option<Mutant>,
    /// The explorer's cases, in order.
    pub cases: Vec<CaseInfo>,
    simulate: Option<Simulate>,
    can_tune: fn(Tunable) -> bool,
    refuses_crash: fn(usize) -> Option<&'static str>,
    explore: Explore,
}

/// How it is explored.
#[derive(Clone, Copy, Debug)]
enum Explore {
    Protocol(fn(usize, &mut Options) -> Outcome),
    /// A server and its clients, shipped or broken.
    #[cfg(target_os = "linux")]
    Served(served::Rules),
    /// Several servers on one etcd, shipped or broken.
    Cluster(lockwright_cluster::Rules),
    /// Locks that stay with their clients; broken, or with tokens given out twice.
    #[cfg(target_os = "linux")]
    Retained(RetentionRules, bool),
}

/// [`run_with`] for one protocol: its default tunables, but for those given.
type Simulate = fn(&Plan, &[Tunable], &mut dyn FnMut(Progress)) -> Result<Report, Failure>;

/// A tunable by its name, and what it is set to.
pub type Tunable = (&'static str, u64);

/// What can be said about a case without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseInfo {
    /// Its name.
    pub name: &'static str,
    /// What happens in it, in a few words.
    pub what: String,
}

impl Subject {
    /// To be explored. It is compiled for the explorer alone.
    fn explored<P: Proof>(mutant: Option<Mutant>) -> Self {
        Self {
            info: P::INFO,
            mutant,
            cases: P::cases().iter().map(describe).collect(),
            simulate: None,
            can_tune: |(name, value)| P::tune(&mut P::Params::default(), name, value),
            refuses_crash: |case| {
                let case = P::cases().swap_remove(case);
                P::refuses_crash(&case).filter(|_| case.faults.crashes == 0)
            },
            explore: Explore::Protocol(|case, options| {
                let mut case = P::cases().swap_remove(case);
                if options.crash && case.faults.crashes == 0 {
                    case = P::with_recovery(case);
                }
                explore::<P>(&case, options)
            }),
        }
    }

    /// A server and its clients.
    #[cfg(target_os = "linux")]
    fn served(info: Info, mutant: Option<Mutant>, rules: served::Rules, only: Option<&str>) -> Self {
        Self {
            info,
            mutant,
            cases: served::describe(only),
            simulate: None,
            can_tune: |_| false,
            refuses_crash: |_| Some("its cases say themselves who is killed"),
            explore: Explore::Served(rules),
        }
    }

    /// Several servers on one etcd.
    fn cluster(
        info: Info,
        mutant: Option<Mutant>,
        rules: lockwright_cluster::Rules,
        only: Option<&str>,
    ) -> Self {
        Self {
            info,
            mutant,
            cases: cluster::describe(only),
            simulate: None,
            can_tune: |_| false,
            refuses_crash: |_| Some("its cases say themselves who is killed"),
            explore: Explore::Cluster(rules),
        }
    }

    /// Locks that stay with their clients.
    #[cfg(target_os = "linux")]
    fn retained(info: Info, mutant: Option<Mutant>, rules: RetentionRules, reuses_tokens: bool) -> Self {
        let served = Self::served(info, mutant, served::Rules::default(), None);
        Self { cases: retained::describe(), explore: Explore::Retained(rules, reuses_tokens), ..served }
    }

    /// To be explored and simulated.
    fn simulated<P: Proof>(mutant: Option<Mutant>) -> Self {
        let simulate: Simulate = |plan, tunables, progress| {
            let mut params = P::Params::default();
            for (name, value) in tunables {
                assert!(P::tune(&mut params, name, *value), "{} has no {name} to be {value}", P::INFO.name);
            }
            run_with::<P>(plan, &params, progress)
        };
        Self { simulate: Some(simulate), ..Self::explored::<P>(mutant) }
    }

    /// Whether it can be simulated: every protocol can but models for the explorer, and the mutants that show in a plain run.
    pub fn can_be_simulated(&self) -> bool {
        self.simulate.is_some()
    }

    fn run(
        &self,
        plan: &Plan,
        tunables: &[Tunable],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, Failure> {
        let simulate =
            self.simulate.unwrap_or_else(|| panic!("{} is for the explorer alone", self.info.name));
        simulate(plan, tunables, progress)
    }

    /// Simulates it with its default tunables.
    ///
    /// # Errors
    /// What a checker objected to, or why the run did not come to its end.
    ///
    /// # Panics
    /// If it [cannot](Subject::can_be_simulated).
    pub fn simulate(&self, plan: &Plan) -> Result<Report, Failure> {
        self.run(plan, &[], &mut |_| {})
    }

    /// Simulates it with some tunables set.
    ///
    /// # Errors
    /// As [`Subject::simulate`].
    ///
    /// # Panics
    /// If it has no such tunable, or cannot be simulated.
    pub fn simulate_tuned(&self, plan: &Plan, tunables: &[Tunable]) -> Result<Report, Failure> {
        self.run(plan, tunables, &mut |_| {})
    }

    /// Whether it has such a tunable, and that can be the value.
    pub fn can_tune(&self, tunable: Tunable) -> bool {
        (self.can_tune)(tunable)
    }

    /// As [`Subject::simulate`], telling `progress` how far it is from time to time.
    ///
    /// # Errors
    /// As [`Subject::simulate`].
    ///
    /// # Panics
    /// As [`Subject::simulate`].
    pub fn simulate_with(&self, plan: &Plan, progress: &mut dyn FnMut(Progress)) -> Result<Report, Failure> {
        self.run(plan, &[], progress)
    }

    /// Why no crash can be added to the `case`-th of [`Subject::cases`], if that is so.
    ///
    /// # Panics
    /// If there is no such case.
    pub fn refuses_crash(&self, case: usize) -> Option<&'static str> {
        (self.refuses_crash)(case)
    }

    /// Whether whole servers are explored, whose states take many times as long as those of a protocol.
    pub const fn has_servers(&self) -> bool {
        !matches!(self.explore, Explore::Protocol(_))
    }

    /// Explores the `case`-th of [`Subject::cases`].
    ///
    /// # Panics
    /// If there is no such case.
    pub fn explore(&self, case: usize, options: &mut Options) -> Outcome {
        match self.explore {
            Explore::Protocol(explore) => explore(case, options),
            #[cfg(target_os = "linux")]
            Explore::Served(rules) => served::explore_case(self.cases[case].name, rules, options),
            Explore::Cluster(rules) => cluster::explore_case(self.cases[case].name, rules, options),
            #[cfg(target_os = "linux")]
            Explore::Retained(rules, reuses) => retained::explore_case(case, rules, reuses, options),
        }
    }
}

/// Every subject: protocols first, then mutants, in the catalog's order.
pub fn all() -> Vec<Subject> {
    let mut collect = Collect(Vec::new());
    catalog::visit(&mut collect);
    #[cfg(target_os = "linux")]
    {
        let shipped = Subject::served(served::INFO, None, served::Rules::default(), None);
        let broken = served::BROKEN.iter();
        let broken =
            broken.map(|(info, mutant, rules, only)| Subject::served(*info, Some(*mutant), *rules, *only));
        collect.0.extend(std::iter::once(shipped).chain(broken));
        let shipped = Subject::retained(retained::INFO, None, retained::SHIPPED, false);
        let broken = retained::BROKEN.iter();
        let broken = broken
            .map(|(info, mutant, rules, reuses)| Subject::retained(*info, Some(*mutant), *rules, *reuses));
        collect.0.extend(std::iter::once(shipped).chain(broken));
    }
    collect.0.push(Subject::cluster(cluster::INFO, None, lockwright_cluster::Rules::default(), None));
    let broken = cluster::BROKEN.iter();
    collect.0.extend(
        broken.map(|(info, mutant, rules, case)| Subject::cluster(*info, Some(*mutant), *rules, Some(case))),
    );
    collect.0.sort_by_key(|subject| subject.mutant.is_some());
    collect.0
}

/// The subject called `name`.
pub fn find(name: &str) -> Option<Subject> {
    all().into_iter().find(|subject| subject.info.name == name)
}

struct Collect(Vec<Subject>);

impl Visitor for Collect {
    fn protocol<P: Proof>(&mut self) {
        self.0.push(Subject::simulated::<P>(None));
    }

    fn model<P: Proof>(&mut self) {
        self.0.push(Subject::explored::<P>(None));
    }

    fn mutant<P: Proof>(&mut self, mutant: Mutant) {
        self.0.push(Subject::explored::<P>(Some(mutant)));
    }

    fn coarse_mutant<P: Proof>(&mut self, mutant: Mutant) {
        self.0.push(Subject::simulated::<P>(Some(mutant)));
    }
}

fn describe<P>(case: &Case<P>) -> CaseInfo {
    let rounds = case.clients.iter().map(|script| script.rounds.len()).max().unwrap_or(0);
    let mut what = vec![
        count(case.clients.len() as u64, "client"),
        format!("up to {}", count(rounds as u64, "round")),
        count(case.space.locks, "lock"),
    ];
    if case.space.nodes > 1 {
        what.push(count(u64::from(case.space.nodes), "node"));
    }
    let faults = case.faults;
    for (number, name) in [
        (faults.crashes, "crash"),
        (faults.pauses, "pause"),
        (faults.losses, "loss"),
        (faults.duplicates, "duplicate"),
    ] {
        if number > 0 {
            what.push(format!("{name}×{number}"));
        }
    }
    if faults.reorders {
        what.push("reordering".into());
    }
    if case.clients.iter().flat_map(|script| &script.rounds).any(|round| round.cancellable) {
        what.push("waiters may give up".into());
    }
    if case.weak_scope {
        what.push("weak atomics".into());
    }
    CaseInfo { name: case.name, what: what.join(", ") }
}

fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
