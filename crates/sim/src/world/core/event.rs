//! Something that happens at a time, and the order in which things happen.

use super::OpId;
use std::cmp::Ordering;

/// Something that happens at a time that is not near; `seq` orders what happens at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct FarEvent {
    pub(super) at_ns: u64,
    pub(super) seq: u64,
    pub(super) what: EventKind,
}

impl FarEvent {
    #[inline(always)]
    fn key(&self) -> u128 {
        (u128::from(self.at_ns) << 64) | u128::from(self.seq)
    }
}

impl PartialEq for FarEvent {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for FarEvent {}

impl PartialOrd for FarEvent {
    #[inline(always)]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FarEvent {
    /// The earliest is the greatest, because the heap hands out the greatest.
    #[inline(always)]
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EventKind {
    /// The operation's verbs reach the NIC (or, at home, the memory).
    Arrive(OpId),
    /// Its answer reaches the client, or its time has come.
    Complete(OpId),
    /// Weak scope: the next verb of the operation gets its turn.
    WeakTurn(OpId),
    /// Weak scope: the atomic that had its turn writes back.
    WeakWrite(OpId),
    /// A message arrives.
    Deliver(u32),
    /// A role's thread has dealt with a message.
    Serve(u32),
    /// A role's timer runs out.
    RoleTimer(u32),
    /// A client begins.
    Start(u32),
    /// A paused client goes on.
    Resume(u32),
    /// A memory node dies.
    NodeDeath(u16),
    /// A role is restarted.
    Restart(u32),
}
