//! Messages between peers, and the server-side roles that answer them.

use crate::addr::PeerId;
use crate::verb::RawVerb;
use crate::wait::Time;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

/// A message: which lock it is about, what kind it is, and its words.
///
/// Protocols turn their own message types into this and back; `recv` filters on `(lock, kind)`, since one
/// client can wait for several locks at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Message {
    /// The lock (or whatever the protocol keys its messages by).
    pub lock: u64,
    /// The protocol's own number for the kind of message.
    pub kind: u32,
    /// Fixed payload.
    pub words: [u64; 4],
    /// Payload of variable length; empty (and then free) for most protocols.
    pub tail: Vec<u64>,
}

impl Message {
    /// The kind of the message that a role finds from a peer that is gone, after everything that peer sent: its
    /// connection was closed, or whoever watches over it gave it up. Only for roles that hear of departures.
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

/// What a role wants done after it handled an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    /// Messages to send, in order.
    pub messages: Vec<(PeerId, Message)>,
    /// Packets that may be lost, doubled, delayed or overtaken, sent after the messages.
    pub datagrams: Vec<(PeerId, Message)>,
    /// Verbs on the role's own node, executed in order before the messages leave.
    pub verbs: Vec<RawVerb>,
    /// Timers to start: (delay in nanoseconds, id given back to `on_timer`).
    pub timers: Vec<(u64, u64)>,
    /// Cache lines that were fetched from other cores on the way: what the event cost, for fabrics that charge for it.
    pub lines: u64,
    /// As [`Outbox::lines`], under a lock that the role's threads share: one of them at a time.
    pub lines_alone: u64,
}

impl Outbox {
    /// Sends `message` to `to`.
    pub fn send(&mut self, to: PeerId, message: Message) {
        self.messages.push((to, message));
    }

    /// Sends `message` to `to` as a packet that may not arrive.
    pub fn send_datagram(&mut self, to: PeerId, message: Message) {
        self.datagrams.push((to, message));
    }

    /// Executes `verb` on the role's own node.
    pub fn post(&mut self, verb: RawVerb) {
        self.verbs.push(verb);
    }

    /// Says that `lines` cache lines had to be fetched from other cores. Only the simulator takes note.
    pub fn touch(&mut self, lines: u64) {
        self.lines += lines;
    }

    /// As [`Outbox::touch`], for work that the role's threads do one after the other.
    pub fn touch_alone(&mut self, lines: u64) {
        self.lines_alone += lines;
    }

    /// Calls `on_timer(id)` after `delay_ns`.
    pub fn arm(&mut self, delay_ns: u64, id: u64) {
        self.timers.push((delay_ns, id));
    }
}

/// A server-side part of a protocol: a plain state machine without I/O, time or threads of its own.
///
/// The simulator, the explorer and real server loops drive the same code. `Clone`, `Eq` and `Hash` let the
/// explorer keep its states apart.
pub trait Role: Clone + Eq + Hash + Debug + Send + 'static {
    /// A message arrived.
    fn on_message(&mut self, now: Time, from: PeerId, message: &Message, out: &mut Outbox);

    /// A timer that was armed by `Outbox::arm` ran out.
    fn on_timer(&mut self, now: Time, id: u64, out: &mut Outbox) {
        let _ = (now, id, out);
    }

    /// Whether it wants a message of kind [`Message::DEPARTED`] from every peer that is gone.
    fn wants_departures(&self) -> bool {
        false
    }

    /// Whether it wants a message of kind [`Message::DEPARTED`] from every role that is lost with its node, or was
    /// restarted: for whoever has to put things right then.
    fn wants_role_departures(&self) -> bool {
        false
    }

    /// Its power was cut and is back: what it kept in volatile memory is gone. A role that loses nothing by that has
    /// nothing to do here.
    fn restart(&mut self) {}

    /// Which of its groups of threads takes `message`, where whoever drives it has several: a model of time, never a
    /// matter of what happens.
    fn thread_group(&self, message: &Message) -> usize {
        let _ = message;
        0
    }
}

/// Any role, boxed: what a protocol hands to whoever drives its server side.
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

    /// The role's type and everything its `Hash` covers, byte for byte: two roles with one key are the same state.
    pub fn key(&self) -> Vec<u8> {
        self.0.key()
    }
}

impl Clone for BoxedRole {
    fn clone(&self) -> Self {
        Self(self.0.boxed_clone())
    }
}

/// Not a hash: keeps every byte it is fed, so that equal records mean equal states.
struct KeyRecorder(Vec<u8>);

impl Hasher for KeyRecorder {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn finish(&self) -> u64 {
        0
    }
}
