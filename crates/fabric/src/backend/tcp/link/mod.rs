//! A client's session: requests on their way, messages that came, and what becomes of both when the connection breaks.
//!
//! | phase | a new request | a request that was sent | a wait |
//! |---|---|---|---|
//! | up | is written | is answered | is answered |
//! | down | is kept and sent on the next connection | fails: whether it happened is not known | is sent again |
//! | over | fails | fails | fails |
//!
//! One lock covers it all, also while bytes are written: so requests are numbered in the order in which they leave. This
//! file has the phases and the messages; `requests` has the requests.

mod requests;

pub(super) use requests::Answer;

use self::requests::{About, Call};
use super::client::Line;
use super::close_reason::CloseReason;
use super::frame::{Frame, Welcome};
use super::handler::{Ear, SessionHandler};
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::addr::{NodeId, PeerId};
use crate::backend::clock::Clock;
use crate::backend::inproc::mailbox::Mailbox;
use crate::backend::wakers::{Wakers, wake_all};
use crate::capability::{AtomicScope, Capabilities};
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::random::SharedSplitMix;
use crate::wait::Time;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use tokio::runtime::{Handle, Id};

/// The server is told about messages got at least this often, so that it can forget them.
const ACK_EVERY: u64 = 32;

#[derive(Debug)]
enum Phase {
    Up(Arc<Outgoing>, Arc<Mutex<Incoming>>),
    Down,
    Over(CloseReason),
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
    pub(super) random: SharedSplitMix,
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
            random: SharedSplitMix::new(seed),
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
    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        match &self.state().phase {
            Phase::Over(fate) => Some(fate.clone()),
            _ => None,
        }
    }

    pub(super) fn poll_fate(&self, seat: &mut Option<u64>, cx: &Context<'_>) -> Poll<CloseReason> {
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

    /// From now on messages go to `listener`.
    pub(super) fn set_handler(&self, listener: Weak<dyn SessionHandler>) {
        let _ = self.listener.set(Ear(listener));
    }

    fn listener(&self) -> Option<Arc<dyn SessionHandler>> {
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

    /// The last message got, for a ping or a new connection.
    pub(super) fn seen(&self) -> u64 {
        let mut state = self.state();
        state.acked = state.seen;
        state.seen
    }

    /// Takes in one frame of the server. `Err` if it ends the session.
    pub(super) fn take_in(&self, frame: Frame) -> Result<(), CloseReason> {
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
            Frame::Refused { text, .. } => return Err(CloseReason::Refused(text)),
            other => return Err(CloseReason::Refused(format!("it sent a frame out of place: {other:?}"))),
        }
        Ok(())
    }

    fn letter(&self, seq: u64, from: PeerId, message: Message) -> Result<(), CloseReason> {
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
        if self.mailbox.put(from, message) { Ok(()) } else { Err(CloseReason::Overrun) }
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
        let wakers: Vec<_> = failed.filter_map(Call::fail).collect();
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
    pub(super) fn end(&self, fate: CloseReason) {
        let mut state = self.state();
        match &state.phase {
            Phase::Over(_) => return,
            Phase::Up(out, _) if fate == CloseReason::Closed => {
                out.push(|bytes| Frame::Goodbye.encode(bytes));
                out.finish();
            }
            Phase::Up(out, _) => out.close(),
            Phase::Down => {}
        }
        let news = fate.clone();
        state.phase = Phase::Over(fate);
        let open = state.calls.values_mut().filter(|call| call.answer.is_none());
        let mut wakers: Vec<_> = open.filter_map(Call::fail).collect();
        wakers.extend(state.room.take());
        wakers.extend(state.end.take());
        drop(state);
        wake_all(wakers);
        if let Some(listener) = self.listener().filter(|_| news != CloseReason::Closed) {
            listener.closed(&news);
        }
    }
}
