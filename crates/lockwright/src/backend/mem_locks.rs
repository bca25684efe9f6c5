//! Locks between threads: the combiner's core behind a mutex, and a waker for every request that waits.
//!
//! The same core as in a server, without the list and the wire: a name is a unit of its own, ranges have a tree each, and
//! conflicting requests are served first come, first served. What is held can be upgraded, downgraded, and given back in part.
//!
//! | state of a request | means |
//! |---|---|
//! | free | unused |
//! | wanted | it waits, or is about to be told that it was busy |
//! | held | with this token |
//! | upgrading | held, shared, with this token, and it waits to be alone |
//! | denied | it failed; the requester frees it |
//! | stays | an upgrade failed; the requester makes it held again |
//!
//! What this file must not do: call a waker with the mutex locked.

use super::Kind;
use crate::error::ChangeError;
#[cfg(target_os = "linux")]
use crate::inspect::{Entry, EntryState, Permits};
use crate::lock::contention::Contention;
#[cfg(target_os = "linux")]
use crate::name::LockName;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_locks::combiner::core::{Answer, ClientId, Core, Limits, NAMES, Refusal, Reply, Request};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// All requests of this process are one client's to the core.
const CLIENT: ClientId = ClientId(0);
/// Requests at a time.
const MAX_REQUESTS: u32 = 1 << 20;

/// All locks of a space.
#[derive(Debug)]
pub(crate) struct MemLocks {
    table: Mutex<LockTable>,
}

#[derive(Debug)]
struct LockTable {
    core: Core,
    slots: Vec<Slot>,
    free: Vec<u32>,
    replies: Vec<Reply>,
    woken: Vec<Waker>,
    /// Holders who want to hear of those who wait for what they hold.
    watched: Vec<(u32, Arc<Contention>)>,
}

#[derive(Debug, Default)]
struct Slot {
    state: State,
    waker: Option<Waker>,
    /// What it holds or wants.
    claim: Option<(Kind, Claim)>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Free,
    Wanted,
    Held {
        token: u64,
    },
    Upgrading {
        token: u64,
    },
    Denied(DenyReason),
    Stays {
        token: u64,
        why: DenyReason,
    },
}

/// DenyReason something came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenyReason {
    Busy,
    Refused(Refusal),
}

impl Default for MemLocks {
    fn default() -> Self {
        let core = Core::new(Limits { clients: 1, ids: MAX_REQUESTS });
        let (slots, free, replies, woken, watched) = Default::default();
        Self { table: Mutex::new(LockTable { core, slots, free, replies, woken, watched }) }
    }
}

impl LockTable {
    /// A place for a new request.
    fn take_slot(&mut self, kind: Kind, claim: Claim) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[id as usize];
        (slot.state, slot.claim) = (State::Wanted, Some((kind, claim)));
        id
    }

    fn free_slot(&mut self, id: u32) {
        self.slots[id as usize] = Slot::default();
        self.free.push(id);
        self.watched.retain(|(watched, _)| *watched != id);
    }

    fn state(&mut self, id: u32) -> &mut State {
        &mut self.slots[id as usize].state
    }

    /// Has the core serve a request, and notes the answers in their slots.
    fn ask(&mut self, request: Request) {
        self.core.handle(CLIENT, request, &mut self.replies);
        for Reply { id, answer, .. } in self.replies.drain(..) {
            let slot = &mut self.slots[id as usize];
            let upgrades = matches!(slot.state, State::Upgrading { .. });
            let denied = |why| match slot.state {
                State::Upgrading { token } => State::Stays { token, why },
                State::Wanted => State::Denied(why),
                state => state,
            };
            slot.state = match answer {
                Answer::Granted { token } | Answer::Downgraded { token } => State::Held { token },
                Answer::Busy => denied(DenyReason::Busy),
                Answer::Refused(refusal) => denied(DenyReason::Refused(refusal)),
                Answer::Cancelled => continue,
            };
            if let (Some((_, claim)), Answer::Granted { .. }, true) = (&mut slot.claim, &answer, upgrades) {
                claim.mode = Mode::Exclusive;
            } else if let (Some((_, claim)), Answer::Downgraded { .. }) = (&mut slot.claim, &answer) {
                claim.mode = Mode::Shared;
            }
            self.woken.extend(slot.waker.take());
        }
    }

    /// Whether request `id` waits for what request `held` has.
    fn waits_for(&self, id: u32, held: u32) -> bool {
        let (waiter, holder) = (&self.slots[id as usize], &self.slots[held as usize]);
        let (Some((kind, wanted)), Some((other, has))) = (waiter.claim, holder.claim) else { return false };
        let wanted_mode = match waiter.state {
            State::Wanted => wanted.mode,
            State::Upgrading { .. } => Mode::Exclusive,
            _ => return false,
        };
        let conflicts =
            kind == Kind::Semaphores || wanted_mode == Mode::Exclusive || has.mode == Mode::Exclusive;
        let overlaps = kind != Kind::Ranges || wanted.start < has.end && has.start < wanted.end;
        id != held && kind == other && wanted.lock == has.lock && conflicts && overlaps
    }

    /// Request `id` waits from now on.
    fn tell_watched(&mut self, id: u32) {
        for (held, contention) in &self.watched {
            if self.waits_for(id, *held) {
                self.woken.extend(contention.set());
            }
        }
        self.watched.retain(|(_, contention)| !contention.is_over());
    }
}

