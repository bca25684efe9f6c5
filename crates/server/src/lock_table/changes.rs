//! Changes of what is held: upgrade, downgrade, a part given back. The combiner makes each of them in one step of its own
//! (`lockwright_locks::combiner::core`); here they are noted, counted and told.
//!
//! | change | noted | answered |
//! |---|---|---|
//! | upgrade | once what was noted about the request before is decided | when the combiner grants it, or says why not |
//! | downgrade, or an upgrade given up | likewise | with the token from then on |
//! | part | at once, and the table is cut as the combiner will cut | only about a second piece: both sides cut alike |
//!
//! While claims are heard nothing is upgraded, since other readers may still claim. What is downgraded then keeps its token,
//! since of two claims the one with the larger token wins.
//!
//! What this file must not do: say that a lock is exclusive before its token is promised on the disk.

use super::{ClientId, CoreRequest, Kind, LockTable, RequestRecord, Stage, Units, slot, why_not};
use crate::session::Change;
use crate::totals::Now;
use lockwright::wire::{DenyReason, RequestId, Response};
use lockwright_fabric::observe::Mode;
use lockwright_locks::combiner::core::Refusal;

impl LockTable {
    /// Decides about what was noted of a request before, if anything was: what can be done depends on it.
    fn decide_about(&mut self, peer: u32, id: RequestId) {
        let open = |request: &&mut RequestRecord| {
            matches!(request.stage, Stage::Behind | Stage::Waiting) || request.change.is_some()
        };
        if self.session(peer).and_then(|session| session.request(id)).filter(open).is_some() {
            self.decide();
        }
    }

    fn request(&mut self, peer: u32, id: RequestId) -> Option<&mut RequestRecord> {
        self.session(peer)?.request(id)
    }

    fn at(&mut self, peer: u32, place: u32) -> Option<&mut RequestRecord> {
        self.session(peer)?.slots.get_mut(place as usize)?.as_mut()
    }

    /// Says that nothing comes of a change.
    fn unchanged(&mut self, peer: u32, id: RequestId, why: DenyReason) {
        if why == DenyReason::Busy {
            self.totals.busy += 1;
        } else {
            self.totals.refused += 1;
        }
        self.say(peer, &Response::Unchanged { id, why });
    }

    /// A held lock of the server's own, its mode and its token; else why it cannot be changed.
    fn changeable(&mut self, peer: u32, id: RequestId) -> Result<(Mode, u64), DenyReason> {
        let request = self.request(peer, id).ok_or(why_not(Refusal::NotHeld))?;
        match request.stage {
            Stage::Held { token } => Ok((request.units.mode, token)),
            Stage::Behind | Stage::HeldBack | Stage::Waiting => Err(why_not(Refusal::StillWaiting)),
            Stage::Exported(_) => Err(DenyReason::Refused("not offered by shared memory".to_owned())),
        }
    }

    /// From shared to exclusive.
    pub(crate) fn upgrade(&mut self, peer: u32, id: RequestId, wait: bool) {
        self.decide_about(peer, id);
        let token = match self.changeable(peer, id) {
            Ok((Mode::Shared, token)) => token,
            Ok((Mode::Exclusive, _)) => return self.unchanged(peer, id, why_not(Refusal::SameMode)),
            Err(why) => return self.unchanged(peer, id, why),
        };
        let (recovering, now) = (self.is_recovering(), self.now);
        self.is_changed(peer, id);
        let Some(request) = self.request(peer, id) else { return };
        if request.change.is_some() {
            return self.unchanged(peer, id, why_not(Refusal::StillWaiting));
        }
        if recovering && !wait {
            // Another reader may still claim it.
            return self.unchanged(peer, id, DenyReason::Busy);
        }
        let lock = request.lock;
        let change = if recovering { Change::HeldBack } else { Change::Asked(Mode::Exclusive) };
        (request.change, request.upgrades) = (Some(change), Some(now));
        (request.before, request.queued) = (Some(token), recovering);
        request.known = Some(request.kept.unwrap_or(token));
        self.counts(lock).for_each(|now| now.asked());
        match &mut self.held_back {
            Some(held_back) => held_back.push((peer, id)),
            None => self.asked.push((ClientId(peer), CoreRequest::Upgrade { id: slot(id), wait })),
        }
    }

