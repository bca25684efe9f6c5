//! The session with a decider's control plane: joining, names, coming back.
//!
//! A machine lives as long as its session is
//! resumed, or a restarted decider takes it back; when it does not, or the lease is over first, the [`Member`] is ended and the
//! client joins anew, as another machine, with nothing.

use super::super::link::{FIRST_PAUSE, LONGEST_PAUSE, late, within};
use super::super::transport::{Session, Transport};
use super::member::Member;
use super::thread::{bind, connect, run};
use super::wire::{Answer, Pieces, Request, Unacked, Welcome, full_name};
use crate::backend::StopTime;
use crate::error::{LockError, LostReason, OpenError};
use crate::inspect::{Entry, EntryState};
use crate::name::LockName;
use crate::wire::SERVER;
use crate::wire::listing::Writer;
use lockwright_fabric::backend::tcp::{CloseReason, SessionHandler};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Message, PeerId};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How a decider is reached.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// `host:port`, for the control plane and for packets.
    pub(crate) decider: String,
    pub(crate) space: Vec<u8>,
    pub(crate) lease: Duration,
    pub(crate) stop: StopTime,
    pub(crate) open_within: Duration,
    pub(crate) transport: Transport,
    /// How this process is called in listings.
    pub(crate) label: String,
}

/// A client of a decider.
#[derive(Debug)]
pub(crate) struct Link {
    options: LinkOptions,
    state: Mutex<LinkState>,
    /// The largest token of all grants: a decider that remembers nothing goes on above it.
    pub(super) seen: AtomicU64,
    /// It has joined, or never will.
    opened: Condvar,
    /// Wakes the thread.
    thread: Arc<Notify>,
    handle: Mutex<Option<std::thread::JoinHandle<()>>>,
    runtime: tokio::runtime::Handle,
    me: Weak<Link>,
}

#[derive(Debug, Default)]
pub(super) struct LinkState {
    session: Option<(Session, SocketAddr)>,
    unacked: Unacked,
    pieces: Pieces,
    member: Option<Arc<Member>>,
    members: u32,
    /// Why the last member that is gone had to go.
    ended: Option<LostReason>,
    handles: HashMap<u64, Handle>,
    last_handle: u64,
    /// The decider, across its restarts.
    id: u128,
    lease: Duration,
    stop: Duration,
    /// If there is no session: when the last message was sent that the other side is known to have received.
    acknowledged: Option<Instant>,
    closed: bool,
    fatal: Option<String>,
    /// Tasks that wait for a member, or for certainty.
    waiting: Vec<Waker>,
}

/// A name in use.
#[derive(Debug)]
struct Handle {
    name: LockName,
    /// The lock, and the member for which the decider said so.
    lid: Option<(u32, u64)>,
    /// The member for which it was asked.
    asked: u32,
    refused: Option<String>,
    wakers: Vec<Waker>,
}

impl LinkState {
    /// Without a session nothing is said: the next one begins with everything that matters.
    fn say(&mut self, request: &Request) {
        if let Some((session, _)) = &self.session {
            let messages = self.unacked.say(request);
            messages.iter().for_each(|message| session.tell(SERVER, message));
        }
    }

    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
        for handle in self.handles.values_mut() {
            handle.wakers.drain(..).for_each(Waker::wake);
        }
    }

    /// Whether what this client holds is surely its own.
    fn is_certain(&self) -> bool {
        self.session.as_ref().is_some_and(|(session, _)| session.is_certain(self.lease))
    }

    /// Whether the lease is over.
    fn is_expired(&self) -> bool {
        let silent = match &self.session {
            Some((session, _)) => session.acknowledged(),
            None => self.acknowledged.map_or(Duration::ZERO, |at| at.elapsed()),
        };
        silent > self.lease
    }

    fn end_member(&mut self, why: LostReason) {
        if let Some(member) = self.member.take() {
            member.end(why);
            self.ended = Some(why);
        }
    }

    fn refusal(&self) -> Option<LockError> {
        let why = self.fatal.clone().or_else(|| self.closed.then(|| "the client is closed".to_owned()));
        why.map(LockError::Disconnected)
    }
}

