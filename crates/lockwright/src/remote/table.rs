//! What a client of a server has asked for and holds, and what becomes of it when sessions come and go.
//!
//! | stage | session ends, server goes on | server restarted | silent for longer than the lease |
//! |---|---|---|---|
//! | wanted | asked for again | asked for again | fails |
//! | held | lost | claimed | lost |
//! | claimed | lost | claimed again | lost |
//! | unlocking, looking | fails | fails | fails |
//! | held, upgrade wanted | lost | claimed, then asked for again | lost |
//! | held, becoming shared | lost | claimed as shared | lost |
//!
//! What was claimed is also lost if it is not answered within the lease under which it was granted.
//!
//! Changes of what is held are in `changes`, locks that stay here between uses in `retained`, several locks
//! at once in `sets`.
//!
//! What this file must not do: know about threads, connections or time; it says what is to be sent, and others send it.

mod changes;
mod retained;
mod sets;
mod state;
mod watched;

use changes::Change;
pub use changes::Upgrade;
pub use retained::Begun;
pub use sets::SetStage;

use super::retained::{LocalGrant, RetainedLock, RetentionRules};

use crate::backend::{Kind, Refused};
use crate::error::{LockError, LostReason};
use crate::lock::contention::Contention;
use crate::name::LockName;
use crate::wire::{Identity, Request, RequestId, Response, Units, VERSION, slot};
use lockwright_fabric::{Message, PeerId};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// In which session something was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    pub epoch: u64,
    pub key: u128,
}

/// Where a request stands.
#[derive(Clone, Debug)]
pub enum Stage {
    Wanted {
        wait: bool,
    },
    /// Granted, and not yet taken by its waiter.
    Granted {
        token: u64,
    },
    /// The same, and it may stay here; the tokens of further uses.
    Retained {
        token: u64,
        first: u64,
        count: u64,
    },
    /// Granted here, under a grant that stays, and not yet taken.
    Local(LocalGrant),
    Held {
        token: u64,
        origin: Origin,
    },
    /// Held in an earlier run of the server; whether it still is, the server will say.
    Claimed {
        token: u64,
        origin: Origin,
    },
    Lost(LostReason),
    Failed(Refused),
    /// Given back; the server will say whether it was held.
    Unlocking,
    Unlocked {
        held: bool,
    },
    /// A look, or a break: pages so far.
    Looking {
        bytes: Vec<u8>,
    },
    Looked {
        bytes: Vec<u8>,
    },
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct PendingRequest {
    id: RequestId,
    units: Option<Units>,
    stage: Stage,
    /// What it is about to become, if it is held.
    change: Change,
    since: Instant,
    waker: Option<Waker>,
}

/// Where a broken client differs from what is shipped: all `false`, none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TableRules {
    /// What is held is not claimed from a server that was restarted.
    pub claims_nothing: bool,
    /// A grant that its waiter has not taken yet outlives the session.
    pub keeps_untaken_grants: bool,
    /// Of a set that is given up only the first member is.
    pub gives_up_first_only: bool,
    /// After a session the members of a set are asked for by themselves.
    pub asks_apart: bool,
}

/// Everything a client knows.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The session's: where it is said, how much was said, and what the server may not have taken.
    pub origin: Origin,
    seq: u64,
    unacked: VecDeque<(u64, Message)>,
    handles: HashMap<u64, (Kind, LockName)>,
    next_handle: u64,
    slots: Vec<Option<PendingRequest>>,
    free: Vec<u32>,
    next_id: u64,
    /// The key of the session with the last run of the server, until the server has heard that all is claimed.
    claimed: Option<u128>,
    /// Keys of earlier sessions with this run of the server, in which something may have been lost.
    ended: Vec<u128>,
    /// The highest token that the server has given us.
    seen: u64,
    /// Whether the server has let us into the space.
    pub is_open: bool,
    /// Whose the locks are.
    pub identity: Option<Identity>,
    /// Who we are in the space, if we run its protocol ourselves, and for which time; members so far.
    pub member: Option<(u32, PeerId)>,
    members: u32,
    /// Whether we are to be somebody there.
    joins: bool,
    /// Why the server wants nothing to do with us.
    pub fatal: Option<String>,
    /// Where a broken one differs.
    pub rules: TableRules,
    pub retention: RetentionRules,
    /// Whether grants may stay here, and by handle those that do.
    retains: bool,
    retained: HashMap<u64, RetainedLock>,
    /// Handles of which a grant is here, or was at the last look.
    with_grants: BTreeSet<u64>,
    /// What was decided and is to be said, in order.
    to_say: Vec<Request>,
    /// The members of sets that wait, in order.
    sets: Vec<Vec<RequestId>>,
    /// By request: holders who want to hear of those who wait.
    watched: HashMap<RequestId, Vec<Arc<Contention>>>,
}

