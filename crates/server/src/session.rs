//! A client, as the lock table knows it: what it calls itself, the names it uses, what it holds and wants.

use super::directory::SpaceNumber;
use super::exported::{Exported, Held};
use super::one_sided::{self, OneSidedSpace};
use foldhash::quality::RandomState;
use lockwright::LockName;
pub(super) use lockwright::wire::MAX_REQUESTS;
use lockwright::wire::{RequestId, Response, SERVER, Units, slot};
use lockwright_fabric::backend::tcp::{ConnectionInfo, Inbox};
use lockwright_fabric::observe::Mode;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Names that one client has open at a time.
pub(super) const MAX_HANDLES: usize = 1 << 18;

/// Where a session's locks are.
#[derive(Clone, Debug)]
pub(super) enum Space {
    /// In this server.
    Own(SpaceNumber),
    /// In this host's shared memory.
    Exported(Arc<Exported>),
    /// One-sided.
    OneSided(Arc<OneSidedSpace>),
}

/// What a handle stands for.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Own(u64),
    Exported(super::exported::Handle),
    OneSided { name: LockName, lock: u64, token_base: u64 },
}

/// Where a request stands.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Of a set: the member before it is not granted yet.
    Behind,
    /// Until claims are over.
    HeldBack,
    Waiting,
    Held {
        token: u64,
    },
    /// In shared memory: waited for by a task, or held by a guard.
    Exported(Arc<Held>),
}

/// A change of what is held that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Change {
    /// An upgrade, until claims are over.
    HeldBack,
    /// To this mode: noted, or decided and not yet to be had.
    Asked(Mode),
    /// An upgrade that was granted and could not be given is on its way back.
    Undone,
}

/// A request that waits or is held.
#[derive(Clone, Debug)]
pub(super) struct RequestRecord {
    pub(super) id: RequestId,
    /// Of a server's own spaces.
    pub(super) lock: Option<u64>,
    pub(super) units: Units,
    pub(super) since: Instant,
    pub(super) stage: Stage,
    /// Whether it had to queue.
    pub(super) queued: bool,
    /// Of one that is held: what is about to become of it.
    pub(super) change: Option<Change>,
    /// Since when its upgrade waits, and counts among those who wait.
    pub(super) upgrades: Option<Instant>,
    /// The token before the last change, of which the client may not have heard yet.
    pub(super) before: Option<u64>,
    /// The token that its owner knew when it asked for the last upgrade; and the one that it goes on with, since it gave
    /// that upgrade up: then it is not told of the token since.
    pub(super) known: Option<u64>,
    pub(super) kept: Option<u64>,
    /// If it stays with its client between uses: what is known of that; and the tokens that came with it, first and last.
    pub(super) retained: Option<RetainedGrant>,
    pub(super) block: Option<(u64, u64)>,
    /// Whether it is a try that waits until a client has said whether it uses what is in the way.
    pub(super) tries: bool,
    /// The member of its set that stands behind it.
    pub(super) next: Option<RequestId>,
}

/// A grant that stays with its client until it is recalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RetainedGrant {
    pub(super) recalled: bool,
    /// Recalled, and the client has said that it uses it.
    pub(super) in_use: bool,
}

impl RequestRecord {
    pub(super) const fn new(
        id: RequestId,
        lock: Option<u64>,
        units: Units,
        since: Instant,
        stage: Stage,
        queued: bool,
    ) -> Self {
        let (change, upgrades, before, known, kept) = (None, None, None, None, None);
        let (retained, block, tries, next) = (None, None, false, None);
        Self {
            id,
            lock,
            units,
            since,
            stage,
            queued,
            change,
            upgrades,
            before,
            known,
            kept,
            retained,
            block,
            tries,
            next,
        }
    }

