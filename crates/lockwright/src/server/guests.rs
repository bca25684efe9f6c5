//! Sessions that are guests of an exported space, as the desk sees them: how they come in, what they ask, how they are listed.

use super::books::Books;
use super::desk::Desk;
use super::exported::Held;
use super::guest::Guest;
use super::look::label;
use super::session::{Name, Session, Stage};
use crate::inspect::Entry;
use crate::name::LockName;
use crate::remote::talk::{Answer, Ask};
use lockwright_fabric::backend::shm::ShmSpace;
use std::collections::HashMap;
use std::sync::Arc;

/// Makes the session of `peer` a guest of `space`.
pub(super) fn join(
    desk: &Desk,
    session: &Session,
    peer: u32,
    space: &ShmSpace,
) -> Result<Arc<Guest>, String> {
    let inbox = session.inbox.clone().ok_or("the session cannot be reached")?;
    let (desk, serial) = (desk.downgrade(), session.serial);
    let expelled = move || {
        let Some(desk) = Desk::upgrade(&desk) else { return };
        let mut open = desk.books();
        if open.session(peer).is_some_and(|session| session.serial == serial) {
            open.totals.lost += 1;
            open.refuse(
                peer,
                0,
                "others in the space declared this client dead: the server was stopped too long",
            );
        }
    };
    Guest::join(space, inbox, expelled).map(Arc::new)
}

/// What only guests say.
pub(super) fn handle(books: &mut Books, peer: u32, ask: &Ask) {
    let Some(session) = books.session(peer) else { return };
    if session.lent.is_some() {
        return super::lents::handle(books, peer, ask);
    }
    let Some(guest) = session.guest.clone() else {
        return books.refuse(peer, 0, "only guests of an exported space can ask that");
    };
    match *ask {
        Ask::Find { id, handle } => {
            let bound = match session.handles.get(&handle) {
                Some(Name::Exported(handle)) => handle.bound(),
                _ => None,
            };
            match bound {
                Some(bound) => {
                    let (lock, token_base) = (bound.lock, bound.token_base);
                    session.say(&Answer::Found { id, lock, token_base });
                }
                None => books.refuse(peer, id, "the name was refused, or is no guest's to lock"),
            }
        }
        Ask::Card { card, says } => guest.card(card, says),
        Ask::Granted { id, card, token } => {
            let held = guest.granted(card, token);
            session.say(&Answer::Unlocked { id, held });
            books.totals.exported_grants += u64::from(held);
        }
        Ask::Witness { id, lock, except } => {
            let held = guest.is_held(lock, except);
            session.say(&Answer::Unlocked { id, held });
        }
        _ => unreachable!("the desk sends only what guests ask"),
    }
}

/// What a guest holds, by name and by the token that people see.
fn holds(session: &Session) -> Vec<(LockName, u64)> {
    let Some(guest) = &session.guest else { return Vec::new() };
    let handles = session.handles.values().filter_map(|name| match name {
        Name::Exported(handle) => Some((handle.bound()?, handle.name())),
        Name::Own(_) | Name::Lent(..) => None,
    });
    let names: HashMap<_, _> = handles.map(|(bound, name)| (bound.lock, (bound.token_base, name))).collect();
    let held = guest.holds().into_iter().filter_map(|(lock, token)| {
        let (base, name) = names.get(&lock)?;
        Some(((*name).clone(), token.saturating_add(*base)))
    });
    held.collect()
}

/// What this process holds in shared memory, it holds for sessions: they are who people want to see.
pub(super) fn name_sessions(books: &Books, entries: &mut [Entry]) {
    let mut holders = HashMap::new();
    for session in books.sessions.iter().flatten() {
        for request in session.slots.iter().flatten() {
            if let Stage::Exported(Held::Granted(guard)) = &request.stage {
                holders.insert((guard.name().clone(), guard.token()), &session.label);
            }
        }
        holders.extend(holds(session).into_iter().map(|held| (held, &session.label)));
    }
    for entry in entries.iter_mut().filter(|entry| entry.pid == std::process::id()) {
        let held = entry.token.and_then(|token| holders.get(&(entry.name.clone(), token)));
        if let Some(of) = held {
            let (pid, host, program) = label(of);
            (entry.pid, entry.host, entry.program) = (pid, host.to_owned(), program.to_owned());
        }
    }
}
