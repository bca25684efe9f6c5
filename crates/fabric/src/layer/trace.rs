//! Writing down what happens: a bounded record, shared by all clients, that prints as a timeline with a
//! column each.

use super::{shape, verbs_of};
use crate::addr::{PeerId, Value};
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::observe::Observation;
use crate::verb::{Batch, Op, RawVerb};
use crate::wait::{Deadline, Time, Wait, Waited};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An endpoint that writes down what goes through it.
///
/// ```
/// use lockwright_fabric::backend::inproc::{InProc, block_on};
/// use lockwright_fabric::layer::{Timeline, Traced};
/// use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Word64};
///
/// let (fabric, timeline) = (InProc::new(1, 64), Timeline::of(100));
/// let ep = Traced::new(fabric.endpoint(PeerId::client(0)), timeline.clone());
/// block_on(ep.go(Word64::at(Addr::new(NodeId(0), 8)).cas(0, 7))).unwrap();
/// assert!(timeline.to_string().contains("n0+0x8 cas 0x0→0x7 = 0x0"));
/// ```
#[derive(Clone, Debug)]
pub struct Traced<E> {
    inner: E,
    timeline: Timeline,
}

impl<E: Endpoint> Traced<E> {
    /// Writes what goes through `inner` into `timeline`.
    pub fn new(inner: E, timeline: Timeline) -> Self {
        Self { inner, timeline }
    }

    async fn note(&self, what: What, outcome: Outcome) {
        let at = self.inner.now().await;
        self.timeline.push(Event { at, peer: self.inner.me(), what, outcome });
    }
}

/// The record: the last so many events of everybody. Clones are the same record.
#[derive(Clone, Debug)]
pub struct Timeline {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Event>,
    capacity: usize,
    dropped: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it was over. Marks and observations have the time of the event before them.
    pub at: Time,
    /// Who did it.
    pub peer: PeerId,
    /// What.
    pub what: What,
    /// With what result.
    pub outcome: Outcome,
}

/// What a client did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Verbs, in one batch.
    Verbs(Vec<RawVerb>),
    /// A wait for a word, in words.
    Wait(String),
    /// A message to somebody.
    Sent(PeerId, Message),
    /// A packet to somebody.
    SentDatagram(PeerId, Message),
    /// A message from somebody.
    Received(PeerId, Message),
    /// A receive that ended without one.
    NoMessage,
    /// A sleep of so many nanoseconds.
    Slept(u64),
    /// A mark.
    Marked(&'static str),
    /// What it does with a lock.
    Observed(Observation),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to tell.
    Done,
    /// Old words, one per verb; or the word as last seen, for a wait.
    Words(Vec<u128>),
    /// It failed.
    Failed(FabricError),
}

impl Timeline {
    /// A record of the last `capacity` events.
    pub fn of(capacity: usize) -> Self {
        let ring = Ring { events: VecDeque::new(), capacity, dropped: 0 };
        Self { ring: Arc::new(Mutex::new(ring)) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let mut ring = self.ring();
        ring.events.push_back(event);
        if ring.events.len() > ring.capacity {
            ring.events.pop_front();
            ring.dropped += 1;
        }
    }

    /// Something that took no time.
    fn push_aside(&self, peer: PeerId, what: What) {
        let at = self.ring().events.back().map_or(Time(0), |event| event.at);
        self.push(Event { at, peer, what, outcome: Outcome::Done });
    }

    /// The events, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.ring().events.iter().cloned().collect()
    }
}

/// A column per client, in the order of their ids; a line per event.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const COLUMN: usize = 44;
        let ring = self.ring();
        let mut peers: Vec<_> = ring.events.iter().map(|event| event.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        write!(f, "{:>14}", "ns")?;
        for peer in &peers {
            write!(f, "  {:<COLUMN$}", peer.to_string())?;
        }
        writeln!(f)?;
        if ring.dropped > 0 {
            writeln!(f, "{:>14}  … {} earlier events", "", ring.dropped)?;
        }
        for event in &ring.events {
            let column = peers.iter().position(|peer| *peer == event.peer).unwrap_or(0);
            let indent = column * (COLUMN + 2);
            writeln!(f, "{:>14}  {:indent$}{event}", event.at.0, "")?;
        }
        Ok(())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.what, &self.outcome) {
            (What::Verbs(verbs), Outcome::Words(olds)) => {
                for (index, (verb, old)) in std::iter::zip(verbs, olds).enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{} = {old:#x}", Shown(verb))?;
                }
                Ok(())
            }
            (What::Verbs(verbs), outcome) => {
                for verb in verbs {
                    write!(f, "{} ", Shown(verb))?;
                }
                write!(f, "{outcome}")
            }
            (What::Wait(wait), outcome) => write!(f, "{wait}{outcome}"),
            (What::Sent(to, message), outcome) => write!(f, "→{to} {}{outcome}", Letter(message)),
            (What::SentDatagram(to, message), outcome) => write!(f, "⇢{to} {}{outcome}", Letter(message)),
            (What::Received(from, message), _) => write!(f, "←{from} {}", Letter(message)),
            (What::NoMessage, _) => write!(f, "no message"),
            (What::Slept(ns), _) => write!(f, "slept {ns} ns"),
            (What::Marked(label), _) => write!(f, "· {label}"),
            (What::Observed(what), _) => write!(f, "{what}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => Ok(()),
            Outcome::Words(words) => words.iter().try_for_each(|word| write!(f, " = {word:#x}")),
            Outcome::Failed(error) => write!(f, " ✗ {error}"),
        }
    }
}

