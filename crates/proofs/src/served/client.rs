//! A client: its table, its session, and a user who runs a program of locks and unlocks.
//!
//! The few lines that `remote/link.rs` and the futures of `remote/mod.rs` have around the table are here once more, without
//! connections and threads.

use super::model::{Op, UNITS};
use super::sets::{Claim, Set};
use super::values::Asks;
use lockwright::LockName;
use lockwright::internal::{Origin, Refused, Stage, Table, TableRules, Upgrade};
use lockwright::wire::{Kind, Request, RequestId, Response, Units, ValueReport};
use lockwright_fabric::Message;
use lockwright_fabric::backend::tcp::Received;
use lockwright_fabric::observe::Mode;
use lockwright_sim::check::{Checker, Violation};

/// A client's end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClientSession {
    pub(super) id: u64,
    /// Of the server's messages.
    pub(super) received: Received,
}

/// Whether a client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Runs,
    Stopped,
    /// Stopped, and its clock with it.
    Asleep,
    Dead,
}

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Client {
    pub(super) table: Table,
    pub(super) life: Life,
    pub(super) session: Option<ClientSession>,
    /// Its lease was over since it was last in contact with the server.
    pub(super) expired: bool,
    /// The same of the lease of an earlier run, whose end what is claimed does not outlast.
    pub(super) claims_late: bool,
    /// It was asleep, and has not heard of the server since: what it believes may be long over, and nothing but its token keeps
    /// it from doing harm.
    pub(super) unaware: bool,
    /// How far its program is.
    pub(super) done: usize,
    /// What it waits for, or holds.
    pub(super) request: Option<(RequestId, Units)>,
    /// The same, if it is a set; then `request` is the first of it.
    pub(super) set: Set,
    /// Whether an upgrade of what it holds was said, and its user has not seen what came of it.
    pub(super) upgrading: bool,
    /// What it holds, as its user was told.
    pub(super) holds: Option<u64>,
    /// What it has asked about the lock's value; what it has just read; whether it has the value open.
    pub(super) asks: Option<Asks>,
    pub(super) read: Option<ValueReport>,
    pub(super) opened: bool,
    /// Said, and not yet given to the connection.
    pub(super) said: Vec<Message>,
}

impl Client {
    pub(super) fn new(rules: TableRules, kind: Kind, names: u64) -> Self {
        let mut table = Table::default();
        table.rules = rules;
        for name in (b'a'..).take(names as usize) {
            let _ = table.name(kind, &LockName::new([name]).expect("a name"));
        }
        Self {
            table,
            life: Life::Runs,
            session: None,
            expired: false,
            claims_late: false,
            unaware: false,
            done: 0,
            request: None,
            set: Set::default(),
            upgrading: false,
            holds: None,
            asks: None,
            read: None,
            opened: false,
            said: Vec::new(),
        }
    }

    /// Says something to the server, if there is a session.
    pub(super) fn say(&mut self, request: &Request) {
        if self.session.is_some() {
            let message = self.table.say(request);
            self.said.push(message);
        }
    }

    /// Takes a request out of the table, and says so if that was the last of what was lost with an earlier session.
    pub(super) fn take(&mut self, id: RequestId) -> Option<Stage> {
        let taken = self.table.take(id);
        self.say_stopped();
        taken
    }

    pub(super) fn say_stopped(&mut self) {
        if self.session.is_some() {
            for request in self.table.stopped() {
                self.say(&request);
            }
        }
    }

    /// The user does the next thing of its program.
    pub(super) fn act(&mut self, op: Op) {
        match op {
            Op::Lock(mode) => self.ask(mode, 0, u64::MAX, true),
            Op::Range(mode, start, end) => self.ask(mode, start, end, true),
            Op::LockSet(names) => self.ask_for_set(names),
            Op::Try(mode) => self.ask(mode, 0, u64::MAX, false),
            Op::Upgrade => self.upgrade(),
            Op::Downgrade => self.downgrade(),
            Op::Set => self.ask_for_value(),
            Op::Unlock => {
                self.done += 1;
                self.close_value();
                self.drop_guard();
            }
        }
    }

