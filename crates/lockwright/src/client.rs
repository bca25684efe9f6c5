//! The client: one opened space, and handles for the locks in it.

mod address;
#[cfg(target_os = "linux")]
pub(crate) mod label;
mod open;

pub(crate) use self::address::Address;
#[cfg(target_os = "linux")]
pub(crate) use self::address::TransportKind;
pub use self::open::Open;

use crate::error::{HandleError, LockError, OpenError};
#[cfg(target_os = "linux")]
use crate::home::recorded::RecordedBackend;
#[cfg(target_os = "linux")]
use crate::home::shm::{self, ShmBackend};
use crate::home::{Backend, Kind, StopTime, mem::MemBackend};
use crate::lock::core::Core;
use crate::lock::{Mutex, RangeLock, RwLock};
use crate::name::LockName;
use crate::progress::Progress;
#[cfg(target_os = "linux")]
use crate::record::Recorder;
#[cfg(target_os = "linux")]
use crate::remote::lent;
#[cfg(target_os = "linux")]
use crate::remote::transport::Transport;
#[cfg(target_os = "linux")]
use crate::remote::{Remote, RemoteBackend, RemoteOptions, address as server_address, secret};
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
    /// Or what is wrong with it.
    secret: Option<Result<tcp::Secret, String>>,
    roots: Option<Vec<u8>>,
    record: Option<PathBuf>,
    retain: bool,
    program: Option<String>,
    #[cfg(feature = "rdma")]
    device: lockwright_fabric::backend::rdma::DeviceChoice,
}

/// How long a process may be silent before others may take its locks.
const LEASE: Duration = Duration::from_secs(10);
/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Behind the name of a server's space: its locks do not stay with this client.
#[cfg(target_os = "linux")]
const RETAIN_OFF: &[u8] = b"?retain=off";
/// A shorter lease would be lost by whoever has to wait for the CPU.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// A shorter time to answer would be over before any server on another machine could.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            lease: LEASE,
            stop: StopTime::Exactly(Duration::ZERO),
            timeout: TIMEOUT,
            secret: None,
            roots: None,
            record: None,
            retain: true,
            program: None,
            #[cfg(feature = "rdma")]
            device: lockwright_fabric::backend::rdma::DeviceChoice::default(),
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

    /// How long this program needs to stop its work once a lock of a server is lost: nothing unless told otherwise. A lock
    /// then counts as lost so much earlier that the work has ended before the server gives the lock to somebody else. A
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

    /// Whether locks of a server may stay with this client between uses, until somebody else wants them: they may, unless told
    /// otherwise. A lock that this client takes again and again then costs no message. `?retain=off` at the end of a space's
    /// address says the same as `retain(false)`.
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
    /// # Ok::<(), lockwright_fabric::backend::rdma::DeviceError>(())
    /// ```
    #[cfg(feature = "rdma")]
    pub fn rdma_device(mut self, device: lockwright_fabric::backend::rdma::DeviceChoice) -> Self {
        self.device = device;
        self
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
        Ok(RemoteOptions { server, space, one_sided, lease, stop, retain, transport })
    }

    /// The secret for `server`: the one that was given, or the one that this user's own server has left for its clients.
    #[cfg(target_os = "linux")]
    fn secret_for(&self, server: &str) -> Result<Option<tcp::Secret>, OpenError> {
        match &self.secret {
            Some(given) => given.clone().map(Some).map_err(OpenError::Credentials),
            None => Ok(secret::of(server)),
        }
    }

    #[cfg(target_os = "linux")]
    fn tcp(&self, server: &str) -> Result<Transport, OpenError> {
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

    /// Opens the space at `address`: see [`Client::open`].
    ///
    /// ```
    /// assert!(lockwright::Client::options().open("nonsense").wait().is_err());
    /// ```
    pub fn open(&self, address: &str) -> Open {
        Open::new(self.clone(), address.to_owned())
    }

    /// Opens the space on this thread.
    fn open_here(&self, address: &str) -> Result<Client, OpenError> {
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
            Address::Served { by, server, space } => {
                if let Some(space) = lent::wanted(&space) {
                    let remote = Remote::open(self.remote(by, server, space, true)?)?;
                    return self.client(Arc::new(lent::open(remote, address)?), address);
                }
                Arc::new(RemoteBackend::new(Remote::open(self.remote(by, server, space, false)?)?))
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
            return Client::at(Arc::new(RecordedBackend::new(space, recorder, label)), address, self.stop);
        }
        Client::at(space, address, self.stop)
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
    stop: StopTime,
    progress: Arc<Progress>,
    /// Locks that somebody of this client has a handle for: one [`Core`] each.
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
    /// | `rdma://HOST:PORT/lent:NAME` | one in memory that the server lends, whose locks this client takes by verbs of its own |
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

    fn at(space: Arc<dyn Backend>, address: &str, stop: StopTime) -> Result<Self, OpenError> {
        let beating = Arc::clone(&space);
        let progress = Progress::start(move || beating.heartbeat())
            .map_err(|error| OpenError::Failed { space: address.to_owned(), why: error.to_string() })?;
        let owner = Owner::current();
        let (progress, cores) = (Arc::new(progress), std::sync::Mutex::default());
        let shared = Shared { owner, space, stop, progress, cores };
        Ok(Self { shared: Arc::new(shared) })
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

    /// The mutex called `name`: up to 255 bytes, any but NUL. Does not wait: a server is told of the name with the first
    /// request. (In `lent:` spaces it takes a round trip.)
    ///
    /// # Errors
    /// If the name cannot be one, or the space is full.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.mutex("orders/42")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Result<Mutex, HandleError> {
        self.core(name, Kind::Keyed).map(Mutex::new)
    }

    /// The reader-writer lock called `name`. The [mutex](Self::mutex) of that name is the same lock. Waits as
    /// little as that.
    ///
    /// # Errors
    /// If the name cannot be one, or the space is full.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.rwlock("config")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn rwlock(&self, name: impl AsRef<[u8]>) -> Result<RwLock, HandleError> {
        self.core(name, Kind::Keyed).map(RwLock::new)
    }

    /// The range lock called `name`. It has nothing to do with the mutex of that name. Waits as little
    /// as [`mutex`](Self::mutex).
    ///
    /// # Errors
    /// If the name cannot be one, the space is full, or it has no range locks.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let lock = client.range_lock("data.bin")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn range_lock(&self, name: impl AsRef<[u8]>) -> Result<RangeLock, HandleError> {
        self.core(name, Kind::Ranges).map(RangeLock::new)
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
        let (StopTime::Exactly(asked) | StopTime::AtMost(asked)) = self.shared.stop;
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
