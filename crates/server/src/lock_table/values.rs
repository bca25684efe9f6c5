//! Values of locks: up to 64 bytes that the exclusive holder of a name leaves for the next one.
//!
//! | the value is | by | from then on |
//! |---|---|---|
//! | read by an exclusive holder | `ReadValue` | open, if it was clean |
//! | set by an exclusive holder | `SetValue` | open |
//! | closed by that holder, which unlocks next | `CloseValue` | clean |
//! | read by any holder | `ReadValue` | as it is: clean if no holder has it open but the reader |
//!
//! A holder that dies, is evicted, or loses the lock closes nothing. So the next one finds the value open, and is told that it is
//! not clean, until it is set. The same holds after a restart, since what is open is on the disk; a holder that claims its
//! lock then still has its value open.
//!
//! What this file must not do: change who holds what.

use super::{Kind, LockTable, Stage};
use crate::durable::{LockValue, ValueKey};
use lockwright::wire::{Request, RequestId, Response, ValueReport};
use lockwright_fabric::observe::Mode;
use std::time::Duration;

impl LockTable {
    /// A request about something that the client holds already. All before it is decided.
    pub(super) fn about_held(&mut self, peer: u32, request: Request) {
        match request {
            Request::ReadValue { id, of, token } => match self.read_value(peer, of, token) {
                Ok(value) => self.say(peer, &Response::Value { id, value }),
                Err(why) => self.refuse(peer, id, why),
            },
            Request::SetValue { id, of, token, bytes } => match self.set_value(peer, of, token, bytes) {
                Ok(value) => self.say(peer, &Response::Value { id, value }),
                Err(why) => self.refuse(peer, id, why),
            },
            Request::CloseValue { of, token } => self.close_value(peer, of, token),
            Request::Watch { id } => self.watch(peer, id),
            request => unreachable!("not about what is held: {request:?}"),
        }
    }

    /// Whose value the held request `of` is about, and in which mode the lock is held.
    pub(super) fn value_key(
        &mut self,
        peer: u32,
        of: RequestId,
        token: u64,
    ) -> Result<(ValueKey, Mode), String> {
        let request = self.session(peer).and_then(|session| session.request(of));
        let held = request.filter(|request| request.is_held_with(token)).map(|it| (it.lock, it.units.mode));
        match held {
            Some((Some(lock), mode)) => {
                let lock = self.directory.lock(lock);
                if lock.kind != Kind::Keyed {
                    return Err("only mutexes and reader-writer locks have values".to_owned());
                }
                let space = self.directory.space_name(lock.space).to_vec();
                Ok(((space, lock.name.as_bytes().to_vec()), mode))
            }
            _ => {
                let exported = self.session(peer).and_then(|session| session.request(of));
                let exported = exported.is_some_and(|request| matches!(request.stage, Stage::Exported(_)));
                Err(if exported { "locks in shared memory have no values" } else { "the lock is not held" }
                    .to_owned())
            }
        }
    }

    fn read_value(&mut self, peer: u32, of: RequestId, token: u64) -> Result<ValueReport, String> {
        let (key, mode) = self.value_key(peer, of, token)?;
        let report = self.value_report(&key, mode, token);
        let Some(value) = self.durable.value(&key).cloned() else { return Ok(report) };
        if value.open == 0 && mode == Mode::Exclusive && !self.rules.values_never_open {
            self.durable.mark_value(&key, LockValue { open: token, ..value })?;
        }
        Ok(report)
    }

    /// What a holder with `token` is told of a value.
    pub(super) fn value_report(&self, key: &ValueKey, mode: Mode, token: u64) -> ValueReport {
        let durable = self.durable.keeps_values();
        let Some(value) = self.durable.value(key) else {
            return ValueReport { clean: true, durable, ..ValueReport::default() };
        };
        let clean = value.open == 0 || value.open == token && mode == Mode::Exclusive;
        let now = (self.durable.wall_ms)();
        let age = Duration::from_millis(now.saturating_sub(value.set_ms));
        let bytes = (!value.bytes.is_empty()).then(|| value.bytes.clone());
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        ValueReport { bytes, clean, durable, age_ns }
    }

    fn set_value(
        &mut self,
        peer: u32,
        of: RequestId,
        token: u64,
        bytes: Vec<u8>,
    ) -> Result<ValueReport, String> {
        let (key, mode) = self.value_key(peer, of, token)?;
        if mode == Mode::Shared {
            return Err("only who holds the lock alone sets its value".to_owned());
        }
        let report = ValueReport {
            bytes: (!bytes.is_empty()).then(|| bytes.clone()),
            clean: true,
            durable: self.durable.keeps_values(),
            age_ns: 0,
        };
        let open = if self.rules.values_never_open { 0 } else { token };
        let value = LockValue { bytes, open, set_ms: (self.durable.wall_ms)() };
        self.durable.set_value(&key, value, !self.rules.values_unwritten)?;
        Ok(report)
    }

    /// The holder unlocks in order. If that cannot be written down, the next one finds the value open, as if this one had died.
    fn close_value(&mut self, peer: u32, of: RequestId, token: u64) {
        let Ok((key, Mode::Exclusive)) = self.value_key(peer, of, token) else { return };
        let Some(value) = self.durable.value(&key).cloned() else { return };
        if value.open == token
            && let Err(why) = self.durable.mark_value(&key, LockValue { open: 0, ..value })
        {
            tracing::warn!("{why}");
        }
    }
}
