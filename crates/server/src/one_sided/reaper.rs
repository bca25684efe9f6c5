//! Clears away what the dead leave in the words of a one-sided space: a client of the space in the server itself.
//!
//! It reaches the words as every client does, by the NIC where the NIC changes them, and does what a waiter does when its
//! stall timer has run out: it reads the entry, looks at the records of the live clients, and resets what it has read if none
//! of them holds the lock. So waiters need not wait that long, and numbers of the dead can be used again though no client
//! wants their locks any more.

use super::{OneSidedSpace, Resets};
use lockwright::internal::{
    OneSidedLocks, OneSidedTrees, Reach, RemoteLocks, client, server_client, server_trees,
};
use lockwright_fabric::PeerId;
use lockwright_fabric::backend::block_on;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// Pause before it tries again what could not be cleared away because a live client is in it.
const AGAIN: Duration = Duration::from_millis(200);
/// The same where there are trees: those in the middle of something are done in a moment.
const AGAIN_ON_TREES: Duration = Duration::from_millis(5);

/// Between two looks for dead processes of this host.
const AGAIN_LOCAL: Duration = Duration::from_millis(20);

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reaper {
    told: mpsc::Sender<()>,
    has_a_number: bool,
}

impl Reaper {
    /// Puts one to work that reaches the space by `ep`; `has_a_number` if it is let in as a client is.
    pub(crate) fn start<E: Reach + Clone + Send + 'static>(
        space: &Arc<OneSidedSpace>,
        ep: E,
        has_a_number: bool,
    ) -> std::io::Result<Self> {
        let (told, deaths) = mpsc::channel();
        let trees = space.forest().map(|forest| server_trees(ep.clone(), forest));
        let asymmetric = space.is_local().then(|| server_client(ep.clone()));
        let reach = ByVerbs { client: client(ep), trees, asymmetric };
        let space = Arc::downgrade(space);
        std::thread::Builder::new()
            .name("lockwright-reaper".to_owned())
            .spawn(move || work(&space, &reach, &deaths))?;
        Ok(Self { told, has_a_number })
    }

    /// A client has died.
    pub(crate) fn call(&self) {
        let _ = self.told.send(());
    }

    pub(crate) const fn has_a_number(&self) -> bool {
        self.has_a_number
    }
}

/// What resets locks by verbs.
struct ByVerbs<E> {
    client: OneSidedLocks<E>,
    trees: Option<OneSidedTrees<E>>,
    asymmetric: Option<RemoteLocks<E>>,
}

impl<E: Reach> Resets for ByVerbs<E> {
    fn keyed(&self, lock: u64) -> bool {
        block_on(self.client.lock().recover(lock)).unwrap_or(false)
    }

    fn on_trees(&self, peer: PeerId) -> bool {
        self.trees.as_ref().is_none_or(|trees| block_on(trees.reap(peer)).unwrap_or(false))
    }

    fn asymmetric(&self, lock: u64, drawn: u64) -> bool {
        let done = |locks: &RemoteLocks<E>| block_on(locks.recover_below(lock, drawn)).unwrap_or(false);
        self.asymmetric.as_ref().is_none_or(done)
    }
}

fn work<E: Reach>(space: &Weak<OneSidedSpace>, reach: &ByVerbs<E>, deaths: &mpsc::Receiver<()>) {
    // Of the deaths of processes that come by themselves the server is not told.
    let idle = if reach.asymmetric.is_some() { AGAIN_LOCAL } else { Duration::MAX };
    let again = if reach.trees.is_some() { AGAIN_ON_TREES } else { AGAIN };
    let mut some_left = false;
    loop {
        let patience = if some_left { again.min(idle) } else { idle };
        if matches!(deaths.recv_timeout(patience), Err(mpsc::RecvTimeoutError::Disconnected)) {
            return;
        }
        let Some(space) = space.upgrade() else { return };
        some_left = space.reap(reach);
    }
}
