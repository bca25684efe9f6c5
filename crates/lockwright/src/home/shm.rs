//! `shm:`, a space in this host's shared memory: any process of this user, no server.
//!
//! Before a waiter takes a lock away from somebody it looks at the [`holders`] whether a living process holds it:
//! dead processes are seen at once, stopped ones after their lease.
//!
//! What this file must not do: keep anything about a lock outside the space.

use super::holders::{self, DependentProcess};
use super::member::Member;
use super::members::{self, Members, NAMES, token};
use super::ranges::gate;
use super::{Bound, BoxFuture, Home, Kind, Refused, Standing, Ticket};
use crate::error::{HandleError, LockError, OpenError};
use crate::name::LockName;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Reclaim, ShmSpace, SpaceError, SpaceOptions};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{FabricError, PeerId};
use lockwright_locks::Lost;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What a space of ours is called; raised when the meaning of its memory changes.
const TAG: &str = "lockwright 5, shiftlock with holder records";
/// Bits of a peer's number that ShiftLock has room for.
const PEER_BITS: u32 = 24;

/// An opened space of this host.
#[derive(Debug)]
pub(crate) struct ShmHome {
    pub(super) members: Arc<Members>,
}

/// Opens the space at `path`, and looks whether it is one of ours.
pub(crate) fn open(path: &Path, create: bool) -> Result<ShmSpace, OpenError> {
    let refuse = |why: String| OpenError::Space { space: path.display().to_string(), why };
    let options = SpaceOptions::default()
        .clients(holders::SLOTS)
        .peer_bits(PEER_BITS)
        .names(NAMES)
        .memory(1, &members::regions())
        .tag(TAG)
        .create(create);
    let space = ShmSpace::open(path, &options).map_err(|error| match error {
        SpaceError::Missing(path) => OpenError::Missing(path.display().to_string()),
        error => refuse(error.to_string()),
    })?;
    if space.tag() != TAG {
        let why = "it is a space of another kind";
        let found = space.tag();
        return Err(refuse(format!(
            "{why} ({found:?}), not {TAG:?}; when nobody uses it any more, remove it"
        )));
    }
    Ok(space)
}

impl ShmHome {
    pub(crate) fn new(space: ShmSpace, lease: Duration) -> Result<Self, LockError> {
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let home = Self { members: Arc::new(Members::new(space, lease_ns)?) };
        home.reap();
        Ok(home)
    }

    pub(crate) fn space(&self) -> &ShmSpace {
        &self.members.space
    }

    /// Recovers the locks of dead clients, drops their names, and lets their slots be used again.
    fn reap(&self) {
        let Ok(member) = self.members.any() else { return };
        let names = member.names();
        for dead in self.space().dead_clients() {
            if is_survived(&member, dead.peer) {
                continue;
            }
            let mut bases = HashMap::new();
            for id in names.names_of(dead.peer).unwrap_or_default() {
                for lock in [id, gate(id)] {
                    let _ = block_on(member.client.lock().recover(lock));
                }
                bases.extend(names.info(id).ok().flatten().map(|info| (id, info.lock.token_base)));
            }
            let settle = |id| bases.get(&id).map_or(Reclaim::Keep, |base| reclaim(&member, id, *base));
            if names.drop_all_of(dead.peer, settle).is_ok() {
                self.space().bury(dead.peer);
            }
        }
    }

    pub(super) fn by_lease(&self, member: &Member) -> Standing {
        if member.holders().is_late(self.space().now()) { Standing::Uncertain } else { Standing::Held }
    }
}

/// Whether the dependent process of a client that is dead still runs.
fn is_survived(member: &Member, dead: PeerId) -> bool {
    let client = member.holders().reader().client(dead);
    client.is_some_and(|client| DependentProcess::of_client(&client).is_running())
}

/// Names whose tokens would begin above this are not made: with what a lock adds by itself, tokens stay below 2⁵³, from where
/// on readers of JSON may round them.
const HIGHEST_BASE: u64 = 1 << 52;

/// Whether an unused name can go. Not one that a client which is alive has a record for: a client that was evicted as the user of
/// a name may be alive as the holder of a range of it, by another membership.
fn reclaim(member: &Member, id: u64, token_base: u64) -> Reclaim {
    if member.table().is_wanted_now(id) {
        return Reclaim::Keep;
    }
    // Both go on from the same token, so that the next name's can begin just there.
    match block_on(member.client.lock().level_tokens([id, gate(id)])) {
        Ok(Some(own_token)) if own_token.saturating_add(token_base) < HIGHEST_BASE => {
            Reclaim::Reuse { highest_token: own_token + token_base, own_token }
        }
        _ => Reclaim::Keep,
    }
}

fn handle_error(error: SpaceError) -> HandleError {
    match error {
        SpaceError::TooManyNames(_) | SpaceError::TooManyRefs(_) => {
            HandleError::Full { why: error.to_string() }
        }
        error => HandleError::Space { why: error.to_string() },
    }
}

