//! `shm:`, a space in this host's shared memory: any process of this user, no server.
//!
//! Before a waiter takes a lock away it looks in the [`holders`] whether a living process holds it: dead processes are seen
//! at once, stopped ones after their lease.
//!
//! What this file must not do: keep anything about a lock outside the space.

use super::holders::{self, reader};
use super::member::Member;
use super::members::{self, Members, NAMES, token};
use super::ranges::gate;
use super::{Bound, BoxFuture, GivenUp, Granted, Kind, Locker, Refused, Space, SpaceIdentity, Standing};
use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, LostReason, OpenError};
use crate::inspect::{self, Entry};
use crate::name::LockName;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Process, Reclaim, ShmSpace, SpaceError, SpaceOptions};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{FabricError, PeerId};
use lockwright_locks::Lost;
use lockwright_locks::holders::record::{name_of, semaphore};
use lockwright_locks::holders::{self as records, HolderRecord};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a space of ours is called; raised when the meaning of its memory changes.
const TAG: &str = "lockwright 8, shiftlock with holder records";
/// Bits of a peer's number that ShiftLock has room for.
const PEER_BITS: u32 = 24;

/// An opened space of this host.
#[derive(Debug)]
pub(crate) struct ShmBackend {
    identity: SpaceIdentity,
    pub(super) members: Arc<Members>,
    /// Names that no handle of this client is for any more, and that are to be closed.
    unbound: Mutex<Vec<Bound>>,
}

/// Names that are closed together: whether one can go takes a scan of all records.
const CLOSED_TOGETHER: usize = 512;

