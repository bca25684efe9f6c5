//! Clears away what the dead leave in the words of a lent space: a client of the space in the server itself.
//!
//! It comes by the same way as everybody else, by the NIC where that is what changes the words, and does what any waiter does
//! after its vigil: it reads the entry, looks at the records of those who are in, and resets what it has read if none of
//! them holds the lock. So waiters need not wait for a vigil, and numbers of the dead can be used again though nobody wants
//! their locks any more.

use super::lent::{Lent, Resets};
use lockwright::internal::{LentClient, LentTrees, Reach, client, server_trees};
use lockwright_fabric::PeerId;
use lockwright_fabric::backend::block_on;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// Pause before it tries again what could not be cleared away because somebody alive is in it.
const AGAIN: Duration = Duration::from_millis(200);
/// The same where there are trees: those in the middle of something are done in a moment.
const AGAIN_ON_TREES: Duration = Duration::from_millis(5);

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Reaper {
    bell: mpsc::Sender<()>,
    has_a_number: bool,
}

impl Reaper {
    /// Puts one to work that reaches the space by `ep`; `has_a_number` if it is let in as a client is.
    pub(super) fn start<E: Reach + Clone + Send + 'static>(
        lent: &Arc<Lent>,
        ep: E,
        has_a_number: bool,
    ) -> std::io::Result<Self> {
        let (bell, rung) = mpsc::channel();
        let trees = lent.forest().map(|forest| server_trees(ep.clone(), forest));
        let reach = ByVerbs { client: client(ep), trees };
        let lent = Arc::downgrade(lent);
        std::thread::Builder::new()
            .name("lockwright-reaper".to_owned())
            .spawn(move || work(&lent, &reach, &rung))?;
        Ok(Self { bell, has_a_number })
    }

    /// Somebody has died.
    pub(super) fn call(&self) {
        let _ = self.bell.send(());
    }

    pub(super) const fn has_a_number(&self) -> bool {
        self.has_a_number
    }
}

/// What resets locks by verbs.
struct ByVerbs<E> {
    client: LentClient<E>,
    trees: Option<LentTrees<E>>,
}

impl<E: Reach> Resets for ByVerbs<E> {
    fn keyed(&self, lock: u64) -> bool {
        block_on(self.client.lock().recover(lock)).unwrap_or(false)
    }

    fn on_trees(&self, peer: PeerId) -> bool {
        self.trees.as_ref().is_none_or(|trees| block_on(trees.reap(peer)).unwrap_or(false))
    }
}

fn work<E: Reach>(lent: &Weak<Lent>, reach: &ByVerbs<E>, rung: &mpsc::Receiver<()>) {
    let again = if reach.trees.is_some() { AGAIN_ON_TREES } else { AGAIN };
    let mut some_left = false;
    loop {
        let patience = if some_left { again } else { Duration::MAX };
        if matches!(rung.recv_timeout(patience), Err(mpsc::RecvTimeoutError::Disconnected)) {
            return;
        }
        let Some(lent) = lent.upgrade() else { return };
        some_left = lent.reap(reach);
    }
}
