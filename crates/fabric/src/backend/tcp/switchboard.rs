//! Who is reached how: sessions, roles, and the peers that the host knows by itself.

use super::auth::random_bytes;
use super::frame::SessionId;
use super::host::{Inbox, SessionEnd, VerbHost};
use super::roles::Seat;
use super::server::ServerOptions;
use super::session::Session;
use crate::addr::PeerId;
use crate::message::{BoxedRole, Message};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// What the connections of a server share.
#[derive(Debug)]
pub(super) struct Switchboard<H> {
    pub(super) host: Arc<H>,
    pub(super) options: ServerOptions,
    /// This run of the server.
    pub(super) epoch: u64,
    roles: Vec<Arc<Seat>>,
    sessions: RwLock<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_peer: HashMap<PeerId, Arc<Session>>,
    by_id: HashMap<SessionId, Arc<Session>>,
}

impl<H: VerbHost> Switchboard<H> {
    pub(super) fn new(host: Arc<H>, roles: Vec<BoxedRole>, options: ServerOptions, epoch: u64) -> Arc<Self> {
        let roles = roles.into_iter().enumerate().map(|(index, role)| Arc::new(Seat::new(index, role)));
        let board = Self { host, options, epoch, roles: roles.collect(), sessions: RwLock::default() };
        let board = Arc::new(board);
        for (index, seat) in board.roles.iter().enumerate() {
            let (seat, weak) = (Arc::downgrade(seat), Arc::downgrade(&board));
            let inbox = Inbox::new(move |from, message| match (seat.upgrade(), weak.upgrade()) {
                (Some(seat), Some(board)) => seat.deliver(&board, from, message),
                _ => false,
            });
            board.host.attach(PeerId::role(index), inbox);
        }
        board
    }

    /// Passes a message on. `false` if there is nobody to get it.
    pub(super) fn post(self: &Arc<Self>, from: PeerId, to: PeerId, message: Message) -> bool {
        if let (index, true) = to.index()
            && let Some(seat) = self.roles.get(index)
        {
            return seat.deliver(self, from, message);
        }
        match self.session_of(to) {
            Some(session) => session.deliver(from, message),
            None => self.host.deliver(from, to, &message),
        }
    }

    fn session_of(&self, peer: PeerId) -> Option<Arc<Session>> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).by_peer.get(&peer).cloned()
    }

    /// The session with this name.
    pub(super) fn session(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).by_id.get(id).cloned()
    }

    /// A new session, unless the server or its host is full.
    pub(super) fn open(&self, name: &str) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        if sessions.by_id.len() >= self.options.max_sessions {
            return None;
        }
        let peer = self.host.admit(name)?;
        let session = Arc::new(Session::new(peer, random_bytes(), self.options.kept));
        sessions.by_peer.insert(peer, Arc::clone(&session));
        sessions.by_id.insert(session.id, Arc::clone(&session));
        drop(sessions);
        let weak = Arc::downgrade(&session);
        let put = move |from, message| weak.upgrade().is_some_and(|session| session.deliver(from, message));
        self.host.attach(peer, Inbox::new(put));
        Some(session)
    }

    /// Ends `session` if connection `number` was its last, and tells the roles and the host.
    pub(super) fn end(self: &Arc<Self>, session: &Session, number: u64, how: SessionEnd) {
        if !session.end(number) {
            return;
        }
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        let known = sessions.by_id.remove(&session.id).is_some();
        sessions.by_peer.remove(&session.peer);
        drop(sessions);
        if known {
            // Behind everything the client sent, and before the host may give its number to somebody else.
            session.say_last(|| {
                for seat in &self.roles {
                    seat.deliver(self, session.peer, Message::new(0, Message::DEPARTED, &[]));
                }
            });
            self.host.on_session_lost(session.peer, how);
        }
    }
}
