//! A client's session: requests on their way, messages that came, and what becomes of both when the connection breaks.
//!
//! | phase | a new request | a request that was sent | a wait |
//! |---|---|---|---|
//! | up | is written | is answered | is answered |
//! | down | is kept and sent on the next connection | fails: whether it happened is not known | is sent again |
//! | over | fails | fails | fails |
//!
//! One lock covers it all, also while bytes are written: so requests are numbered in the order in which they leave.

use super::client::Line;
use super::encode::{put_go, put_send};
use super::fate::Fate;
use super::frame::{Frame, WaitFrame, Welcome};
use super::incoming::Incoming;
use super::listener::{Ear, Listener};
use super::outgoing::Outgoing;
use crate::addr::{NodeId, PeerId};
use crate::backend::clock::Clock;
use crate::backend::inproc::mailbox::Mailbox;
use crate::backend::wakers::{Wakers, wake_all};
use crate::capability::{AtomicScope, Capabilities};
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::{Deadline, Time};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use tokio::runtime::{Handle, Id, RuntimeFlavor};

/// The server is told about messages got at least this often, so that it can forget them.
const ACK_EVERY: u64 = 32;

/// What became of a request.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Vec<u128>),
    Waited { met: bool, value: u128 },
    Failed(FabricError),
}

/// What a request is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum About {
    Verbs(NodeId),
    Letter(PeerId),
    Wait(WaitFrame, Deadline),
}

impl About {
    /// The error of a request whose connection broke.
    const fn lost(&self) -> FabricError {
        match self {
            Self::Verbs(node) => FabricError::NodeLost(*node),
            Self::Letter(peer) => FabricError::PeerLost(*peer),
            Self::Wait(wait, _) => FabricError::NodeLost(wait.addr.node),
        }
    }
}

/// A request on its way.
#[derive(Debug)]
struct Call {
    about: About,
    /// Its frame, while it has not left.
    unsent: Option<Vec<u8>>,
    answer: Option<Answer>,
    waker: Option<Waker>,
    /// Nobody waits for the answer.
    orphaned: bool,
}

#[derive(Debug)]
enum Phase {
    Up(Arc<Outgoing>, Arc<Mutex<Incoming>>),
    Down,
    Over(Fate),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    next: u64,
    calls: BTreeMap<u64, Call>,
    waits: u32,
    /// Connections that broke.
    breaks: u64,
    /// The last message got, and the last one that the server knows we got.
    seen: u64,
    acked: u64,
    /// Who waits for room for another wait, and who for the end.
    room: Wakers,
    end: Wakers,
}

/// What the clones of an endpoint share.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) welcome: Welcome,
    pub(super) clock: Clock,
    pub(super) mailbox: Mailbox,
    pub(super) random: AtomicU64,
    runtime: Id,
    listener: OnceLock<Ear>,
    /// When something last came from the server.
    heard: AtomicU64,
    state: Mutex<State>,
}

