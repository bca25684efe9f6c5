//! One client's session on the server: what outlives its connection.
//!
//! Messages to the client are numbered and kept until the client acknowledges them, so that a new connection continues
//! where the old one broke. What is kept is bounded by a [`Backlog`]: a client that does not read is lost. Messages from
//! other clients have a bound of their own and are refused beyond it, so one client cannot end another's session.

use super::encode::put_deliver;
use super::frame::SessionId;
use super::outgoing::Outgoing;
use crate::addr::PeerId;
use crate::message::Message;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bound on the messages that a session keeps until its client acknowledges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// See the module.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: PeerId,
    pub(super) id: SessionId,
    limit: Backlog,
    /// Whether the client's last message was forwarded. Locked while one is.
    finished: Mutex<bool>,
    state: Mutex<State>,
}

/// A message that the client may not have received.
#[derive(Debug)]
struct Unacked {
    from: PeerId,
    message: Message,
    /// Sent by another client of the server.
    relayed: bool,
}

#[derive(Debug)]
struct State {
    /// The present connection.
    connection: Option<Arc<Outgoing>>,
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
}

impl State {
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

    /// Keeps a message, and sends it if there is a connection.
    fn push(&mut self, from: PeerId, message: Message, relayed: bool) {
        let bytes = message.wire_bytes();
        self.sent += 1;
        if let Some(connection) = &self.connection {
            // If the connection was closed, the message stays for the next one.
            connection.push_coalesced(|out| put_deliver(out, self.sent, from, &message));
        }
        self.backlog.add(bytes);
        if relayed {
            self.relayed.add(bytes);
        }
        self.unacked.push_back(Unacked { from, message, relayed });
    }
}

impl Session {
    pub(super) fn new(peer: PeerId, id: SessionId, limit: Backlog) -> Self {
        let state = State {
            connection: None,
            connections: 0,
            sent: 0,
            unacked: VecDeque::new(),
            backlog: Backlog::EMPTY,
            relayed: Backlog::EMPTY,
            over: false,
        };
        Self { peer, id, limit, finished: Mutex::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `forward`, which forwards a message of the client; `false` if the last one was forwarded already. (A
    /// connection that was replaced may still have frames in its buffer when the session ends.)
    pub(super) fn send(&self, forward: impl FnOnce() -> bool) -> bool {
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        !*finished && forward()
    }

    /// As [`Session::send`], for the last time.
    pub(super) fn send_last(&self, forward: impl FnOnce()) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        *finished = true;
        forward();
    }

    /// Sends the client a message of a role or of the host. A full backlog ends the session. `false` if it is over.
    pub(super) fn deliver(&self, from: PeerId, message: Message) -> bool {
        let mut state = self.state();
        if state.over {
            return false;
        }
        if !state.backlog.has_room(self.limit, message.wire_bytes()) {
            state.over = true;
            // The connection ends, and with it, at once, the session.
            if let Some(connection) = &state.connection {
                connection.close();
            }
            return false;
        }
        state.push(from, message, false);
        true
    }

    /// Sends the client a message of another client. `false`, and nothing else happens, if the unacknowledged ones have
    /// reached `limit` or the session is over.
    pub(super) fn relay(&self, from: PeerId, message: Message, limit: Backlog) -> bool {
        let mut state = self.state();
        let bytes = message.wire_bytes();
        if state.over || !state.relayed.has_room(limit, bytes) || !state.backlog.has_room(self.limit, bytes) {
            return false;
        }
        state.push(from, message, true);
        true
    }

    /// The client has received the messages up to number `seen`. `false` if there are not that many.
    pub(super) fn ack(&self, seen: u64) -> bool {
        let mut state = self.state();
        state.forget(seen);
        seen <= state.sent
    }

    /// Continues the session on `connection`: `greet`, then everything after message `seen`. Returns the connection's
    /// number and the connection that it replaces; `None` if the session is over.
    pub(super) fn resume(
        &self,
        connection: &Arc<Outgoing>,
        seen: u64,
        greet: impl FnOnce(&mut Vec<u8>),
    ) -> Option<(u64, Option<Arc<Outgoing>>)> {
        let mut state = self.state();
        if state.over || seen > state.sent {
            return None;
        }
        state.forget(seen);
        let first = state.sent - state.unacked.len() as u64 + 1;
        connection.cork();
        connection.push(greet);
        for (seq, Unacked { from, message, .. }) in (first..).zip(&state.unacked) {
            connection.push(|out| put_deliver(out, seq, *from, message));
        }
        connection.uncork();
        state.connections += 1;
        let replaced = state.connection.replace(Arc::clone(connection));
        Some((state.connections, replaced))
    }

    /// Connection `number` has ended. `None` if another has replaced it, else whether the session can be resumed.
    pub(super) fn detach(&self, number: u64) -> Option<bool> {
        let mut state = self.state();
        if state.connections != number {
            return None;
        }
        state.connection = None;
        Some(!state.over)
    }

    /// Ends the session if connection `number` was its last one; whether it did.
    pub(super) fn end(&self, number: u64) -> bool {
        let mut state = self.state();
        let ends = state.connections == number && state.connection.is_none();
        state.over |= ends;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: PeerId = PeerId::client(1);

    fn session(messages: usize) -> Session {
        Session::new(PeerId::client(0), [1; 16], Backlog { messages, ..Backlog::default() })
    }

    fn message(n: u64) -> Message {
        Message::new(0, 0, &[n])
    }

    #[test]
    fn a_session_keeps_what_was_not_acknowledged_and_no_more() {
        let session = session(10);
        for n in 1..=5 {
            assert!(session.deliver(OTHER, message(n)));
        }
        assert!(session.ack(3));
        let numbers: Vec<_> = session.state().unacked.iter().map(|kept| kept.message.words[0]).collect();
        assert_eq!(numbers, [4, 5]);
        assert!(session.ack(2), "an old acknowledgement changes nothing");
        assert_eq!(session.state().unacked.len(), 2);
        assert!(!session.ack(6), "a message that was never sent cannot be acknowledged");
        assert_eq!(session.state().backlog, Backlog::EMPTY);
    }

    #[test]
    fn a_session_whose_backlog_is_full_is_over() {
        let session = session(2);
        assert!(session.deliver(OTHER, message(1)));
        assert!(session.deliver(OTHER, message(2)));
        assert!(!session.deliver(OTHER, message(3)));
        session.ack(2);
        assert!(!session.deliver(OTHER, message(4)), "over is over");
        assert_eq!(session.detach(0), Some(false));
    }

    #[test]
    fn relayed_messages_are_refused_beyond_their_bound_and_never_end_the_session() {
        let (session, limit) = (session(3), Backlog { messages: 2, ..Backlog::RELAY });
        assert!(session.relay(OTHER, message(1), limit) && session.relay(OTHER, message(2), limit));
        assert!(!session.relay(OTHER, message(3), limit), "the bound of relayed messages");
        assert!(session.deliver(PeerId::role(0), message(4)));
        session.ack(1);
        assert!(session.relay(OTHER, message(5), limit));
        session.ack(2);
        assert!(session.deliver(PeerId::role(0), message(6)));
        assert!(!session.relay(OTHER, message(7), limit), "the bound of all messages");
        assert_eq!(session.detach(0), Some(true));
        session.ack(5);
        let state = session.state();
        assert_eq!((state.backlog, state.relayed), (Backlog::EMPTY, Backlog::EMPTY));
    }
}
