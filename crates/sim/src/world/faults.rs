//! Who stops when: the fault plan, asked at every verb and message of every client.

use crate::fault::{ClientFault, CrashPoint, FaultPlan};
use crate::rng::Rng;
use lockwright_fabric::PeerId;

/// What happens to a client at one of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepFault {
    GoOn,
    Crash { after: bool },
    Pause { after: bool, ns: u64 },
}

/// The plan, and the random numbers that its rates need.
///
/// A client's steps are its verbs (every verb of a batch) and its messages, counted from zero in one count: a
/// crash between a verb and the message that should follow it is as interesting as one between two verbs.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) plan: FaultPlan,
    /// Whether clients can fail at all: asked at every verb, so worked out once.
    pub(crate) client_faults: bool,
    rng: Rng,
    /// Planned faults by client.
    planned: Vec<Vec<(u64, StepFault)>>,
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan, seed: u64) -> Self {
        let client_faults = !plan.crashes.is_empty()
            || !plan.pauses.is_empty()
            || plan.crash_rate > 0.0
            || plan.pause_rate > 0.0;
        Self { plan, client_faults, rng: Rng::new(seed, 2), planned: Vec::new() }
    }

    pub(crate) fn add_client(&mut self) {
        let me = PeerId::client(self.planned.len());
        let after = |at: &ClientFault| at.when == CrashPoint::After;
        let crashes = self.plan.crashes.iter().map(|at| (at, StepFault::Crash { after: after(at) }));
        let pauses = self
            .plan
            .pauses
            .iter()
            .map(|pause| (&pause.at, StepFault::Pause { after: after(&pause.at), ns: pause.ns }));
        let mine = crashes.chain(pauses).filter(|(at, _)| at.client == me);
        self.planned.push(mine.map(|(at, fate)| (at.verb, fate)).collect());
    }

    /// How fast the next client's clock runs: within the bound, in parts per billion.
    pub(crate) fn drift_ppb(&mut self) -> i64 {
        let bound = i64::from(self.plan.clock_drift_ppm) * 1_000;
        if bound == 0 { 0 } else { self.rng.below(2 * bound as u64 + 1) as i64 - bound }
    }

    /// What happens to `client` at its step number `step`.
    pub(crate) fn at(&mut self, client: u32, step: u64) -> StepFault {
        if let Some((_, fate)) = self.planned[client as usize].iter().find(|(at, _)| *at == step) {
            return *fate;
        }
        if self.rng.chance(self.plan.crash_rate) {
            return StepFault::Crash { after: self.rng.chance(0.5) };
        }
        if self.rng.chance(self.plan.pause_rate) {
            return StepFault::Pause { after: self.rng.chance(0.5), ns: self.plan.pause_ns };
        }
        StepFault::GoOn
    }
}
