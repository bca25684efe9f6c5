//! A client as a local automaton: what it wants at each point of its history, computed once.
//!
//! The protocol's future is run once for every *local* history (the sequence of answers it saw); global states
//! hold only the number of a local node. To take a new edge, a fresh future is led along the node's history and
//! then given the new answer. Marks and checkpoints merge histories: see [`Base`].

use super::at_once::running;
use super::endpoint::{Answer, Core, Emitted, Pending, StepEndpoint, Traits};
use super::tables::{Interner, Tables};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{NodeId, PeerId};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

/// The future of a client.
pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What happened to one pending operation, as a key: the payload is a number in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stimulus {
    pub(super) slot: u8,
    pub(super) kind: Kind,
    /// A value, a message, or nothing.
    pub(super) payload: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Old,
    Half,
    Met,
    Sent,
    Offer,
    Timeout,
    Passed,
    NotPassed,
    /// An alarm rings.
    Ring,
    /// The payload is the time.
    Now,
    /// A sleep is over.
    Slept,
}

impl Kind {
    /// Whether others can see that it happened.
    fn is_effect(self) -> bool {
        matches!(self, Kind::Old | Kind::Sent)
    }
}

/// An edge of the automaton: where it leads, and what the checkers are told on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) target: u32,
    /// A list in `Tables::observations`; 0 is the empty one.
    pub(super) observations: u32,
}

/// A point in a client's life.
#[derive(Debug)]
pub(super) struct Node {
    /// One history that leads here: the node before, and what happened there.
    came_from: Option<(u32, Stimulus)>,
    /// A second one, to hold marks to their promise.
    came_also_from: Option<(u32, Stimulus)>,
    pub(super) pending: Rc<[(u8, Pending)]>,
    /// Which of them is an instruction of code that cannot wait: until it is executed, the client does nothing else.
    pub(super) stopped_at: Option<u8>,
    pub(super) done: bool,
    /// Told to the checkers when the next effect happens.
    armed: Vec<Observation>,
    /// What was known when the acquire or release began that this node is part of.
    scope: u32,
}

/// What distinguishes histories: everything that happened, or what a mark says of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Base {
    /// The beginning.
    Start,
    /// Everything: the node before, and what happened there.
    History(u32, Stimulus),
    /// A mark: what was known when this acquire or release began, and the marked locals.
    Mark(u32, &'static str, Vec<u64>),
    /// A checkpoint: nothing but its locals.
    Checkpoint(&'static str, Vec<u64>),
    /// The beginning of an acquire or release: the base it began at, and how far from it.
    Scope(u32, u32),
}

/// Nodes with these in common are the same node.
type MergeKey = (u32, (Vec<(u8, Pending)>, Option<u8>), Vec<Observation>, u32);

/// A client's automaton, grown as it is walked.
pub(super) struct Automaton {
    spawn: Box<dyn Fn(StepEndpoint) -> Task>,
    me: PeerId,
    traits: Traits,
    nodes: Vec<Node>,
    edges: FxHashMap<(u32, Stimulus), Option<Edge>>,
    bases: Interner<Base>,
    merged: FxHashMap<MergeKey, u32>,
}

/// What one run along a history ended in.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    pending: Vec<(u8, Pending)>,
    stopped_at: Option<u8>,
    done: bool,
    emitted: Vec<Emitted>,
    /// An offered message was left where it was.
    refused: bool,
}

impl Automaton {
    pub(super) fn new(me: PeerId, traits: Traits, spawn: impl Fn(StepEndpoint) -> Task + 'static) -> Self {
        Self {
            spawn: Box::new(spawn),
            me,
            traits,
            nodes: Vec::new(),
            edges: FxHashMap::default(),
            bases: Interner::default(),
            merged: FxHashMap::default(),
        }
    }

    pub(super) fn me(&self) -> PeerId {
        self.me
    }

    pub(super) fn home(&self) -> Option<NodeId> {
        self.traits.home
    }

    pub(super) fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The first node. Also returns what the client says before its first step.
    pub(super) fn start(&mut self, tables: &mut Tables) -> Edge {
        let run = self.run(&[], tables);
        self.arrive(None, run, tables)
    }

    /// The edge from `node` when `stimulus` happens; `None` if an offered message is not taken there.
    pub(super) fn edge(&mut self, node: u32, stimulus: Stimulus, tables: &mut Tables) -> Option<Edge> {
        if let Some(edge) = self.edges.get(&(node, stimulus)) {
            return *edge;
        }
        let run = self.run(&self.history(node, stimulus, false), tables);
        let edge = (!run.refused).then(|| self.arrive(Some((node, stimulus)), run, tables));
        self.edges.insert((node, stimulus), edge);
        edge
    }

    /// Holds marks to their promise: wherever two histories met, both go on alike.
    ///
    /// # Panics
    /// If they do not: then what was explored is not what the protocol does.
    pub(super) fn verify_marks(&self, tables: &Tables) {
        for &(node, stimulus) in self.edges.keys() {
            if self.nodes[node as usize].came_also_from.is_none() {
                continue;
            }
            let one = self.run(&self.history(node, stimulus, false), tables);
            let other = self.run(&self.history(node, stimulus, true), tables);
            assert!(
                one == other,
                "a mark of {} forgets something that still matters: two histories that reached it go on \
                 differently after {stimulus:?}:\n  {one:?}\n  {other:?}\nAdd what differs to the mark's locals.",
                self.me
            );
        }
    }

