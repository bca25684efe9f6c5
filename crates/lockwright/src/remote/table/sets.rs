//! Sets: several locks that are asked for in one message, and taken by the server one after the other.
//!
//! Every member is a request of the table like any other. Until all of them are granted, none counts as held: if the session ends, all
//! are asked for again, in order, and nothing is claimed. So a set never holds a lock while it asks for one that comes before.
//!
//! | members | the waiter sees |
//! |---|---|
//! | some are wanted | nothing yet |
//! | all are granted | all of them |
//! | one has failed | why; the others are given up |

use super::{LocalGrant, Stage, Table};
use crate::backend::Refused;
use crate::remote::retained::{Asked, Certainty};
use crate::wire::{Request, RequestId, Units};
use std::task::Waker;
use std::time::Instant;

/// How a set stands.
#[derive(Debug)]
pub enum SetStage {
    Wanted,
    Granted,
    /// This member has failed.
    Failed(RequestId),
}

impl Table {
    /// Asks the server for these locks, one after the other. What stays here of them goes back first: whoever took it here would have
    /// it before its turn.
    pub fn lock_set(&mut self, units: &[Units]) -> Vec<RequestId> {
        for units in units {
            let Some(lock) = self.retained_lock(units.handle) else { continue };
            let mut inner = lock.lock();
            if let Asked::Elsewhere(Some(id)) = inner.retention.ask(units, false, self.retention) {
                inner.certainty = None;
                self.give_back(id);
            }
        }
        let open = |units: &Units| (self.open(Some(*units), Stage::Wanted { wait: true }), *units);
        let members: Vec<_> = units.iter().map(open).collect();
        let ids: Vec<_> = members.iter().map(|(id, _)| *id).collect();
        self.sets.push(ids.clone());
        self.to_say.push(Request::LockSet { members });
        ids
    }

    /// Whether a lock is waited for here, and not at the server, since this client uses it.
    pub(crate) fn is_used_here(&self, units: Units, certain: bool) -> bool {
        let waits =
            |lock: super::RetainedLock| lock.lock().retention.waits(units.mode, certain, self.retention);
        self.retained_lock(units.handle).is_some_and(waits)
    }

    /// How the set stands that has these members.
    pub fn set_stage(&mut self, ids: &[RequestId]) -> SetStage {
        let mut stands = SetStage::Granted;
        for id in ids {
            match self.stage(*id) {
                Some(Stage::Granted { .. } | Stage::Retained { .. }) => {}
                Some(Stage::Wanted { .. }) => stands = SetStage::Wanted,
                _ => return SetStage::Failed(*id),
            }
        }
        stands
    }

    /// The waiter sees that all members are granted. `certainty`: of the session, for those that may stay here.
    pub(crate) fn see_set(&mut self, ids: &[RequestId], certainty: Option<&Certainty>) -> Vec<LocalGrant> {
        self.sets.retain(|set| set.first() != ids.first());
        let origin = self.origin;
        let mut seen = Vec::with_capacity(ids.len());
        for id in ids {
            match self.stage(*id) {
                Some(stage @ Stage::Granted { .. }) => {
                    let Stage::Granted { token } = *stage else { unreachable!("just seen") };
                    *stage = Stage::Held { token, origin };
                    seen.push(LocalGrant { id: *id, token });
                }
                Some(Stage::Retained { .. }) => seen.extend(self.keep_grant(*id, certainty.cloned())),
                _ => unreachable!("all members of a set that is seen are granted"),
            }
        }
        seen
    }

    /// As the explorer's clients see it, who have no connection.
    pub fn see_granted_set(&mut self, ids: &[RequestId]) -> Vec<LocalGrant> {
        self.see_set(ids, None)
    }

    /// Why a member has failed. It is taken out.
    pub fn take_failed(&mut self, id: RequestId) -> Option<Refused> {
        match self.take(id)? {
            Stage::Failed(refused) => Some(refused),
            _ => None,
        }
    }

    /// Gives a set up that was not seen, whatever has been granted of it.
    pub fn give_up_set(&mut self, ids: &[RequestId]) {
        self.sets.retain(|set| set.first() != ids.first());
        for id in ids {
            if self.take(*id).is_some() {
                self.to_say.push(Request::Unlock { id: *id, answer: false });
            }
            if self.rules.gives_up_first_only {
                return;
            }
        }
    }

    /// Whether the waiter of a request has nothing to see yet: it is a member of a set of which another is wanted.
    pub(super) fn is_part(&self, id: RequestId) -> bool {
        let wanted = |id: &RequestId| {
            let request = self.slots.get(crate::wire::slot(*id) as usize).and_then(Option::as_ref);
            request.is_some_and(|it| it.id == *id && matches!(it.stage, Stage::Wanted { .. }))
        };
        self.sets.iter().any(|set| set.contains(&id) && set.iter().any(wanted))
    }

    /// What is asked for again in a new session, and since when it has been wanted.
    pub(super) fn sets_again(&self) -> Vec<(Instant, Request)> {
        let again = |set: &Vec<RequestId>| {
            let requests = set.iter().filter_map(|id| {
                let request = self.slots.get(crate::wire::slot(*id) as usize)?.as_ref()?;
                let wanted = request.id == *id && matches!(request.stage, Stage::Wanted { .. });
                Some((request.since, request.units?)).filter(|_| wanted).map(|(since, it)| (since, *id, it))
            });
            let requests: Vec<_> = requests.collect();
            let since = requests.first()?.0;
            let members = requests.into_iter().map(|(_, id, units)| (id, units)).collect();
            Some((since, Request::LockSet { members }))
        };
        self.sets.iter().filter_map(again).collect()
    }

    /// Leaves a waker with every member.
    pub(crate) fn keep_all(&mut self, ids: &[RequestId], waker: &Waker) {
        ids.iter().for_each(|id| self.keep(*id, waker));
    }
}
