//! What a server knows of a client's session, apart from its connection: a state machine that the explorer runs, too.
//!
//! Messages to the client are numbered and kept until the client acknowledges them, so that a new connection continues
//! where the old one broke. What is kept is bounded by a [`Backlog`]: a client that does not read is lost. Messages from
//! other clients have a bound of their own and are refused beyond it, so one client cannot end another's session.

use crate::addr::PeerId;
use crate::message::Message;
use std::collections::VecDeque;

/// A bound on the messages that a session keeps until its client acknowledges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backlog {
    /// Messages.
    pub messages: usize,
    /// Their bytes on the wire.
    pub bytes: u64,
}

impl Backlog {
    /// Enough for protocols whose clients send to each other: a few small messages per lock and receiver.
    pub const RELAY: Self = Self { messages: 4096, bytes: 1 << 20 };

    const EMPTY: Self = Self { messages: 0, bytes: 0 };

    const fn has_room(self, limit: Self, bytes: u64) -> bool {
        self.messages < limit.messages && self.bytes + bytes <= limit.bytes
    }

    const fn add(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }

    const fn remove(&mut self, bytes: u64) {
        self.messages -= 1;
        self.bytes -= bytes;
    }
}

impl Default for Backlog {
    fn default() -> Self {
        Self { messages: 64 << 10, bytes: 16 << 20 }
    }
}

/// A message that the client may not have received.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unacked {
    /// Who sent it.
    pub from: PeerId,
    /// The message.
    pub message: Message,
    /// Sent by another client of the server.
    relayed: bool,
}

/// Where a broken session differs from what is shipped: all `false`, none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionRules {
    /// A connection continues behind all that was sent, whatever the client has seen.
    pub resumes_at_the_end: bool,
    /// An acknowledgement is taken for all that was sent.
    pub acks_are_of_all: bool,
    /// The end of a connection that was replaced counts as the end of the present one.
    pub old_ends_count: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionState {
    limit: Backlog,
    /// Whether there is a connection.
    connected: bool,
    /// Connections so far: the number of the present or last one.
    connections: u64,
    /// Messages so far.
    sent: u64,
    /// The last of them is message number `sent`.
    unacked: VecDeque<Unacked>,
    backlog: Backlog,
    /// The part of `backlog` that other clients sent.
    relayed: Backlog,
    over: bool,
    /// Where a broken one differs.
    pub rules: SessionRules,
}

impl SessionState {
    /// A session that keeps no more than `limit`.
    pub const fn new(limit: Backlog) -> Self {
        Self {
            limit,
            connected: false,
            connections: 0,
            sent: 0,
            unacked: VecDeque::new(),
            backlog: Backlog::EMPTY,
            relayed: Backlog::EMPTY,
            over: false,
            rules: SessionRules { resumes_at_the_end: false, acks_are_of_all: false, old_ends_count: false },
        }
    }

    /// Whether connection `number` is the present or last one.
    const fn is_last(&self, number: u64) -> bool {
        self.connections == number || self.rules.old_ends_count
    }

    /// Whether it is over.
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// The messages that the client may not have received, with their numbers.
    pub fn unacked(&self) -> impl Iterator<Item = (u64, &Unacked)> {
        (self.sent - self.unacked.len() as u64 + 1..).zip(&self.unacked)
    }

    /// The last of them.
    #[inline]
    pub fn last(&self) -> Option<(u64, &Unacked)> {
        self.unacked.back().map(|last| (self.sent, last))
    }

    /// Drops the messages up to number `seen`.
    fn forget(&mut self, seen: u64) {
        while self.sent - (self.unacked.len() as u64) < seen.min(self.sent) {
            let Unacked { message, relayed, .. } = self.unacked.pop_front().expect("unacked, so still kept");
            let bytes = message.wire_bytes();
            self.backlog.remove(bytes);
            if relayed {
                self.relayed.remove(bytes);
            }
        }
    }

    /// Keeps a message; its number.
    fn keep(&mut self, from: PeerId, message: Message, relayed: bool) -> u64 {
        let bytes = message.wire_bytes();
        self.sent += 1;
        self.backlog.add(bytes);
        if relayed {
            self.relayed.add(bytes);
        }
        self.unacked.push_back(Unacked { from, message, relayed });
        self.sent
    }

    /// A message of a role or of the host is to be sent: its number. `None` if the session is over, as it is from now on if
    /// too many are unacknowledged.
    pub fn deliver(&mut self, from: PeerId, message: Message) -> Option<u64> {
        self.over |= !self.backlog.has_room(self.limit, message.wire_bytes());
        (!self.over).then(|| self.keep(from, message, false))
    }

    /// A message of another client is to be sent: its number. `None`, and nothing else happens, if the unacknowledged ones
    /// have reached `limit` or the session is over.
    pub fn relay(&mut self, from: PeerId, message: Message, limit: Backlog) -> Option<u64> {
        let bytes = message.wire_bytes();
        let has_room = self.relayed.has_room(limit, bytes) && self.backlog.has_room(self.limit, bytes);
        (has_room && !self.over).then(|| self.keep(from, message, true))
    }

    /// The client has received the messages up to number `seen`. `false` if there are not that many.
    pub fn ack(&mut self, seen: u64) -> bool {
        self.forget(if self.rules.acks_are_of_all { self.sent } else { seen });
        seen <= self.sent
    }

