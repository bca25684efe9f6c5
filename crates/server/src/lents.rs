//! Sessions that are in a lent space, as the lock table sees them: how they come in, and the little they ask.

use super::ServeError;
use super::lent::{Lent, VerbExecutor};
use super::lock_table::LockTable;
use super::reaper::Reaper;
use super::session::{Session, Target};
use lockwright::LockName;
use lockwright::wire::{RequestId, Response};
use lockwright_fabric::PeerId;
use std::sync::Arc;

/// To a client that asks for a lock of a lent space.
pub(super) const BY_ITSELF: &str =
    "locks of a lent space are taken by its clients themselves, not by the server";
/// To somebody who wants to take a lock away.
pub(super) const NO_BREAKING: &str = "locks of a lent space cannot be broken: their words are changed by verbs that look at \
     nothing else. End the process that holds it, which `ls` names";

/// The lent space called `name`.
pub(super) fn place(lends: &[Arc<Lent>], name: &[u8]) -> Result<Arc<Lent>, String> {
    let name = String::from_utf8_lossy(name);
    let name = if name.is_empty() { "default" } else { &name };
    let found = lends.iter().find(|lent| lent.name == name).cloned();
    found.ok_or_else(|| format!("this server lends no space called {name} (see `lockwright serve --lend`)"))
}

/// Makes a session a client of `space`, and says under which number.
pub(super) fn enter(session: &mut Session, space: &Arc<Lent>) -> Result<PeerId, String> {
    if let Some(guest) = &session.lent {
        return if guest.is_of(space) {
            Ok(guest.peer())
        } else {
            Err("a session has one space only".to_owned())
        };
    }
    if space.by != VerbExecutor::Cpu {
        return Err(format!(
            "the locks of lent:{} are changed by the server's NIC, and its CPU must not touch them beside it: come by \
             rdma://, from this machine too",
            space.name
        ));
    }
    let guest = space.join(&session.label).ok_or_else(full)?;
    if let Some(inbox) = session.inbox.clone() {
        guest.attach(inbox);
    }
    let peer = guest.peer();
    session.lent = Some(guest);
    Ok(peer)
}

/// Puts somebody to work who clears away what the dead leave in spaces whose verbs this CPU executes.
pub(super) fn employ(lends: &[Arc<Lent>]) -> Result<(), ServeError> {
    for lent in lends.iter().filter(|lent| lent.by == VerbExecutor::Cpu) {
        let ep = lent.memory.endpoint(PeerId::role(0));
        let reaper = Reaper::start(lent, ep, false);
        lent.employ(reaper.map_err(|error| ServeError::System(error.to_string()))?);
    }
    Ok(())
}

pub(super) fn full() -> String {
    "the space has no room for another client: it has 127 already, or some that died have not been cleared away".to_owned()
}

/// A name of the space.
pub(super) fn name(space: &Lent, name: &LockName) -> Option<Target> {
    let (lock, token_base) = space.open(name)?;
    Some(Target::Lent { name: name.clone(), lock, token_base })
}

/// Tells a client of a lent space where in it the lock is that `handle` stands for.
pub(super) fn find(table: &mut LockTable, peer: u32, id: RequestId, handle: u64) {
    let Some(session) = table.session(peer) else { return };
    match session.handles.get(&handle) {
        Some(&Target::Lent { lock, token_base, .. }) => {
            session.say(&Response::Found { id, lock, token_base });
        }
        _ if session.lent.is_none() => table.refuse(peer, 0, "only clients of lent spaces can ask that"),
        _ => table.refuse(peer, id, "the name was refused: the space has room for 65536 that are in use"),
    }
}