    fn ask(&mut self, mode: Mode, start: u64, end: u64, wait: bool) {
        let units = Units { handle: 0, mode, start, end, thread: None };
        let id = self.table.open(Some(units), Stage::Wanted { wait });
        self.request = Some((id, units));
        self.say(&Request::Lock { id, units, wait });
    }

    /// Asks for what it holds shared alone.
    fn upgrade(&mut self) {
        let (Some((id, _)), Some(token)) = (self.request, self.holds) else { return };
        match self.table.begin_upgrade(id, true, token) {
            Upgrade::Said(ask) => {
                self.upgrading = true;
                self.say(&ask);
            }
            // It is lost, which its guard is about to see.
            _ => self.done += 1,
        }
    }

    /// Shares what it holds alone, from now on.
    fn downgrade(&mut self) {
        self.done += 1;
        let Some((id, units)) = &mut self.request else { return };
        if let Some(ask) = self.table.begin_downgrade(*id) {
            units.mode = Mode::Shared;
            self.say(&ask);
        }
    }

    /// What came of an upgrade, if it is known.
    fn see_upgrade(&mut self) {
        let (Some((id, units)), Some(token)) = (&mut self.request, self.holds) else { return };
        match self.table.upgrade(*id, token) {
            Upgrade::Said(_) | Upgrade::Waiting => return,
            Upgrade::Done { token } => {
                units.mode = Mode::Exclusive;
                self.holds = Some(token);
            }
            Upgrade::Failed(_) => {}
        }
        self.upgrading = false;
        self.done += 1;
    }

    /// What it wants or holds.
    pub(super) fn claims(&self) -> Vec<Claim> {
        if !self.set.is_empty() {
            return self.set.claims();
        }
        let claim = |(_, units): (RequestId, Units)| {
            let alone = units.mode == Mode::Exclusive;
            let units = units.start as usize..units.end.min(UNITS) as usize;
            Claim { units, alone, token: self.holds }
        };
        self.request.into_iter().map(claim).collect()
    }

