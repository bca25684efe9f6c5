//! The desk: takes what clients send, puts it into the tray, and hands what comes out of it to the books.
//!
//! It is the server's "memory" towards the tcp fabric, and has none but for guests of an exported space: any other client
//! that asks for words is refused. So nobody else has to be trusted with them.

use super::books::Books;
use super::combine::Counter;
use super::exported::Exported;
use super::guest::Guest;
use super::guests;
use super::lent::Lent;
use super::lents;
use super::session::{MAX_HANDLES, Name, Place};
use super::tray::{Note, Tray};
use crate::home::Kind;
use crate::lent::layout::SCHEME;
use crate::name::LockName;
use crate::remote::talk::{Answer, Ask, DESK, OLDEST, PAGE, RequestId, Units, VERSION};
use crate::remote::verbs::SUFFIX;
use lockwright_fabric::backend::tcp::{HostError, Inbox, RawWait, SessionEnd, VerbHost};
use lockwright_fabric::{Capabilities, Message, PeerId, RawVerb, Time};
use lockwright_locks::combiner::bell::Bell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The desk of one server. Clones are the same desk.
#[derive(Clone, Debug)]
pub(super) struct Desk(Arc<Inside>);

#[derive(Debug)]
pub(super) struct Inside {
    tray: Tray,
    /// Who serves what is in the tray.
    bell: Bell,
    counter: Mutex<Counter>,
    /// Which spaces of this host are offered, and those that somebody asked for.
    exports: Vec<String>,
    opened: Mutex<HashMap<String, Arc<Exported>>>,
    /// Spaces in memory that is lent.
    lends: Vec<Arc<Lent>>,
    began: Instant,
}

impl Desk {
    /// The desk of a server whose connections are read by so many threads.
    pub(super) fn new(books: Books, exports: Vec<String>, lends: Vec<Arc<Lent>>, threads: usize) -> Self {
        let (tray, notes) = Tray::new(threads);
        let (counter, opened) = (Mutex::new(Counter::new(books, notes)), Mutex::default());
        let bell = Bell::new();
        Self(Arc::new(Inside { tray, bell, counter, exports, opened, lends, began: Instant::now() }))
    }

    /// Spaces in memory that is lent.
    pub(super) fn lends(&self) -> &[Arc<Lent>] {
        &self.0.lends
    }

    pub(super) fn tray(&self) -> &Tray {
        &self.0.tray
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.0.bell
    }

    pub(super) fn counter(&self) -> &Mutex<Counter> {
        &self.0.counter
    }

    /// For whoever should not keep the desk alive.
    pub(super) fn downgrade(&self) -> Weak<Inside> {
        Arc::downgrade(&self.0)
    }

    /// The desk again, if it is still there.
    pub(super) fn upgrade(weak: &Weak<Inside>) -> Option<Self> {
        weak.upgrade().map(Self)
    }

