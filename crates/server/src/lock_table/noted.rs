//! What goes into the server's record: every grant, change and end of one, in the order in which the table makes them.

use super::{LockTable, RequestRecord, Stage, slot};
use crate::session::Space;
use lockwright::record::{Event, served_space};
use lockwright::wire::RequestId;
use lockwright_fabric::backend::tcp::SessionEnd;
use lockwright_fabric::observe::{Claim, Mode};

impl LockTable {
    /// Notes what becomes of the request at a client's `place`, if it is held and there is a record.
    #[inline]
    pub(super) fn note(&mut self, event: &str, peer: u32, place: u32) {
        if self.record.is_some() {
            self.note_as(event, peer, place, |_| {});
        }
    }

    /// The same of a request that is about to be taken out.
    #[inline]
    pub(super) fn note_end(&mut self, peer: u32, id: RequestId) {
        if self.record.is_some() && self.session(peer).is_some_and(|session| session.request(id).is_some()) {
            self.note_as("released", peer, slot(id), |_| {});
        }
    }

    /// These units of it are about to be given back.
    pub(super) fn note_part(&mut self, peer: u32, id: RequestId, (start, end): (u64, u64)) {
        if self.record.is_some() && start < end {
            self.note_as("gives", peer, slot(id), |claim| (claim.start, claim.end) = (start, end));
        }
    }

    /// It stays with its client, whose further grants have these tokens: the first, and how many.
    pub(super) fn note_retained(&mut self, peer: u32, place: u32, (first, count): (u64, u64)) {
        if self.record.is_some() {
            self.note_as("retained", peer, place, |claim| (claim.start, claim.end) = (first, first + count));
        }
    }

    /// It was exclusive, and has just become shared; `before` is the token that it had.
    pub(super) fn note_downgrade(&mut self, peer: u32, place: u32, was: Mode, before: u64) {
        if self.record.is_none() {
            return;
        }
        if was == Mode::Exclusive {
            self.note_with("downgrades", peer, place, Some(before), |_| {});
        }
        self.note_as("downgraded", peer, place, |_| {});
    }

    /// A client is gone, and with it all that it holds.
    pub(super) fn note_departure(&mut self, peer: u32, how: SessionEnd) {
        if self.record.is_none() {
            return;
        }
        let event = if how == SessionEnd::Lost { "lost" } else { "released" };
        let places = self.session(peer).map_or(0, |session| session.slots.len());
        for place in 0..places as u32 {
            self.note_as(event, peer, place, |_| {});
        }
    }

    fn note_as(&mut self, event: &str, peer: u32, place: u32, change: impl FnOnce(&mut Claim)) {
        self.note_with(event, peer, place, None, change);
    }

    #[cold]
    fn note_with(
        &mut self,
        event: &str,
        peer: u32,
        place: u32,
        token: Option<u64>,
        change: impl FnOnce(&mut Claim),
    ) {
        let session = self.sessions.get(peer as usize).and_then(Option::as_ref);
        // What an absent one holds is noted when its client claims it.
        let Some(session) = session.filter(|session| !session.absent) else { return };
        let Some(request) = session.slots.get(place as usize).and_then(Option::as_ref) else { return };
        let RequestRecord { lock: Some(lock), stage: Stage::Held { token: held }, units, .. } = request
        else {
            return;
        };
        let (Some(Space::Own(space)), Some(record)) = (&session.space, &mut self.record) else { return };
        let name = self.directory.space_name(*space);
        let of = self.directory.lock(*lock);
        let mut claim = Claim { lock: *lock, mode: units.mode, start: units.start, end: units.end };
        change(&mut claim);
        record.note(&Event {
            event,
            client: Some(&format!("{} #{}", session.label, session.serial)),
            space: &served_space(self.durable.id(), name),
            name: &of.name,
            kind: of.kind,
            claim,
            token: Some(token.unwrap_or(*held)),
            held: (event == "released").then_some(true),
        });
    }
}
