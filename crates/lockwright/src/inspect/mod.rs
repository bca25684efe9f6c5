//! Looking into a space: who holds what, who waits for what, since when; and taking a lock away from its holder.
//!
//! On shared memory, everything shown here stands in the space itself, written there by the clients; a server is asked.
//! Looking disturbs nobody. This file is what can be seen; `local` looks into shared memory, `waits` sees who waits for whom.

mod cluster;
pub(crate) mod local;
pub(crate) mod user;
mod waits;

pub use crate::backend::Kind;
pub use cluster::{ClusterInfo, ServedShard};
pub use local::spaces;
pub use waits::{Process, Wait, waits, waits_among};

use self::local::Local;
use crate::client::{Address, ClientOptions};
use crate::error::OpenError;
use crate::name::{LockName, NameError};
use crate::one_sided::listing::LocalInspector;
use crate::remote::cluster::{follow::Follower, inspector::ClusterInspector};
#[cfg(feature = "fiss")]
use crate::remote::fiss::inspector::FissInspector;
use crate::remote::inspector::RemoteInspector;
use lockwright_fabric::FabricError;
use lockwright_fabric::backend::fork::Owner;
use lockwright_fabric::backend::shm::SpaceError;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// A space that is looked into.
///
/// ```
/// use lockwright::{Client, inspect::Inspector};
/// # let address = format!("shm:/dev/shm/lockwright-doc-inspect-{}", std::process::id());
/// let client = Client::open(&address).wait()?;
/// let guard = client.mutex("orders/42")?.lock().wait()?;
/// let entries = Inspector::open(&address)?.entries()?;
/// assert_eq!(entries[0].name.to_string(), "orders/42");
/// assert_eq!(entries[0].token, Some(guard.token()));
/// assert_eq!(entries[0].pid, std::process::id());
/// # std::fs::remove_file(&address["shm:".len()..])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Inspector {
    owner: Owner,
    /// `None` only while it is dropped.
    looks: Option<Looks>,
}

#[derive(Debug)]
enum Looks {
    Local(Local),
    OneSided(LocalInspector),
    Remote(RemoteInspector),
    Cluster(ClusterInspector),
    #[cfg(feature = "fiss")]
    Fiss(FissInspector),
}

/// One line of a listing: a client that holds a lock or waits for it.
///
/// ```no_run
/// use lockwright::inspect::{EntryState, Inspector};
/// for entry in Inspector::open("tcp://db7/stock")?.entries()? {
///     let what = if entry.state == EntryState::Waiting { "waits for" } else { "has" };
///     println!("process {} {what} {}", entry.pid, entry.name);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The lock.
    pub name: LockName,
    /// What its client does with it.
    pub state: EntryState,
    /// Whether it is, or would be, shared.
    pub shared: bool,
    /// The units, for range locks.
    pub range: Option<Range<u64>>,
    /// The permits, for semaphores.
    pub permits: Option<Permits>,
    /// The fencing token, for those who hold it.
    pub token: Option<u64>,
    /// How long it has been in this state.
    pub age: Duration,
    /// The client's process.
    pub pid: u32,
    /// Whose process it is, as the client says; on this host's shared memory, as the kernel does. Empty: not known.
    pub user: String,
    /// The client's host.
    pub host: String,
    /// The client's program.
    pub program: String,
    /// Which of the process's threads asked for it, counted from zero; `None`: not known, or a task asked, which any thread may go
    /// on with.
    pub thread: Option<u32>,
    /// Of a waiter: whether it holds the lock too, shared, and waits to be alone.
    pub upgrades: bool,
    /// Whether the client is alive. A dead one's locks go to the next client that asks for them.
    pub alive: bool,
    /// The lock changed hands faster than could be read: what is said of it did not hold all at one moment.
    pub changing: bool,
}

impl Entry {
    /// Fills in which process it is, of a label.
    #[doc(hidden)]
    pub fn set_process(&mut self, label: &str) {
        let Process { pid, user, host, program } = Process::of_label(label);
        (self.pid, self.user, self.host, self.program) = (pid, user, host, program);
    }

    /// What kind of lock it is about.
    ///
    /// ```
    /// # use lockwright::{LockName, inspect::{Entry, EntryState, Kind}};
    /// assert_eq!(Entry::new(LockName::new("a")?, EntryState::Held).kind(), Kind::Keyed);
    /// # Ok::<(), lockwright::NameError>(())
    /// ```
    pub fn kind(&self) -> Kind {
        match (&self.range, self.permits) {
            (_, Some(_)) => Kind::Semaphores,
            (Some(_), None) => Kind::Ranges,
            (None, None) => Kind::Keyed,
        }
    }

