//! Changes of what a client holds, as its table sees them.
//!
//! | change | means | ends with |
//! |---|---|---|
//! | none | it is held as `units` say | |
//! | upgrading | an upgrade is wanted, and a caller waits for it; it is shared | `Changed`, exclusive: it is; `Unchanged` |
//! | settling | a downgrade was said, or an upgrade given up; it counts as shared | `Changed`, shared |
//! | failed | an upgrade failed; its waiter is about to hear why | being heard |
//!
//! So this side never believes that it has more than the server gave it, and what it claims after a restart was its own. While
//! it settles, an answer to the upgrade that was given up is of no interest; a new upgrade waits until it has settled, so
//! that its answer is not taken for that of the one before.
//!
//! What this file must not do: cut a range otherwise than the server does.

use super::{Origin, Stage, Table};
use crate::error::ChangeError;
use crate::remote::retained::Detached;
use crate::wire::{DenyReason, MAX_REQUESTS, Request, RequestId, Units};
use lockwright_fabric::observe::Mode;
use std::task::Waker;

/// What a held lock is about to become.
#[derive(Clone, Debug, Default)]
pub(crate) enum Change {
    #[default]
    None,
    Upgrading {
        wait: bool,
    },
    Settling,
    Failed(ChangeError),
}

impl Change {
    pub(super) const fn is_settled(&self) -> bool {
        matches!(self, Change::None)
    }

    pub(super) const fn is_tried(&self) -> bool {
        matches!(self, Change::Upgrading { wait: false })
    }

    /// After a restart: the claim is said as of a shared lock, which is all there is to a downgrade. An upgrade is said again.
    pub(super) fn ask_again(&mut self, id: RequestId) -> Option<Request> {
        match *self {
            Change::Upgrading { wait } => Some(Request::Upgrade { id, wait }),
            Change::Settling => {
                *self = Change::None;
                None
            }
            _ => None,
        }
    }
}

/// How an upgrade stands.
#[derive(Debug)]
pub enum Upgrade {
    /// It is to be said; or it waits until what was said before is settled.
    Said(Request),
    Waiting,
    Done {
        token: u64,
    },
    Failed(ChangeError),
}