impl Link {
    pub(super) fn new(line: &Line, seed: u64) -> Self {
        let welcome = line.welcome.clone();
        let state = State {
            phase: Phase::Up(Arc::clone(&line.out), Arc::clone(&line.incoming)),
            next: 1,
            calls: BTreeMap::new(),
            waits: 0,
            breaks: 0,
            seen: 0,
            acked: 0,
            room: Wakers::default(),
            end: Wakers::default(),
        };
        let welcome_now = welcome.now_ns;
        Self {
            clock: Clock::showing(Time(welcome_now)),
            welcome,
            mailbox: Mailbox::default(),
            random: AtomicU64::new(seed),
            runtime: Handle::current().id(),
            listener: OnceLock::new(),
            heard: AtomicU64::new(welcome_now),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        let has = |bit: u16| self.welcome.capabilities >> bit & 1 == 1;
        let scope = if has(4) { AtomicScope::Global } else { AtomicScope::Nic };
        Capabilities { masked: has(0), wide: has(1), guarded: has(2), messages: has(3), scope }
    }

    /// How the session ended, if it did.
    pub(super) fn fate(&self) -> Option<Fate> {
        match &self.state().phase {
            Phase::Over(fate) => Some(fate.clone()),
            _ => None,
        }
    }

    pub(super) fn poll_fate(&self, seat: &mut Option<u64>, cx: &Context<'_>) -> Poll<Fate> {
        let mut state = self.state();
        if let Phase::Over(fate) = &state.phase {
            return Poll::Ready(fate.clone());
        }
        state.end.keep(seat, cx.waker());
        Poll::Pending
    }

    pub(super) fn leave_end(&self, seat: &mut Option<u64>) {
        self.state().end.leave(seat);
    }
    pub(super) fn leave_room(&self, seat: &mut Option<u64>) {
        self.state().room.leave(seat);
    }

    /// Issues verbs and returns the request's number.
    pub(super) fn go(&self, verbs: &[RawVerb]) -> Result<u64, FabricError> {
        let node = verbs.first().map_or(NodeId(0), |verb| verb.addr.node);
        self.issue(&mut self.state(), About::Verbs(node), |id, out| put_go(out, id, false, verbs))
    }

    /// Issues a message and returns the request's number.
    pub(super) fn send(&self, to: PeerId, message: &Message) -> Result<u64, FabricError> {
        self.issue(&mut self.state(), About::Letter(to), |id, out| put_send(out, id, false, to, message))
    }

    /// Issues a wait and returns the request's number; pending while there are as many as the server allows.
    pub(super) fn poll_wait(
        &self,
        wait: WaitFrame,
        deadline: Deadline,
        seat: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<Result<u64, FabricError>> {
        let mut state = self.state();
        if state.waits >= self.welcome.max_waits && !matches!(state.phase, Phase::Over(_)) {
            state.room.keep(seat, cx.waker());
            return Poll::Pending;
        }
        state.room.leave(seat);
        let about = About::Wait(wait, deadline);
        let issued = self.issue(&mut state, about, |id, out| self.put_wait(out, id, wait, deadline));
        state.waits += u32::from(issued.is_ok());
        Poll::Ready(issued)
    }

    /// The time that is left goes with the frame: clocks may differ.
    fn put_wait(&self, out: &mut Vec<u8>, id: u64, mut wait: WaitFrame, deadline: Deadline) {
        wait.timeout_ns = match deadline {
            Deadline::Never => u64::MAX,
            Deadline::Now => 0,
            Deadline::At(time) => time.since(self.clock.now()).min(u64::MAX - 1),
        };
        Frame::Wait { id, wait }.encode(out);
    }

    /// Verbs whose outcome nobody wants to know.
    pub(super) fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        let node = verbs.first().map_or(NodeId(0), |verb| verb.addr.node);
        self.tell(About::Verbs(node), |id, out| put_go(out, id, true, verbs))
    }

    /// A message that may be lost. It is, if there is no connection.
    pub(super) fn send_datagram(&self, to: PeerId, message: &Message) {
        if let Phase::Up(out, _) = &self.state().phase {
            self.write(out, |bytes| put_send(bytes, 0, true, to, message));
        }
    }

    /// A message that nobody wants to hear about, but that leaves on the next connection if there is none now.
    pub(super) fn tell_peer(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        self.tell(About::Letter(to), |id, out| put_send(out, id, true, to, message))
    }

    /// From now on messages go to `listener`.
    pub(super) fn listen(&self, listener: Weak<dyn Listener>) {
        let _ = self.listener.set(Ear(listener));
    }

    fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.get()?.0.upgrade()
    }

    /// Something came from the server.
    pub(super) fn hear(&self) {
        self.heard.store(self.clock.now().0, Relaxed);
    }