    /// An entry of which only the lock and the state are known yet: for the server.
    #[doc(hidden)]
    pub fn new(name: LockName, state: EntryState) -> Self {
        Self {
            name,
            state,
            shared: false,
            range: None,
            permits: None,
            token: None,
            age: Duration::ZERO,
            pid: 0,
            user: String::new(),
            host: String::new(),
            program: String::new(),
            thread: None,
            upgrades: false,
            alive: true,
            changing: false,
        }
    }
}

/// What a client holds of a semaphore, or wants of it.
///
/// ```no_run
/// # let entries = lockwright::inspect::Inspector::open("tcp://db7/stock")?.entries()?;
/// for permits in entries.iter().filter_map(|entry| entry.permits) {
///     println!("{} of {} permits", permits.held, permits.limit);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// So many permits,
    pub held: u64,
    /// of so many.
    pub limit: u64,
}

impl Permits {
    /// What `units` say that a request for permits holds or wants.
    #[doc(hidden)]
    pub fn of_units(units: &Range<u64>) -> Self {
        Self { held: units.start, limit: units.end.saturating_sub(1) }
    }
}

/// What a client does with a lock.
///
/// ```
/// use lockwright::inspect::EntryState;
/// assert!(EntryState::Held < EntryState::Waiting, "listings name holders first");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EntryState {
    /// It holds it.
    Held,
    /// It was granted to it, and stays there until another client wants it: whether it is in use, only the client knows.
    Retained,
    /// It waits for it, or gave up and has not been served yet.
    Waiting,
}

/// What a lock has seen.
///
/// ```no_run
/// let mut heat = lockwright::inspect::Inspector::open("shm:")?.heat()?;
/// heat.sort_by_key(|lock| std::cmp::Reverse(lock.waited));
/// println!("waited for longest: {}", heat[0].name);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heat {
    /// The lock.
    pub name: LockName,
    /// What kind of lock it is.
    pub kind: Kind,
    /// How many hold it now. Of retained locks, those known to be in use.
    pub holders: u64,
    /// With how many clients it stays until another client wants it, without a word of whether it is in use.
    pub retained: u64,
    /// How many wait for it now.
    pub waiters: u64,
    /// Grants so far.
    pub grants: u64,
    /// Grants that had to be waited for.
    pub contended: u64,
    /// How long they were waited for, altogether.
    pub waited: Duration,
}

/// What a space is.
///
/// ```no_run
/// let info = lockwright::inspect::Inspector::open("shm:")?.info()?;
/// println!("{} of {} clients", info.clients, info.max_clients);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceInfo {
    /// How to open it.
    pub address: String,
    /// Its file.
    pub path: PathBuf,
    /// The protocol of keyed locks.
    pub keyed: &'static str,
    /// The protocol of range locks.
    pub ranges: &'static str,
    /// Clients that are in.
    pub clients: usize,
    /// Clients that fit in.
    pub max_clients: u64,
    /// Names in use.
    pub names: u64,
    /// Names that fit in.
    pub max_names: u64,
    /// How long ago it was made.
    pub age: Duration,
    /// Bytes of memory it takes.
    pub resident_bytes: u64,
}

/// Why a look into a space failed.
///
/// ```
/// use lockwright::inspect::InspectError;
/// let error = InspectError::Space("its file is of another version".into());
/// assert!(error.to_string().starts_with("the space cannot be used"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The space cannot be used.
    #[error("the space cannot be used: {0}")]
    Space(String),
    /// It has no room for one who looks.
    #[error("the space has no room for another client: {0}")]
    TooManyClients(String),
}

/// Why a lock was not broken.
///
/// ```no_run
/// use lockwright::inspect::{BreakError, Inspector};
/// match Inspector::open("tcp://db7/stock")?.break_grant("orders/42", 7) {
///     Err(BreakError::NotHeld { .. }) => println!("it was given back in the meantime"),
///     broken => broken?,
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BreakError {
    /// There cannot be such a lock.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nobody has ever used that name, or nobody does now.
    #[error("there is no lock called {0}")]
    NoSuchLock(LockName),
    /// The grant is over: another client may hold the lock now, and keeps it.
    #[error("nobody holds {name} with token {token}: that grant is over")]
    NotHeld {
        /// The lock.
        name: LockName,
        /// The token.
        token: u64,
    },
    /// The space cannot be used.
    #[error(transparent)]
    Inspect(#[from] InspectError),
}

impl From<SpaceError> for InspectError {
    fn from(error: SpaceError) -> Self {
        Self::Space(error.to_string())
    }
}

impl From<FabricError> for InspectError {
    fn from(error: FabricError) -> Self {
        Self::Space(error.to_string())
    }
}

/// As with a client: a copy in a child of its process says no goodbye.
impl Drop for Inspector {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            std::mem::forget(self.looks.take());
        }
    }
}

