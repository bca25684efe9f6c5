//! What a server must not forget when it is restarted, in one small file of text.
//!
//! | line | written | means |
//! |---|---|---|
//! | `run E accepts A` | at the start | this run, and the earliest run whose holders may claim what they held |
//! | `tokens N` | ahead of time | no token of N or above was given |
//! | `granted` | before the first grant | somebody may hold something |
//! | `open` | before the first new grant after a restart | claims are over |
//! | `gone K` | before a lost session's locks go to others | whoever claims under this key has lost them |
//! | `broken T` | before a broken lock goes to others | the grant with this token is over |
//! | `clean` | at an orderly end | nobody held anything |
//!
//! Each line is on the disk before what it stands for happens. Locks themselves are not written down: their holders
//! know them, and claim them. The file is written anew at every start, so it stays small.
//!
//! Tokens start at the clock's seconds times 2^22 or where the last run left off, whichever is higher, so that they
//! rise even if the file is lost. See decision 0021.

use lockwright_fabric::backend::shm::open_regular;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const HEAD: &str = "lockwright serve 1";
/// Tokens per second of the clock: more grants than a server can give, or a NIC on one lock. Below 2^53 until 2038.
pub(super) const TOKENS_PER_SECOND: u64 = 1 << 22;
/// Tokens promised at a time: as many grants per write to the disk.
const BLOCK: u64 = 1 << 22;

/// The memory of a server.
#[derive(Debug)]
pub(super) struct Durable {
    file: Option<File>,
    /// Nobody else may serve from the same file.
    _alone: Option<File>,
    pub(super) epoch: u64,
    accepts: u64,
    first_token: u64,
    tokens_below: u64,
    granted: bool,
    gone: HashSet<u128>,
    broken: HashSet<u64>,
    /// Why it cannot be written any more.
    failed: Option<String>,
}

/// What is read from an earlier run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Past {
    run: u64,
    accepts: u64,
    tokens: u64,
    granted: bool,
    open: bool,
    clean: bool,
    gone: HashSet<u128>,
    broken: HashSet<u64>,
}

impl Past {
    /// What still counts of a run that nobody has to be waited for: its tokens.
    fn without_holders(self) -> Self {
        Self { run: self.run, tokens: self.tokens, open: true, clean: true, ..Self::default() }
    }
}

