//! The directory: names of locks, their ids, and which clients use them.
//!
//! | name, byte | holds |
//! |---|---|
//! | 0 | hash |
//! | 8 | next name in its hash chain, or in the list of free ones (4 bytes; index + 1, 0 for none) |
//! | 12 | first use (4 bytes, as above) |
//! | 16 | state: 0 free, 1 live (4 bytes) |
//! | 20 | length (4 bytes) |
//! | 24 | token base |
//! | 32 | when it was created; of a free one, with the top bit set, the last own token of its lock |
//! | 40..295 | the name |
//!
//! | use, byte | holds (4 bytes each) |
//! |---|---|
//! | 0 | peer, 0 if free |
//! | 4 | name, index + 1 |
//! | 8 | next use of that name, or next free one |
//! | 12 | how often the peer has opened it |
//!
//! A lock's id is the index of its name. Names are compared byte by byte: the hash only says where to look.
//!
//! All changes are made under the directory's lock ([`lock`]). Each becomes visible by one store (the head of a chain, a
//! link around a removed entry), so a process that takes the lock over from a killed one finds intact chains, and at worst
//! entries in none of them, which [`repair`] frees.

mod lock;
mod repair;
mod table;

use super::client::Client;
use super::endpoint::ShmEndpoint;
use super::error::SpaceError;
use super::layout::{AT_NAMES_LIVE, AT_TOKEN_FLOOR};
use crate::addr::PeerId;
use crate::wait::Time;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use table::{FIRST_USE, Table};

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// A client's access to the directory of its space.
///
/// ```
/// use lockwright_fabric::backend::shm::{Reclaim, ShmSpace, SpaceOptions};
/// # let path = std::env::temp_dir().join(format!("lockwright-doc-names-{}.space", std::process::id()));
/// let space = ShmSpace::open(&path, &SpaceOptions::default())?;
/// let names = space.endpoint()?.names();
/// let orders = names.open(b"orders/42")?;
/// assert_eq!(names.open(b"orders/42")?.id, orders.id);
/// assert_ne!(names.open(b"orders/43")?.id, orders.id);
/// names.close(orders.id, |_| Reclaim::Keep)?;
/// # ShmSpace::remove(&path)?;
/// # Ok::<_, lockwright_fabric::backend::shm::SpaceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Names {
    client: Arc<Client>,
}

/// A name that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamedLock {
    /// The lock's id: which of the protocol's locks this is.
    pub id: u64,
    /// To be added to the protocol's own token, so that a name's tokens keep rising when the name is removed and later
    /// created again with another id.
    pub token_base: u64,
}

/// What to do with a name that no client uses any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Keep it and its id: the lock's words are not in their initial state.
    Keep,
    /// Remove it. Its id may go to another name, whose tokens start above all those of this one.
    Reuse {
        /// Its highest token, base included.
        highest_token: u64,
        /// The lock's last own token, without the base; 0 if it is not known.
        own_token: u64,
    },
}

/// A name, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameInfo {
    /// The name.
    pub name: Vec<u8>,
    /// What [`Names::open`] gives.
    pub lock: NamedLock,
    /// When it was created.
    pub created: Time,
    /// The clients that have it open.
    pub users: Vec<PeerId>,
}

impl ShmEndpoint {
    /// The directory, for this client.
    pub fn names(&self) -> Names {
        Names { client: Arc::clone(self.client()) }
    }
}

impl Names {
    /// Opens `name`, or creates it. Each `open` is undone by one [`close`](Self::close), those of a dead client by
    /// [`drop_all_of`](Self::drop_all_of).
    ///
    /// # Errors
    /// [`SpaceError::BadName`]; [`SpaceError::TooManyNames`] or [`SpaceError::TooManyRefs`] if there is no room (then
    /// [`sweep`](Self::sweep) may make some); [`SpaceError::DirectoryBusy`].
    pub fn open(&self, name: &[u8]) -> Result<NamedLock, SpaceError> {
        self.open_with(name, |_| Ok(()))
    }

    /// The same; if the name has to be created, `prepare` is first told the id of its lock, and can refuse. It runs under the
    /// directory's lock: a process that finds the name finds it prepared.
    ///
    /// # Errors
    /// As [`open`](Self::open), and what `prepare` says.
    pub fn open_with(
        &self,
        name: &[u8],
        prepare: impl FnOnce(u64) -> Result<(), SpaceError>,
    ) -> Result<NamedLock, SpaceError> {
        check(name)?;
        let table = self.table()?;
        let hash = table.hash(name);
        let (entry, made) = match table.find(hash, name)? {
            Some(entry) => (entry, false),
            None => (table.insert(hash, name, prepare)?, true),
        };
        if let Err(full) = table.add_use(entry, self.client.membership.peer, self.client.membership.slot) {
            if made {
                table.remove(entry);
            }
            return Err(full);
        }
        Ok(table.lock_of(entry))
    }