    fn history(&self, node: u32, last: Stimulus, other: bool) -> Vec<Stimulus> {
        let mut history = vec![last];
        let first = &self.nodes[node as usize];
        let mut step = if other { first.came_also_from } else { first.came_from };
        while let Some((before, stimulus)) = step {
            history.push(stimulus);
            step = self.nodes[before as usize].came_from;
        }
        history.reverse();
        history
    }

    /// Leads a fresh future along `history` and returns what it says and wants after the last step.
    fn run(&self, history: &[Stimulus], tables: &Tables) -> Run {
        let answers = history.iter().map(|stimulus| (stimulus.slot, answer(*stimulus, tables)));
        let core = Rc::new(RefCell::new(Core::new(answers)));
        let endpoint = StepEndpoint::new(core.clone(), self.me, self.traits);
        let mut task = (self.spawn)(endpoint);
        let mut cx = Context::from_waker(Waker::noop());
        let mut poll = || {
            let mut done = false;
            loop {
                done |= running(&core, || task.as_mut().poll(&mut cx).is_ready()).unwrap_or(false);
                if !core.borrow_mut().must_look_again() || done {
                    return done;
                }
            }
        };
        let (mut done, mut refused) = (poll(), false);
        loop {
            let Some((slot, answer, is_last)) = core.borrow_mut().next() else { break };
            let offer = matches!(answer, Answer::Offer(..));
            let look = core.borrow_mut().feed(slot, answer);
            if look {
                assert!(!done, "a client that is done was given an answer");
                done = poll();
            }
            refused = offer && is_last && !core.borrow().took_offer();
        }
        let mut core = core.borrow_mut();
        let (pending, stopped_at) = (core.pending(), core.stopped_at());
        Run { pending, stopped_at, done, emitted: core.take_emitted(), refused }
    }

    /// The node that `run` ended in, made if it is new.
    fn arrive(&mut self, from: Option<(u32, Stimulus)>, run: Run, tables: &mut Tables) -> Edge {
        let (mut armed, mut scope) = match from {
            Some((node, _)) => (self.nodes[node as usize].armed.clone(), self.nodes[node as usize].scope),
            None => (Vec::new(), self.bases.number(Base::Start)),
        };
        let mut told = Vec::new();
        if from.is_some_and(|(_, stimulus)| stimulus.kind.is_effect()) {
            told.append(&mut armed);
        }
        let mut base = self.bases.number(match from {
            Some((node, stimulus)) => Base::History(node, stimulus),
            None => Base::Start,
        });
        let mut distance = 0;
        for emitted in run.emitted {
            distance += 1;
            match emitted {
                Emitted::Observed(what @ (Observation::Waiting(_) | Observation::Releasing(_))) => {
                    scope = self.bases.number(Base::Scope(base, distance));
                    armed.push(what);
                }
                Emitted::Observed(
                    Observation::Retried(_) | Observation::Aborted(_) | Observation::Recovered(_),
                ) => {}
                Emitted::Observed(what) => {
                    // A grant or a refusal without any effect before it: the wait began and ended at once.
                    told.append(&mut armed);
                    told.push(what);
                }
                Emitted::Marked(label, locals) => {
                    base = self.bases.number(Base::Mark(scope, label, locals));
                    distance = 0;
                }
                Emitted::Checkpoint(label, locals) => {
                    base = self.bases.number(Base::Checkpoint(label, locals));
                    (scope, distance) = (self.bases.number(Base::Start), 0);
                    told.append(&mut armed);
                }
            }
        }
        let observations = tables.observations.number(told);
        let key = (base, (run.pending, run.stopped_at), armed, scope);
        if let Some(&target) = self.merged.get(&key) {
            let node = &mut self.nodes[target as usize];
            if node.came_also_from.is_none() && node.came_from != from {
                node.came_also_from = from;
            }
            return Edge { target, observations };
        }
        let target = self.nodes.len() as u32;
        self.nodes.push(Node {
            came_from: from,
            came_also_from: None,
            pending: key.1.0.clone().into(),
            stopped_at: key.1.1,
            done: run.done && key.1.0.is_empty(),
            armed: key.2.clone(),
            scope,
        });
        self.merged.insert(key, target);
        Edge { target, observations }
    }
}

fn answer(stimulus: Stimulus, tables: &Tables) -> Answer {
    let value = || *tables.values.get(stimulus.payload);
    match stimulus.kind {
        Kind::Old => Answer::Old(value()),
        Kind::Half => Answer::Half(value()),
        Kind::Met => Answer::Met(value()),
        Kind::Timeout => Answer::Timeout(value()),
        Kind::Sent | Kind::Ring | Kind::Slept => Answer::Sent,
        Kind::Now => Answer::Now(value() as u64),
        Kind::Passed => Answer::Passed(true),
        Kind::NotPassed => Answer::Passed(false),
        Kind::Offer => {
            let envelope = tables.envelopes.get(stimulus.payload);
            Answer::Offer(envelope.from, envelope.message.clone())
        }
    }
}