    /// Whether the two cannot hold what they ask for at the same time.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.claims().iter().any(|mine| other.claims().iter().any(|theirs| mine.excludes(theirs)))
    }

    /// The user waits no longer.
    pub(super) fn give_up(&mut self) {
        self.done += 1;
        self.drop_guard();
    }

    /// What is held is given back, what is waited for is given up, and nothing is waited for.
    fn drop_guard(&mut self) {
        (self.holds, self.upgrading, self.opened) = (None, false, false);
        if let Some(asks) = self.asks.take() {
            self.table.take(asks.id());
        }
        if !self.set.is_empty() {
            return self.drop_set();
        }
        if let Some((id, _)) = self.request.take()
            && self.take(id).is_some()
        {
            self.say(&Request::Unlock { id, answer: false });
        }
    }

    /// A message of the server has arrived, which was sent since the client last woke up if it `is_fresh`.
    pub(super) fn hear(&mut self, message: &Message, is_fresh: bool) -> Result<(), Violation> {
        let Some((taken, response)) = Response::decode(message) else {
            return Err(Violation::new(Checker::Quiet, "a server sent what no client understands"));
        };
        if let Response::Refused { id: 0, why } = &response {
            return Err(Violation::new(Checker::Quiet, format!("a sound client was refused: {why}")));
        }
        self.table.is_open = true;
        let _ = self.table.hear(taken, response);
        self.check_turns()?;
        self.lose();
        self.settle();
        // A claim that is not answered yet tells it nothing.
        let is_claimed = |id| self.table.is_claimed(id);
        let claimed =
            self.request.is_some_and(|(id, _)| is_claimed(id)) || self.set.ids().into_iter().any(is_claimed);
        self.unaware &= !is_fresh || claimed;
        Ok(())
    }

    /// A downgrade that is settled has a token of its own.
    fn settle(&mut self) {
        if let (Some((id, units)), Some(token), true) = (self.request, self.holds, self.set.is_empty())
            && units.mode == Mode::Shared
            && !self.upgrading
            && let Some(Ok(settled)) = self.table.downgrade(id, token)
        {
            self.holds = Some(settled);
        }
    }

    /// Whether there is something to be seen by the future that waits.
    pub(super) fn has_news(&self) -> bool {
        if self.asks.is_some() {
            return self.has_answer();
        }
        if !self.set.is_empty() {
            return self.holds.is_none() && self.has_news_of_set();
        }
        let came = |(id, _)| match self.holds.filter(|_| self.upgrading) {
            Some(token) => !matches!(self.table.clone().upgrade(id, token), Upgrade::Waiting),
            None => self.holds.is_none() && self.table.is_settled(id),
        };
        self.request.is_some_and(came)
    }

    /// What the guard of the user sees: it acts on a loss within the time that the lease leaves for that, and is dropped. With it
    /// goes the part of the program that was to be done under it.
    fn lose(&mut self) {
        if self.has_lost_of_set() {
            return self.drop_guard();
        }
        if !self.set.is_empty() {
            return;
        }
        if let Some((id, _)) = self.request
            && let Some(Stage::Lost(_)) = self.table.stage(id)
        {
            self.drop_guard();
        }
    }

    /// What the future of the user sees when it is polled.
    pub(super) fn look(&mut self) {
        if self.expired {
            self.expire_table();
        }
        if self.upgrading {
            return self.see_upgrade();
        }
        if self.asks.is_some() {
            return self.see_value();
        }
        if !self.set.is_empty() {
            return self.look_at_set();
        }
        let Some((id, _)) = self.request else { return };
        let origin = self.table.origin;
        let Some(stage) = self.table.stage(id) else { return };
        match stage {
            Stage::Granted { token } => {
                let token = *token;
                *stage = Stage::Held { token, origin };
                self.holds = Some(token);
                self.done += 1;
            }
            Stage::Failed(why) => {
                let is_answered = matches!(why, Refused::Busy);
                self.request = None;
                self.take(id);
                self.done += 1;
                if !is_answered {
                    self.say(&Request::Unlock { id, answer: false });
                }
            }
            _ => {}
        }
    }

    /// The lease is over.
    pub(super) fn expire(&mut self) {
        self.expired = true;
        self.expire_table();
        self.lose();
    }

    /// What it has claimed was not answered within the lease of the run that granted it.
    pub(super) fn expire_claims(&mut self) {
        self.claims_late = true;
        let _ = self.table.expire_claims();
        self.lose();
    }

    /// Whether it believes that it holds what it has claimed, and was not answered.
    pub(super) fn awaits_claims(&self) -> bool {
        let asked = self.request.map(|(id, _)| id).into_iter().chain(self.set.ids());
        asked.into_iter().any(|id| self.table.is_claimed(id))
    }

    /// All waiters have waited for less than a lease.
    fn expire_table(&mut self) {
        self.table.expire_at_once(false);
    }

    /// All waiters have waited for a lease, and nothing was heard meanwhile.
    pub(super) fn expire_waiter(&mut self) {
        self.table.expire_at_once(true);
    }

    /// Whether there is a waiter to tell once the lease is over.
    pub(super) fn waits(&self) -> bool {
        if !self.set.is_empty() {
            return self.holds.is_none() && !self.has_news_of_set();
        }
        self.request.is_some_and(|(id, _)| self.holds.is_none() && !self.table.is_settled(id))
    }

    /// A new session begins.
    pub(super) fn begin(&mut self, id: u64, origin: Origin) {
        if self.expired {
            self.expire_table();
        }
        (self.expired, self.claims_late) = (false, false);
        self.session = Some(ClientSession { id, received: Received::default() });
        let messages = self.table.begin_session(origin, b"", false);
        self.said.extend(messages);
        for waited in self.table.waited_at_once() {
            self.say(&waited);
        }
        if let Some(claimed) = self.table.claimed() {
            self.say(&claimed);
        }
        self.say_stopped();
        self.lose();
    }

    /// The session is over.
    pub(super) fn end(&mut self) {
        self.session = None;
        let _ = self.table.end_session();
        self.lose();
    }
}
