//! A client's session: requests in flight, received messages, and what happens to both when the connection breaks.
//!
//! | phase | a new request | a request in flight | a wait |
//! |---|---|---|---|
//! | up | is written | is answered | is answered |
//! | down | is kept and sent on the next connection | fails: whether it was executed is not known | is sent again |
//! | over | fails | fails | fails |
//!
//! One lock covers all of it, also while bytes are written: so requests are numbered in the order in which they leave. This
//! file has the phases and the messages, `requests` the requests.

mod requests;

pub(super) use requests::Answer;

use self::requests::{Request, RequestKind};
use super::client::Connection;
use super::close_reason::CloseReason;
use super::frame::{Frame, Welcome};
use super::handler::{HandlerRef, SessionHandler};
use super::incoming::Incoming;
use super::lease::Lease;
use super::outgoing::Outgoing;
use super::received::{Arrival, Received};
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::{Handle, Id};

/// Messages are acknowledged at least this often, so that the server can drop them.
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
    requests: BTreeMap<u64, Request>,
    waits: u32,
    /// Connections that have broken.
    breaks: u64,
    received: Received,
    /// Tasks that wait for a free wait slot, and for the end of the session.
    wait_queue: Wakers,
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
    handler: OnceLock<HandlerRef>,
    /// When the last frame arrived.
    last_received: AtomicU64,
    /// When the last message was sent that the server has received.
    acknowledged: AtomicU64,
    /// Whether the phase is [`Phase::Up`], for those who do not wait for the lock.
    up: AtomicBool,
    /// After so many nanoseconds of silence the server may have given the connection up.
    silence_ns: u64,
    state: Mutex<State>,
}

impl Link {
    pub(super) fn new(connection: &Connection, seed: u64) -> Self {
        let welcome = connection.welcome.clone();
        let state = State {
            phase: Phase::Up(Arc::clone(&connection.out), Arc::clone(&connection.incoming)),
            next: 1,
            requests: BTreeMap::new(),
            waits: 0,
            breaks: 0,
            received: Received::default(),
            wait_queue: Wakers::default(),
            end: Wakers::default(),
        };
        let welcome_now = welcome.now_ns;
        let mut link = Self {
            clock: Clock::showing(Time(welcome_now)),
            welcome,
            mailbox: Mailbox::default(),
            random: SharedSplitMix::new(seed),
            runtime: Handle::current().id(),
            handler: OnceLock::new(),
            last_received: AtomicU64::new(welcome_now),
            acknowledged: AtomicU64::new(0),
            up: AtomicBool::new(true),
            silence_ns: 0,
            state: Mutex::new(state),
        };
        link.silence_ns = u64::try_from(link.lease().silence().as_nanos()).unwrap_or(u64::MAX);
        link.acknowledge_connection(connection);
        link
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        let has = |bit: u16| self.welcome.capabilities >> bit & 1 == 1;
        let scope = if has(4) { AtomicScope::Global } else { AtomicScope::Nic };
        Capabilities { masked: has(0), wide: has(1), guarded: has(2), messages: has(3), scope }
    }