    /// From exclusive to shared; `gives_up`: the client has given up an upgrade, whatever became of it.
    pub(crate) fn downgrade(&mut self, peer: u32, id: RequestId, gives_up: bool) {
        self.decide_about(peer, id);
        let (mode, token) = match self.changeable(peer, id) {
            Ok(held) => held,
            Err(why) => return self.unchanged(peer, id, why),
        };
        self.is_changed(peer, id);
        let Some(request) = self.request(peer, id) else { return };
        match request.change {
            // It was not even asked for.
            Some(Change::HeldBack) => {
                request.change = None;
                self.waits_no_more(peer, slot(id));
                return self.say(peer, &Response::Changed { id, token, mode: Mode::Shared });
            }
            Some(Change::Asked(Mode::Exclusive)) => {}
            Some(_) => return self.unchanged(peer, id, why_not(Refusal::StillWaiting)),
            None if mode == Mode::Exclusive => {}
            // It was refused, busy, or undone before the client had given up.
            None if gives_up => return self.say(peer, &Response::Changed { id, token, mode }),
            None => return self.unchanged(peer, id, why_not(Refusal::SameMode)),
        }
        if !gives_up {
            request.before = Some(token);
        }
        request.kept = request.known.filter(|_| gives_up);
        request.change = Some(Change::Asked(Mode::Shared));
        self.asked.push((ClientId(peer), CoreRequest::Downgrade { id: slot(id) }));
    }

    /// Claims are over: an upgrade that waited for that is asked for.
    pub(super) fn upgrade_at_last(&mut self, peer: u32, id: RequestId) {
        let Some(request) = self.request(peer, id) else { return };
        if request.change == Some(Change::HeldBack) {
            request.change = Some(Change::Asked(Mode::Exclusive));
            let asked = CoreRequest::Upgrade { id: slot(id), wait: true };
            self.core.handle(ClientId(peer), asked, &mut self.replies);
        }
    }

    /// Gives back some units of a held range. `rest` is the second piece from then on, if two are left.
    pub(crate) fn unlock_part(
        &mut self,
        peer: u32,
        id: RequestId,
        (start, end): (u64, u64),
        rest: RequestId,
    ) {
        self.decide_about(peer, id);
        let Some(request) = self.request(peer, id) else {
            // It was taken away before the client had heard of that, and so was every piece of it.
            if rest != id {
                self.say(peer, &Response::Lost { id: rest });
            }
            return;
        };
        let (units, lock, since, kept) = (request.units, request.lock, request.since, request.kept);
        let (token, before) = match request.stage {
            Stage::Held { token } if request.change.is_none() => (token, request.before),
            _ => {
                return self.refuse(peer, 0, "a part was given back of what is not held, or about to change");
            }
        };
        let Some(lock) = lock.filter(|lock| self.directory.lock(*lock).kind == Kind::Ranges) else {
            return self.refuse(peer, 0, "a name has no parts");
        };
        let splits = start == end && units.start < start && end < units.end;
        let inside = splits || units.start <= start && start < end && end <= units.end;
        if !inside || (units.start, units.end) == (start, end) {
            return self.refuse(peer, 0, "the part is empty, all of it, or not part of what is held");
        }
        let two = units.start < start && end < units.end;
        if two {
            if self.session(peer).is_some_and(|session| session.has_slot_of(rest)) {
                // The other request may come to nothing.
                self.decide();
            }
            let stage = Stage::Held { token };
            let right = Units { start: end, ..units };
            let mut right = RequestRecord::new(rest, Some(lock), right, since, stage, false);
            (right.before, right.kept) = (before, kept);
            let Some(session) = self.session(peer) else { return };
            if let Err(why) = session.put(right) {
                return self.refuse(peer, 0, why);
            }
            self.directory.use_again(lock);
            self.counts(Some(lock)).for_each(|now| now.claimed());
        }
        self.note_part(peer, id, (start, end));
        let Some(request) = self.request(peer, id) else { return };
        let kept = if units.start < start { (units.start, start) } else { (end, units.end) };
        (request.units.start, request.units.end) = kept;
        self.totals.parts += 1;
        let second = if two { slot(rest) } else { slot(id) };
        self.asked.push((ClientId(peer), CoreRequest::UnlockPart { id: slot(id), start, end, rest: second }));
        if two {
            self.say(peer, &Response::Granted { id: rest, token });
        }
    }

