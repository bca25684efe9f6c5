//! Pidfds of the peers that this process asks about most: "is it alive" in one system call.

use super::process::{Process, ProcessState, state_by_pidfd};
use super::shared::Shared;
use crate::addr::PeerId;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Pidfds kept open, at most.
const MAX_CACHED: usize = 256;

#[derive(Debug, Default)]
pub(super) struct PidfdCache(Mutex<HashMap<PeerId, OwnedFd>>);

impl Shared {
    /// [`is_alive`](Self::is_alive) by a cached pidfd.
    pub(super) fn is_alive_cached(&self, peer: PeerId) -> bool {
        let mut cached = self.pidfds.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pidfd) = cached.get(&peer) {
            let state = state_by_pidfd(pidfd);
            if state == ProcessState::Alive && self.find_alive(peer).is_some() {
                return true;
            }
            cached.remove(&peer);
            if state == ProcessState::Ended {
                self.evict(peer);
            }
        } else if let Some(pidfd) = self.process_of(peer).and_then(Process::pidfd) {
            if cached.len() >= MAX_CACHED {
                cached.clear();
            }
            cached.insert(peer, pidfd);
        }
        drop(cached);
        self.is_alive(peer)
    }
}