/// Opens the space at `path`, and looks whether it is one of ours.
pub(crate) fn open(path: &Path, create: bool, program: Option<&str>) -> Result<ShmSpace, OpenError> {
    let refuse = |why: String| OpenError::Failed { space: path.display().to_string(), why };
    let options = SpaceOptions::default()
        .clients(holders::SLOTS)
        .peer_bits(PEER_BITS)
        .names(NAMES)
        .memory(1, &members::regions())
        .tag(TAG)
        .program(program)
        .create(create);
    let space = ShmSpace::open(path, &options).map_err(|error| match error {
        SpaceError::Missing(path) => OpenError::NotFound(path.display().to_string()),
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

impl ShmBackend {
    pub(crate) fn new(space: ShmSpace, lease: Duration) -> Result<Self, LockError> {
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let identity = space.identity().map_err(|error| LockError::Disconnected(error.to_string()))?;
        let identity = SpaceIdentity::Shm(identity);
        let members = Arc::new(Members::new(space, lease_ns)?);
        let backend = Self { identity, members, unbound: Mutex::default() };
        backend.reap();
        Ok(backend)
    }

    pub(crate) fn space(&self) -> &ShmSpace {
        &self.members.space
    }

    /// Recovers the locks of dead clients, drops their names, and lets their slots be used again.
    fn reap(&self) {
        let Ok(member) = self.members.any() else { return };
        let names = member.names();
        for dead in self.space().dead_clients() {
            if has_dependent(&member, dead.peer) {
                continue;
            }
            // Without the directory it is not known which locks it had: later, or another process.
            let Ok(ids) = names.names_of(dead.peer) else { continue };
            let mut bases = HashMap::new();
            for id in ids {
                for lock in [id, gate(id)] {
                    let _ = block_on(member.client.lock().recover(lock));
                }
                bases.extend(names.info(id).ok().flatten().map(|info| (id, info.lock.token_base)));
            }
            let mut wanted = None;
            let settle = |id| {
                let wanted = wanted.get_or_insert_with(|| wanted_locks(&member));
                bases.get(&id).map_or(Reclaim::Keep, |base| reclaim(&member, id, *base, wanted))
            };
            if names.drop_all_of(dead.peer, settle).is_ok() {
                self.space().reap(dead.peer);
            }
        }
    }

    /// Closes names that are not needed any more, and lets those go that nobody needs.
    fn close_unbound(&self) {
        let unbound = std::mem::take(&mut *self.unbound.lock().unwrap_or_else(PoisonError::into_inner));
        let bases: HashMap<_, _> = unbound.iter().map(|bound| (bound.lock, bound.token_base)).collect();
        for by in unbound.iter().map(|bound| bound.by).collect::<HashSet<_>>() {
            // A member that was evicted has lost its names with everything else.
            let Some(member) = self.members.with_number(by) else { continue };
            let ids = unbound.iter().filter(|bound| bound.by == by).map(|bound| bound.lock);
            // Under the directory's lock, when the first of them has ended to be used.
            let mut wanted = None;
            let settle = |id| {
                let wanted = wanted.get_or_insert_with(|| wanted_locks(&member));
                bases.get(&id).map_or(Reclaim::Keep, |base| reclaim(&member, id, *base, wanted))
            };
            let _ = member.names().close_all(ids, settle);
        }
    }

    /// Acquires a keyed lock that was busy, if all clients that hold it or wait for it are dead: a try would never outwait
    /// them.
    fn try_acquire_from_the_dead(&self, claim: Claim) -> Result<Granted, Refused> {
        let is_free = self.members.any().is_ok_and(|member| {
            !member.table().is_wanted_now(claim.lock)
                && block_on(member.client.lock().recover(claim.lock)) == Ok(true)
        });
        if is_free { self.members.try_take(claim) } else { Err(Refused::Busy) }
    }

    pub(super) fn by_lease(&self, member: &Member) -> Standing {
        if member.holders().is_late(self.space().now()) { Standing::Uncertain } else { Standing::Held }
    }
}

impl Drop for ShmBackend {
    fn drop(&mut self) {
        self.close_unbound();
    }
}

/// Whether a client that is dead has a dependent process that is not known to have ended.
fn has_dependent(member: &Member, dead: PeerId) -> bool {
    let client = member.holders().reader().client(dead);
    client.is_some_and(|client| holders::has_dependent(&client))
}

/// Names whose tokens would begin above this are not made: with what a lock adds by itself, tokens stay below 2⁵³, from where
/// on readers of JSON may round them.
const HIGHEST_BASE: u64 = 1 << 52;

/// The locks that clients which are alive have records for.
fn wanted_locks(member: &Member) -> HashSet<u64> {
    let reader = member.table().reader();
    let mut wanted = HashSet::new();
    for client in reader.clients() {
        let locks: Vec<_> = reader.records(&client).map(|record| name_of(record.claim.lock)).collect();
        if !locks.is_empty() && member.holders().lives(&client) {
            wanted.extend(locks);
        }
    }
    wanted
}

/// Whether an unused name can go. Not one that a client which is alive has a record for: a client that was evicted as the user of
/// a name may be alive as the holder of a range of it, by another membership.
fn reclaim(member: &Member, id: u64, token_base: u64, wanted: &HashSet<u64>) -> Reclaim {
    if wanted.contains(&id) {
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
        SpaceError::TooManyNames(_) | SpaceError::TooManyRefs(_) | SpaceError::Full(_) => {
            HandleError::TooManyLocks(error.to_string())
        }
        error => HandleError::Disconnected(error.to_string()),
    }
}

impl Space for ShmBackend {
    fn identity(&self) -> SpaceIdentity {
        self.identity.clone()
    }

    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let member = self.members.any().map_err(|error| HandleError::Disconnected(error.to_string()))?;
        let names = member.names();
        let prepare = |id| members::allocate_lock(self.space(), id);
        let lock = match names.open_with(name.as_bytes(), prepare) {
            Err(SpaceError::TooManyNames(_)) => {
                let bases: HashMap<_, _> = names
                    .all()
                    .map_err(handle_error)?
                    .iter()
                    .map(|name| (name.lock.id, name.lock.token_base))
                    .collect();
                let mut wanted = None;
                let settle = |id| {
                    let wanted = wanted.get_or_insert_with(|| wanted_locks(&member));
                    bases.get(&id).map_or(Reclaim::Keep, |base| reclaim(&member, id, *base, wanted))
                };
                names.sweep(settle).map_err(handle_error)?;
                names.open_with(name.as_bytes(), prepare)
            }
            opened => opened,
        };
        let lock = lock.map_err(handle_error)?;
        let id = if kind == Kind::Semaphores { semaphore(lock.id) } else { lock.id };
        Ok(Bound { lock: id, token_base: lock.token_base, by: member.number })
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        Ok(Protocols::new("holders", "holders"))
    }

    #[inline]
    fn is_bound(&self, bound: &Bound) -> bool {
        self.members.is_in(bound.by)
    }

    fn unbind(&self, _: &LockName, bound: Bound, _: Kind) {
        let mut unbound = self.unbound.lock().unwrap_or_else(PoisonError::into_inner);
        unbound.push(Bound { lock: name_of(bound.lock), ..bound });
        let are_many = unbound.len() >= CLOSED_TOGETHER;
        drop(unbound);
        if are_many {
            self.close_unbound();
        }
    }

    fn hold_while_process_lives(&self, pid: u32) -> io::Result<bool> {
        let Some(process) = Process::with_pid(pid).map_err(io::Error::other)? else { return Ok(false) };
        let set = |member: &Arc<Member>| member.holders().set_dependent(process).is_ok();
        Ok(self.members.all().iter().all(set))
    }

    fn local_member(&self, bound: &Bound) -> Option<&Arc<Member>> {
        self.members.that_stays(bound.by)
    }

    fn heartbeat(&self) -> Duration {
        self.members.beat();
        self.close_unbound();
        self.members.leave_unneeded();
        self.reap();
        Duration::from_nanos(holders::period_ns(self.members.lease_ns))
    }
}

impl Locker for ShmBackend {
    /// Ranges have a gate, for which one may have to wait.
    fn try_acquire_fast(&self, kind: Kind, claim: Claim) -> Option<Result<Granted, Refused>> {
        match kind {
            Kind::Keyed => Some(self.members.try_take(claim)),
            Kind::Ranges | Kind::Semaphores => self.try_range_now(claim),
        }
    }

    fn try_acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        match kind {
            Kind::Keyed => Box::pin(std::future::ready(self.try_acquire_from_the_dead(claim))),
            // Ranges of the dead do not count anyway.
            Kind::Ranges | Kind::Semaphores => self.range(claim, None),
        }
    }

    fn try_limit(&self) -> Option<Duration> {
        Some(super::ranges::TRY)
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        match kind {
            Kind::Keyed => {
                let members = Arc::clone(&self.members);
                Box::pin(members.take(claim))
            }
            Kind::Ranges | Kind::Semaphores => self.range(claim, Some(GivenUp::default())),
        }
    }

    fn acquire_unless(
        &self,
        kind: Kind,
        claim: Claim,
        given_up: GivenUp,
    ) -> BoxFuture<Result<Granted, Refused>> {
        match kind {
            Kind::Keyed => self.acquire(kind, claim),
            Kind::Ranges | Kind::Semaphores => self.range(claim, Some(given_up)),
        }
    }

    #[inline]
    fn release_fast(&self, kind: Kind, claim: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        match kind {
            Kind::Keyed => self.members.try_give_back(claim, granted),
            Kind::Ranges | Kind::Semaphores => Some(self.release_range(claim, granted)),
        }
    }

    fn release(&self, kind: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        match kind {
            Kind::Keyed => Box::pin(Arc::clone(&self.members).give_back(claim, granted)),
            Kind::Ranges | Kind::Semaphores => {
                Box::pin(std::future::ready(self.release_range(claim, &granted)))
            }
        }
    }

    fn upgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        match kind {
            Kind::Keyed => self.members.upgrade(claim, granted, wait),
            Kind::Ranges => self.upgrade_range(claim, granted, wait),
            Kind::Semaphores => {
                Box::pin(std::future::ready(Err(ChangeError::Unsupported(self.description()))))
            }
        }
    }

    fn downgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        match kind {
            Kind::Keyed => self.members.downgrade(claim, granted),
            Kind::Ranges => self.downgrade_range(claim, granted),
            Kind::Semaphores => {
                Box::pin(std::future::ready(Err(ChangeError::Unsupported(self.description()))))
            }
        }
    }

    fn unlock_part(
        &self,
        granted: &Granted,
        claim: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Granted>, ChangeError> {
        self.shrink_range(*claim, granted, (part.start, part.end))
    }

    /// Waiters write down that they wait.
    fn is_contended(&self, kind: Kind, claim: Claim) -> Option<bool> {
        let reader = reader(self.space());
        let overlaps =
            |other: &Claim| kind != Kind::Ranges || claim.start < other.end && other.start < claim.end;
        let alone = |mode| kind == Kind::Semaphores || mode == Mode::Exclusive;
        let is_in_the_way = |record: &HolderRecord| {
            let mode = match record.state {
                records::State::Waiting => record.claim.mode,
                records::State::Upgrading => Mode::Exclusive,
                _ => return false,
            };
            let same_kind = (record.kind == records::Kind::Keyed) == (kind == Kind::Keyed);
            let conflicts = alone(mode) || alone(claim.mode);
            same_kind && record.claim.lock == claim.lock && conflicts && overlaps(&record.claim)
        };
        Some(reader.clients().any(|client| reader.records(&client).any(|record| is_in_the_way(&record))))
    }

    fn entries_of(&self, _: &LockName, claim: Claim) -> Result<Vec<Entry>, LockError> {
        let id = name_of(claim.lock);
        inspect::local::entries_of(&self.members, id)
            .map_err(|error| LockError::Disconnected(error.to_string()))
    }

    fn token(&self, granted: &Granted) -> u64 {
        token(&granted.grant)
    }

    fn standing(&self, kind: Kind, claim: Claim, granted: &Granted) -> Standing {
        if kind != Kind::Keyed {
            return self.range_standing(claim, granted);
        }
        let member = self.members.member(granted.record);
        match block_on(member.client.lock().holds(&member.grant(claim, granted))) {
            Ok(true) => self.by_lease(&member),
            Ok(false) => Standing::Lost(member.lost_reason()),
            Err(FabricError::Evicted) => Standing::Lost(LostReason::Evicted),
            Err(_) => Standing::Uncertain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TryLockError;
    use lockwright_fabric::{Addr, Endpoint, Word64};
    use lockwright_locks::shiftlock::layout::Layout;
    use lockwright_locks::shiftlock::versioned::Versioned;

    #[test]
    fn a_space_that_an_older_version_made_is_refused_with_what_can_be_done_about_it() {
        let path = std::env::temp_dir().join(format!("lockwright-old-{}.space", std::process::id()));
        let old = "lockwright 4, kept shiftlock";
        drop(ShmSpace::open(&path, &SpaceOptions::default().tag(old).create(true)).unwrap());
        let refused = open(&path, true, None).unwrap_err().to_string();
        let _ = std::fs::remove_file(&path);
        assert!(refused.contains(old) && refused.contains(TAG), "{refused}");
        assert!(refused.ends_with("when nobody uses it any more, remove it"), "{refused}");
    }

    /// Nobody has died, so nobody may be taken for dead: who gives up while it waits is handed the lock all the same.
    #[test]
    fn waits_that_are_given_up_reset_no_lock() {
        const THREADS: usize = 6;
        let path = std::env::temp_dir().join(format!("lockwright-given-up-{}.space", std::process::id()));
        let address = format!("shm:{}", path.display());
        let clients =
            [crate::Client::open(&address).wait().unwrap(), crate::Client::open(&address).wait().unwrap()];
        std::thread::scope(|threads| {
            for thread in 0..THREADS {
                let lock = clients[thread % clients.len()].rwlock("a").unwrap();
                threads.spawn(move || {
                    for turn in 0..3_000_u64 {
                        let patience = Duration::from_micros(turn % 7 * 30);
                        let reads = (turn as usize + thread).is_multiple_of(5);
                        let wait = if reads {
                            lock.read_timeout(patience).into_any()
                        } else {
                            lock.write_timeout(patience).into_any()
                        };
                        if let Ok(guard) = wait.wait() {
                            std::thread::sleep(Duration::from_micros(20));
                            drop(guard);
                        }
                    }
                });
            }
        });
        let backend = ShmBackend::new(open(&path, false, None).unwrap(), Duration::from_secs(10)).unwrap();
        let id = backend.bind(&LockName::new("a").unwrap(), Kind::Keyed).unwrap().lock;
        let resets = block_on(backend.members.any().unwrap().client.lock().generation(id));
        let _ = std::fs::remove_file(&path);
        assert_eq!(resets, Ok(0));
    }

    #[test]
    fn a_lock_that_has_given_out_all_its_tokens_says_so_and_stays_as_it_is() {
        let path = std::env::temp_dir().join(format!("lockwright-spent-{}.space", std::process::id()));
        let client = crate::Client::open(&format!("shm:{}", path.display())).wait().unwrap();
        let (lock, ranges) = (client.rwlock("a").unwrap(), client.range_lock("a").unwrap());
        let backend = ShmBackend::new(open(&path, false, None).unwrap(), Duration::from_secs(10)).unwrap();
        let id = backend.bind(&LockName::new("a").unwrap(), Kind::Keyed).unwrap().lock;
        let ep = backend.members.any().unwrap().holders().ep.clone();
        let stamps = [id, gate(id)].map(|lock| {
            let Addr { node, offset, region } = members::SHAPE.place(lock, 16);
            Word64::at(Addr { node, offset: offset + 8, region })
        });
        for stamp in stamps {
            block_on(ep.go(stamp.write(Versioned::LIMIT - 1))).unwrap();
        }
        let last = lock.write().wait().unwrap();
        assert_eq!(last.token(), Versioned::LIMIT);
        last.unlock().wait().unwrap();
        drop(ranges.write(0..1).wait().unwrap());
        let (spent, soon) = (Err(LockError::TokensExhausted), Duration::from_millis(1));
        for _ in 0..3 {
            assert_eq!(lock.write().wait().map(drop), spent);
            assert_eq!(lock.read().wait().map(drop), spent);
            assert_eq!(lock.write_timeout(soon).wait().map(drop), spent);
            assert_eq!(
                lock.try_write().wait().map(drop),
                Err(TryLockError::Failed(LockError::TokensExhausted))
            );
            assert_eq!(
                lock.try_read().wait().map(drop),
                Err(TryLockError::Failed(LockError::TokensExhausted))
            );
            assert_eq!(ranges.read(0..1).wait().map(drop), spent);
        }
        let left = stamps.map(|stamp| block_on(ep.go(stamp.read())));
        let _ = std::fs::remove_file(&path);
        assert_eq!(left, [Ok(Versioned::LIMIT); 2]);
    }
}