    /// When that was last.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Relaxed)
    }

    /// The two sides of the connection, if there is one.
    #[cfg(target_os = "linux")]
    pub(super) fn line(&self) -> Option<(Arc<Outgoing>, Arc<Mutex<Incoming>>)> {
        match &self.state().phase {
            Phase::Up(out, incoming) => Some((Arc::clone(out), Arc::clone(incoming))),
            _ => None,
        }
    }

    /// How long nothing has come, in nanoseconds.
    pub(super) fn silence_ns(&self) -> u64 {
        self.clock.now().since(Time(self.heard.load(Relaxed)))
    }

    pub(super) fn breaks(&self) -> u64 {
        self.state().breaks
    }
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state().phase, Phase::Up(..))
    }

    fn tell(&self, about: About, put: impl FnOnce(u64, &mut Vec<u8>)) -> Result<(), FabricError> {
        let mut state = self.state();
        match &state.phase {
            Phase::Over(_) => return Err(about.lost()),
            Phase::Up(out, _) => {
                let out = Arc::clone(out);
                self.write(&out, |bytes| put(0, bytes));
            }
            Phase::Down => {
                let id = self.issue(&mut state, about, |_, bytes| put(0, bytes))?;
                state.calls.entry(id).and_modify(|call| call.orphaned = true);
            }
        }
        Ok(())
    }

    fn issue(
        &self,
        state: &mut State,
        about: About,
        put: impl FnOnce(u64, &mut Vec<u8>),
    ) -> Result<u64, FabricError> {
        let id = state.next;
        let mut unsent = None;
        match &state.phase {
            Phase::Over(_) => return Err(about.lost()),
            Phase::Up(out, _) => self.write(out, |bytes| put(id, bytes)),
            Phase::Down => put(id, unsent.insert(Vec::new())),
        }
        state.next += 1;
        state.calls.insert(id, Call { about, unsent, answer: None, waker: None, orphaned: false });
        Ok(id)
    }

    /// On the connection's own single-threaded runtime frames are gathered until the task yields, which costs nothing
    /// and lets them leave together. Everywhere else waking the writing task would cost more than writing.
    fn write(&self, out: &Outgoing, put: impl FnOnce(&mut Vec<u8>)) {
        let gathers = Handle::try_current().is_ok_and(|here| {
            here.runtime_flavor() == RuntimeFlavor::CurrentThread && here.id() == self.runtime
        });
        // A connection that takes no more is about to break, and the request with it.
        let _ = if gathers { out.gather(put) } else { out.push(put) };
    }

    /// The answer to request `id`, or a call when it is there.
    pub(super) fn poll_answer(&self, id: u64, cx: &Context<'_>) -> Poll<Answer> {
        let mut state = self.state();
        let call = state.calls.get_mut(&id).expect("a request is kept until its answer is taken");
        let Some(answer) = call.answer.take() else {
            match &mut call.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        let wakers = self.forget(&mut state, id);
        drop(state);
        wake_all(wakers);
        Poll::Ready(answer)
    }

    /// Takes a request out, and returns who may go on because of it.
    fn forget(&self, state: &mut State, id: u64) -> Vec<Waker> {
        match state.calls.remove(&id) {
            Some(Call { about: About::Wait(..), .. }) => {
                state.waits -= 1;
                state.room.take()
            }
            _ => Vec::new(),
        }
    }

    /// Nobody waits for request `id` any more. Verbs and messages happen all the same, also those that have not left
    /// yet; a wait is cancelled.
    pub(super) fn abandon(&self, id: u64) {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(&id) else { return };
        let is_wait = matches!(call.about, About::Wait(..));
        if call.unsent.is_some() && !is_wait {
            call.orphaned = true;
            return;
        }
        let open = call.answer.is_none();
        let wakers = self.forget(&mut state, id);
        if is_wait
            && open
            && let Phase::Up(out, _) = &state.phase
        {
            self.write(out, |bytes| Frame::Cancel { id }.encode(bytes));
        }
        drop(state);
        wake_all(wakers);
    }

    /// The last message got, for a ping or a new connection.
    pub(super) fn seen(&self) -> u64 {
        let mut state = self.state();
        state.acked = state.seen;
        state.seen
    }

    /// Takes in one frame of the server. `Err` if it ends the session.
    pub(super) fn take_in(&self, frame: Frame) -> Result<(), Fate> {
        match frame {
            Frame::Done { id, olds } => self.answer(id, Answer::Done(olds)),
            Frame::Waited { id, met, value } => self.answer(id, Answer::Waited { met, value }),
            Frame::NodeLost { id, node } => {
                self.answer(id, Answer::Failed(FabricError::NodeLost(NodeId(node))));
            }
            Frame::PeerLost { id, peer } => {
                self.answer(id, Answer::Failed(FabricError::PeerLost(PeerId(peer))));
            }
            Frame::Deliver { seq, from, message } => return self.letter(seq, from, message),
            Frame::Pong => {}
            Frame::Refused { text, .. } => return Err(Fate::Refused(text)),
            other => return Err(Fate::Refused(format!("it sent a frame out of place: {other:?}"))),
        }
        Ok(())
    }

    /// An answer to a request that nobody waits for is of no interest.
    fn answer(&self, id: u64, answer: Answer) {
        let mut state = self.state();
        let waker = state.calls.get_mut(&id).and_then(|call| {
            call.answer = Some(answer);
            call.waker.take()
        });
        drop(state);
        wake_all(waker);
    }

    fn letter(&self, seq: u64, from: PeerId, message: Message) -> Result<(), Fate> {
        let mut state = self.state();
        if seq <= state.seen {
            return Ok(());
        }
        state.seen = seq;
        if state.seen - state.acked >= ACK_EVERY
            && let Phase::Up(out, _) = &state.phase
        {
            self.write(out, |bytes| Frame::Ack { seen: seq }.encode(bytes));
            state.acked = seq;
        }
        drop(state);
        let message = match self.listener() {
            Some(listener) => listener.message(from, message),
            None => Some(message),
        };
        let Some(message) = message else { return Ok(()) };
        if self.mailbox.put(from, message) { Ok(()) } else { Err(Fate::Overrun) }
    }

    /// The connection broke: what was sent and not answered fails, waits stay. `false` if the session is over.
    pub(super) fn go_down(&self) -> bool {
        let mut state = self.state();
        if matches!(state.phase, Phase::Over(_)) {
            return false;
        }
        state.phase = Phase::Down;
        state.breaks += 1;
        let sent = state.calls.values_mut().filter(|call| call.unsent.is_none() && call.answer.is_none());
        let failed = sent.filter(|call| !matches!(call.about, About::Wait(..)));
        let wakers: Vec<_> = failed.filter_map(fail).collect();
        drop(state);
        wake_all(wakers);
        true
    }

    /// A new connection: waits are sent again, and what has not left yet leaves. `false` if the session is over.
    pub(super) fn go_up(&self, line: &Line) -> bool {
        let out = &line.out;
        let mut state = self.state();
        if matches!(state.phase, Phase::Over(_)) {
            return false;
        }
        let open = state.calls.iter_mut().filter(|(_, call)| call.answer.is_none());
        out.cork();
        for (id, call) in open {
            match (call.about, call.unsent.take()) {
                (About::Wait(wait, deadline), _) => {
                    out.push(|bytes| self.put_wait(bytes, *id, wait, deadline));
                }
                (_, Some(frame)) => {
                    out.push(|bytes| bytes.extend_from_slice(&frame));
                }
                (_, None) => unreachable!("what was sent on the old connection has failed with it"),
            }
        }
        out.uncork();
        state.calls.retain(|_, call| !call.orphaned);
        state.phase = Phase::Up(Arc::clone(out), Arc::clone(&line.incoming));
        drop(state);
        self.hear();
        if let Some(listener) = self.listener() {
            listener.reconnected();
        }
        true
    }

    /// The end: everything fails. The first reason given counts.
    pub(super) fn end(&self, fate: Fate) {
        let mut state = self.state();
        match &state.phase {
            Phase::Over(_) => return,
            Phase::Up(out, _) if fate == Fate::Closed => {
                out.push(|bytes| Frame::Goodbye.encode(bytes));
                out.finish();
            }
            Phase::Up(out, _) => out.close(),
            Phase::Down => {}
        }
        let news = fate.clone();
        state.phase = Phase::Over(fate);
        let open = state.calls.values_mut().filter(|call| call.answer.is_none());
        let mut wakers: Vec<_> = open.filter_map(fail).collect();
        wakers.extend(state.room.take());
        wakers.extend(state.end.take());
        drop(state);
        wake_all(wakers);
        if let Some(listener) = self.listener().filter(|_| news != Fate::Closed) {
            listener.over(&news);
        }
    }
}

fn fail(call: &mut Call) -> Option<Waker> {
    call.answer = Some(Answer::Failed(call.about.lost()));
    call.waker.take()
}
