//! Everything a server knows: sessions, what they hold and want, names, and the combiner that decides.
//!
//! A state machine that one thread at a time has open: requests come in, answers leave by the sessions' inboxes in the order
//! in which they were decided. After a restart it begins by hearing claims: what was held is held again, and everybody
//! else waits.
//!
//! Locks and unlocks are only noted at first, and [decided](Books::decide) together: at the end of a pass, or before anything
//! that depends on what is decided or is said to anybody. So everybody is told the same, in the same order, as if they had
//! been decided one by one.
//!
//! Changes of what is held are in `changes`.
//!
//! What this file must not do: let one session's nonsense reach another, or wait for anything but its own disk.

mod changes;

use super::directory::Directory;
use super::durable::Durable;
use super::session::{MAX_REQUESTS, Name, Place, Request, Session, Stage};
use super::totals::Totals;
use lockwright::wire::Kind;
use lockwright::wire::{Answer, RequestId, Units, Why, slot};
use lockwright_fabric::backend::tcp::SessionEnd;
use lockwright_fabric::observe::Mode;
use lockwright_locks::combiner::core::{
    Answer as Decided, ClientId, Core, Limits, NAMES, Refusal, Reply, Request as Asked,
};
use std::time::Instant;

/// Clients at a time.
pub(super) const MAX_SESSIONS: usize = 1 << 16;
/// An answer is sent at least after so many requests, so that the client can forget them.
const ACK_EVERY: u64 = 64;

/// The books of a server.
#[derive(Debug)]
pub(super) struct Books {
    core: Core,
    pub(super) directory: Directory,
    pub(super) sessions: Vec<Option<Session>>,
    free: Vec<u32>,
    pub(super) durable: Durable,
    /// Requests that wait until claims are over; `None` once they are.
    held_back: Option<Vec<(u32, RequestId)>>,
    pub(super) totals: Totals,
    /// Noted, and not yet decided; empty between passes.
    asked: Vec<(ClientId, Asked)>,
    replies: Vec<Reply>,
    /// How many of them were passed on; all, unless that panicked.
    answered: usize,
    /// When this pass began.
    now: Instant,
}

impl Books {
    /// Empty books. `recovering`: claims are to be heard first.
    pub(super) fn new(durable: Durable, recovering: bool) -> Self {
        let mut core = Core::new(Limits { clients: MAX_SESSIONS as u32 + 2, ids: MAX_REQUESTS });
        core.handle(ClientId(0), Asked::Raise { token: durable.first_token() }, &mut Vec::new());
        Self {
            core,
            directory: Directory::default(),
            sessions: vec![None],
            free: Vec::new(),
            durable,
            held_back: recovering.then(Vec::new),
            totals: Totals::default(),
            asked: Vec::new(),
            replies: Vec::new(),
            answered: 0,
            now: Instant::now(),
        }
    }

    pub(super) const fn is_recovering(&self) -> bool {
        self.held_back.is_some()
    }

    /// Requests held and waiting, in the server's own spaces.
    pub(super) fn requests(&self) -> usize {
        self.core.len()
    }

    #[cfg(test)]
    pub(super) const fn core(&self) -> &Core {
        &self.core
    }

    /// Notes are about to be handled.
    pub(super) fn begin_pass(&mut self) {
        self.now = Instant::now();
        self.totals.passes += 1;
    }

    /// Lets the combiner decide about everything that was noted, and passes it on.
    #[inline]
    pub(super) fn decide(&mut self) {
        if !self.asked.is_empty() || !self.replies.is_empty() {
            self.decide_all();
        }
    }

    fn decide_all(&mut self) {
        let mut asked = std::mem::take(&mut self.asked);
        self.core.serve(&asked, &mut self.replies);
        self.answer_all();
        for (ClientId(peer), asked) in asked.drain(..) {
            if let Asked::Lock { id: place, .. } | Asked::Upgrade { id: place, .. } = asked
                && let Some(session) = self.session(peer)
                && let Some(request) = session.slots.get_mut(place as usize).and_then(Option::as_mut)
                && (matches!(request.stage, Stage::Waiting) || request.upgrades.is_some())
            {
                request.queued = true;
            }
        }
        self.asked = asked;
    }