    /// Whether its owner holds it with this token.
    pub(super) fn is_held_with(&self, token: u64) -> bool {
        let in_block = |(first, last): (u64, u64)| (first..=last).contains(&token);
        self.owners_token()
            .is_some_and(|held| held == token || self.kept.is_none() && self.block.is_some_and(in_block))
    }

    /// Whether it stays with its client, who may not be using it.
    pub(super) fn is_retained(&self) -> bool {
        self.retained.is_some_and(|grant| !grant.in_use)
    }

    /// The token that its owner knows, if it is held.
    pub(super) fn owners_token(&self) -> Option<u64> {
        match self.stage {
            Stage::Held { token } => Some(self.kept.unwrap_or(token)),
            _ => None,
        }
    }
}

/// One client.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    pub(super) inbox: Option<Inbox>,
    /// The connection that its requests come by, if that is over tcp.
    pub(super) connection: Option<ConnectionInfo>,
    /// The user of its process, if it is on loopback and once it has asked to break a lock.
    pub(super) uid: Option<u32>,
    /// What it calls itself.
    pub(super) label: String,
    pub(super) key: u128,
    /// Of lock spaces, that its client speaks.
    pub(super) version: u64,
    pub(super) space: Option<Space>,
    /// Its place in a one-sided space, if its client takes the locks there by itself.
    pub(super) one_sided: Option<Arc<one_sided::OneSidedClient>>,
    /// Whether it gets one once claims are over.
    pub(super) joins_later: bool,
    /// By a hash with a random seed: clients choose the handles, and must not be able to make them collide.
    pub(super) handles: HashMap<u64, Target, RandomState>,
    pub(super) slots: Vec<Option<RequestRecord>>,
    /// Requests taken, and how many of them it knows to be.
    pub(super) taken: u64,
    pub(super) told: u64,
    /// Whether it is written down that it may hold something.
    pub(super) noted: bool,
    /// Of a shard: whether it is in the registry.
    pub(super) registered: bool,
    /// Of a shard: it is of the last owner's table, and its client has not come here yet.
    pub(super) absent: bool,
    /// Of a shard: when it last asked whether the server is certain.
    pub(super) probed: Option<Instant>,
    /// Keys of earlier runs under which it has claimed.
    pub(super) claimed: Vec<u128>,
    /// Whether grants may stay with it, and how many do.
    pub(super) retains: bool,
    pub(super) retained: u32,
    /// When it was last asked to give some of them back.
    pub(super) relinquishes: Option<Instant>,
    /// Which of all sessions: numbers of clients are used again.
    pub(super) serial: u64,
}

impl Session {
    pub(super) fn say(&mut self, response: &Response) {
        self.told = self.taken;
        if let Some(inbox) = &self.inbox {
            // A session that takes no more is over, or about to be.
            inbox.deliver(SERVER, response.encode(self.taken));
        }
    }

    /// The request with this id.
    pub(super) fn request(&mut self, id: RequestId) -> Option<&mut RequestRecord> {
        self.slots.get_mut(slot(id) as usize)?.as_mut().filter(|request| request.id == id)
    }

    /// Takes the request with this id out.
    pub(super) fn take(&mut self, id: RequestId) -> Option<RequestRecord> {
        self.slots.get_mut(slot(id) as usize)?.take_if(|request| request.id == id)
    }

    /// Whether another request has the slot of this one.
    pub(super) fn has_slot_of(&self, id: RequestId) -> bool {
        self.slots.get(slot(id) as usize).is_some_and(Option::is_some)
    }

    /// Puts a request into its slot, which must be free.
    pub(super) fn put(&mut self, request: RequestRecord) -> Result<(), &'static str> {
        let at = slot(request.id) as usize;
        if at >= MAX_REQUESTS as usize {
            return Err("a client can hold and want 65536 locks at a time, not more");
        }
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        match &mut self.slots[at] {
            Some(_) => Err("the request's number is in use"),
            free => {
                *free = Some(request);
                Ok(())
            }
        }
    }
}