    /// The lock called `name`, if there is one, without using it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn find(&self, name: &[u8]) -> Result<Option<NamedLock>, SpaceError> {
        check(name)?;
        let table = self.table()?;
        Ok(table.find(table.hash(name), name)?.map(|entry| table.lock_of(entry)))
    }

    /// Undoes one `open`. After the last use by any client, `reclaim` decides, under the directory's lock, whether the name
    /// stays: it checks whether the lock's words are free, and must not use the directory itself.
    ///
    /// # Errors
    /// [`SpaceError::BadName`] if this client does not have it open.
    pub fn close(&self, id: u64, reclaim: impl FnOnce(u64) -> Reclaim) -> Result<(), SpaceError> {
        let table = self.table()?;
        if !table.is_live(id) || !table.end_use(id, self.client.membership.peer) {
            return Err(SpaceError::BadName("this client does not have it open"));
        }
        if table.link(id, FIRST_USE).load(SeqCst) == 0 {
            settle(&table, id, reclaim);
        }
        Ok(())
    }

    /// [`close`](Self::close) for each of `ids`, under one lock of the directory. Those that are not open are passed over.
    ///
    /// # Errors
    /// If the directory cannot be had.
    pub fn close_all(
        &self,
        ids: impl IntoIterator<Item = u64>,
        mut reclaim: impl FnMut(u64) -> Reclaim,
    ) -> Result<(), SpaceError> {
        let table = self.table()?;
        for id in ids {
            let is_closed = table.is_live(id) && table.end_use(id, self.client.membership.peer);
            if is_closed && table.link(id, FIRST_USE).load(SeqCst) == 0 {
                settle(&table, id, &mut reclaim);
            }
        }
        Ok(())
    }

    /// Ends all uses of a client that is dead, after its locks were recovered; `reclaim` as for [`close`](Self::close).
    /// Returns the ids it had open.
    ///
    /// # Errors
    /// If the directory cannot be had.
    pub fn drop_all_of(
        &self,
        peer: PeerId,
        mut reclaim: impl FnMut(u64) -> Reclaim,
    ) -> Result<Vec<u64>, SpaceError> {
        let table = self.table()?;
        let ids = table.names_of(peer);
        for &id in &ids {
            while table.end_use(id, peer) {}
            if table.link(id, FIRST_USE).load(SeqCst) == 0 {
                settle(&table, id, &mut reclaim);
            }
        }
        Ok(ids)
    }

    /// The ids that `peer` has open: the locks it may hold or wait for.
    ///
    /// # Errors
    /// If the directory cannot be had.
    pub fn names_of(&self, peer: PeerId) -> Result<Vec<u64>, SpaceError> {
        Ok(self.table()?.names_of(peer))
    }

    /// What is known of the lock `id`; `None` if it has no name.
    ///
    /// # Errors
    /// If the directory cannot be had.
    pub fn info(&self, id: u64) -> Result<Option<NameInfo>, SpaceError> {
        let table = self.table()?;
        Ok(table.is_live(id).then(|| table.info(id)))
    }

    /// All names. The directory is locked meanwhile.
    ///
    /// # Errors
    /// If the directory cannot be had.
    pub fn all(&self) -> Result<Vec<NameInfo>, SpaceError> {
        let table = self.table()?;
        Ok((0..table.used()).filter(|id| table.is_live(*id)).map(|id| table.info(id)).collect())
    }

    /// Lets `reclaim` decide about every unused name; returns how many were removed.
    ///
    /// # Errors
    /// If the directory cannot be had.
    pub fn sweep(&self, mut reclaim: impl FnMut(u64) -> Reclaim) -> Result<usize, SpaceError> {
        let table = self.table()?;
        let unused = |id: &u64| table.is_live(*id) && table.link(*id, FIRST_USE).load(SeqCst) == 0;
        Ok((0..table.used()).filter(unused).filter(|id| settle(&table, *id, &mut reclaim)).count())
    }

    /// How many names there are.
    pub fn len(&self) -> u64 {
        self.client.shared.map.u64(AT_NAMES_LIVE).load(SeqCst)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn table(&self) -> Result<Table<'_>, SpaceError> {
        Table::lock(&self.client)
    }
}

/// Removes an unused name if `reclaim` says so; whether it did.
fn settle(table: &Table<'_>, id: u64, reclaim: impl FnOnce(u64) -> Reclaim) -> bool {
    let Reclaim::Reuse { highest_token, own_token } = reclaim(id) else { return false };
    table.shared().map.u64(AT_TOKEN_FLOOR).fetch_max(highest_token, SeqCst);
    table.note_tokens(id, own_token);
    table.remove(id);
    true
}

fn check(name: &[u8]) -> Result<(), SpaceError> {
    match name {
        [] => Err(SpaceError::BadName("it is empty")),
        _ if name.len() > NAME_MAX => Err(SpaceError::BadName("it is longer")),
        _ if name.contains(&0) => Err(SpaceError::BadName("it has a zero byte")),
        _ => Ok(()),
    }
}
