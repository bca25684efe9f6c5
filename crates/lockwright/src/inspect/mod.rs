//! Looking into a space: who holds what, who waits for what, since when; and taking a lock away from somebody.
//!
//! On shared memory, everything shown here stands in the space itself, written there by the clients; a server is asked.
//! Looking disturbs nobody.

use crate::client::{Address, ClientOptions};
use crate::error::OpenError;
use crate::home::cards::{self, Card, Sheets, State};
use crate::home::members::{Members, NAMES};
use crate::home::{Kind, shm};
use crate::name::{LockName, NameError};
use crate::remote::look::Looker;
use lockwright_fabric::FabricError;
use lockwright_fabric::backend::shm::{ClientInfo, NameInfo, ShmSpace, SpaceError, space_path};
use lockwright_fabric::observe::Mode;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A space that is looked into.
///
/// ```
/// use lockwright::{Client, inspect::Inspector};
/// # let address = format!("shm:/dev/shm/lockwright-doc-inspect-{}", std::process::id());
/// let client = Client::open(&address)?;
/// let guard = client.mutex("orders/42")?.lock().wait()?;
/// let entries = Inspector::open(&address)?.entries()?;
/// assert_eq!(entries[0].name.to_string(), "orders/42");
/// assert_eq!(entries[0].token, Some(guard.token()));
/// assert_eq!(entries[0].pid, std::process::id());
/// # std::fs::remove_file(&address["shm:".len()..])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Inspector(Looks);

#[derive(Debug)]
enum Looks {
    Local(Local),
    Remote(Looker),
}

/// A space of this host.
#[derive(Debug)]
struct Local {
    space: ShmSpace,
    members: Members,
}

/// One line of a listing: somebody who holds a lock or waits for it.
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
    /// The fencing token, for those who hold it.
    pub token: Option<u64>,
    /// How long it has been in this state.
    pub age: Duration,
    /// The client's process.
    pub pid: u32,
    /// The client's host.
    pub host: String,
    /// The client's program.
    pub program: String,
    /// Whether the client is alive. A dead one's locks go to whoever asks for them.
    pub alive: bool,
}

/// What a client does with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EntryState {
    /// It holds it.
    Held,
    /// It waits for it, or gave up and has not been served yet.
    Waiting,
}

/// What a lock has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heat {
    /// The lock.
    pub name: LockName,
    /// Whether it is a range lock.
    pub ranges: bool,
    /// How many hold it now.
    pub holders: u64,
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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The space cannot be used.
    #[error("the space cannot be used: {0}")]
    Space(String),
    /// It has no room for one who looks.
    #[error("the space has no room for another client: {0}")]
    NoSeat(String),
}

/// Why a lock was not broken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BreakError {
    /// There cannot be such a lock.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nobody has ever used that name, or nobody does now.
    #[error("there is no lock called {0}")]
    NoSuchLock(LockName),
    /// The grant is over: somebody else may hold the lock now, and is left alone.
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

