//! What a server must not forget when it is restarted, in one small file of text.
//!
//! | line | written | means |
//! |---|---|---|
//! | `run E accepts A` | at the start | this run, and the earliest run whose holders may claim what they held |
//! | `id I` | at the start | the server's identity, made with the file |
//! | `lease T` | at the start | clients of this run may hold on for so many milliseconds when they are cut off |
//! | `tokens N` | ahead of time | no token of N or above was given |
//! | `granted` | before the first grant | somebody may hold something |
//! | `open` | before the first new grant after a restart | claims are over |
//! | `gone K` | before a lost session's locks go to others | whoever claims under this key has lost them |
//! | `broken T` | before a broken lock goes to others | the grant with this token is over |
//! | `clean` | at an orderly end | nobody held anything |
//!
//! Each line is on the disk before what it stands for happens. Locks themselves are not written down: their holders
//! know them, and claim them. The file is written anew at every start, so it stays small; on a full disk the lines of a new
//! run follow those of the last one. While it cannot be written nothing new is granted, and everything else goes on: claims
//! need no line, since the run is not open yet.
//!
//! Tokens start at the clock's seconds times 2^22 or where the last run left off, whichever is higher, so that they
//! rise even if the file is lost. See decision 0021.

mod file;
mod holders;

use self::file::StateFile;
use self::holders::Holders;
use crate::lock_table::MAX_SESSIONS;
use lockwright_fabric::backend::shm::open_regular;
use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const HEAD: &str = "lockwright serve 1";
/// Tokens per second of the clock: more grants than a server can give, or a NIC on one lock. Below 2^53 until 2038.
pub(super) const TOKENS_PER_SECOND: u64 = 1 << 22;
/// Tokens promised at a time: as many grants per write to the disk.
const BLOCK: u64 = 1 << 22;
/// How often a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The memory of a server.
#[derive(Debug)]
pub(super) struct Durable {
    file: Option<StateFile>,
    path: Option<PathBuf>,
    /// Who may hold something; `None` if that is not written down.
    holders: Option<Holders>,
    /// Nobody else may serve from the same file.
    _alone: Option<File>,
    id: u128,
    pub(super) epoch: u64,
    accepts: u64,
    first_token: u64,
    tokens_below: u64,
    granted: bool,
    /// How long clients of this run, and of those that may claim, can hold on when they are cut off.
    lease: Duration,
    /// Sessions of the last run that may hold something and have not claimed yet; `None` if they are not known.
    awaited: Option<HashSet<u128>>,
    gone: HashSet<u128>,
    broken: HashSet<u64>,
    failed: Option<Failure>,
}

