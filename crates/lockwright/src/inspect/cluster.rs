//! What can be seen of a cluster: its servers, which shards they serve, and the etcd that it stands on.

use crate::client::{Address, ClientOptions};
use crate::error::OpenError;
use crate::remote::cluster::follow::Follower;

/// A cluster, at one moment.
///
/// ```no_run
/// let info = lockwright::inspect::ClusterInfo::of("tcp://10.0.0.7", &lockwright::Client::options())?;
/// println!("{} of {} shards are served", info.served.len(), info.shards);
/// # Ok::<(), lockwright::OpenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterInfo {
    /// Its name.
    pub name: String,
    /// How many shards it has.
    pub shards: u16,
    /// Where its servers listen.
    pub servers: Vec<String>,
    /// The shards that are served; others have no owner.
    pub served: Vec<ServedShard>,
    /// The members of its etcd, if the address named them: where each is, and its version or what is wrong with it: it does
    /// not answer, has no leader, or raises an alarm.
    pub etcd: Vec<(String, Result<String, String>)>,
}

/// A shard that is served.
///
/// ```no_run
/// # let info = lockwright::inspect::ClusterInfo::of("tcp://10.0.0.7", &lockwright::Client::options())?;
/// for shard in info.served.iter().filter(|shard| shard.recovering) {
///     println!("shard {} waits at {} for who held its locks", shard.number, shard.at);
/// }
/// # Ok::<(), lockwright::OpenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedShard {
    /// Which.
    pub number: u16,
    /// Rises with every change of owner.
    pub epoch: u64,
    /// Where its owner listens for it.
    pub at: String,
    /// Its owner still waits for those who held locks under the last one.
    pub recovering: bool,
}

impl ClusterInfo {
    /// The cluster of a `cluster://` address, or the one that the server of a `tcp://` address is of.
    ///
    /// # Errors
    /// If there is none, or none of its servers answers.
    ///
    /// ```
    /// use lockwright::{Client, inspect::ClusterInfo};
    /// assert!(ClusterInfo::of("mem:", &Client::options()).is_err());
    /// ```
    pub fn of(address: &str, options: &ClientOptions) -> Result<Self, OpenError> {
        let (follower, endpoints) = match Address::parse(address)? {
            Address::Cluster { address: cluster, .. } => {
                let endpoints = cluster.endpoints.clone();
                (Follower::open(options, Some(cluster), Vec::new(), address)?, endpoints)
            }
            Address::Served { server, .. } => {
                (Follower::open(options, None, vec![server], address)?, Vec::new())
            }
            _ => return Err(OpenError::Address(address.to_owned())),
        };
        let map = follower.map();
        let served = map.serving.into_iter().map(|(number, serving)| ServedShard {
            number,
            epoch: serving.epoch,
            at: serving.at,
            recovering: !serving.is_open,
        });
        Ok(Self {
            name: map.name,
            shards: map.shards,
            servers: map.servers.into_values().map(|(_, at)| at).collect(),
            served: served.collect(),
            etcd: health(options, endpoints),
        })
    }
}

impl ClusterInfo {
    /// The shard that a lock is in.
    ///
    /// ```no_run
    /// # let info = lockwright::inspect::ClusterInfo::of("tcp://10.0.0.7", &lockwright::Client::options())?;
    /// println!("orders/42 is in shard {}", info.shard_of("stock", "orders/42"));
    /// # Ok::<(), lockwright::OpenError>(())
    /// ```
    pub fn shard_of(&self, space: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> u16 {
        lockwright_cluster::map::shard_of(space.as_ref(), name.as_ref(), self.shards)
    }
}

#[cfg(feature = "cluster")]
fn health(options: &ClientOptions, endpoints: Vec<String>) -> Vec<(String, Result<String, String>)> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let health = |endpoint: String| {
        let asked = options.etcd_options(vec![endpoint.clone()]).and_then(|options| {
            let mut etcd = lockwright_cluster::etcd::Etcd::new(options);
            runtime.block_on(etcd.health()).map_err(|error| error.to_string())
        });
        (endpoint, asked)
    };
    endpoints.into_iter().map(health).collect()
}

#[cfg(not(feature = "cluster"))]
fn health(_: &ClientOptions, _: Vec<String>) -> Vec<(String, Result<String, String>)> {
    Vec::new()
}
