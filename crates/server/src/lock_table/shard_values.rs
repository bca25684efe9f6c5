//! Values of a shard's locks. They are in etcd, below the shard, and the owner has them all in memory.
//!
//! A request about a value is applied when etcd has what it changes, as a transaction that compares the owner: so a server that has
//! lost the shard changes nothing. All requests about values of a shard are applied in the order in which they came, those that change
//! nothing too: an unlock may overtake the close that came before it, but the next holder's read does not. A close that is lost with its server
//! leaves the value open, and the next holder is told so.
//!
//! What this file must not do: answer before etcd has it.

use super::LockTable;
use super::sharded::Work;
use crate::durable::{Durable, LockValue, ValueKey, key_text, value_text};
use lockwright::wire::{Request, RequestId, Response};
use lockwright_cluster::Shard;
use lockwright_cluster::txn::Txn;
use lockwright_fabric::observe::Mode;

/// A request about the value of a lock.
#[derive(Clone, Debug)]
pub(crate) struct ValueWork {
    peer: (u32, u64),
    request: Request,
    pub(super) key: ValueKey,
    mode: Mode,
    /// What the value becomes; `None`: it stays as it is. Known once the work is taken out.
    change: Result<Option<LockValue>, String>,
}

/// Which held request it is about, and with which token.
const fn about(request: &Request) -> Option<(RequestId, u64)> {
    match request {
        Request::ReadValue { of, token, .. }
        | Request::SetValue { of, token, .. }
        | Request::CloseValue { of, token } => Some((*of, *token)),
        _ => None,
    }
}

impl ValueWork {
    /// Decides what becomes of the value, and writes it.
    pub(super) fn txn(&mut self, durable: &Durable, shard: &Shard) -> Txn {
        let token = about(&self.request).map_or(0, |(_, token)| token);
        let now = durable.value(&self.key);
        self.change = match &self.request {
            _ if self.mode == Mode::Shared => match self.request {
                Request::SetValue { .. } => Err("only who holds the lock alone sets its value".to_owned()),
                _ => Ok(None),
            },
            Request::SetValue { .. } if !durable.has_room_for(&self.key) => {
                Err("too many locks of this shard have a value".to_owned())
            }
            Request::SetValue { bytes, .. } => {
                Ok(Some(LockValue { bytes: bytes.clone(), open: token, set_ms: (durable.wall_ms)() }))
            }
            Request::ReadValue { .. } => {
                let opened = now.filter(|value| value.open == 0);
                Ok(opened.map(|value| LockValue { open: token, ..value.clone() }))
            }
            _ => {
                let closed = now.filter(|value| value.open == token);
                Ok(closed.map(|value| LockValue { open: 0, ..value.clone() }))
            }
        };
        match &self.change {
            Ok(Some(value)) => shard.put_value(&key_text(&self.key), value_text(value)),
            _ => Txn::default(),
        }
    }
}

impl LockTable {
    /// The request, if it is not about the value of what a client of this shard holds: such a one waits for etcd.
    pub(super) fn sift_value(&mut self, peer: u32, request: Request) -> Option<Request> {
        let Some((of, token)) = about(&request) else { return Some(request) };
        self.decide();
        let Ok((key, mode)) = self.value_key(peer, of, token) else { return Some(request) };
        let peer = (peer, self.session(peer)?.serial);
        let work = ValueWork { peer, request, key, mode, change: Ok(None) };
        self.sharded.as_mut()?.ask_for(Work::Value(work));
        None
    }

    /// Etcd has it.
    pub(super) fn value_written(&mut self, work: ValueWork) {
        let ValueWork { peer: (peer, serial), request, key, mode, change } = work;
        let token = about(&request).map_or(0, |(_, token)| token);
        let refused = match change {
            Ok(Some(value)) => {
                self.durable.put_value(key.clone(), value);
                None
            }
            Ok(None) => None,
            Err(why) => Some(why),
        };
        if self.session(peer).is_none_or(|session| session.serial != serial) {
            return;
        }
        let (Request::ReadValue { id, .. } | Request::SetValue { id, .. }) = request else { return };
        match refused {
            Some(why) => self.refuse(peer, id, why),
            None => {
                let value = self.value_report(&key, mode, token);
                self.say(peer, &Response::Value { id, value });
            }
        }
    }

    /// What the last owner has left in etcd.
    pub(crate) fn has_values(&mut self, values: impl IntoIterator<Item = (ValueKey, LockValue)>) {
        values.into_iter().for_each(|(key, value)| self.durable.put_value(key, value));
    }
}
