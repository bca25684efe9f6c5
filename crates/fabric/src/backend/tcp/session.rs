//! One client's session on the server: what outlives its connection.
//!
//! [`SessionState`] is the state machine, without connections and without locks of its own; the explorer runs it. [`Session`] is
//! that and the present connection.

use super::encode::put_deliver;
use super::frame::SessionId;
use super::outgoing::Outgoing;
use super::session_state::{Backlog, SessionState, Unacked};
use crate::addr::PeerId;
use crate::message::Message;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: PeerId,
    pub(super) id: SessionId,
    /// Whether the client's last message was forwarded. Locked while one is.
    finished: Mutex<bool>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: SessionState,
    connection: Option<Arc<Outgoing>>,
}

impl Inner {
    /// Sends the last message if there is a connection. If that was closed, the message stays for the next one.
    fn send_last(&self) {
        if let (Some(connection), Some((seq, last))) = (&self.connection, self.state.last()) {
            connection.push_coalesced(|out| put_deliver(out, seq, last.from, &last.message));
        }
    }
}

impl Session {
    pub(super) fn new(peer: PeerId, id: SessionId, limit: Backlog) -> Self {
        let inner = Inner { state: SessionState::new(limit), connection: None };
        Self { peer, id, finished: Mutex::default(), inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut inner = self.inner();
        if inner.state.is_over() {
            return false;
        }
        if inner.state.deliver(from, message).is_some() {
            inner.send_last();
            return true;
        }
        // The connection ends, and with it, at once, the session.
        if let Some(connection) = &inner.connection {
            connection.close();
        }
        false
    }

    /// Sends the client a message of another client. `false`, and nothing else happens, if the unacknowledged ones have
    /// reached `limit` or the session is over.
    pub(super) fn relay(&self, from: PeerId, message: Message, limit: Backlog) -> bool {
        let mut inner = self.inner();
        let relayed = inner.state.relay(from, message, limit).is_some();
        if relayed {
            inner.send_last();
        }
        relayed
    }

    /// The client has received the messages up to number `seen`. `false` if there are not that many.
    pub(super) fn ack(&self, seen: u64) -> bool {
        self.inner().state.ack(seen)
    }

    /// Continues the session on `connection`: `greet`, then everything after message `seen`. Returns the connection's
    /// number and the connection that it replaces; `None` if the session is over.
    pub(super) fn resume(
        &self,
        connection: &Arc<Outgoing>,
        seen: u64,
        greet: impl FnOnce(&mut Vec<u8>),
    ) -> Option<(u64, Option<Arc<Outgoing>>)> {
        let mut inner = self.inner();
        let number = inner.state.resume(seen)?;
        connection.cork();
        connection.push(greet);
        for (seq, Unacked { from, message, .. }) in inner.state.unacked() {
            connection.push(|out| put_deliver(out, seq, *from, message));
        }
        connection.uncork();
        Some((number, inner.connection.replace(Arc::clone(connection))))
    }

    /// Connection `number` has ended. `None` if another has replaced it, else whether the session can be resumed.
    pub(super) fn detach(&self, number: u64) -> Option<bool> {
        let mut inner = self.inner();
        let can_resume = inner.state.detach(number)?;
        inner.connection = None;
        Some(can_resume)
    }

    /// Whether the session is to be given up: see [`SessionState::is_given_up`].
    pub(super) fn is_given_up(&self, number: u64, process_ended: bool, lease_over: bool) -> bool {
        self.inner().state.is_given_up(number, process_ended, lease_over)
    }

    /// Ends the session if connection `number` was its last one; whether it did.
    pub(super) fn end(&self, number: u64) -> bool {
        self.inner().state.end(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_forwarded_after_the_last_message_whatever_a_replaced_connection_still_has() {
        let session = Session::new(PeerId(1), [0; 16], Backlog::RELAY);
        let mut forwarded = Vec::new();
        assert!(session.send(|| {
            forwarded.push("first");
            true
        }));
        session.send_last(|| forwarded.push("last"));
        assert!(!session.send(|| {
            forwarded.push("late");
            true
        }));
        assert_eq!(forwarded, ["first", "last"]);
    }
}
