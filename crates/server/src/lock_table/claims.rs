//! Claims: after a restart, holders say what they held before anything is granted. Also how a lock is taken away from its holder.

use super::{ClientId, CoreAnswer, Kind, LockTable, RequestRecord, Stage, Units, slot};
use lockwright::wire::{RequestId, Response};
use lockwright_fabric::observe::Mode;
use lockwright_locks::combiner::core::Reply;
use std::time::{Duration, Instant};

impl LockTable {
    /// A lock that a session of an earlier run held: held again, with its token, unless another session has a better claim.
    pub(super) fn claim(
        &mut self,
        peer: u32,
        lock: u64,
        id: RequestId,
        units: Units,
        (token, epoch, key): (u64, u64, u128),
    ) {
        if !self.is_recovering() && self.accepts(epoch, key, token) {
            return self.attach(peer, lock, id, units, (token, key));
        }
        let heard = self.is_recovering() && units.start < units.end && self.accepts(epoch, key, token);
        if !heard {
            self.totals.lost += 1;
            return self.say(peer, &Response::Lost { id });
        }
        // If it cannot be written, this run is not open for the next one either, which hears the claim again.
        if !self.rules.claims_unwritten {
            let _ = self.durable.before_grant(token);
            self.durable.claims(key);
        }
        let stage = Stage::Held { token };
        let request = RequestRecord::new(id, Some(lock), units, self.now, stage, false);
        let asked = self.request_for(&request, lock, false);
        let rivals = match self.directory.lock(lock).kind {
            Kind::Semaphores => self.permit_rivals(lock, &units),
            _ => self.rivals(lock, &units),
        };
        // Of two who believe that they hold it, the one with the smaller token has lost it and does not know.
        if rivals.iter().any(|(_, _, other)| *other > token) {
            self.totals.lost += 1;
            return self.say(peer, &Response::Lost { id });
        }
        for (rival, rival_id, _) in rivals {
            self.take_away(rival, rival_id);
        }
        let Some(session) = self.sessions.get_mut(peer as usize).and_then(Option::as_mut) else { return };
        if !self.rules.claims_unwritten {
            session.noted = true;
            if !session.claimed.contains(&key) {
                session.claimed.push(key);
            }
            self.durable.holds(peer, session.key);
        }
        if let Err(why) = session.put(request) {
            return self.refuse(peer, id, why);
        }
        self.directory.use_again(lock).now.claimed();
        self.totals.now.claimed();
        self.totals.claimed += 1;
        self.decide();
        self.core.handle(ClientId(peer), asked, &mut self.replies);
        debug_assert!(matches!(self.replies[..], [Reply { answer: CoreAnswer::Granted { .. }, .. }]));
        self.replies.clear();
        self.note("claimed", peer, slot(id));
        self.say(peer, &Response::Granted { id, token });
    }

    /// The client `peer`, whose session of an earlier run had this key, has claimed all that it still holds.
    pub(super) fn all_claimed(&mut self, peer: u32, key: u128) {
        // It may have had a session since that no server has heard of.
        let own = self.session(peer).map_or(key, |session| session.key);
        let is_last = self.has_claimed(key);
        if self.has_claimed(own) || is_last {
            tracing::info!("all locks that were held are claimed");
            self.open();
        }
        for key in [key, own] {
            self.settle(peer, key);
        }
    }

    /// The client `peer` has stopped what it did under the locks of its earlier session with this key.
    pub(super) fn release_all(&mut self, peer: u32, key: u128) {
        let earlier = self.sessions.iter().enumerate().find(|(number, session)| {
            *number != peer as usize && session.as_ref().is_some_and(|session| session.key == key)
        });
        let Some((number, Some(session))) = earlier else { return };
        let ids: Vec<_> = session.slots.iter().flatten().map(|request| request.id).collect();
        for id in ids {
            self.unlock(number as u32, id);
        }
        self.decide();
    }

