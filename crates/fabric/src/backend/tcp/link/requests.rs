//! A session's requests: sending them, and their answers.

use super::{Link, Phase, State};
use crate::addr::{NodeId, PeerId};
use crate::backend::tcp::encode::{put_go, put_send};
use crate::backend::tcp::frame::Frame;
use crate::backend::tcp::outgoing::Outgoing;
use crate::backend::wakers::wake_all;
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::{Deadline, RawWait};
use std::task::{Context, Poll, Waker};
use tokio::runtime::{Handle, RuntimeFlavor};

/// The answer to a request.
#[derive(Debug)]
pub(in super::super) enum Answer {
    Done(Vec<u128>),
    Waited { met: bool, value: u128 },
    Failed(FabricError),
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestKind {
    Verbs(NodeId),
    Message(PeerId),
    Wait(RawWait, Deadline),
}

impl RequestKind {
    /// The error of a request whose connection broke.
    const fn lost(&self) -> FabricError {
        match self {
            Self::Verbs(node) => FabricError::NodeLost(*node),
            Self::Message(peer) => FabricError::PeerLost(*peer),
            Self::Wait(wait, _) => FabricError::NodeLost(wait.addr.node),
        }
    }
}

/// A request without its answer taken.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) kind: RequestKind,
    /// Its frame, if it has not been sent.
    pub(super) unsent: Option<Vec<u8>>,
    pub(super) answer: Option<Answer>,
    waker: Option<Waker>,
    /// The caller does not wait for the answer.
    pub(super) detached: bool,
}

impl Request {
    /// Fails the request; returns the waker of its caller.
    pub(super) fn fail(&mut self) -> Option<Waker> {
        self.answer = Some(Answer::Failed(self.kind.lost()));
        self.waker.take()
    }
}

impl Link {
    /// Sends verbs; returns the request's id.
    pub(in super::super) fn go(&self, verbs: &[RawVerb]) -> Result<u64, FabricError> {
        let node = verbs.first().map_or(NodeId(0), |verb| verb.addr.node);
        self.issue(&mut self.state(), RequestKind::Verbs(node), |id, out| put_go(out, id, false, verbs))
    }

    /// Sends a message; returns the request's id.
    pub(in super::super) fn send(&self, to: PeerId, message: &Message) -> Result<u64, FabricError> {
        self.issue(&mut self.state(), RequestKind::Message(to), |id, out| {
            put_send(out, id, false, to, message);
        })
    }

    /// Sends a wait and returns the request's id; pending while there are as many waits as the server allows.
    pub(in super::super) fn poll_wait(
        &self,
        wait: RawWait,
        deadline: Deadline,
        key: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<Result<u64, FabricError>> {
        let mut state = self.state();
        if state.waits >= self.welcome.max_waits && !matches!(state.phase, Phase::Over(_)) {
            state.wait_queue.keep(key, cx.waker());
            return Poll::Pending;
        }
        state.wait_queue.leave(key);
        let kind = RequestKind::Wait(wait, deadline);
        let issued = self.issue(&mut state, kind, |id, out| self.put_wait(out, id, wait, deadline));
        state.waits += u32::from(issued.is_ok());
        Poll::Ready(issued)
    }

    /// The frame carries the remaining time: clocks may differ.
    pub(super) fn put_wait(&self, out: &mut Vec<u8>, id: u64, wait: RawWait, deadline: Deadline) {
        let timeout_ns = match deadline {
            Deadline::Never => u64::MAX,
            Deadline::Now => 0,
            Deadline::At(time) => time.since(self.clock.now()).min(u64::MAX - 1),
        };
        Frame::Wait { id, wait, timeout_ns }.encode(out);
    }

    /// Sends verbs without an answer.
    pub(in super::super) fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        let node = verbs.first().map_or(NodeId(0), |verb| verb.addr.node);
        self.tell(RequestKind::Verbs(node), true, |id, out| put_go(out, id, true, verbs))
    }

    /// Sends a message without an answer; it is lost if there is no connection.
    pub(in super::super) fn send_datagram(&self, to: PeerId, message: &Message) {
        if let Phase::Up(out, _) = &self.state().phase {
            self.write(out, |bytes| put_send(bytes, 0, true, to, message));
        }
    }

