//! `cluster://…/NAME/SPACE`: a space whose locks are spread over the servers of a cluster.
//!
//! | file | |
//! |---|---|
//! | this | every lock goes by the link to the owner of its shard |
//! | `follow` | the map: where shards are served |
//! | `ask` | one question to one server; and what one server tells another |
//! | `belief` | whether what the owner of a shard says counts |
//! | `inspector` | listings and breaking locks |
//!
//! A link is that to any server (`link`), with two differences: it looks the server up in the map whenever it connects, and grants
//! count only while their server is certain that it owns the shard. Links are made when a lock of their shard is first named.

pub(crate) mod ask;
pub(super) mod belief;
pub(crate) mod follow;
pub(crate) mod inspector;

use self::follow::Follower;
use super::link::{Remote, RemoteOptions};
use super::{RemoteBackend, ShardOf};
use crate::backend::{Bound, BoxFuture, Granted, Kind, Locker, Refused, Space, SpaceIdentity, Standing};
use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, OpenError, ValueError};
use crate::inspect::Entry;
use crate::lock::Value;
use crate::lock::contention::Contention;
use crate::name::LockName;
use lockwright_fabric::observe::Claim;
use lockwright_locks::Lost;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A handle of a link in the lower bits of a lock's id, its shard in the upper ones.
const HANDLE_BITS: u32 = 48;
/// How often links are looked after.
const LOOK: Duration = Duration::from_millis(100);

thread_local! {
    /// The shard that this thread last asked for something.
    static LAST: Cell<u16> = const { Cell::new(0) };
}

/// A space of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterBackend {
    follower: Arc<Follower>,
    space: Vec<u8>,
    links: Mutex<BTreeMap<u16, Arc<RemoteBackend>>>,
}

/// The link of shard `number`.
fn link(follower: &Arc<Follower>, space: &[u8], number: u16) -> Result<Arc<Remote>, OpenError> {
    let shard = ShardOf { follower: Arc::clone(follower), number };
    let options = follower.link_options(space)?;
    Remote::open(RemoteOptions { shard: Some(shard), retain: false, ..options })
}

impl ClusterBackend {
    pub(crate) fn new(follower: Arc<Follower>, space: &[u8]) -> Self {
        let space = if space.is_empty() { b"default" } else { space };
        Self { follower, space: space.to_vec(), links: Mutex::default() }
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u16, Arc<RemoteBackend>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link that a lock goes by, and its id there.
    fn by(&self, claim: &Claim) -> (Arc<RemoteBackend>, Claim) {
        let shard = shard_of(claim.lock);
        LAST.set(shard);
        let link = Arc::clone(self.links().get(&shard).expect("a lock that has an id has a link"));
        (link, Claim { lock: claim.lock & ((1 << HANDLE_BITS) - 1), ..*claim })
    }
}

const fn shard_of(lock: u64) -> u16 {
    (lock >> HANDLE_BITS) as u16
}

impl Space for ClusterBackend {
    fn identity(&self) -> SpaceIdentity {
        SpaceIdentity::Served { server: self.follower.id(), space: self.space.clone() }
    }

    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let shard = self.follower.shard_of(&self.space, name.as_bytes());
        let mut links = self.links();
        let link = match links.get(&shard) {
            Some(link) => Arc::clone(link),
            None => {
                let remote = link(&self.follower, &self.space, shard)
                    .map_err(|error| HandleError::Disconnected(error.to_string()))?;
                Arc::clone(links.entry(shard).or_insert(Arc::new(RemoteBackend::new(remote))))
            }
        };
        drop(links);
        let bound = link.bind(name, kind)?;
        debug_assert!(bound.lock < 1 << HANDLE_BITS);
        Ok(Bound { lock: bound.lock | u64::from(shard) << HANDLE_BITS, ..bound })
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        Ok(Protocols::new("combiner", "combiner"))
    }

