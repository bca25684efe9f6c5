//! Holders that want to be told, once, that a client waits for what they hold.

use super::{CoreRequest, Kind, LockTable, RequestRecord, Stage};
use lockwright::wire::{RequestId, Response};
use lockwright_fabric::observe::Mode;

/// Whether `waiter` waits for what `holder` has.
fn waits_for(kind: Kind, waiter: &RequestRecord, holder: &RequestRecord) -> bool {
    let mode = match waiter.stage {
        Stage::HeldBack | Stage::Waiting => waiter.units.mode,
        Stage::Held { .. } if waiter.upgrades.is_some() => Mode::Exclusive,
        Stage::Behind | Stage::Held { .. } | Stage::Exported(_) => return false,
    };
    let (wanted, has) = (&waiter.units, &holder.units);
    let alone = mode == Mode::Exclusive || has.mode == Mode::Exclusive;
    match kind {
        Kind::Keyed => alone,
        Kind::Ranges => alone && wanted.start < has.end && has.start < wanted.end,
        Kind::Semaphores => true,
    }
}

/// Where a request that may have to wait is.
pub(super) const fn place_of(asked: &CoreRequest) -> Option<u32> {
    match asked {
        CoreRequest::Lock { id, .. } | CoreRequest::Upgrade { id, .. } | CoreRequest::Permits { id, .. } => {
            Some(*id)
        }
        _ => None,
    }
}

impl LockTable {
    /// What was asked for is decided: if it waits, those in its way are told.
    #[inline]
    pub(super) fn note_if_waiting(&mut self, peer: u32, place: u32) {
        if let Some(session) = self.session(peer)
            && let Some(request) = session.slots.get_mut(place as usize).and_then(Option::as_mut)
            && (matches!(request.stage, Stage::Waiting) || request.upgrades.is_some())
        {
            request.queued = true;
            let mode = if request.upgrades.is_some() { Mode::Exclusive } else { request.units.mode };
            if let (id, Some(lock)) = (request.id, request.lock) {
                self.recall_for(lock, mode, Some((peer, id)));
                self.tell_watchers(lock, (peer, id));
            }
        }
    }

    fn record(&self, (peer, id): (u32, RequestId)) -> Option<&RequestRecord> {
        let slots = &self.sessions.get(peer as usize)?.as_ref()?.slots;
        slots.get(super::slot(id) as usize)?.as_ref().filter(|request| request.id == id)
    }

    /// A holder wants to be told when a client waits; or now, if one does. Of what it does not hold it hears nothing.
    pub(super) fn watch(&mut self, peer: u32, id: RequestId) {
        let held = self.record((peer, id)).filter(|request| matches!(request.stage, Stage::Held { .. }));
        let Some((holder, lock)) = held.and_then(|request| Some((request, request.lock?))) else { return };
        let kind = self.directory.lock(lock).kind;
        let waits = self.directory.lock(lock).now.waiters > 0
            && self.sessions.iter().enumerate().any(|(other, session)| {
                let requests = session.iter().flat_map(|session| session.slots.iter().flatten());
                requests.filter(|request| request.lock == Some(lock)).any(|request| {
                    (other as u32, request.id) != (peer, id) && waits_for(kind, request, holder)
                })
            });
        if waits {
            return self.say(peer, &Response::Contended { id });
        }
        let watched = &mut self.directory.lock_mut(lock).watched;
        if !watched.contains(&(peer, id)) {
            watched.push((peer, id));
        }
    }

    /// Request `waiter` waits for `lock` from now on: those in its way that want to be told are.
    pub(super) fn tell_watchers(&mut self, lock: u64, waiter: (u32, RequestId)) {
        if self.directory.lock(lock).watched.is_empty() {
            return;
        }
        let Some(wants) = self.record(waiter) else { return };
        let of = self.directory.lock(lock);
        let is_in_the_way = |watched: &&(u32, RequestId)| {
            **watched != waiter
                && self.record(**watched).is_some_and(|holder| waits_for(of.kind, wants, holder))
        };
        let told: Vec<_> = of.watched.iter().filter(is_in_the_way).copied().collect();
        self.directory.lock_mut(lock).watched.retain(|watched| !told.contains(watched));
        for (peer, id) in told {
            if let Some(session) = self.session(peer) {
                session.say(&Response::Contended { id });
            }
        }
    }

    /// All requests that wait do so from now on.
    pub(super) fn tell_all_watchers(&mut self) {
        let mut waiting = Vec::new();
        for (peer, session) in self.sessions.iter().enumerate() {
            let requests = session.iter().flat_map(|session| session.slots.iter().flatten());
            let waits = requests.filter(|it| matches!(it.stage, Stage::Waiting) || it.upgrades.is_some());
            waiting.extend(waits.filter_map(|it| Some((it.lock?, (peer as u32, it.id)))));
        }
        waiting.into_iter().for_each(|(lock, waiter)| self.tell_watchers(lock, waiter));
    }
}