    /// Sends a message without an answer; on the next connection if there is none now. `urgent`: at once, not with the next.
    pub(in super::super) fn tell_peer(
        &self,
        to: PeerId,
        message: &Message,
        urgent: bool,
    ) -> Result<(), FabricError> {
        self.tell(RequestKind::Message(to), urgent, |id, out| put_send(out, id, true, to, message))
    }

    fn tell(
        &self,
        kind: RequestKind,
        urgent: bool,
        put: impl FnOnce(u64, &mut Vec<u8>),
    ) -> Result<(), FabricError> {
        let mut state = self.state();
        match &state.phase {
            Phase::Over(_) => return Err(kind.lost()),
            Phase::Up(out, _) if urgent || self.gathers() => self.write(out, |bytes| put(0, bytes)),
            Phase::Up(out, _) => {
                out.push_deferrable(|bytes| put(0, bytes));
            }
            Phase::Down => {
                let id = self.issue(&mut state, kind, |_, bytes| put(0, bytes))?;
                state.requests.entry(id).and_modify(|request| request.detached = true);
            }
        }
        Ok(())
    }

    fn issue(
        &self,
        state: &mut State,
        kind: RequestKind,
        put: impl FnOnce(u64, &mut Vec<u8>),
    ) -> Result<u64, FabricError> {
        let id = state.next;
        let mut unsent = None;
        match &state.phase {
            Phase::Over(_) => return Err(kind.lost()),
            Phase::Up(out, _) => self.write(out, |bytes| put(id, bytes)),
            Phase::Down => put(id, unsent.insert(Vec::new())),
        }
        state.next += 1;
        state.requests.insert(id, Request { kind, unsent, answer: None, waker: None, detached: false });
        Ok(id)
    }

    /// On the connection's own single-threaded runtime frames are gathered until the task yields, and leave in one write.
    /// Elsewhere, waking the writing task would cost more than writing.
    fn gathers(&self) -> bool {
        Handle::try_current().is_ok_and(|here| {
            here.runtime_flavor() == RuntimeFlavor::CurrentThread && here.id() == self.runtime
        })
    }

    pub(super) fn write(&self, out: &Outgoing, put: impl FnOnce(&mut Vec<u8>)) {
        // If the buffer is closed, the connection is about to break, and the request fails with it.
        let _ = if self.gathers() { out.gather(put) } else { out.push(put) };
    }

    /// The answer to request `id`; registers the waker if there is none yet.
    pub(in super::super) fn poll_answer(&self, id: u64, cx: &Context<'_>) -> Poll<Answer> {
        let mut state = self.state();
        let request = state.requests.get_mut(&id).expect("a request is kept until its answer is taken");
        let Some(answer) = request.answer.take() else {
            match &mut request.waker {
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

    /// Removes a request; returns the wakers of tasks that waited for its wait slot.
    fn forget(&self, state: &mut State, id: u64) -> Vec<Waker> {
        match state.requests.remove(&id) {
            Some(Request { kind: RequestKind::Wait(..), .. }) => {
                state.waits -= 1;
                state.wait_queue.take()
            }
            _ => Vec::new(),
        }
    }

    /// The caller of request `id` has dropped its future. Verbs and messages are executed all the same, also unsent ones; a
    /// wait is cancelled.
    pub(in super::super) fn abandon(&self, id: u64) {
        let mut state = self.state();
        let Some(request) = state.requests.get_mut(&id) else { return };
        let is_wait = matches!(request.kind, RequestKind::Wait(..));
        if request.unsent.is_some() && !is_wait {
            request.detached = true;
            return;
        }
        let open = request.answer.is_none();
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

    pub(in super::super) fn leave_wait_queue(&self, key: &mut Option<u64>) {
        self.state().wait_queue.leave(key);
    }

    /// Stores the answer to a request; ignored if its caller is gone.
    pub(super) fn answer(&self, id: u64, answer: Answer) {
        let mut state = self.state();
        let waker = state.requests.get_mut(&id).and_then(|request| {
            request.answer = Some(answer);
            request.waker.take()
        });
        drop(state);
        wake_all(waker);
    }
}