    /// A connection continues the session after message `seen`, and gets this number. `None` if the session is over, or there
    /// are not that many messages.
    pub fn resume(&mut self, seen: u64) -> Option<u64> {
        if self.over || seen > self.sent {
            return None;
        }
        self.forget(if self.rules.resumes_at_the_end { self.sent } else { seen });
        self.connections += 1;
        self.connected = true;
        Some(self.connections)
    }

    /// Connection `number` has ended. `None` if another has replaced it, else whether the session can be resumed.
    pub fn detach(&mut self, number: u64) -> Option<bool> {
        if !self.is_last(number) {
            return None;
        }
        self.connected = false;
        Some(!self.over)
    }

    /// Whether the session is to be given up if connection `number` was its last one: its client cannot believe any more that
    /// it goes on. That the connection was closed does not say so.
    pub const fn is_given_up(&self, number: u64, process_ended: bool, lease_over: bool) -> bool {
        self.is_last(number) && !self.connected && (process_ended || lease_over)
    }

    /// Ends the session if connection `number` was its last one; whether it did.
    pub fn end(&mut self, number: u64) -> bool {
        let ends = self.is_last(number) && !self.connected;
        self.over |= ends;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: PeerId = PeerId::client(1);

    fn session(messages: usize) -> SessionState {
        SessionState::new(Backlog { messages, ..Backlog::default() })
    }

    fn message(n: u64) -> Message {
        Message::new(0, 0, &[n])
    }

    /// The numbers and words of what the client may not have received.
    fn kept(session: &SessionState) -> Vec<(u64, u64)> {
        session.unacked().map(|(seq, kept)| (seq, kept.message.words[0])).collect()
    }

    #[test]
    fn a_session_keeps_what_was_not_acknowledged_and_no_more() {
        let mut session = session(10);
        for n in 1..=5 {
            assert_eq!(session.deliver(OTHER, message(10 * n)), Some(n));
        }
        assert!(session.ack(3));
        assert_eq!(kept(&session), [(4, 40), (5, 50)]);
        assert!(session.ack(2), "an old acknowledgement changes nothing");
        assert_eq!(kept(&session).len(), 2);
        assert!(!session.ack(6), "a message that was never sent cannot be acknowledged");
        assert_eq!(session.backlog, Backlog::EMPTY);
    }

    #[test]
    fn a_session_whose_backlog_is_full_is_over() {
        let mut session = session(2);
        assert_eq!(session.resume(0), Some(1));
        assert_eq!([1, 2].map(|n| session.deliver(OTHER, message(n))), [Some(1), Some(2)]);
        assert_eq!(session.deliver(OTHER, message(3)), None);
        session.ack(2);
        assert_eq!(session.deliver(OTHER, message(4)), None, "over is over");
        assert_eq!(session.detach(1), Some(false));
        assert_eq!(session.resume(2), None);
    }

    #[test]
    fn a_session_keeps_no_more_bytes_than_it_may() {
        let bytes = message(1).wire_bytes();
        let mut session = SessionState::new(Backlog { messages: 10, bytes: 2 * bytes });
        assert_eq!([1, 2].map(|n| session.deliver(OTHER, message(n))), [Some(1), Some(2)]);
        session.ack(1);
        assert_eq!(session.deliver(OTHER, message(3)), Some(3), "what was acknowledged does not count");
        assert_eq!(session.deliver(OTHER, message(4)), None);
    }

    #[test]
    fn the_end_of_a_connection_that_was_replaced_is_not_the_sessions() {
        let mut session = session(10);
        assert_eq!(session.resume(0), Some(1));
        session.deliver(OTHER, message(1));
        assert_eq!(session.resume(0), Some(2), "the client comes back before the server has seen it go");
        assert_eq!(kept(&session), [(1, 1)], "and is sent again what it has not seen");
        assert_eq!(session.detach(1), None, "the old connection ends");
        assert!(!session.end(1) && !session.end(2), "the new one is there");
        assert_eq!(session.detach(2), Some(true));
        assert!(!session.end(1), "the grace period of the old connection is over");
        assert_eq!(session.resume(1), Some(3));
        assert!(!session.end(2), "the grace period of a connection before the present one");
        assert_eq!(session.detach(3), Some(true));
        assert!(session.end(3) && session.is_over());
        assert_eq!(session.resume(1), None);
    }

    #[test]
    fn a_client_that_has_seen_more_than_was_sent_is_not_resumed() {
        let mut session = session(10);
        session.deliver(OTHER, message(1));
        assert_eq!(session.resume(2), None);
        assert_eq!(session.resume(1), Some(1));
        assert_eq!(kept(&session), []);
    }

    #[test]
    fn relayed_messages_are_refused_beyond_their_bound_and_never_end_the_session() {
        let (mut session, limit) = (session(3), Backlog { messages: 2, ..Backlog::RELAY });
        assert!([1, 2].iter().all(|n| session.relay(OTHER, message(*n), limit).is_some()));
        assert_eq!(session.relay(OTHER, message(3), limit), None, "the bound of relayed messages");
        assert!(session.deliver(PeerId::role(0), message(4)).is_some());
        session.ack(1);
        assert!(session.relay(OTHER, message(5), limit).is_some());
        session.ack(2);
        assert!(session.deliver(PeerId::role(0), message(6)).is_some());
        assert_eq!(session.relay(OTHER, message(7), limit), None, "the bound of all messages");
        assert_eq!(session.detach(0), Some(true));
        session.ack(5);
        assert_eq!((session.backlog, session.relayed), (Backlog::EMPTY, Backlog::EMPTY));
    }
}