fn lock(kind: Kind, claim: &Claim, id: u32, wait: bool) -> Request {
    let Claim { lock, mode, start, end } = *claim;
    match kind {
        Kind::Keyed => Request::Lock { id, lock: NAMES, mode, start: lock, end: lock + 1, wait },
        Kind::Ranges => Request::Lock { id, lock, mode, start, end, wait },
        Kind::Semaphores => Request::Permits { id, lock, weight: start, limit: end - 1, wait },
    }
}

impl MemLocks {
    fn table(&self) -> MutexGuard<'_, LockTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks the table, and wakes the requests that it has an answer for.
    fn close(mut table: MutexGuard<'_, LockTable>) {
        if !table.woken.is_empty() {
            let woken = std::mem::take(&mut table.woken);
            drop(table);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Takes a lock if it is free: which request it is, and its token.
    pub(super) fn try_acquire(&self, kind: Kind, claim: &Claim) -> Result<(u32, u64), DenyReason> {
        let mut table = self.table();
        let id = table.take_slot(kind, *claim);
        table.ask(lock(kind, claim, id, false));
        let outcome = match *table.state(id) {
            State::Held { token } => Ok((id, token)),
            State::Denied(why) => Err(why),
            state => unreachable!("a try is granted or denied: {state:?}"),
        };
        if outcome.is_err() {
            table.free_slot(id);
        }
        Self::close(table);
        outcome
    }

    /// Takes a lock, however long it takes. Dropped, it is given up.
    pub(super) fn acquire(self: &Arc<Self>, kind: Kind, claim: Claim) -> Acquiring {
        Acquiring { locks: Arc::clone(self), kind, claim, id: None }
    }

    /// Gives a lock back, or gives a request up.
    pub(super) fn release(&self, id: u32) {
        let mut table = self.table();
        table.ask(Request::Cancel { id });
        table.free_slot(id);
        Self::close(table);
    }

    /// The token of what is held.
    pub(super) fn token(&self, id: u32) -> u64 {
        match *self.table().state(id) {
            State::Held { token } | State::Upgrading { token } | State::Stays { token, .. } => token,
            state => unreachable!("only what is held has a token: {state:?}"),
        }
    }

    /// `contention` is told when a client waits for what request `id` holds; or now, if one does.
    pub(super) fn watch(&self, id: u32, contention: &Arc<Contention>) {
        let mut table = self.table();
        if (0..table.slots.len() as u32).any(|waiter| table.waits_for(waiter, id)) {
            table.woken.extend(contention.set());
        } else if !table.watched.iter().any(|(_, watched)| Arc::ptr_eq(watched, contention)) {
            table.watched.push((id, Arc::clone(contention)));
        }
        Self::close(table);
    }

    /// Who holds and waits, all of them in this process. For how long is not written down.
    #[cfg(target_os = "linux")]
    pub(super) fn entries_of(&self, name: &LockName, kind: Kind, id: u64) -> Vec<Entry> {
        let entry = |slot: &Slot| {
            let (_, claim) = slot.claim.filter(|(other, claim)| (*other, claim.lock) == (kind, id))?;
            let (state, token) = match slot.state {
                State::Held { token } | State::Upgrading { token } | State::Stays { token, .. } => {
                    (EntryState::Held, Some(token))
                }
                State::Wanted => (EntryState::Waiting, None),
                State::Free | State::Denied(_) => return None,
            };
            let units = claim.start..claim.end;
            Some(Entry {
                shared: claim.mode == Mode::Shared,
                permits: (kind == Kind::Semaphores).then(|| Permits::of_units(&units)),
                range: (kind == Kind::Ranges).then_some(units),
                token,
                pid: std::process::id(),
                ..Entry::new(name.clone(), state)
            })
        };
        self.table().slots.iter().filter_map(entry).collect()
    }

    /// `token`, if that is what request `id` is held with; a downgrade or upgrade on its way has the old one still.
    pub(super) fn held_token(&self, id: u32, token: u64) -> Option<u64> {
        match *self.table().state(id) {
            State::Held { token: held }
            | State::Upgrading { token: held }
            | State::Stays { token: held, .. }
                if held == token =>
            {
                Some(token)
            }
            _ => None,
        }
    }

    /// Makes a shared lock exclusive. Dropped, it leaves it shared.
    pub(super) fn upgrade(self: &Arc<Self>, id: u32, wait: bool) -> Upgrading {
        Upgrading { locks: Arc::clone(self), id, wait, asked: false }
    }

    /// Makes an exclusive lock shared; the token from then on.
    pub(super) fn downgrade(&self, id: u32) -> u64 {
        let mut table = self.table();
        table.ask(Request::Downgrade { id });
        let State::Held { token } = *table.state(id) else { unreachable!("it was held, and still is") };
        Self::close(table);
        token
    }

    /// Gives back a part of a range that is neither empty nor all of it nor outside. The second piece's request, if two are
    /// left; `None` if there is no room for it.
    pub(super) fn unlock_part(&self, id: u32, part: &Range<u64>, two: bool) -> Option<u32> {
        let mut table = self.table();
        let state = *table.state(id);
        let (kind, claim) = table.slots[id as usize].claim.expect("what is held was asked for");
        let (left, right) = (Claim { end: part.start, ..claim }, Claim { start: part.end, ..claim });
        let rest = if two { table.take_slot(kind, right) } else { id };
        if rest >= MAX_REQUESTS {
            table.free_slot(rest);
            return None;
        }
        *table.state(rest) = state;
        table.slots[id as usize].claim = Some((kind, if left.start < left.end { left } else { right }));
        table.ask(Request::UnlockPart { id, start: part.start, end: part.end, rest });
        Self::close(table);
        Some(rest)
    }
}

/// A lock on its way.
pub(super) struct Acquiring {
    locks: Arc<MemLocks>,
    kind: Kind,
    claim: Claim,
    /// Once it was asked for, and as long as its outcome was not seen.
    id: Option<u32>,
}

impl Future for Acquiring {
    type Output = Result<(u32, u64), DenyReason>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut table = this.locks.table();
        let id = *this.id.get_or_insert_with(|| {
            let id = table.take_slot(this.kind, this.claim);
            table.ask(lock(this.kind, &this.claim, id, true));
            table.tell_watched(id);
            id
        });
        let outcome = match *table.state(id) {
            State::Held { token } => Ok((id, token)),
            State::Denied(why) => {
                table.free_slot(id);
                Err(why)
            }
            _ => {
                table.slots[id as usize].waker = Some(cx.waker().clone());
                MemLocks::close(table);
                return Poll::Pending;
            }
        };
        MemLocks::close(table);
        this.id = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.locks.release(id);
        }
    }
}

