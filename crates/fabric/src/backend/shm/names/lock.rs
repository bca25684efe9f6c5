//! The directory's lock: a word with its owner's peer id, taken over from an owner whose process has ended.
//!
//! It is held for about a microsecond, never across a wait. An evicted owner keeps it: its process, stopped inside, would go
//! on writing when it continues. Others then wait, and get an error with its pid after ten seconds. Locks that are already
//! open do not need the directory.

use super::super::client::Client;
use super::super::error::SpaceError;
use super::super::layout::AT_NAMES_LOCK;
use super::super::process::Process;
use super::super::shared::Shared;
use super::table::Table;
use crate::addr::PeerId;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Attempts before a waiting client sleeps between them.
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);
/// How long a client waits for a live owner.
const PATIENCE_NS: u64 = 10_000_000_000;

impl<'a> Table<'a> {
    /// Takes the lock, and repairs the directory if its last owner was killed while it changed it.
    pub(super) fn lock(client: &'a Client) -> Result<Self, SpaceError> {
        let (shared, me) = (&*client.shared, client.membership.peer);
        let word = shared.map.u64(AT_NAMES_LOCK);
        let began = shared.clock.now();
        for attempt in 0.. {
            if !client.is_member() {
                return Err(SpaceError::Evicted);
            }
            match word.compare_exchange(0, me.0.into(), SeqCst, SeqCst) {
                Ok(_) => return Ok(Self::new(shared)),
                Err(_) if attempt < SPINS => std::hint::spin_loop(),
                Err(owner) => {
                    let peer = PeerId(owner as u32);
                    if is_gone(shared, peer)
                        && word.compare_exchange(owner, me.0.into(), SeqCst, SeqCst).is_ok()
                    {
                        let table = Self::new(shared);
                        table.repair();
                        return Ok(table);
                    }
                    if shared.clock.now().since(began) > PATIENCE_NS {
                        let pid = shared.process_of(peer).map_or(0, |process| process.pid);
                        return Err(SpaceError::DirectoryBusy { pid });
                    }
                    std::thread::sleep(NAP);
                }
            }
        }
        unreachable!("the loop ends by returning")
    }

    pub(super) fn unlock(&self) {
        self.shared().map.u64(AT_NAMES_LOCK).store(0, SeqCst);
    }
}

/// Whether the owner's process has ended. A live client is never reaped, so an owner without a slot has ended too.
fn is_gone(shared: &Shared, owner: PeerId) -> bool {
    shared.process_of(owner).is_none_or(Process::has_ended)
}
