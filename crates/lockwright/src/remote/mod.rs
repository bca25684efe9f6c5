//! `tcp://host:port/space` and `rdma://host:port/space`, spaces behind a server: the client's side.
//!
//! | file | |
//! |---|---|
//! | `address` | where servers are |
//! | `table` | what was asked for and is held, whatever becomes of sessions |
//! | `retained` | a lock that stays with the client between uses |
//! | `sets` | several locks in one message |
//! | `changes` | upgrades, downgrades and parts of what is held, on their way |
//! | `values` | values of what is held |
//! | `driver` | which thread reads |
//! | `link` | sessions: connecting, coming back, hearing the server |
//! | `inquiry` | questions that are answered with bytes |
//! | `transport` | what sessions run over |
//! | `look` | listings and breaking locks |
//! | `one_sided/` | clients of one-sided spaces, which take locks by verbs of their own |
//! | `cluster/` | spaces of several servers |
//! | `fiss/` | spaces behind a decider in the network |
//! | `secret` | what a user's own server and clients know of each other |
//!
//! A lock and its unlock cost one round trip: the request is answered when the lock is granted, and the unlock is not
//! waited for. Handles cost none: a name is told to the server on the way.

pub(crate) mod address;
mod changes;
pub(crate) mod cluster;
mod driver;
#[cfg(feature = "fiss")]
pub(crate) mod fiss;
mod inquiry;
pub(crate) mod inspector;
pub(crate) mod link;
pub(crate) mod one_sided;
pub(crate) mod retained;
pub(crate) mod secret;
mod sets;
pub(crate) mod table;
pub(crate) mod transport;
mod values;

pub(crate) use link::{Remote, RemoteOptions, ShardOf};

use self::driver::OtherWaiter;
use self::retained::{LocalGrant, RetainedLock};
use self::table::{Begun, Stage};
use crate::backend::{
    Bound, BoxFuture, Granted, Kind, Locker, ProtocolGrant, RecordId, Refused, Space, SpaceIdentity,
    Standing, threads,
};
use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, LostReason, ValueError};
use crate::inspect::Entry;
use crate::lock::Value;
use crate::lock::contention::Contention;
use crate::name::LockName;
use crate::wire::listing::Reader;
use crate::wire::{self, Request, RequestId, Units};
use lockwright_fabric::FabricError;
use lockwright_fabric::observe::Claim;
use lockwright_locks::Lost;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A space behind a server.
#[derive(Debug)]
pub(crate) struct RemoteBackend {
    remote: Arc<Remote>,
}

impl RemoteBackend {
    pub(crate) fn new(remote: Arc<Remote>) -> Self {
        Self { remote }
    }
}

/// A grant of a server, or a use of one that stays with this client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteGrant {
    pub(crate) id: RequestId,
    token: u64,
}

impl From<LocalGrant> for Granted {
    #[inline]
    fn from(LocalGrant { id, token }: LocalGrant) -> Self {
        let grant = ProtocolGrant::Remote(RemoteGrant { id, token });
        Self { grant, record: RecordId::default() }
    }
}

fn grant(granted: &Granted) -> RemoteGrant {
    match granted.grant {
        ProtocolGrant::Remote(grant) => grant,
        _ => unreachable!("a space gets back the grants that it gave out"),
    }
}

const fn units(claim: &Claim) -> Units {
    let Claim { lock, mode, start, end } = *claim;
    Units { handle: lock, mode, start, end, thread: None }
}

impl RemoteBackend {
    /// What is exported is shared memory, whichever side takes its locks.
    fn offers_changes(&self) -> Result<(), ChangeError> {
        if self.remote.space().starts_with(b"shm:") {
            return Err(ChangeError::Unsupported(self.description()));
        }
        Ok(())
    }
}