impl Link {
    /// Connects, joins, and sees to it that packets come through.
    ///
    /// # Errors
    /// If the decider cannot be reached, or does not let this client in.
    pub(crate) fn open(options: LinkOptions) -> Result<Arc<Self>, OpenError> {
        let name = format!("fiss://{}/{}", options.decider, String::from_utf8_lossy(&options.space));
        let refuse = |why: String| OpenError::Failed { space: name.clone(), why };
        let patience = options.transport.timeout();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("lockwright-fiss".to_owned())
            .spawn(move || run(options, &tell))
            .map_err(|error| refuse(error.to_string()))?;
        let link = match told.recv() {
            Ok(Ok(link)) => link,
            Ok(Err(why)) => return Err(refuse(why)),
            Err(_) => return Err(refuse("its thread ended".to_owned())),
        };
        *link.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        match link.wait_until_joined(Instant::now() + patience) {
            Ok(()) => Ok(link),
            Err(why) => {
                link.close();
                Err(refuse(why))
            }
        }
    }

    /// On its thread, whose runtime it uses.
    pub(super) fn new(options: LinkOptions) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            options,
            state: Mutex::default(),
            seen: AtomicU64::new(0),
            opened: Condvar::new(),
            thread: Arc::default(),
            handle: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
            me: me.clone(),
        })
    }

    /// Whether the client is closed, and its present member.
    pub(super) fn look(&self) -> (bool, Option<Arc<Member>>) {
        let state = self.state();
        (state.closed, state.member.clone())
    }

    /// Ready when the thread has something new to look at.
    pub(super) async fn woken(&self) {
        self.thread.notified().await;
    }

    /// The decider has answered: packets get through.
    pub(super) fn reached(&self) {
        self.state().wake();
        self.opened.notify_all();
    }

    fn wait_until_joined(&self, until: Instant) -> Result<(), String> {
        let mut state = self.state();
        loop {
            let joined = state.member.as_ref().map(|member| member.is_reached());
            let left = until.saturating_duration_since(Instant::now());
            match (joined, &state.fatal) {
                (_, Some(why)) => return Err(why.clone()),
                (Some(true), None) => return Ok(()),
                (Some(false), None) if left.is_zero() => {
                    let decider = &self.options.decider;
                    return Err(format!(
                        "packets do not come back from {decider}: is its UDP port open to this host?"
                    ));
                }
                (None, None) if left.is_zero() => return Err(late(self.options.transport.timeout())),
                _ => {}
            }
            state = self.opened.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decider's number, across its restarts.
    pub(super) fn id(&self) -> u128 {
        self.state().id
    }

    pub(super) fn space(&self) -> &[u8] {
        &self.options.space
    }

    pub(super) fn timeout(&self) -> Duration {
        self.options.transport.timeout()
    }

    pub(super) fn stop_time(&self) -> Duration {
        self.state().stop
    }

    /// The member of that number, if it is the present one.
    pub(super) fn member(&self, number: u32) -> Option<Arc<Member>> {
        self.state().member.clone().filter(|member| member.number == number)
    }

    /// Why what a member held that is gone is lost.
    pub(super) fn lost_reason(&self) -> LostReason {
        self.state().ended.unwrap_or(LostReason::Disconnected)
    }

    pub(super) fn is_certain(&self) -> bool {
        self.state().is_certain()
    }

    /// Whether there is certainty, and else a wake-up when that may have changed.
    pub(super) fn poll_certain(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.is_certain() {
            return Poll::Ready(());
        }
        state.waiting.push(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn bind(&self, name: &LockName) -> u64 {
        let mut state = self.state();
        state.last_handle += 1;
        let handle = state.last_handle;
        let name = name.clone();
        state.handles.insert(handle, Handle { name, lid: None, asked: 0, refused: None, wakers: Vec::new() });
        handle
    }

    pub(super) fn unbind(&self, handle: u64) {
        let mut state = self.state();
        let present = state.member.as_ref().map(|member| member.number);
        if let Some(Handle { lid: Some((by, lid)), .. }) = state.handles.remove(&handle)
            && present == Some(by)
        {
            state.say(&Request::Unname { lid });
        }
    }

    /// The present member, and the lock that `handle` stands for there.
    pub(super) fn poll_lock(
        &self,
        handle: u64,
        cx: &Context<'_>,
    ) -> Poll<Result<(Arc<Member>, u64), LockError>> {
        let mut state = self.state();
        if let Some(why) = state.refusal() {
            return Poll::Ready(Err(why));
        }
        let LinkState { member, handles, waiting, .. } = &mut *state;
        let Some(bound) = handles.get_mut(&handle) else {
            return Poll::Ready(Err(LockError::Refused("this lock's handle was dropped".to_owned())));
        };
        let Some(member) = member.clone().filter(|member| member.is_reached()) else {
            waiting.push(cx.waker().clone());
            return Poll::Pending;
        };
        if let Some(why) = bound.refused.take() {
            return Poll::Ready(Err(LockError::TooManyLocks(why)));
        }
        match bound.lid {
            Some((by, lid)) if by == member.number => Poll::Ready(Ok((member, lid))),
            _ => {
                bound.wakers.push(cx.waker().clone());
                if bound.asked != member.number {
                    bound.asked = member.number;
                    let name = full_name(&self.options.space, bound.name.as_bytes());
                    state.say(&Request::Name { id: handle, name });
                }
                Poll::Pending
            }
        }
    }

    /// Sees whether the lease is over. Says when to look again.
    pub(super) fn look_after(&self) -> Duration {
        let mut state = self.state();
        self.expire(&mut state);
        // Tasks that wait for certainty look again.
        state.wake();
        (state.lease / 4).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// Once the lease is over, this client has no machine any more.
    pub(super) fn expire(&self, state: &mut LinkState) {
        if !state.is_expired() || state.member.is_none() {
            return;
        }
        state.end_member(LostReason::Disconnected);
        if let Some((session, _)) = state.session.take() {
            session.close();
            self.begin_again(state);
        }
        state.wake();
    }

    /// The session is over.
    fn begin_again(&self, state: &mut LinkState) {
        state.unacked = Unacked::default();
        state.pieces = Pieces::default();
        if !state.closed
            && state.fatal.is_none()
            && let Some(me) = self.me.upgrade()
        {
            self.runtime.spawn(me.come_back());
        }
    }

    async fn come_back(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        loop {
            if self.state().closed {
                return;
            }
            match connect(&self.options, Duration::ZERO).await {
                Ok((session, decider)) => return self.begin(session, decider),
                Err(_) => {
                    self.expire(&mut self.state());
                    tokio::time::sleep(pause).await;
                }
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Goes on with a new session.
    pub(super) fn begin(&self, session: Session, decider: SocketAddr) {
        let handler: Weak<dyn SessionHandler> = self.me.clone();
        session.set_handler(handler);
        let mut state = self.state();
        if state.closed {
            return session.close();
        }
        self.expire(&mut state);
        match within(self.options.stop, session.lease()) {
            Ok((lease, stop)) => {
                state.lease = lease.min(self.options.lease.max(session.lease().silence()));
                state.stop = stop;
            }
            Err(why) => {
                session.close();
                return self.fail(&mut state, why);
            }
        }
        let reason = session.close_reason();
        state.session = Some((session, decider));
        match state.member.clone() {
            None => state.say(&Request::Join { seen: self.seen.load(Relaxed) }),
            Some(member) => self.rejoin(&mut state, &member),
        }
        drop(state);
        // The session ended before it was stored here, and `closed` missed it.
        if let Some(reason) = reason {
            self.closed(&reason);
        }
    }

    /// Asks a restarted decider to go on with this machine, and tells it what its locks are called.
    fn rejoin(&self, state: &mut LinkState, member: &Member) {
        let (mid, epoch, id, key) = (member.mid, member.epoch(), state.id, member.key());
        state.say(&Request::Rejoin { mid, epoch, id, key, seen: self.seen.load(Relaxed) });
        let named = state.handles.values().filter_map(|handle| {
            let (_, lid) = handle.lid.filter(|(by, _)| *by == member.number)?;
            Some(Request::Claim { lid, name: full_name(&self.options.space, handle.name.as_bytes()) })
        });
        let named: Vec<_> = named.collect();
        named.iter().for_each(|claim| state.say(claim));
        state.say(&Request::Claimed);
        // What was asked and not answered is asked again.
        for handle in state.handles.values_mut().filter(|handle| handle.lid.is_none()) {
            handle.asked = 0;
            handle.wakers.drain(..).for_each(Waker::wake);
        }
    }

    /// Packets of `member` do not come through any more, and its session does: it gets another key, under which its address is
    /// learned anew. Without a session the next one brings a key.
    pub(super) fn renew(&self, member: &Arc<Member>) {
        let mut state = self.state();
        if state.member.as_ref().is_some_and(|present| present.number == member.number) {
            state.say(&Request::Renew);
        }
    }

    fn welcome(&self, state: &mut LinkState, welcome: &Welcome) {
        state.id = welcome.id;
        if let Some(member) = &state.member {
            if welcome.resumed && member.mid == welcome.mid {
                member.resume(welcome.key);
                return self.thread.notify_one();
            }
            state.end_member(LostReason::ServerRestarted);
        }
        let Some((_, decider)) = state.session else { return };
        match bind(decider) {
            Ok(socket) => {
                state.members += 1;
                let thread = Arc::clone(&self.thread);
                let member = Member::new(state.members, welcome, socket, decider, thread);
                state.member = Some(Arc::new(member));
                self.thread.notify_one();
            }
            Err(error) => self.fail(state, format!("no UDP socket can be had: {error}")),
        }
    }

    pub(super) fn fail(&self, state: &mut LinkState, why: String) {
        state.fatal.get_or_insert(why);
        if let Some((session, _)) = state.session.take() {
            session.close();
        }
        state.end_member(LostReason::Disconnected);
        state.wake();
        self.opened.notify_all();
    }

    /// Ends the session, and with it everything that is held.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        if let Some((session, _)) = state.session.take() {
            session.close();
        }
        state.end_member(LostReason::Disconnected);
        state.wake();
        drop(state);
        self.thread.notify_one();
        let thread = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Its own thread may be the last to let go.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    /// What this client's tasks hold and wait for, as a listing's lines.
    fn survey(&self, state: &LinkState) -> Vec<u8> {
        let mut lines = Writer::default();
        let tasks = state.member.as_ref().map_or_else(Vec::new, |member| member.tasks());
        for task in tasks {
            let Some(handle) = state.handles.get(&task.handle) else { continue };
            let held = if task.token.is_some() { EntryState::Held } else { EntryState::Waiting };
            let mut entry = Entry::new(handle.name.clone(), held);
            (entry.shared, entry.token, entry.age) = (task.mode == Mode::Shared, task.token, task.age);
            entry.set_process(&self.options.label);
            lines.entry(&entry);
        }
        lines.into_bytes()
    }

    /// Tells the coordinator what the machine has to report.
    pub(super) fn report(&self, reports: Vec<Message>) {
        if reports.is_empty() {
            return;
        }
        let mut state = self.state();
        for report in reports {
            state.say(&Request::Protocol(report));
        }
    }
}

impl SessionHandler for Link {
    fn message(&self, from: PeerId, message: Message) -> Option<Message> {
        if from != SERVER {
            return None;
        }
        let mut state = self.state();
        let taken = message.lock;
        state.unacked.taken(taken);
        let message = state.pieces.add(message)?;
        match Answer::decode(&message)? {
            Answer::Taken | Answer::Bytes { .. } => {}
            Answer::Welcome(welcome) => self.welcome(&mut state, &welcome),
            Answer::Named { id, lid } => {
                let by = state.member.as_ref().map(|member| member.number)?;
                match state.handles.get_mut(&id) {
                    Some(handle) => {
                        handle.lid = Some((by, lid));
                        handle.wakers.drain(..).for_each(Waker::wake);
                    }
                    None => state.say(&Request::Unname { lid }),
                }
            }
            Answer::Refused { id: 0, why } => self.fail(&mut state, why),
            Answer::Refused { id, why } => {
                if let Some(handle) = state.handles.get_mut(&id) {
                    (handle.refused, handle.asked) = (Some(why), 0);
                    handle.wakers.drain(..).for_each(Waker::wake);
                }
            }
            Answer::Survey { id, space } => {
                let bytes = if space == self.options.space { self.survey(&state) } else { Vec::new() };
                state.say(&Request::Listed { id, bytes });
            }
            Answer::Protocol(message) => {
                let member = state.member.clone()?;
                drop(state);
                let effects = member.call(member.coordinator(), &message);
                self.report(effects.settle());
            }
        }
        None
    }

    fn reconnected(&self) {
        let state = self.state();
        if let Some((session, _)) = &state.session {
            state.unacked.again().for_each(|message| session.tell(SERVER, message));
        }
    }

    fn closed(&self, reason: &CloseReason) {
        let mut state = self.state();
        let Some((session, _)) = state.session.take() else { return };
        let now = Instant::now();
        state.acknowledged = now.checked_sub(session.acknowledged());
        match reason {
            _ if state.closed => {}
            CloseReason::Refused(why) => self.fail(&mut state, why.clone()),
            CloseReason::Overrun => self.fail(&mut state, "too many answers piled up unread".to_owned()),
            CloseReason::Closed | CloseReason::Expired | CloseReason::Restarted { .. } => {
                self.begin_again(&mut state);
            }
        }
    }
}
