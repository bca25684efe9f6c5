//! The client: one opened space, and handles for the locks in it.

mod address;
mod handles;
#[cfg(target_os = "linux")]
pub(crate) mod label;
mod open;
mod protocols;
mod reach;

pub(crate) use self::address::Address;
#[cfg(target_os = "linux")]
pub(crate) use self::address::TransportKind;
pub use self::open::Open;
pub use self::protocols::Protocols;

use crate::backend::{Backend, Kind, SpaceIdentity, StopTime};
use crate::election::Noted;
use crate::error::{HandleError, LockError, OpenError};
use crate::lock::core::Core;
use crate::name::LockName;
use crate::progress::Progress;
use lockwright_fabric::backend::fork::Owner;
use lockwright_fabric::backend::tcp;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// How a client opens a space: see [`Client::options`].
///
/// ```
/// use lockwright::ClientOptions;
/// use std::time::Duration;
/// let client = ClientOptions::default().lease(Duration::from_secs(60)).open("mem:").wait()?;
/// # Ok::<(), lockwright::OpenError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientOptions {
    lease: Duration,
    stop: StopTime,
    timeout: Duration,
    open_within: Duration,
    /// Or what is wrong with it.
    secret: Option<Result<tcp::Secret, String>>,
    roots: Option<Vec<u8>>,
    record: Option<PathBuf>,
    retain: bool,
    program: Option<String>,
    #[cfg(feature = "rdma")]
    device: lockwright_fabric::backend::rdma::DeviceChoice,
    #[cfg(feature = "cluster")]
    etcd: EtcdAccess,
}

/// What etcd wants to know of its clients, and they of it.
#[cfg(feature = "cluster")]
#[derive(Clone, Default)]
struct EtcdAccess {
    user: Option<(String, String)>,
    roots: Option<Vec<u8>>,
    /// The client's certificate chain and its key.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

/// Without the password and the key.
#[cfg(feature = "cluster")]
impl std::fmt::Debug for EtcdAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdAccess").field("user", &user).finish_non_exhaustive()
    }
}

/// How long a process may be silent before others may take its locks.
const LEASE: Duration = Duration::from_secs(10);
/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A client that has to wait for the CPU would lose a shorter lease.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// A shorter time to answer would be over before any server on another machine could.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            lease: LEASE,
            stop: StopTime::Exactly(Duration::ZERO),
            timeout: TIMEOUT,
            open_within: Duration::ZERO,
            secret: None,
            roots: None,
            record: None,
            retain: true,
            program: None,
            #[cfg(feature = "rdma")]
            device: lockwright_fabric::backend::rdma::DeviceChoice::default(),
            #[cfg(feature = "cluster")]
            etcd: EtcdAccess::default(),
        }
    }
}

