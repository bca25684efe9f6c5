//! A space whose events are written down: any other space, with a [`Recorder`] beside it.
//!
//! It has no fast path of its own, so that a client without a record pays nothing for there being one.

use super::{
    Backend, Bound, BoxFuture, GivenUp, Granted, Kind, Locker, Refused, Space, SpaceIdentity, Standing,
};
use crate::client::Protocols;
use crate::error::{ChangeError, HandleError, LockError, ValueError};
#[cfg(target_os = "linux")]
use crate::inspect::Entry;
use crate::lock::Value;
use crate::lock::contention::Contention;
use crate::name::LockName;
use crate::record::{Event, Recorder};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_locks::Lost;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(crate) struct RecordedBackend {
    inner: Arc<dyn Backend>,
    notes: Arc<Notes>,
}

/// What is needed to write an event down.
#[derive(Debug)]
struct Notes {
    recorder: Recorder,
    /// This process.
    process: String,
    space: String,
    /// By kind and id: the name, and what is to be added to its tokens.
    names: Mutex<HashMap<(Kind, u64), (LockName, u64)>>,
    /// By kind, id and token: those whose loss was written down.
    lost: Mutex<HashSet<(Kind, u64, u64)>>,
}

impl Notes {
    fn note(&self, event: &str, kind: Kind, claim: Claim, token: Option<u64>, held: Option<bool>) {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((name, base)) = names.get(&(kind, claim.lock)) else { return };
        let (name, token) = (name.clone(), token.map(|token| base.saturating_add(token)));
        drop(names);
        self.recorder.note(&Event {
            event,
            client: Some(&self.process),
            space: &self.space,
            name: &name,
            kind,
            claim,
            token,
            held,
        });
    }

    fn answered(&self, kind: Kind, claim: Claim, outcome: Result<u64, ()>) {
        match outcome {
            Ok(token) => self.note("granted", kind, claim, Some(token), None),
            Err(()) => self.note("refused", kind, claim, None, None),
        }
    }

    fn released(&self, kind: Kind, claim: Claim, token: u64, outcome: &Result<(), Lost>) {
        self.note("released", kind, claim, Some(token), Some(outcome.is_ok()));
    }
}

impl RecordedBackend {
    pub(crate) fn new(inner: Arc<dyn Backend>, recorder: Recorder, process: String) -> Self {
        let space = inner.identity().to_string();
        let notes = Notes { recorder, process, space, names: Mutex::default(), lost: Mutex::default() };
        Self { inner, notes: Arc::new(notes) }
    }

    /// Writes down what comes of a request.
    fn asking(
        &self,
        kind: Kind,
        claim: Claim,
        ask: impl FnOnce(&dyn Backend) -> BoxFuture<Result<Granted, Refused>>,
    ) -> BoxFuture<Result<Granted, Refused>> {
        self.notes.note("asks", kind, claim, None, None);
        let (asked, inner, notes) = (ask(&*self.inner), Arc::clone(&self.inner), Arc::clone(&self.notes));
        Box::pin(async move {
            let granted = asked.await;
            notes.answered(kind, claim, granted.as_ref().map(|granted| inner.token(granted)).map_err(|_| ()));
            granted
        })
    }
}

impl Space for RecordedBackend {
    fn identity(&self) -> SpaceIdentity {
        self.inner.identity()
    }

    fn bind(&self, name: &LockName, kind: Kind) -> Result<Bound, HandleError> {
        let bound = self.inner.bind(name, kind)?;
        let mut names = self.notes.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert((kind, bound.lock), (name.clone(), bound.token_base));
        Ok(bound)
    }

    fn protocols(&self) -> Result<Protocols, LockError> {
        self.inner.protocols()
    }

    fn is_bound(&self, bound: &Bound) -> bool {
        self.inner.is_bound(bound)
    }

    fn unbind(&self, name: &LockName, bound: Bound, kind: Kind) {
        self.inner.unbind(name, bound, kind);
    }

    fn stop_time(&self) -> Option<Duration> {
        self.inner.stop_time()
    }

    fn heartbeat(&self) -> Duration {
        self.inner.heartbeat()
    }

    fn block_on(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        self.inner.block_on(future);
    }

    fn hold_while_process_lives(&self, pid: u32) -> std::io::Result<bool> {
        self.inner.hold_while_process_lives(pid)
    }
}

impl Locker for RecordedBackend {
    fn try_acquire_fast(&self, kind: Kind, claim: Claim) -> Option<Result<Granted, Refused>> {
        self.notes.note("asks", kind, claim, None, None);
        let tried = self.inner.try_acquire_fast(kind, claim)?;
        let token = tried.as_ref().map(|granted| self.inner.token(granted));
        self.notes.answered(kind, claim, token.map_err(|_| ()));
        Some(tried)
    }

