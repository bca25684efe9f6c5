//! A client's queue pairs to other clients, connected on first use.
//!
//! A client that writes to many others keeps at most [`RdmaOptions::max_peers`](super::RdmaOptions::max_peers) connections
//! of its own making: the one unused for longest is given up for a new one. So N clients make at most N × `max_peers`
//! connections, however many pairs of them ever talk. A connection that fails is given up, and the next letter makes another.

use super::client::Client;
use super::control::Frame;
use super::device::DeviceError;
use super::pair::{Pair, PairInfo};
use super::post::Post;
use super::station::Station;
use super::wire::Wire;
use crate::addr::PeerId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    out: HashMap<PeerId, Line>,
    /// Queue pairs that others made to this client.
    called: HashMap<PeerId, Pair>,
    turn: u64,
}

#[derive(Debug)]
enum Line {
    Calling { pair: Pair, waiting: Vec<Waker> },
    Open { wire: Arc<Wire>, used: u64 },
    AtHost,
    Nobody,
}

/// The way to a peer.
pub(super) enum Way {
    Host,
    Wire(Arc<Wire>),
}

/// What the host says of a peer that was called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Called {
    Answered(PairInfo),
    AtHost,
    Nobody,
}

impl Lines {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All are given up.
    pub(super) fn close(&self) {
        let lines = std::mem::take(&mut self.inside().out);
        for line in lines.into_values() {
            match line {
                Line::Calling { waiting, .. } => waiting.into_iter().for_each(Waker::wake),
                Line::Open { wire, .. } => wire.close(),
                Line::AtHost | Line::Nobody => {}
            }
        }
    }

    /// The peer has given up its queue pair to this client.
    pub(super) fn hung_up(&self, peer: PeerId, post: &Post) {
        if let Some(pair) = self.inside().called.remove(&peer) {
            post.forget(pair.info.number);
        }
    }

    /// A letter did not get through: the next one goes over another connection.
    pub(super) fn give_up(&self, peer: PeerId) {
        let line = self.inside().out.remove(&peer);
        if let Some(Line::Open { wire, .. }) = line {
            wire.close();
        }
    }

    /// The peer is gone: letters to it that are under way fail now, and not when the NIC has repeated them often enough.
    pub(super) fn gone(&self, peer: PeerId) {
        let mut lines = self.inside();
        if !matches!(lines.out.get(&peer), Some(Line::Open { .. })) {
            return;
        }
        let line = lines.out.remove(&peer);
        drop(lines);
        if let Some(Line::Open { wire, .. }) = line {
            wire.close();
        }
    }

    /// Makes the other end of a queue pair that `peer` wants.
    pub(super) fn answer(
        &self,
        peer: PeerId,
        other: &PairInfo,
        station: &Station,
        post: &Post,
    ) -> Result<PairInfo, DeviceError> {
        let pair = station.pair(false)?;
        post.know(pair.info.number, Some(peer));
        pair.connect(other)?;
        let info = pair.info;
        if let Some(old) = self.inside().called.insert(peer, pair) {
            post.forget(old.info.number);
        }
        Ok(info)
    }

    /// What came of calling `peer`.
    pub(super) fn settle(&self, peer: PeerId, called: Called, station: &Arc<Station>) {
        let mut lines = self.inside();
        let Some(Line::Calling { .. }) = lines.out.get(&peer) else { return };
        let Some(Line::Calling { pair, waiting }) = lines.out.remove(&peer) else { return };
        lines.turn += 1;
        let used = lines.turn;
        let line = match called {
            Called::Answered(other) if pair.connect(&other).is_ok() => {
                Line::Open { wire: Wire::new(station, pair), used }
            }
            Called::AtHost => Line::AtHost,
            Called::Answered(_) | Called::Nobody => Line::Nobody,
        };
        lines.out.insert(peer, line);
        drop(lines);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The way to `peer`, called first if there is none yet; `None` if nobody is there.
    pub(super) async fn way(&self, peer: PeerId, client: &Client) -> Option<Way> {
        if peer.index().1 {
            return Some(Way::Host);
        }
        std::future::poll_fn(|cx| {
            if client.is_lost() {
                return Poll::Ready(None);
            }
            let mut lines = self.inside();
            lines.turn += 1;
            let turn = lines.turn;
            match lines.out.get_mut(&peer) {
                Some(Line::Open { wire, used }) => {
                    *used = turn;
                    return Poll::Ready(Some(Way::Wire(Arc::clone(wire))));
                }
                Some(Line::AtHost) => return Poll::Ready(Some(Way::Host)),
                Some(Line::Nobody) => {
                    // It may come one day: the next letter asks again.
                    lines.out.remove(&peer);
                    return Poll::Ready(None);
                }
                Some(Line::Calling { waiting, .. }) => {
                    waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                None => {}
            }
            let gone = make_room(&mut lines, client.options.max_peers);
            let made = client.station().pair(false);
            let Ok(pair) = made else { return Poll::Ready(None) };
            let info = pair.info;
            lines.out.insert(peer, Line::Calling { pair, waiting: vec![cx.waker().clone()] });
            drop(lines);
            if let Some(gone) = gone {
                client.say(&Frame::HangUp { peer: gone });
            }
            client.say(&Frame::Call { peer, pair: info });
            Poll::Pending
        })
        .await
    }
}

/// Gives up the connection that was not used for longest, if there are too many and it is idle.
fn make_room(lines: &mut Inside, most: usize) -> Option<PeerId> {
    let open = lines.out.iter().filter_map(|(peer, line)| match line {
        Line::Open { wire, used } => Some((*used, *peer, Arc::strong_count(wire) == 1)),
        _ => None,
    });
    let open: Vec<_> = open.collect();
    if open.len() < most {
        return None;
    }
    let (_, oldest, _) = open.into_iter().filter(|(.., idle)| *idle).min()?;
    lines.out.remove(&oldest);
    Some(oldest)
}
