//! The explorer: runs a protocol's own code through **every** interleaving of verbs and messages.
//!
//! A client is a local automaton grown from its future (`automaton`); a global state is a row of numbers
//! (`state`); `world` lists the steps possible in a state; `search` visits all states breadth-first and asks
//! the checkers; `trace` tells the story of what they object to. The verbs of a batch are separate steps, a
//! message can always still be on its way, and everything a case allows to go wrong goes wrong everywhere.
//!
//! Without a clock, deadlines may pass whenever the case says they may; a case may ask for a coarse one.
//! What it does not have: weak memory within a word (a verb is one step, or two where the case asks for weak scope).

mod at_once;
mod automaton;
mod client_steps;
mod clock;
mod endpoint;
mod fault_steps;
mod role_steps;
mod roles;
mod search;
mod state;
mod tables;
mod trace;
mod world;

pub use at_once::at_once;
pub use endpoint::StepEndpoint;
pub use trace::{Row, Trace};

use crate::case::{Case, Checks, Round, Timeouts};
use crate::check::Checker;
use crate::check::Violation;
use crate::play;
use automaton::Automaton;
use endpoint::Traits;
use lockwright_fabric::{Addr, AtomicScope, NodeId, PeerId};
use lockwright_locks::Protocol;
use roles::Roles;
pub(crate) use search::Graph;
use search::{Limits, search};
use std::fmt;
use world::{Setup, World};

/// How a case is changed before it is explored, and who hears of the progress.
#[derive(Default)]
pub struct Options {
    /// Another number of clients: scripts are repeated in order, or left out.
    pub clients: Option<usize>,
    /// One client may crash, at any moment.
    pub crash: bool,
    /// One packet may be lost, wherever it is.
    pub loss: bool,
    /// One packet may arrive twice.
    pub dup: bool,
    /// Packets may overtake each other.
    pub reorder: bool,
    /// Another limit on the number of states.
    pub max_states: Option<u64>,
    /// Called every few ten thousand states.
    pub progress: Option<OnProgress>,
}

/// Called with how far an exploration has come.
pub type OnProgress = Box<dyn FnMut(&Progress)>;

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, crash, loss, dup, reorder, max_states, .. } = self;
        write!(
            f,
            "Options {{ clients: {clients:?}, crash: {crash}, loss: {loss}, dup: {dup}, reorder: {reorder}, \
             max_states: {max_states:?} }}"
        )
    }
}

/// How far an exploration has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// States found.
    pub states: u64,
    /// Steps taken between them.
    pub transitions: u64,
    /// Length of the shortest path to the states looked at now.
    pub depth: u32,
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case.
    pub case: &'static str,
    /// States found.
    pub states: u64,
    /// Steps taken between them.
    pub transitions: u64,
    /// Length of the longest shortest path.
    pub depth: u32,
    /// Points in the clients' own histories, all clients together.
    pub local_nodes: u64,
    /// What was checked besides mutual exclusion. Without recovery, not that all clients finish after a crash.
    pub checks: Checks,
    /// Whether every reachable state was visited. Never true when a limit was hit or a violation ended the search.
    pub exhaustive: bool,
    /// Wall-clock time.
    pub seconds: f64,
    /// What is wrong.
    pub violation: Option<Found>,
}

/// A violation, and how it comes about.
#[derive(Clone, Debug)]
pub struct Found {
    /// What a checker objects to.
    pub violation: Violation,
    /// The shortest way there.
    pub trace: Trace,
}

/// Explores `case` of protocol `P`.
///
/// ```
/// use lockwright_baselines::mcs::Mcs;
/// use lockwright_locks::Want;
/// use lockwright_sim::case::Case;
/// use lockwright_sim::explore::{Options, explore};
///
/// let case = Case::new("two").clients(2, &[Want::exclusive(0)]).rounds(2);
/// let outcome = explore::<Mcs>(&case, &mut Options::default());
/// assert!(outcome.exhaustive && outcome.violation.is_none());
/// ```
///
/// # Panics
/// If a mark of the protocol forgets something that still matters.
#[expect(clippy::disallowed_methods, reason = "the search itself is timed, not the protocol")]
pub fn explore<P: Protocol>(case: &Case<P::Params>, options: &mut Options) -> Outcome {
    let began = std::time::Instant::now();
    let case = &adapted::<P>(case, options);
    let mut outcome = Outcome {
        case: case.name,
        states: 0,
        transitions: 0,
        depth: 0,
        local_nodes: 0,
        checks: case.checks,
        exhaustive: false,
        seconds: 0.0,
        violation: None,
    };
    match World::new(setup::<P>(case)) {
        Err(violation) => {
            let trace = Trace { columns: Vec::new(), rows: Vec::new() };
            outcome.violation = Some(Found { violation, trace });
        }
        Ok(mut world) => {
            let limits = &mut Limits {
                checks: case.checks,
                max_states: case.max_states,
                progress: options.progress.as_mut(),
                quiet: &|world, state| not_quiet::<P>(case, world, state),
            };
            let (states, result) = search(&mut world, limits);
            for client in &world.clients {
                client.verify_marks(&world.tables);
            }
            outcome.states = states.len() as u64;
            outcome.transitions = result.transitions;
            outcome.depth = result.depth;
            outcome.local_nodes = world.clients.iter().map(|client| client.len() as u64).sum();
            outcome.exhaustive = result.exhaustive && result.violation.is_none() && !world.clock_ran_out;
            outcome.violation = result.violation.map(|bad| Found {
                trace: trace::trace(&mut world, &states, bad.state, bad.step, P::message_name),
                violation: bad.violation,
            });
        }
    }
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome
}

