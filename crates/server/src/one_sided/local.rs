//! A one-sided space that processes of this host are in, too: its memory is a file that they map, and its client table and
//! names are those of that file. The server keeps a slot there for every client that comes by verbs.
//!
//! The file outlives the server: processes of the host go on without it, and keep what they hold over a restart.

use super::Resets;
use crate::ServeError;
use lockwright::LockName;
use lockwright::inspect::Entry;
use lockwright::internal::layout::Ranges;
use lockwright::internal::local::{self, LocalHolders, LocalMember};
use lockwright::internal::{asymmetric, bind_local, local_entries};
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::shm::{NamedLock, ShmSpace};
use lockwright_fabric::{PeerId, Word64};
use lockwright_locks::qplock::member::Side;
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug)]
pub(super) struct LocalSpace {
    space: ShmSpace,
    /// The server's own membership, which holds nothing.
    member: LocalMember,
    state: Mutex<LocalState>,
    /// Locked, so that no other server serves the space: the atomics of two NICs do not exclude each other.
    _served: File,
}

#[derive(Debug, Default)]
struct LocalState {
    /// Those who come by verbs.
    clients: HashMap<PeerId, LocalHolders>,
    /// Names that they have open, and how often.
    names: HashMap<LockName, (NamedLock, u64)>,
    /// Locks that the dead of either side were at, and the tickets that the side had given out.
    left: Vec<(Side, u64, u64)>,
}

impl LocalSpace {
    /// The space called `name`, which is made if it is not there, and its memory.
    pub(super) fn open(name: &str, ranges: Ranges) -> Result<(Self, Arc<InProc>), ServeError> {
        let refuse = |why: String| ServeError::Local { name: name.to_owned(), why };
        let path = local::path_of(name).map_err(|error| refuse(error.to_string()))?;
        let space = local::open(&path, true, Some("serve")).map_err(|error| refuse(error.to_string()))?;
        let served = File::open(&path).map_err(|error| refuse(error.to_string()))?;
        served.try_lock().map_err(|_| refuse("another server of this host serves it".to_owned()))?;
        let memory = Arc::new(InProc::over(&space));
        ranges.settings().into_iter().for_each(|(word, value)| memory.poke(word, value));
        let member = LocalMember::join(&space).map_err(|error| refuse(error.to_string()))?;
        let opened = Self { space, member, state: Mutex::default(), _served: served };
        opened.take_over().map_err(|error| refuse(error.to_string()))?;
        Ok((opened, memory))
    }

    /// Whatever the remote side's queues hold was left by clients of an earlier server.
    fn take_over(&self) -> Result<(), lockwright_fabric::backend::shm::SpaceError> {
        let names = self.member.names().all()?;
        let queued = names.iter().map(|info| (Side::Remote, info.lock.id, self.drawn(info.lock.id)));
        self.state().left.extend(queued.filter(|(.., drawn)| *drawn > 0));
        Ok(())
    }

    /// The number of its memory.
    pub(super) fn identity(&self) -> Option<u128> {
        self.space.identity().ok()
    }

    fn state(&self) -> MutexGuard<'_, LocalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tickets that the remote side of a lock has given out.
    fn drawn(&self, lock: u64) -> u64 {
        let tail: Word64 = asymmetric::LOCKS.lock(lock).tail(Side::Remote);
        self.space.peek(tail)
    }

    /// Admits a client that comes by verbs. `None` if there is no room.
    pub(super) fn join(&self, label: &str) -> Option<PeerId> {
        let (pid, rest) = label.split_once(' ').unwrap_or((label, ""));
        let ep = self.space.endpoint_for(rest).ok()?;
        let holders = LocalHolders::join(&self.space, ep, Some(pid.parse().unwrap_or(0))).ok()?;
        let peer = holders.peer();
        self.state().clients.insert(peer, holders);
        Some(peer)
    }

    /// How many are in by verbs.
    pub(super) fn clients(&self) -> usize {
        self.state().clients.len()
    }

    /// A client is gone: nothing that it does takes effect any more.
    pub(super) fn depart(&self, peer: PeerId) {
        let locks = local::locks_of(&self.space, peer);
        let Some(holders) = self.state().clients.remove(&peer) else { return };
        holders.leave();
        self.state().left.extend(locks.into_iter().map(|lock| (Side::Remote, lock, self.drawn(lock))));
    }

    /// Clears away after the dead of both sides. Says whether something is left to do.
    pub(super) fn reap(&self, resets: &impl Resets) -> bool {
        let died = self.member.reap().into_iter().map(|(lock, drawn)| (Side::Local, lock, drawn));
        let mut left: Vec<_> = std::mem::take(&mut self.state().left).into_iter().chain(died).collect();
        left.retain(|(side, lock, drawn)| match side {
            Side::Local => !self.member.recover_below(*lock, *drawn),
            Side::Remote => !resets.asymmetric(*lock, *drawn),
        });
        let some_left = !left.is_empty();
        self.state().left.extend(left);
        some_left
    }

    /// The lock called `name`, for a client that comes by verbs.
    pub(super) fn open_name(&self, name: &LockName) -> Option<(u64, u64)> {
        let mut state = self.state();
        if let Some((lock, handles)) = state.names.get_mut(name) {
            *handles += 1;
            return Some((lock.id, lock.token_base));
        }
        let lock = bind_local(&self.member, name).ok()?;
        state.names.insert(name.clone(), (lock, 1));
        Some((lock.id, lock.token_base))
    }

    pub(super) fn close_name(&self, name: &LockName) {
        let mut state = self.state();
        let Some((lock, handles)) = state.names.get_mut(name) else { return };
        *handles -= 1;
        if *handles == 0 {
            let lock = *lock;
            state.names.remove(name);
            let reclaim = |id| self.member.reclaim(id, lock.token_base);
            let _ = self.member.names().close(lock.id, reclaim);
        }
    }

    /// The holders and waiters of both sides.
    pub(super) fn entries(&self) -> Vec<Entry> {
        local_entries(&self.space, &self.member).unwrap_or_default()
    }
}