impl Inspector {
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
            Address::Shm(path) => Local::open(&path).map(Looks::Local).map(Self),
            Address::Served { by, server, space } => {
                Looker::open(options.remote(by, server, space)?).map(Looks::Remote).map(Self)
            }
            Address::Mem => Err(OpenError::Address(address.to_owned())),
        }
    }

    /// Everybody who holds a lock or waits for one, by name; holders first, then those who have waited longest.
    ///
    /// # Errors
    /// If the space cannot be used.
    ///
    /// ```
    /// # let address = format!("shm:/dev/shm/lockwright-doc-entries-{}", std::process::id());
    /// # let client = lockwright::Client::open(&address).unwrap();
    /// assert!(lockwright::inspect::Inspector::open(&address)?.entries()?.is_empty());
    /// # std::fs::remove_file(&address["shm:".len()..])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        match &self.0 {
            Looks::Local(local) => local.entries(),
            Looks::Remote(looker) => looker.entries(),
        }
    }

    /// What the locks in use have seen; the busiest first. On shared memory grants are counted since the lock was last
    /// recovered, and nobody counts waits: `contended` and `waited` are zero there.
    ///
    /// # Errors
    /// If the space cannot be used.
    ///
    /// ```
    /// # use lockwright::server::{Server, ServerOptions};
    /// # let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap()))?;
    /// # let address = format!("tcp://{}", server.address());
    /// # let client = lockwright::Client::open(&address)?;
    /// drop(client.mutex("a")?.lock().wait()?);
    /// let heat = lockwright::inspect::Inspector::open(&address)?.heat()?;
    /// assert_eq!((heat[0].name.to_string(), heat[0].grants), ("a".to_owned(), 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        match &self.0 {
            Looks::Local(local) => local.heat(),
            Looks::Remote(looker) => looker.heat(),
        }
    }

    /// Takes the lock called `name` away from whoever holds it with `token`, who will learn that it was lost. Nobody
    /// else is touched: if that grant is over, nothing happens. On shared memory, a
    /// shared lock is taken from all who share it.
    ///
    /// # Errors
    /// If there is no such grant.
    ///
    /// ```
    /// use lockwright::{Client, GuardState, inspect::Inspector};
    /// # let address = format!("shm:/dev/shm/lockwright-doc-break-{}", std::process::id());
    /// let client = Client::open(&address)?;
    /// let guard = client.mutex("stuck")?.lock().wait()?;
    /// let inspector = Inspector::open(&address)?;
    /// assert!(inspector.break_grant("stuck", guard.token() + 1).is_err());
    /// inspector.break_grant("stuck", guard.token())?;
    /// assert_eq!(guard.state(), GuardState::Lost);
    /// # std::fs::remove_file(&address["shm:".len()..])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn break_grant(&self, name: impl AsRef<[u8]>, token: u64) -> Result<(), BreakError> {
        match &self.0 {
            Looks::Local(local) => local.break_grant(name, token),
            Looks::Remote(looker) => looker.break_grant(LockName::new(name)?, token),
        }
    }

    /// What the space is.
    ///
    /// # Errors
    /// If the space cannot be used, or is not one of this host.
    ///
    /// ```
    /// # let address = format!("shm:/dev/shm/lockwright-doc-info-{}", std::process::id());
    /// # let client = lockwright::Client::open(&address).unwrap();
    /// let info = lockwright::inspect::Inspector::open(&address)?.info()?;
    /// assert_eq!(info.keyed, "kept"); // ShiftLock whose holders are written down
    /// # std::fs::remove_file(&address["shm:".len()..])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn info(&self) -> Result<SpaceInfo, InspectError> {
        match &self.0 {
            Looks::Local(local) => local.info(),
            Looks::Remote(_) => Err(InspectError::Space("it is not in this host's shared memory".to_owned())),
        }
    }
}

impl Heat {
    fn none(name: LockName, ranges: bool) -> Self {
        Self { name, ranges, holders: 0, waiters: 0, grants: 0, contended: 0, waited: Duration::ZERO }
    }

    /// What can be seen of locks by who holds them and waits for them.
    pub(crate) fn of(entries: &[Entry]) -> Vec<Self> {
        let mut heat: Vec<Self> = Vec::new();
        for entry in entries {
            let ranges = entry.range.is_some();
            if heat.last().is_none_or(|last| last.name != entry.name || last.ranges != ranges) {
                heat.push(Self::none(entry.name.clone(), ranges));
            }
            let last = heat.last_mut().expect("just seen to");
            match entry.state {
                EntryState::Waiting => last.waiters += 1,
                EntryState::Held => last.holders += 1,
            }
        }
        heat.sort_by_key(|heat| std::cmp::Reverse(heat.waiters));
        heat
    }
}

