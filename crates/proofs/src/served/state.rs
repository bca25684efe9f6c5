//! The state of a server, its clients and their connections, and what becomes of it when sessions begin, go on and end.

use super::client::{Client, Life};
use super::connection::{Connection, Frame};
use super::model::Faults;
use super::values::Value;
use lockwright::internal::Origin;
use lockwright_fabric::backend::tcp::{Backlog, SessionRules, SessionState};
use lockwright_server::{Journal, Machine};
use lockwright_sim::model::Part;
use std::collections::BTreeMap;

/// A session, as the server has it.
#[derive(Clone, Debug, Hash)]
pub(super) struct Host {
    pub(super) client: usize,
    /// Its number in the lock table.
    pub(super) number: u32,
    pub(super) state: SessionState,
    /// Its present or last connection.
    pub(super) connection: u64,
    pub(super) connected: bool,
}

/// A server that runs.
#[derive(Clone, Debug, Hash)]
pub(super) struct Server {
    pub(super) machine: Part<Machine>,
    /// By id.
    pub(super) sessions: Part<BTreeMap<u64, Host>>,
}

/// Everything.
#[derive(Clone, Debug, Hash)]
pub struct State {
    pub(super) server: Option<Server>,
    pub(super) disk: Part<Journal>,
    pub(super) sessions: u64,
    pub(super) clients: Vec<Part<Client>>,
    pub(super) connections: Vec<Part<Connection>>,
    pub(super) left: Faults,
    /// By unit: the highest token of a writer, and of any holder.
    pub(super) tokens: Vec<(u64, u64)>,
    /// The value of the lock, as it should be.
    pub(super) value: Value,
}

/// When every run begins: a clock that stands still, so that nothing but the disk makes tokens rise.
pub(super) const NOW: u64 = 1;
pub(super) const NO_SERVER: &str = "only a server that runs does anything";

