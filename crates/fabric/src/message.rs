//! Messages between peers, and the server-side roles that answer them.

use crate::addr::PeerId;
use crate::verb::RawVerb;
use crate::wait::Time;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

/// A message: a lock, a kind, and words.
///
/// Protocols convert their own message types to this and back; receivers filter by `(lock, kind)`, since one client can wait
/// for several locks at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Message {
    /// The lock, or another key of the protocol's.
    pub lock: u64,
    /// The protocol's number for the kind of message.
    pub kind: u32,
    /// Fixed payload.
    pub words: [u64; 4],
    /// Payload of variable length; empty for most protocols.
    pub tail: Vec<u64>,
}

impl Message {
    /// The kind of the message that announces a departed peer, after everything that peer sent: its session ended, or its
    /// endpoint was dropped. Only for roles that [want departures](Role::wants_departures).
    pub const DEPARTED: u32 = u32::MAX;

    /// A message of `kind` about `lock` with up to four words.
    ///
    /// # Panics
    /// If there are more than four words.
    #[inline]
    pub fn new(lock: u64, kind: u32, words: &[u64]) -> Self {
        let mut message = Self { lock, kind, ..Self::default() };
        message.words[..words.len()].copy_from_slice(words);
        message
    }

    /// Bytes on the wire: the fixed part and the tail.
    pub fn wire_bytes(&self) -> u64 {
        8 + 4 + 32 + 8 * self.tail.len() as u64
    }
}

/// What the fabric is to do after a role handled an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    /// Messages to send, in order.
    pub messages: Vec<(PeerId, Message)>,
    /// Datagrams, which may be lost, duplicated, delayed or reordered; sent after the messages.
    pub datagrams: Vec<(PeerId, Message)>,
    /// Verbs on the role's own node, executed in order before the messages leave.
    pub verbs: Vec<RawVerb>,
    /// Timers to start: (delay in nanoseconds, id passed to `on_timer`).
    pub timers: Vec<(u64, u64)>,
    /// Cache lines fetched from other cores: the cost of the event, charged by the simulator.
    pub lines: u64,
    /// As [`Outbox::lines`], fetched under a lock that the role's threads share.
    pub lines_alone: u64,
}

impl Outbox {
    /// Sends `message` to `to`.
    pub fn send(&mut self, to: PeerId, message: Message) {
        self.messages.push((to, message));
    }

    /// Sends `message` to `to` as a datagram, which may be lost.
    pub fn send_datagram(&mut self, to: PeerId, message: Message) {
        self.datagrams.push((to, message));
    }

    /// Executes `verb` on the role's own node.
    pub fn post(&mut self, verb: RawVerb) {
        self.verbs.push(verb);
    }

    /// Charges `lines` cache lines fetched from other cores. Only the simulator takes note.
    pub fn touch(&mut self, lines: u64) {
        self.lines += lines;
    }

    /// As [`Outbox::touch`], for work under a lock that the role's threads share.
    pub fn touch_alone(&mut self, lines: u64) {
        self.lines_alone += lines;
    }

    /// Calls `on_timer(id)` after `delay_ns`.
    pub fn arm(&mut self, delay_ns: u64, id: u64) {
        self.timers.push((delay_ns, id));
    }
}

/// The server side of a protocol: a state machine without I/O, clock or threads.
///
/// The simulator, the explorer and real servers run the same code. `Clone`, `Eq` and `Hash` let the explorer compare
/// states.
pub trait Role: Clone + Eq + Hash + Debug + Send + 'static {
    /// A message arrived.
    fn on_message(&mut self, now: Time, from: PeerId, message: &Message, out: &mut Outbox);

    /// A timer armed by [`Outbox::arm`] expired.
    fn on_timer(&mut self, now: Time, id: u64, out: &mut Outbox) {
        let _ = (now, id, out);
    }

    /// Whether it wants a message of kind [`Message::DEPARTED`] from every departed client.
    fn wants_departures(&self) -> bool {
        false
    }

    /// Whether it wants a message of kind [`Message::DEPARTED`] from every role that was lost with its node or restarted: for
    /// a role that coordinates recovery.
    fn wants_role_departures(&self) -> bool {
        false
    }

    /// A restart: the role loses its volatile memory. The default loses nothing.
    fn restart(&mut self) {}

    /// Which of the role's thread groups handles `message`. Used by the simulator to model time; never changes the outcome.
    fn thread_group(&self, message: &Message) -> usize {
        let _ = message;
        0
    }
}

/// A boxed role.
#[derive(Debug)]
pub struct BoxedRole(Box<dyn AnyRole>);

trait AnyRole: Debug + Send {
    fn on_message(&mut self, now: Time, from: PeerId, message: &Message, out: &mut Outbox);
    fn on_timer(&mut self, now: Time, id: u64, out: &mut Outbox);
    fn wants_departures(&self) -> bool;
    fn wants_role_departures(&self) -> bool;
    fn restart(&mut self);
    fn thread_group(&self, message: &Message) -> usize;
    fn boxed_clone(&self) -> Box<dyn AnyRole>;
    fn key(&self) -> Vec<u8>;
}

impl<R: Role> AnyRole for R {
    fn on_message(&mut self, now: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        Role::on_message(self, now, from, message, out);
    }
    fn on_timer(&mut self, now: Time, id: u64, out: &mut Outbox) {
        Role::on_timer(self, now, id, out);
    }
    fn wants_departures(&self) -> bool {
        Role::wants_departures(self)
    }
    fn wants_role_departures(&self) -> bool {
        Role::wants_role_departures(self)
    }
    fn restart(&mut self) {
        Role::restart(self);
    }
    fn thread_group(&self, message: &Message) -> usize {
        Role::thread_group(self, message)
    }
    fn boxed_clone(&self) -> Box<dyn AnyRole> {
        Box::new(self.clone())
    }
    fn key(&self) -> Vec<u8> {
        let mut recorder = KeyRecorder(std::any::type_name::<R>().as_bytes().to_vec());
        self.hash(&mut recorder);
        recorder.0
    }
}

impl BoxedRole {
    /// Boxes `role`.
    pub fn new(role: impl Role) -> Self {
        Self(Box::new(role))
    }

    /// See [`Role::on_message`].
    pub fn on_message(&mut self, now: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        self.0.on_message(now, from, message, out);
    }

    /// See [`Role::on_timer`].
    pub fn on_timer(&mut self, now: Time, id: u64, out: &mut Outbox) {
        self.0.on_timer(now, id, out);
    }

    /// See [`Role::wants_departures`].
    pub fn wants_departures(&self) -> bool {
        self.0.wants_departures()
    }

    /// See [`Role::wants_role_departures`].
    pub fn wants_role_departures(&self) -> bool {
        self.0.wants_role_departures()
    }

    /// See [`Role::restart`].
    pub fn restart(&mut self) {
        self.0.restart();
    }

    /// See [`Role::thread_group`].
    pub fn thread_group(&self, message: &Message) -> usize {
        self.0.thread_group(message)
    }

    /// The role's type and all bytes that its `Hash` feeds: equal keys mean equal states.
    pub fn key(&self) -> Vec<u8> {
        self.0.key()
    }
}

impl Clone for BoxedRole {
    fn clone(&self) -> Self {
        Self(self.0.boxed_clone())
    }
}

/// A hasher that keeps every byte it is fed.
struct KeyRecorder(Vec<u8>);

impl Hasher for KeyRecorder {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn finish(&self) -> u64 {
        0
    }
}
