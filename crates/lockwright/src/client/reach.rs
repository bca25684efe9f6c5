//! How a client reaches the space that an address names: what its options mean for each kind of space.

use super::{Address, Client, ClientOptions};
#[cfg(target_os = "linux")]
use super::{TransportKind, label};
#[cfg(target_os = "linux")]
use crate::backend::recorded::RecordedBackend;
#[cfg(target_os = "linux")]
use crate::backend::shm::{self, ShmBackend};
use crate::backend::{Backend, mem::MemBackend};
#[cfg(target_os = "linux")]
use crate::error::LockError;
use crate::error::OpenError;
#[cfg(target_os = "linux")]
use crate::one_sided::{backend::LocalBackend, local};
#[cfg(target_os = "linux")]
use crate::record::Recorder;
#[cfg(target_os = "linux")]
use crate::remote::cluster::{ClusterBackend, follow::Follower};
#[cfg(all(target_os = "linux", feature = "fiss"))]
use crate::remote::fiss::FissBackend;
#[cfg(all(target_os = "linux", feature = "fiss"))]
use crate::remote::fiss::link::{Link, LinkOptions};
#[cfg(target_os = "linux")]
use crate::remote::transport::Transport;
#[cfg(target_os = "linux")]
use crate::remote::{Remote, RemoteBackend, RemoteOptions, address as server_address, one_sided, secret};
#[cfg(target_os = "linux")]
use lockwright_fabric::backend::tcp;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::Duration;

/// Behind the name of a server's space: its locks do not stay with this client.
#[cfg(target_os = "linux")]
const RETAIN_OFF: &[u8] = b"?retain=off";

impl ClientOptions {
    /// How long a server may take to answer.
    #[cfg(target_os = "linux")]
    pub(crate) const fn patience(&self) -> Duration {
        self.timeout
    }

    /// How to reach the space `space` of the server at `server`.
    #[cfg(target_os = "linux")]
    pub(crate) fn remote(
        &self,
        by: TransportKind,
        server: String,
        space: Vec<u8>,
        one_sided: bool,
    ) -> Result<RemoteOptions, OpenError> {
        let transport = match by {
            TransportKind::Tcp => self.tcp(&server)?,
            #[cfg(feature = "rdma")]
            TransportKind::Rdma => Transport::Rdma(Box::new(lockwright_fabric::backend::rdma::RdmaOptions {
                device: self.device.clone(),
                secret: self.secret_for(&server)?,
                name: label::with_wish(self.program.as_deref(), &space, one_sided),
                timeout: self.timeout,
                ..lockwright_fabric::backend::rdma::RdmaOptions::default()
            })),
        };
        let kept = space.strip_suffix(RETAIN_OFF).map(<[u8]>::to_vec);
        let (lease, stop, retain) = (self.lease, self.stop, self.retain && kept.is_none());
        let space = kept.unwrap_or(space);
        let open_within = self.open_within.max(self.timeout);
        Ok(RemoteOptions {
            server,
            space,
            one_sided,
            lease,
            stop,
            retain,
            open_within,
            transport,
            shard: None,
        })
    }

    /// The secret for `server`: the one that was given, or the one that this user's own server has left for its clients.
    #[cfg(target_os = "linux")]
    fn secret_for(&self, server: &str) -> Result<Option<tcp::Secret>, OpenError> {
        match &self.secret {
            Some(given) => given.clone().map(Some).map_err(OpenError::Credentials),
            None => Ok(secret::of(server)),
        }
    }

    /// How to reach the space `space` of the decider at `decider`.
    #[cfg(all(target_os = "linux", feature = "fiss"))]
    pub(crate) fn fiss(&self, decider: String, space: Vec<u8>) -> Result<LinkOptions, OpenError> {
        Ok(LinkOptions {
            transport: self.tcp(&decider)?,
            decider,
            space,
            lease: self.lease,
            stop: self.stop,
            open_within: self.open_within.max(self.timeout),
            label: label::of(self.program.as_deref()),
        })
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn tcp(&self, server: &str) -> Result<Transport, OpenError> {
        let tls =
            self.roots.as_ref().map(|roots| tcp::TlsClient::from_pem(roots, server_address::host(server)));
        let tls = tls.transpose().map_err(|error| OpenError::Credentials(error.to_string()))?;
        let connect = tcp::ConnectOptions {
            secret: self.secret_for(server)?,
            tls,
            name: label::of(self.program.as_deref()),
            timeout: self.timeout,
            ..tcp::ConnectOptions::default()
        };
        Ok(Transport::Tcp(Box::new(connect)))
    }

    /// Opens the space on this thread.
    pub(super) fn open_here(&self, address: &str) -> Result<Client, OpenError> {
        let space: Arc<dyn Backend> = match Address::parse(address)? {
            Address::Mem => Arc::new(MemBackend::new()),
            #[cfg(target_os = "linux")]
            Address::Shm(path) => {
                let refuse = |error: LockError| OpenError::Failed {
                    space: path.display().to_string(),
                    why: error.to_string(),
                };
                Arc::new(
                    ShmBackend::new(shm::open(&path, true, self.program.as_deref())?, self.lease)
                        .map_err(refuse)?,
                )
            }
            #[cfg(target_os = "linux")]
            Address::Local(path) => {
                let opened = local::open(&path, false, self.program.as_deref())?;
                let refuse = |error: LockError| OpenError::Failed {
                    space: address.to_owned(),
                    why: error.to_string(),
                };
                Arc::new(LocalBackend::new(&opened).map_err(refuse)?)
            }
            #[cfg(target_os = "linux")]
            Address::Served { by, server, space } => {
                if let Some(space) = one_sided::wanted(&space) {
                    let remote = Remote::open(self.remote(by, server, space, true)?)?;
                    return self.client(Arc::new(one_sided::open(remote, address)?), address);
                }
                let remote = Remote::open(self.remote(by, server.clone(), space.clone(), false)?)?;
                match remote.is_elsewhere() {
                    false => Arc::new(RemoteBackend::new(remote)),
                    true => {
                        remote.close();
                        let follower = Follower::open(self, None, vec![server], address)?;
                        Arc::new(ClusterBackend::new(follower, &space))
                    }
                }
            }
            #[cfg(all(target_os = "linux", feature = "fiss"))]
            Address::Fiss { decider, space } => {
                Arc::new(FissBackend::new(Link::open(self.fiss(decider, space)?)?))
            }
            #[cfg(target_os = "linux")]
            Address::Cluster { address: cluster, space } => {
                let follower = Follower::open(self, Some(cluster), Vec::new(), address)?;
                Arc::new(ClusterBackend::new(follower, &space))
            }
        };
        self.client(space, address)
    }

    /// The client of an opened space.
    fn client(&self, space: Arc<dyn Backend>, address: &str) -> Result<Client, OpenError> {
        #[cfg(target_os = "linux")]
        if let Some(path) = &self.record {
            let label = label::of(self.program.as_deref());
            let recorder = Recorder::open(path, "client", &label).map_err(|error| OpenError::Failed {
                space: address.to_owned(),
                why: format!("{} cannot be written: {error}", path.display()),
            })?;
            return Client::at(Arc::new(RecordedBackend::new(space, recorder, label)), address, self);
        }
        Client::at(space, address, self)
    }
}
