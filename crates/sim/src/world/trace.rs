//! The timeline of a run for people to read. Off in fast runs: a run that failed is repeated with it on.

use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Addr, Fields, MaskedCas, Message, Op, PeerId, RawVerb};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;

/// What is kept: the last so many things that happened.
const KEPT: usize = 50_000;
/// What is shown: the last so many of those that matter.
const SHOWN: usize = 60;

#[derive(Debug, Default)]
pub(crate) struct Trace {
    entries: VecDeque<(u64, u32, TraceEvent)>,
}

/// Something that happened.
#[derive(Debug)]
pub(crate) enum TraceEvent {
    Verb { verb: RawVerb, old: u128, new: Option<u128> },
    WeakRead { verb: RawVerb, old: u128 },
    Sent { to: PeerId, message: Message },
    Got { from: PeerId, message: Message },
    Observed(Observation),
    Fault(&'static str),
}

impl Trace {
    pub(crate) fn note(&mut self, at_ns: u64, client: u32, what: TraceEvent) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back((at_ns, client, what));
    }

    /// What `clients` did last, and all clients' verbs on `word` and the words that they touched meanwhile.
    pub(crate) fn render(&self, clients: &[u32], word: Option<Addr>) -> String {
        let concerned: BTreeSet<u32> = clients.iter().copied().collect();
        let words: BTreeSet<Addr> = self
            .entries
            .iter()
            .rev()
            .filter(|(_, client, what)| concerned.contains(client) && what.word().is_some())
            .take(4 * concerned.len())
            .filter_map(|(.., what)| what.word())
            .chain(word)
            .collect();
        let matters = |client: u32, what: &TraceEvent| {
            concerned.contains(&client) || what.word().is_some_and(|word| words.contains(&word))
        };
        let shown: Vec<_> = self
            .entries
            .iter()
            .rev()
            .filter(|(_, client, what)| matters(*client, what))
            .take(SHOWN)
            .collect();
        let mut text = String::from("      µs  who   what\n");
        for (at_ns, client, what) in shown.into_iter().rev() {
            let who = PeerId::client(*client as usize).to_string();
            let _ = writeln!(text, "{:>9.3}  {who:<5} {}", *at_ns as f64 / 1_000.0, what.text());
        }
        text
    }
}

impl TraceEvent {
    fn word(&self) -> Option<Addr> {
        match self {
            TraceEvent::Verb { verb, .. } | TraceEvent::WeakRead { verb, .. } => Some(verb.addr),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            TraceEvent::Verb { verb, old, new: Some(new) } => {
                format!("{} {}: {old:#x} → {new:#x}", verb_text(&verb.op), verb.addr)
            }
            TraceEvent::Verb { verb, old, new: None } => {
                format!("{} {}: sees {old:#x}", verb_text(&verb.op), verb.addr)
            }
            TraceEvent::WeakRead { verb, old } => {
                format!("{} {}: reads {old:#x}, writes later", verb_text(&verb.op), verb.addr)
            }
            TraceEvent::Sent { to, message } => format!("sends {to} {}", message_text(message)),
            TraceEvent::Got { from, message } => format!("gets from {from} {}", message_text(message)),
            TraceEvent::Observed(what) => what.to_string(),
            TraceEvent::Fault(what) => format!("*** {what} ***"),
        }
    }
}

fn verb_text(op: &Op) -> String {
    match op {
        Op::Read => "READ".to_owned(),
        Op::Write(_) => "WRITE".to_owned(),
        Op::Cas { expect, new } => format!("CAS({expect:#x}, {new:#x})"),
        Op::FetchAdd(add) => format!("FAA({add:#x})"),
        Op::MaskedCas(MaskedCas { compare, compare_mask, swap, swap_mask }) => {
            format!("CAS({compare:#x}/{compare_mask:#x}, {swap:#x}/{swap_mask:#x})")
        }
        Op::MaskedFetchAdd(Fields { add, .. }) => format!("FAA({add:#x} by field)"),
        Op::GuardedFetchAdd { fields, guard, guard_mask } => {
            format!("FAA({:#x} by field if {guard:#x}/{guard_mask:#x})", fields.add)
        }
    }
}

fn message_text(message: &Message) -> String {
    let mut text = format!("message {} about {} {:x?}", message.kind, message.lock, message.words);
    if !message.tail.is_empty() {
        let _ = write!(text, " and {} more", message.tail.len());
    }
    text
}
