//! One client's session on the server: what outlives its connection.
//!
//! Messages for the client are numbered and kept until the client says that it has got them, so that a new connection
//! goes on where the old one broke off. What is kept is bounded: a client that lets more pile up is lost.

use super::encode::put_deliver;
use super::frame::SessionId;
use super::outgoing::Outgoing;
use crate::addr::PeerId;
use crate::message::Message;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a session may keep for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Messages.
    pub messages: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl Default for Kept {
    fn default() -> Self {
        Self { messages: 64 << 10, bytes: 16 << 20 }
    }
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: PeerId,
    pub(super) id: SessionId,
    limit: Kept,
    /// Whether its client has said its last word. Held while one is passed on.
    silent: Mutex<bool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The connection, while there is one.
    line: Option<Arc<Outgoing>>,
    /// Connections so far: tells the present one from those before.
    lines: u64,
    /// Messages so far.
    sent: u64,
    /// The messages that the client may not have got, the last of them number `sent`.
    kept: VecDeque<(PeerId, Message)>,
    kept_bytes: u64,
    over: bool,
}

impl State {
    /// Forgets the messages up to number `seen`.
    fn forget(&mut self, seen: u64) {
        while self.sent - (self.kept.len() as u64) < seen.min(self.sent) {
            let (_, message) = self.kept.pop_front().expect("more is kept than was seen");
            self.kept_bytes -= message.wire_bytes();
        }
    }
}

impl Session {
    pub(super) fn new(peer: PeerId, id: SessionId, limit: Kept) -> Self {
        Self { peer, id, limit, silent: Mutex::default(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `pass_on` pass on what the client says; `false` if its last word was said. A connection that was replaced
    /// may still have something in its hands when the session ends.
    pub(super) fn say(&self, pass_on: impl FnOnce() -> bool) -> bool {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        !*silent && pass_on()
    }

    /// As [`Session::say`], for the last time.
    pub(super) fn say_last(&self, pass_on: impl FnOnce()) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        *silent = true;
        pass_on();
    }

    /// Keeps a message for the client and sends it if there is a connection. `false` if the session is over.
    pub(super) fn deliver(&self, from: PeerId, message: Message) -> bool {
        let mut state = self.state();
        if state.over {
            return false;
        }
        let bytes = message.wire_bytes();
        if state.kept.len() >= self.limit.messages || state.kept_bytes + bytes > self.limit.bytes {
            state.over = true;
            // The connection ends, and with it, at once, the session.
            if let Some(line) = &state.line {
                line.close();
            }
            return false;
        }
        state.sent += 1;
        if let Some(line) = &state.line {
            // A line that was closed is about to be taken away; the message stays for the next one.
            line.pass_on(|out| put_deliver(out, state.sent, from, &message));
        }
        state.kept_bytes += bytes;
        state.kept.push_back((from, message));
        true
    }

    /// The client has got the messages up to number `seen`. `false` if there are not that many.
    pub(super) fn ack(&self, seen: u64) -> bool {
        let mut state = self.state();
        state.forget(seen);
        seen <= state.sent
    }

    /// Lets the session go on over `line`: `greet`, then everything after message `seen`. Returns the connection's
    /// number and the connection that it replaces; `None` if the session is over.
    pub(super) fn resume(
        &self,
        line: &Arc<Outgoing>,
        seen: u64,
        greet: impl FnOnce(&mut Vec<u8>),
    ) -> Option<(u64, Option<Arc<Outgoing>>)> {
        let mut state = self.state();
        if state.over || seen > state.sent {
            return None;
        }
        state.forget(seen);
        let first = state.sent - state.kept.len() as u64 + 1;
        line.cork();
        line.push(greet);
        for (seq, (from, message)) in (first..).zip(&state.kept) {
            line.push(|out| put_deliver(out, seq, *from, message));
        }
        line.uncork();
        state.lines += 1;
        let replaced = state.line.replace(Arc::clone(line));
        Some((state.lines, replaced))
    }

    /// Connection `number` is gone. `None` if another has taken its place, else whether the session can wait for one.
    pub(super) fn hang_up(&self, number: u64) -> Option<bool> {
        let mut state = self.state();
        if state.lines != number {
            return None;
        }
        state.line = None;
        Some(!state.over)
    }

    /// Ends the session if connection `number` is still the last one. Whether it did.
    pub(super) fn end(&self, number: u64) -> bool {
        let mut state = self.state();
        let ends = state.lines == number && state.line.is_none();
        state.over |= ends;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(messages: usize) -> Session {
        Session::new(PeerId::client(0), [1; 16], Kept { messages, ..Kept::default() })
    }

    fn letter(n: u64) -> Message {
        Message::new(0, 0, &[n])
    }

    #[test]
    fn a_session_keeps_what_was_not_acknowledged_and_no_more() {
        let session = session(10);
        for n in 1..=5 {
            assert!(session.deliver(PeerId::client(1), letter(n)));
        }
        assert!(session.ack(3));
        let numbers: Vec<_> = session.state().kept.iter().map(|(_, message)| message.words[0]).collect();
        assert_eq!(numbers, [4, 5]);
        assert!(session.ack(2), "an old acknowledgement changes nothing");
        assert_eq!(session.state().kept.len(), 2);
        assert!(!session.ack(6), "nobody has got what was never sent");
        assert_eq!(session.state().kept_bytes, 0);
    }

    #[test]
    fn a_session_that_lets_messages_pile_up_is_over() {
        let session = session(2);
        assert!(session.deliver(PeerId::client(1), letter(1)));
        assert!(session.deliver(PeerId::client(1), letter(2)));
        assert!(!session.deliver(PeerId::client(1), letter(3)));
        session.ack(2);
        assert!(!session.deliver(PeerId::client(1), letter(4)), "over is over");
        assert_eq!(session.hang_up(0), Some(false));
    }
}