/// The case as the options want it.
fn adapted<P: Protocol>(case: &Case<P::Params>, options: &Options) -> Case<P::Params> {
    let mut case = case.clone();
    if let Some(clients) = options.clients {
        case.clients = case.clients.iter().cycle().take(clients).cloned().collect();
        // One more client can overtake once more per round.
        case.checks.bypass = None;
    }
    if options.crash && case.faults.crashes == 0 {
        case.faults.crashes = 1;
        case.checks.finish &= P::INFO.offers.recovery;
        if P::INFO.offers.recovery {
            // A recovery sends all waiters back to the end of the queue.
            case.checks.bypass = None;
            // And a client that waits for a dead lock cannot keep its lease of another: one at a time.
            for script in &mut case.clients {
                script.rounds = script.rounds.iter().flat_map(one_by_one).collect();
            }
        }
    }
    let faults = &mut case.faults;
    faults.losses = faults.losses.max(u8::from(options.loss));
    faults.duplicates = faults.duplicates.max(u8::from(options.dup));
    faults.reorders |= options.reorder;
    if (options.loss || options.dup || options.reorder) && case.timeouts == Timeouts::WhenFaulty {
        // No client is down when a packet is lost: it is sent again when nothing else can happen.
        case.timeouts = Timeouts::WhenStuck;
    }
    if let Some(max_states) = options.max_states {
        case.max_states = max_states;
    }
    case
}

/// A round for each of the wants, if nothing is done to them.
fn one_by_one(round: &Round) -> Vec<Round> {
    if !round.changes.is_empty() {
        return vec![round.clone()];
    }
    round.wants.iter().map(|want| Round { wants: vec![*want], ..round.clone() }).collect()
}

fn setup<P: Protocol>(case: &Case<P::Params>) -> Setup {
    let scope = if case.weak_scope { AtomicScope::Nic } else { AtomicScope::Global };
    let clients = case.clients.iter().enumerate().map(|(index, script)| {
        let (script, space, params) = (script.clone(), case.space, case.params.clone());
        let tells_time = case.clock.is_some() || case.sleepers_know;
        let traits = Traits { home: script.home, scope, has_clock: case.clock.is_some(), tells_time };
        Automaton::new(PeerId::client(index), traits, move |ep| {
            let client = P::client(ep.clone(), &space, &params);
            Box::pin(play(ep, client, script.clone()))
        })
    });
    Setup {
        nodes: case.space.nodes as usize,
        words_per_node: P::bytes_per_node(&case.space, &case.params).div_ceil(8) as usize,
        memory: P::initial_memory(&case.space, &case.params),
        clients: clients.collect(),
        roles: Roles::new(P::roles(&case.space, &case.params)),
        switches: P::switches(&case.space, &case.params),
        faults: case.faults,
        timeouts: case.timeouts,
        checks: case.checks,
        weak_scope: case.weak_scope,
        clock: case.clock,
        sleepers_know: case.sleepers_know,
    }
}

/// Whether lock memory is back in its free state, where it has to be.
fn not_quiet<P: Protocol>(case: &Case<P::Params>, world: &World, state: &[u32]) -> Option<Violation> {
    if !case.checks.quiet || !world.no_client_crashed(state) {
        return None;
    }
    let words = world.shape.words_per_node;
    for word in world.shape.memory() {
        let addr = Addr::new(NodeId((word / words) as u16), (word % words) as u64 * 8);
        let mask = P::quiet_mask(&case.space, &case.params, addr);
        let value = |state: &[u32]| *world.tables.values.get(state[word]) as u64;
        let (was, is) = (value(&world.initial), value(state));
        if (was ^ is) & mask != 0 {
            let what = format!("everybody is done, but {addr} is {is:#x} and was {was:#x} in the beginning");
            return Some(Violation::new(Checker::Quiet, what));
        }
    }
    None
}