/// An upgrade on its way.
pub(super) struct Upgrading {
    locks: Arc<MemLocks>,
    id: u32,
    wait: bool,
    /// It was asked for, and its outcome was not seen.
    asked: bool,
}

impl Future for Upgrading {
    type Output = Result<u64, ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (id, wait) = (this.id, this.wait);
        let mut table = this.locks.table();
        if !this.asked {
            let State::Held { token } = *table.state(id) else {
                unreachable!("only what is held is upgraded")
            };
            *table.state(id) = State::Upgrading { token };
            table.ask(Request::Upgrade { id, wait });
            table.tell_watched(id);
            this.asked = true;
        }
        let outcome = match *table.state(id) {
            State::Held { token } => Ok(token),
            State::Stays { token, why } => {
                *table.state(id) = State::Held { token };
                Err(match why {
                    DenyReason::Busy => ChangeError::Busy,
                    DenyReason::Refused(Refusal::UpgradeConflict) => ChangeError::WouldDeadlock,
                    DenyReason::Refused(refusal) => ChangeError::Refused(refusal.to_string()),
                })
            }
            _ => {
                table.slots[id as usize].waker = Some(cx.waker().clone());
                MemLocks::close(table);
                return Poll::Pending;
            }
        };
        MemLocks::close(table);
        this.asked = false;
        Poll::Ready(outcome)
    }
}

impl Drop for Upgrading {
    fn drop(&mut self) {
        if !self.asked {
            return;
        }
        let mut table = self.locks.table();
        if let State::Stays { token, .. } = *table.state(self.id) {
            *table.state(self.id) = State::Held { token };
        } else {
            // It waits, or was granted and nobody has seen it.
            table.ask(Request::Downgrade { id: self.id });
        }
        MemLocks::close(table);
    }
}
