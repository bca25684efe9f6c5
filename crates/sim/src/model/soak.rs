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

/// Takes at most `max_steps` steps of `model`, at random by `seed`, and calls `each` with every one of them.
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
        steps.clear();
        model.steps(&state, &mut steps);
        let Some(step) = pick(model, &steps, &mut rng) else {
            let violation = Violation::new(Checker::Deadlock, "a client can never finish: nothing moves");
            soaked.found = Some(Found { violation, trace });
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
                match replay(model, kept) {
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

/// What must not happen, if it does when these steps are taken as far as they are possible.
fn replay<'a, M: Model>(model: &M, trace: impl Iterator<Item = &'a M::Step>) -> Option<Found<M::Step>>
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
    None
}