    /// Whether this is the session's next message, which is then taken. Others were said again after a broken connection, or
    /// too early: then they will be said again.
    #[inline]
    pub(super) fn takes(&mut self, peer: u32, seq: u64) -> bool {
        let Some(session) = self.session(peer).filter(|session| seq == session.taken + 1) else {
            return false;
        };
        session.taken = seq;
        true
    }

    /// A place for a new client; numbers start at one.
    pub(super) fn admit(&mut self, label: &str) -> Option<u32> {
        let peer = match self.free.pop() {
            Some(peer) => peer,
            None if self.sessions.len() <= MAX_SESSIONS => {
                self.sessions.push(None);
                self.sessions.len() as u32 - 1
            }
            None => return None,
        };
        self.totals.sessions += 1;
        self.totals.sessions_begun += 1;
        let serial = self.totals.sessions_begun;
        self.sessions[peer as usize] =
            Some(Session { label: label.to_owned(), serial, ..Session::default() });
        Some(peer)
    }

    pub(super) fn session(&mut self, peer: u32) -> Option<&mut Session> {
        self.sessions.get_mut(peer as usize)?.as_mut()
    }

    /// Says something that the combiner has not decided, behind all that it has.
    pub(super) fn say(&mut self, peer: u32, answer: &Answer) {
        self.decide();
        if let Some(session) = self.session(peer) {
            session.say(answer);
        }
    }

    /// Refuses something, in words, to the one who asked for it.
    pub(super) fn refuse(&mut self, peer: u32, id: RequestId, why: impl Into<String>) {
        self.totals.refused += 1;
        self.say(peer, &Answer::Refused { id, why: why.into() });
    }

    /// Tells the client how far the server got, if it has not heard for a while.
    #[inline]
    pub(super) fn ack(&mut self, peer: u32) {
        let is_due = |session: &&mut Session| session.taken - session.told >= ACK_EVERY;
        if self.session(peer).filter(is_due).is_some() {
            // Any answer will do.
            self.decide();
            if let Some(session) = self.session(peer).filter(is_due) {
                session.say(&Answer::Ack);
            }
        }
    }

    /// A client is gone: everything it held or wanted ends in one step.
    pub(super) fn depart(&mut self, peer: u32, how: SessionEnd) {
        self.decide();
        let Some(session) = self.sessions.get_mut(peer as usize).and_then(Option::take) else { return };
        self.totals.sessions -= 1;
        let holds = session.slots.iter().flatten().any(|request| matches!(request.stage, Stage::Held { .. }));
        if how == SessionEnd::Lost {
            self.totals.sessions_lost += 1;
            if holds && let Err(why) = self.durable.gone(session.key) {
                // Nothing is granted any more, so nobody gets what it held.
                eprintln!("lockwright: {why}");
            }
        }
        if let Some(guest) = &session.lent {
            guest.depart(how);
        }
        for request in session.slots.into_iter().flatten() {
            self.forget(&request);
        }
        for name in session.handles.into_values() {
            match (name, &session.place) {
                (Name::Own(lock), _) => self.directory.close(lock),
                (Name::Lent { name, .. }, Some(Place::Lent(space))) => space.close(&name),
                _ => {}
            }
        }
        self.core.depart(ClientId(peer), &mut self.replies);
        self.free.push(peer);
        self.answer_all();
    }

    /// A request that is over, as far as counts are concerned.
    fn forget(&mut self, request: &Request) {
        let Some(id) = request.lock else { return };
        let held = matches!(request.stage, Stage::Held { .. });
        let upgrades = request.upgrades.is_some();
        self.directory.close_after(id, |lock| {
            lock.now.ended(held);
            if upgrades {
                lock.now.ended(false);
            }
        });
        self.totals.now.ended(held);
        if upgrades {
            self.totals.now.ended(false);
        }
        if held {
            self.totals.hold.add(self.now - request.since);
        }
    }