impl Table {
    /// The token of what is held.
    pub fn token(&mut self, id: RequestId) -> Option<u64> {
        match *self.stage(id)? {
            Stage::Held { token, .. } | Stage::Claimed { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Begins an upgrade, unless an earlier change has to settle first.
    pub fn begin_upgrade(&mut self, id: RequestId, wait: bool, token: u64) -> Upgrade {
        let lost = Upgrade::Failed(ChangeError::Lost { token });
        if self.token(id).is_none() {
            return lost;
        }
        match self.detach(id, token, wait) {
            Ok(()) => {}
            Err(None) => return Upgrade::Waiting,
            Err(Some(Detached::Deadlock)) => return Upgrade::Failed(ChangeError::WouldDeadlock),
            Err(Some(_)) => return Upgrade::Failed(ChangeError::Busy),
        }
        let Some(request) = self.request(id) else { return lost };
        match request.change {
            Change::None => {
                request.change = Change::Upgrading { wait };
                request.since = std::time::Instant::now();
                Upgrade::Said(Request::Upgrade { id, wait })
            }
            _ => Upgrade::Waiting,
        }
    }

    /// How an upgrade that was begun stands.
    pub fn upgrade(&mut self, id: RequestId, token: u64) -> Upgrade {
        let held = self.token(id);
        let Some((request, held)) = self.request(id).zip(held) else {
            return Upgrade::Failed(ChangeError::Lost { token });
        };
        match std::mem::take(&mut request.change) {
            Change::None => Upgrade::Done { token: held },
            Change::Failed(why) => Upgrade::Failed(why),
            still => {
                request.change = still;
                Upgrade::Waiting
            }
        }
    }

    /// Gives an upgrade up. It is shared from now on, whatever the server has made of it.
    pub fn give_up_upgrade(&mut self, id: RequestId) -> Option<Request> {
        self.token(id)?;
        let request = self.request(id)?;
        match request.change {
            Change::Settling => None,
            Change::Failed(_) => {
                request.change = Change::None;
                None
            }
            // Or it has been granted, and nobody has seen it.
            Change::Upgrading { .. } | Change::None => {
                request.change = Change::Settling;
                request.units.as_mut()?.mode = Mode::Shared;
                Some(Request::Downgrade { id, gives_up: true })
            }
        }
    }

    /// Makes it shared, from now on. `None` if it is lost.
    pub fn begin_downgrade(&mut self, id: RequestId) -> Option<Request> {
        let token = self.token(id)?;
        // A writer is the only user.
        let _ = self.detach(id, token, false);
        let request = self.request(id)?;
        request.change = Change::Settling;
        request.units.as_mut()?.mode = Mode::Shared;
        Some(Request::Downgrade { id, gives_up: false })
    }

    /// Whether a downgrade is settled, and with which token; an error if it is lost.
    pub fn downgrade(&mut self, id: RequestId, token: u64) -> Option<Result<u64, ChangeError>> {
        match self.token(id) {
            None => Some(Err(ChangeError::Lost { token })),
            Some(held) => self.request(id)?.change.is_settled().then_some(Ok(held)),
        }
    }

    /// Gives back a part of a range, which is neither empty nor all of it nor outside. Says what is to be said, and which
    /// request the second piece is, if there are two. `None` if it is lost.
    pub fn cut(&mut self, id: RequestId, start: u64, end: u64) -> Option<(Request, Option<RequestId>)> {
        self.token(id)?;
        let request = self.request(id)?;
        let units = request.units.as_mut()?;
        let whole = *units;
        let (left, right) = (Units { end: start, ..whole }, Units { start: end, ..whole });
        let two = left.start < left.end && right.start < right.end;
        *units = if left.start < left.end { left } else { right };
        let rest = if two {
            let stage = match request.stage {
                Stage::Held { token, origin } => Stage::Held { token, origin },
                Stage::Claimed { token, origin } => Stage::Claimed { token, origin },
                _ => unreachable!("it has a token"),
            };
            Some(self.open(Some(right), stage))
        } else {
            None
        };
        Some((Request::Part { id, start, end, rest: rest.unwrap_or(id) }, rest))
    }

    /// What this client believes to hold, for sure.
    pub fn believes(&self) -> Vec<(RequestId, Units, u64)> {
        let requests = self.slots.iter().flatten();
        let held = requests.filter_map(|request| match request.stage {
            Stage::Held { token, .. } => Some((request.id, request.units?, token)),
            _ => None,
        });
        held.collect()
    }

    /// Whether the server has room for another request of this client's.
    pub fn has_room(&self) -> bool {
        self.free.last().map_or(self.slots.len(), |slot| *slot as usize) < MAX_REQUESTS as usize
    }

    /// The server has changed it.
    pub(super) fn changed(&mut self, id: RequestId, token: u64, mode: Mode) -> Option<Waker> {
        let origin: Origin = self.origin;
        let request = self.request(id)?;
        match (&request.change, mode, &request.stage) {
            (Change::Upgrading { .. }, Mode::Exclusive, Stage::Held { .. })
            | (Change::Settling, Mode::Shared, Stage::Held { .. }) => {
                request.stage = Stage::Held { token, origin };
                request.units.as_mut()?.mode = mode;
                request.change = Change::None;
                request.waker.take()
            }
            // Of an upgrade that was given up meanwhile, which the server will hear.
            _ => None,
        }
    }

    /// The server has not changed it.
    pub(super) fn unchanged(&mut self, id: RequestId, why: DenyReason) -> Option<Waker> {
        let request = self.request(id)?;
        let Change::Upgrading { .. } = request.change else { return None };
        request.change = Change::Failed(match why {
            DenyReason::Busy => ChangeError::Busy,
            DenyReason::Deadlock => ChangeError::WouldDeadlock,
            DenyReason::Refused(why) => ChangeError::Refused(why),
        });
        request.waker.take()
    }
}
