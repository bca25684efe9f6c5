//! How sessions enter a space, name the locks in it, and end.

use super::{ClientId, CoreRequest, LockTable, Stage};
use crate::exported::Exported;
use crate::one_sided::{OneSidedSpace, sessions};
use crate::session::{MAX_HANDLES, Space, Target};
use lockwright::LockName;
use lockwright::internal::layout::SCHEME;
use lockwright::wire::{Identity, Kind, OLDEST, PAGE, RequestId, Response, VERSION};
use lockwright_fabric::backend::tcp::SessionEnd;
use std::sync::Arc;

/// Clients are believed to have seen tokens below this. It leaves more than any server can use below 2^53, which numbers in
/// JSON can hold.
const MAX_SEEN: u64 = (1 << 53) - (1 << 44);

impl LockTable {
    /// The first request of a session: which space it is about.
    pub(super) fn open_space(
        &mut self,
        peer: u32,
        version: u64,
        key: u128,
        name: &[u8],
        one_sided: bool,
    ) -> Result<(), String> {
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(format!(
                "this server speaks version {VERSION} of lock spaces, the client version {version}"
            ));
        }
        let Some(session) = self.session(peer) else { return Ok(()) };
        if session.space.is_some() {
            return Err("a session has one space only".to_owned());
        }
        let space = self.space(name)?;
        match &space {
            Space::Own(_) | Space::Exported(_) if one_sided => {
                return Err("only spaces with one-sided access have words for clients".to_owned());
            }
            Space::Own(number) => self.directory.enter(*number),
            Space::Exported(_) | Space::OneSided(_) => {}
        }
        let recovering = self.is_recovering();
        let Some(session) = self.session(peer) else { return Ok(()) };
        (session.key, session.space, session.version) = (key, Some(space.clone()), version);
        match space {
            // Those who were in before the restart may not have noticed it, and believe that they hold locks.
            Space::OneSided(_) if one_sided && recovering && session.one_sided.is_none() => {
                session.joins_later = true;
            }
            Space::OneSided(space) if one_sided => return self.join(peer, &space),
            _ => session.say(&Response::Ack),
        }
        Ok(())
    }

    /// Makes the session a client of a one-sided space. It takes locks without asking.
    fn join(&mut self, peer: u32, space: &Arc<OneSidedSpace>) -> Result<(), String> {
        let Some(session) = self.session(peer) else { return Ok(()) };
        let (key, client) = (session.key, sessions::enter(session, space)?);
        self.durable.before_grant(self.durable.first_token())?;
        self.durable.holds(peer, key);
        let Some(session) = self.session(peer) else { return Ok(()) };
        session.noted = true;
        session.say(&Response::Joined { peer: client });
        Ok(())
    }

    /// Claims are over: sessions that had to wait for that join their one-sided spaces.
    pub(super) fn join_those_who_wait(&mut self) {
        for peer in 0..self.sessions.len() as u32 {
            let Some(session) = self.session(peer).filter(|session| session.joins_later) else { continue };
            session.joins_later = false;
            let Some(Space::OneSided(space)) = session.space.clone() else { continue };
            if let Err(why) = self.join(peer, &space) {
                self.refuse(peer, 0, why);
            }
        }
    }

    /// A client has seen this token: what is granted from now on has higher ones, whatever the clock said at the start.
    pub(super) fn raise_tokens(&mut self, seen: u64) {
        if seen < MAX_SEEN {
            let raise = CoreRequest::Raise { token: seen + 1 };
            self.core.handle(ClientId(0), raise, &mut self.replies);
        }
    }

    /// The space called `name`, made on first use.
    fn space(&mut self, name: &[u8]) -> Result<Space, String> {
        if let Some(name) = name.strip_prefix(SCHEME.as_bytes()) {
            return sessions::place(&self.one_sided, name).map(Space::OneSided);
        }
        let Some(exported) = std::str::from_utf8(name).ok().filter(|name| name.starts_with("shm:")) else {
            let name = if name.is_empty() { &b"default"[..] } else { name };
            let number = self.directory.space(name).ok_or("the server has no room for another space")?;
            return Ok(Space::Own(number));
        };
        if !self.exports.iter().any(|offered| offered == exported) {
            return Err(format!("this server does not export {exported} (see `lockwright serve --export`)"));
        }
        if let Some(opened) = self.opened.get(exported) {
            return Ok(Space::Exported(Arc::clone(opened)));
        }
        let opened = Arc::new(Exported::open(exported).map_err(|error| error.to_string())?);
        self.opened.insert(exported.to_owned(), Arc::clone(&opened));
        Ok(Space::Exported(opened))
    }

    /// Whose the locks of the session's space are.
    pub(super) fn identity(&mut self, peer: u32) -> Identity {
        let memory = match self.session(peer).and_then(|session| session.space.as_ref()) {
            Some(Space::Exported(space)) => space.identity(),
            Some(Space::OneSided(space)) => space.identity(),
            Some(Space::Own(_)) | None => None,
        };
        memory.map_or(Identity::Server(self.durable.id()), Identity::Memory)
    }

    /// From now on `handle` stands for the lock called `name`.
    pub(super) fn name(&mut self, peer: u32, handle: u64, kind: Kind, name: &LockName) {
        let Some(session) = self.session(peer) else { return };
        if session.handles.len() >= MAX_HANDLES {
            return self.refuse(peer, 0, "a client can have 262144 names open at a time, not more");
        }
        if self.directory.in_use() > self.retention.policy.most_names {
            self.relieve();
        }
        let Some(session) = self.session(peer) else { return };
        // A name that cannot be had has no handle; a request that uses it is refused.
        let target = match session.space.clone() {
            Some(Space::Own(space)) => self.directory.open(space, kind, name.clone()).map(Target::Own),
            Some(Space::Exported(space)) => space.handle(kind, name).ok().map(Target::Exported),
            Some(Space::OneSided(space)) => sessions::name(&space, name),
            None => None,
        };
        let (Some(session), Some(target)) = (self.session(peer), target) else { return };
        let space = session.space.clone();
        if let Some(before) = session.handles.insert(handle, target) {
            self.close(space.as_ref(), before);
        }
    }

    /// The handle is of no more use.
    pub(super) fn forget_name(&mut self, peer: u32, handle: u64) {
        let Some(session) = self.session(peer) else { return };
        let space = session.space.clone();
        if let Some(target) = session.handles.remove(&handle) {
            self.close(space.as_ref(), target);
        }
    }

    /// A client is gone: everything it held or wanted ends in one step.
    pub(crate) fn depart(&mut self, peer: u32, how: SessionEnd) {
        self.decide();
        self.note_departure(peer, how);
        self.remember_departure(peer, how);
        let Some(session) = self.sessions.get_mut(peer as usize).and_then(Option::take) else { return };
        self.totals.sessions -= 1;
        if let Some(tables) = &self.tables {
            tables.forget(session.serial);
        }
        let holds = session.slots.iter().flatten().any(|request| matches!(request.stage, Stage::Held { .. }));
        tracing::debug!(client = peer, label = session.label, ?how, "session over");
        if how == SessionEnd::Lost {
            self.totals.sessions_lost += 1;
            if holds {
                // Each of them, whatever becomes of the others: what cannot be written now is written before the next grant.
                let keys = std::iter::once(session.key).chain(session.claimed.iter().copied());
                if let Some(why) = keys.filter_map(|key| self.durable.gone(key).err()).last() {
                    // Nothing is granted any more, so nobody gets what it held.
                    tracing::error!("{why}");
                }
            }
        }
        if session.noted {
            self.durable.holds_no_more(peer);
        }
        if let Some(client) = &session.one_sided {
            client.depart(how);
        }
        for request in session.slots.into_iter().flatten() {
            self.forget(peer, &request);
        }
        for target in session.handles.into_values() {
            self.close(session.space.as_ref(), target);
        }
        if let Some(Space::Own(number)) = session.space {
            self.directory.leave(number);
        }
        self.core.depart(ClientId(peer), &mut self.replies);
        self.free.push(peer);
        self.answer_all();
    }

    /// One use less of what a handle stood for, in the session's space.
    pub(super) fn close(&mut self, space: Option<&Space>, target: Target) {
        match (target, space) {
            (Target::Own(lock), _) => self.directory.close(lock),
            (Target::OneSided { name, .. }, Some(Space::OneSided(space))) => space.close_name(&name),
            _ => {}
        }
    }

    /// Answers with bytes, in as many messages as they take.
    pub(super) fn answer_in_pages(
        &mut self,
        peer: u32,
        id: RequestId,
        list: impl FnOnce(&mut Self, u32) -> Result<Vec<u8>, String>,
    ) {
        let bytes = match list(self, peer) {
            Ok(bytes) => bytes,
            Err(why) => return self.refuse(peer, id, why),
        };
        let Some(session) = self.session(peer) else { return };
        let count = bytes.len().div_ceil(PAGE).max(1);
        for (at, page) in bytes.chunks(PAGE).chain(bytes.is_empty().then_some(&[][..])).enumerate() {
            session.say(&Response::Page { id, more: at + 1 < count, bytes: page.to_vec() });
        }
    }

    /// The metrics, as Prometheus reads them; `start` is when the server was started, in seconds since 1970.
    pub(crate) fn metrics(&self, start: f64) -> String {
        self.totals.text(self.directory.in_use(), self.directory.spaces(), self.is_recovering(), start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::Event;
    use crate::durable::{Durable, Journal};
    use crate::one_sided::VerbExecutor;
    use lockwright::wire::{Request, Units};
    use lockwright_fabric::PeerId;
    use lockwright_fabric::backend::tcp::Inbox;
    use lockwright_fabric::observe::Mode;
    use std::sync::Mutex;

    fn table() -> LockTable {
        let (durable, recovering) = Durable::begin(None, std::time::Duration::ZERO).unwrap();
        LockTable::new(durable, recovering, Vec::new(), Vec::new())
    }

    /// A session, with all that it is told.
    fn session(table: &mut LockTable) -> (u32, Arc<Mutex<Vec<Response>>>) {
        let peer = table.admit("1 here test").unwrap();
        let told = Arc::<Mutex<Vec<Response>>>::default();
        let heard = Arc::clone(&told);
        table.session(peer).unwrap().inbox = Some(Inbox::new(move |_: PeerId, message| {
            heard.lock().unwrap().extend(Response::decode(&message).map(|(_, response)| response));
            true
        }));
        (peer, told)
    }

    fn enter(table: &mut LockTable, peer: u32, space: &str, seen: u64) {
        let (version, space) = (VERSION, space.as_bytes().to_vec());
        let request = Request::Open { version, key: 1, space, one_sided: false, seen };
        table.apply(peer, Event::Request { seq: 1, request });
    }

    /// Locks `name`, and says with which token.
    fn lock(table: &mut LockTable, peer: u32, told: &Mutex<Vec<Response>>) -> u64 {
        let name = Request::Name { handle: 1, kind: Kind::Keyed, name: LockName::new("a").unwrap() };
        let units = Units { handle: 1, mode: Mode::Exclusive, start: 0, end: u64::MAX, thread: None };
        table.apply(peer, Event::Request { seq: 2, request: name });
        table.apply(
            peer,
            Event::Request { seq: 3, request: Request::Lock { id: 1 << 32, units, wait: true } },
        );
        table.decide();
        let told = told.lock().unwrap();
        let token = told.iter().find_map(|response| match response {
            Response::Granted { token, .. } => Some(*token),
            _ => None,
        });
        token.unwrap_or_else(|| panic!("{told:?}"))
    }

    #[test]
    fn spaces_that_nobody_uses_make_room_for_new_ones_and_tokens_rise_all_the_same() {
        let mut table = table();
        let (stays, _) = session(&mut table);
        enter(&mut table, stays, "stays", 0);
        let mut newest = 0;
        for round in 0..10_000 {
            let (peer, told) = session(&mut table);
            enter(&mut table, peer, &format!("space {}", round % 7000), 0);
            let token = lock(&mut table, peer, &told);
            assert!(token > newest, "round {round}");
            newest = token;
            table.depart(peer, SessionEnd::Goodbye);
        }
        let (peer, _) = session(&mut table);
        enter(&mut table, peer, "stays", 0);
        let mut number = |peer| match table.session(peer).unwrap().space {
            Some(Space::Own(number)) => number,
            _ => panic!("it is in a space"),
        };
        assert_eq!(number(peer), number(stays), "a space in use is never given up");
    }

    #[test]
    fn who_enters_a_lent_space_takes_locks_without_asking_so_it_is_waited_for_after_a_restart() {
        let zero = std::time::Duration::ZERO;
        let (durable, _) = Durable::begin_in(Journal::default(), zero, zero).unwrap();
        let one_sided = OneSidedSpace::new("stock", VerbExecutor::Cpu, 1, Default::default());
        let mut table = LockTable::new(durable, false, Vec::new(), vec![one_sided]);
        let restarted = |table: &LockTable| {
            let journal = table.durable.journal().unwrap().after_death();
            Durable::begin_in(journal, zero, zero).unwrap().1
        };
        let (peer, told) = session(&mut table);
        assert!(!restarted(&table), "nobody has anything");
        let space = b"lent:stock".to_vec();
        let request = Request::Open { version: VERSION, key: 1, space, one_sided: true, seen: 0 };
        table.apply(peer, Event::Request { seq: 1, request });
        let told = told.lock().unwrap();
        assert!(matches!(told[..], [Response::Joined { .. }]), "{told:?}");
        assert!(restarted(&table));
    }

    #[test]
    fn after_a_restart_nobody_enters_a_lent_space_before_those_who_were_in_have_noticed() {
        let zero = std::time::Duration::ZERO;
        let lent = || vec![OneSidedSpace::new("stock", VerbExecutor::Cpu, 1, Default::default())];
        let enters = |key| {
            let space = b"lent:stock".to_vec();
            let request = Request::Open { version: VERSION, key, space, one_sided: true, seen: 0 };
            Event::Request { seq: 1, request }
        };
        let (durable, _) = Durable::begin_in(Journal::default(), zero, zero).unwrap();
        let mut table = LockTable::new(durable, false, Vec::new(), lent());
        let (peer, _) = session(&mut table);
        table.apply(peer, enters(1));
        let journal = table.durable.journal().unwrap().after_death();
        let (durable, recovering) = Durable::begin_in(journal, zero, zero).unwrap();
        let mut table = LockTable::new(durable, recovering, Vec::new(), lent());
        let (peer, told) = session(&mut table);
        table.apply(peer, enters(2));
        assert_eq!(told.lock().unwrap()[..], []);
        assert!(table.session(peer).unwrap().one_sided.is_none(), "it could change words");
        table.open();
        let told = told.lock().unwrap();
        assert!(matches!(told[..], [Response::Joined { .. }]), "{told:?}");
        assert!(table.session(peer).unwrap().one_sided.is_some());
    }

    #[test]
    fn a_client_that_has_stopped_after_a_loss_need_not_be_waited_for() {
        let mut table = table();
        let (first, told) = session(&mut table);
        enter(&mut table, first, "stock", 0);
        lock(&mut table, first, &told);
        let (waiter, heard) = session(&mut table);
        enter(&mut table, waiter, "stock", 0);
        let name = Request::Name { handle: 1, kind: Kind::Keyed, name: LockName::new("a").unwrap() };
        let units = Units { handle: 1, mode: Mode::Exclusive, start: 0, end: u64::MAX, thread: None };
        table.apply(waiter, Event::Request { seq: 2, request: name });
        let request = Request::Lock { id: 1 << 32, units, wait: true };
        table.apply(waiter, Event::Request { seq: 3, request });
        table.decide();
        // The client of the first session comes back with another one.
        table.session(first).unwrap().key = 77;
        let (second, _) = session(&mut table);
        enter(&mut table, second, "stock", 0);
        let granted = |heard: &Mutex<Vec<Response>>| {
            heard.lock().unwrap().iter().any(|response| matches!(response, Response::Granted { .. }))
        };
        table.apply(second, Event::Request { seq: 2, request: Request::Stopped { key: 78 } });
        assert!(!granted(&heard), "that was another session");
        table.apply(second, Event::Request { seq: 3, request: Request::Stopped { key: 77 } });
        assert!(granted(&heard));
    }

    #[test]
    fn a_server_without_state_whose_clock_was_set_back_goes_above_the_tokens_that_its_clients_have_seen() {
        let mut table = table();
        let seen = table.durable.first_token() + (3600 << 22);
        let (peer, told) = session(&mut table);
        enter(&mut table, peer, "stock", seen);
        assert!(lock(&mut table, peer, &told) > seen);
        // What would use up all tokens is nothing that this server has given.
        let (liar, told) = session(&mut table);
        enter(&mut table, liar, "other", u64::MAX - 1);
        assert!(lock(&mut table, liar, &told) < 1 << 53);
    }
}
