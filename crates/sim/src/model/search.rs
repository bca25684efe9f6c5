//! Breadth-first search over the states of a model: the first violation found has the shortest trace.

use super::fingerprint::fingerprint;
use super::{Found, Model};
use crate::case::Checks;
use crate::check::{Checker, Violation};
use crate::explore::{self, Graph, OnProgress, Options, Outcome, Progress, Row, Trace};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt::Display;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Explored<T> {
    /// Different states.
    pub states: u64,
    /// Steps between them.
    pub transitions: u64,
    /// Steps to the farthest state.
    pub depth: u32,
    /// Whether every state was visited.
    pub exhaustive: bool,
    /// What must not happen and can.
    pub found: Option<Found<T>>,
}

impl<T: Display> Explored<T> {
    /// As the explorer of protocols reports it.
    fn into_outcome(self, case: &'static str, seconds: f64) -> Outcome {
        let Self { states, transitions, depth, exhaustive, found } = self;
        let row = |step: T| Row { column: 0, what: step.to_string() };
        Outcome {
            case,
            states,
            transitions,
            depth,
            local_nodes: 0,
            checks: Checks { finish: true, quiet: true, tokens: true, permits: false, bypass: None },
            exhaustive: exhaustive && found.is_none(),
            seconds,
            violation: found.map(|Found { violation, trace }| {
                let rows = trace.into_iter().map(row).collect();
                explore::Found { violation, trace: Trace { columns: vec!["world".to_owned()], rows } }
            }),
        }
    }
}

/// How each state was found: from which, and by which of its steps.
struct Origins(Vec<(u32, u32)>);

impl Origins {
    /// The steps from the initial state to `state`, by replaying them.
    fn trace<M: Model>(&self, model: &M, state: u32) -> Vec<M::Step> {
        let mut choices = Vec::new();
        let mut at = state;
        while at != 0 {
            let (from, choice) = self.0[at as usize];
            choices.push(choice);
            at = from;
        }
        let (mut state, mut trace) = (model.initial(), Vec::new());
        for choice in choices.into_iter().rev() {
            let mut steps = Vec::new();
            model.steps(&state, &mut steps);
            let step = steps.swap_remove(choice as usize);
            model.take(&mut state, &step).expect("the same step in the same state has the same outcome");
            trace.push(step);
        }
        trace
    }
}

/// [`explore()`] under `options`, reported as the explorer of protocols does.
#[allow(clippy::disallowed_methods, reason = "for the report: nothing that is explored sees the time")]
pub fn explore_case<M: Model>(case: &'static str, model: &M, options: &mut Options) -> Outcome {
    /// More than any case has.
    const MAX_STATES: u64 = 20_000_000;
    let began = std::time::Instant::now();
    let max_states = options.max_states.unwrap_or(MAX_STATES);
    let explored = explore(model, max_states, options.progress.as_mut());
    explored.into_outcome(case, began.elapsed().as_secs_f64())
}

const PROGRESS_EVERY: u64 = 1 << 14;

/// Takes every step in every state of `model`, until something is wrong or there are `max_states`.
pub fn explore<M: Model>(
    model: &M,
    max_states: u64,
    mut progress: Option<&mut OnProgress>,
) -> Explored<M::Step> {
    let initial = model.initial();
    let mut numbers = FxHashMap::default();
    numbers.insert(fingerprint(&initial), 0_u32);
    let mut origins = Origins(vec![(0, 0)]);
    let mut frontier = VecDeque::from([initial]);
    let mut graph = Graph::default();
    let mut explored = Explored { states: 1, transitions: 0, depth: 0, exhaustive: true, found: None };
    let (mut at, mut level_end, mut steps) = (0_u32, 1, Vec::new());
    while let Some(state) = frontier.pop_front() {
        if u64::from(at) == level_end {
            explored.depth += 1;
            level_end = explored.states;
        }
        if explored.states >= max_states {
            explored.exhaustive = false;
            return explored;
        }
        if u64::from(at).is_multiple_of(PROGRESS_EVERY)
            && let Some(progress) = &mut progress
        {
            let Explored { states, transitions, depth, .. } = explored;
            progress(&Progress { states, transitions, depth });
        }
        steps.clear();
        model.steps(&state, &mut steps);
        let mut progresses = false;
        for (choice, step) in steps.iter().enumerate() {
            explored.transitions += 1;
            let mut next = state.clone();
            if let Err(violation) = model.take(&mut next, step) {
                let mut trace = origins.trace(model, at);
                trace.push(step.clone());
                explored.found = Some(Found { violation, trace });
                return explored;
            }
            let new = u32::try_from(origins.0.len()).expect("fewer than 2^32 states");
            let number = *numbers.entry(fingerprint(&next)).or_insert(new);
            if number == new {
                explored.states += 1;
                origins.0.push((at, choice as u32));
                frontier.push_back(next);
            }
            if model.is_progress(step) {
                progresses = true;
                graph.lead_to(number);
            }
        }
        let is_final = model.is_final(&state);
        graph.close_state(is_final);
        if !is_final && !progresses {
            let violation = Violation::new(Checker::Deadlock, "a client can never finish: nothing moves");
            explored.found = Some(Found { violation, trace: origins.trace(model, at) });
            return explored;
        }
        at += 1;
    }
    // The nearest of them has the shortest trace.
    if let Some(trapped) = graph.cannot_finish().first() {
        let what = "a client can never finish from here, though things still move";
        let violation = Violation::new(Checker::Livelock, what);
        explored.found = Some(Found { violation, trace: origins.trace(model, *trapped) });
    }
    explored
}
