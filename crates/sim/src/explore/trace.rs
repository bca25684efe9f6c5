//! A violation's history, as a table with a column per client that a person can read.

use super::automaton::{Kind, Stimulus};
use super::endpoint::Pending;
use super::search::States;
use super::state::DEAD;
use super::world::{Step, World};
use lockwright_fabric::{Addr, Fields, MaskedCas, Message, Op, RawVerb, Width};
use serde::Serialize;
use std::fmt;

/// What happened, step by step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// The clients and servers, as columns.
    pub columns: Vec<String>,
    /// The steps.
    pub rows: Vec<Row>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Whose, as an index into the columns.
    pub column: usize,
    /// What was done.
    pub what: String,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column| {
            let cells =
                self.rows.iter().filter(|row| row.column == column).map(|row| row.what.chars().count());
            cells.max().unwrap_or(0).max(self.columns[column].len())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        write!(f, "{:>4}", "step")?;
        for (name, width) in self.columns.iter().zip(&widths) {
            write!(f, " | {name:width$}")?;
        }
        write!(f, "\n----")?;
        for width in &widths {
            write!(f, "-+-{}", "-".repeat(*width))?;
        }
        for (number, row) in self.rows.iter().enumerate() {
            write!(f, "\n{:>4}", number + 1)?;
            for (column, width) in widths.iter().enumerate() {
                let cell = if column == row.column { row.what.as_str() } else { "" };
                write!(f, " | {cell:width$}")?;
            }
        }
        Ok(())
    }
}

/// The trace to `state`, and `last` after it. `message_name` is the protocol's.
pub(super) fn trace(
    world: &mut World,
    states: &States,
    state: u32,
    last: Option<Step>,
    message_name: fn(u32) -> &'static str,
) -> Trace {
    let clients = (0..world.shape.clients).map(|client| world.clients[client].me().to_string());
    let roles = (0..world.shape.roles).map(|role| format!("S{role}"));
    let columns = clients.chain(roles).collect();
    let path = states.path_to(state);
    let mut rows = Vec::new();
    for pair in path.windows(2) {
        let (before, after) = (states.get(pair[0]).to_vec(), states.get(pair[1]));
        world.expand(&before);
        let mut found = world.successors.states.chunks_exact(world.shape.stride());
        let place = found.position(|next| next == after).expect("a state was found from its predecessor");
        let step = world.successors.steps[place];
        rows.push(TraceWriter { world, message_name }.row(&before, step));
    }
    if let Some(step) = last {
        let before = states.get(state).to_vec();
        rows.push(TraceWriter { world, message_name }.row(&before, step));
    }
    Trace { columns, rows }
}

struct TraceWriter<'a> {
    world: &'a mut World,
    message_name: fn(u32) -> &'static str,
}