/// The file cannot be written.
#[derive(Debug)]
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
    gone: HashSet<u128>,
    broken: HashSet<u64>,
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
        let Some(path) = path else { return Ok((Self::next(None, lease), false)) };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        file::check(path)?;
        let alone = alone(path)?;
        let lines = file::read(path)?;
        let foreign = || io::Error::new(io::ErrorKind::InvalidData, "this is not the state of a server");
        let past = lines.as_ref().map(|lines| parse(lines).ok_or_else(foreign)).transpose()?;
        let mut awaited = past.as_ref().is_some_and(|past| !past.clean && (past.granted || !past.open));
        let mut keys = past.as_ref().filter(|past| awaited && past.open).and_then(|past| {
            let mut keys = holders::read(path, past.run)?;
            keys.retain(|key| !past.gone.contains(key));
            Some(keys)
        });
        awaited &= keys.as_ref().is_none_or(|keys| !keys.is_empty());
        let mut next =
            Self::next(past.map(|past| if awaited { past } else { past.without_holders() }), lease);
        next._alone = Some(alone);
        next.awaited = keys.take().filter(|_| awaited);
        next.write_first(path, lines.as_deref(), !awaited)?;
        next.path = Some(path.to_owned());
        Ok((next, awaited))
    }

    /// From now on it is told of every session that may hold something, so that the next run knows whom to wait for. `open`:
    /// nobody else does.
    pub(super) fn track_holders(&mut self, open: bool) {
        if let Some(path) = self.path.as_ref().filter(|_| self.failed.is_none()) {
            self.holders = Holders::begin(path, self.epoch, MAX_SESSIONS as u32 + 2, open);
        }
    }

    /// Writes the first lines of this run: into a new file, or behind the `lines` of the last run if there is no room for one.
    fn write_first(&mut self, path: &Path, lines: Option<&str>, open: bool) -> io::Result<()> {
        let text = self.text(open);
        match (StateFile::replace(path, &format!("{HEAD}\n{text}")), lines) {
            (Ok(file), _) => self.file = Some(file),
            (Err(error), Some(lines)) if file::is_full(&error) => {
                let mut file = StateFile::go_on(path, lines)?;
                if let Err(error) = file.append(&text) {
                    self.fail_with(&error, &text);
                }
                self.file = Some(file);
            }
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }

    /// The run after `past`.
    fn next(past: Option<Past>, lease: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let past = past.unwrap_or_else(|| Past { open: true, ..Past::default() });
        let epoch = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(past.run + 1);
        let first_token = past.tokens.max(now.as_secs().saturating_mul(TOKENS_PER_SECOND)).max(1);
        Self {
            file: None,
            path: None,
            holders: None,
            _alone: None,
            id: past.id.unwrap_or_else(new_id),
            epoch,
            // A run that ended before it was open gave nothing away: whoever it would have heard is heard again.
            accepts: if past.clean || past.run == 0 {
                epoch
            } else if past.open {
                past.run
            } else {
                past.accepts
            },
            first_token,
            tokens_below: first_token + BLOCK,
            granted: false,
            lease: lease.max(past.lease),
            awaited: None,
            gone: past.gone,
            broken: past.broken,
            failed: None,
        }
    }

    fn text(&self, open: bool) -> String {
        let Self { epoch, accepts, tokens_below, gone, broken, id, lease, .. } = self;
        let mut text = format!("run {epoch} accepts {accepts}\nid {id:x}\n");
        text.push_str(&format!("lease {}\ntokens {tokens_below}\n", lease.as_millis()));
        text.extend(gone.iter().map(|key| format!("gone {key:x}\n")));
        text.extend(broken.iter().map(|token| format!("broken {token}\n")));
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
        let Some(file) = &mut self.file else { return Ok(()) };
        let line = format!("{line}\n");
        if let Err(error) = file.append(&line) {
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
        let (Some(failed), Some(file)) = (&mut self.failed, &mut self.file) else { return };
        let due = *failed.again.get_or_insert(now + RETRY);
        if now < due {
            return;
        }
        failed.again = Some(now + RETRY);
        // An empty line means nothing, and shows whether there is room.
        let lines = if failed.pending.is_empty() { "\n" } else { &failed.pending };
        if file.append(lines).is_ok() {
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

    /// To be called before somebody is told that it holds a lock with `token`.
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
        if token >= self.tokens_below {
            let below = token + BLOCK;
            self.note(&format!("tokens {below}"), false)?;
            self.tokens_below = below;
        }
        self.failed.as_ref().map_or(Ok(()), |failed| Err(failed.why.clone()))
    }

    /// Session `number` may hold something from now on, and will claim it under this key.
    pub(super) fn holds(&mut self, number: u32, key: u128) {
        self.put_holder(number, key);
    }

    /// Session `number` is over, and its locks are others'.
    pub(super) fn holds_no_more(&mut self, number: u32) {
        self.put_holder(number, 0);
    }

    fn put_holder(&mut self, number: u32, key: u128) {
        if let Some(holders) = self.holders.take_if(|holders| holders.put(number, key).is_err()) {
            holders.discard();
        }
    }

    /// Whoever had this key has claimed what it holds. Says whether nobody is awaited any more.
    pub(super) fn has_claimed(&mut self, key: u128) -> bool {
        self.awaited.as_mut().is_some_and(|awaited| awaited.remove(&key) && awaited.is_empty())
    }

    /// Claims are over.
    pub(super) fn open(&mut self) -> Result<(), String> {
        self.note("open", true)?;
        if let Some(holders) = self.holders.take_if(|holders| holders.complete().is_err()) {
            holders.discard();
        }
        Ok(())
    }

    /// The session with this key is lost, and others may get what it held.
    pub(super) fn gone(&mut self, key: u128) -> Result<(), String> {
        self.note(&format!("gone {key:x}"), true)
    }

    /// The grant with this token is over, against its holder's will.
    pub(super) fn broken(&mut self, token: u64) -> Result<(), String> {
        self.note(&format!("broken {token}"), false)
    }

    /// The end; `clean` if nobody holds anything.
    pub(super) fn end(&mut self, clean: bool) {
        if clean {
            // If it cannot be written, the next run waits for nobody in vain.
            let _ = self.note("clean", false);
        }
    }

    /// Whether whoever held a lock with `token` in run `epoch`, under `key`, can still be its holder.
    pub(super) fn accepts(&self, epoch: u64, key: u128, token: u64) -> bool {
        (self.accepts..self.epoch).contains(&epoch)
            && token < self.first_token
            && !self.gone.contains(&key)
            && !self.broken.contains(&token)
    }
}

fn new_id() -> u128 {
    let random = || RandomState::new().hash_one(SystemTime::now());
    u128::from(random()) << 64 | u128::from(random())
}

/// A lock on the file's neighbour: the file itself is replaced at every start.
fn alone(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = open_regular(Path::new(&name), true)?;
    file.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => io::Error::other("another server uses it"),
        std::fs::TryLockError::Error(error) => error,
    })?;
    Ok(file)
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
            ["gone", key] => {
                past.gone.insert(u128::from_str_radix(key, 16).ok()?);
            }
            ["broken", token] => {
                past.broken.insert(token.parse().ok()?);
            }
            [""] => {}
            _ => return None,
        }
    }
    (past.run != 0).then_some(past)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lockwright-durable-{}-{name}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            Self(path)
        }

        fn begin(&self) -> (Durable, bool) {
            Durable::begin(Some(&self.0), Duration::from_secs(8)).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
            let _ = std::fs::remove_file(format!("{}.lock", self.0.display()));
            let _ = std::fs::remove_file(format!("{}.sessions", self.0.display()));
        }
    }

    #[test]
    fn tokens_rise_from_run_to_run_and_only_one_server_has_the_file() {
        let scratch = Scratch::new("tokens");
        let (mut first, awaited) = scratch.begin();
        assert!(!awaited, "nobody can hold anything before the first run");
        let far = first.first_token() + 10 * BLOCK;
        first.before_grant(far).unwrap();
        assert!(
            Durable::begin(Some(&scratch.0), Duration::ZERO)
                .unwrap_err()
                .to_string()
                .contains("another server")
        );
        drop(first);
        let (second, awaited) = scratch.begin();
        assert!(awaited && second.first_token() > far);
    }

    #[test]
    fn only_holders_of_the_last_open_run_are_heard_and_not_those_who_lost_their_locks() {
        let scratch = Scratch::new("accepts");
        let (mut first, _) = scratch.begin();
        let token = first.first_token();
        first.before_grant(token).unwrap();
        first.gone(7).unwrap();
        first.broken(token + 1).unwrap();
        let run = first.epoch;
        drop(first);
        let (second, awaited) = scratch.begin();
        assert!(awaited && second.accepts(run, 1, token));
        assert!(!second.accepts(run, 7, token), "its session was lost");
        assert!(!second.accepts(run, 1, token + 1), "its lock was broken");
        assert!(!second.accepts(second.epoch, 1, token), "this run's own sessions claim nothing");
        assert!(!second.accepts(run, 1, second.first_token()), "nobody has tokens of the future");
        drop(second);
        // The second run ended before it was open: nothing was given away.
        let (mut third, awaited) = scratch.begin();
        assert!(awaited && third.accepts(run, 1, token) && !third.accepts(run, 7, token));
        third.open().unwrap();
        third.before_grant(third.first_token()).unwrap();
        drop(third);
        let (fourth, awaited) = scratch.begin();
        assert!(awaited && !fourth.accepts(run, 1, token), "others may have had the lock since");
    }

    /// No state file can be made from now on.
    fn fill_the_disk() {
        file::FULL.set(true);
    }

    #[test]
    fn a_server_that_is_restarted_on_a_full_disk_goes_on_in_the_file_that_is_there() {
        let scratch = Scratch::new("full");
        let (mut first, _) = scratch.begin();
        let token = first.first_token();
        first.before_grant(token).unwrap();
        first.gone(7).unwrap();
        let (run, id) = (first.epoch, first.id());
        drop(first);
        fill_the_disk();
        let (mut second, awaited) = scratch.begin();
        assert!(awaited && second.accepts(run, 1, token) && !second.accepts(run, 7, token));
        second.open().unwrap();
        second.before_grant(second.first_token()).unwrap();
        let (run, token) = (second.epoch, second.first_token());
        drop(second);
        let (third, awaited) = scratch.begin();
        assert!(awaited && third.accepts(run, 1, token) && third.first_token() > token && third.id() == id);
    }

    #[test]
    fn while_the_state_cannot_be_written_nothing_is_granted_and_later_it_is_again() {
        let scratch = Scratch::new("later");
        let (mut durable, _) = scratch.begin();
        let token = durable.first_token();
        let real = durable.file.replace(StateFile::go_on(Path::new("/dev/full"), "").unwrap());
        assert!(durable.before_grant(token).unwrap_err().contains("cannot write its state"));
        assert!(durable.gone(7).is_err());
        let now = Instant::now();
        durable.retry(now);
        durable.retry(now + 2 * RETRY);
        assert!(durable.before_grant(token).is_err(), "there is no room yet");
        durable.file = real;
        durable.retry(now + 4 * RETRY);
        durable.before_grant(token).unwrap();
        let run = durable.epoch;
        drop(durable);
        assert!(!scratch.begin().0.accepts(run, 7, token), "what had to be written was");
    }

    #[test]
    fn what_is_not_a_regular_file_is_no_state_and_left_alone() {
        for path in ["/dev/full", "/dev/zero"] {
            let error = Durable::begin(Some(Path::new(path)), Duration::ZERO).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{path}: {error}");
            assert!(!PathBuf::from(format!("{path}.lock")).exists(), "{path}");
        }
    }

    #[test]
    fn whoever_holds_nothing_is_not_waited_for_and_whoever_does_only_until_it_has_claimed() {
        let scratch = Scratch::new("holders");
        let (mut first, _) = scratch.begin();
        first.track_holders(true);
        first.before_grant(first.first_token()).unwrap();
        first.holds(1, 11);
        first.holds(2, 12);
        first.holds(3, 13);
        first.holds_no_more(3);
        first.gone(12).unwrap();
        drop(first);
        let (mut second, awaited) = scratch.begin();
        second.track_holders(false);
        assert!(awaited && !second.has_claimed(99));
        assert!(second.has_claimed(11), "the others are gone");
        drop(second);
        let (mut third, awaited) = scratch.begin();
        third.track_holders(false);
        assert!(awaited && !third.has_claimed(11), "after a run that was not open everybody is waited for");
        third.open().unwrap();
        third.before_grant(third.first_token()).unwrap();
        drop(third);
        assert!(!scratch.begin().1, "nobody holds anything");
    }

    #[test]
    fn nobody_is_waited_for_after_an_orderly_end_or_a_run_without_grants() {
        let scratch = Scratch::new("clean");
        let (mut first, _) = scratch.begin();
        let token = first.first_token();
        first.before_grant(token).unwrap();
        first.end(true);
        drop(first);
        let (second, awaited) = scratch.begin();
        assert!(!awaited && second.first_token() > token);
        drop(second);
        assert!(!scratch.begin().1);
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_count_and_another_file_is_refused() {
        let scratch = Scratch::new("cut");
        std::fs::write(&scratch.0, "lockwright serve 1\nrun 5 accepts 5\ntokens 9\nopen\ngran").unwrap();
        let past = parse(&file::read(&scratch.0).unwrap().unwrap()).unwrap();
        assert!(past.open && !past.granted && past.tokens == 9);
        assert_eq!(parse("something else\n"), None);
        assert_eq!(parse("lockwright serve 1\nrun 5 accepts 5\nbananas 3\n"), None);
        assert_eq!(parse(""), None);
    }
}