    /// Why the session ended, if it has.
    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        match &self.state().phase {
            Phase::Over(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    pub(super) fn poll_closed(&self, key: &mut Option<u64>, cx: &Context<'_>) -> Poll<CloseReason> {
        let mut state = self.state();
        if let Phase::Over(reason) = &state.phase {
            return Poll::Ready(reason.clone());
        }
        state.end.keep(key, cx.waker());
        Poll::Pending
    }

    pub(super) fn leave_end(&self, key: &mut Option<u64>) {
        self.state().end.leave(key);
    }

    pub(super) fn set_handler(&self, handler: Weak<dyn SessionHandler>) {
        let _ = self.handler.set(HandlerRef(handler));
    }

    fn handler(&self) -> Option<Arc<dyn SessionHandler>> {
        self.handler.get()?.0.upgrade()
    }

    /// The lease that the server gives.
    pub(super) fn lease(&self) -> Lease {
        let Welcome { heartbeat_ns, grace_ns, .. } = self.welcome;
        Lease { heartbeat: Duration::from_nanos(heartbeat_ns), grace: Duration::from_nanos(grace_ns) }
    }

    /// The server has received what was sent at this time.
    pub(super) fn acknowledge(&self, sent: Time) {
        self.acknowledged.fetch_max(sent.0, Relaxed);
    }

    fn acknowledge_connection(&self, connection: &Connection) {
        let since = u64::try_from(connection.asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.acknowledge(Time(self.clock.now().0.saturating_sub(since)));
    }

    /// Nanoseconds since the last message was sent that the server has received.
    pub(super) fn acknowledged_ns(&self) -> u64 {
        self.clock.now().since(Time(self.acknowledged.load(Relaxed)))
    }

    /// Frames arrived from the server.
    pub(super) fn note_received(&self) {
        self.last_received.store(self.clock.now().0, Relaxed);
    }

    /// When frames last arrived.
    pub(super) fn last_received(&self) -> u64 {
        self.last_received.load(Relaxed)
    }

    /// The two directions of the connection, if there is one.
    #[cfg(target_os = "linux")]
    pub(super) fn connection(&self) -> Option<(Arc<Outgoing>, Arc<Mutex<Incoming>>)> {
        match &self.state().phase {
            Phase::Up(out, incoming) => Some((Arc::clone(out), Arc::clone(incoming))),
            _ => None,
        }
    }

    /// Nanoseconds since frames last arrived.
    pub(super) fn silence_ns(&self) -> u64 {
        self.clock.now().since(Time(self.last_received.load(Relaxed)))
    }

    pub(super) fn breaks(&self) -> u64 {
        self.state().breaks
    }

    #[inline]
    pub(super) fn is_certain(&self, lease_ns: u64) -> bool {
        let now = self.clock.now();
        self.up.load(Relaxed)
            && now.since(Time(self.last_received.load(Relaxed))) <= self.silence_ns
            && now.since(Time(self.acknowledged.load(Relaxed))) <= lease_ns
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state().phase, Phase::Up(..))
    }

    /// The last message received, to be acknowledged by a ping or a new connection.
    pub(super) fn seen(&self) -> u64 {
        self.state().received.acknowledge()
    }

    /// Processes one frame of the server. `Err` if it ends the session.
    pub(super) fn process(&self, frame: Frame) -> Result<(), CloseReason> {
        match frame {
            Frame::Done { id, olds } => self.answer(id, Answer::Done(olds)),
            Frame::Waited { id, met, value } => self.answer(id, Answer::Waited { met, value }),
            Frame::NodeLost { id, node } => {
                self.answer(id, Answer::Failed(FabricError::NodeLost(NodeId(node))));
            }
            Frame::PeerLost { id, peer } => {
                self.answer(id, Answer::Failed(FabricError::PeerLost(PeerId(peer))));
            }
            Frame::Deliver { seq, from, message } => return self.receive(seq, from, message),
            Frame::Refused { text, .. } => return Err(CloseReason::Refused(text)),
            other => return Err(CloseReason::Refused(format!("it sent an unexpected frame: {other:?}"))),
        }
        Ok(())
    }

    fn receive(&self, seq: u64, from: PeerId, message: Message) -> Result<(), CloseReason> {
        let mut state = self.state();
        let State { phase, received, .. } = &mut *state;
        match received.arrive(seq) {
            Arrival::New => {}
            Arrival::Again => return Ok(()),
            Arrival::Gap => {
                let text = format!("message {seq} came after message {}", received.seen());
                return Err(CloseReason::Refused(text));
            }
        }
        if let Phase::Up(out, _) = phase
            && let Some(seen) = received.due(ACK_EVERY)
        {
            self.write(out, |bytes| Frame::Ack { seen }.encode(bytes));
        }
        drop(state);
        let message = match self.handler() {
            Some(handler) => handler.message(from, message),
            None => Some(message),
        };
        let Some(message) = message else { return Ok(()) };
        if self.mailbox.put(from, message) { Ok(()) } else { Err(CloseReason::Overrun) }
    }

    /// The connection broke: requests in flight fail, waits stay. `false` if the session is over.
    pub(super) fn connection_lost(&self) -> bool {
        let mut state = self.state();
        if matches!(state.phase, Phase::Over(_)) {
            return false;
        }
        state.phase = Phase::Down;
        self.up.store(false, Relaxed);
        state.breaks += 1;
        let sent = state
            .requests
            .values_mut()
            .filter(|request| request.unsent.is_none() && request.answer.is_none());
        let failed = sent.filter(|request| !matches!(request.kind, RequestKind::Wait(..)));
        let wakers: Vec<_> = failed.filter_map(Request::fail).collect();
        drop(state);
        wake_all(wakers);
        true
    }

    /// There is a new connection: sends waits again, and unsent requests. `false` if the session is over.
    pub(super) fn connection_resumed(&self, connection: &Connection) -> bool {
        let out = &connection.out;
        let mut state = self.state();
        if matches!(state.phase, Phase::Over(_)) {
            return false;
        }
        let open = state.requests.iter_mut().filter(|(_, request)| request.answer.is_none());
        out.cork();
        for (id, request) in open {
            match (request.kind, request.unsent.take()) {
                (RequestKind::Wait(wait, deadline), _) => {
                    out.push(|bytes| self.put_wait(bytes, *id, wait, deadline));
                }
                (_, Some(frame)) => {
                    out.push(|bytes| bytes.extend_from_slice(&frame));
                }
                (_, None) => unreachable!("requests in flight failed with the old connection"),
            }
        }
        out.uncork();
        state.requests.retain(|_, request| !request.detached);
        state.phase = Phase::Up(Arc::clone(out), Arc::clone(&connection.incoming));
        drop(state);
        self.acknowledge_connection(connection);
        self.note_received();
        self.up.store(true, Relaxed);
        if let Some(handler) = self.handler() {
            handler.reconnected();
        }
        true
    }

    /// Ends the session: everything fails. Only the first reason counts.
    pub(super) fn end(&self, reason: &CloseReason) {
        let mut state = self.state();
        match &state.phase {
            Phase::Over(_) => return,
            Phase::Up(out, _) if *reason == CloseReason::Closed => {
                out.push(|bytes| Frame::Goodbye.encode(bytes));
                out.finish();
            }
            Phase::Up(out, _) => out.close(),
            Phase::Down => {}
        }
        state.phase = Phase::Over(reason.clone());
        self.up.store(false, Relaxed);
        let open = state.requests.values_mut().filter(|request| request.answer.is_none());
        let mut wakers: Vec<_> = open.filter_map(Request::fail).collect();
        wakers.extend(state.wait_queue.take());
        wakers.extend(state.end.take());
        drop(state);
        wake_all(wakers);
        if let Some(handler) = self.handler().filter(|_| *reason != CloseReason::Closed) {
            handler.closed(reason);
        }
    }
}