impl Space for RemoteBackend {
    fn identity(&self) -> SpaceIdentity {
        self.remote.identity()
    }

    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let mut line = self.remote.line();
        let (handle, ask) = line.table.name(kind, name);
        line.say(&ask);
        Ok(Bound { lock: handle, ..Bound::default() })
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        // What is exported is shared memory, whichever side takes its locks.
        let protocol = if self.remote.space().starts_with(b"shm:") { "holders" } else { "combiner" };
        Ok(Protocols::new(protocol, protocol))
    }

    fn is_bound(&self, _: &Bound) -> bool {
        true
    }

    fn unbind(&self, _: &LockName, bound: Bound, _: Kind) {
        let mut line = self.remote.line();
        let ask = line.table.forget(bound.lock);
        line.flush();
        line.say(&ask);
    }

    fn retained_lock(&self, bound: &Bound) -> Option<RetainedLock> {
        self.remote.line().table.retained_lock(bound.lock)
    }

    fn block_on(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        self.remote.drive(future);
    }

    fn heartbeat(&self) -> Duration {
        self.remote.look_after()
    }

    fn stop_time(&self) -> Option<Duration> {
        Some(self.remote.stop_time())
    }
}

impl Locker for RemoteBackend {
    /// A round trip, unless the lock is here.
    fn try_acquire_fast(&self, _: Kind, claim: Claim) -> Option<Result<Granted, Refused>> {
        let retained = self.remote.line().table.retained_lock(claim.lock)?;
        retained.take(claim.mode, threads::known()).map(|granted| Ok(granted.into()))
    }

    fn release_fast(&self, _: Kind, claim: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        let retained = self.remote.line().table.retained_lock(claim.lock)?;
        retained.release_held(grant(granted).id).then_some(Ok(()))
    }

    fn try_acquire(&self, _: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        Box::pin(Acquiring::new(&self.remote, &claim, false))
    }

    fn acquire_cancels_on_drop(&self) -> bool {
        true
    }

    fn acquire(&self, _: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        Box::pin(Acquiring::new(&self.remote, &claim, true))
    }

    fn acquire_set(&self, claims: &[Claim]) -> Option<BoxFuture<Result<Vec<Granted>, Refused>>> {
        // Of what is exported the server waits in tasks, one for each.
        if claims.len() < 2 || self.offers_changes().is_err() {
            return None;
        }
        Some(Box::pin(sets::AcquiringSet::new(&self.remote, claims)))
    }

    fn release(&self, _: Kind, _: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        let remote = Arc::clone(&self.remote);
        Box::pin(Unlocking { remote, id: grant(&granted).id, begun: false, elsewhere: None })
    }

    fn release_unobserved(&self, _: Kind, _: Claim, granted: &Granted) -> bool {
        self.remote.give_up(grant(granted).id);
        true
    }

    fn value(&self, _: &LockName, _: Claim, granted: &Granted) -> BoxFuture<Result<Value, ValueError>> {
        values::read(&self.remote, grant(granted))
    }

    fn set_value(
        &self,
        _: &LockName,
        _: Claim,
        granted: &Granted,
        bytes: &[u8],
    ) -> BoxFuture<Result<(), ValueError>> {
        values::set(&self.remote, grant(granted), bytes.to_vec())
    }

    fn watch_contention(&self, _: Kind, _: Claim, granted: &Granted, contention: &Arc<Contention>) -> bool {
        if self.offers_changes().is_err() {
            return false;
        }
        let mut line = self.remote.line();
        let woken = line.table.watch(grant(granted).id, contention);
        line.flush();
        drop(line);
        woken.into_iter().for_each(std::task::Waker::wake);
        true
    }

    fn close_value(&self, _: &LockName, granted: &Granted) {
        values::close(&self.remote, grant(granted));
    }

    /// As the last call returned it: what the server has made of a change that was given up shows with the next one.
    fn entries_of(&self, name: &LockName, _: Claim) -> Result<Vec<Entry>, LockError> {
        let of = Some(name.clone());
        // A link to a shard, begun with the first name in it, has no session at once. If there is none in time, the question says so.
        let _ = self.remote.wait_until_ready(Instant::now() + self.remote.timeout());
        let asked = inquiry::Inquiry::new(&self.remote, |id| Request::List { id, of });
        let mut entries = Reader(&driver::outcome(&self.remote, asked)?).entries();
        // Servers of earlier releases list all.
        entries.retain(|entry| entry.name == *name);
        Ok(entries)
    }

