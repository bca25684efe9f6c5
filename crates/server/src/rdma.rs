//! The server's RDMA side: the same dispatcher, behind queue pairs.
//!
//! Clients ask by SEND and are answered by SEND, and grants are pushed. Memory is registered for clients of one-sided spaces only, which
//! say so when they connect: the space stands behind their label, on a line of its own. For other clients nothing is registered. A client
//! that is gone has its queue pair destroyed before the lock table hears of it and frees what it held.

use super::dispatcher::Dispatcher;
use super::one_sided::OneSidedSpace;
use super::one_sided::reaper::Reaper;
use super::{ServeError, lock_table};
use lockwright::internal;
use lockwright::internal::layout::SCHEME;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{
    DeviceChoice, HostOptions, RdmaConnectError, RdmaEndpoint, RdmaHost, RdmaOptions, RdmaService,
};
use lockwright_fabric::backend::tcp::{Inbox, Secret, SessionEnd, VerbHost};
use lockwright_fabric::{Message, PeerId};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where and how.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) listen: SocketAddr,
    pub(super) device: DeviceChoice,
}

/// What it shares with the tcp side.
pub(super) struct Shared {
    pub(super) secret: Option<Secret>,
    pub(super) heartbeat: Duration,
    pub(super) grace: Duration,
    pub(super) epoch: u64,
}

/// The dispatcher, as the fabric's threads see it.
struct Door {
    dispatcher: Dispatcher,
    /// Clients of one-sided spaces: what the fabric calls them, what the dispatcher calls them, and which space it is.
    one_sided: Mutex<HashMap<PeerId, (PeerId, usize)>>,
    /// What the server calls itself when it comes to a one-sided space of its own.
    own: String,
}

/// Who stands behind a name, and which one-sided space it wants to be in.
fn wish(name: &str) -> (&str, Option<&str>) {
    let (label, space) = name.split_once('\n').unwrap_or((name, ""));
    (label, space.strip_prefix(SCHEME))
}

impl Door {
    fn one_sided(&self) -> MutexGuard<'_, HashMap<PeerId, (PeerId, usize)>> {
        self.one_sided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the dispatcher calls a client.
    fn session(&self, peer: PeerId) -> PeerId {
        self.one_sided().get(&peer).map_or(peer, |(session, _)| *session)
    }

    /// Lets `session` into the one-sided space at `index`. The fabric knows it by its number there, so that clients can write to
    /// each other by what stands in the words of locks.
    fn admit_to_space(&self, session: PeerId, label: &str, index: usize) -> Option<PeerId> {
        let space = &self.dispatcher.one_sided_spaces()[index];
        // Those who were in before a restart may not have noticed it yet.
        while label != self.own && self.dispatcher.lock_table().is_recovering() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let peer = self.dispatcher.admit_one_sided(session, space, label)?;
        let peer = space.fabric_number(index, peer);
        self.one_sided().insert(peer, (session, index));
        Some(peer)
    }
}

impl RdmaService for Door {
    fn admit(&self, name: &str) -> Option<PeerId> {
        let (label, space) = wish(name);
        let session = VerbHost::admit(&self.dispatcher, label)?;
        // One that is not there is refused by the lock table, in words.
        let index = space.and_then(|space| {
            self.dispatcher.one_sided_spaces().iter().position(|served| served.name == space)
        });
        let Some(index) = index else { return Some(session) };
        let admitted = self.admit_to_space(session, label, index);
        if admitted.is_none() {
            VerbHost::on_session_lost(&self.dispatcher, session, SessionEnd::Lost);
        }
        admitted
    }

    fn memory(&self, peer: PeerId) -> Option<Arc<InProc>> {
        let (_, index) = *self.one_sided().get(&peer)?;
        Some(Arc::clone(&self.dispatcher.one_sided_spaces()[index].memory))
    }

    fn attach(&self, peer: PeerId, inbox: Inbox) {
        VerbHost::attach(&self.dispatcher, self.session(peer), inbox);
    }

    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) {
        VerbHost::deliver(&self.dispatcher, self.session(from), to, message);
    }

    fn settle(&self) {
        VerbHost::settle(&self.dispatcher);
    }

    fn on_lost(&self, peer: PeerId, how: SessionEnd) {
        let session = self.one_sided().remove(&peer).map_or(peer, |(session, _)| session);
        VerbHost::on_session_lost(&self.dispatcher, session, how);
    }
}

/// Opens the RDMA side of `dispatcher`.
pub(super) fn open(side: &Side, dispatcher: &Dispatcher, shared: Shared) -> Result<RdmaHost, ServeError> {
    let Shared { secret, heartbeat, grace, epoch } = shared;
    let options = HostOptions {
        device: side.device.clone(),
        listen: side.listen,
        max_clients: lock_table::MAX_SESSIONS,
        secret,
        heartbeat,
        grace,
        epoch,
        ..HostOptions::default()
    };
    let own = format!("{} - reaper-{:032x}", std::process::id(), internal::key());
    let door = Door { dispatcher: dispatcher.clone(), one_sided: Mutex::default(), own: own.clone() };
    let secret = options.secret.clone();
    let host = RdmaHost::serve(Arc::new(door), options).map_err(|error| match error {
        RdmaConnectError::Unreachable { host, error } => {
            ServeError::Listen { address: host, why: error.to_string() }
        }
        error => ServeError::Rdma(error.to_string()),
    })?;
    for space in dispatcher.one_sided_spaces() {
        employ(space, &host, side, secret.clone(), &own)?;
    }
    Ok(host)
}

/// Clears away what the dead leave in a one-sided space: over a queue pair of the server's to itself.
fn employ(
    space: &Arc<OneSidedSpace>,
    host: &RdmaHost,
    side: &Side,
    secret: Option<Secret>,
    own: &str,
) -> Result<(), ServeError> {
    let mut address = host.address();
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let (device, name) = (side.device.clone(), format!("{own}\n{SCHEME}{}", space.name));
    let options = RdmaOptions { device, secret, name, ..RdmaOptions::default() };
    let wrong = |why: String| {
        ServeError::Rdma(format!(
            "it cannot reach its own memory over {} to register it: {why}",
            host.device()
        ))
    };
    let ep = RdmaEndpoint::connect(address, options).map_err(|error| wrong(error.to_string()))?;
    let reaper = Reaper::start(space, ep, true).map_err(|error| wrong(error.to_string()))?;
    space.employ(reaper);
    Ok(())
}
