//! The explorer's endpoint: a client that stops at every step and can be led along any history.
//!
//! A protocol's future registers what it wants to do next as data ([`Pending`]) and waits. The holder of the
//! [`Core`] feeds it one answer, polls again, and looks at what it wants then. Nothing here knows of other
//! clients or of shared memory.

use lockwright_fabric::observe::Observation;
use lockwright_fabric::{
    Addr, AtomicScope, Batch, Capabilities, Cond, Deadline, Endpoint, FabricError, Message, NodeId, PeerId,
    RawVerb, Time, Value, Wait, Waited, Width,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Something a client has begun and not seen the end of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pending {
    /// Verbs in order; `olds` are the answers so far.
    Batch { verbs: Vec<RawVerb>, olds: Vec<u128>, half: Option<u128> },
    /// A wait for a word.
    Wait { addr: Addr, width: Width, cond: Cond, or: Option<Cond>, deadline: Deadline },
    /// A message that has not left yet.
    Send { to: PeerId, message: Message, datagram: bool },
    /// A wait for a message.
    Recv { deadline: Deadline },
    /// A look at the clock against a deadline: without a clock it may come out either way.
    Passed(Time),
    /// A look whether a client is down.
    Suspects(PeerId),
    /// A question whether a client has crashed.
    Gone(PeerId),
    /// A deadline that may pass, and then wakes the client.
    Alarm,
    /// A look at the clock.
    Now,
    /// Some nanoseconds that have to pass first.
    Sleep(u64),
}

impl Pending {
    /// When it ends by itself.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Pending::Wait { deadline: Deadline::At(time), .. }
            | Pending::Recv { deadline: Deadline::At(time) } => Some(*time),
            _ => None,
        }
    }

    /// Whether it happens by itself, whatever its client does meanwhile.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Pending::Batch { .. } | Pending::Send { .. })
    }

    /// What another client or a role has to do first, in words.
    pub(super) fn waits_for(&self) -> Option<String> {
        match self {
            Pending::Wait { addr, .. } => Some(format!("{addr} to change")),
            Pending::Recv { .. } => Some("a message".to_owned()),
            _ => None,
        }
    }
}

/// What a pending operation is told.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The old value of the batch's next verb.
    Old(u128),
    /// The batch's next verb, seen as a read and a later write, has read this.
    Half(u128),
    /// The word waited for.
    Met(u128),
    /// The message has left.
    Sent,
    /// A message that the receive may take.
    Offer(PeerId, Rc<Message>),
    /// The deadline passed. The word's value, for a wait.
    Timeout(u128),
    /// Whether the clock is past the deadline, or the peer gone.
    Passed(bool),
    /// The time.
    Now(u64),
}