impl ClientOptions {
    /// How long this process may give no sign of life, because it is stopped or cannot run, before others may take its
    /// locks: ten seconds unless told otherwise, at least a tenth of one. It has nothing to do with how long a lock is
    /// held, nor with processes that die, which is seen at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let options = lockwright::Client::options().lease(Duration::from_secs(1));
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(SHORTEST_LEASE);
        self
    }

    /// How long a server may take to answer when a space is opened, and when a lock is only tried (`try_lock` and its like):
    /// five seconds unless told otherwise. A `lock_timeout` ends by its own time, whatever the server does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let options = lockwright::Client::options().timeout(Duration::from_millis(500));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(SHORTEST_TIMEOUT);
        self
    }

    /// How long opening a space may take if the server breaks connections off, as it does while too many clients connect at once,
    /// or does not answer: it is tried again meanwhile. As long as [`timeout`](Self::timeout) unless told otherwise, and never shorter.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let options = lockwright::Client::options().open_within(Duration::from_secs(60));
    /// ```
    pub fn open_within(mut self, limit: Duration) -> Self {
        self.open_within = limit;
        self
    }

    /// How long this program needs to stop its work once a lock of a server is lost: nothing unless told otherwise. A lock
    /// then counts as lost so much earlier that the work has ended before the server gives the lock to another client. A
    /// server whose lease leaves no room for that is not opened.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let options = lockwright::Client::options().stop_time(Duration::from_secs(2));
    /// ```
    pub fn stop_time(mut self, time: Duration) -> Self {
        self.stop = StopTime::Exactly(time);
        self
    }

    /// As [`stop_time`](Self::stop_time), but less if the server's lease is short: [`Client::stop_time`] says how much it is.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let options = lockwright::Client::options().stop_time_at_most(Duration::from_secs(5));
    /// assert_eq!(options.open("mem:").wait().unwrap().stop_time(), Duration::from_secs(5));
    /// ```
    pub fn stop_time_at_most(mut self, time: Duration) -> Self {
        self.stop = StopTime::AtMost(time);
        self
    }

    /// The secret that the server wants its clients to know. One that is too short is refused when the space is opened.
    ///
    /// ```
    /// use lockwright::{Client, OpenError};
    /// let refused = Client::options().secret("short").open("tcp://localhost").wait();
    /// assert!(matches!(refused, Err(OpenError::Credentials(_))));
    /// ```
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.secret = Some(tcp::Secret::new(secret).map_err(|error| error.to_string()));
        self
    }

    /// Encrypts, and trusts servers whose certificate is among these (PEM) or signed by one of them, and is made out
    /// to the host in the space's address.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = lockwright::Client::options().tls(std::fs::read("ca.pem")?);
    /// let client = options.open("tcp://locks.example.org/stock").wait()?;
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, roots: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(roots.into());
        self
    }

    /// Writes down, in the file at `path`, what happens to this client's locks: who asked, was granted, gave back, lost. Several
    /// clients can share a file. `lockwright-lab check --history FILE...` judges such records: whether two ever held a lock
    /// at once, whether tokens rose. A lock that is written down takes microseconds longer.
    ///
    /// ```no_run
    /// let client = lockwright::Client::options().record("locks.jsonl").open("shm:").wait()?;
    /// # Ok::<(), lockwright::OpenError>(())
    /// ```
    pub fn record(mut self, path: impl Into<PathBuf>) -> Self {
        self.record = Some(path.into());
        self
    }

    /// Whether locks of a server may stay with this client between uses, until another client wants them: they may, unless
    /// told otherwise. A lock that this client takes again and again then costs no message. `?retain=off` at the end of a
    /// space's address says the same as `retain(false)`.
    ///
    /// ```
    /// let options = lockwright::Client::options().retain(false);
    /// ```
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// What this process is called in listings, if not by the name of its program: for one that works on behalf of another, as
    /// `lockwright run` does.
    ///
    /// ```
    /// let options = lockwright::Client::options().program("nightly backup");
    /// ```
    pub fn program(mut self, name: &str) -> Self {
        self.program = Some(name.replace(char::is_control, "?"));
        self
    }

    /// The device, port and address by which `rdma://` spaces are reached; without it, the first that will do.
    ///
    /// ```
    /// let options = lockwright::Client::options().rdma_device("rxe0:1".parse()?);
    /// # Ok::<(), lockwright::DeviceError>(())
    /// ```
    #[cfg(feature = "rdma")]
    pub fn rdma_device(mut self, device: lockwright_fabric::backend::rdma::DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// The user, with its password, by which etcd is asked where the servers of a `cluster://` space are.
    ///
    /// ```
    /// let options = lockwright::Client::options().etcd_user("lockwright", "sesame");
    /// ```
    #[cfg(feature = "cluster")]
    pub fn etcd_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.etcd.user = Some((name.into(), password.into()));
        self
    }

    /// The certificates (PEM) by which etcd's members are known; connections to them are encrypted.
    ///
    /// ```
    /// let options = lockwright::Client::options().etcd_tls("-----BEGIN CERTIFICATE-----…");
    /// ```
    #[cfg(feature = "cluster")]
    pub fn etcd_tls(mut self, roots: impl Into<Vec<u8>>) -> Self {
        self.etcd.roots = Some(roots.into());
        self
    }

    /// This client's certificate chain and its private key (PEM), where etcd wants them of its clients. They go with
    /// [`etcd_tls`](Self::etcd_tls): without, the space is not opened.
    ///
    /// ```
    /// # use lockwright::{Client, OpenError};
    /// let options = Client::options().etcd_cert("-----BEGIN CERTIFICATE-----…", "-----BEGIN PRIVATE KEY-----…");
    /// let refused = options.open("cluster://127.0.0.1/prod/stock").wait();
    /// assert!(matches!(refused, Err(OpenError::Credentials(_))));
    /// ```
    #[cfg(feature = "cluster")]
    pub fn etcd_cert(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.etcd.own = Some((chain.into(), key.into()));
        self
    }

    /// How the etcd with these members is asked.
    #[cfg(feature = "cluster")]
    pub(crate) fn etcd_options(
        &self,
        endpoints: Vec<String>,
    ) -> Result<lockwright_cluster::etcd::EtcdOptions, String> {
        let EtcdAccess { user, roots, own } = self.etcd.clone();
        if own.is_some() && roots.is_none() {
            return Err("a certificate for etcd goes with those by which etcd is known".to_owned());
        }
        let own = own.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
        let tls = roots.map(|roots| lockwright_cluster::etcd::Tls::from_pem(&roots, own)).transpose()?;
        Ok(lockwright_cluster::etcd::EtcdOptions { endpoints, user, tls })
    }

    /// Opens the space at `address`: see [`Client::open`].
    ///
    /// ```
    /// assert!(lockwright::Client::options().open("nonsense").wait().is_err());
    /// ```
    pub fn open(&self, address: &str) -> Open {
        Open::new(self.clone(), address.to_owned())
    }
}