struct Shown<'a>(&'a RawVerb);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.0.addr)?;
        match self.0.op {
            Op::Read => write!(f, "read"),
            Op::Write(value) => write!(f, "write {value:#x}"),
            Op::Cas { expect, new } => write!(f, "cas {expect:#x}→{new:#x}"),
            Op::FetchAdd(add) => write!(f, "add {add:#x}"),
            Op::MaskedCas(cas) if cas.compare_mask == 0 => {
                write!(f, "swap {:#x}/{:#x}", cas.swap, cas.swap_mask)
            }
            Op::MaskedCas(cas) => {
                write!(
                    f,
                    "cas {:#x}/{:#x}→{:#x}/{:#x}",
                    cas.compare, cas.compare_mask, cas.swap, cas.swap_mask
                )
            }
            Op::MaskedFetchAdd(fields) => write!(f, "add {:#x}/{:#x}", fields.add, fields.boundaries),
            Op::GuardedFetchAdd { fields, guard, guard_mask } => {
                write!(f, "add {:#x}/{:#x} if {guard:#x}/{guard_mask:#x}", fields.add, fields.boundaries)
            }
        }
    }
}

struct Letter<'a>(&'a Message);

impl fmt::Display for Letter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { lock, kind, words, tail } = self.0;
        write!(f, "L{lock} kind {kind} {words:x?}")?;
        if tail.is_empty() { Ok(()) } else { write!(f, " +{} words", tail.len()) }
    }
}

impl<E: Endpoint> Endpoint for Traced<E> {
    crate::delegate!(inner: me home capabilities now passed alarm is_gone suspects random checkpoint);

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let verbs = verbs_of(batch);
        let olds = self.inner.go(&verbs[..]).await;
        let outcome = match &olds {
            Ok(olds) => Outcome::Words(olds.to_vec()),
            Err(error) => Outcome::Failed(*error),
        };
        self.note(What::Verbs(verbs.to_vec()), outcome).await;
        Ok(shape(batch, &olds?))
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let end = self.inner.wait_until(wait).await;
        let (how, outcome) = match &end {
            Ok(end) if end.met => ("saw", Outcome::Words(vec![end.value.widen()])),
            Ok(end) => ("gave up waiting for", Outcome::Words(vec![end.value.widen()])),
            Err(error) => ("waited for", Outcome::Failed(*error)),
        };
        self.note(What::Wait(format!("{how} {}", wait.word.addr())), outcome).await;
        end
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        let sent = self.inner.send(to, message.clone()).await;
        self.note(What::Sent(to, message), sent.map_or_else(Outcome::Failed, |()| Outcome::Done)).await;
        sent
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        let sent = self.inner.send_datagram(to, message.clone()).await;
        self.note(What::SentDatagram(to, message), sent.map_or_else(Outcome::Failed, |()| Outcome::Done))
            .await;
        sent
    }

    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        mut pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        let taken =
            self.inner.recv_by(deadline, |from, message| Some((pick(from, message)?, from, message.clone())));
        match taken.await {
            Some((answer, from, message)) => {
                self.note(What::Received(from, message), Outcome::Done).await;
                Some(answer)
            }
            None => {
                self.note(What::NoMessage, Outcome::Done).await;
                None
            }
        }
    }

    async fn sleep(&self, ns: u64) {
        self.inner.sleep(ns).await;
        self.note(What::Slept(ns), Outcome::Done).await;
    }

    fn mark(&self, label: &'static str, locals: &[u64]) {
        self.timeline.push_aside(self.me(), What::Marked(label));
        self.inner.mark(label, locals);
    }

    fn observe(&self, what: Observation) {
        self.timeline.push_aside(self.me(), What::Observed(what));
        self.inner.observe(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, NodeId, Word64};
    use crate::backend::inproc::{InProc, block_on};

    #[test]
    fn a_timeline_has_a_column_for_each_client() {
        let (fabric, timeline) = (InProc::new(1, 64), Timeline::of(100));
        let word = Word64::at(Addr::new(NodeId(0), 8));
        let [a, b] = [0, 1].map(|i| Traced::new(fabric.endpoint(PeerId::client(i)), timeline.clone()));
        block_on(async {
            a.go((word.swap(1), word.read())).await.unwrap();
            b.send(a.me(), Message::new(4, 1, &[10])).await.unwrap();
            a.mark("retry", &[]);
            a.recv(|_, message| (message.lock == 4).then_some(())).await;
            assert_eq!(b.recv_by(Deadline::Now, |_, _| Some(())).await, None);
        });
        let text = timeline.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("C0") && lines[0].contains("C1"), "{text}");
        assert!(lines[1].contains("n0+0x8 swap 0x1/0xffffffffffffffff = 0x0, n0+0x8 read = 0x1"), "{text}");
        assert!(lines[2].find("→C0 L4 kind 1 [a, 0, 0, 0]") > lines[4].find("←C1 L4 kind 1"), "{text}");
        assert!(lines[3].ends_with("· retry") && lines[5].ends_with("no message"), "{text}");
    }

    #[test]
    fn a_full_timeline_forgets_its_oldest_events() {
        let (fabric, timeline) = (InProc::new(1, 64), Timeline::of(3));
        let ep = Traced::new(fabric.endpoint(PeerId::client(0)), timeline.clone());
        (0..5).for_each(|_| ep.mark("again", &[]));
        assert_eq!(timeline.events().len(), 3);
        assert!(timeline.to_string().contains("… 2 earlier events"));
    }
}