/// What a client said while it ran, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Emitted {
    Observed(Observation),
    Marked(&'static str, Vec<u64>),
    Checkpoint(&'static str, Vec<u64>),
}

struct Slot {
    pending: Pending,
    answer: Option<Answer>,
    /// The future that asked is gone; a verb in flight still happens.
    abandoned: bool,
}

/// What the endpoint and its automaton share.
#[derive(Default)]
pub(super) struct Core {
    slots: Vec<Option<Slot>>,
    emitted: Vec<Emitted>,
    took_offer: bool,
    /// What is left of the history that the client is led along.
    history: VecDeque<(u8, Answer)>,
    /// The slot that was filled last.
    begun: usize,
    /// The client stopped between two instructions, with this to be answered next.
    stopped_at: Option<u8>,
    /// Something else was answered meanwhile, and its future has yet to look.
    look_again: bool,
}

impl Core {
    /// Of a client that will be led along `history`.
    pub(super) fn new(history: impl Iterator<Item = (u8, Answer)>) -> Self {
        Self { history: history.collect(), ..Self::default() }
    }

    /// What happens next, and whether that is the last of it. What the client said before is forgotten.
    pub(super) fn next(&mut self) -> Option<(u8, Answer, bool)> {
        let (slot, answer) = self.history.pop_front()?;
        self.emitted.clear();
        Some((slot, answer, self.history.is_empty()))
    }

    /// Answers what a client asked last that cannot wait. If its history ends before, the client is stopped there: whatever is
    /// dropped from now on does nothing any more.
    pub(super) fn follow_at_once(&mut self) -> bool {
        let asked = self.begun as u8;
        let Some((slot, answer, _)) = self.next() else {
            self.stopped_at = Some(asked);
            return false;
        };
        let look = self.feed(slot, answer);
        self.look_again |= look && slot != asked;
        true
    }

    /// The slot at which the client stopped between two instructions.
    pub(super) fn stopped_at(&self) -> Option<u8> {
        self.stopped_at
    }

    /// Whether a future has something to look at that was not polled since.
    pub(super) fn must_look_again(&mut self) -> bool {
        std::mem::take(&mut self.look_again)
    }

    /// What is pending, with the slot each sits in.
    pub(super) fn pending(&self) -> Vec<(u8, Pending)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, s)| Some((slot as u8, s.as_ref()?.pending.clone()))).collect()
    }

    pub(super) fn take_emitted(&mut self) -> Vec<Emitted> {
        std::mem::take(&mut self.emitted)
    }

    /// Tells slot `slot` what happened. Says whether its future has something to look at.
    pub(super) fn feed(&mut self, slot: u8, answer: Answer) -> bool {
        self.took_offer = false;
        let place = &mut self.slots[slot as usize];
        let slot = place.as_mut().expect("only pending operations are answered");
        match (&mut slot.pending, answer) {
            (Pending::Batch { half, .. }, Answer::Half(old)) => {
                *half = Some(old);
                return false;
            }
            (Pending::Batch { verbs, olds, half }, Answer::Old(old)) => {
                olds.push(old);
                *half = None;
                if olds.len() < verbs.len() {
                    return false;
                }
                slot.answer = Some(Answer::Old(old));
            }
            (_, answer) => slot.answer = Some(answer),
        }
        if slot.abandoned {
            *place = None;
            return false;
        }
        true
    }

    /// Whether the offered message was taken.
    pub(super) fn took_offer(&self) -> bool {
        self.took_offer
    }

    /// Whether the future that runs now is all there is of this client. If something else of it waits (an abandoned
    /// acquire, the other half of a join), a mark cannot speak for that, and is ignored. An alarm has no past.
    fn runs_alone(&self) -> bool {
        self.slots
            .iter()
            .flatten()
            .all(|slot| slot.answer.is_some() || matches!(slot.pending, Pending::Alarm))
    }

    fn begin(&mut self, pending: Pending) -> usize {
        let slot = Slot { pending, answer: None, abandoned: false };
        self.begun = match self.slots.iter().position(Option::is_none) {
            Some(free) => {
                self.slots[free] = Some(slot);
                free
            }
            None => {
                self.slots.push(Some(slot));
                self.slots.len() - 1
            }
        };
        self.begun
    }
}

/// A client of the explorer.
#[derive(Clone)]
pub struct StepEndpoint {
    core: Rc<RefCell<Core>>,
    me: PeerId,
    traits: Traits,
}

/// What the case says about a client's surroundings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    pub(super) home: Option<NodeId>,
    pub(super) scope: AtomicScope,
    pub(super) has_clock: bool,
    pub(super) tells_time: bool,
}

impl std::fmt::Debug for StepEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StepEndpoint({})", self.me)
    }
}

impl StepEndpoint {
    pub(super) fn new(core: Rc<RefCell<Core>>, me: PeerId, traits: Traits) -> Self {
        Self { core, me, traits }
    }

    fn perform(&self, pending: Pending) -> Perform {
        Perform { core: self.core.clone(), state: Progress::New(pending) }
    }
}

enum Progress {
    New(Pending),
    Waiting(usize),
    Done,
}

/// One operation, from its first poll to its answer.
struct Perform {
    core: Rc<RefCell<Core>>,
    state: Progress,
}

impl Perform {
    /// Takes the answer if `accept` says so; an answer that is not accepted is forgotten.
    fn poll_with<T>(&mut self, mut accept: impl FnMut(Answer, Pending) -> Option<T>) -> Poll<T> {
        if let Progress::New(_) = self.state {
            let Progress::New(pending) = std::mem::replace(&mut self.state, Progress::Done) else {
                unreachable!("just seen")
            };
            self.state = Progress::Waiting(self.core.borrow_mut().begin(pending));
            return Poll::Pending;
        }
        let Progress::Waiting(place) = self.state else { panic!("a future was polled after it was done") };
        let mut core = self.core.borrow_mut();
        let slot = core.slots[place].as_mut().expect("a waiting operation has a slot");
        let Some(answer) = slot.answer.take() else { return Poll::Pending };
        let offered = matches!(answer, Answer::Offer(..));
        let Some(accepted) = accept(answer, slot.pending.clone()) else { return Poll::Pending };
        core.took_offer |= offered;
        core.slots[place] = None;
        self.state = Progress::Done;
        Poll::Ready(accepted)
    }
}

impl Future for Perform {
    type Output = (Answer, Pending);
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_with(|answer, pending| Some((answer, pending)))
    }
}