    /// The combiner has granted an upgrade.
    pub(super) fn upgraded(&mut self, peer: u32, place: u32, token: u64) {
        let now = self.now;
        let Some(request) = self.at(peer, place) else { return };
        let waited = now - request.upgrades.unwrap_or(now);
        (request.change, request.upgrades, request.kept) = (None, None, None);
        request.block = None;
        (request.stage, request.units.mode) = (Stage::Held { token }, Mode::Exclusive);
        let (id, lock, queued) = (request.id, request.lock, request.queued);
        self.counts(lock).for_each(|now| now.ended(false));
        self.totals.upgraded(waited);
        if let Some(lock) = lock {
            let lock = self.directory.lock_mut(lock);
            lock.grants += 1;
            if queued {
                lock.contended += 1;
                lock.waited += waited;
            }
        }
        if let Some(session) = self.session(peer) {
            session.say(&Response::Changed { id, token, mode: Mode::Exclusive });
        }
        self.note("upgraded", peer, place);
    }

    /// The combiner has made it shared: a downgrade, an upgrade that was given up, or one that could not be given.
    pub(super) fn downgraded(&mut self, peer: u32, place: u32, token: u64) {
        let renewed = !self.is_recovering() && self.durable.before_grant(token).is_ok();
        self.waits_no_more(peer, place);
        let Some(request) = self.at(peer, place) else { return };
        let Stage::Held { token: held } = request.stage else { return };
        // If the new token cannot be promised, nothing is granted any more: the old one will do.
        let token = if renewed { token } else { held };
        let told = request.change.take() != Some(Change::Undone);
        let was = std::mem::replace(&mut request.units.mode, Mode::Shared);
        request.stage = Stage::Held { token };
        let id = request.id;
        self.note_downgrade(peer, place, was, held);
        if told {
            self.totals.downgrades += 1;
            if let Some(session) = self.session(peer) {
                session.say(&Response::Changed { id, token, mode: Mode::Shared });
            }
        }
    }

    /// The combiner has not upgraded it. `false` if the request was not to be changed at all.
    pub(super) fn stays(&mut self, peer: u32, place: u32, why: &DenyReason) -> bool {
        let Some(request) = self.at(peer, place).filter(|request| request.change.is_some()) else {
            return false;
        };
        request.change = None;
        let (id, lock) = (request.id, request.lock);
        self.waits_no_more(peer, place);
        if let (DenyReason::Busy, Some(lock)) = (why, lock) {
            // Readers who only keep it are not in the way of the next one.
            self.recall_for(lock, Mode::Exclusive, Some((peer, id)));
        }
        if let Some(session) = self.session(peer) {
            session.say(&Response::Unchanged { id, why: why.clone() });
        }
        true
    }

    /// An upgrade was granted with a token that cannot be promised: back to shared. `false` if it was no upgrade.
    pub(super) fn undo(&mut self, peer: u32, place: u32, why: &str) -> bool {
        let Some(request) = self.at(peer, place).filter(|request| request.change.is_some()) else {
            return false;
        };
        request.change = Some(Change::Undone);
        let id = request.id;
        self.waits_no_more(peer, place);
        self.core.handle(ClientId(peer), CoreRequest::Downgrade { id: place }, &mut self.replies);
        if let Some(session) = self.session(peer) {
            session.say(&Response::Unchanged { id, why: DenyReason::Refused(why.to_owned()) });
        }
        true
    }

    /// An upgrade that waited does not any more.
    fn waits_no_more(&mut self, peer: u32, place: u32) {
        let Some(request) = self.at(peer, place) else { return };
        let lock = request.lock;
        if request.upgrades.take().is_some() {
            self.counts(lock).for_each(|now| now.ended(false));
        }
    }

    /// The counts of a lock, and those of all.
    fn counts(&mut self, lock: Option<u64>) -> impl Iterator<Item = &mut Now> {
        let one = lock.map(|lock| &mut self.directory.lock_mut(lock).now);
        one.into_iter().chain([&mut self.totals.now])
    }
}