/// A client of one lock space. Cheap to clone; clones are the same client. `Send` and `Sync`.
///
/// It belongs to the process that opened it. A child that was forked off and goes on without `exec` opens its own: what it
/// inherited refuses everything (`OtherProcess`), and dropping that does nothing to the parent's locks.
///
/// ```
/// use lockwright::Client;
///
/// let client = Client::open("mem:").wait()?; // "shm:" for all processes of this host
/// let guard = client.mutex("orders/42")?.lock().wait()?;
/// println!("alone, with token {}", guard.token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// A copy in a child of this process is of no use there: see [`Shared::check`].
    owner: Owner,
    space: Arc<dyn Backend>,
    /// How it was opened, for those who open it once more.
    options: ClientOptions,
    address: String,
    /// Who leads in a space that nobody can list.
    noted: Arc<Noted>,
    progress: Arc<Progress>,
    /// Locks for which this client's users have a handle: one [`Core`] each.
    cores: std::sync::Mutex<HashMap<(LockName, Kind), Weak<Core>>>,
}

impl Shared {
    /// The pid of the owner, if that is another process. Asked before anything else is touched: threads that do not run in
    /// this process may hold its locks.
    fn check(&self) -> Result<(), u32> {
        if self.owner.is_current() { Ok(()) } else { Err(self.owner.pid()) }
    }
}

/// In a child of its process nothing is closed: the space sees one client, which is the parent's.
impl Drop for Shared {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            self.owner.warn_once();
            std::mem::forget((Arc::clone(&self.space), Arc::clone(&self.progress)));
        }
    }
}

impl Client {
    /// Opens a space by its address, and makes it if it is not there. `.await` it, or `.wait()`: it talks to the server if
    /// there is one.
    ///
    /// | address | space |
    /// |---|---|
    /// | `shm:` | the default one of this user on this host |
    /// | `shm:NAME` | another one of this user, kept apart from the first |
    /// | `shm:/PATH` | the one in that file, which should lie in shared memory |
    /// | `tcp://HOST:PORT/NAME` | the one of that name in that server; without a name, its default one |
    /// | `tcp://HOST:PORT/NAME?retain=off` | the same, and its locks [do not stay](ClientOptions::retain) with this client between uses |
    /// | `tcp://HOST:PORT/shm:` | the one of that server's host, if the server exports it |
    /// | `rdma://HOST:PORT/NAME` | as `tcp:`, over RDMA, in builds with the feature `rdma` |
    /// | `rdma://HOST:PORT/lent:NAME` | a one-sided one, in memory of the server, whose locks this client takes by verbs of its own |
    /// | `shm:lent:NAME` | the same on the server's host, by CPU instructions, if it is served with `--local` |
    /// | `fiss://HOST:PORT/NAME` | one whose mutexes and reader-writer locks a decider in the network grants, started by `lockwright switch` |
    /// | `cluster://HOST:PORT,…/CLUSTER/NAME` | the one of that name in a cluster of servers, found by its etcd, in builds with the feature `cluster` |
    /// | `mem:` | a new one inside this process |
    ///
    /// # Errors
    /// If the address is none, or the space cannot be used.
    ///
    /// ```
    /// assert!(lockwright::Client::open("mem:").wait().is_ok());
    /// ```
    pub fn open(address: &str) -> Open {
        Self::options().open(address)
    }

