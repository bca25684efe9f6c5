//! A client's queue pairs to other clients, connected on first use.
//!
//! A client that writes to many others keeps at most [`RdmaOptions::max_peers`](super::RdmaOptions::max_peers) connections
//! of its own making: the least recently used one is closed for a new one. So N clients make at most N × `max_peers`
//! connections, however many pairs of them ever talk. A connection that fails is closed, and the next message makes another.

use super::client::Client;
use super::connection::Connection;
use super::control::Frame;
use super::device::DeviceError;
use super::event_loop::EventLoop;
use super::incoming::Incoming;
use super::queue_pair::{QueuePair, QueuePairInfo};
use crate::addr::PeerId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PeerConnections(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    outgoing: HashMap<PeerId, Peer>,
    /// Queue pairs that others made to this client.
    accepted: HashMap<PeerId, QueuePair>,
    turn: u64,
}

#[derive(Debug)]
enum Peer {
    Connecting { pair: QueuePair, waiting: Vec<Waker> },
    Connected { connection: Arc<Connection>, used: u64 },
    ViaHost,
    Unreachable,
}

/// How messages reach a peer.
pub(super) enum Route {
    Host,
    Direct(Arc<Connection>),
}

/// What came of a connect request.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectReply {
    Accepted(QueuePairInfo),
    ViaHost,
    Unreachable,
}

impl PeerConnections {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes all of them.
    pub(super) fn close(&self) {
        let state = std::mem::take(&mut self.state().outgoing);
        for peer_state in state.into_values() {
            match peer_state {
                Peer::Connecting { waiting, .. } => waiting.into_iter().for_each(Waker::wake),
                Peer::Connected { connection, .. } => connection.close(),
                Peer::ViaHost | Peer::Unreachable => {}
            }
        }
    }

    /// The peer has closed its connection to this client.
    pub(super) fn closed_by_peer(&self, peer: PeerId, incoming: &Incoming) {
        if let Some(pair) = self.state().accepted.remove(&peer) {
            incoming.remove_sender(pair.info.number);
        }
    }

    /// A message did not get through: the next one goes over another connection.
    pub(super) fn close_failed(&self, peer: PeerId) {
        let peer_state = self.state().outgoing.remove(&peer);
        if let Some(Peer::Connected { connection, .. }) = peer_state {
            connection.close();
        }
    }

    /// The peer is gone: messages to it that are under way fail now, and not when the NIC has repeated them often enough.
    pub(super) fn peer_lost(&self, peer: PeerId) {
        let mut state = self.state();
        if !matches!(state.outgoing.get(&peer), Some(Peer::Connected { .. })) {
            return;
        }
        let peer_state = state.outgoing.remove(&peer);
        drop(state);
        if let Some(Peer::Connected { connection, .. }) = peer_state {
            connection.close();
        }
    }

    /// Makes the other end of a queue pair that `peer` wants.
    pub(super) fn accept(
        &self,
        peer: PeerId,
        other: &QueuePairInfo,
        event_loop: &EventLoop,
        incoming: &Incoming,
    ) -> Result<QueuePairInfo, DeviceError> {
        let pair = event_loop.queue_pair(false)?;
        incoming.set_sender(pair.info.number, Some(peer));
        pair.connect(other)?;
        let info = pair.info;
        if let Some(old) = self.state().accepted.insert(peer, pair) {
            incoming.remove_sender(old.info.number);
        }
        Ok(info)
    }

    /// Ends a connect to `peer` with what came of it.
    pub(super) fn finish_connect(&self, peer: PeerId, reply: ConnectReply, event_loop: &Arc<EventLoop>) {
        let mut state = self.state();
        let Some(Peer::Connecting { .. }) = state.outgoing.get(&peer) else { return };
        let Some(Peer::Connecting { pair, waiting }) = state.outgoing.remove(&peer) else { return };
        state.turn += 1;
        let used = state.turn;
        let peer_state = match reply {
            ConnectReply::Accepted(other) if pair.connect(&other).is_ok() => {
                Peer::Connected { connection: Connection::new(event_loop, pair), used }
            }
            ConnectReply::ViaHost => Peer::ViaHost,
            ConnectReply::Accepted(_) | ConnectReply::Unreachable => Peer::Unreachable,
        };
        state.outgoing.insert(peer, peer_state);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The route to `peer`, connected first if there is none yet; `None` if it is unreachable.
    pub(super) async fn route(&self, peer: PeerId, client: &Client) -> Option<Route> {
        if peer.index().1 {
            return Some(Route::Host);
        }
        std::future::poll_fn(|cx| {
            if client.is_lost() {
                return Poll::Ready(None);
            }
            let mut state = self.state();
            state.turn += 1;
            let turn = state.turn;
            match state.outgoing.get_mut(&peer) {
                Some(Peer::Connected { connection, used }) => {
                    *used = turn;
                    return Poll::Ready(Some(Route::Direct(Arc::clone(connection))));
                }
                Some(Peer::ViaHost) => return Poll::Ready(Some(Route::Host)),
                Some(Peer::Unreachable) => {
                    // It may come one day: the next message asks again.
                    state.outgoing.remove(&peer);
                    return Poll::Ready(None);
                }
                Some(Peer::Connecting { waiting, .. }) => {
                    waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                None => {}
            }
            let gone = make_room(&mut state, client.options.max_peers);
            let made = client.event_loop().queue_pair(false);
            let Ok(pair) = made else { return Poll::Ready(None) };
            let info = pair.info;
            state.outgoing.insert(peer, Peer::Connecting { pair, waiting: vec![cx.waker().clone()] });
            drop(state);
            if let Some(gone) = gone {
                client.send_frame(&Frame::Close { peer: gone });
            }
            client.send_frame(&Frame::Connect { peer, pair: info });
            Poll::Pending
        })
        .await
    }
}

/// Gives up the connection that was not used for longest, if there are too many and it is idle.
fn make_room(state: &mut State, most: usize) -> Option<PeerId> {
    let open = state.outgoing.iter().filter_map(|(peer, peer_state)| match peer_state {
        Peer::Connected { connection, used } => Some((*used, *peer, Arc::strong_count(connection) == 1)),
        _ => None,
    });
    let open: Vec<_> = open.collect();
    if open.len() < most {
        return None;
    }
    let (_, oldest, _) = open.into_iter().filter(|(.., idle)| *idle).min()?;
    state.outgoing.remove(&oldest);
    Some(oldest)
}