    fn token(&self, granted: &Granted) -> u64 {
        grant(granted).token
    }

    fn upgrade(
        &self,
        _: Kind,
        _: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        match self.offers_changes() {
            Ok(()) => Box::pin(changes::Upgrading::new(&self.remote, grant(granted), wait)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn downgrade(&self, _: Kind, _: Claim, granted: &Granted) -> BoxFuture<Result<Granted, ChangeError>> {
        match self.offers_changes() {
            Ok(()) => Box::pin(changes::Downgrading::new(&self.remote, grant(granted))),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn unlock_part(
        &self,
        granted: &Granted,
        _: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Granted>, ChangeError> {
        self.offers_changes()?;
        changes::cut(&self.remote, grant(granted), part)
    }

    fn standing(&self, _: Kind, _: Claim, granted: &Granted) -> Standing {
        let mut line = self.remote.line();
        line.expire();
        let reachable = line.is_reachable();
        match line.table.stage(grant(granted).id) {
            Some(Stage::Held { .. }) if reachable => Standing::Held,
            Some(Stage::Held { .. } | Stage::Claimed { .. }) => Standing::Uncertain,
            Some(Stage::Lost(reason)) => Standing::Lost(*reason),
            _ => Standing::Lost(LostReason::Unknown),
        }
    }
}

impl Drop for RemoteBackend {
    fn drop(&mut self) {
        self.remote.close();
    }
}

/// A lock on its way. Dropped, it is given up: the server takes it out of the queue.
struct Acquiring {
    remote: Arc<Remote>,
    units: Units,
    wait: bool,
    began: Instant,
    id: Option<RequestId>,
    elsewhere: Option<OtherWaiter>,
}

impl Acquiring {
    fn new(remote: &Arc<Remote>, claim: &Claim, wait: bool) -> Self {
        let (remote, began) = (Arc::clone(remote), Instant::now());
        Self { remote, units: units(claim), wait, began, id: None, elsewhere: None }
    }

    /// Whether it is only tried, and the server has had its time to answer.
    fn is_late(&self) -> bool {
        !self.wait && self.began.elapsed() >= self.remote.timeout()
    }
}

impl Future for Acquiring {
    type Output = Result<Granted, Refused>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut line = this.remote.line();
        let id = match this.id {
            Some(id) => id,
            None => {
                if let Some(why) = line.refusal() {
                    return Poll::Ready(Err(Refused::Error(why)));
                }
                let certain = line.is_certain();
                this.units.thread = threads::that_blocks();
                let id = match line.table.lock(this.units, this.wait, certain) {
                    Begun::Granted(granted) => return Poll::Ready(Ok(granted.into())),
                    Begun::Busy => return Poll::Ready(Err(Refused::Busy)),
                    Begun::Request(id) => id,
                };
                line.table.keep(id, cx.waker());
                line.flush();
                *this.id.insert(id)
            }
        };
        let origin = line.table.origin;
        // A grant that lay here for longer than the lease is nobody's any more.
        line.expire();
        match line.table.stage(id) {
            Some(Stage::Wanted { .. }) if this.is_late() => {
                this.id = None;
                let why = line.why_late(this.remote.timeout());
                drop(line);
                this.remote.give_up(id);
                Poll::Ready(Err(Refused::Error(LockError::Disconnected(why))))
            }
            Some(Stage::Wanted { .. }) => {
                line.table.keep(id, cx.waker());
                drop(line);
                this.elsewhere = this.elsewhere.take().or_else(|| this.remote.driver().wait_elsewhere());
                Poll::Pending
            }
            Some(stage @ Stage::Granted { .. }) => {
                let Stage::Granted { token } = *stage else { unreachable!("just seen") };
                *stage = Stage::Held { token, origin };
                this.id = None;
                let grant = ProtocolGrant::Remote(RemoteGrant { id, token });
                Poll::Ready(Ok(Granted { grant, record: RecordId::default() }))
            }
            Some(Stage::Retained { .. }) => {
                this.id = None;
                let granted = line.keep_grant(id).expect("just seen");
                drop(line);
                this.remote.driver().set_retains(true);
                Poll::Ready(Ok(granted.into()))
            }
            Some(Stage::Local(_)) => {
                this.id = None;
                let granted = line.table.see_local(id).expect("just seen");
                Poll::Ready(Ok(granted.into()))
            }
            _ => {
                this.id = None;
                match line.table.take(id) {
                    Some(Stage::Failed(refused)) => {
                        if let Refused::Error(LockError::Disconnected(_)) = refused {
                            // The server may still have it, should the session be resumed.
                            line.say(&Request::Unlock { id, answer: false });
                        }
                        Poll::Ready(Err(refused))
                    }
                    other => {
                        unreachable!("a request that is waited for is wanted, granted or failed: {other:?}")
                    }
                }
            }
        }
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.remote.give_up(id);
        }
    }
}

/// An unlock whose outcome its caller wants to know.
struct Unlocking {
    remote: Arc<Remote>,
    id: RequestId,
    begun: bool,
    elsewhere: Option<OtherWaiter>,
}

impl Future for Unlocking {
    type Output = Result<(), Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id;
        let remote = Arc::clone(&self.remote);
        let mut line = remote.line();
        if !self.begun {
            self.begun = true;
            line.expire();
            let in_session = line.is_in_session();
            let (certain, held) =
                (line.is_certain(), matches!(line.table.stage(id), Some(Stage::Held { .. })));
            if let Some(woken) = line.table.release(id, certain) {
                line.flush();
                drop(line);
                woken.into_iter().for_each(std::task::Waker::wake);
                return Poll::Ready(match (held, certain) {
                    (true, true) => Ok(()),
                    (true, false) => Err(Lost::Fabric(FabricError::PeerLost(wire::SERVER))),
                    (false, _) => Err(Lost::Recovered),
                });
            }
            match line.table.stage(id) {
                Some(stage @ (Stage::Held { .. } | Stage::Claimed { .. })) if in_session => {
                    *stage = Stage::Unlocking;
                    line.say(&Request::Unlock { id, answer: true });
                }
                Some(Stage::Lost(_)) | None => {
                    // The server may still have it for us, should the session be resumed.
                    if line.take(id).is_some() {
                        line.say(&Request::Unlock { id, answer: false });
                    }
                    return Poll::Ready(Err(Lost::Recovered));
                }
                // The server frees what nobody claims.
                _ => {
                    line.take(id);
                    return Poll::Ready(Err(Lost::Fabric(FabricError::PeerLost(wire::SERVER))));
                }
            }
        }
        if let Some(Stage::Unlocking) = line.table.stage(id) {
            line.table.keep(id, cx.waker());
            drop(line);
            self.elsewhere = self.elsewhere.take().or_else(|| remote.driver().wait_elsewhere());
            return Poll::Pending;
        }
        Poll::Ready(match line.take(id) {
            Some(Stage::Unlocked { held: true }) => Ok(()),
            Some(Stage::Unlocked { held: false } | Stage::Lost(_)) => Err(Lost::Recovered),
            _ => Err(Lost::Fabric(FabricError::PeerLost(wire::SERVER))),
        })
    }
}

impl Drop for Unlocking {
    fn drop(&mut self) {
        // Not begun: the lock must not stay held. Half-way: nobody wants the answer any more.
        if !self.begun {
            self.remote.give_up(self.id);
        } else if let mut line = self.remote.line()
            && let Some(Stage::Unlocking | Stage::Unlocked { .. } | Stage::Failed(_)) =
                line.table.stage(self.id)
        {
            line.take(self.id);
        }
    }
}
