//! What a server must not forget when it is restarted, in one small file of text.
//!
//! | line | written | means |
//! |---|---|---|
//! | `run E accepts A` | at the start | this run, and the earliest run whose holders may claim what they held |
//! | `id I` | at the start | the server's identity, made with the file |
//! | `lease T` | at the start | clients of this run may hold on for so many milliseconds when they are cut off |
//! | `tokens N` | ahead of time | no token of N or above was given |
//! | `granted` | before the first grant | a session may hold something |
//! | `open` | before the first new grant after a restart | claims are over |
//! | `claims K` | before a claim is answered | a session of an earlier run has claimed, and may not hear of it: the next run hears it again |
//! | `heard K` | at the start | the same of the last run, until this one is open |
//! | `gone K` | before a lost session's locks go to others | a client that claims under this key has lost them |
//! | `broken T` | before a broken lock goes to others | the grant with this token is over |
//! | `clean` | at an orderly end | nobody held anything |
//!
//! Each line is on the disk before what it stands for happens. Locks themselves are not written down: their holders
//! know them, and claim them. The values of locks are in a file of their own (`values`). The file is written anew at every start, so it stays small; on a full disk the lines of a new
//! run follow those of the last one. While it cannot be written nothing new is granted, and everything else goes on: claims
//! need no line, since the run is not open yet.
//!
//! Tokens start at the clock's seconds times 2^22 or where the last run left off, whichever is higher, so that they
//! rise even if the file is lost. See decision 0010.

mod disk;
pub(crate) mod file;
mod holders;
mod journal;
mod values;

use self::disk::{Disk, FileDisk};
pub use self::journal::Journal;
#[cfg(feature = "cluster")]
pub(super) use self::values::of_texts;
use self::values::{Force, Values};
pub(super) use self::values::{LockValue, ValueKey, hex, key_text, unhex, value_text};
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const HEAD: &str = "lockwright serve 1";
/// Tokens per second of the clock: more grants than a server can give, or a NIC on one lock. Below 2^53 until 2038.
pub(super) const TOKENS_PER_SECOND: u64 = 1 << 22;
/// Tokens promised at a time: as many grants per write to the disk.
const BLOCK: u64 = 1 << 22;
/// Locks of a shard with a value: its next owner reads them all.
const VALUES_OF_SHARD: usize = 1024;
/// How often a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The memory of a server: a state machine that says what is to be on its [`Disk`].
#[derive(Clone, Debug)]
pub(super) struct Durable {
    disk: Disk,
    id: u128,
    pub(super) epoch: u64,
    accepts: u64,
    first_token: u64,
    tokens_below: u64,
    /// Tokens promised at a time.
    block: u64,
    /// Of a shard of a cluster, whose tokens are reserved in etcd: they are below this.
    reserved: Option<u64>,
    granted: bool,
    /// How long clients of this run, and of those that may claim, can hold on when they are cut off.
    lease: Duration,
    /// Sessions of the last run that may hold something; `None` if they are not known.
    held: Option<HashSet<u128>>,
    /// Those of them that have not claimed yet.
    awaited: Option<HashSet<u128>>,
    /// Sessions before the last run that have claimed in the last one, and those that have in this one.
    heard: HashSet<u128>,
    claims: HashSet<u128>,
    gone: HashSet<u128>,
    broken: HashSet<u64>,
    /// Tokens of broken grants that stayed with their clients: first and last.
    broken_blocks: Vec<(u64, u64)>,
    values: Values,
    /// The clock by which values are set, in milliseconds since 1970.
    pub(super) wall_ms: fn() -> u64,
    failed: Option<Failure>,
}

/// The file cannot be written.
#[derive(Clone, Debug)]
struct Failure {
    why: String,
    /// What must be written before anything is granted again.
    pending: String,
    /// When to try again.
    again: Option<Instant>,
}

/// What is read from an earlier run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Past {
    run: u64,
    accepts: u64,
    id: Option<u128>,
    lease: Duration,
    tokens: u64,
    granted: bool,
    open: bool,
    clean: bool,
    heard: HashSet<u128>,
    claims: HashSet<u128>,
    gone: HashSet<u128>,
    broken: HashSet<u64>,
    broken_blocks: Vec<(u64, u64)>,
}

