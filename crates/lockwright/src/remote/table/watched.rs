//! Holders who want to hear of those who wait for what they hold: from the server, and of a lock that stays here from a
//! waiter here.

use super::Table;
use crate::lock::contention::Contention;
use crate::wire::{Request, RequestId};
use std::sync::Arc;
use std::task::Waker;

impl Table {
    /// `contention` is told when a client waits for what request `id` holds. Returns whom to wake because one does.
    pub(crate) fn watch(&mut self, id: RequestId, contention: &Arc<Contention>) -> Vec<Waker> {
        if self.has_waiters_here(id) {
            return contention.set();
        }
        let watched = self.watched.entry(id).or_default();
        watched.retain(|other| !other.is_over() && !Arc::ptr_eq(other, contention));
        watched.push(Arc::clone(contention));
        self.to_say.push(Request::Watch { id });
        Vec::new()
    }

    /// A client waits for what `id` holds. Returns whom to wake.
    pub(super) fn contended(&mut self, id: RequestId) -> Vec<Waker> {
        let watched = self.watched.remove(&id).unwrap_or_default();
        watched.iter().flat_map(|contention| contention.set()).collect()
    }

    /// What a server that was restarted is to be told again.
    pub(super) fn watch_again(&mut self) -> Vec<Request> {
        let mut again: Vec<_> = self.watched.keys().copied().collect();
        again.sort_unstable();
        again.into_iter().map(|id| Request::Watch { id }).collect()
    }
}