    fn place(&self, books: &mut Books, space: &[u8]) -> Result<Place, String> {
        if let Some(name) = space.strip_prefix(SCHEME.as_bytes()) {
            return lents::place(self.lends(), name).map(Place::Lent);
        }
        let Some(exported) = std::str::from_utf8(space).ok().filter(|space| space.starts_with("shm:")) else {
            let name = if space.is_empty() { &b"default"[..] } else { space };
            let number = books.directory.space(name).ok_or("the server has no room for another space")?;
            return Ok(Place::Own(number));
        };
        if !self.0.exports.iter().any(|offered| offered == exported) {
            return Err(format!("this server does not export {exported} (see `lockwright serve --export`)"));
        }
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exported) = opened.get(exported) {
            return Ok(Place::Exported(Arc::clone(exported)));
        }
        let space = Arc::new(Exported::open(exported).map_err(|error| error.to_string())?);
        opened.insert(exported.to_owned(), Arc::clone(&space));
        Ok(Place::Exported(space))
    }

    /// What a client says; in order, since connections are read one frame after the other.
    fn hear(&self, peer: u32, message: &Message) {
        let note = match Ask::decode(message) {
            None => Note::Nonsense,
            Some((seq, Ask::Lock { id, units, wait })) => Note::Lock { seq, id, units, wait },
            Some((seq, Ask::Unlock { id, answer })) => Note::Unlock { seq, id, answer },
            Some((seq, Ask::Upgrade { id, wait })) => Note::Upgrade { seq, id, wait },
            Some((seq, Ask::Downgrade { id, gives_up })) => Note::Downgrade { seq, id, gives_up },
            Some((seq, Ask::Part { id, start, end, rest })) => Note::Part { seq, id, start, end, rest },
            Some((seq, ask)) => Note::Other { seq, number: self.tray().keep(ask) },
        };
        self.put(peer, note);
    }

    /// A note that comes out of the tray.
    pub(super) fn take(&self, books: &mut Books, peer: u32, note: Note) {
        match note {
            Note::Lock { seq, id, units, wait } if books.takes(peer, seq) => {
                self.lock(books, peer, (id, units, wait));
            }
            Note::Unlock { seq, id, answer } if books.takes(peer, seq) => {
                let held = books.unlock(peer, id);
                if answer {
                    books.say(peer, &Answer::Unlocked { id, held });
                }
            }
            Note::Upgrade { seq, id, wait } if books.takes(peer, seq) => books.upgrade(peer, id, wait),
            Note::Downgrade { seq, id, gives_up } if books.takes(peer, seq) => {
                books.downgrade(peer, id, gives_up);
            }
            Note::Part { seq, id, start, end, rest } if books.takes(peer, seq) => {
                books.unlock_part(peer, id, (start, end), rest);
            }
            Note::Other { seq, number } => {
                let Some(ask) = self.tray().fetch(number).filter(|_| books.takes(peer, seq)) else { return };
                books.decide();
                self.handle(books, peer, ask);
            }
            Note::Departed(how) => return books.depart(peer, how),
            Note::Nonsense if books.session(peer).is_some() => {
                books.refuse(peer, 0, "a message was sent that makes no sense to this server");
            }
            // Said before, or of somebody who is gone.
            Note::Lock { .. } | Note::Unlock { .. } | Note::Nonsense => return,
            Note::Upgrade { .. } | Note::Downgrade { .. } | Note::Part { .. } => return,
        }
        books.ack(peer);
    }

    fn lock(&self, books: &mut Books, peer: u32, (id, units, wait): (RequestId, Units, bool)) {
        match Self::found(books, peer, units.handle) {
            Some(Found::Own(lock)) => books.lock(peer, lock, id, units, wait),
            Some(Found::Exported(handle)) => {
                books.decide();
                handle.lock(self, books, peer, (id, units, wait));
            }
            Some(Found::Lent) => books.refuse(peer, id, lents::BY_ITSELF),
            None => books.refuse(peer, id, "the request names a lock that was refused or never named"),
        }
    }

    /// What is asked for less often. Everything before it is decided.
    fn handle(&self, books: &mut Books, peer: u32, ask: Ask) {
        match ask {
            Ask::Open { version, .. } if !(OLDEST..=VERSION).contains(&version) => {
                let why = format!(
                    "this server speaks version {VERSION} of lock spaces, the client version {version}"
                );
                books.refuse(peer, 0, why);
            }
            Ask::Open { key, space, .. } => {
                let (space, verbs) =
                    space.strip_suffix(SUFFIX.as_bytes()).map_or((&*space, false), |s| (s, true));
                let opened = match self.place(books, space) {
                    Ok(place) => self.enter(books, peer, key, place, verbs),
                    Err(why) => Err(why),
                };
                if let Err(why) = opened {
                    books.refuse(peer, 0, why);
                }
            }
            Ask::Name { handle, kind, name } => Self::name(books, peer, handle, kind, &name),
            Ask::Forget { handle } => {
                let Some(session) = books.session(peer) else { return };
                match (session.handles.remove(&handle), &session.place) {
                    (Some(Name::Own(lock)), _) => books.directory.close(lock),
                    (Some(Name::Lent(name, _)), Some(Place::Lent(space))) => space.close(&name),
                    _ => {}
                }
            }
            Ask::Lock { .. } | Ask::Unlock { .. } => unreachable!("they are notes of their own"),
            Ask::Upgrade { .. } | Ask::Downgrade { .. } | Ask::Part { .. } => unreachable!("so are these"),
            Ask::Claim { id, units, token, epoch, key } => match Self::found(books, peer, units.handle) {
                Some(Found::Own(lock)) => books.claim(peer, lock, id, units, (token, epoch, key)),
                // It was free from the moment the server died.
                Some(Found::Exported(_) | Found::Lent) => books.say(peer, &Answer::Lost { id }),
                None => books.refuse(peer, id, "the claim names a lock that was refused or never named"),
            },
            Ask::List { id } => match self.list(books, peer) {
                Ok(bytes) => pages(books, peer, id, &bytes),
                Err(why) => books.refuse(peer, id, why),
            },
            Ask::Heat { id } => match self.list_heat(books, peer) {
                Ok(bytes) => pages(books, peer, id, &bytes),
                Err(why) => books.refuse(peer, id, why),
            },
            Ask::Break { id, token, name } => match Self::break_grant(books, peer, &name, token) {
                Ok(held) => books.say(peer, &Answer::Unlocked { id, held }),
                Err(why) => books.refuse(peer, id, why),
            },
            of_guest @ (Ask::Find { .. } | Ask::Card { .. } | Ask::Granted { .. } | Ask::Witness { .. }) => {
                guests::handle(books, peer, &of_guest);
            }
        }
    }

    /// Lets a session into a space, as a guest if it runs the protocol itself.
    fn enter(
        &self,
        books: &mut Books,
        peer: u32,
        key: u128,
        place: Place,
        verbs: bool,
    ) -> Result<(), String> {
        let Some(session) = books.session(peer) else { return Ok(()) };
        if session.place.is_some() {
            return Err("a session has one space only".to_owned());
        }
        let mut answer = Answer::Ack;
        match (&place, verbs) {
            (_, false) => {}
            (Place::Own(_), true) => {
                let why =
                    "only spaces of shared memory, and those that are lent, have words: leave ?verbs out";
                return Err(why.to_owned());
            }
            (Place::Exported(space), true) => {
                let guest = guests::join(self, session, peer, space.space()?)?;
                answer = Answer::Guest { peer: guest.peer() };
                session.guest = Some(guest);
            }
            (Place::Lent(space), true) => {
                answer = Answer::Guest { peer: lents::enter(session, space)? };
                books.durable.before_grant(books.durable.first_token())?;
            }
        }
        let Some(session) = books.session(peer) else { return Ok(()) };
        (session.key, session.place) = (key, Some(place));
        session.say(&answer);
        Ok(())
    }

    /// Lets `session`, which comes by the NIC, into a lent space, and says under which number.
    #[cfg(feature = "rdma")]
    pub(super) fn lend(&self, session: PeerId, lent: &Arc<Lent>, label: &str) -> Option<PeerId> {
        let guest = lent.join(label)?;
        let peer = guest.peer();
        self.books().session(seat(session)?)?.lent = Some(guest);
        Some(peer)
    }

    /// The client of a lent space that the session of `peer` is, if it is one.
    fn lent(&self, peer: PeerId) -> Option<Arc<super::lent::Guest>> {
        if self.lends().is_empty() {
            return None;
        }
        self.books_up_to_date().session(seat(peer)?)?.lent.clone()
    }

    /// The guest that the session of `peer` is, if it is one. All that it has said before has happened.
    fn guest(&self, peer: PeerId) -> Option<Arc<Guest>> {
        self.books_up_to_date().session(seat(peer)?)?.guest.clone()
    }

    fn name(books: &mut Books, peer: u32, handle: u64, kind: Kind, name: &LockName) {
        let Some(session) = books.session(peer) else { return };
        if session.handles.len() >= MAX_HANDLES {
            return books.refuse(peer, 0, "a client can have 262144 names open at a time, not more");
        }
        // A name that cannot be had has no handle; whoever uses it is told.
        let found = match session.place.clone() {
            Some(Place::Own(space)) => books.directory.open(space, kind, name.clone()).map(Name::Own),
            Some(Place::Exported(space)) => space.handle(kind, name).ok().map(Name::Exported),
            Some(Place::Lent(space)) => lents::name(&space, name),
            None => None,
        };
        let (Some(session), Some(found)) = (books.session(peer), found) else { return };
        match (session.handles.insert(handle, found), &session.place) {
            (Some(Name::Own(lock)), _) => books.directory.close(lock),
            (Some(Name::Lent(name, _)), Some(Place::Lent(space))) => space.close(&name),
            _ => {}
        }
    }

    fn found(books: &mut Books, peer: u32, handle: u64) -> Option<Found> {
        match books.session(peer)?.handles.get(&handle)? {
            Name::Own(lock) => Some(Found::Own(*lock)),
            Name::Exported(handle) => Some(Found::Exported(handle.clone())),
            Name::Lent(..) => Some(Found::Lent),
        }
    }

    /// What Prometheus is told.
    pub(super) fn metrics(&self) -> String {
        let books = self.books();
        let up = self.0.began.elapsed();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let start = now.saturating_sub(up).as_secs_f64();
        let Books { directory, totals, .. } = &*books;
        totals.text(directory.in_use(), directory.spaces(), books.is_recovering(), start)
    }
}