    /// Who holds what conflicts with these units: session, request, token.
    fn rivals(&self, lock: u64, units: &Units) -> Vec<(u32, RequestId, u64)> {
        let keyed = self.directory.lock(lock).kind == Kind::Keyed;
        let conflicts = |other: &Units| {
            (units.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
                && (keyed || units.start < other.end && other.start < units.end)
        };
        self.holders(lock)
            .filter(|(_, request, _)| conflicts(&request.units))
            .map(|(p, r, t)| (p, r.id, t))
            .collect()
    }

    /// Who would have to give up its permits of a semaphore for this claim: those with the smallest tokens, until there are enough.
    fn permit_rivals(&self, lock: u64, units: &Units) -> Vec<(u32, RequestId, u64)> {
        let mut holders: Vec<_> =
            self.holders(lock).map(|(p, request, t)| (t, p, request.id, request.units)).collect();
        holders.sort_unstable_by_key(|(token, ..)| *token);
        let mut held: u64 = holders.iter().map(|(.., units)| units.start).sum();
        let mut rivals = Vec::new();
        for (token, peer, id, theirs) in holders {
            if theirs.end == units.end && held + units.start < units.end {
                break;
            }
            held -= theirs.start;
            rivals.push((peer, id, token));
        }
        rivals
    }

    /// All holders of `lock`.
    pub(crate) fn holders(&self, lock: u64) -> impl Iterator<Item = (u32, &RequestRecord, u64)> {
        let sessions =
            self.sessions.iter().enumerate().filter_map(|(peer, session)| Some((peer, session.as_ref()?)));
        let requests = sessions.flat_map(|(peer, session)| {
            session.slots.iter().flatten().map(move |request| (peer as u32, request))
        });
        requests.filter_map(move |(peer, request)| match request.stage {
            Stage::Held { token } if request.lock == Some(lock) => Some((peer, request, token)),
            _ => None,
        })
    }

    /// Takes a lock away from its holder, who is told.
    pub(crate) fn take_away(&mut self, peer: u32, id: RequestId) {
        self.remember(peer, id, super::history::GrantEnd::TakenAway);
        if self.unlock(peer, id) {
            self.totals.lost += 1;
            self.say(peer, &Response::Lost { id });
        }
    }

    /// The request has waited for so long, in an earlier run for the most part: it keeps its place among those who wait for claims.
    pub(super) fn waited(&mut self, peer: u32, id: RequestId, long: Duration) {
        let since = self.now.checked_sub(long);
        let request = self.session(peer).and_then(|session| session.request(id));
        let waits = request.filter(|request| matches!(request.stage, Stage::HeldBack));
        if let (Some(request), Some(since)) = (waits, since) {
            request.since = since;
        }
    }

    /// Claims are over: the requests held back until now are served, the oldest first. Upgrades come before all of them, as
    /// always.
    pub(crate) fn open(&mut self) {
        let Some(mut held_back) = self.held_back.take() else { return };
        held_back.sort_by_cached_key(|(peer, id)| {
            let request = self.session(*peer).and_then(|session| session.request(*id));
            request.filter(|request| matches!(request.stage, Stage::HeldBack)).map(|request| request.since)
        });
        self.now = Instant::now();
        tracing::info!(waiting = held_back.len(), "claims are over");
        if let Err(why) = self.durable.open() {
            tracing::error!("{why}");
        }
        for (peer, id) in held_back {
            let Some(request) = self.session(peer).and_then(|session| session.request(id)) else { continue };
            if !matches!(request.stage, Stage::HeldBack) {
                self.upgrade_at_last(peer, id);
                continue;
            }
            request.stage = Stage::Waiting;
            let request = self.sessions[peer as usize]
                .as_ref()
                .and_then(|session| session.slots[slot(id) as usize].as_ref());
            let request = request.expect("just seen");
            let lock = request.lock.expect("only the server's own locks wait for claims");
            let asked = self.request_for(request, lock, true);
            self.core.handle(ClientId(peer), asked, &mut self.replies);
        }
        self.answer_all();
        self.tell_all_watchers();
        self.join_those_who_wait();
    }
}
