//! Sets: several locks that a client asks for in one message.
//!
//! The members are requests like any other, with one difference: only the first is asked for. Each of the others stands behind the
//! one before it, and is asked for when that is granted. So a set takes its locks in the order in which its client wrote them down,
//! which is the same for all clients, and keeps nobody from a lock whose turn has not come.
//!
//! | a member | when it ends without a grant |
//! |---|---|
//! | waits, or is held | as any request |
//! | stands behind another | is forgotten |
//!
//! What stands behind a member that ended without a grant is never asked for: its client gives it up, or departs.
//!
//! What this file must not do: order anything.

use super::{ClientId, LockTable, RequestRecord, Stage};
use crate::one_sided::sessions;
use crate::session::Target;
use lockwright::wire::{RequestId, Units};

impl LockTable {
    /// A client wants these locks, one after the other.
    pub(super) fn lock_set(&mut self, peer: u32, members: &[(RequestId, Units)]) {
        if members.iter().any(|(id, _)| self.session(peer).is_some_and(|session| session.has_slot_of(*id))) {
            // The requests in their slots may come to nothing.
            self.decide();
        }
        for (id, units) in members {
            if let Err(why) = self.own_lock(peer, units) {
                return self.refuse(peer, *id, why);
            }
        }
        let mut next = None;
        for (at, (id, units)) in members.iter().enumerate().rev() {
            let Ok(lock) = self.own_lock(peer, units) else { return };
            let mut request = RequestRecord::new(*id, Some(lock), *units, self.now, Stage::Behind, false);
            request.next = next.filter(|_| !self.rules.sets_at_once);
            let Some(session) = self.session(peer) else { return };
            if let Err(why) = session.put(request) {
                for (id, _) in &members[at + 1..] {
                    self.unlock(peer, *id);
                }
                return self.refuse(peer, *id, why);
            }
            self.directory.use_again(lock);
            next = Some(*id);
        }
        let first = if self.rules.sets_at_once { members.len() } else { 1 };
        for (id, _) in members.iter().take(first) {
            self.take_turn(peer, *id);
        }
    }

    /// The server's own lock that these units are of.
    fn own_lock(&mut self, peer: u32, units: &Units) -> Result<u64, &'static str> {
        if units.start >= units.end {
            return Err("the range is empty or reversed");
        }
        match self.session(peer).and_then(|session| session.handles.get(&units.handle)) {
            Some(&Target::Own(lock)) => Ok(lock),
            Some(Target::Exported(_)) => Err("locks of shared memory are asked for one by one"),
            Some(Target::OneSided { .. }) => Err(sessions::BY_ITSELF),
            None => Err("the request names a lock that was refused or never named"),
        }
    }

    /// What was before this member of a set is granted: it is asked for, or waits until claims are over.
    pub(super) fn take_turn(&mut self, peer: u32, id: RequestId) {
        let (now, recovering) = (self.now, self.is_recovering() && !self.rules.grants_early);
        let Some(request) = self.session(peer).and_then(|session| session.request(id)) else { return };
        if !matches!(request.stage, Stage::Behind) {
            return;
        }
        request.stage = if recovering { Stage::HeldBack } else { Stage::Waiting };
        (request.since, request.queued) = (now, recovering);
        let request = request.clone();
        let lock = request.lock.expect("a set is of the server's own locks");
        self.directory.lock_mut(lock).now.asked();
        self.totals.now.asked();
        match &mut self.held_back {
            Some(held_back) if recovering => held_back.push((peer, id)),
            _ => {
                let asked = self.request_for(&request, lock, true);
                self.asked.push((ClientId(peer), asked));
            }
        }
    }
}