impl Local {
    fn open(path: &Path) -> Result<Self, OpenError> {
        /// Whoever looks holds nothing that could be lost.
        const LEASE_NS: u64 = u64::MAX;
        let space = shm::open(path, false)?;
        let refuse = |why: String| OpenError::Space { space: path.display().to_string(), why };
        let members = Members::new(space.clone(), LEASE_NS).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { space, members })
    }

    fn names(&self) -> Result<Vec<NameInfo>, InspectError> {
        let member = self.members.any().map_err(|error| InspectError::NoSeat(error.to_string()))?;
        Ok(member.names().all()?)
    }

    fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        let names: HashMap<_, _> = self.names()?.into_iter().map(|info| (info.lock.id, info)).collect();
        let clients: HashMap<_, _> =
            self.space.clients().into_iter().map(|client| (client.peer, client)).collect();
        let now = self.space.now();
        let mut entries = Vec::new();
        let sheets = Sheets::new(&self.space);
        for sheet in sheets.all() {
            let Some(client) = clients.get(&sheet.peer) else { continue };
            let alive = client.alive && !sheet.is_expired(now);
            for card in sheets.cards(sheet) {
                let Some(info) = names.get(&card.claim.lock) else { continue };
                entries.extend(entry(&card, info, client, alive, now.since(card.since)));
            }
        }
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| (entry.name.clone(), entry.state, std::cmp::Reverse(entry.age));
            key(a).cmp(&key(b))
        });
        Ok(entries)
    }

    /// What is seen of holders and waiters, and how often locks were given back. Also of locks that nobody holds now.
    fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        let member = self.members.any().map_err(|error| InspectError::NoSeat(error.to_string()))?;
        let mut seen: HashMap<_, _> = Heat::of(&self.entries()?)
            .into_iter()
            .map(|heat| ((heat.name.clone(), heat.ranges), heat))
            .collect();
        let mut all = Vec::new();
        for info in self.names()? {
            let Ok(name) = LockName::new(&info.name) else { continue };
            for kind in [Kind::Keyed, Kind::Ranges] {
                let ranges = kind == Kind::Ranges;
                let mut heat =
                    seen.remove(&(name.clone(), ranges)).unwrap_or_else(|| Heat::none(name.clone(), ranges));
                heat.grants = member.releases(kind, info.lock.id)?.saturating_add(heat.holders);
                if heat.grants > 0 || heat.waiters > 0 {
                    all.push(heat);
                }
            }
        }
        all.sort_by_key(|heat| std::cmp::Reverse((heat.waiters, heat.grants)));
        Ok(all)
    }

    fn break_grant(&self, name: impl AsRef<[u8]>, token: u64) -> Result<(), BreakError> {
        let name = LockName::new(name)?;
        let infos = self.names()?;
        let info = infos.iter().find(|info| info.name == name.as_bytes());
        let Some(info) = info else { return Err(BreakError::NoSuchLock(name)) };
        let not_held = BreakError::NotHeld { name, token };
        let Some(own) = token.checked_sub(info.lock.token_base) else { return Err(not_held) };
        let holds = |card: &Card| card.state.holds() && card.claim.lock == info.lock.id && card.token == own;
        let sheets = Sheets::new(&self.space);
        let card = sheets.all().find_map(|sheet| sheets.cards(sheet).find(holds));
        let Some(card) = card else { return Err(not_held) };
        let member = self.members.any().map_err(|error| InspectError::NoSeat(error.to_string()))?;
        let broken = match card.kind {
            Kind::Keyed => member.take_away(card.claim.lock, card.claim.mode, own),
            Kind::Ranges => member.strike(&card),
        };
        if broken.map_err(InspectError::from)? { Ok(()) } else { Err(not_held) }
    }

    fn info(&self) -> Result<SpaceInfo, InspectError> {
        let member = self.members.any().map_err(|error| InspectError::NoSeat(error.to_string()))?;
        let path = self.space.path().to_owned();
        let now = self.space.now();
        // Not this one, which only looks.
        let sheets = Sheets::new(&self.space);
        let others = sheets.all().filter(|sheet| sheet.peer != member.peer());
        Ok(SpaceInfo {
            address: address_of(&path),
            keyed: "kept",
            ranges: "kept-ranges",
            clients: others.filter(|sheet| member.book().is_alive(sheet, now)).count(),
            max_clients: cards::SLOTS,
            names: member.names().len(),
            max_names: NAMES,
            age: Duration::from_nanos(now.since(self.space.created())),
            resident_bytes: resident(&path),
            path,
        })
    }
}

fn entry(card: &Card, info: &NameInfo, client: &ClientInfo, alive: bool, age_ns: u64) -> Option<Entry> {
    let (state, token) = match card.state {
        State::Taking if card.token == 0 => return None,
        State::Taking | State::Held => (EntryState::Held, Some(info.lock.token_base + card.token)),
        State::Waiting => (EntryState::Waiting, None),
        State::Struck => return None,
    };
    let (host, program) = client.label.split_once(' ').unwrap_or((&client.label, ""));
    Some(Entry {
        name: LockName::new(&info.name).ok()?,
        state,
        shared: card.claim.mode == Mode::Shared,
        range: (card.kind == Kind::Ranges).then_some(card.claim.start..card.claim.end),
        token,
        age: Duration::from_nanos(age_ns),
        pid: client.pid,
        host: host.to_owned(),
        program: program.to_owned(),
        alive,
    })
}

/// The spaces of this user on this host, by address.
///
/// ```
/// for address in lockwright::inspect::spaces() {
///     println!("{address}");
/// }
/// ```
pub fn spaces() -> Vec<String> {
    let Some((folder, prefix, suffix)) = usual_place() else { return Vec::new() };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut spaces: Vec<_> = names
        .filter_map(|name| Some(format!("shm:{}", name.strip_prefix(&prefix)?.strip_suffix(&suffix)?)))
        .collect();
    spaces.sort();
    spaces
}

fn address_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let usual = usual_place().filter(|(folder, ..)| path.parent() == Some(folder));
    let name = usual
        .and_then(|(_, prefix, suffix)| Some(name.strip_prefix(&prefix)?.strip_suffix(&suffix)?.to_owned()));
    name.map_or_else(|| format!("shm:{}", path.display()), |name| format!("shm:{name}"))
}

/// The folder of this user's spaces, and how their files' names begin and end.
fn usual_place() -> Option<(PathBuf, String, String)> {
    const PROBE: &str = "PROBE";
    let path = space_path(PROBE).ok()?;
    let name = path.file_name()?.to_str()?;
    let (prefix, suffix) = name.split_once(PROBE)?;
    Some((path.parent()?.to_owned(), prefix.to_owned(), suffix.to_owned()))
}

fn resident(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(0, |file| file.blocks() * 512)
}