impl Inspector {
    fn new(looks: Looks) -> Self {
        Self { owner: Owner::current(), looks: Some(looks) }
    }

    fn looks(&self) -> Result<&Looks, InspectError> {
        let pid = self.owner.pid();
        let looks = self.looks.as_ref().filter(|_| self.owner.is_current());
        looks.ok_or_else(|| InspectError::Space(crate::LockError::OtherProcess { pid }.to_string()))
    }

    /// Opens the space at `address`. It must be there: looking makes nothing.
    ///
    /// # Errors
    /// If there is no such space, or it cannot be used.
    ///
    /// ```
    /// assert!(lockwright::inspect::Inspector::open("shm:/dev/shm/no-such-space").is_err());
    /// ```
    pub fn open(address: &str) -> Result<Self, OpenError> {
        Self::open_with(address, &ClientOptions::default())
    }

    /// As [`open`](Self::open), with what a server may want to know of its clients.
    ///
    /// # Errors
    /// If there is no such space, or it cannot be used.
    ///
    /// ```
    /// use lockwright::{Client, inspect::Inspector};
    /// assert!(Inspector::open_with("shm:/dev/shm/no-such-space", &Client::options()).is_err());
    /// ```
    pub fn open_with(address: &str, options: &ClientOptions) -> Result<Self, OpenError> {
        match Address::parse(address)? {
            Address::Shm(path) => Local::open(&path).map(Looks::Local).map(Self::new),
            Address::Local(path) => LocalInspector::open(&path).map(Looks::OneSided).map(Self::new),
            Address::Served { by, server, space } => {
                let remote =
                    RemoteInspector::open(options.remote(by, server.clone(), space.clone(), false)?)?;
                if !remote.is_elsewhere() {
                    return Ok(Self::new(Looks::Remote(remote)));
                }
                let follower = Follower::open(options, None, vec![server], address)?;
                ClusterInspector::open(follower, &space).map(Looks::Cluster).map(Self::new)
            }
            Address::Cluster { address: cluster, space } => {
                let follower = Follower::open(options, Some(cluster), Vec::new(), address)?;
                ClusterInspector::open(follower, &space).map(Looks::Cluster).map(Self::new)
            }
            #[cfg(feature = "fiss")]
            Address::Fiss { decider, space } => {
                FissInspector::open(options.fiss(decider, space)?).map(Looks::Fiss).map(Self::new)
            }
            Address::Mem => Err(OpenError::Address(address.to_owned())),
        }
    }