impl State {
    /// The connections of a client, by number.
    pub(super) fn connection(&mut self, client: usize, nth: usize) -> &mut Connection {
        let mut connections = self.connections.iter_mut().filter(|connection| connection.client == client);
        connections.nth(nth).expect("it was listed")
    }

    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, usize, &Connection)> {
        let mut counts = vec![0; self.clients.len()];
        self.connections.iter().map(move |connection| {
            let nth = counts[connection.client];
            counts[connection.client] += 1;
            (connection.client, nth, &**connection)
        })
    }

    /// The connection that a client believes to have.
    pub(super) fn believed(&mut self, client: usize) -> Option<&mut Connection> {
        let is_it = |it: &&mut Part<Connection>| it.client == client && it.open_at_client;
        self.connections.iter_mut().find(is_it).map(|connection| &mut **connection)
    }

    pub(super) fn has_connection(&self, client: usize) -> bool {
        self.connections.iter().any(|connection| connection.client == client && connection.open_at_client)
    }

    /// Sends what clients have said, if they have connections; if not, it is said again over the next one.
    pub(super) fn send(&mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].said.is_empty() {
                continue;
            }
            let said = std::mem::take(&mut self.clients[client].said);
            if let Some(connection) = self.believed(client) {
                connection.to_server.extend(said.into_iter().map(Frame::Message));
            }
        }
    }

    /// Passes on what the lock table said.
    pub(super) fn route(&mut self) {
        let Some(server) = self.server.as_mut().filter(|server| server.machine.has_sent()) else { return };
        for (number, message) in server.machine.take_sent() {
            let host = server.sessions.iter_mut().find(|(_, host)| host.number == number);
            let Some((id, host)) = host else { continue };
            let Some(seq) = host.state.deliver(lockwright::wire::SERVER, message.clone()) else { continue };
            let present = self.connections.iter_mut().find(|connection| {
                connection.session == *id && connection.number == host.connection && connection.open_at_server
            });
            if let Some(connection) = present {
                connection.to_client.push_back((seq, message));
            }
        }
    }

    /// The server no longer has this connection.
    pub(super) fn detach(&mut self, client: usize, nth: usize) {
        let connection = self.connection(client, nth);
        connection.open_at_server = false;
        let (session, number) = (connection.session, connection.number);
        let Some(server) = &mut self.server else { return };
        if let Some(host) = server.sessions.get_mut(&session)
            && host.state.detach(number).is_some()
        {
            host.connected = false;
        }
    }

    /// Connections that both ends have forgotten.
    pub(super) fn sweep(&mut self) {
        self.connections.retain(|connection| connection.open_at_client || connection.open_at_server);
        for connection in &mut self.connections {
            // What nobody will read.
            if !connection.open_at_client && !connection.to_client.is_empty() {
                connection.to_client.clear();
                connection.stale = 0;
            }
            if !connection.open_at_server && !connection.to_server.is_empty() {
                connection.to_server.clear();
            }
        }
    }

    /// The client has looked at what its session has become.
    pub(super) fn resume(&mut self, client: usize) {
        let session = self.clients[client].session.as_mut().expect("only a session is resumed");
        let seen = session.received.acknowledge();
        let session = *session;
        let server = self.server.as_mut().expect(NO_SERVER);
        let resumed = server.sessions.get_mut(&session.id).and_then(|host| {
            let number = host.state.resume(seen)?;
            let replaced = std::mem::replace(&mut host.connection, number);
            host.connected = true;
            let again: Vec<_> =
                host.state.unacked().map(|(seq, unacked)| (seq, unacked.message.clone())).collect();
            Some((number, replaced, again))
        });
        let Some((number, replaced, again)) = resumed else {
            // It is not known any more: over, or of an earlier run.
            return self.clients[client].end();
        };
        for connection in &mut self.connections {
            if connection.session == session.id && connection.number == replaced {
                connection.open_at_server = false;
            }
        }
        let mut connection = Connection::new(client, session.id, number);
        connection.to_client.extend(again);
        let unacked = self.clients[client].table.unacked().cloned();
        connection.to_server.extend(unacked.map(Frame::Message));
        self.connections.push(Part::new(connection));
        self.clients[client].expired = false;
    }

    pub(super) fn begin(&mut self, client: usize, rules: SessionRules) {
        self.sessions += 1;
        let (id, server) = (self.sessions, self.server.as_mut().expect(NO_SERVER));
        let number = server.machine.admit().expect("there is room");
        let mut state = SessionState::new(Backlog::default());
        state.rules = rules;
        let connection = state.resume(0).expect("it is new");
        server.sessions.insert(id, Host { client, number, state, connection, connected: true });
        let origin = Origin { epoch: server.machine.epoch(), key: u128::from(id) };
        self.clients[client].begin(id, origin);
        self.connections.push(Part::new(Connection::new(client, id, connection)));
    }

    /// The server is gone, and every connection is over; the clients do not know yet.
    pub(super) fn kill_server(&mut self) {
        if let Some(server) = self.server.take() {
            self.disk = Part::new(server.machine.journal().after_death());
        }
        for connection in self.connections.iter_mut().filter(|connection| connection.open_at_server) {
            connection.open_at_server = false;
        }
    }

    /// Whether every living client that can still believe to hold what an earlier run granted has said so.
    pub(super) fn all_have_claimed(&self) -> bool {
        let server = self.server.as_ref().expect(NO_SERVER);
        self.clients.iter().enumerate().all(|(at, client)| {
            let unread = |it: &Part<Connection>| it.client == at && !it.to_server.is_empty();
            let is_here = |it: &Part<Connection>| it.client == at && it.open_at_client && it.open_at_server;
            let heard = match client.session {
                Some(session) if server.sessions.contains_key(&session.id) => {
                    // What was said over a connection that broke will be said again.
                    let is_said = !client.awaits_claims() || self.connections.iter().any(is_here);
                    client.claims_late || is_said && !self.connections.iter().any(unread)
                }
                Some(_) => false,
                None => client.holds.is_none(),
            };
            client.life != Life::Runs || client.expired || heard
        })
    }
}