impl Table {
    /// An empty one; `retains`: grants may stay here.
    pub fn new(retains: bool) -> Self {
        Self { retains, ..Self::default() }
    }

    /// Whether the server has let us into the space, and said whose it is.
    pub const fn is_ready(&self) -> bool {
        self.is_open && self.identity.is_some() && (!self.joins || self.member.is_some())
    }

    /// The message that says `ask`. It is kept until the server has taken it.
    #[must_use]
    pub fn say(&mut self, ask: &Request) -> Message {
        self.seq += 1;
        let message = ask.encode(self.seq);
        self.unacked.push_back((self.seq, message.clone()));
        message
    }

    /// What has to be said again after a break.
    pub fn unacked(&self) -> impl Iterator<Item = &Message> {
        self.unacked.iter().map(|(_, message)| message)
    }

    /// A new handle for a name.
    pub fn name(&mut self, kind: Kind, name: &LockName) -> (u64, Request) {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(handle, (kind, name.clone()));
        if self.retains && kind == Kind::Keyed {
            self.retained.insert(handle, RetainedLock::default());
        }
        (handle, Request::Name { handle, kind, name: name.clone() })
    }

    /// The handle is of no more use.
    pub fn forget(&mut self, handle: u64) -> Request {
        self.handles.remove(&handle);
        let idle = self.retained.remove(&handle).and_then(|lock| lock.lock().retention.end());
        if let Some(id) = idle.filter(|id| self.take(*id).is_some()) {
            self.to_say.push(Request::Unlock { id, answer: false });
        }
        Request::Forget { handle }
    }

    /// A new request.
    pub fn open(&mut self, units: Option<Units>, stage: Stage) -> RequestId {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.next_id += 1;
        let id = self.next_id << 32 | u64::from(at);
        let (change, since) = (Change::None, Instant::now());
        self.slots[at as usize] = Some(PendingRequest { id, units, stage, change, since, waker: None });
        id
    }

    fn request(&mut self, id: RequestId) -> Option<&mut PendingRequest> {
        self.slots.get_mut(slot(id) as usize)?.as_mut().filter(|request| request.id == id)
    }

    pub fn stage(&mut self, id: RequestId) -> Option<&mut Stage> {
        self.request(id).map(|request| &mut request.stage)
    }

