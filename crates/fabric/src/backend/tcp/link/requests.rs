//! A session's requests: how they leave, and how they are answered.

use super::{Link, Phase, State};
use crate::addr::{NodeId, PeerId};
use crate::backend::tcp::encode::{put_go, put_send};
use crate::backend::tcp::frame::{Frame, WaitFrame};
use crate::backend::tcp::outgoing::Outgoing;
use crate::backend::wakers::wake_all;
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::Deadline;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::runtime::{Handle, RuntimeFlavor};

/// What became of a request.
#[derive(Debug)]
pub(in super::super) enum Answer {
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
pub(super) struct Call {
    pub(super) about: About,
    /// Its frame, while it has not left.
    pub(super) unsent: Option<Vec<u8>>,
    pub(super) answer: Option<Answer>,
    waker: Option<Waker>,
    /// Nobody waits for the answer.
    pub(super) orphaned: bool,
}

impl Call {
    /// It fails. Returns whom to wake.
    pub(super) fn fail(&mut self) -> Option<Waker> {
        self.answer = Some(Answer::Failed(self.about.lost()));
        self.waker.take()
    }
}

impl Link {
    /// Issues verbs and returns the request's number.
    pub(in super::super) fn go(&self, verbs: &[RawVerb]) -> Result<u64, FabricError> {
        let node = verbs.first().map_or(NodeId(0), |verb| verb.addr.node);
        self.issue(&mut self.state(), About::Verbs(node), |id, out| put_go(out, id, false, verbs))
    }

    /// Issues a message and returns the request's number.
    pub(in super::super) fn send(&self, to: PeerId, message: &Message) -> Result<u64, FabricError> {
        self.issue(&mut self.state(), About::Letter(to), |id, out| put_send(out, id, false, to, message))
    }

    /// Issues a wait and returns the request's number; pending while there are as many as the server allows.
    pub(in super::super) fn poll_wait(
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
    pub(super) fn put_wait(&self, out: &mut Vec<u8>, id: u64, mut wait: WaitFrame, deadline: Deadline) {
        wait.timeout_ns = match deadline {
            Deadline::Never => u64::MAX,
            Deadline::Now => 0,
            Deadline::At(time) => time.since(self.clock.now()).min(u64::MAX - 1),
        };
        Frame::Wait { id, wait }.encode(out);
    }

    /// Verbs whose outcome nobody wants to know.
    pub(in super::super) fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        let node = verbs.first().map_or(NodeId(0), |verb| verb.addr.node);
        self.tell(About::Verbs(node), |id, out| put_go(out, id, true, verbs))
    }

    /// A message that may be lost. It is, if there is no connection.
    pub(in super::super) fn send_datagram(&self, to: PeerId, message: &Message) {
        if let Phase::Up(out, _) = &self.state().phase {
            self.write(out, |bytes| put_send(bytes, 0, true, to, message));
        }
    }

    /// A message that nobody wants to hear about, but that leaves on the next connection if there is none now.
    pub(in super::super) fn tell_peer(&self, to: PeerId, message: &Message) -> Result<(), FabricError> {
        self.tell(About::Letter(to), |id, out| put_send(out, id, true, to, message))
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
    pub(super) fn write(&self, out: &Outgoing, put: impl FnOnce(&mut Vec<u8>)) {
        let gathers = Handle::try_current().is_ok_and(|here| {
            here.runtime_flavor() == RuntimeFlavor::CurrentThread && here.id() == self.runtime
        });
        // A connection that takes no more is about to break, and the request with it.
        let _ = if gathers { out.gather(put) } else { out.push(put) };
    }

    /// The answer to request `id`, or a call when it is there.
    pub(in super::super) fn poll_answer(&self, id: u64, cx: &Context<'_>) -> Poll<Answer> {
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
    pub(in super::super) fn abandon(&self, id: u64) {
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

    pub(in super::super) fn leave_room(&self, seat: &mut Option<u64>) {
        self.state().room.leave(seat);
    }

    /// An answer to a request that nobody waits for is of no interest.
    pub(super) fn answer(&self, id: u64, answer: Answer) {
        let mut state = self.state();
        let waker = state.calls.get_mut(&id).and_then(|call| {
            call.answer = Some(answer);
            call.waker.take()
        });
        drop(state);
        wake_all(waker);
    }
}
