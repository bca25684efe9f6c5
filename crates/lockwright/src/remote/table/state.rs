//! What the explorer compares: all of a table that decides about anything later, and neither times nor wakers.

use super::{PendingRequest, Stage, Table};
use crate::remote::retained::RetainedLock;
use crate::wire::{Request, RequestId, slot};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::mem::discriminant;
use std::time::Duration;

impl Hash for Table {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let handles: BTreeMap<_, _> = self.handles.iter().collect();
        (self.origin, self.seq, &self.unacked, handles, self.next_handle, &self.slots).hash(state);
        (&self.free, self.next_id, self.claimed, &self.ended, self.seen, self.is_open).hash(state);
        (self.member, self.members, &self.fatal, &self.sets).hash(state);
        let retained: BTreeMap<_, _> =
            self.retained.iter().map(|(handle, lock)| (handle, fingerprint(lock))).collect();
        (self.retains, retained, self.to_say.len()).hash(state);
    }
}

/// What stays here of one lock, as a number.
fn fingerprint(lock: &RetainedLock) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    lock.lock().retention.hash(&mut hasher);
    hasher.finish()
}

impl Table {
    /// The lease is over, and all waiters have waited for longer than it, or none has: what the clock says is the explorer's
    /// choice.
    pub fn expire_at_once(&mut self, all_have_waited: bool) {
        const LEASE: Duration = Duration::from_secs(1);
        let since = self.slots.iter().flatten().map(|request| request.since);
        let now = if all_have_waited { since.max().map(|since| since + 2 * LEASE) } else { since.min() };
        if let Some(now) = now {
            let _ = self.expire(now, 2 * LEASE, LEASE, "it is silent");
        }
    }

    /// [`waited`](Self::waited), if nobody has waited for any time: what the clock says is no part of what is compared.
    pub fn waited_at_once(&self) -> Vec<Request> {
        let first = self.slots.iter().flatten().map(|request| request.since).min();
        first.map_or_else(Vec::new, |now| self.waited(now))
    }

    /// Whether what a request holds was claimed, and the server has not said whether it still is.
    pub fn is_claimed(&self, id: RequestId) -> bool {
        let request = self.slots.get(slot(id) as usize).and_then(Option::as_ref);
        request.is_some_and(|request| request.id == id && matches!(request.stage, Stage::Claimed { .. }))
    }

    /// Whether a request that is waited for was granted or has failed.
    pub fn is_settled(&self, id: RequestId) -> bool {
        let request = self.slots.get(slot(id) as usize).and_then(Option::as_ref);
        request.is_some_and(|request| {
            let settled = matches!(request.stage, Stage::Granted { .. } | Stage::Failed(_))
                || matches!(request.stage, Stage::Retained { .. } | Stage::Local(_));
            request.id == id && settled
        })
    }
}

impl Hash for PendingRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.id, self.units, discriminant(&self.stage), discriminant(&self.change)).hash(state);
        match &self.stage {
            Stage::Wanted { wait } => wait.hash(state),
            Stage::Granted { token } => token.hash(state),
            Stage::Retained { token, first, count } => (token, first, count).hash(state),
            Stage::Local(granted) => granted.hash(state),
            Stage::Held { token, origin } | Stage::Claimed { token, origin } => (token, origin).hash(state),
            Stage::Unlocked { held } => held.hash(state),
            Stage::Looking { bytes } | Stage::Looked { bytes } => bytes.hash(state),
            Stage::Lost(_) | Stage::Failed(_) | Stage::Unlocking => {}
        }
    }
}