impl TraceWriter<'_> {
    fn row(&mut self, before: &[u32], step: Step) -> Row {
        let clients = self.world.shape.clients;
        match step {
            Step::Client { client, node, stimulus } => {
                let mut what = self.stimulus(before, client, node, stimulus);
                let edge = self.world.clients[client].edge(node, stimulus, &mut self.world.tables);
                let observations = edge.map_or(0, |edge| edge.observations);
                for observation in self.world.tables.observations.get(observations) {
                    what.push_str(&format!("; {observation}"));
                }
                Row { column: client, what }
            }
            Step::Role { role, envelope } => {
                let envelope = self.world.tables.envelopes.get(envelope);
                let what = format!("handles {} from {}", self.message(&envelope.message), envelope.from);
                Row { column: clients + role, what }
            }
            Step::Timer { role, id } => Row { column: clients + role, what: format!("timer {id} runs out") },
            Step::Crash(client) => Row { column: client, what: "CRASHES".into() },
            Step::Restart(role) => Row { column: clients + role, what: "IS RESTARTED".into() },
            Step::LoseNode(role) => {
                Row { column: clients + role, what: "IS LOST with all on its node".into() }
            }
            Step::Pause(client) => Row { column: client, what: "PAUSES past its lease".into() },
            Step::Tick => Row { column: 0, what: "(the clock ticks)".into() },
            Step::Resume(client) => Row { column: client, what: "RESUMES".into() },
            Step::Lose { mailbox, envelope } => {
                Row { column: mailbox, what: format!("never gets {}", self.envelope(envelope)) }
            }
            Step::Duplicate { mailbox, envelope } => {
                Row { column: mailbox, what: format!("will get {} twice", self.envelope(envelope)) }
            }
        }
    }

    fn stimulus(&mut self, before: &[u32], client: usize, node: u32, stimulus: Stimulus) -> String {
        debug_assert_ne!(node, DEAD, "the dead do not move");
        let pending = self.world.clients[client].node(node).pending.clone();
        let (_, pending) = pending.iter().find(|(slot, _)| *slot == stimulus.slot).expect("it was pending");
        let value = match stimulus.kind {
            Kind::Offer => 0,
            _ => *self.world.tables.values.get(stimulus.payload),
        };
        match (pending, stimulus.kind) {
            (Pending::Batch { verbs, olds, .. }, Kind::Half) => {
                format!("{} (reads {value:#x}, has not written)", verb(&verbs[olds.len()]))
            }
            (Pending::Batch { verbs, olds, half }, _) => {
                let done = &verbs[olds.len()];
                let old = half.unwrap_or_else(|| self.world.read(before, done.addr, done.width).0);
                outcome(done, old)
            }
            (Pending::Send { to, message, .. }, _) => format!("sends {} to {to}", self.message(message)),
            (Pending::Wait { addr, .. }, Kind::Met) => format!("sees {} = {value:#x}", place(*addr)),
            (Pending::Wait { addr, .. }, _) => {
                format!("gives up waiting for {} (= {value:#x})", place(*addr))
            }
            (Pending::Recv { .. }, Kind::Offer) => format!("gets {}", self.envelope(stimulus.payload)),
            (Pending::Recv { .. }, _) => "has no message".into(),
            (Pending::Alarm, _) => "its alarm rings".into(),
            (Pending::Passed(_), Kind::Passed) => "is out of time".into(),
            (Pending::Passed(_), _) => "has time left".into(),
            (Pending::Suspects(peer), Kind::Passed) => format!("takes {peer} for dead"),
            (Pending::Suspects(peer), _) => format!("sees {peer} alive"),
            (Pending::Gone(peer), Kind::Passed) => format!("learns that {peer} is gone"),
            (Pending::Gone(peer), _) => format!("finds {peer} alive"),
            (Pending::Now, _) => format!("reads the clock: {value} ns"),
            (Pending::Sleep(ns), _) => format!("has slept {ns} ns"),
        }
    }

    fn envelope(&self, envelope: u32) -> String {
        let envelope = self.world.tables.envelopes.get(envelope);
        format!("{} from {}", self.message(&envelope.message), envelope.from)
    }

    fn message(&self, message: &Message) -> String {
        let name = (self.message_name)(message.kind);
        let used = message.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        if used == 0 { name.to_owned() } else { format!("{name}{:x?}", &message.words[..used]) }
    }
}

fn place(addr: Addr) -> String {
    addr.to_string()
}

fn verb(verb: &RawVerb) -> String {
    let at = place(verb.addr);
    match verb.op {
        Op::Read => format!("read {at}"),
        Op::Write(value) => format!("write {at} {value:#x}"),
        Op::Cas { expect, new } => format!("cas {at} {expect:#x}→{new:#x}"),
        Op::FetchAdd(add) => format!("faa {at} +{}", signed(add, verb.width)),
        Op::MaskedCas(MaskedCas { compare_mask: 0, swap, .. }) => format!("swap {at} {swap:#x}"),
        Op::MaskedCas(MaskedCas { compare, compare_mask, swap, swap_mask }) => {
            format!("mcas {at} {compare:#x}&{compare_mask:#x}→{swap:#x}&{swap_mask:#x}")
        }
        Op::MaskedFetchAdd(Fields { add, .. }) => format!("mfaa {at} +{add:#x}"),
        Op::GuardedFetchAdd { fields, guard, guard_mask } => {
            format!("gfaa {at} +{:#x} if {guard:#x}&{guard_mask:#x}", fields.add)
        }
    }
}

fn outcome(done: &RawVerb, old: u128) -> String {
    let what = verb(done);
    match done.op {
        Op::Read => format!("{what} = {old:#x}"),
        Op::Write(_) => what,
        _ if done.op.apply(done.width, old).is_none() => format!("{what} FAILS, saw {old:#x}"),
        _ => format!("{what}, saw {old:#x}"),
    }
}

/// Small negative addends read better as such.
fn signed(add: u128, width: Width) -> String {
    let signed = match width {
        Width::W64 => i128::from(add as i64),
        Width::W128 => add as i128,
    };
    if signed.unsigned_abs() < 1 << 32 { signed.to_string() } else { format!("{add:#x}") }
}
