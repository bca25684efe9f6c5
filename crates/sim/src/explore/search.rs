//! Breadth-first search over global states: the first violation found has the shortest trace.

use super::state::FaultWord;
use super::world::{Step, World};
use super::{OnProgress, Progress};
use crate::case::Checks;
use crate::check::Checker;
use crate::check::Violation;
use hashbrown::HashTable;

/// All states seen, each once, in the order they were found.
pub(super) struct States {
    stride: usize,
    numbers: Vec<u32>,
    found_from: Vec<u32>,
    index: HashTable<SeenState>,
}

/// A state that was seen: its number, and half of its hash. The table grows without a look at all states, which are all over
/// memory, and few are compared in vain.
#[derive(Clone, Copy)]
struct SeenState {
    number: u32,
    half: u32,
}

impl SeenState {
    /// All that the table needs to find a place.
    fn spread(half: u32) -> u64 {
        u64::from(half).wrapping_mul(K)
    }
}

impl States {
    fn new(stride: usize) -> Self {
        Self { stride, numbers: Vec::new(), found_from: Vec::new(), index: HashTable::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.found_from.len()
    }

    pub(super) fn get(&self, state: u32) -> &[u32] {
        let at = state as usize * self.stride;
        &self.numbers[at..at + self.stride]
    }

    /// The state's number, and whether it is new.
    fn insert(&mut self, state: &[u32], from: u32) -> (u32, bool) {
        let (numbers, stride) = (&self.numbers, self.stride);
        let at = |number: u32| &numbers[number as usize * stride..(number as usize + 1) * stride];
        let half = (hash(state) >> 32) as u32;
        let is_it = |other: &SeenState| other.half == half && at(other.number) == state;
        let entry = self.index.entry(SeenState::spread(half), is_it, |other| SeenState::spread(other.half));
        match entry {
            hashbrown::hash_table::Entry::Occupied(found) => (found.get().number, false),
            hashbrown::hash_table::Entry::Vacant(free) => {
                let number = u32::try_from(self.found_from.len()).expect("fewer than 2^32 states");
                free.insert(SeenState { number, half });
                self.numbers.extend_from_slice(state);
                self.found_from.push(from);
                (number, true)
            }
        }
    }

    /// The states from the first to `state`, each found from the one before.
    pub(super) fn path_to(&self, state: u32) -> Vec<u32> {
        let mut path = vec![state];
        let mut at = state;
        while self.found_from[at as usize] != at {
            at = self.found_from[at as usize];
            path.push(at);
        }
        path.reverse();
        path
    }
}

/// An odd number whose multiples spread over all bits: 2^64 divided by the golden ratio.
const K: u64 = 0x9e37_79b9_7f4a_7c15;

/// A multiply-and-fold hash over the state's numbers, two at a time.
fn hash(state: &[u32]) -> u64 {
    let fold = |h: u64, word: u64| {
        let wide = u128::from(h ^ word) * u128::from(K);
        (wide as u64) ^ (wide >> 64) as u64
    };
    let mut pairs = state.chunks_exact(2);
    let mut h = K;
    for pair in &mut pairs {
        h = fold(h, u64::from(pair[0]) | u64::from(pair[1]) << 32);
    }
    if let [last] = pairs.remainder() {
        h = fold(h, u64::from(*last));
    }
    fold(h, state.len() as u64)
}

/// Where the search ended.
pub(super) struct SearchResult {
    pub(super) transitions: u64,
    pub(super) depth: u32,
    pub(super) exhaustive: bool,
    pub(super) violation: Option<ViolatingState>,
}

/// A violation: the state it was seen in, or seen from by one more step.
pub(super) struct ViolatingState {
    pub(super) violation: Violation,
    pub(super) state: u32,
    pub(super) step: Option<Step>,
}

/// The limits of a search, and who wants to hear of its progress.
pub(super) struct Limits<'a> {
    pub(super) checks: Checks,
    pub(super) max_states: u64,
    pub(super) progress: Option<&'a mut OnProgress>,
    /// Complains if lock memory is not free in this final state.
    pub(super) quiet: &'a dyn Fn(&World, &[u32]) -> Option<Violation>,
}

const PROGRESS_EVERY: u32 = 1 << 16;

