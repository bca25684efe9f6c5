//! Message routing: to sessions, to roles, and to the peers that the host knows.

use super::auth::random_bytes;
use super::frame::SessionId;
use super::host::{Inbox, SessionEnd, VerbHost};
use super::roles::RoleRunner;
use super::server::ServerOptions;
use super::session::Session;
use crate::addr::PeerId;
use crate::message::{BoxedRole, Message};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// What the connections of a server share.
#[derive(Debug)]
pub(super) struct Router<H> {
    pub(super) host: Arc<H>,
    pub(super) options: ServerOptions,
    /// This run of the server.
    pub(super) epoch: u64,
    roles: Vec<Arc<RoleRunner>>,
    sessions: RwLock<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_peer: HashMap<PeerId, Arc<Session>>,
    by_id: HashMap<SessionId, Arc<Session>>,
}

impl<H: VerbHost> Router<H> {
    pub(super) fn new(host: Arc<H>, roles: Vec<BoxedRole>, options: ServerOptions, epoch: u64) -> Arc<Self> {
        let roles = roles.into_iter().enumerate().map(|(index, role)| Arc::new(RoleRunner::new(index, role)));
        let router =
            Arc::new(Self { host, options, epoch, roles: roles.collect(), sessions: RwLock::default() });
        for (index, role) in router.roles.iter().enumerate() {
            let (role, weak) = (Arc::downgrade(role), Arc::downgrade(&router));
            let inbox = Inbox::new(move |from, message| match (role.upgrade(), weak.upgrade()) {
                (Some(role), Some(router)) => role.deliver(&router, from, message),
                _ => false,
            });
            router.host.attach(PeerId::role(index), inbox);
        }
        router
    }

    /// Delivers a message of a role; `false` if there is no such peer.
    pub(super) fn deliver(self: &Arc<Self>, from: PeerId, to: PeerId, message: Message) -> bool {
        if let (index, true) = to.index()
            && let Some(role) = self.roles.get(index)
        {
            return role.deliver(self, from, message);
        }
        match self.session_of(to) {
            Some(session) => session.deliver(from, message),
            None => self.host.deliver(from, to, &message),
        }
    }

    /// Delivers a message of a client; `false` if there is no such peer, or it is a client and the host does not relay.
    pub(super) fn forward(self: &Arc<Self>, from: PeerId, to: PeerId, message: Message) -> bool {
        let is_role = to.index().1;
        match if is_role { None } else { self.session_of(to) } {
            Some(session) => self.host.relay().is_some_and(|limit| session.relay(from, message, limit)),
            None => self.deliver(from, to, message),
        }
    }

    fn session_of(&self, peer: PeerId) -> Option<Arc<Session>> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner).by_peer.get(&peer).cloned()
    }

    /// The session with this id.
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
        let session = Arc::new(Session::new(peer, random_bytes(), self.options.backlog));
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
            // After everything that the client sent, and before the host may reuse its id.
            session.send_last(|| {
                for role in &self.roles {
                    role.deliver(self, session.peer, Message::new(0, Message::DEPARTED, &[]));
                }
            });
            self.host.on_session_lost(session.peer, how);
        }
    }
}