    fn is_bound(&self, _: &Bound) -> bool {
        true
    }

    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind) {
        let link = self.links().get(&shard_of(bound.lock)).cloned();
        if let Some(link) = link {
            link.unbind(name, Bound { lock: bound.lock & ((1 << HANDLE_BITS) - 1), ..bound }, kind);
        }
    }

    /// By the link of the first lock that is asked for: others are read in the background.
    fn block_on(&self, mut future: Pin<&mut dyn Future<Output = ()>>) {
        if super::driver::begin(future.as_mut()) {
            return;
        }
        let link = self.links().get(&LAST.get()).cloned();
        match link {
            Some(link) => link.block_on(future),
            None => lockwright_fabric::backend::block_on(future),
        }
    }

    fn heartbeat(&self) -> Duration {
        let links: Vec<_> = self.links().values().cloned().collect();
        links.iter().map(|link| link.heartbeat()).min().unwrap_or(LOOK).min(LOOK)
    }

    fn stop_time(&self) -> Option<Duration> {
        self.links().values().filter_map(|link| link.stop_time()).max()
    }
}

impl Locker for ClusterBackend {
    fn try_acquire_fast(&self, _: Kind, _: Claim) -> Option<Result<Granted, Refused>> {
        None
    }

    fn try_acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        let (link, claim) = self.by(&claim);
        link.try_acquire(kind, claim)
    }

    fn acquire_cancels_on_drop(&self) -> bool {
        true
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        let (link, claim) = self.by(&claim);
        link.acquire(kind, claim)
    }

    /// Locks of one shard, up to the first that is of another.
    fn acquire_set(&self, claims: &[Claim]) -> Option<BoxFuture<Result<Vec<Granted>, Refused>>> {
        let first = claims.first()?;
        let (link, _) = self.by(first);
        let near = claims.iter().take_while(|claim| shard_of(claim.lock) == shard_of(first.lock));
        link.acquire_set(&near.map(|claim| self.by(claim).1).collect::<Vec<_>>())
    }

    fn release(&self, kind: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        let (link, claim) = self.by(&claim);
        link.release(kind, claim, granted)
    }

    fn release_unobserved(&self, kind: Kind, claim: Claim, granted: &Granted) -> bool {
        let (link, claim) = self.by(&claim);
        link.release_unobserved(kind, claim, granted)
    }

    fn description(&self) -> &'static str {
        "a cluster"
    }

    fn value(
        &self,
        name: &LockName,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Value, ValueError>> {
        let (link, claim) = self.by(&claim);
        link.value(name, claim, granted)
    }

    fn set_value(
        &self,
        name: &LockName,
        claim: Claim,
        granted: &Granted,
        bytes: &[u8],
    ) -> BoxFuture<Result<(), ValueError>> {
        let (link, claim) = self.by(&claim);
        link.set_value(name, claim, granted, bytes)
    }

    fn close_value(&self, name: &LockName, granted: &Granted) {
        let shard = self.follower.shard_of(&self.space, name.as_bytes());
        let link = self.links().get(&shard).cloned();
        if let Some(link) = link {
            link.close_value(name, granted);
        }
    }

    fn watch_contention(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
        contention: &Arc<Contention>,
    ) -> bool {
        let (link, claim) = self.by(&claim);
        link.watch_contention(kind, claim, granted, contention)
    }

    fn entries_of(&self, name: &LockName, claim: Claim) -> Result<Vec<Entry>, LockError> {
        let (link, claim) = self.by(&claim);
        link.entries_of(name, claim)
    }

    fn token(&self, granted: &Granted) -> u64 {
        super::grant(granted).token
    }

    fn upgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let (link, claim) = self.by(&claim);
        link.upgrade(kind, claim, granted, wait)
    }

    fn downgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let (link, claim) = self.by(&claim);
        link.downgrade(kind, claim, granted)
    }

    fn unlock_part(
        &self,
        granted: &Granted,
        claim: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Granted>, ChangeError> {
        let (link, claim) = self.by(claim);
        link.unlock_part(granted, &claim, part)
    }

    fn standing(&self, kind: Kind, claim: Claim, granted: &Granted) -> Standing {
        let (link, claim) = self.by(&claim);
        link.standing(kind, claim, granted)
    }
}