impl Past {
    /// What still counts of a run that nobody has to be waited for: its identity and its tokens.
    fn without_holders(self) -> Self {
        Self { run: self.run, id: self.id, tokens: self.tokens, open: true, clean: true, ..Self::default() }
    }
}

impl Durable {
    /// Begins a run whose clients have this `lease` at the server. Without a path nothing is remembered, and nothing can be
    /// claimed. Also says whether there may be holders who have to be waited for.
    pub(super) fn begin(path: Option<&Path>, lease: Duration) -> io::Result<(Self, bool)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        match path {
            None => Ok((Self::next(None, lease, now, new_id), false)),
            Some(path) => Self::begin_on(Disk::file(FileDisk::open(path)?), lease, now, new_id),
        }
    }

    /// Begins a run on a disk in memory, at the time `now`.
    pub(super) fn begin_in(journal: Journal, lease: Duration, now: Duration) -> io::Result<(Self, bool)> {
        Self::begin_on(Disk::Memory(journal), lease, now, || 1)
    }

    fn begin_on(
        disk: Disk,
        lease: Duration,
        now: Duration,
        new_id: impl FnOnce() -> u128,
    ) -> io::Result<(Self, bool)> {
        let lines = disk.read()?;
        let foreign = || io::Error::new(io::ErrorKind::InvalidData, "this is not the state of a server");
        let past = lines.as_ref().map(|lines| parse(lines).ok_or_else(foreign)).transpose()?;
        let mut awaited = past.as_ref().is_some_and(|past| !past.clean && (past.granted || !past.open));
        let mut keys = past.as_ref().filter(|past| awaited && past.open).and_then(|past| {
            let mut keys = disk.read_holders(past.run)?;
            keys.retain(|key| !past.gone.contains(key));
            Some(keys)
        });
        awaited &= keys.as_ref().is_none_or(|keys| !keys.is_empty());
        let past = past.map(|past| if awaited { past } else { past.without_holders() });
        let mut next = Self::next(past, lease, now, new_id);
        next.held = keys.take().filter(|_| awaited);
        next.awaited.clone_from(&next.held);
        if let Disk::Memory(_) = disk {
            // Few, so that they are used up.
            next.block = 2;
            next.tokens_below = next.first_token + next.block;
        }
        next.disk = disk;
        next.values = Values::read(&next.disk)?;
        next.write_first(lines.as_deref(), !awaited)?;
        next.values.begin(&mut next.disk);
        Ok((next, awaited))
    }

    /// From now on it is told of every session that may hold something, so that the next run knows whom to wait for. `open`:
    /// nobody else does.
    pub(super) fn track_holders(&mut self, open: bool) {
        if self.failed.is_none() {
            self.disk.begin_holders(self.epoch, open);
        }
    }

    /// Writes the first lines of this run: into a new file, or behind the `lines` of the last run if there is no room for one.
    fn write_first(&mut self, lines: Option<&str>, open: bool) -> io::Result<()> {
        let text = self.text(open);
        match (self.disk.replace(&format!("{HEAD}\n{text}")), lines) {
            (Ok(()), _) => {}
            (Err(error), Some(lines)) if file::is_full(&error) => {
                self.disk.go_on(lines)?;
                if let Err(error) = self.disk.append(&text) {
                    self.fail_with(&error, &text);
                }
            }
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }

    /// The run after `past`.
    fn next(past: Option<Past>, lease: Duration, now: Duration, new_id: impl FnOnce() -> u128) -> Self {
        let past = past.unwrap_or_else(|| Past { open: true, ..Past::default() });
        let epoch = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(past.run + 1);
        let first_token = past.tokens.max(now.as_secs().saturating_mul(TOKENS_PER_SECOND)).max(1);
        Self {
            disk: Disk::None,
            id: past.id.unwrap_or_else(new_id),
            epoch,
            // A run that ended before it was open granted nothing: the claims it would have heard are heard again.
            accepts: if past.clean || past.run == 0 {
                epoch
            } else if past.open {
                past.run
            } else {
                past.accepts
            },
            first_token,
            tokens_below: first_token + BLOCK,
            block: BLOCK,
            reserved: None,
            granted: false,
            lease: lease.max(past.lease),
            held: None,
            awaited: None,
            heard: past.claims.into_iter().chain(past.heard.into_iter().filter(|_| !past.open)).collect(),
            claims: HashSet::new(),
            gone: past.gone,
            broken: past.broken,
            broken_blocks: past.broken_blocks,
            values: Values::default(),
            wall_ms,
            failed: None,
        }
    }

    fn text(&self, open: bool) -> String {
        let Self { epoch, accepts, tokens_below, gone, broken, broken_blocks, id, lease, .. } = self;
        let mut text = format!("run {epoch} accepts {accepts}\nid {id:x}\n");
        text.push_str(&format!("lease {}\ntokens {tokens_below}\n", lease.as_millis()));
        text.extend(self.heard.iter().filter(|_| !open).map(|key| format!("heard {key:x}\n")));
        text.extend(gone.iter().map(|key| format!("gone {key:x}\n")));
        text.extend(broken.iter().map(|token| format!("broken {token}\n")));
        text.extend(broken_blocks.iter().map(|(first, last)| format!("broken {first} {last}\n")));
        if open {
            text.push_str("open\n");
        }
        text
    }

    /// The server's identity, the same as long as its state is there.
    pub(super) const fn id(&self) -> u128 {
        self.id
    }

    /// How long those are waited for who may hold something and do not claim it.
    pub(super) const fn lease(&self) -> Duration {
        self.lease
    }

    /// The first token of this run.
    pub(super) const fn first_token(&self) -> u64 {
        self.first_token
    }

    fn fail_with(&mut self, error: &io::Error, pending: &str) {
        let why = format!("the server cannot write its state: {error}");
        tracing::error!("{why}; nothing is granted until it can");
        self.failed = Some(Failure { why, pending: pending.to_owned(), again: None });
    }

    /// Writes a line. `must`: if that fails, it is written before anything is granted again.
    fn note(&mut self, line: &str, must: bool) -> Result<(), String> {
        if let Some(failed) = &mut self.failed {
            if must {
                failed.pending.push_str(line);
                failed.pending.push('\n');
            }
            return Err(failed.why.clone());
        }
        let line = format!("{line}\n");
        if let Err(error) = self.disk.append(&line) {
            self.fail_with(&error, if must { &line } else { "" });
        }
        self.failed.as_ref().map_or(Ok(()), |failed| Err(failed.why.clone()))
    }

    /// It is `now`: a file that could not be written may have room again.
    #[inline]
    pub(super) fn retry(&mut self, now: Instant) {
        if self.failed.is_some() {
            self.retry_slow(now);
        }
    }

    #[cold]
    fn retry_slow(&mut self, now: Instant) {
        let Some(failed) = &mut self.failed else { return };
        let due = *failed.again.get_or_insert(now + RETRY);
        if now < due {
            return;
        }
        failed.again = Some(now + RETRY);
        // An empty line means nothing, and shows whether there is room.
        let lines = if failed.pending.is_empty() { "\n" } else { &failed.pending };
        if self.disk.append(lines).is_ok() {
            tracing::warn!("the server's state can be written again");
            self.failed = None;
        }
    }

    /// The disk is full from now on.
    #[cfg(test)]
    pub(super) fn fail(&mut self) {
        let (why, pending) = ("the disk is full".to_owned(), String::new());
        self.failed = Some(Failure { why, pending, again: None });
    }

    /// To be called before a client is told that it holds a lock with `token`.
    #[inline]
    pub(super) fn before_grant(&mut self, token: u64) -> Result<(), String> {
        if self.granted && token < self.tokens_below && self.failed.is_none() {
            return Ok(());
        }
        self.before_grant_slow(token)
    }

    #[cold]
    fn before_grant_slow(&mut self, token: u64) -> Result<(), String> {
        if !self.granted {
            self.note("granted", false)?;
            self.granted = true;
        }
        if let Some(reserved) = self.reserved {
            if token >= reserved {
                return Err("the server waits until etcd has reserved further tokens".to_owned());
            }
            // Told again and again how far they are used up, some time before they are.
            self.tokens_below = self.tokens_below.max(reserved.min(token + self.block / 16));
        } else if token >= self.tokens_below {
            let below = token + self.block;
            self.note(&format!("tokens {below}"), false)?;
            self.tokens_below = below;
        }
        self.failed.as_ref().map_or(Ok(()), |failed| Err(failed.why.clone()))
    }

    /// A shard of the cluster `id`, whose tokens are reserved up to `below`: nothing is remembered here.
    #[cfg(any(test, feature = "cluster"))]
    pub(super) fn of_shard(id: u128, epoch: u64, (first, below): (u64, u64), lease: Duration) -> Self {
        let mut shard = Self::next(None, lease, Duration::ZERO, || id);
        (shard.epoch, shard.first_token, shard.tokens_below) = (epoch, first, first);
        (shard.reserved, shard.granted) = (Some(below), true);
        shard
    }

    /// Tokens below this are reserved.
    pub(super) const fn reserve(&mut self, below: u64) {
        self.reserved = Some(below);
    }

    /// How far the tokens of a shard are used up, about.
    pub(super) fn used_tokens(&self) -> Option<u64> {
        self.reserved.map(|_| self.tokens_below)
    }

    /// Session `number` may hold something from now on, and will claim it under this key.
    pub(super) fn holds(&mut self, number: u32, key: u128) {
        self.disk.put_holder(number, key);
    }

    /// Session `number` is over, and its locks are others'.
    pub(super) fn holds_no_more(&mut self, number: u32) {
        self.disk.put_holder(number, 0);
    }

    /// The session with this key has claimed what it holds. True if it was the last one awaited.
    pub(super) fn has_claimed(&mut self, key: u128) -> bool {
        self.awaited.as_mut().is_some_and(|awaited| awaited.remove(&key) && awaited.is_empty())
    }

    /// Claims are over.
    pub(super) fn open(&mut self) -> Result<(), String> {
        self.note("open", true)?;
        self.disk.complete_holders();
        Ok(())
    }

    /// A session of an earlier run, which had this key, claims. It may not hear what comes of that: then it claims again.
    pub(super) fn claims(&mut self, key: u128) {
        if self.claims.insert(key) {
            // If it cannot be written, this run is not open for the next one either, which hears all claims again.
            let _ = self.note(&format!("claims {key:x}"), true);
        }
    }

    /// The session with this key is lost, and others may get what it held.
    pub(super) fn gone(&mut self, key: u128) -> Result<(), String> {
        self.note(&format!("gone {key:x}"), true)
    }

    /// The grant with this token is over, against its holder's will.
    pub(super) fn broken(&mut self, token: u64) -> Result<(), String> {
        self.note(&format!("broken {token}"), false)
    }

    /// So is one that stayed with its client, whose uses had these tokens: first and last.
    pub(super) fn broken_block(&mut self, (first, last): (u64, u64)) -> Result<(), String> {
        self.note(&format!("broken {first} {last}"), false)
    }

    /// The value of a lock.
    pub(super) fn value(&self, key: &ValueKey) -> Option<&LockValue> {
        self.values.get(key)
    }

    /// Sets it; if it is `written`, it is on the disk when this returns. The error says why it is as it was.
    pub(super) fn set_value(
        &mut self,
        key: &ValueKey,
        value: LockValue,
        written: bool,
    ) -> Result<(), String> {
        let disk = if written { &mut self.disk } else { &mut Disk::None };
        self.values.change(disk, key, value, Force::Yes)
    }

    /// Its holder has it open, or has closed it.
    pub(super) fn mark_value(&mut self, key: &ValueKey, value: LockValue) -> Result<(), String> {
        self.values.change(&mut self.disk, key, value, Force::No)
    }

    /// What is in etcd of a shard's value.
    pub(super) fn put_value(&mut self, key: ValueKey, value: LockValue) {
        self.values.put(key, value);
    }

    /// Whether another lock of a shard can have a value.
    pub(super) fn has_room_for(&self, key: &ValueKey) -> bool {
        self.values.has_room(key, VALUES_OF_SHARD)
    }

    /// Whether values outlive the server.
    pub(super) const fn keeps_values(&self) -> bool {
        self.disk.is_durable() || self.is_of_shard()
    }

    /// Whether this is a shard of a cluster, which another server goes on with.
    pub(super) const fn is_of_shard(&self) -> bool {
        self.reserved.is_some()
    }

    /// The end; `clean` if nobody holds anything.
    pub(super) fn end(&mut self, clean: bool) {
        if clean {
            // If it cannot be written, the next run waits for nobody in vain.
            let _ = self.note("clean", false);
        }
    }

    /// The disk in memory, if that is where it is.
    pub(super) const fn journal(&self) -> Option<&Journal> {
        self.disk.journal()
    }

    /// See [`Journal::die_at`].
    pub(super) const fn die_at(&mut self, dies: Option<(u32, bool)>) {
        if let Disk::Memory(journal) = &mut self.disk {
            journal.die_at(dies);
        }
    }

    /// Whether the client that held a lock with `token` in run `epoch`, under `key`, can still be its holder. Keys are known to
    /// their clients alone, so one that no session of the last run had is made up.
    pub(super) fn accepts(&self, epoch: u64, key: u128, token: u64) -> bool {
        let held = || self.held.as_ref().is_none_or(|held| held.contains(&key));
        ((self.accepts..self.epoch).contains(&epoch) && held() || self.heard.contains(&key))
            && token < self.first_token
            && !self.gone.contains(&key)
            && !self.broken.contains(&token)
            && !self.broken_blocks.iter().any(|(first, last)| (*first..=*last).contains(&token))
    }
}

fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn new_id() -> u128 {
    let random = || RandomState::new().hash_one(SystemTime::now());
    u128::from(random()) << 64 | u128::from(random())
}

/// What decides about anything later; not when a disk that failed is tried again.
impl Hash for Durable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            disk,
            id,
            epoch,
            accepts,
            first_token,
            tokens_below,
            granted,
            held,
            awaited,
            gone,
            broken,
            broken_blocks,
            values,
            ..
        } = self;
        (disk.journal(), id, epoch, accepts, first_token, tokens_below, granted).hash(state);
        let sorted = |keys: &HashSet<u128>| keys.iter().copied().collect::<BTreeSet<_>>();
        (sorted(&self.heard), sorted(&self.claims)).hash(state);
        (held.as_ref().map(sorted), awaited.as_ref().map(sorted)).hash(state);
        (sorted(gone), broken.iter().collect::<BTreeSet<_>>()).hash(state);
        (broken_blocks, values, self.failed.as_ref().map(|failed| &failed.pending)).hash(state);
    }
}

/// `None` if it is something else. The lines of the last run count, and the highest tokens.
fn parse(lines: &str) -> Option<Past> {
    let mut lines = lines.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let mut past = Past::default();
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["run", run, "accepts", accepts] => {
                let (run, accepts) = (run.parse().ok()?, accepts.parse().ok()?);
                past = Past { run, accepts, id: past.id, tokens: past.tokens, ..Past::default() };
            }
            ["id", id] => past.id = Some(u128::from_str_radix(id, 16).ok()?),
            ["lease", ms] => past.lease = Duration::from_millis(ms.parse().ok()?),
            ["tokens", below] => past.tokens = past.tokens.max(below.parse().ok()?),
            ["granted"] => past.granted = true,
            ["open"] => past.open = true,
            ["clean"] => past.clean = true,
            ["claims", key] => {
                past.claims.insert(u128::from_str_radix(key, 16).ok()?);
            }
            ["heard", key] => {
                past.heard.insert(u128::from_str_radix(key, 16).ok()?);
            }
            ["gone", key] => {
                past.gone.insert(u128::from_str_radix(key, 16).ok()?);
            }
            ["broken", token] => {
                past.broken.insert(token.parse().ok()?);
            }
            ["broken", first, last] => {
                past.broken_blocks.push((first.parse().ok()?, last.parse().ok()?));
            }
            [""] => {}
            _ => return None,
        }
    }
    (past.run != 0).then_some(past)
}

#[cfg(test)]
mod tests;
