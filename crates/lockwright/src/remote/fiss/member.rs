//! A machine of FissLock in this process: the explored state machine, a UDP socket, timers, and the tasks that call it.
//!
//! A *task* is one acquisition, a client of the machine. It departs when it is over, however it ends: released, given up or
//! dropped. A thread that calls the machine sends what comes of the call itself; packets that arrive and timers are the
//! business of the link's thread ([`Member::receive`], [`Member::tick`]).
//!
//! What this file must not do: know sessions. When its machine is no longer the decider's, it is [ended](Member::end) by the
//! link, and never granted anything again.

use super::wire::Welcome;
use crate::error::LostReason;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{
    Batch, Capabilities, Deadline, Endpoint, FabricError, Message, NodeId, Outbox, PeerId, Role, Time, Value,
    Wait, Waited,
};
use lockwright_locks::fisslock::datagram::{self, Ends, HELLO, Key, Limits};
use lockwright_locks::fisslock::{Machine, Params, Shipped, coordinator_of};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{poll_fn, ready};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Machines that a decider knows, at most: their numbers have eight bits.
pub const MACHINES: u16 = 255;
/// How long a machine waits before it sends a packet again. Longer than a busy host takes to answer, most of the time.
const RETRANSMIT: Duration = Duration::from_millis(3);

/// Silent for so long, the decider is asked whether packets still come through.
const QUIET: Duration = Duration::from_secs(1);
/// How often a HELLO is said until it is answered, and how many of them may stay unanswered.
const HELLO_AGAIN: Duration = Duration::from_millis(50);
const HELLOS: u32 = 6;

/// How machines and the decider of a network are set up: alike on both sides.
pub fn params(locks: u64, lanes: u32) -> Params {
    Params {
        switch_locks: locks,
        lanes,
        retransmit_ns: RETRANSMIT.as_nanos() as u64,
        queue_limit: datagram::MAX_WAITERS,
        ..Params::default()
    }
}

/// A machine in this process.
#[derive(Debug)]
pub(super) struct Member {
    /// Which one of this client.
    pub(super) number: u32,
    pub(super) mid: u8,
    limits: Limits,
    socket: UdpSocket,
    decider: SocketAddr,
    state: Mutex<State>,
    ended: AtomicBool,
    /// The link's thread, which looks after timers.
    thread: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    machine: Machine<Shipped>,
    key: Key,
    /// The decider has answered a HELLO under this key.
    reached: bool,
    /// When a packet last came.
    heard: Instant,
    /// HELLOs since then, and when the last one was said.
    hellos: u32,
    said: Instant,
    /// The decider was asked for another key.
    renews: bool,
    tasks: BTreeMap<u32, TaskState>,
    last_task: u32,
    timers: BTreeSet<(Instant, u64)>,
    /// The link's thread has been told that there are none.
    idle: bool,
    began: Instant,
    ended: Option<LostReason>,
    buffer: Vec<u8>,
}

/// What is known of a task beside what the machine knows.
#[derive(Debug)]
struct TaskState {
    handle: u64,
    mode: Mode,
    since: Instant,
    token: Option<u64>,
    mailbox: VecDeque<Message>,
    waker: Option<Waker>,
}

/// A task as listings show it.
pub(super) struct TaskInfo {
    pub(super) handle: u64,
    pub(super) mode: Mode,
    pub(super) age: Duration,
    pub(super) token: Option<u64>,
}

/// What became of HELLOs.
pub(super) enum Hello {
    Answered,
    /// None has been answered so far; the next one is said then.
    Said(Instant),
    /// They are not answered any more: the machine needs another key.
    Lost,
}

/// What one event makes others do.
#[derive(Default)]
#[must_use]
pub(super) struct Effects {
    /// For the coordinator.
    pub(super) reports: Vec<Message>,
    wakers: Vec<Waker>,
}

impl Effects {
    fn extend(&mut self, more: Self) {
        self.reports.extend(more.reports);
        self.wakers.extend(more.wakers);
    }

    /// Wakes the tasks concerned, and returns the messages to the coordinator.
    pub(super) fn settle(self) -> Vec<Message> {
        self.wakers.into_iter().for_each(Waker::wake);
        self.reports
    }
}