/// Visits every state reachable in `world`, until something is wrong or the limit is reached.
pub(super) fn search(world: &mut World, limits: &mut Limits<'_>) -> (States, SearchResult) {
    let mut states = States::new(world.shape.stride());
    let initial = world.initial.clone();
    states.insert(&initial, 0);
    let mut graph = Graph::default();
    let mut result = SearchResult { transitions: 0, depth: 0, exhaustive: true, violation: None };
    let mut current = initial;
    let mut level_end = 1;
    let mut at: u32 = 0;
    while (at as usize) < states.len() {
        if at as usize == level_end {
            result.depth += 1;
            level_end = states.len();
        }
        if states.len() as u64 >= limits.max_states {
            result.exhaustive = false;
            return (states, result);
        }
        if at.is_multiple_of(PROGRESS_EVERY)
            && let Some(progress) = &mut limits.progress
        {
            let (depth, transitions) = (result.depth, result.transitions);
            progress(&Progress { states: states.len() as u64, transitions, depth });
        }
        current.copy_from_slice(states.get(at));
        world.expand(&current);
        result.transitions += world.successors.steps.len() as u64;
        if let Some((step, violation)) = world.successors.violations.first() {
            let step = Some(world.successors.steps[*step]);
            result.violation = Some(ViolatingState { violation: violation.clone(), state: at, step });
            return (states, result);
        }
        let is_final = world.is_final(&current);
        let mut progresses = false;
        for (step, next) in
            world.successors.steps.iter().zip(world.successors.states.chunks_exact(states.stride))
        {
            let (number, _) = states.insert(next, at);
            // A fault that may still happen helps no client to finish.
            if step.is_progress() {
                progresses = true;
                if limits.checks.finish {
                    graph.lead_to(number);
                }
            }
        }
        graph.close_state(is_final);
        let violation = if is_final {
            (limits.quiet)(world, &current)
        } else if !progresses && limits.checks.finish && !world.clock_has_stopped(&current) {
            Some(Violation::new(
                Checker::Deadlock,
                format!("{} can never finish: nothing moves", world.stuck(&current)),
            ))
        } else {
            None
        };
        if let Some(violation) = violation {
            result.violation = Some(ViolatingState { violation, state: at, step: None });
            return (states, result);
        }
        at += 1;
    }
    // Of the states that lead nowhere, the one where most are done tells the story best: the rest is stuck there.
    let done = |state: &u32| world.done_clients(states.get(*state));
    let trapped =
        if limits.checks.finish && !world.clock_ran_out { graph.cannot_finish() } else { Vec::new() };
    if let Some(trapped) = trapped.into_iter().rev().max_by_key(done) {
        let who = world.stuck(states.get(trapped));
        let what = format!("{who} can never finish from here, though things still move");
        let violation = Violation::new(Checker::Livelock, what);
        result.violation = Some(ViolatingState { violation, state: trapped, step: None });
    }
    (states, result)
}

impl World {
    /// The clients that are not done, in words, with what each waits for.
    fn stuck(&self, state: &[u32]) -> String {
        let stuck = (0..self.shape.clients).filter(|client| !self.is_done(state, *client));
        let describe = |client: usize| {
            let client_automaton = &self.clients[client];
            let pending = &client_automaton.node(state[self.shape.node(client)]).pending;
            let waits: Vec<_> = pending.iter().filter_map(|(_, pending)| pending.waits_for()).collect();
            match &waits[..] {
                [] => client_automaton.me().to_string(),
                waits => format!("{} (waits for {})", client_automaton.me(), waits.join(" and ")),
            }
        };
        stuck.map(describe).collect::<Vec<_>>().join(", ")
    }

    fn done_clients(&self, state: &[u32]) -> usize {
        (0..self.shape.clients).filter(|client| self.is_done(state, *client)).count()
    }

    /// Whether memory can be expected to be free in a final state: no client died with a lock.
    pub(super) fn no_client_crashed(&self, state: &[u32]) -> bool {
        !FaultWord(state[self.shape.faults()]).any_client_crashed()
    }
}

/// Which state leads to which by steps that are no faults, to ask whether all clients can always finish.
#[derive(Default)]
pub(crate) struct Graph {
    targets: Vec<u32>,
    ends: Vec<usize>,
    finals: Vec<bool>,
}

impl Graph {
    /// A step of the present state leads to `target`.
    pub(crate) fn lead_to(&mut self, target: u32) {
        self.targets.push(target);
    }

    /// All steps of the present state are known.
    pub(crate) fn close_state(&mut self, is_final: bool) {
        self.ends.push(self.targets.len());
        self.finals.push(is_final);
    }

    /// The states from which no final state can be reached, in the order they were found.
    pub(crate) fn cannot_finish(&self) -> Vec<u32> {
        let mut can = self.finals.clone();
        // Targets mostly come later, so a few sweeps from the end settle it.
        loop {
            let mut changed = false;
            for state in (0..can.len()).rev() {
                if can[state] {
                    continue;
                }
                let start = if state == 0 { 0 } else { self.ends[state - 1] };
                if self.targets[start..self.ends[state]].iter().any(|&target| can[target as usize]) {
                    can[state] = true;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        (0..can.len() as u32).filter(|state| !can[*state as usize]).collect()
    }
}