impl Home for ShmHome {
    fn bind(&self, name: &LockName, _: Kind) -> Result<Bound, HandleError> {
        let member = self.members.any().map_err(|error| HandleError::Space { why: error.to_string() })?;
        let names = member.names();
        let lock = match names.open(name.as_bytes()) {
            Err(SpaceError::TooManyNames(_)) => {
                let bases: HashMap<_, _> = names
                    .all()
                    .map_err(handle_error)?
                    .iter()
                    .map(|name| (name.lock.id, name.lock.token_base))
                    .collect();
                let settle = |id| bases.get(&id).map_or(Reclaim::Keep, |base| reclaim(&member, id, *base));
                names.sweep(settle).map_err(handle_error)?;
                names.open(name.as_bytes())
            }
            opened => opened,
        };
        let lock = lock.map_err(handle_error)?;
        Ok(Bound { lock: lock.id, token_base: lock.token_base, by: member.number })
    }

    #[inline]
    fn is_bound(&self, bound: &Bound) -> bool {
        self.members.is_in(bound.by)
    }

    fn unbind(&self, _: &LockName, bound: Bound, _: Kind) {
        // A member that was evicted has lost its names with everything else.
        if let Some(member) = self.members.all().into_iter().find(|member| member.number == bound.by) {
            let _ = member.names().close(bound.lock, |id| reclaim(&member, id, bound.token_base));
        }
    }

    /// Ranges have a gate, for which one may have to wait.
    fn try_now(&self, kind: Kind, claim: Claim) -> Option<Result<Ticket, Refused>> {
        match kind {
            Kind::Keyed => Some(self.members.try_take(claim).map_err(|denied| Refused::new(denied, claim))),
            Kind::Ranges => self.try_range_now(claim),
        }
    }

    fn try_soon(&self, _: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        self.range(claim, false)
    }

    fn try_patience(&self) -> Option<Duration> {
        Some(super::ranges::TRY)
    }

    fn rescue(&self, kind: Kind, claim: Claim) -> bool {
        // Ranges of the dead do not count anyway.
        kind == Kind::Keyed
            && self.members.any().is_ok_and(|member| {
                !member.table().is_wanted_now(claim.lock)
                    && block_on(member.client.lock().recover(claim.lock)) == Ok(true)
            })
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        match kind {
            Kind::Keyed => {
                let members = Arc::clone(&self.members);
                Box::pin(
                    async move { members.take(claim).await.map_err(|denied| Refused::new(denied, claim)) },
                )
            }
            Kind::Ranges => self.range(claim, true),
        }
    }

    #[inline]
    fn release_at_once(&self, kind: Kind, claim: Claim, ticket: &Ticket) -> Option<Result<(), Lost>> {
        match kind {
            Kind::Keyed => self.members.give_back_at_once(claim, ticket),
            Kind::Ranges => Some(self.release_range(claim, ticket)),
        }
    }

    fn release(&self, kind: Kind, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        match kind {
            Kind::Keyed => Box::pin(Arc::clone(&self.members).give_back(claim, ticket)),
            Kind::Ranges => Box::pin(std::future::ready(self.release_range(claim, &ticket))),
        }
    }

    fn token(&self, ticket: &Ticket) -> u64 {
        token(&ticket.grant)
    }

    fn standing(&self, kind: Kind, claim: Claim, ticket: &Ticket) -> Standing {
        if kind == Kind::Ranges {
            return self.range_standing(claim, ticket);
        }
        let member = self.members.member(ticket.seat);
        match block_on(member.client.lock().holds(&member.grant(claim, ticket))) {
            Ok(true) => self.by_lease(&member),
            Ok(false) | Err(FabricError::Expelled) => Standing::Lost,
            Err(_) => Standing::Uncertain,
        }
    }

    fn set_ward(&self, pid: u32) -> bool {
        let Some(process) = DependentProcess::of(pid) else { return false };
        self.members.all().iter().all(|member| member.holders().set_dependent(process).is_ok())
    }

    fn nearby(&self, bound: &Bound) -> Option<&Arc<Member>> {
        self.members.that_stays(bound.by)
    }

    fn heartbeat(&self) -> Duration {
        self.members.beat();
        self.reap();
        Duration::from_nanos(holders::period_ns(self.members.lease_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_that_an_older_version_made_is_refused_with_what_can_be_done_about_it() {
        let path = std::env::temp_dir().join(format!("lockwright-old-{}.space", std::process::id()));
        let old = "lockwright 4, kept shiftlock";
        drop(ShmSpace::open(&path, &SpaceOptions::default().tag(old).create(true)).unwrap());
        let refused = open(&path, true).unwrap_err().to_string();
        let _ = std::fs::remove_file(&path);
        assert!(refused.contains(old) && refused.contains(TAG), "{refused}");
        assert!(refused.ends_with("when nobody uses it any more, remove it"), "{refused}");
    }
}
