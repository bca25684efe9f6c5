//! The locks of a `run`: asked for in the order that all processes share, held together, lost together.

use super::supervise::WakePipe;
use super::{Args, BadUsage, nested};
use crate::SpaceArg;
use lockwright::inspect::{Entry, EntryState};
use lockwright::{
    AcquireSet, AnyGuard, Client, HandleError, LockName, LockSet, LostReason, LostSignal, SetGuard,
};
use lockwright_term::say;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// Asks for the locks.
pub(super) fn begin(client: &Client, args: &Args, patience: Option<Duration>) -> anyhow::Result<AcquireSet> {
    let bad_name = |error: HandleError| match error {
        HandleError::Name(_) => anyhow::Error::new(BadUsage(error.to_string())),
        error => error.into(),
    };
    let mut set = LockSet::new();
    for name in &args.names {
        if let Some(limit) = args.jobs {
            set = set.permits(&client.semaphore(name.as_bytes(), limit).map_err(bad_name)?, 1)?;
            continue;
        }
        set = match (&args.range, args.shared) {
            (Some(range), shared) => {
                let lock = client.range_lock(name.as_bytes()).map_err(bad_name)?;
                let range = range.clone();
                if shared { set.read_range(&lock, range) } else { set.write_range(&lock, range) }
            }
            (None, shared) => {
                let lock = client.rwlock(name.as_bytes()).map_err(bad_name)?;
                if shared { set.read(&lock) } else { set.write(&lock) }
            }
        };
    }
    Ok(match patience {
        Some(patience) => set.timeout(patience),
        None => set,
    }
    .acquire())
}

/// The locks, in the order in which they were named.
pub(super) struct Held {
    guards: Vec<AnyGuard>,
    lost: Vec<LostSignal>,
    /// Woken when a lock is lost.
    pub(super) pipe: WakePipe,
}

impl Held {
    pub(super) fn new(args: &Args, guards: SetGuard) -> io::Result<Self> {
        let mut guards = guards.into_guards();
        let place =
            |guard: &AnyGuard| args.names.iter().position(|name| name.as_bytes() == guard.name().as_bytes());
        guards.sort_by_key(place);
        let pipe = WakePipe::new()?;
        for guard in &guards {
            let waker = pipe.waker();
            guard.on_lost(move |_| waker.wake());
        }
        Ok(Self { lost: guards.iter().map(AnyGuard::lost).collect(), guards, pipe })
    }

    /// The first lock that is lost, and why.
    pub(super) fn lost(&self) -> Option<(&LockName, LostReason)> {
        let reasons = self.guards.iter().zip(&self.lost);
        reasons.into_iter().find_map(|(guard, lost)| Some((guard.name(), lost.reason()?)))
    }

    /// The only lock.
    pub(super) fn only(&self) -> &AnyGuard {
        &self.guards[0]
    }

    /// The tokens, with blanks between them.
    pub(super) fn tokens(&self) -> String {
        let tokens: Vec<_> = self.guards.iter().map(|guard| guard.token().to_string()).collect();
        tokens.join(" ")
    }

    /// What the command is told of its locks.
    pub(super) fn environment(&self, args: &Args) -> [(&'static str, OsString); 3] {
        let names: Vec<_> = self.guards.iter().map(|guard| guard.name().as_bytes()).collect();
        let names = OsString::from_vec(names.join(&b'\n'));
        let tokens = self.tokens().into();
        [("LOCKWRIGHT_LOCK", names), ("LOCKWRIGHT_TOKEN", tokens), (nested::VARIABLE, nested::with_own(args))]
    }

    /// Gives the locks back, the last one first.
    pub(super) fn unlock(mut self) {
        while let Some(guard) = self.guards.pop() {
            if let Err(error) = guard.unlock().wait() {
                say!("lockwright: {error}");
            }
        }
    }
}

/// Asks for locks that stay with clients: those who do not use theirs give them back, and the others say that they do. Nothing is
/// kept. A client that is silent goes on being listed as it was.
pub(super) fn ask_for_retained(args: &Args, holders: &[Entry]) -> anyhow::Result<()> {
    let options = args.trust.options()?.program("run --test").retain(false);
    let client = options.open(&args.space).wait()?;
    for holder in holders.iter().filter(|holder| holder.state == EntryState::Retained) {
        let lock = client.rwlock(holder.name.as_bytes())?;
        // What came of it, the listing says.
        if args.shared {
            drop(lock.try_read().wait().map(|guard| guard.unlock().wait()));
        } else {
            drop(lock.try_write().wait().map(|guard| guard.unlock().wait()));
        }
    }
    Ok(())
}

/// Who has the locks that this `run` would have to wait for.
pub(super) fn in_the_way(args: &Args) -> anyhow::Result<Vec<Entry>> {
    let space = SpaceArg { space: args.space.clone(), trust: args.trust.clone() };
    let entries = match space.look()? {
        Some(inspector) => inspector.entries()?,
        None => Vec::new(),
    };
    let blocks = |entry: &Entry| {
        let overlaps = match (&args.range, &entry.range) {
            (Some(mine), Some(theirs)) => mine.start < theirs.end && theirs.start < mine.end,
            (mine, theirs) => mine.is_none() && theirs.is_none(),
        };
        if args.jobs.is_some() != entry.permits.is_some() {
            return false;
        }
        let wanted = || args.names.iter().any(|name| entry.name.as_bytes() == name.as_bytes());
        let shared = args.shared && entry.shared;
        let has_it = matches!(entry.state, EntryState::Held | EntryState::Retained);
        overlaps && has_it && !shared && wanted()
    };
    let mut entries: Vec<_> = entries.into_iter().filter(blocks).collect();
    if let Some(limit) = args.jobs {
        let held = |name: &LockName| {
            let permits =
                entries.iter().filter(|entry| entry.name == *name).filter_map(|entry| entry.permits);
            permits.map(|permits| permits.held).sum::<u64>()
        };
        let full: Vec<_> = entries.iter().map(|entry| held(&entry.name) >= limit).collect();
        let mut full = full.into_iter();
        entries.retain(|_| full.next() == Some(true));
    }
    Ok(entries)
}

/// Who has the lock, in words.
pub(super) fn describe(entry: &Entry) -> String {
    let Entry { pid, program, host, age, .. } = entry;
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.is_empty() || host == here.trim() { String::new() } else { format!(" on {host}") };
    let name = OsStr::from_bytes(entry.name.as_bytes()).display();
    let age = lockwright_term::age(*age);
    if entry.state == EntryState::Retained {
        return format!(
            "{name}: retained by process {pid} ({program}){host} for {age}, which does not say whether it uses it"
        );
    }
    format!("{name}: process {pid} ({program}){host} has had it for {age}")
}
