//! The directory's lock: a futex with its owner's peer id, taken over from an owner whose process has ended.
//!
//! | bits | |
//! |---|---|
//! | 0..31 | the owner; 0: it is free |
//! | 31 | `WAITED_FOR`: the owner has to wake a client that sleeps |
//!
//! Who has slept takes it as `WAITED_FOR`, since others may sleep still.
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
use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const WAITED_FOR: u32 = 1 << 31;
/// Attempts before a waiting client sleeps.
const SPINS: u32 = 200;
/// An owner that has it for so long may have been killed. Looking sooner costs more than the lock is held for, and a crowd of
/// clients that all look leaves the owner no processor.
const SUSPICIOUS: Duration = Duration::from_millis(5);
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: SUSPICIOUS.subsec_nanos() as _ };
/// How long a client waits for a live owner.
const PATIENCE_NS: u64 = 10_000_000_000;

impl<'a> Table<'a> {
    /// Takes the lock, and repairs the directory if its last owner was killed while it changed it.
    pub(super) fn lock(client: &'a Client) -> Result<Self, SpaceError> {
        let (shared, me) = (&*client.shared, client.membership.peer);
        let word = shared.map.u32(AT_NAMES_LOCK);
        let began = shared.clock.now();
        let (mut mine, mut spins) = (me.0, 0);
        loop {
            if !client.is_member() {
                return Err(SpaceError::Evicted);
            }
            let Err(held) = word.compare_exchange(0, mine, SeqCst, SeqCst) else {
                return Ok(Self::new(shared));
            };
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            let waited_for = held | WAITED_FOR;
            if held != waited_for && word.compare_exchange(held, waited_for, SeqCst, SeqCst).is_err() {
                continue;
            }
            mine = me.0 | WAITED_FOR;
            let slept = futex::wait(word, futex::Flags::empty(), waited_for, Some(&SLEEP));
            if slept != Err(Errno::TIMEDOUT) {
                continue;
            }
            let owner = PeerId(held & !WAITED_FOR);
            if is_gone(shared, owner) && word.compare_exchange(waited_for, mine, SeqCst, SeqCst).is_ok() {
                let table = Self::new(shared);
                table.repair();
                return Ok(table);
            }
            if shared.clock.now().since(began) > PATIENCE_NS {
                let pid = shared.process_of(owner).map_or(0, |process| process.pid);
                return Err(SpaceError::DirectoryBusy { pid });
            }
        }
    }

    pub(super) fn unlock(&self) {
        let word = self.shared().map.u32(AT_NAMES_LOCK);
        if word.swap(0, SeqCst) & WAITED_FOR != 0 {
            let _ = futex::wake(word, futex::Flags::empty(), 1);
        }
    }
}

/// Whether the owner's process has ended. A live client is never reaped, so an owner without a slot has ended too.
fn is_gone(shared: &Shared, owner: PeerId) -> bool {
    shared.process_of(owner).is_none_or(Process::has_ended)
}
