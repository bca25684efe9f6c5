//! The table of a shard on its way from one owner to the next: written down by the last, and how clients go on from it.
//!
//! | what the table says | at the new owner |
//! |---|---|
//! | a session holds or wants something | the session is there, *absent*: without its client |
//! | its client claims what it holds | it holds it in its new session, with the same token |
//! | it has claimed all | what it wants stands where it stood, what was granted to it meanwhile it is told, and what it did not ask for is given up |
//! | it does not come | its locks go to others when it has been waited for as long as for a claim |
//!
//! Changes of what is held that were under way are asked for again by their clients, and so are the members of a set behind the first
//! that waits. Values are in etcd, and locks of a shard do not stay with their clients between uses.
//!
//! What this file must not do: let a client have more than the last owner gave it.

mod table;
mod tables;

pub(crate) use self::table::HandedTable;
use self::table::{HandedRequest, HandedSession};
pub(crate) use self::tables::Tables;

use super::{ClientId, CoreAnswer, CoreRequest, Kind, LockTable, RequestRecord, Stage, Units, slot};
use crate::session::{Session, Space};
use lockwright::wire::{RequestId, Response};
use lockwright_cluster::keys::{ServerId, SessionKey};
use lockwright_fabric::backend::tcp::SessionEnd;
use lockwright_fabric::observe::Mode;
use std::collections::BTreeMap;
use std::time::Instant;

impl LockTable {
    /// All that is held and wanted in a shard that was handed to `to`; with `proof`, which etcd has, too. `None` if it may change.
    pub(crate) fn hand_over(&self, to: ServerId, proof: u128, now: Instant) -> Option<HandedTable> {
        let (mut sessions, mut requests) = (Vec::<HandedSession>::new(), Vec::new());
        let mut known = BTreeMap::new();
        for holding in self.core.holdings() {
            let peer = holding.client.0;
            let session = self.sessions.get(peer as usize)?.as_ref()?;
            let request = session.slots.get(holding.id as usize)?.as_ref()?;
            let (Some(Space::Own(space)), Some(lock)) = (&session.space, request.lock) else { return None };
            let at = *known.entry(peer).or_insert_with(|| {
                let space = self.directory.space_name(*space).to_vec();
                sessions.push(HandedSession { key: session.key, space, label: session.label.clone() });
                sessions.len() - 1
            });
            let token = match request.stage {
                Stage::Held { token } => Some(token),
                Stage::Waiting => None,
                _ => return None,
            };
            let lock = self.directory.lock(lock);
            requests.push(HandedRequest {
                session: at,
                id: request.id,
                kind: lock.kind,
                name: lock.name.clone(),
                units: Units { handle: 0, ..request.units },
                token,
                before: request.before,
                kept: request.kept,
                age: now.saturating_duration_since(request.since),
            });
        }
        let keys = sessions.iter().map(|session| session.key).collect();
        let of = self.sharded.as_ref()?.shard.handover(to, keys)?;
        Some(HandedTable { of, proof, sessions, requests })
    }