    /// How a space is to be opened, for those who want it otherwise than by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let client = lockwright::Client::options().lease(Duration::from_secs(30)).open("mem:").wait()?;
    /// # Ok::<(), lockwright::OpenError>(())
    /// ```
    pub fn options() -> ClientOptions {
        ClientOptions::default()
    }

    fn at(space: Arc<dyn Backend>, address: &str, options: &ClientOptions) -> Result<Self, OpenError> {
        let beating = Arc::clone(&space);
        let progress = Progress::start(move || beating.heartbeat())
            .map_err(|error| OpenError::Failed { space: address.to_owned(), why: error.to_string() })?;
        let owner = Owner::current();
        let (progress, cores) = (Arc::new(progress), std::sync::Mutex::default());
        let (options, address, noted) = (options.clone(), address.to_owned(), Arc::default());
        let shared = Shared { owner, space, options, address, noted, progress, cores };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The pid of the owner, if that is another process.
    pub(crate) fn check(&self) -> Result<(), u32> {
        self.shared.check()
    }

    /// Which space it has opened, whatever the address.
    pub(crate) fn identity(&self) -> SpaceIdentity {
        self.shared.space.identity()
    }

    pub(crate) fn address(&self) -> &str {
        &self.shared.address
    }

    pub(crate) fn opened_with(&self) -> &ClientOptions {
        &self.shared.options
    }

    pub(crate) fn noted(&self) -> &Arc<Noted> {
        &self.shared.noted
    }

    fn core(&self, name: impl AsRef<[u8]>, kind: Kind) -> Result<Arc<Core>, HandleError> {
        let name = LockName::new(name)?;
        self.shared.check().map_err(|pid| HandleError::OtherProcess { pid })?;
        let key = (name.clone(), kind);
        let Shared { space, progress, cores, .. } = &*self.shared;
        let mut cores = cores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(core) = cores.get(&key).and_then(Weak::upgrade) {
            return Ok(core);
        }
        if cores.len() == cores.capacity() {
            cores.retain(|_, core| core.strong_count() > 0);
        }
        let bound = space.bind(&name, kind)?;
        let (space, progress) = (Arc::clone(space), Arc::clone(progress));
        let core = Arc::new(Core::new(space, progress, name, kind, bound));
        cores.insert(key, Arc::downgrade(&core));
        Ok(core)
    }

    /// Lets the locks that this client holds now stay held while process `pid` lives, even if this process dies: for a
    /// child that works under them. `false` if there is no such process, or this client has been declared dead and holds
    /// nothing any more. There can be one at a time.
    ///
    /// It has no effect on a lease that runs out, and none on `mem:`, which dies with this process.
    ///
    /// # Errors
    /// If the system does not say which process that is, for example because this process has no file descriptor left.
    /// Then nothing has changed.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let _guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// let mut child = std::process::Command::new("true").spawn().unwrap();
    /// client.hold_while_process_lives(child.id())?;
    /// child.wait()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn hold_while_process_lives(&self, pid: u32) -> std::io::Result<bool> {
        let owner = self.shared.check();
        owner.map_err(|pid| std::io::Error::other(LockError::OtherProcess { pid }))?;
        self.shared.space.hold_while_process_lives(pid)
    }

    /// How long the work under a lock may take to stop once it is lost: what was asked for, unless the server's lease has
    /// less room.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.stop_time().is_zero());
    /// ```
    pub fn stop_time(&self) -> Duration {
        let (StopTime::Exactly(asked) | StopTime::AtMost(asked)) = self.shared.options.stop;
        self.shared.space.stop_time().unwrap_or(asked)
    }

    /// Blocks until whatever was given up half-way is done, for at most `patience`; says whether it is. Worth a call
    /// before a process ends: what it leaves in a queue, others have to clear away.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert!(client.settle(Duration::from_millis(100)));
    /// ```
    pub fn settle(&self, patience: Duration) -> bool {
        self.shared.check().is_ok() && self.shared.progress.settle(patience)
    }
}
