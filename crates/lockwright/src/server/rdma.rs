//! The server's RDMA side: the same desk, behind queue pairs.
//!
//! Clients ask by SEND and are answered by SEND, and grants are pushed. No memory is lent: whoever gets hold of a key, or
//! forges one, finds nothing registered to reach with it. A client that is gone has its queue pair destroyed before the books
//! hear of it and free what it held.

use super::desk::Desk;
use super::{ServeError, books};
use lockwright_fabric::backend::rdma::{DeviceChoice, HostOptions, RdmaConnectError, RdmaHost, Reception};
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd, Token, VerbHost};
use lockwright_fabric::{Message, PeerId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Where and how.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) listen: SocketAddr,
    pub(super) device: DeviceChoice,
}

/// What it shares with the tcp side.
pub(super) struct Shared {
    pub(super) token: Option<Token>,
    pub(super) heartbeat: Duration,
    pub(super) grace: Duration,
    pub(super) epoch: u64,
}

/// The desk, as the fabric's threads see it.
struct Door {
    desk: Desk,
    /// The desk starts tasks for spaces of shared memory.
    runtime: Handle,
}

impl Reception for Door {
    fn admit(&self, name: &str) -> Option<PeerId> {
        VerbHost::admit(&self.desk, name)
    }

    fn attach(&self, peer: PeerId, inbox: Inbox) {
        VerbHost::attach(&self.desk, peer, inbox);
    }

    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) {
        let _tasks = self.runtime.enter();
        VerbHost::deliver(&self.desk, from, to, message);
        VerbHost::settle(&self.desk);
    }

    fn on_lost(&self, peer: PeerId, how: SessionEnd) {
        let _tasks = self.runtime.enter();
        VerbHost::on_session_lost(&self.desk, peer, how);
    }
}

/// Opens the RDMA side of `desk`.
pub(super) fn open(side: &Side, desk: Desk, shared: Shared) -> Result<RdmaHost, ServeError> {
    let Shared { token, heartbeat, grace, epoch } = shared;
    let options = HostOptions {
        device: side.device.clone(),
        listen: side.listen,
        max_clients: books::MAX_SESSIONS,
        token,
        heartbeat,
        grace,
        epoch,
        ..HostOptions::default()
    };
    let door = Door { desk, runtime: Handle::current() };
    RdmaHost::receive(Arc::new(door), options).map_err(|error| match error {
        RdmaConnectError::Unreachable { host, error } => {
            ServeError::Listen { address: host, why: error.to_string() }
        }
        error => ServeError::Rdma(error.to_string()),
    })
}
