//! A client and its users, each of whom runs a program of locks and unlocks.

use super::model::Op;
use lockwright::LockName;
use lockwright::internal::{Begun, LocalGrant, Origin, Refused, RetentionRules, Stage, Table};
use lockwright::wire::{Kind, RequestId, Response, Units};
use lockwright_fabric::Message;
use lockwright_fabric::observe::Mode;
use lockwright_sim::check::{Checker, Violation};

/// One user of a client.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct User {
    /// How far its program is.
    pub(super) done: usize,
    pub(super) waits: Option<(RequestId, Mode)>,
    pub(super) holds: Option<(LocalGrant, Mode)>,
}

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Client {
    pub(super) table: Table,
    pub(super) users: Vec<User>,
    pub(super) alive: bool,
    /// Its session, as it believes.
    pub(super) session: Option<u64>,
    /// Its lease is over, and the server may have given it up.
    pub(super) expired: bool,
    /// Said, and not yet on its way.
    pub(super) said: Vec<Message>,
}

const fn units(mode: Mode) -> Units {
    Units { handle: 0, mode, start: 0, end: u64::MAX, thread: None }
}

impl Client {
    pub(super) fn new(users: usize, rules: RetentionRules) -> Self {
        let mut table = Table::new(true);
        table.retention = rules;
        let _ = table.name(Kind::Keyed, &LockName::new("a").expect("a name"));
        let users = vec![User::default(); users];
        Self { table, users, alive: true, session: None, expired: false, said: Vec::new() }
    }

    /// Whether what it holds is surely its own.
    fn is_certain(&self) -> bool {
        self.session.is_some() && !self.expired
    }

    /// Says what the table has decided.
    fn flush(&mut self) {
        let said = self.table.take_said();
        if self.session.is_some() {
            self.said.extend(said.iter().map(|request| self.table.say(request)));
            for request in self.table.stopped() {
                self.said.push(self.table.say(&request));
            }
        }
    }

    /// A user does the next thing of its program.
    pub(super) fn act(&mut self, user: usize, op: Op) {
        match op {
            Op::Lock(mode) | Op::Try(mode) => {
                let certain = self.is_certain();
                match self.table.lock(units(mode), op == Op::Lock(mode), certain) {
                    Begun::Granted(granted) => self.users[user].holds = Some((granted, mode)),
                    Begun::Busy => self.users[user].done += 1,
                    Begun::Request(id) => self.users[user].waits = Some((id, mode)),
                }
            }
            Op::Unlock => self.let_go(user),
        }
        self.users[user].done += 1;
        self.flush();
    }

    /// The guard of a user is dropped.
    fn let_go(&mut self, user: usize) {
        if let Some((granted, _)) = self.users[user].holds.take() {
            let certain = self.is_certain();
            let _ = self.table.give_up(granted.id, certain);
        }
    }

    /// A user waits no longer.
    pub(super) fn give_up(&mut self, user: usize) {
        let (id, _) = self.users[user].waits.take().expect("it was listed");
        let certain = self.is_certain();
        let _ = self.table.give_up(id, certain);
        self.users[user].done += 1;
        self.flush();
    }

    /// Nobody has used what is idle for a while.
    pub(super) fn hand_back(&mut self) {
        self.table.look_at_retained(0);
        self.flush();
    }

    /// Whether there is something to be seen by the future of a user.
    pub(super) fn has_news(&self, user: usize) -> bool {
        self.users[user].waits.is_some_and(|(id, _)| self.table.is_settled(id))
    }

    /// What the future of a user sees when it is polled.
    pub(super) fn look(&mut self, user: usize) {
        let (id, mode) = self.users[user].waits.expect("it was listed");
        let origin = self.table.origin;
        let granted = match self.table.stage(id) {
            Some(stage @ Stage::Granted { .. }) => {
                let Stage::Granted { token } = *stage else { unreachable!("just seen") };
                *stage = Stage::Held { token, origin };
                Some(LocalGrant { id, token })
            }
            Some(Stage::Retained { .. }) => self.table.see_retained(id),
            Some(Stage::Local(_)) => self.table.see_local(id),
            Some(Stage::Failed(why)) => {
                let is_answered = matches!(why, Refused::Busy);
                if is_answered {
                    self.table.take(id);
                } else {
                    let _ = self.table.give_up(id, false);
                }
                self.users[user].done += 1;
                None
            }
            other => unreachable!("it is settled: {other:?}"),
        };
        (self.users[user].waits, self.users[user].holds) = (None, granted.map(|granted| (granted, mode)));
        self.flush();
    }

    /// Guards of what was lost are dropped, and with them goes what was to be done under them.
    fn lose(&mut self) {
        for user in 0..self.users.len() {
            if let Some((granted, _)) = self.users[user].holds
                && matches!(self.table.stage(granted.id), Some(Stage::Lost(_)) | None)
            {
                self.let_go(user);
                self.users[user].done += 1;
            }
        }
        self.flush();
    }

    /// A message of the server has arrived.
    pub(super) fn hear(&mut self, message: &Message) -> Result<(), Violation> {
        let Some((taken, response)) = Response::decode(message) else {
            return Err(Violation::new(Checker::Quiet, "a server sent what no client understands"));
        };
        if let Response::Refused { why, .. } = &response {
            return Err(Violation::new(Checker::Quiet, format!("a sound client was refused: {why}")));
        }
        self.table.is_open = true;
        let _ = self.table.hear(taken, response);
        self.flush();
        self.lose();
        Ok(())
    }

    /// The lease is over.
    pub(super) fn expire(&mut self) {
        self.expired = true;
        self.table.expire_at_once(false);
        self.flush();
        self.lose();
    }

    /// The session is over.
    pub(super) fn end(&mut self) {
        self.session = None;
        let _ = self.table.end_session();
        self.lose();
    }

    /// A new session begins.
    pub(super) fn begin(&mut self, id: u64, origin: Origin) {
        (self.session, self.expired) = (Some(id), false);
        let messages = self.table.begin_session(origin, b"", false);
        self.said.extend(messages);
        if let Some(claimed) = self.table.claimed() {
            self.said.push(self.table.say(&claimed));
        }
        self.flush();
        self.lose();
    }
}
