//! A server of a cluster, on a thread of its own: renews its lease in etcd, reads the map, and takes, adopts, hands over and closes
//! shards as it says.
//!
//! | every | |
//! |---|---|
//! | quarter of the lease | a task renews it, on a connection of its own |
//! | [`POLL`] | the map is read, and what follows from it is done |
//! | ring of the bell | sessions are registered, evicted, tokens reserved |

use super::ClusterOptions;
use super::counts::{Came, Counts};
use super::handover::{self, Expected};
use super::hosted::Hosted;
use crate::ServeError;
use crate::dispatcher::Admission;
use crate::durable::{TOKENS_PER_SECOND, of_texts};
use crate::lock_table::handed::{HandedTable, Tables};
use crate::lock_table::sharded::LeaseClock;
use lockwright_cluster::etcd::{Etcd, EtcdError, LeaseId};
use lockwright_cluster::keys::{Keys, Registered, ServerId, parse_broken};
use lockwright_cluster::map::{Item, ShardMap};
use lockwright_cluster::shard::{Taker, Taking};
use lockwright_cluster::txn::{Compare, Op, Outcome, Revision, Txn};
use lockwright_cluster::{Ownership, Rules, plan};
use lockwright_fabric::backend::tcp;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

/// How often the map is read.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// Tokens reserved at a time.
const BLOCK: u64 = 1 << 22;
/// A server that was not certain of its lease for so long serves nothing any more: whatever was held is lost by then.
const LONG: Duration = Duration::from_secs(15);
/// How long etcd may take to come up.
const UP: Duration = Duration::from_secs(10);
/// How long a server that leaves tries to hand its shards over.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a node needs of its server.
pub(crate) struct Setup {
    pub(crate) options: ClusterOptions,
    /// Where the server listens for those who want to know where locks are.
    pub(crate) front: SocketAddr,
    pub(crate) tcp: tcp::ServerOptions,
    pub(crate) admission: Admission,
    pub(crate) record: Option<PathBuf>,
    /// What clients are told.
    pub(crate) map: Arc<Mutex<String>>,
    /// What other servers tell of the shards that they hand to this one.
    pub(crate) tables: Arc<Tables>,
    /// What is shown to clients by TLS, if that is used: other servers show the same, or what is signed by it.
    pub(crate) certificates: Option<Vec<u8>>,
    /// There is a page, which shows the last grants of a lock.
    pub(crate) keeps_history: bool,
    /// Runs the listeners.
    pub(crate) runtime: Handle,
}

impl Setup {
    /// The host by which clients reach this server.
    pub(super) fn advertised(&self) -> String {
        match (&self.options.advertise, self.front) {
            (Some(host), _) => host.clone(),
            (None, SocketAddr::V4(address)) => address.ip().to_string(),
            (None, SocketAddr::V6(address)) => format!("[{}]", address.ip()),
        }
    }
}

/// A running node.
#[derive(Debug)]
pub(crate) struct Node {
    stop: Option<oneshot::Sender<()>>,
    ended: Option<oneshot::Receiver<()>>,
    counts: Arc<Counts>,
}

impl Node {
    /// Joins the cluster, and makes it if it is not there.
    pub(crate) async fn start(setup: Setup) -> Result<Self, ServeError> {
        let system = |error: std::io::Error| ServeError::System(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let (tell, told) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let counts = Arc::<Counts>::default();
        let counted = Arc::clone(&counts);
        let run = move || {
            runtime.block_on(async {
                match Member::join(setup, counted).await {
                    Ok(member) => {
                        let _ = tell.send(Ok(()));
                        member.run(stopped).await;
                    }
                    Err(why) => drop(tell.send(Err(why))),
                }
            });
            let _ = end.send(());
        };
        std::thread::Builder::new().name("lockwright-cluster".to_owned()).spawn(run).map_err(system)?;
        let joined = told.await.map_err(|_| ServeError::System("its thread ended".to_owned()))?;
        joined.map_err(ServeError::Cluster)?;
        Ok(Self { stop: Some(stop), ended: Some(ended), counts })
    }

    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Hands everything over, as far as there is a server to take it.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(ended) = self.ended.take() {
            let _ = ended.await;
        }
    }
}

