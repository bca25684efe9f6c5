//! A server's logic alone, for the explorer: lock table, sessions' requests, claims and durable state, with messages and a disk
//! in memory going in and coming out by function calls. What is shipped is the same, behind a dispatcher and connections.

use crate::dispatcher::Event;
use crate::durable::{Durable, Journal};
use crate::lock_table::LockTable;
use crate::session::RequestRecord;
use lockwright::wire::{Request, RequestId};
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd};
use lockwright_fabric::{Message, PeerId};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where a broken server differs from what is shipped: all `false`, none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MachineRules {
    /// A claim is not written down as a grant of this run.
    pub claims_unwritten: bool,
    /// Tokens are given out beyond what was written down.
    pub tokens_unwritten: bool,
    /// What is not known to be held is granted before claims are over.
    pub grants_early: bool,
    /// Values are read and set, and not noted to be open.
    pub values_never_open: bool,
    /// A value that is set is not written to the disk.
    pub values_unwritten: bool,
    /// All locks of a set are asked for at once.
    pub sets_at_once: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Machine {
    table: LockTable,
    sent: Vec<(u32, Message)>,
}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.table.hash(state);
        self.sent.hash(state);
    }
}

impl Machine {
    /// Starts the run that begins at `now`, in seconds, on `journal`. Dead before it served, it serves nobody.
    pub fn start(journal: &Journal, now: u64, rules: MachineRules) -> Self {
        let now = Duration::from_secs(now);
        let (mut durable, recovering) = match Durable::begin_in(journal.clone(), Duration::ZERO, now) {
            Ok(begun) => begun,
            // Killed at its first write: what is there is what it found.
            Err(_) => Durable::begin_in(journal.after_death(), Duration::ZERO, now).expect("its own lines"),
        };
        durable.track_holders(!recovering);
        // Times of values decide about nothing here.
        durable.wall_ms = || 0;
        let mut table = LockTable::new(durable, recovering, Vec::new(), Vec::new());
        table.rules = rules;
        Self { table, sent: Vec::new() }
    }

    /// Every grant stays with its client that can, with few tokens; `reserves`: others do not get these, too.
    pub fn let_everything_stay(&mut self, reserves: bool) {
        let policy = &mut self.table.retention.policy;
        (policy.after, policy.at_most_after, policy.reserves) = (0, 0, reserves);
        (policy.block, policy.at_most_block, policy.quiet) = (2, 2, Duration::ZERO);
    }

    /// Whether tries wait for a client's word on what was recalled.
    pub fn has_tries(&self) -> bool {
        self.table.has_tries()
    }

    /// They have waited for it long enough.
    pub fn deny_tries(&mut self) {
        self.collect(LockTable::deny_all_tries);
    }

    /// The first grant there is: whose, which, and what an operator knows of it.
    fn first_grant(&self) -> Option<(u32, RequestId, u64, u64)> {
        let sessions = self.table.sessions.iter().enumerate();
        let requests = sessions.flat_map(|(peer, session)| {
            session.iter().flat_map(move |it| it.slots.iter().flatten().map(move |it| (peer as u32, it)))
        });
        let held = |(peer, request): (u32, &RequestRecord)| {
            Some((peer, request.id, request.owners_token()?, request.lock?))
        };
        requests.filter_map(held).next()
    }

    /// Whether there is something to [break](Self::break_one).
    pub fn holds_anything(&self) -> bool {
        self.first_grant().is_some()
    }

    /// An operator takes a grant away from the client that has it: which client, and which request.
    pub fn break_one(&mut self) -> Option<(u32, RequestId)> {
        let (peer, id, token, lock) = self.first_grant()?;
        self.collect(|table| {
            let (space, name) = (table.directory.lock(lock).space, table.directory.lock(lock).name.clone());
            let broken = table.break_own(space, &name, token);
            assert_eq!(broken, Ok(true), "it is held");
        });
        Some((peer, id))
    }

    /// This run.
    pub const fn epoch(&self) -> u64 {
        self.table.durable.epoch
    }

    /// The disk.
    pub fn journal(&self) -> &Journal {
        self.table.durable.journal().expect("the disk is in memory")
    }

    /// See [`Journal::die_at`].
    pub const fn die_at(&mut self, dies: Option<(u32, bool)>) {
        self.table.durable.die_at(dies);
    }

    /// A client comes: its number.
    pub fn admit(&mut self) -> Option<u32> {
        self.table.admit("0 there model")
    }

    /// Calls `act`, and keeps what the table says meanwhile.
    fn collect(&mut self, act: impl FnOnce(&mut LockTable)) {
        let said = Arc::new(Mutex::new(Vec::new()));
        for (number, session) in self.table.sessions.iter_mut().enumerate() {
            if let Some(session) = session {
                let said = Arc::clone(&said);
                session.inbox = Some(Inbox::new(move |_: PeerId, message| {
                    said.lock().unwrap_or_else(PoisonError::into_inner).push((number as u32, message));
                    true
                }));
            }
        }
        self.table.begin_batch(Instant::now(), 1);
        act(&mut self.table);
        self.table.decide();
        for session in self.table.sessions.iter_mut().flatten() {
            session.inbox = None;
        }
        self.sent.append(&mut said.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A message of a client has arrived.
    pub fn message(&mut self, client: u32, message: &Message) {
        let event = match Request::decode(message) {
            Some((seq, request)) => Event::Request { seq, request },
            None => Event::Malformed,
        };
        self.collect(|table| table.apply(client, event));
    }

    /// A client's session is over.
    pub fn depart(&mut self, client: u32, how: SessionEnd) {
        self.collect(|table| table.apply(client, Event::Departed(how)));
    }

    /// Claims have been waited for long enough.
    pub fn end_recovery(&mut self) {
        self.collect(LockTable::open);
    }

    /// Whether claims are waited for.
    pub const fn is_recovering(&self) -> bool {
        self.table.is_recovering()
    }

    /// Requests held and waiting.
    pub fn requests(&self) -> usize {
        self.table.requests()
    }

    /// Whether something was said since the last time.
    pub const fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// What was said since the last time, and to whom, in order.
    pub fn take_sent(&mut self) -> Vec<(u32, Message)> {
        std::mem::take(&mut self.sent)
    }
}
