//! A model at random: far more clients, steps and faults than a search can visit, from a seed that repeats the run.

use super::{Found, Model};
use crate::check::{Checker, Violation};
use crate::rng::Rng;

/// What became of a run at random.
#[derive(Clone, Debug)]
pub struct Soaked<T> {
    /// Steps taken.
    pub steps: u64,
    /// How long they would have taken, in nanoseconds.
    pub virtual_ns: u64,
    /// Whether every client had done what it wanted before the steps were over.
    pub finished: bool,
    /// What must not happen and did.
    pub found: Option<Found<T>>,
}

/// After so many steps with faults a stretch without begins.
const STORM: u64 = 2_000;
/// Steps without a fault, per client, within which each of them must be answered: many times what it takes by turns.
const CALM: u64 = 500;
/// Where the randomness of a calm stretch begins that is repeated to shrink a failure.
const CALM_SEED: u64 = 1;

/// Takes at most `max_steps` steps of `model`, at random by `seed`, and calls `each` with every one of them.
///
/// From time to time nothing goes wrong for a while, in which [every client](Model::answered) must be answered.
pub fn soak<M: Model>(
    model: &M,
    seed: u64,
    max_steps: u64,
    mut each: impl FnMut(&M::State, &M::Step),
) -> Soaked<M::Step> {
    let (mut rng, mut state) = (Rng::new(seed, 0), model.initial());
    let (mut steps, mut trace) = (Vec::new(), Vec::new());
    let mut soaked = Soaked { steps: 0, virtual_ns: 0, finished: false, found: None };
    while soaked.steps < max_steps && !model.is_final(&state) {
        if soaked.steps % STORM == STORM - 1 {
            let mut calm_rng = Rng::new(seed, soaked.steps);
            let violation = calm(model, &mut state, &mut calm_rng, |state, step| {
                each(state, step);
                soaked.steps += 1;
                soaked.virtual_ns += model.takes_ns(step);
                trace.push(step.clone());
            });
            if let Err(violation) = violation {
                soaked.found = Some(Found { violation, trace });
                return soaked;
            }
        }
        steps.clear();
        model.steps(&state, &mut steps);
        let Some(step) = pick(model, &steps, &mut rng) else {
            if model.is_final(&state) {
                break;
            }
            soaked.found = Some(Found { violation: nothing_moves(), trace });
            return soaked;
        };
        each(&state, &step);
        soaked.steps += 1;
        soaked.virtual_ns += model.takes_ns(&step);
        trace.push(step.clone());
        if let Err(violation) = model.take(&mut state, &step) {
            soaked.found = Some(Found { violation, trace });
            return soaked;
        }
    }
    soaked.finished = model.is_final(&state);
    soaked
}

fn nothing_moves() -> Violation {
    Violation::new(Checker::Deadlock, "a client can never finish: nothing moves")
}

/// Takes steps that are no faults until every client was answered.
fn calm<M: Model>(
    model: &M,
    state: &mut M::State,
    rng: &mut Rng,
    mut each: impl FnMut(&M::State, &M::Step),
) -> Result<(), Violation> {
    let before = model.answered(state);
    let limit = CALM * before.len() as u64;
    let mut waiting: Vec<_> = (0..before.len()).collect();
    let mut steps = Vec::new();
    for _ in 0..limit {
        let after = model.answered(state);
        waiting.retain(|client| after[*client] == before[*client]);
        if waiting.is_empty() || model.is_final(state) {
            return Ok(());
        }
        steps.clear();
        model.steps(state, &mut steps);
        steps.retain(|step| model.is_progress(step));
        let step = pick(model, &steps, rng).ok_or_else(nothing_moves)?;
        each(state, &step);
        model.take(state, &step)?;
    }
    match waiting.first() {
        None => Ok(()),
        Some(client) => {
            let what = format!("client {client} was not answered within {limit} steps without a fault");
            Err(Violation::new(Checker::Deadlock, what))
        }
    }
}

/// One of the steps, by their weights.
fn pick<M: Model>(model: &M, steps: &[M::Step], rng: &mut Rng) -> Option<M::Step> {
    let all: u64 = steps.iter().map(|step| model.weight(step)).sum();
    let mut left = (all > 0).then(|| rng.below(all))?;
    let chosen = steps.iter().find(|step| {
        let weight = model.weight(step);
        let is_it = left < weight;
        left = left.saturating_sub(weight);
        is_it
    });
    chosen.cloned()
}

/// The same violation with as few steps as can be found by leaving some out: halves first, then quarters, and at last single
/// steps. A step that is not possible any more is left out, too.
pub fn shrink<M: Model>(model: &M, mut found: Found<M::Step>) -> Found<M::Step> {
    loop {
        let before = found.trace.len();
        let mut part = before / 2;
        while part > 0 {
            let mut from = 0;
            while from < found.trace.len() {
                let kept = found.trace.iter().take(from).chain(found.trace.iter().skip(from + part));
                match replay(model, kept, found.violation.checker) {
                    Some(shorter) if shorter.violation.checker == found.violation.checker => found = shorter,
                    _ => from += part,
                }
            }
            part /= 2;
        }
        // What was left out last may let something else be left out.
        if found.trace.len() == before {
            return found;
        }
    }
}

/// What must not happen, if it does when these steps are taken as far as they are possible. If it is that a client waits for
/// ever, nothing goes wrong after them.
fn replay<'a, M: Model>(
    model: &M,
    trace: impl Iterator<Item = &'a M::Step>,
    sought: Checker,
) -> Option<Found<M::Step>>
where
    M::Step: 'a,
{
    let (mut state, mut taken, mut steps) = (model.initial(), Vec::new(), Vec::new());
    for step in trace {
        steps.clear();
        model.steps(&state, &mut steps);
        if !steps.contains(step) {
            continue;
        }
        taken.push(step.clone());
        if let Err(violation) = model.take(&mut state, step) {
            return Some(Found { violation, trace: taken });
        }
    }
    if sought != Checker::Deadlock {
        return None;
    }
    let violation = calm(model, &mut state, &mut Rng::new(CALM_SEED, 0), |_, _| {}).err()?;
    Some(Found { violation, trace: taken })
}