/// The lease of a server, while it lasts.
struct Tenancy {
    server: ServerId,
    /// When its key was made.
    made: Revision,
    lease: LeaseId,
    ttl: Duration,
    over: Arc<AtomicBool>,
    renewal: AbortHandle,
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

struct Member {
    setup: Setup,
    etcd: Etcd,
    keys: Keys,
    tenancy: Tenancy,
    clock: Arc<LeaseClock>,
    /// There is something to write.
    bell: Arc<Notify>,
    hosted: BTreeMap<u16, Hosted>,
    /// Shards that were handed to this server, and are not yet taken.
    expected: Expected,
    /// Since when etcd cannot be asked.
    silent: Option<Instant>,
    /// When the lease was last certain, and whether it was said that it is not.
    certain: Instant,
    has_stopped: bool,
    counts: Arc<Counts>,
}

impl Member {
    async fn join(setup: Setup, counts: Arc<Counts>) -> Result<Self, String> {
        let mut etcd = Etcd::new(setup.options.etcd.clone());
        let keys = Keys::new(&setup.options.name);
        let id = lockwright::internal::key();
        let config = ShardMap::config(setup.options.shards, id);
        let made =
            Txn { when: vec![Compare::Made(keys.config(), 0)], then: vec![Op::Put(keys.config(), config)] };
        make(&mut etcd, &made).await.map_err(|error| error.to_string())?;
        let (clock, bell) = (Arc::default(), Arc::new(Notify::new()));
        counts.counts_on(&clock);
        let tenancy =
            tenancy(&mut etcd, &setup, &keys, &clock, &bell).await.map_err(|error| error.to_string())?;
        let (hosted, silent, certain) = (BTreeMap::new(), None, Instant::now());
        let mut member = Self {
            setup,
            etcd,
            keys,
            tenancy,
            clock,
            bell,
            hosted,
            expected: Expected::default(),
            silent,
            certain,
            has_stopped: false,
            counts,
        };
        member.turn().await.map_err(|error| error.to_string())?;
        Ok(member)
    }

    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut next = tokio::time::Instant::now() + POLL;
        let (bell, tables) = (Arc::clone(&self.bell), Arc::clone(&self.setup.tables));
        loop {
            let done = tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = tokio::time::sleep_until(next) => {
                    let done = self.turn().await;
                    next = tokio::time::Instant::now() + POLL;
                    done
                }
                () = tables.arrived.notified() => self.turn().await,
                () = bell.notified() => self.write().await,
            };
            self.note(done).await;
        }
        let _ = tokio::time::timeout(FAREWELL, self.leave()).await;
    }

    /// Whether etcd can be asked, for people who read logs; and what becomes of shards if it cannot for long.
    async fn note(&mut self, done: Result<(), EtcdError>) {
        if done.is_err() {
            self.counts.etcd_failed();
        }
        match (&done, self.silent) {
            (Err(why), None) => {
                tracing::warn!("{why}; granting stops when the lease is over by this server's clock");
                self.silent = Some(Instant::now());
            }
            (Ok(()), Some(since)) => {
                tracing::warn!(after = ?since.elapsed(), "etcd can be asked again");
                self.silent = None;
            }
            _ => {}
        }
        let is_certain = self.clock.left().is_some();
        if is_certain == self.has_stopped {
            self.has_stopped = !is_certain;
            match is_certain {
                true => tracing::warn!("certain of the lease again"),
                false => tracing::warn!(
                    "not certain of the lease any more: this server grants nothing until it is"
                ),
            }
        }
        if is_certain {
            self.certain = Instant::now();
        } else if self.certain.elapsed() > LONG {
            self.close_all().await;
        }
    }

    async fn close_all(&mut self) {
        for number in self.hosted.keys().copied().collect::<Vec<_>>() {
            self.close(number).await;
        }
    }

    /// Serves a shard no more.
    async fn close(&mut self, number: u16) {
        if let Some(hosted) = self.hosted.remove(&number) {
            self.counts.went(number);
            hosted.close().await;
        }
    }

    /// Reads the map, and does what follows from it.
    async fn turn(&mut self) -> Result<(), EtcdError> {
        if self.tenancy.over.load(SeqCst) {
            tracing::warn!("this server's lease in etcd is over: its shards are others'");
            self.close_all().await;
            let Self { etcd, setup, keys, clock, bell, .. } = self;
            self.tenancy = tenancy(etcd, setup, keys, clock, bell).await?;
        }
        let map = self.read().await?;
        self.close_lost(&map).await;
        let mut has_changed = self.go_on_moving().await?;
        if self.clock.left().is_some() {
            has_changed |= self.take(&map).await?;
        }
        for hosted in self.hosted.values_mut() {
            hosted.drain();
            has_changed |= hosted.look_after(&mut self.etcd, self.tenancy.lease).await?;
        }
        self.write().await?;
        self.give(&map);
        if has_changed {
            self.read().await?;
        }
        Ok(())
    }

    /// The map, which clients are told, too.
    async fn read(&mut self) -> Result<ShardMap, EtcdError> {
        let name = &self.setup.options.name;
        let (revision, items) = self.etcd.range(&self.keys.map()).await?;
        let map = ShardMap::read(name, revision, &items).ok_or_else(|| {
            EtcdError::Refused(format!("what is below /lockwright/{name}/ is no cluster of this program"))
        })?;
        *self.setup.map.lock().unwrap_or_else(PoisonError::into_inner) = map.text();
        self.counts.saw(&map, self.tenancy.server);
        Ok(map)
    }

    async fn close_lost(&mut self, map: &ShardMap) {
        let lost: Vec<_> = self
            .hosted
            .iter()
            .filter(|(number, hosted)| !hosted.is_still(&map.state(**number)))
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            tracing::info!(shard = number, "the shard is another server's");
            self.close(number).await;
        }
    }

    fn taker(&self) -> Taker {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Taker {
            keys: self.keys.clone(),
            server: self.tenancy.server,
            made: self.tenancy.made,
            block: BLOCK,
            // They rise even if etcd's data is lost.
            first_token: now.as_secs().saturating_mul(TOKENS_PER_SECOND).max(1),
            ttl: self.tenancy.ttl,
            rules: Rules::default(),
        }
    }

    /// Takes what nobody serves, and goes on with what was handed to this server.
    async fn take(&mut self, map: &ShardMap) -> Result<bool, EtcdError> {
        let me = self.tenancy.server;
        let taker = self.taker();
        let handed: Vec<_> = map.owned_by(me).filter(|number| !self.hosted.contains_key(number)).collect();
        let ready = self.expected.ready(&handed, map, &self.setup.tables);
        let mut takings: Vec<_> = ready
            .into_iter()
            .filter_map(|number| taker.adopt(number, &map.state(number)))
            .map(|(taking, txn)| (taking, txn, Came::Handed))
            .collect();
        let orphans = plan::takes(map, me).into_iter();
        takings.extend(orphans.map(|number| {
            let (state, (taking, txn)) = (map.state(number), taker.take(number, &map.state(number)));
            (taking, txn, if state.owner.is_some() { Came::TakenOver } else { Came::New })
        }));
        let mut has_taken = false;
        for (taking, txn, how) in takings {
            // Refused, another server was first; if it was done unheard, the map will say so.
            if let Outcome::Done(revision) = self.etcd.txn(&txn, self.tenancy.lease).await? {
                tracing::info!(shard = taking.number(), ?how, "a shard has come");
                self.host(taking, revision, map.id, how).await?;
                has_taken = true;
            }
        }
        Ok(has_taken)
    }

    /// Serves a shard that is this server's from `revision` on.
    async fn host(
        &mut self,
        taking: Taking,
        revision: Revision,
        id: u128,
        how: Came,
    ) -> Result<(), EtcdError> {
        let number = taking.number();
        let (sessions, broken) = (self.keys.sessions(number), self.keys.brokens(number));
        let (_, registered) = self.etcd.range(&sessions).await?;
        let (_, over) = self.etcd.range(&broken).await?;
        let handed = match how {
            Came::Handed => {
                handover::table_of(&mut self.etcd, &self.keys, &self.setup.tables, number).await?
            }
            Came::New | Came::TakenOver => None,
        };
        let values = self.keys.values(number);
        let (_, of_locks) = self.etcd.range(&values).await?;
        let last = |item: &Item, prefix: &str| item.key.strip_prefix(prefix).map(str::to_owned);
        let of_locks = of_locks.iter().filter_map(|item| of_texts(&last(item, &values)?, &item.value));
        let registered =
            registered.iter().filter_map(|item| Registered::parse(&last(item, &sessions)?, &item.value));
        let over = over.iter().filter_map(|item| parse_broken(&last(item, &broken)?, &item.value));
        let (now, wait) = (self.clock.now(), self.setup.tcp.lease().at_server());
        let shard = taking.taken(revision, registered, over.collect(), now, wait);
        let (lease, bell) = (Arc::clone(&self.clock), Arc::clone(&self.bell));
        let handed = handed.filter(|_| shard.is_recovering());
        let of = (shard, of_locks.collect(), handed);
        match Hosted::start(&self.setup, of, id, lease, bell, &self.counts).await {
            Ok(mut hosted) => {
                hosted.is_counted_as(number, how);
                hosted.look_after(&mut self.etcd, self.tenancy.lease).await?;
                self.hosted.insert(number, hosted);
            }
            Err(why) => tracing::error!(shard = number, "the shard cannot be served: {why}"),
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), EtcdError> {
        for hosted in self.hosted.values_mut() {
            hosted.write(&mut self.etcd, self.tenancy.lease).await?;
        }
        Ok(())
    }

    /// Begins to hand a shard to a server that has fewer, if all is quiet.
    fn give(&mut self, map: &ShardMap) {
        let is_quiet = map.serving.len() == usize::from(map.shards)
            && map.serving.values().all(|serving| serving.is_open)
            && self.hosted.values().all(|hosted| hosted.moving.is_none());
        if let Some((number, to)) = plan::gives(map, self.tenancy.server).filter(|_| is_quiet)
            && let Some(hosted) = self.hosted.get_mut(&number)
            && hosted.are_all_clients_here()
            && hosted.freeze(to)
        {
            tracing::info!(shard = number, "a shard is handed over");
            self.bell.notify_one();
        }
    }

    /// Hands over what is frozen. Whether it is known where it is.
    async fn go_on_moving(&mut self) -> Result<bool, EtcdError> {
        let moving = self.hosted.iter().filter(|(_, hosted)| hosted.moving.is_some());
        let moving: Vec<_> = moving.map(|(number, _)| *number).collect();
        for number in &moving {
            let Some(hosted) = self.hosted.get(number) else { continue };
            if let Some((to, table)) = hosted.hand_over(&mut self.etcd, self.tenancy.lease).await? {
                self.handed_over(*number, to, table).await;
                continue;
            }
            // There was nobody to hand it to, or it was done before, which the map says.
            let state = self.read().await?.state(*number);
            if let Some(hosted) = self.hosted.get_mut(number).filter(|hosted| hosted.is_still(&state)) {
                hosted.thaw();
            }
        }
        Ok(!moving.is_empty())
    }

    /// The shard is another server's, which is told what its table was.
    async fn handed_over(&mut self, number: u16, to: ServerId, table: Option<HandedTable>) {
        self.counts.handed_out();
        let (map, _) = self.counts.seen();
        if let (Some(table), Some((_, at))) = (table, map.servers.get(&to)) {
            handover::tell(&self.setup, number, at, &table).await;
        }
        self.close(number).await;
    }

    /// Hands everything over and ends the lease. The next owner of a shard waits for what this server has promised; so a shard
    /// that no server could take is left until the lease ends by itself.
    async fn leave(mut self) {
        let Ok(mut map) = self.read().await else { return };
        // Those first whose new owner need not wait for a client that may be dead.
        let mut numbers: Vec<_> = self.hosted.keys().copied().collect();
        numbers.sort_by_key(|number| !self.hosted[number].are_all_clients_here());
        for number in numbers {
            let Some(heir) = plan::heir(&map, self.tenancy.server) else { return };
            let Some(hosted) = self.hosted.get_mut(&number) else { continue };
            if !hosted.freeze(heir) && hosted.moving.is_none() {
                continue;
            }
            let done = hosted.hand_over(&mut self.etcd, self.tenancy.lease).await;
            let Some((to, table)) = done.ok().flatten() else { continue };
            self.handed_over(number, to, table).await;
            match self.read().await {
                Ok(read) => map = read,
                Err(_) => return,
            }
        }
        if self.hosted.is_empty() {
            let _ = self.etcd.revoke(self.tenancy.lease).await;
        }
    }
}

