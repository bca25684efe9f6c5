//! The map of a cluster, as a client knows it: read from any of its servers, and from etcd only to find the first.
//!
//! It is read when a link has to be made anew, and while one is not certain of its owner: not as long as all is well. Every time
//! another server is asked, so that one that is cut off from etcd cannot hide a new owner.

use super::ask;
use crate::client::ClientOptions;
use crate::error::OpenError;
use crate::remote::RemoteOptions;
use crate::remote::transport::Transport;
use lockwright_cluster::ShardMap;
use lockwright_cluster::address::ClusterAddress;
use lockwright_cluster::map::Serving;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a server may take to answer before the next one is asked.
const PATIENCE: Duration = Duration::from_millis(600);
/// A map that is younger is as good as a new one.
const FRESH: Duration = Duration::from_millis(40);

/// See the module.
#[derive(Debug)]
pub(crate) struct Follower {
    options: ClientOptions,
    /// Where the servers can be found, if the address said so.
    address: Option<ClusterAddress>,
    known: Mutex<Known>,
    /// One question at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Known {
    map: ShardMap,
    /// Where servers are asked, and which is next.
    servers: Vec<String>,
    next: usize,
    read: Option<Instant>,
}

impl Follower {
    /// Of the cluster at `address`, or of the one that `servers` belong to. Reads its map, on a thread of its own.
    pub(crate) fn open(
        options: &ClientOptions,
        address: Option<ClusterAddress>,
        servers: Vec<String>,
        space: &str,
    ) -> Result<Arc<Self>, OpenError> {
        let refuse = |why: String| OpenError::Failed { space: space.to_owned(), why };
        #[cfg(feature = "cluster")]
        options.etcd_options(Vec::new()).map_err(OpenError::Credentials)?;
        let known = Mutex::new(Known { map: ShardMap::default(), servers, next: 0, read: None });
        let follower =
            Arc::new(Self { options: options.clone(), address, known, turn: tokio::sync::Mutex::new(()) });
        let (tell, told) = mpsc::channel();
        let reader = Arc::clone(&follower);
        let read = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let _ = tell.send(match runtime {
                Ok(runtime) => runtime.block_on(reader.read_first()),
                Err(error) => Err(error.to_string()),
            });
        };
        let thread = std::thread::Builder::new().name("lockwright-map".to_owned());
        thread.spawn(read).map_err(|error| refuse(error.to_string()))?;
        told.recv().map_err(|error| refuse(error.to_string()))?.map_err(refuse)?;
        Ok(follower)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The map, as it was read last.
    pub(crate) fn map(&self) -> ShardMap {
        self.known().map.clone()
    }

    /// The cluster's identity.
    pub(super) fn id(&self) -> u128 {
        self.known().map.id
    }

    /// How many shards it has.
    pub(super) fn shards(&self) -> u16 {
        self.known().map.shards
    }

    pub(super) fn shard_of(&self, space: &[u8], name: &[u8]) -> u16 {
        self.known().map.shard_of(space, name)
    }

    /// Where shard `number` is served, as far as is known.
    pub(in crate::remote) fn serving(&self, number: u16) -> Option<Serving> {
        self.known().map.serving.get(&number).cloned()
    }

    /// How a link is made, wherever it leads to.
    pub(super) fn link_options(&self, space: &[u8]) -> Result<RemoteOptions, OpenError> {
        let server = self.known().servers.first().cloned().unwrap_or_default();
        self.options.remote(crate::client::TransportKind::Tcp, server, space.to_vec(), false)
    }

    /// How the server at `server` is reached.
    pub(in crate::remote) fn transport(&self, server: &str) -> Result<Transport, String> {
        self.options.tcp(server).map_err(|error| error.to_string())
    }

    /// The first map: tried for as long as a server may take to answer.
    async fn read_first(&self) -> Result<(), String> {
        let until = Instant::now() + self.options.patience();
        loop {
            match self.refresh().await {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() >= until => return Err(why),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Reads the map anew, unless that was done just now.
    pub(in crate::remote) async fn refresh(&self) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        if self.known().read.is_some_and(|read| read.elapsed() < FRESH) {
            return Ok(());
        }
        let mut last = "no server of the cluster is known".to_owned();
        let servers = self.known().servers.len();
        for _ in 0..servers {
            let server = {
                let mut known = self.known();
                known.next = (known.next + 1) % known.servers.len();
                known.servers[known.next].clone()
            };
            let transport = self.transport(&server)?;
            match tokio::time::timeout(PATIENCE, ask::map_of(&transport, &server)).await {
                Ok(Ok(text)) => match ShardMap::parse(&text) {
                    Some(map) => return self.learn(map),
                    None => last = format!("{server} is no server of a cluster"),
                },
                Ok(Err(why)) => last = format!("{server}: {why}"),
                Err(_) => last = format!("{server}: {}", crate::remote::link::late(PATIENCE)),
            }
        }
        match &self.address {
            Some(address) => self.learn(self.ask_etcd(address, last).await?),
            None => Err(last),
        }
    }

    fn learn(&self, map: ShardMap) -> Result<(), String> {
        let mut known = self.known();
        if known.map.shards != 0 && known.map.id != map.id {
            return Err(format!(
                "the cluster {} was made anew: it is not the one this client is of",
                map.name
            ));
        }
        known.read = Some(Instant::now());
        if map.servers.is_empty() && known.map.shards == 0 {
            return Err(format!("the cluster {} has no server", map.name));
        }
        if map.revision >= known.map.revision {
            if !map.servers.is_empty() {
                known.servers = map.servers.values().map(|(_, at)| at.clone()).collect();
            }
            known.map = map;
        }
        Ok(())
    }

    #[cfg(feature = "cluster")]
    async fn ask_etcd(&self, address: &ClusterAddress, last: String) -> Result<ShardMap, String> {
        use lockwright_cluster::etcd::{Etcd, EtcdError};
        use lockwright_cluster::keys::Keys;
        let mut etcd = Etcd::new(self.options.etcd_options(address.endpoints.clone())?);
        let keys = Keys::new(&address.name);
        let read = match etcd.range(&keys.map()).await {
            // Without a leader a member still knows where servers were, and those say what has changed.
            Err(error @ EtcdError::Unreachable(_)) => etcd.range_here(&keys.map()).await.map_err(|_| error),
            read => read,
        };
        let (revision, items) = read.map_err(|error| error.to_string())?;
        let map = ShardMap::read(&address.name, revision, &items);
        let map = map.ok_or_else(|| format!("there is no cluster called {} in this etcd", address.name))?;
        // Those servers are asked the next time.
        if !self.known().servers.is_empty() && map.servers.is_empty() {
            return Err(last);
        }
        Ok(map)
    }

    #[cfg(not(feature = "cluster"))]
    #[expect(clippy::unused_async, reason = "as with the feature")]
    async fn ask_etcd(&self, _: &ClusterAddress, last: String) -> Result<ShardMap, String> {
        Err(last)
    }
}