impl Durable {
    /// Begins a run. Without a path nothing is remembered, and nothing can be claimed. Also says whether there may be
    /// holders who have to be waited for.
    pub(super) fn begin(path: Option<&Path>) -> io::Result<(Self, bool)> {
        let Some(path) = path else { return Ok((Self::next(None), false)) };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Before anything is made beside it.
        match open_regular(path, false) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let alone = alone(path)?;
        let mut text = String::new();
        let read = open_regular(path, false).and_then(|mut file| file.read_to_string(&mut text));
        let past = match read {
            Ok(_) => Some(parse(&text).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "this is not the state of a server")
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let awaited = past.as_ref().is_some_and(|past| !past.clean && (past.granted || !past.open));
        let mut next = Self::next(past.map(|past| if awaited { past } else { past.without_holders() }));
        next._alone = Some(alone);
        let text = next.text(!awaited);
        let fresh = path.with_extension("new");
        // Left by a server that was killed, or something else of that name: it is not written to.
        let _ = std::fs::remove_file(&fresh);
        let mut file = File::create_new(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        next.file = Some(OpenOptions::new().append(true).open(path)?);
        Ok((next, awaited))
    }

    /// The run after `past`.
    fn next(past: Option<Past>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let past = past.unwrap_or_else(|| Past { open: true, ..Past::default() });
        let epoch = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(past.run + 1);
        let first_token = past.tokens.max(now.as_secs().saturating_mul(TOKENS_PER_SECOND)).max(1);
        Self {
            file: None,
            _alone: None,
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
            gone: past.gone,
            broken: past.broken,
            failed: None,
        }
    }

    fn text(&self, open: bool) -> String {
        let Self { epoch, accepts, tokens_below, gone, broken, .. } = self;
        let mut text = format!("{HEAD}\nrun {epoch} accepts {accepts}\ntokens {tokens_below}\n");
        text.extend(gone.iter().map(|key| format!("gone {key:x}\n")));
        text.extend(broken.iter().map(|token| format!("broken {token}\n")));
        if open {
            text.push_str("open\n");
        }
        text
    }

    /// The first token of this run.
    pub(super) const fn first_token(&self) -> u64 {
        self.first_token
    }

    fn note(&mut self, line: &str) -> Result<(), String> {
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let written = file.write_all(format!("{line}\n").as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|error| {
            let why = format!("the server cannot write its state any more: {error}");
            self.failed = Some(why.clone());
            why
        })
    }

    /// The disk is full from now on.
    #[cfg(test)]
    pub(super) fn fail(&mut self) {
        self.failed = Some("the disk is full".to_owned());
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
            self.note("granted")?;
            self.granted = true;
        }
        if token >= self.tokens_below {
            let below = token + BLOCK;
            self.note(&format!("tokens {below}"))?;
            self.tokens_below = below;
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Claims are over.
    pub(super) fn open(&mut self) -> Result<(), String> {
        self.note("open")
    }

    /// The session with this key is lost, and others may get what it held.
    pub(super) fn gone(&mut self, key: u128) -> Result<(), String> {
        self.note(&format!("gone {key:x}"))
    }

    /// The grant with this token is over, against its holder's will.
    pub(super) fn broken(&mut self, token: u64) -> Result<(), String> {
        self.note(&format!("broken {token}"))
    }

    /// The end; `clean` if nobody holds anything.
    pub(super) fn end(&mut self, clean: bool) {
        if clean {
            // If it cannot be written, the next run waits for nobody in vain.
            let _ = self.note("clean");
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

/// `None` if it is something else. A last line without its end was not yet true when it was written.
fn parse(text: &str) -> Option<Past> {
    let whole = &text[..text.rfind('\n')? + 1];
    let mut lines = whole.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let mut past = Past::default();
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["run", run, "accepts", accepts] => {
                (past.run, past.accepts) = (run.parse().ok()?, accepts.parse().ok()?);
            }
            ["tokens", below] => past.tokens = below.parse().ok()?,
            ["granted"] => past.granted = true,
            ["open"] => past.open = true,
            ["clean"] => past.clean = true,
            ["gone", key] => {
                past.gone.insert(u128::from_str_radix(key, 16).ok()?);
            }
            ["broken", token] => {
                past.broken.insert(token.parse().ok()?);
            }
            _ => return None,
        }
    }
    (past.run != 0).then_some(past)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lockwright-durable-{}-{name}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            Self(path)
        }

        fn begin(&self) -> (Durable, bool) {
            Durable::begin(Some(&self.0)).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
            let _ = std::fs::remove_file(format!("{}.lock", self.0.display()));
        }
    }

    #[test]
    fn tokens_rise_from_run_to_run_and_only_one_server_has_the_file() {
        let scratch = Scratch::new("tokens");
        let (mut first, awaited) = scratch.begin();
        assert!(!awaited, "nobody can hold anything before the first run");
        let far = first.first_token() + 10 * BLOCK;
        first.before_grant(far).unwrap();
        assert!(Durable::begin(Some(&scratch.0)).unwrap_err().to_string().contains("another server"));
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
        let past = parse("lockwright serve 1\nrun 5 accepts 5\ntokens 9\nopen\ngran").unwrap();
        assert!(past.open && !past.granted && past.tokens == 9);
        assert_eq!(parse("something else\n"), None);
        assert_eq!(parse("lockwright serve 1\nrun 5 accepts 5\nbananas 3\n"), None);
        assert_eq!(parse(""), None);
    }
}
