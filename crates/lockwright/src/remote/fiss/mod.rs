//! `fiss://decider:port/space`, spaces whose locks a decider in the network grants (FissLock): the client's side.
//!
//! | file | |
//! |---|---|
//! | `wire` | messages to and from the decider's control plane |
//! | `link` | the session with it: joining, names, coming back |
//! | `thread` | the thread that reads |
//! | `member` | the machine in this process: the explored state machine on a UDP socket |
//! | `inspector` | listings, and how the decider is |
//!
//! Requests and grants are packets ([`datagram`](lockwright_locks::fisslock::datagram)); the session carries names, signs of
//! life and recoveries. Agents live here, in the processes that hold locks: who holds and waits is known to them alone.
//!
//! What the protocol cannot give is refused: ranges, semaphores, upgrades, downgrades, breaking a lock.

pub(crate) mod inspector;
pub(crate) mod link;
mod member;
mod thread;
pub(crate) mod wire;

pub use self::member::{MACHINES, params};

use self::link::Link;
use self::member::Member;
use crate::backend::{
    Bound, BoxFuture, Granted, Kind, Locker, ProtocolGrant, RecordId, Refused, Space, SpaceIdentity, Standing,
};
use crate::client::Protocols;
use crate::error::{HandleError, LockError};
use crate::name::LockName;
use lockwright_fabric::FabricError;
use lockwright_fabric::observe::Claim;
use lockwright_locks::fisslock::{FissLock, Shipped};
use lockwright_locks::{Denied, Grant, LockClient, Lost, Patience, Protocol, Want};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A space behind a decider.
#[derive(Debug)]
pub(crate) struct FissBackend {
    link: Arc<Link>,
}

/// A grant: which task of which machine of this client has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FissHold {
    member: u32,
    task: u32,
    token: u64,
}

fn hold(granted: &Granted) -> FissHold {
    match granted.grant {
        ProtocolGrant::Fiss(hold) => hold,
        _ => unreachable!("a space gets back the grants that it gave out"),
    }
}

impl FissBackend {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }
}

impl Space for FissBackend {
    fn identity(&self) -> SpaceIdentity {
        SpaceIdentity::Served { server: self.link.id(), space: self.link.space().to_vec() }
    }

    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        match kind {
            Kind::Keyed => Ok(Bound { lock: self.link.bind(name), ..Bound::default() }),
            Kind::Ranges => Err(HandleError::Unsupported("range locks: a decider has 19 bits per lock")),
            Kind::Semaphores => Err(HandleError::Unsupported("semaphores: a decider has 19 bits per lock")),
        }
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        Ok(Protocols::new("fisslock", "-"))
    }

    fn is_bound(&self, _: &Bound) -> bool {
        true
    }

    fn unbind(&self, _: &LockName, bound: Bound, _: Kind) {
        self.link.unbind(bound.lock);
    }

    fn heartbeat(&self) -> Duration {
        self.link.look_after()
    }

    fn stop_time(&self) -> Option<Duration> {
        Some(self.link.stop_time())
    }
}

impl Locker for FissBackend {
    /// What this process's agents could grant at once is granted by the same call that asks the network.
    fn try_acquire_fast(&self, _: Kind, _: Claim) -> Option<Result<Granted, Refused>> {
        None
    }

    fn try_acquire(&self, _: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        Box::pin(acquire(Arc::clone(&self.link), claim, true))
    }

    /// A decider that does not answer does not say that a lock is free.
    fn try_limit(&self) -> Option<Duration> {
        Some(self.link.timeout())
    }

    fn acquire(&self, _: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        Box::pin(acquire(Arc::clone(&self.link), claim, false))
    }

    /// The task departs.
    fn acquire_cancels_on_drop(&self) -> bool {
        true
    }

    fn release_fast(&self, _: Kind, _: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        let hold = hold(granted);
        let certain = self.link.is_certain();
        let member = self.link.member(hold.member);
        if let Some(member) = &member {
            member.depart(hold.task);
        }
        Some(match member {
            Some(_) if certain => Ok(()),
            Some(_) => Err(Lost::Fabric(FabricError::PeerLost(crate::wire::SERVER))),
            None => Err(Lost::Recovered),
        })
    }

    fn release(&self, kind: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        Box::pin(std::future::ready(self.release_fast(kind, claim, &granted).unwrap_or(Ok(()))))
    }

    fn description(&self) -> &'static str {
        "a decider in the network"
    }

    fn token(&self, granted: &Granted) -> u64 {
        hold(granted).token
    }

    fn standing(&self, _: Kind, _: Claim, granted: &Granted) -> Standing {
        let mut state = self.link.state();
        self.link.expire(&mut state);
        drop(state);
        match self.link.member(hold(granted).member) {
            Some(_) if self.link.is_certain() => Standing::Held,
            Some(_) => Standing::Uncertain,
            None => Standing::Lost(self.link.lost_reason()),
        }
    }
}

impl Drop for FissBackend {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// Acquires what a handle stands for, as a task of whatever machine this client is by then.
async fn acquire(link: Arc<Link>, claim: Claim, tries: bool) -> Result<Granted, Refused> {
    let began = Instant::now();
    loop {
        let (member, lid) = poll_fn(|cx| link.poll_lock(claim.lock, cx)).await.map_err(Refused::Error)?;
        let patience = if tries { Patience::Try } else { Patience::Forever };
        let want = Want::whole(lid, claim.mode).with(patience);
        match acquire_at(&link, &member, claim, want).await {
            Some(Ok(granted)) => return Ok(granted),
            Some(Err(Denied::Busy)) => return Err(Refused::Busy),
            Some(Err(denied)) => return Err(Refused::new(denied, claim)),
            None if tries && began.elapsed() >= link.timeout() => {
                let why = super::link::late(link.timeout());
                return Err(Refused::Error(LockError::Disconnected(why)));
            }
            // Another machine, then.
            None => {}
        }
    }
}

/// The same at one machine; `None` if that ends first.
async fn acquire_at(
    link: &Arc<Link>,
    member: &Arc<Member>,
    claim: Claim,
    want: Want,
) -> Option<Result<Granted, Denied>> {
    let task = member.task(claim.lock, claim.mode);
    let space = lockwright_locks::Space::of(u64::MAX).over(MACHINES);
    let params = params(u64::MAX, 1);
    let client = FissLock::<Shipped>::client(task.endpoint(), &space, &params);
    let mut acquiring = pin!(client.acquire(want));
    let granted = poll_fn(|cx| {
        if member.ended().is_some() {
            return Poll::Ready(None);
        }
        acquiring.as_mut().poll(cx).map(Some)
    });
    let token = match granted.await? {
        Ok(granted) => granted.token().unwrap_or(0),
        Err(denied) => return Some(Err(denied)),
    };
    // An agent of this process grants without a word from outside: it may have been given up long ago.
    let mut certain = pin!(poll_fn(|cx| link.poll_certain(cx)));
    let still = poll_fn(|cx| {
        if member.ended().is_some() {
            return Poll::Ready(false);
        }
        certain.as_mut().poll(cx).map(|()| true)
    });
    if !still.await {
        return None;
    }
    link.seen.fetch_max(token, Relaxed);
    let hold = FissHold { member: member.number, task: task.keep(token), token };
    Some(Ok(Granted { grant: ProtocolGrant::Fiss(hold), record: RecordId::default() }))
}
