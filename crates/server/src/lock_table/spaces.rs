//! How sessions enter a space and name the locks in it.

use super::LockTable;
use crate::exported::Exported;
use crate::lents;
use crate::session::{MAX_HANDLES, Space, Target};
use lockwright::LockName;
use lockwright::internal::layout::SCHEME;
use lockwright::wire::{Kind, OLDEST, PAGE, RequestId, Response, VERSION};
use std::sync::Arc;

impl LockTable {
    /// The first request of a session: which space it is about.
    pub(super) fn open_space(
        &mut self,
        peer: u32,
        version: u64,
        key: u128,
        name: &[u8],
        one_sided: bool,
    ) -> Result<(), String> {
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(format!(
                "this server speaks version {VERSION} of lock spaces, the client version {version}"
            ));
        }
        let space = self.space(name)?;
        let Some(session) = self.session(peer) else { return Ok(()) };
        if session.space.is_some() {
            return Err("a session has one space only".to_owned());
        }
        let mut response = Response::Ack;
        match (&space, one_sided) {
            (_, false) => {}
            (Space::Lent(space), true) => {
                response = Response::Joined { peer: lents::enter(session, space)? };
                self.durable.before_grant(self.durable.first_token())?;
            }
            (Space::Own(_) | Space::Exported(_), true) => {
                return Err("only spaces that are lent have words for clients".to_owned());
            }
        }
        let Some(session) = self.session(peer) else { return Ok(()) };
        (session.key, session.space) = (key, Some(space));
        session.say(&response);
        Ok(())
    }

    /// The space called `name`, made on first use.
    fn space(&mut self, name: &[u8]) -> Result<Space, String> {
        if let Some(name) = name.strip_prefix(SCHEME.as_bytes()) {
            return lents::place(&self.lent, name).map(Space::Lent);
        }
        let Some(exported) = std::str::from_utf8(name).ok().filter(|name| name.starts_with("shm:")) else {
            let name = if name.is_empty() { &b"default"[..] } else { name };
            let number = self.directory.space(name).ok_or("the server has no room for another space")?;
            return Ok(Space::Own(number));
        };
        if !self.exports.iter().any(|offered| offered == exported) {
            return Err(format!("this server does not export {exported} (see `lockwright serve --export`)"));
        }
        if let Some(opened) = self.opened.get(exported) {
            return Ok(Space::Exported(Arc::clone(opened)));
        }
        let opened = Arc::new(Exported::open(exported).map_err(|error| error.to_string())?);
        self.opened.insert(exported.to_owned(), Arc::clone(&opened));
        Ok(Space::Exported(opened))
    }

    /// From now on `handle` stands for the lock called `name`.
    pub(super) fn name(&mut self, peer: u32, handle: u64, kind: Kind, name: &LockName) {
        let Some(session) = self.session(peer) else { return };
        if session.handles.len() >= MAX_HANDLES {
            return self.refuse(peer, 0, "a client can have 262144 names open at a time, not more");
        }
        // A name that cannot be had has no handle; whoever uses it is told.
        let target = match session.space.clone() {
            Some(Space::Own(space)) => self.directory.open(space, kind, name.clone()).map(Target::Own),
            Some(Space::Exported(space)) => space.handle(kind, name).ok().map(Target::Exported),
            Some(Space::Lent(space)) => lents::name(&space, name),
            None => None,
        };
        let (Some(session), Some(target)) = (self.session(peer), target) else { return };
        let space = session.space.clone();
        if let Some(before) = session.handles.insert(handle, target) {
            self.close(space.as_ref(), before);
        }
    }

    /// The handle is of no more use.
    pub(super) fn forget_name(&mut self, peer: u32, handle: u64) {
        let Some(session) = self.session(peer) else { return };
        let space = session.space.clone();
        if let Some(target) = session.handles.remove(&handle) {
            self.close(space.as_ref(), target);
        }
    }

    /// One use less of what a handle stood for, in the session's space.
    pub(super) fn close(&mut self, space: Option<&Space>, target: Target) {
        match (target, space) {
            (Target::Own(lock), _) => self.directory.close(lock),
            (Target::Lent { name, .. }, Some(Space::Lent(space))) => space.close(&name),
            _ => {}
        }
    }

    /// Answers with bytes, in as many messages as they take.
    pub(super) fn answer_in_pages(
        &mut self,
        peer: u32,
        id: RequestId,
        list: impl FnOnce(&mut Self, u32) -> Result<Vec<u8>, String>,
    ) {
        let bytes = match list(self, peer) {
            Ok(bytes) => bytes,
            Err(why) => return self.refuse(peer, id, why),
        };
        let Some(session) = self.session(peer) else { return };
        let count = bytes.len().div_ceil(PAGE).max(1);
        for (at, page) in bytes.chunks(PAGE).chain(bytes.is_empty().then_some(&[][..])).enumerate() {
            session.say(&Response::Page { id, more: at + 1 < count, bytes: page.to_vec() });
        }
    }

    /// The metrics, as Prometheus reads them; `start` is when the server was started, in seconds since 1970.
    pub(crate) fn metrics(&self, start: f64) -> String {
        self.totals.text(self.directory.in_use(), self.directory.spaces(), self.is_recovering(), start)
    }
}