    /// Asks the combiner about what `lock` is made of.
    fn request_for(&self, request: &Request, lock: u64, wait: bool) -> Asked {
        let Units { mode, start, end, .. } = request.units;
        let id = slot(request.id);
        match self.directory.lock(lock).kind {
            Kind::Keyed => Asked::Lock { id, lock: NAMES, mode, start: lock, end: lock + 1, wait },
            Kind::Ranges => Asked::Lock { id, lock, mode, start, end, wait },
        }
    }

    /// A request for a lock of the server's own.
    pub(super) fn lock(&mut self, peer: u32, lock: u64, id: RequestId, units: Units, wait: bool) {
        if units.start >= units.end {
            return self.refuse(peer, id, "the range is empty or reversed");
        }
        if self.is_recovering() && !wait {
            // Somebody may still claim it.
            self.totals.busy += 1;
            return self.say(peer, &Answer::Busy { id });
        }
        let stage = if self.is_recovering() { Stage::HeldBack } else { Stage::Waiting };
        let queued = self.is_recovering();
        let request = Request::new(id, Some(lock), units, self.now, stage, queued);
        let asked = self.request_for(&request, lock, wait);
        if self.session(peer).is_some_and(|session| session.has_slot_of(id)) {
            // The other request may come to nothing.
            self.decide();
        }
        let Some(session) = self.session(peer) else { return };
        if let Err(why) = session.put(request) {
            return self.refuse(peer, id, why);
        }
        self.directory.use_again(lock).now.asked();
        self.totals.now.asked();
        if let Some(held_back) = &mut self.held_back {
            held_back.push((peer, id));
            return;
        }
        self.asked.push((ClientId(peer), asked));
    }

    /// Gives a lock back, or gives a request up. Says whether it was held until now.
    pub(super) fn unlock(&mut self, peer: u32, id: RequestId) -> bool {
        let open =
            |request: &&mut Request| matches!(request.stage, Stage::Waiting) || request.change.is_some();
        if self.session(peer).and_then(|session| session.request(id)).filter(open).is_some() {
            // It may be granted, or changed, by what was noted before.
            self.decide();
        }
        let Some(request) = self.session(peer).and_then(|session| session.take(id)) else { return false };
        self.forget(&request);
        let held = match &request.stage {
            Stage::Exported(held) => held.is_held(),
            stage => matches!(stage, Stage::Held { .. }),
        };
        let id = slot(id);
        match request.stage {
            Stage::Held { .. } => self.asked.push((ClientId(peer), Asked::Unlock { id })),
            Stage::Waiting => self.asked.push((ClientId(peer), Asked::Cancel { id })),
            Stage::HeldBack | Stage::Exported(_) => {}
        }
        held
    }

