//! A server as one of several: it owns shards of a cluster's locks, each a lock table with a listener of its own.
//!
//! | file | |
//! |---|---|
//! | this | what it is told before it starts |
//! | `node` | the loop: its lease, the map, which shards to take and to give |
//! | `hosted` | one shard that it serves |
//! | `handover` | the table of a shard, from server to server |
//! | `counts` | what is counted, for Prometheus |
//! | `view` | what its page shows |
//!
//! What is decided is decided by `lockwright-cluster`; here it is carried out. What this folder must not do: grant anything.

mod counts;
mod handover;
mod hosted;
mod node;
mod view;

pub(crate) use self::node::{Node, Setup};
pub(crate) use self::view::ClusterView;

use super::ServeError;
use lockwright_cluster::address::ClusterAddress;
use lockwright_cluster::etcd::{EtcdOptions, Tls};
use std::time::Duration;

/// How a server takes part in a cluster: see [`ServerOptions::cluster`](super::ServerOptions::cluster).
///
/// ```
/// use lockwright_server::ClusterOptions;
/// let options = ClusterOptions::at("etcd://10.0.0.1,10.0.0.2,10.0.0.3/prod")?.advertise("10.0.0.7");
/// # Ok::<(), lockwright_server::ServeError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClusterOptions {
    pub(super) etcd: EtcdOptions,
    pub(super) name: String,
    pub(super) shards: u16,
    pub(super) ttl: Duration,
    pub(super) advertise: Option<String>,
}

/// Shards of a new cluster: they can be shared evenly by 2, 3, 4 or 6 servers.
const SHARDS: u16 = 12;
/// Shards at most. Each is a listener.
const MAX_SHARDS: u16 = 1000;
/// The lease of a server in etcd: the shortest that etcd gives at its default settings.
const TTL: Duration = Duration::from_secs(2);

impl ClusterOptions {
    /// The cluster at `etcd://HOST:PORT,…/NAME`. It is made if it is not there.
    ///
    /// # Errors
    /// If that is no such address.
    ///
    /// ```
    /// use lockwright_server::ClusterOptions;
    /// assert!(ClusterOptions::at("etcd://10.0.0.1/prod").is_ok());
    /// assert!(ClusterOptions::at("10.0.0.1").is_err());
    /// ```
    pub fn at(address: &str) -> Result<Self, ServeError> {
        let parsed = address.strip_prefix("etcd:").and_then(ClusterAddress::parse);
        let Some((ClusterAddress { endpoints, name }, "")) = parsed else {
            return Err(ServeError::Cluster(format!(
                "{address} is no address of a cluster, such as etcd://10.0.0.1:2379,10.0.0.2:2379/prod"
            )));
        };
        let etcd = EtcdOptions { endpoints, ..EtcdOptions::default() };
        Ok(Self { etcd, name, shards: SHARDS, ttl: TTL, advertise: None })
    }

    /// How many shards the cluster has if this server makes it; later that cannot be changed.
    ///
    /// ```
    /// # use lockwright_server::ClusterOptions;
    /// let options = ClusterOptions::at("etcd://10.0.0.1/prod")?.shards(24);
    /// # Ok::<(), lockwright_server::ServeError>(())
    /// ```
    pub fn shards(mut self, shards: u16) -> Self {
        self.shards = shards.clamp(1, MAX_SHARDS);
        self
    }

    /// The name or address by which clients reach this server, if not the one that it listens on.
    ///
    /// ```
    /// # use lockwright_server::ClusterOptions;
    /// let options = ClusterOptions::at("etcd://10.0.0.1/prod")?.advertise("locks7.example.org");
    /// # Ok::<(), lockwright_server::ServeError>(())
    /// ```
    pub fn advertise(mut self, host: impl Into<String>) -> Self {
        self.advertise = Some(host.into());
        self
    }

    /// The user and the password that etcd wants.
    ///
    /// ```
    /// # use lockwright_server::ClusterOptions;
    /// let options = ClusterOptions::at("etcd://10.0.0.1/prod")?.user("lockwright", "sesame");
    /// # Ok::<(), lockwright_server::ServeError>(())
    /// ```
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.etcd.user = Some((name.into(), password.into()));
        self
    }

    /// Certificates by which etcd's members are known, and a chain and key of this server's own if they want one; all PEM.
    ///
    /// # Errors
    /// If they cannot be used.
    ///
    /// ```
    /// # use lockwright_server::ClusterOptions;
    /// assert!(ClusterOptions::at("etcd://10.0.0.1/prod")?.tls(b"no certificate", None).is_err());
    /// # Ok::<(), lockwright_server::ServeError>(())
    /// ```
    pub fn tls(mut self, roots: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Self, ServeError> {
        self.etcd.tls = Some(Tls::from_pem(roots, own).map_err(ServeError::Cluster)?);
        Ok(self)
    }
}