    /// All holders and waiters, by name; holders first, then those who have waited longest.
    ///
    /// # Errors
    /// If the space cannot be used.
    ///
    /// ```
    /// # let address = format!("shm:/dev/shm/lockwright-doc-entries-{}", std::process::id());
    /// # let client = lockwright::Client::open(&address).wait().unwrap();
    /// assert!(lockwright::inspect::Inspector::open(&address)?.entries()?.is_empty());
    /// # std::fs::remove_file(&address["shm:".len()..])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        match self.looks()? {
            Looks::Local(local) => local.entries(),
            Looks::OneSided(local) => local.entries(),
            Looks::Remote(remote) => remote.entries(None),
            Looks::Cluster(cluster) => cluster.entries(),
            #[cfg(feature = "fiss")]
            Looks::Fiss(fiss) => fiss.entries(),
        }
    }

    /// The same of the locks called `name`, which costs less; in a cluster only the server that has them is asked.
    ///
    /// # Errors
    /// If the space cannot be used.
    ///
    /// ```
    /// # let address = format!("shm:/dev/shm/lockwright-doc-entries-of-{}", std::process::id());
    /// # let client = lockwright::Client::open(&address).wait().unwrap();
    /// # let _guard = client.mutex("a").unwrap().lock().wait().unwrap();
    /// let name = lockwright::LockName::new("a")?;
    /// assert_eq!(lockwright::inspect::Inspector::open(&address)?.entries_of(&name)?.len(), 1);
    /// # std::fs::remove_file(&address["shm:".len()..])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entries_of(&self, name: &LockName) -> Result<Vec<Entry>, InspectError> {
        let mut entries = match self.looks()? {
            Looks::Local(local) => local.entries_of(name),
            Looks::Remote(remote) => remote.entries(Some(name)),
            Looks::Cluster(cluster) => cluster.entries_of(name),
            _ => self.entries(),
        }?;
        // Servers of earlier releases list all.
        entries.retain(|entry| entry.name == *name);
        Ok(entries)
    }

    /// What the locks in use have seen; the busiest first. On shared memory grants are counted since the lock was last
    /// recovered, those of a name's semaphore with those of its ranges, and nobody counts waits: `contended` and `waited` are zero
    /// there.
    ///
    /// # Errors
    /// If the space cannot be used.
    ///
    /// ```no_run
    /// for heat in lockwright::inspect::Inspector::open("tcp://127.0.0.1/stock")?.heat()? {
    ///     println!("{}: {} grants, {} wait", heat.name, heat.grants, heat.waiters);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        match self.looks()? {
            Looks::Local(local) => local.heat(),
            Looks::OneSided(local) => local.heat(),
            Looks::Remote(remote) => remote.heat(),
            Looks::Cluster(cluster) => cluster.heat(),
            #[cfg(feature = "fiss")]
            Looks::Fiss(fiss) => fiss.heat(),
        }
    }

    /// Takes the lock called `name` away from the client that holds it with `token`, which learns that it was lost. No other
    /// client is affected: if that grant is over, nothing happens. On shared memory, a shared lock is taken from all who
    /// share it.
    ///
    /// # Errors
    /// If there is no such grant.
    ///
    /// ```
    /// use lockwright::{Client, GuardState, inspect::Inspector};
    /// # let address = format!("shm:/dev/shm/lockwright-doc-break-{}", std::process::id());
    /// let client = Client::open(&address).wait()?;
    /// let guard = client.mutex("stuck")?.lock().wait()?;
    /// let inspector = Inspector::open(&address)?;
    /// assert!(inspector.break_grant("stuck", guard.token() + 1).is_err());
    /// inspector.break_grant("stuck", guard.token())?;
    /// assert_eq!(guard.state(), GuardState::Lost);
    /// # std::fs::remove_file(&address["shm:".len()..])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn break_grant(&self, name: impl AsRef<[u8]>, token: u64) -> Result<(), BreakError> {
        match self.looks()? {
            Looks::Local(local) => local.break_grant(name, token),
            Looks::OneSided(local) => local.break_grant(name, token),
            Looks::Remote(remote) => remote.break_grant(LockName::new(name)?, token),
            Looks::Cluster(cluster) => cluster.break_grant(LockName::new(name)?, token),
            #[cfg(feature = "fiss")]
            Looks::Fiss(fiss) => fiss.break_grant(),
        }
    }

    /// How the decider of a `fiss://` space is, as a JSON object; `None` for other spaces.
    ///
    /// # Errors
    /// If it cannot be asked.
    ///
    /// ```no_run
    /// println!("{:?}", lockwright::inspect::Inspector::open("fiss://127.0.0.1")?.decider()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decider(&self) -> Result<Option<String>, InspectError> {
        match self.looks()? {
            #[cfg(feature = "fiss")]
            Looks::Fiss(fiss) => fiss.status().map(Some).map_err(InspectError::Space),
            _ => Ok(None),
        }
    }

    /// What the space is.
    ///
    /// # Errors
    /// If the space cannot be used, or is not one of this host.
    ///
    /// ```
    /// # let address = format!("shm:/dev/shm/lockwright-doc-info-{}", std::process::id());
    /// # let client = lockwright::Client::open(&address).wait().unwrap();
    /// let info = lockwright::inspect::Inspector::open(&address)?.info()?;
    /// assert_eq!(info.keyed, "holders"); // ShiftLock whose holders are written down
    /// # std::fs::remove_file(&address["shm:".len()..])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn info(&self) -> Result<SpaceInfo, InspectError> {
        match self.looks()? {
            Looks::Local(local) => local.info(),
            Looks::OneSided(one_sided) => {
                Ok(one_sided.info(local::address_of(one_sided.path()), local::resident(one_sided.path())))
            }
            _ => Err(InspectError::Space("it is not in this host's shared memory".to_owned())),
        }
    }
}

impl Heat {
    #[doc(hidden)]
    pub fn none(name: LockName, kind: Kind) -> Self {
        let (holders, retained, waiters, grants, contended) = (0, 0, 0, 0, 0);
        Self { name, kind, holders, retained, waiters, grants, contended, waited: Duration::ZERO }
    }

    /// What can be seen of locks by who holds them and waits for them.
    #[doc(hidden)]
    pub fn of(entries: &[Entry]) -> Vec<Self> {
        let mut heat: Vec<Self> = Vec::new();
        for entry in entries {
            let kind = entry.kind();
            let mut of_name = heat.iter().rev().take_while(|seen| seen.name == entry.name);
            let behind = of_name.position(|seen| seen.kind == kind);
            if behind.is_none() {
                heat.push(Self::none(entry.name.clone(), kind));
            }
            let at = heat.len() - 1 - behind.unwrap_or(0);
            let seen = &mut heat[at];
            match entry.state {
                EntryState::Waiting => seen.waiters += 1,
                EntryState::Held => seen.holders += 1,
                EntryState::Retained => seen.retained += 1,
            }
        }
        heat.sort_by_key(|heat| std::cmp::Reverse(heat.waiters));
        heat
    }
}