    fn try_acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        self.asking(kind, claim, |inner| inner.try_acquire(kind, claim))
    }

    fn try_limit(&self) -> Option<Duration> {
        self.inner.try_limit()
    }

    fn answer_limit(&self) -> Option<Duration> {
        self.inner.answer_limit()
    }

    fn no_answer(&self) -> LockError {
        self.inner.no_answer()
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Granted, Refused>> {
        self.asking(kind, claim, |inner| inner.acquire(kind, claim))
    }

    fn acquire_unless(
        &self,
        kind: Kind,
        claim: Claim,
        given_up: GivenUp,
    ) -> BoxFuture<Result<Granted, Refused>> {
        self.asking(kind, claim, |inner| inner.acquire_unless(kind, claim, given_up))
    }

    fn acquire_cancels_on_drop(&self) -> bool {
        self.inner.acquire_cancels_on_drop()
    }

    fn release_fast(&self, kind: Kind, claim: Claim, granted: &Granted) -> Option<Result<(), Lost>> {
        let token = self.inner.token(granted);
        self.notes.note("releases", kind, claim, Some(token), None);
        let released = self.inner.release_fast(kind, claim, granted)?;
        self.notes.released(kind, claim, token, &released);
        Some(released)
    }

    fn release(&self, kind: Kind, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        let (token, notes) = (self.inner.token(&granted), Arc::clone(&self.notes));
        notes.note("releases", kind, claim, Some(token), None);
        let release = self.inner.release(kind, claim, granted);
        Box::pin(async move {
            let released = release.await;
            notes.released(kind, claim, token, &released);
            released
        })
    }

    fn description(&self) -> &'static str {
        self.inner.description()
    }

    fn upgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
        wait: bool,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let change = self.inner.upgrade(kind, claim, granted, wait);
        let (inner, notes) = (Arc::clone(&self.inner), Arc::clone(&self.notes));
        Box::pin(async move {
            let changed = change.await;
            if let Ok(granted) = &changed {
                let claim = Claim { mode: Mode::Exclusive, ..claim };
                notes.note("upgraded", kind, claim, Some(inner.token(granted)), None);
            }
            changed
        })
    }

    fn downgrade(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Granted, ChangeError>> {
        let claim = Claim { mode: Mode::Shared, ..claim };
        self.notes.note("downgrades", kind, claim, Some(self.inner.token(granted)), None);
        let change = self.inner.downgrade(kind, claim, granted);
        let (inner, notes) = (Arc::clone(&self.inner), Arc::clone(&self.notes));
        Box::pin(async move {
            let changed = change.await;
            if let Ok(granted) = &changed {
                notes.note("downgraded", kind, claim, Some(inner.token(granted)), None);
            }
            changed
        })
    }

    fn unlock_part(
        &self,
        granted: &Granted,
        claim: &Claim,
        part: &Range<u64>,
    ) -> Result<Option<Granted>, ChangeError> {
        if !part.is_empty() {
            let given = Claim { start: part.start, end: part.end, ..*claim };
            self.notes.note("gives", Kind::Ranges, given, Some(self.inner.token(granted)), None);
        }
        self.inner.unlock_part(granted, claim, part)
    }

    fn value(
        &self,
        name: &LockName,
        claim: Claim,
        granted: &Granted,
    ) -> BoxFuture<Result<Value, ValueError>> {
        self.inner.value(name, claim, granted)
    }

    fn set_value(
        &self,
        name: &LockName,
        claim: Claim,
        granted: &Granted,
        bytes: &[u8],
    ) -> BoxFuture<Result<(), ValueError>> {
        self.inner.set_value(name, claim, granted, bytes)
    }

    fn close_value(&self, name: &LockName, granted: &Granted) {
        self.inner.close_value(name, granted);
    }

    fn watch_contention(
        &self,
        kind: Kind,
        claim: Claim,
        granted: &Granted,
        contention: &Arc<Contention>,
    ) -> bool {
        self.inner.watch_contention(kind, claim, granted, contention)
    }

    fn is_contended(&self, kind: Kind, claim: Claim) -> Option<bool> {
        self.inner.is_contended(kind, claim)
    }

    #[cfg(target_os = "linux")]
    fn entries_of(&self, name: &LockName, claim: Claim) -> Result<Vec<Entry>, LockError> {
        self.inner.entries_of(name, claim)
    }

    fn token(&self, granted: &Granted) -> u64 {
        self.inner.token(granted)
    }

    fn standing(&self, kind: Kind, claim: Claim, granted: &Granted) -> Standing {
        let standing = self.inner.standing(kind, claim, granted);
        if let Standing::Lost(_) = standing {
            let token = self.inner.token(granted);
            let mut lost = self.notes.lost.lock().unwrap_or_else(PoisonError::into_inner);
            if lost.insert((kind, claim.lock, token)) {
                drop(lost);
                self.notes.note("lost", kind, claim, Some(token), None);
            }
        }
        standing
    }
}