/// Makes the cluster, if it is not there. An etcd that is started at the same time may take a while; one that answers, and not as it
/// should, will not do better.
async fn make(etcd: &mut Etcd, made: &Txn) -> Result<(), EtcdError> {
    let until = Instant::now() + UP;
    let mut is_said = false;
    loop {
        match etcd.txn(made, 0).await {
            Err(error @ EtcdError::Unreachable(_)) if Instant::now() < until => {
                if !std::mem::replace(&mut is_said, true) {
                    tracing::warn!("{error}; trying again for {} s", UP.as_secs());
                }
                tokio::time::sleep(POLL).await;
            }
            done => return done.map(drop),
        }
    }
}

/// A new lease, under a new number.
async fn tenancy(
    etcd: &mut Etcd,
    setup: &Setup,
    keys: &Keys,
    clock: &Arc<LeaseClock>,
    bell: &Arc<Notify>,
) -> Result<Tenancy, EtcdError> {
    let server = lockwright::internal::key() as u64;
    let mut ownership = Ownership::default();
    let sent = clock.now();
    let (lease, ttl) = etcd.grant(setup.options.ttl).await?;
    let at = format!("at {}:{}", setup.advertised(), setup.front.port());
    let key = Txn { when: Vec::new(), then: vec![Op::PutLeased(keys.server(server), at)] };
    let Outcome::Done(made) = etcd.txn(&key, lease).await? else {
        return Err(EtcdError::Refused("it did not take this server's key".to_owned()));
    };
    ownership.renewed(sent, ttl);
    let now = clock.now();
    clock.set(now, ownership.left(now));
    let over = Arc::new(AtomicBool::new(false));
    let (own, clock, is_over, bell) =
        (Etcd::new(setup.options.etcd.clone()), Arc::clone(clock), Arc::clone(&over), Arc::clone(bell));
    let renewal = tokio::spawn(renew(own, (lease, ttl), ownership, clock, is_over, bell)).abort_handle();
    Ok(Tenancy { server, made, lease, ttl, over, renewal })
}

/// Renews the lease until it is over.
async fn renew(
    mut etcd: Etcd,
    (lease, ttl): (LeaseId, Duration),
    mut ownership: Ownership,
    clock: Arc<LeaseClock>,
    over: Arc<AtomicBool>,
    bell: Arc<Notify>,
) {
    loop {
        tokio::time::sleep(ttl / 4).await;
        let sent = clock.now();
        let renewed = etcd.renew(lease).await;
        match renewed {
            Ok(Some(ttl)) => ownership.renewed(sent, ttl),
            Ok(None) => ownership.end(),
            // Tried again soon; what is certain now stays so until it is over.
            Err(_) => continue,
        }
        let now = clock.now();
        clock.set(now, ownership.left(now));
        if let Ok(None) = renewed {
            over.store(true, SeqCst);
            bell.notify_one();
            return;
        }
    }
}