    /// The shard goes on from the last owner's table. An error leaves this one of no use.
    pub(crate) fn inherit(&mut self, table: &HandedTable) -> Result<(), &'static str> {
        const FULL: &str = "there is no room for it";
        let sharded = self.sharded.as_mut().ok_or("this is no shard")?;
        if !sharded.shard.inherit(&table.of) {
            return Err("it is for another owner, or claims were heard");
        }
        let mut peers = Vec::new();
        for HandedSession { key, space, label } in &table.sessions {
            let space = self.directory.space(space).ok_or(FULL)?;
            let peer = self.admit(label).ok_or(FULL)?;
            self.directory.enter(space);
            let session = self.session(peer).ok_or(FULL)?;
            (session.key, session.space) = (*key, Some(Space::Own(space)));
            (session.absent, session.registered, session.noted) = (true, true, true);
            peers.push((peer, space));
        }
        for request in &table.requests {
            let (peer, space) =
                *peers.get(request.session).ok_or("it names a session that it does not have")?;
            self.inherit_request(peer, space, request)?;
        }
        self.open();
        Ok(())
    }

    fn inherit_request(
        &mut self,
        peer: u32,
        space: u64,
        request: &HandedRequest,
    ) -> Result<(), &'static str> {
        let HandedRequest { id, kind, name, units, token, before, kept, age, .. } = request;
        let shard = &self.sharded.as_ref().ok_or("this is no shard")?.shard;
        if token.is_some_and(|token| shard.is_broken(token)) {
            return Ok(());
        }
        if units.start >= units.end || token.is_some_and(|token| token >= shard.first_token()) {
            return Err("it makes no sense");
        }
        let lock = self.directory.open(space, *kind, name.clone()).ok_or("there are too many names")?;
        let stage = token.map_or(Stage::Waiting, |token| Stage::Held { token });
        let since = self.now.checked_sub(*age).unwrap_or(self.now);
        let mut record = RequestRecord::new(*id, Some(lock), *units, since, stage, token.is_none());
        (record.before, record.kept) = (*before, *kept);
        let asked = self.request_for(&record, lock, token.is_none());
        self.session(peer).ok_or("it has no session")?.put(record)?;
        let counts = [&mut self.directory.lock_mut(lock).now, &mut self.totals.now];
        counts.into_iter().for_each(|now| if token.is_some() { now.claimed() } else { now.asked() });
        self.core.handle(ClientId(peer), asked, &mut self.replies);
        if token.is_some() {
            let is_had =
                matches!(self.replies[..], [reply] if matches!(reply.answer, CoreAnswer::Granted { .. }));
            self.replies.clear();
            if !is_had {
                return Err("it says that two hold what one can hold");
            }
        }
        // Who waited for an upgrade alone waits no more.
        self.answer_all();
        Ok(())
    }

    /// Sessions of the last owner's table whose client is the one that had `key`.
    fn absent_of(&self, key: SessionKey) -> impl Iterator<Item = (u32, &Session)> {
        let absent = self.sessions.iter().enumerate().filter_map(|(peer, session)| {
            Some((peer as u32, session.as_ref().filter(|session| session.absent)?))
        });
        let shard = self.sharded.as_ref().map(|sharded| &sharded.shard);
        absent.filter(move |(_, session)| shard.is_some_and(|shard| shard.are_of_one(session.key, key)))
    }

    /// What the client `peer` claims it holds by the last owner's table, which it had with `token` in the session `key`.
    pub(super) fn attach(
        &mut self,
        peer: u32,
        lock: u64,
        id: RequestId,
        units: Units,
        (token, key): (u64, SessionKey),
    ) {
        let kind = self.directory.lock(lock).kind;
        let has = |request: &&RequestRecord| {
            let Stage::Held { token: held } = request.stage else { return false };
            let (has, wants) = (&request.units, &units);
            let is_all = match kind {
                Kind::Keyed => true,
                Kind::Ranges => has.start <= wants.start && wants.end <= has.end && wants.start < wants.end,
                Kind::Semaphores => (has.start, has.end) == (wants.start, wants.end),
            };
            // A change may have been made of which the client has not heard. It has asked for it, so it claims what is less.
            let is_it = [Some(held), request.before, request.kept].contains(&Some(token));
            let is_less = wants.mode == Mode::Shared || has.mode == Mode::Exclusive;
            request.lock == Some(lock) && is_it && is_less && is_all
        };
        let found = self.absent_of(key).find_map(|(absent, session)| {
            Some((absent, session.slots.iter().flatten().find(has).map(|request| request.id)?))
        });
        let free = self.session(peer).is_some_and(|session| !session.has_slot_of(id));
        let part = found.filter(|_| free).and_then(|(absent, theirs)| match kind {
            Kind::Ranges => Some((absent, self.cut_out(absent, theirs, &units)?)),
            _ => Some((absent, theirs)),
        });
        let Some(mut request) = part.and_then(|from| self.pass_on(from, (peer, id), units)) else {
            self.totals.lost += 1;
            return self.say(peer, &Response::Lost { id });
        };
        if units.mode == Mode::Shared && request.units.mode == Mode::Exclusive {
            request.units.mode = Mode::Shared;
            let ask = CoreRequest::Downgrade { id: slot(id) };
            self.core.handle(ClientId(peer), ask, &mut self.replies);
            // The first is about this; others are let in by it.
            if let CoreAnswer::Downgraded { token } = self.replies.remove(0).answer
                && self.durable.before_grant(token).is_ok()
            {
                request.stage = Stage::Held { token };
            }
        }
        // It may have heard of a later one than it went on with.
        request.kept = request.kept.filter(|kept| *kept == token);
        let token = request.owners_token().unwrap_or(token);
        if let Some(session) = self.session(peer) {
            session.noted = true;
            let _ = session.put(request);
        }
        self.totals.claimed += 1;
        self.note("claimed", peer, slot(id));
        self.say(peer, &Response::Granted { id, token });
    }

    /// The client `peer`, which had the session `key`, has claimed all that it holds. What else it has by the last owner's table it
    /// goes on with if it asks for it again; or else others get it.
    pub(super) fn settle(&mut self, peer: u32, key: SessionKey) {
        for absent in self.absent_of(key).map(|(absent, _)| absent).collect::<Vec<_>>() {
            let requests = self.session(absent).map(|session| session.slots.clone()).unwrap_or_default();
            let is_held = |request: &RequestRecord| matches!(request.stage, Stage::Held { .. });
            // The next member of a set is asked for once the one before it is granted.
            let (held, waiting): (Vec<_>, Vec<_>) = requests.into_iter().flatten().partition(is_held);
            held.into_iter().chain(waiting).for_each(|request| self.go_on(absent, &request, peer));
            self.depart(absent, SessionEnd::Goodbye);
        }
    }

    /// If the client `peer` asks for what it asked the last owner for, that is its request.
    fn go_on(&mut self, absent: u32, theirs: &RequestRecord, peer: u32) {
        let id = theirs.id;
        let is_held = matches!(theirs.stage, Stage::Held { .. });
        let asks = |own: &&mut RequestRecord| {
            let is_asked = match own.stage {
                Stage::Waiting => true,
                Stage::Behind => is_held,
                _ => false,
            };
            let of = |units: &Units| (units.mode, units.start, units.end);
            is_asked && own.lock == theirs.lock && of(&own.units) == of(&theirs.units)
        };
        let Some(session) = self.session(peer) else { return };
        if session.request(id).filter(asks).is_none() {
            return;
        }
        let Some(own) = session.take(id) else { return };
        if matches!(own.stage, Stage::Waiting) {
            self.core.handle(ClientId(peer), CoreRequest::Cancel { id: slot(id) }, &mut self.replies);
        }
        self.forget(peer, &own);
        let Some(request) = self.pass_on((absent, id), (peer, id), own.units) else { return };
        let token = request.owners_token();
        let Some(session) = self.session(peer) else { return };
        let _ = session.put(RequestRecord { next: own.next, ..request });
        if let Some(token) = token {
            session.say(&Response::Granted { id, token });
            self.note("claimed", peer, slot(id));
            if let Some(next) = own.next {
                self.take_turn(peer, next);
            }
        }
        self.decide();
    }

    /// What the absent session holds or wants is that of `peer` from now on, which still has to put it into its slot.
    fn pass_on(
        &mut self,
        (absent, theirs): (u32, RequestId),
        (peer, id): (u32, RequestId),
        units: Units,
    ) -> Option<RequestRecord> {
        let (from, to) = ((ClientId(absent), slot(theirs)), (ClientId(peer), slot(id)));
        self.core.pass_on(from, to).ok()?;
        let request = self.session(absent)?.take(theirs)?;
        let units = Units { handle: units.handle, thread: units.thread, ..request.units };
        Some(RequestRecord { id, units, ..request })
    }

    /// Makes these units of a held range a request of their own, and says which.
    fn cut_out(&mut self, peer: u32, id: RequestId, units: &Units) -> Option<RequestId> {
        let has = self.session(peer)?.request(id)?.units;
        let id = if has.start < units.start { self.cut(peer, id, units.start)? } else { id };
        if units.end < has.end {
            self.cut(peer, id, units.end)?;
        }
        Some(id)
    }

    /// Cuts a held range in two, and says which request the second piece is.
    fn cut(&mut self, peer: u32, id: RequestId, at: u64) -> Option<RequestId> {
        let session = self.session(peer)?;
        let rest = session.slots.len() as RequestId;
        let left = session.request(id)?;
        let mut right = RequestRecord { id: rest, ..left.clone() };
        right.units.start = at;
        session.put(right).ok()?;
        let left = session.request(id)?;
        left.units.end = at;
        let lock = left.lock?;
        let counts = [&mut self.directory.use_again(lock).now, &mut self.totals.now];
        counts.into_iter().for_each(|now| now.claimed());
        let ask = CoreRequest::UnlockPart { id: slot(id), start: at, end: at, rest: slot(rest) };
        self.core.handle(ClientId(peer), ask, &mut self.replies);
        self.answer_all();
        Some(rest)
    }

    /// Absent sessions end whose clients are out of the registry: they were waited for long enough, or came and died.
    pub(super) fn forget_absent(&mut self) {
        let Some(sharded) = &self.sharded else { return };
        let is_gone = |session: &&Session| session.absent && !sharded.shard.knows(session.key);
        let sessions = self.sessions.iter().enumerate();
        let gone = sessions.filter(|(_, session)| session.as_ref().filter(is_gone).is_some());
        for peer in gone.map(|(peer, _)| peer as u32).collect::<Vec<_>>() {
            self.depart(peer, SessionEnd::Lost);
        }
    }

    /// A part of a table that another server hands over.
    pub(super) fn hear_table(&mut self, peer: u32, id: RequestId, last: bool, bytes: &[u8]) {
        let Some(serial) = self.session(peer).map(|session| session.serial) else { return };
        let heard = match &self.tables {
            Some(tables) => tables.hear(serial, bytes, last),
            None => Err("this server is none of a cluster"),
        };
        match heard {
            Ok(()) if last => self.say(peer, &Response::Page { id, more: false, bytes: Vec::new() }),
            Ok(()) => {}
            Err(why) => self.refuse(peer, id, why),
        }
    }
}