impl Member {
    pub(super) fn new(
        number: u32,
        welcome: &Welcome,
        socket: UdpSocket,
        decider: SocketAddr,
        thread: Arc<Notify>,
    ) -> Self {
        let Welcome { mid, epoch, locks, lanes, key, .. } = *welcome;
        let machine = Machine::joining(mid, MACHINES, &params(locks, lanes), epoch);
        let now = Instant::now();
        let state = State {
            machine,
            key,
            reached: false,
            heard: now,
            hellos: 0,
            said: now,
            renews: false,
            tasks: BTreeMap::new(),
            last_task: 0,
            timers: BTreeSet::new(),
            idle: false,
            began: now,
            ended: None,
            buffer: Vec::new(),
        };
        let limits = Limits { locks, lanes };
        let (state, ended) = (Mutex::new(state), AtomicBool::new(false));
        Self { number, mid, limits, socket, decider, state, ended, thread }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decider knows this machine, and has another key for it: it was restarted, or asked for one.
    pub(super) fn resume(&self, key: Key) {
        let mut state = self.state();
        (state.key, state.reached, state.renews) = (key, false, false);
    }

    /// Its socket, for the thread that reads it.
    pub(super) fn socket(&self) -> io::Result<UdpSocket> {
        self.socket.try_clone()
    }

    /// Whether the decider has answered.
    pub(super) fn is_reached(&self) -> bool {
        self.state().reached
    }

    /// The epoch that the machine is in.
    pub(super) fn epoch(&self) -> u32 {
        self.state().machine.epoch()
    }

    pub(super) fn key(&self) -> Key {
        self.state().key
    }

    /// It is no longer a machine of the decider: holders have lost their locks, and waiters look elsewhere.
    pub(super) fn end(&self, why: LostReason) {
        let mut state = self.state();
        state.ended.get_or_insert(why);
        self.ended.store(true, SeqCst);
        state.timers.clear();
        let wakers: Vec<Waker> = state.tasks.values_mut().filter_map(|task| task.waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Why it has ended, if it has.
    pub(super) fn ended(&self) -> Option<LostReason> {
        if self.ended.load(SeqCst) { self.state().ended } else { None }
    }

    /// A new task, which wants what `handle` stands for.
    pub(super) fn task(self: &Arc<Self>, handle: u64, mode: Mode) -> Task {
        let mut state = self.state();
        state.last_task = state.last_task.wrapping_add(1) & (u32::MAX >> 2);
        let id = state.last_task;
        let since = Instant::now();
        let (mailbox, waker) = (VecDeque::new(), None);
        state.tasks.insert(id, TaskState { handle, mode, since, token: None, mailbox, waker });
        drop(state);
        Task { member: Arc::clone(self), id, departs: true }
    }

    /// The task is over: what it held or wanted goes to others.
    pub(super) fn depart(&self, id: u32) {
        let departed = Message::new(0, Message::DEPARTED, &[]);
        let effects = self.call(PeerId::client(id as usize), &departed);
        self.state().tasks.remove(&id);
        // Only a recovery makes reports, and it is not a task's to begin.
        drop(effects.settle());
    }

    /// All tasks, as listings show them.
    pub(super) fn tasks(&self) -> Vec<TaskInfo> {
        let info = |task: &TaskState| TaskInfo {
            handle: task.handle,
            mode: task.mode,
            age: task.since.elapsed(),
            token: task.token,
        };
        self.state().tasks.values().map(info).collect()
    }

    /// A message for the machine, from a task or the coordinator.
    pub(super) fn call(&self, from: PeerId, message: &Message) -> Effects {
        let mut state = self.state();
        if state.ended.is_some() {
            return Effects::default();
        }
        let (mut out, now) = (Outbox::default(), state.now());
        state.machine.on_message(now, from, message, &mut out);
        self.dispatch(&mut state, out)
    }

    /// The coordinator, as the machine knows it.
    pub(super) fn coordinator(&self) -> PeerId {
        coordinator_of(MACHINES, &Params::default())
    }

    /// Packets that have arrived; reads until there are no more.
    pub(super) fn receive(&self, read: impl Fn(&mut [u8]) -> io::Result<(usize, SocketAddr)>) -> Effects {
        let mut effects = Effects::default();
        let mut bytes = [0; datagram::MAX_LEN + 1];
        // From any address: the checksum says whether the decider sent it.
        while let Ok((len, _)) = read(&mut bytes) {
            effects.extend(self.packet(&bytes[..len]));
        }
        effects
    }

    fn packet(&self, bytes: &[u8]) -> Effects {
        let mut state = self.state();
        // What is malformed is dropped: the network has changed it, or it is forged.
        let Ok((ends, message)) = datagram::decode(bytes, state.key, self.limits) else {
            return Effects::default();
        };
        if ends.to != self.mid || state.ended.is_some() {
            return Effects::default();
        }
        (state.heard, state.hellos) = (Instant::now(), 0);
        if message.kind == HELLO {
            state.reached = true;
            return Effects::default();
        }
        let (mut out, now) = (Outbox::default(), state.now());
        let from = PeerId::role(usize::from(MACHINES));
        state.machine.on_message(now, from, &message, &mut out);
        self.dispatch(&mut state, out)
    }

    /// Timers that have run out; says when the next one does.
    pub(super) fn tick(&self) -> (Effects, Option<Instant>) {
        let mut state = self.state();
        let mut effects = Effects::default();
        let (now, clock) = (Instant::now(), state.now());
        while let Some((due, id)) = state.timers.first().copied().filter(|(due, _)| *due <= now) {
            state.timers.remove(&(due, id));
            let mut out = Outbox::default();
            state.machine.on_timer(clock, id, &mut out);
            effects.extend(self.dispatch(&mut state, out));
        }
        let next = state.timers.first().map(|(due, _)| *due);
        state.idle = next.is_none();
        (effects, next)
    }

    /// Says HELLO until it is answered, and again when the decider is silent though this machine has to do with it: it may be
    /// that the network gives this machine's packets another address than that of its first HELLO, which is the only one that they
    /// are taken from.
    pub(super) fn say_hello(&self) -> Hello {
        let mut state = self.state();
        let busy = !(state.tasks.is_empty() && state.timers.is_empty());
        if state.reached && !(busy && state.heard.elapsed() >= QUIET) {
            state.hellos = 0;
            return Hello::Answered;
        }
        if state.hellos == 0 || state.said.elapsed() >= HELLO_AGAIN {
            (state.hellos, state.said) = (state.hellos.saturating_add(1), Instant::now());
            self.send(&mut state, 0, &Message::new(0, HELLO, &[]));
        }
        if state.reached && state.hellos > HELLOS && !std::mem::replace(&mut state.renews, true) {
            return Hello::Lost;
        }
        Hello::Said(state.said + HELLO_AGAIN)
    }

    fn send(&self, state: &mut State, to: u8, message: &Message) {
        let mut buffer = std::mem::take(&mut state.buffer);
        datagram::encode(Ends { from: self.mid, to }, message, state.key, &mut buffer);
        // What is not sent is lost, as any packet can be.
        let _ = self.socket.send_to(&buffer, self.decider);
        state.buffer = buffer;
    }

    fn dispatch(&self, state: &mut State, out: Outbox) -> Effects {
        let mut effects = Effects::default();
        for (to, message) in out.messages {
            match to.index() {
                (id, false) => {
                    let Some(task) = state.tasks.get_mut(&(id as u32)) else { continue };
                    task.mailbox.push_back(message);
                    effects.wakers.extend(task.waker.take());
                }
                _ => effects.reports.push(message),
            }
        }
        for (to, message) in out.datagrams {
            let (role, _) = to.index();
            // The decider comes behind the machines.
            let to = if role < usize::from(MACHINES) { role as u8 + 1 } else { 0 };
            self.send(state, to, &message);
        }
        if !out.timers.is_empty() {
            let now = Instant::now();
            let due = |(delay, id)| (now + Duration::from_nanos(delay), id);
            state.timers.extend(out.timers.into_iter().map(due));
            if std::mem::take(&mut state.idle) {
                self.thread.notify_one();
            }
        }
        effects
    }
}

impl State {
    fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// One acquisition. Dropped, it departs, unless it is [kept](Self::keep).
#[derive(Debug)]
pub(super) struct Task {
    member: Arc<Member>,
    id: u32,
    departs: bool,
}

impl Task {
    /// The endpoint by which the protocol's client calls the machine for this task.
    pub(super) fn endpoint(&self) -> TaskEndpoint {
        TaskEndpoint { member: Arc::clone(&self.member), id: self.id }
    }

    /// It was granted: from now on it departs when it is told to. Its number.
    pub(super) fn keep(mut self, token: u64) -> u32 {
        self.departs = false;
        if let Some(task) = self.member.state().tasks.get_mut(&self.id) {
            (task.token, task.since) = (Some(token), Instant::now());
        }
        self.id
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.departs {
            self.member.depart(self.id);
        }
    }
}

/// A task's access to its machine.
#[derive(Clone, Debug)]
pub(super) struct TaskEndpoint {
    member: Arc<Member>,
    id: u32,
}

impl Endpoint for TaskEndpoint {
    fn me(&self) -> PeerId {
        PeerId::client(self.id as usize)
    }

    fn home(&self) -> Option<NodeId> {
        Some(NodeId(u16::from(self.member.mid) - 1))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    /// There is no memory here.
    fn go<B: Batch>(&self, _: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        ready(Err(FabricError::NodeLost(NodeId(0))))
    }

    fn wait_until<T: Value>(&self, _: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        ready(Err(FabricError::NodeLost(NodeId(0))))
    }

    /// A call, which does not leave the process.
    fn send(&self, _: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        let reports = self.member.call(self.me(), &message).settle();
        debug_assert!(reports.is_empty(), "a task begins no recovery");
        ready(Ok(()))
    }

    fn send_datagram(&self, to: PeerId, _: Message) -> impl Future<Output = Result<(), FabricError>> {
        ready(Err(FabricError::PeerLost(to)))
    }

    /// The task that polls the acquisition watches its deadline: none comes here.
    fn recv_by<T>(
        &self,
        _: Deadline,
        mut pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        let machine = lockwright_locks::fisslock::machine_of(self.member.mid);
        poll_fn(move |cx| {
            let mut state = self.member.state();
            let Some(task) = state.tasks.get_mut(&self.id) else { return Poll::Pending };
            while let Some(message) = task.mailbox.pop_front() {
                if let Some(picked) = pick(machine, &message) {
                    return Poll::Ready(Some(picked));
                }
            }
            task.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    async fn now(&self) -> Time {
        self.member.state().now()
    }

    /// See [`recv_by`](Self::recv_by).
    fn sleep(&self, _: u64) -> impl Future<Output = ()> {
        std::future::pending()
    }

    fn random(&self) -> u64 {
        0
    }
}