impl Drop for Perform {
    fn drop(&mut self) {
        let Progress::Waiting(place) = self.state else { return };
        let mut core = self.core.borrow_mut();
        if core.stopped_at.is_some() {
            return;
        }
        let Some(slot) = core.slots[place].as_mut() else { return };
        match slot.pending {
            Pending::Batch { .. } | Pending::Send { .. } if slot.answer.is_none() => slot.abandoned = true,
            _ => core.slots[place] = None,
        }
    }
}

/// A receive: offers are shown to `pick` until it takes one.
struct Receive<F> {
    perform: Perform,
    pick: F,
}

// The closure is only ever called, never pinned.
impl<F> Unpin for Receive<F> {}

impl<T, F: FnMut(PeerId, &Message) -> Option<T>> Future for Receive<F> {
    type Output = Option<T>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        let pick = &mut this.pick;
        this.perform.poll_with(|answer, _| match answer {
            Answer::Offer(from, message) => pick(from, &message).map(Some),
            Answer::Timeout(_) => Some(None),
            other => unreachable!("a receive was answered with {other:?}"),
        })
    }
}

impl Endpoint for StepEndpoint {
    fn me(&self) -> PeerId {
        self.me
    }

    fn home(&self) -> Option<NodeId> {
        self.traits.home
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { scope: self.traits.scope, ..Capabilities::CPU }
    }

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let mut verbs = Vec::new();
        batch.each(&mut |verb| {
            verbs.push(verb);
            0
        });
        let olds = if verbs.is_empty() {
            Vec::new()
        } else {
            let pending = Pending::Batch { verbs, olds: Vec::new(), half: None };
            let (_, Pending::Batch { olds, .. }) = self.perform(pending).await else {
                unreachable!("a batch stays a batch")
            };
            olds
        };
        let mut olds = olds.into_iter();
        Ok(batch.each(&mut |_| olds.next().expect("every verb has an answer")))
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let Wait { word, cond, or, deadline, .. } = wait;
        let pending = Pending::Wait { addr: word.addr(), width: T::WIDTH, cond, or, deadline };
        Ok(match self.perform(pending).await.0 {
            Answer::Met(value) => Waited { value: T::narrow(value), met: true, polls: 0 },
            Answer::Timeout(value) => Waited { value: T::narrow(value), met: false, polls: 0 },
            other => unreachable!("a wait was answered with {other:?}"),
        })
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.perform(Pending::Send { to, message, datagram: false }).await;
        Ok(())
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.perform(Pending::Send { to, message, datagram: true }).await;
        Ok(())
    }

    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        Receive { perform: self.perform(Pending::Recv { deadline }), pick }
    }

    /// Without a clock time stands still, but for sleepers where the case says so, and what depends on it goes through
    /// deadlines.
    async fn now(&self) -> Time {
        if !self.traits.tells_time {
            return Time(0);
        }
        match self.perform(Pending::Now).await.0 {
            Answer::Now(time) => Time(time),
            other => unreachable!("a look at the clock was answered with {other:?}"),
        }
    }

    async fn passed(&self, deadline: Time) -> bool {
        match self.perform(Pending::Passed(deadline)).await.0 {
            Answer::Passed(passed) => passed,
            other => unreachable!("a look at the clock was answered with {other:?}"),
        }
    }

    async fn suspects(&self, peer: PeerId) -> bool {
        match self.perform(Pending::Suspects(peer)).await.0 {
            Answer::Passed(down) => down,
            other => unreachable!("a look at a peer was answered with {other:?}"),
        }
    }

    async fn is_gone(&self, peer: PeerId) -> bool {
        match self.perform(Pending::Gone(peer)).await.0 {
            Answer::Passed(gone) => gone,
            other => unreachable!("a question about a peer was answered with {other:?}"),
        }
    }

    async fn alarm(&self, _: Time) {
        self.perform(Pending::Alarm).await;
    }

    /// Without a clock any delay is possible between two steps anyway.
    async fn sleep(&self, ns: u64) {
        if self.traits.has_clock {
            self.perform(Pending::Sleep(ns)).await;
        }
    }

    fn random(&self) -> u64 {
        0
    }

    fn mark(&self, label: &'static str, locals: &[u64]) {
        let mut core = self.core.borrow_mut();
        if core.runs_alone() {
            core.emitted.push(Emitted::Marked(label, locals.to_vec()));
        }
    }

    fn checkpoint(&self, label: &'static str, locals: &[u64]) {
        let mut core = self.core.borrow_mut();
        if core.runs_alone() {
            core.emitted.push(Emitted::Checkpoint(label, locals.to_vec()));
        }
    }

    fn observe(&self, what: Observation) {
        self.core.borrow_mut().emitted.push(Emitted::Observed(what));
    }
}