enum Found {
    Own(u64),
    Exported(super::exported::Handle),
    Lent,
}

fn pages(books: &mut Books, peer: u32, id: RequestId, bytes: &[u8]) {
    let Some(session) = books.session(peer) else { return };
    let count = bytes.len().div_ceil(PAGE).max(1);
    for (at, page) in bytes.chunks(PAGE).chain(bytes.is_empty().then_some(&[][..])).enumerate() {
        session.say(&Answer::Page { id, more: at + 1 < count, bytes: page.to_vec() });
    }
}

impl VerbHost for Desk {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    fn now(&self) -> Time {
        // Counted from one second after nothing, so that no time is zero.
        let since = self.0.began.elapsed() + Duration::from_secs(1);
        Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Only guests have words.
    fn execute(&self, from: PeerId, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError> {
        if let Some(guest) = self.lent(from) {
            return guest.execute(verbs, olds);
        }
        match (self.guest(from), verbs.first()) {
            (Some(guest), _) => guest.execute(verbs, olds),
            (None, None) => Ok(()),
            (None, Some(verb)) => Err(HostError::NoSuchWord { addr: verb.addr, width: verb.width }),
        }
    }

    async fn watch(&self, from: PeerId, watch: RawWait) -> Result<u128, HostError> {
        if let Some(guest) = self.lent(from) {
            return guest.watch(watch).await;
        }
        match self.guest(from) {
            Some(guest) => guest.watch(watch).await,
            None => Err(HostError::NoSuchWord { addr: watch.addr, width: watch.width }),
        }
    }

    fn admit(&self, name: &str) -> Option<PeerId> {
        self.books().admit(name).map(|seat| PeerId(FIRST_PEER + seat))
    }

    fn attach(&self, peer: PeerId, inbox: Inbox) {
        let Some(seat) = seat(peer) else { return };
        if let Some(session) = self.books().session(seat) {
            session.inbox = Some(inbox);
        }
    }

    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        let Some(seat) = seat(from) else { return false };
        if to == DESK {
            self.hear(seat, message);
            return true;
        }
        match self.lent(from) {
            Some(guest) => guest.send(to, message.clone()),
            None => self.guest(from).is_some_and(|guest| guest.send(to, message.clone())),
        }
    }

    fn on_session_lost(&self, peer: PeerId, how: SessionEnd) {
        if let Some(seat) = seat(peer) {
            self.put(seat, Note::Departed(how));
            self.settle();
        }
    }

    fn settle(&self) {
        Desk::settle(self);
    }
}

/// Sessions have numbers of their own, above all those of clients in shared memory: a guest's messages to the latter are
/// not for a session that happens to have the same one.
const FIRST_PEER: u32 = 1 << 26;

/// A session's number in the books.
pub(super) fn seat(peer: PeerId) -> Option<u32> {
    peer.0.checked_sub(FIRST_PEER).filter(|seat| *seat < FIRST_PEER)
}