    /// Leaves a waker with a request.
    pub fn keep(&mut self, id: RequestId, waker: &Waker) {
        if let Some(request) = self.request(id) {
            match &mut request.waker {
                Some(kept) => kept.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
    }

    /// Takes a request out.
    pub fn take(&mut self, id: RequestId) -> Option<Stage> {
        let taken = self.slots.get_mut(slot(id) as usize)?.take_if(|request| request.id == id)?;
        self.free.push(slot(id));
        if !self.watched.is_empty() {
            self.watched.remove(&id);
        }
        Some(taken.stage)
    }

    /// What the server says. Returns whom to wake.
    pub fn hear(&mut self, taken: u64, answer: Response) -> Option<Waker> {
        while self.unacked.front().is_some_and(|(seq, _)| *seq <= taken) {
            self.unacked.pop_front();
        }
        match answer {
            Response::Granted { token, .. } | Response::Changed { token, .. } => {
                self.seen = self.seen.max(token);
            }
            Response::Retained { first, count, .. } => {
                self.seen = self.seen.max(first.saturating_add(count).saturating_sub(1));
            }
            _ => {}
        }
        let origin = self.origin;
        let (id, next) = match answer {
            Response::Granted { id, token } => match self.stage(id)? {
                Stage::Wanted { .. } => (id, Stage::Granted { token }),
                // Claimed, or a piece of what was: with its token, or with one of a later change.
                Stage::Claimed { token: held, .. } if *held <= token => (id, Stage::Held { token, origin }),
                Stage::Held { token: held, .. } if *held <= token => (id, Stage::Held { token, origin }),
                // Given up meanwhile, which the server will hear.
                _ => return None,
            },
            Response::Retained { id, token, first, count } => match self.stage(id)? {
                Stage::Wanted { .. } => (id, Stage::Retained { token, first, count }),
                _ => return None,
            },
            Response::Recall { id } => {
                self.recall(id);
                return None;
            }
            Response::Busy { id } => (id, Stage::Failed(Refused::Busy)),
            Response::Refused { id, why } => (id, Stage::Failed(Refused::Error(LockError::Refused(why)))),
            Response::Lost { id } if self.end_retention(id) => {
                self.take(id);
                return None;
            }
            Response::Lost { id } => match self.stage(id)? {
                Stage::Held { .. } => (id, Stage::Lost(LostReason::Broken)),
                Stage::Claimed { .. } => (id, Stage::Lost(LostReason::ServerRestarted)),
                // Taken away before its waiter saw it.
                Stage::Granted { .. } | Stage::Retained { .. } => (
                    id,
                    Stage::Failed(Refused::Error(LockError::Refused("the lock was taken away".to_owned()))),
                ),
                _ => return None,
            },
            Response::Unlocked { id, held } => match self.stage(id)? {
                Stage::Unlocking => (id, Stage::Unlocked { held }),
                Stage::Looking { .. } => (id, Stage::Looked { bytes: vec![u8::from(held)] }),
                _ => return None,
            },
            Response::Page { id, more, bytes: page } => match self.stage(id)? {
                Stage::Looking { bytes } => {
                    bytes.extend(page);
                    if more {
                        return None;
                    }
                    (id, Stage::Looked { bytes: std::mem::take(bytes) })
                }
                _ => return None,
            },
            Response::Found { id, lock, token_base } => match self.stage(id)? {
                Stage::Looking { .. } => {
                    let bytes = [lock, token_base].iter().flat_map(|word| word.to_le_bytes()).collect();
                    (id, Stage::Looked { bytes })
                }
                _ => return None,
            },
            Response::Value { id, value } => match self.stage(id)? {
                Stage::Looking { .. } => (id, Stage::Looked { bytes: value.keep() }),
                _ => return None,
            },
            Response::Joined { peer } => {
                self.members += 1;
                self.member = Some((self.members, peer));
                return None;
            }
            Response::Changed { id, token, mode } => return self.changed(id, token, mode),
            Response::Unchanged { id, why } => return self.unchanged(id, why),
            Response::Identity { identity, .. } => {
                self.identity = Some(identity);
                return None;
            }
            Response::Relinquish { count } => {
                self.relinquish(usize::try_from(count).unwrap_or(usize::MAX));
                return None;
            }
            Response::Ack | Response::Certain { .. } | Response::Elsewhere => return None,
            Response::Contended { id } => {
                self.contended(id).into_iter().for_each(Waker::wake);
                return None;
            }
        };
        let is_granted = matches!(next, Stage::Granted { .. } | Stage::Retained { .. });
        self.request(id)?.stage = next;
        if is_granted && !self.sets.is_empty() && self.is_part(id) {
            return None;
        }
        self.request(id)?.waker.take()
    }

    /// The session is over; what only it could answer fails. Returns whom to wake.
    pub fn end_session(&mut self) -> Vec<Waker> {
        (self.is_open, self.member) = (false, None);
        self.unacked.clear();
        self.end_all_retention();
        let unreachable = || LockError::Disconnected("the connection was lost before it answered".to_owned());
        let mut woken = Vec::new();
        for request in self.slots.iter_mut().flatten() {
            match request.stage {
                Stage::Granted { .. } if self.rules.keeps_untaken_grants => {}
                Stage::Granted { .. } | Stage::Retained { .. } | Stage::Local(_) => {
                    request.stage = Stage::Wanted { wait: true };
                }
                Stage::Unlocking | Stage::Looking { .. } => {
                    request.stage = Stage::Failed(Refused::Error(unreachable()));
                    woken.extend(request.waker.take());
                }
                _ => {}
            }
        }
        woken
    }

    /// A new session begins. What is held is claimed if the server was restarted, and lost if it was not.
    #[must_use]
    pub fn begin_session(&mut self, origin: Origin, space: &[u8], one_sided: bool) -> Vec<Message> {
        let before = self.origin;
        let restarted = before.epoch != origin.epoch;
        if restarted {
            self.claimed = (before.epoch != 0).then_some(before.key);
            self.ended.clear();
        } else {
            self.ended.push(before.key);
        }
        (self.origin, self.seq, self.is_open, self.joins) = (origin, 0, false, one_sided);
        self.unacked.clear();
        self.to_say.clear();
        let (key, space) = (origin.key, space.to_vec());
        let mut asks = vec![Request::Open { version: VERSION, key, space, one_sided, seen: self.seen }];
        asks.extend(self.retains.then_some(Request::Retains));
        let mut handles: Vec<_> = self.handles.iter().collect();
        handles.sort_by_key(|(handle, _)| **handle);
        asks.extend(handles.into_iter().map(|(handle, (kind, name))| Request::Name {
            handle: *handle,
            kind: *kind,
            name: name.clone(),
        }));
        let (mut upgrades, mut wanted) = (Vec::new(), self.sets_again());
        if self.rules.asks_apart {
            wanted.clear();
            self.sets.clear();
        }
        let in_sets: BTreeSet<_> = self.sets.iter().flatten().copied().collect();
        for PendingRequest { id, units, stage, change, since, waker } in self.slots.iter_mut().flatten() {
            let Some(units) = *units else { continue };
            match *stage {
                Stage::Held { .. } if self.rules.claims_nothing && restarted => {}
                Stage::Held { token, origin } | Stage::Claimed { token, origin } if restarted => {
                    let Origin { epoch, key } = origin;
                    asks.push(Request::Claim { id: *id, units, token, epoch, key });
                    *stage = Stage::Claimed { token, origin };
                    upgrades.extend(change.ask_again(*id));
                    if change.is_settled() {
                        waker.take().into_iter().for_each(Waker::wake);
                    }
                }
                Stage::Held { .. } | Stage::Claimed { .. } => {
                    *stage = Stage::Lost(LostReason::Evicted);
                    waker.take().into_iter().for_each(Waker::wake);
                }
                Stage::Wanted { .. } if in_sets.contains(id) => {}
                Stage::Wanted { wait } => wanted.push((*since, Request::Lock { id: *id, units, wait })),
                _ => {}
            }
        }
        wanted.sort_by_key(|(since, _)| *since);
        asks.extend(self.watch_again());
        asks.extend(upgrades);
        asks.extend(wanted.into_iter().map(|(_, ask)| ask));
        asks.iter().map(|ask| self.say(ask)).collect()
    }

    /// How long each request has waited, sent behind [`begin_session`](Self::begin_session): so they keep their places in the queue.
    pub fn waited(&self, now: Instant) -> Vec<Request> {
        let waits = self
            .slots
            .iter()
            .flatten()
            .filter(|request| matches!(request.stage, Stage::Wanted { wait: true }));
        let waited =
            |since| u64::try_from(now.saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX);
        waits.map(|request| Request::Waited { id: request.id, ns: waited(request.since) }).collect()
    }

    /// It is `now`. Nothing that counts was heard for `silent`, and others may have been granted the locks: held ones are lost, and
    /// requests that have waited for that long fail, as `why` says. Returns whom to wake.
    pub fn expire(&mut self, now: Instant, silent: Duration, lease: Duration, why: &str) -> Vec<Waker> {
        if silent <= lease {
            return Vec::new();
        }
        let why = || Refused::Error(LockError::Disconnected(why.to_owned()));
        let mut woken = self.expire_retained();
        for at in 0..self.slots.len() {
            let Some(id) = self.slots[at].as_ref().map(|request| request.id) else { continue };
            // What nobody uses is lost with the session, or not at all.
            if self.is_idle(id) {
                continue;
            }
            let Some(request) = &mut self.slots[at] else { continue };
            request.stage = match request.stage {
                Stage::Held { .. } | Stage::Claimed { .. } => Stage::Lost(LostReason::Disconnected),
                Stage::Granted { .. } | Stage::Retained { .. } | Stage::Local(_) => Stage::Failed(why()),
                Stage::Wanted { .. } if now.saturating_duration_since(request.since) > lease => {
                    Stage::Failed(why())
                }
                _ => continue,
            };
            woken.extend(request.waker.take());
        }
        woken
    }

    /// Whether something was claimed that the server has not answered.
    pub fn has_claims(&self) -> bool {
        self.slots.iter().flatten().any(|request| matches!(request.stage, Stage::Claimed { .. }))
    }

    /// A server that was restarted has heard no claim for so long that it may have granted the locks to others: what is claimed is
    /// lost. Returns whom to wake.
    pub fn expire_claims(&mut self) -> Vec<Waker> {
        let claimed = |request: &&mut PendingRequest| matches!(request.stage, Stage::Claimed { .. });
        let claimed = self.slots.iter_mut().flatten().filter(claimed);
        let woken = claimed.filter_map(|request| {
            request.stage = Stage::Lost(LostReason::Disconnected);
            request.waker.take()
        });
        woken.collect()
    }

    /// What to say behind all claims. Of locks in a one-sided space none is claimed: they are lost, and the server waits until
    /// those who held them have surely stopped.
    #[must_use]
    pub fn claimed(&mut self) -> Option<Request> {
        let joins = self.joins;
        self.claimed.take().filter(|_| !joins).map(|key| Request::Claimed { key })
    }

    /// What to say once the last guard of what was lost is gone: its waiters need not wait for a lease.
    #[must_use]
    pub fn stopped(&mut self) -> Vec<Request> {
        let lost = |request: &PendingRequest| matches!(request.stage, Stage::Lost(_));
        if self.ended.is_empty() || self.slots.iter().flatten().any(lost) {
            return Vec::new();
        }
        self.ended.drain(..).map(|key| Request::Stopped { key }).collect()
    }

    /// Whom to wake because a try, of a lock or of an upgrade, has not been answered for `timeout`.
    pub fn late(&mut self, now: Instant, timeout: Duration) -> Vec<Waker> {
        let late = |request: &&mut PendingRequest| {
            let only_tried =
                matches!(request.stage, Stage::Wanted { wait: false }) || request.change.is_tried();
            only_tried && now.saturating_duration_since(request.since) >= timeout
        };
        self.slots.iter_mut().flatten().filter(late).filter_map(|request| request.waker.take()).collect()
    }

    /// The server wants nothing to do with us: everything fails. Returns whom to wake.
    pub fn fail(&mut self, why: &str) -> Vec<Waker> {
        self.fatal = Some(why.to_owned());
        let mut woken = self.end_session();
        for request in self.slots.iter_mut().flatten() {
            request.stage = match request.stage {
                Stage::Held { .. } | Stage::Claimed { .. } => Stage::Lost(LostReason::Disconnected),
                Stage::Wanted { .. } => {
                    Stage::Failed(Refused::Error(LockError::Disconnected(why.to_owned())))
                }
                _ => continue,
            };
            woken.extend(request.waker.take());
        }
        woken
    }
}

#[cfg(test)]
mod tests;
