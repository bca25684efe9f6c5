//! Sessions that are in a one-sided space, as the lock table sees them: how they come in, and the little they ask.

use super::reaper::Reaper;
use super::{OneSidedSpace, VerbExecutor};
use crate::ServeError;
use crate::lock_table::LockTable;
use crate::session::{Session, Target};
use lockwright::LockName;
use lockwright::wire::{RequestId, Response};
use lockwright_fabric::PeerId;
use std::sync::Arc;

/// To a client that asks for a lock of a one-sided space.
pub(crate) const BY_ITSELF: &str =
    "locks of a one-sided space are taken by its clients themselves, not by the server";
/// To a client that wants to break a lock.
pub(crate) const NO_BREAKING: &str = "locks of a one-sided space cannot be broken: their words are changed by verbs that look at \
     nothing else. End the process that holds it, which `ls` names";

/// The one-sided space called `name`.
pub(crate) fn place(spaces: &[Arc<OneSidedSpace>], name: &[u8]) -> Result<Arc<OneSidedSpace>, String> {
    let name = String::from_utf8_lossy(name);
    let name = if name.is_empty() { "default" } else { &name };
    let found = spaces.iter().find(|space| space.name == name).cloned();
    found.ok_or_else(|| format!("this server lends no space called {name} (see `lockwright serve --lend`)"))
}

/// Makes a session a client of `space`, and says under which number.
pub(crate) fn enter(session: &mut Session, space: &Arc<OneSidedSpace>) -> Result<PeerId, String> {
    if let Some(client) = &session.one_sided {
        return if client.is_of(space) {
            Ok(client.peer())
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
    let client = space.join(&session.label).ok_or_else(full)?;
    if let Some(inbox) = session.inbox.clone() {
        client.attach(inbox);
    }
    let peer = client.peer();
    session.one_sided = Some(client);
    Ok(peer)
}

/// Starts a reaper for every space whose verbs this CPU executes.
pub(crate) fn employ(spaces: &[Arc<OneSidedSpace>]) -> Result<(), ServeError> {
    for space in spaces.iter().filter(|space| space.by == VerbExecutor::Cpu) {
        let ep = space.memory.endpoint(PeerId::role(0));
        let reaper = Reaper::start(space, ep, false);
        space.employ(reaper.map_err(|error| ServeError::System(error.to_string()))?);
    }
    Ok(())
}

pub(crate) fn full() -> String {
    "the space has no room for another client: it has 127 already, or some that died have not been cleared away".to_owned()
}

/// A name of the space.
pub(crate) fn name(space: &OneSidedSpace, name: &LockName) -> Option<Target> {
    let (lock, token_base) = space.open_name(name)?;
    Some(Target::OneSided { name: name.clone(), lock, token_base })
}

/// Tells a client of a one-sided space where in it the lock is that `handle` stands for.
pub(crate) fn find(table: &mut LockTable, peer: u32, id: RequestId, handle: u64) {
    let Some(session) = table.session(peer) else { return };
    match session.handles.get(&handle) {
        Some(&Target::OneSided { lock, token_base, .. }) => {
            session.say(&Response::Found { id, lock, token_base });
        }
        _ if session.one_sided.is_none() => {
            table.refuse(peer, 0, "only clients of one-sided spaces can ask that");
        }
        _ => table.refuse(peer, id, "the name was refused: the space has room for 65536 that are in use"),
    }
}