    /// A lock that a session of an earlier run held: held again, with its token, unless somebody has a better claim.
    pub(super) fn claim(
        &mut self,
        peer: u32,
        lock: u64,
        id: RequestId,
        units: Units,
        (token, epoch, key): (u64, u64, u128),
    ) {
        let heard =
            self.is_recovering() && units.start < units.end && self.durable.accepts(epoch, key, token);
        if !heard || self.durable.before_grant(token).is_err() {
            self.totals.lost += 1;
            return self.say(peer, &Answer::Lost { id });
        }
        let stage = Stage::Held { token };
        let request = Request::new(id, Some(lock), units, self.now, stage, false);
        let asked = self.request_for(&request, lock, false);
        let rivals = self.rivals(lock, &units);
        // Of two who believe that they hold it, the one with the smaller token has lost it and does not know.
        if rivals.iter().any(|(_, _, other)| *other > token) {
            self.totals.lost += 1;
            return self.say(peer, &Answer::Lost { id });
        }
        for (rival, rival_id, _) in rivals {
            self.take_away(rival, rival_id);
        }
        let Some(session) = self.session(peer) else { return };
        if let Err(why) = session.put(request) {
            return self.refuse(peer, id, why);
        }
        self.directory.use_again(lock).now.claimed();
        self.totals.now.claimed();
        self.totals.claimed += 1;
        self.decide();
        self.core.handle(ClientId(peer), asked, &mut self.replies);
        debug_assert!(matches!(self.replies[..], [Reply { answer: Decided::Granted { .. }, .. }]));
        self.replies.clear();
        self.say(peer, &Answer::Granted { id, token });
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

    /// Everybody who holds `lock`.
    pub(super) fn holders(&self, lock: u64) -> impl Iterator<Item = (u32, &Request, u64)> {
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
    pub(super) fn take_away(&mut self, peer: u32, id: RequestId) {
        if self.unlock(peer, id) {
            self.totals.lost += 1;
            self.say(peer, &Answer::Lost { id });
        }
    }

    /// Claims are over: whoever waited for that is served, in the order in which they came.
    pub(super) fn open(&mut self) {
        let Some(held_back) = self.held_back.take() else { return };
        self.now = Instant::now();
        if let Err(why) = self.durable.open() {
            eprintln!("lockwright: {why}");
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
    }

    /// Passes on what the combiner decided.
    fn answer_all(&mut self) {
        // A grant that cannot be given is taken back, which can lead to others.
        while let Some(&Reply { client: ClientId(peer), id: place, answer }) = self.replies.get(self.answered)
        {
            self.answered += 1;
            match answer {
                Decided::Granted { token } => self.granted(peer, place, token),
                Decided::Busy => {
                    self.totals.busy += 1;
                    if !self.stays(peer, place, &Why::Busy) {
                        self.end(peer, place, |id| Answer::Busy { id });
                    }
                }
                Decided::Refused(why) => {
                    self.totals.refused += 1;
                    if !self.stays(peer, place, &why_not(why)) {
                        self.end(peer, place, |id| Answer::Refused { id, why: words(why) });
                    }
                }
                Decided::Downgraded { token } => self.downgraded(peer, place, token),
                // Whoever gave up has no use for the combiner's word that it is gone.
                Decided::Cancelled => {}
            }
        }
        self.replies.clear();
        self.answered = 0;
    }

    #[inline]
    fn granted(&mut self, peer: u32, place: u32, token: u64) {
        if let Err(why) = self.durable.before_grant(token) {
            if self.undo(peer, place, &why) {
                return;
            }
            self.core.handle(ClientId(peer), Asked::Cancel { id: place }, &mut self.replies);
            return self.end(peer, place, |id| Answer::Refused { id, why });
        }
        let now = self.now;
        let Some(session) = self.sessions.get_mut(peer as usize).and_then(Option::as_mut) else { return };
        let Some(request) = session.slots.get_mut(place as usize).and_then(Option::as_mut) else { return };
        if request.change.is_some() {
            return self.upgraded(peer, place, token);
        }
        let waited = now - request.since;
        (request.stage, request.since) = (Stage::Held { token }, now);
        let (id, lock) = (request.id, request.lock.expect("the combiner decides about the server's own"));
        let (shared, queued) = (request.units.mode == Mode::Shared, request.queued);
        let lock = self.directory.lock_mut(lock);
        lock.now.granted();
        lock.grants += 1;
        self.totals.grant(shared, waited);
        if queued {
            lock.contended += 1;
            lock.waited += waited;
        }
        session.say(&Answer::Granted { id, token });
    }

    /// A request that came to nothing.
    fn end(&mut self, peer: u32, place: u32, answer: impl FnOnce(RequestId) -> Answer) {
        let Some(session) = self.session(peer) else { return };
        let Some(request) = session.slots.get_mut(place as usize).and_then(Option::take) else { return };
        session.say(&answer(request.id));
        self.forget(&request);
    }
}

/// What is said of a change that was refused.
fn why_not(why: Refusal) -> Why {
    match why {
        Refusal::UpgradeConflict => Why::Deadlock,
        why => Why::Refused(words(why)),
    }
}

fn words(why: Refusal) -> String {
    match why {
        Refusal::TooLarge => "the server allows no more clients or requests".to_owned(),
        why => why.to_string(),
    }
}
