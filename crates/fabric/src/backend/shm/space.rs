//! A space as its users hold it.

use super::area::WordSlice;
use super::clients::{ClientInfo, Room};
use super::endpoint::ShmEndpoint;
use super::error::SpaceError;
use super::file::read_bytes;
use super::layout::{AT_CREATED, AT_TAG, TAG_MAX};
use super::options::SpaceOptions;
use super::shared::Shared;
use crate::addr::{Addr, NodeId, PeerId, RegionId, Value, Width, Word, Word64};
use crate::verb::Op;
use crate::wait::Time;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A lock space in shared memory, opened by this process. Clones share the mapping.
///
/// Opening does not join: [`endpoint`](Self::endpoint) does, and each endpoint is a client of its own.
#[derive(Clone, Debug)]
pub struct ShmSpace {
    shared: Arc<Shared>,
}

impl ShmSpace {
    /// Opens the space at `path`, or creates it with `options`. Two processes that do this at the same time get the same
    /// space.
    ///
    /// # Errors
    /// What is wrong with the file, or why it could not be created. A file that is no space, or of another user, version,
    /// boot or pid namespace, is left as it is.
    pub fn open(path: impl AsRef<Path>, options: &SpaceOptions) -> Result<Self, SpaceError> {
        Shared::open(path.as_ref(), options).map(|shared| Self { shared: Arc::new(shared) })
    }

    /// Removes the space's file. Processes that have it open keep the old space, later ones create a new one: only for
    /// spaces that nobody uses. No error if there is none.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove(path: impl AsRef<Path>) -> Result<(), SpaceError> {
        match rustix::fs::unlink(path.as_ref()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(SpaceError::System { doing: "remove the lock space", error }),
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Which space this is: the same number in every process that has it open, and another one for every other space of
    /// this and of other hosts. Made of the host's boot id and the file's device and inode.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn identity(&self) -> Result<u128, SpaceError> {
        let file = rustix::fs::fstat(self.shared.map.file())
            .map_err(SpaceError::system("look at the lock space"))?;
        Ok(super::boot_id()? ^ (u128::from(file.st_dev) << 64 | u128::from(file.st_ino)))
    }

    /// The protocol's name, as the space's creator set it.
    pub fn tag(&self) -> String {
        let bytes = read_bytes(&self.shared.map, AT_TAG, TAG_MAX);
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    /// When the space was created, on the clock of [`now`](Self::now).
    pub fn created(&self) -> Time {
        Time(self.shared.map.u64(AT_CREATED).load(SeqCst))
    }

    /// CLOCK_MONOTONIC: the same for all clients of the space.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Joins the space as a new client.
    ///
    /// # Errors
    /// [`SpaceError::TooManyClients`], or if the system has no memory for it.
    pub fn endpoint(&self) -> Result<ShmEndpoint, SpaceError> {
        ShmEndpoint::join(&self.shared, &self.shared.label)
    }

    /// The same for a client elsewhere, which is called `label` in listings and stays in the space as long as this process
    /// keeps the endpoint.
    ///
    /// # Errors
    /// As [`endpoint`](Self::endpoint).
    pub fn endpoint_for(&self, label: &str) -> Result<ShmEndpoint, SpaceError> {
        ShmEndpoint::join(&self.shared, label)
    }

    /// How much room there is for clients.
    pub fn room(&self) -> Room {
        self.shared.room()
    }

    /// Bytes of lock memory in a region; 0 if there is no such region.
    pub fn bytes(&self, node: NodeId, region: RegionId) -> u64 {
        let area = self.shared.area_index(Addr { offset: 0, node, region });
        area.map_or(0, |index| self.shared.areas[index].bytes())
    }

    /// Allocates memory for `bytes` bytes of lock memory from `addr` on. To be called before they are used for the first time:
    /// without, a full file system is a SIGBUS at the first touch.
    ///
    /// # Errors
    /// [`SpaceError::Full`].
    ///
    /// # Panics
    /// If they do not all exist.
    pub fn allocate(&self, addr: Addr, bytes: u64) -> Result<(), SpaceError> {
        let index = self.shared.area_index(addr).unwrap_or_else(|| self.shared.refuse(addr, Width::W64));
        let end = addr.offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.shared.areas[index].bytes()), "{bytes} bytes at {addr}");
        self.shared.map.allocate(self.shared.layout.area(index as u64) + addr.offset, bytes)
    }

    /// All members, and the dead clients that are not reaped yet.
    pub fn clients(&self) -> Vec<ClientInfo> {
        self.shared.clients()
    }

    /// The dead clients that are not reaped yet. Lock words may still name them: the caller recovers their locks, drops
    /// their [names](super::Names::drop_all_of) and [reaps](Self::reap) them.
    pub fn dead_clients(&self) -> Vec<ClientInfo> {
        self.shared.dead_clients()
    }

    /// Whether `peer` is a member and its process not known to have ended. Checks the process: a few system calls.
    pub fn is_alive(&self, peer: PeerId) -> bool {
        self.shared.is_alive(peer)
    }

    /// Evicts `peer`, whose process may only be stopped or slow: its lease ran out. From then on its verbs fail with
    /// [`FabricError::Evicted`](crate::FabricError::Evicted). At most one verb whose instruction it had begun can still
    /// take effect, as with a client that dies. False if it was not a member any more.
    pub fn evict(&self, peer: PeerId) -> bool {
        self.shared.evict(peer)
    }

    /// Frees the slot of a dead client, once no lock word names it. False if it is alive, still uses names, or was evicted
    /// and its process has neither ended nor dropped the endpoint: try again later.
    pub fn reap(&self, peer: PeerId) -> bool {
        self.shared.reap(peer)
    }

    /// The value of `word`, read without a client: for inspection.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn peek<T: Value>(&self, word: Word<T>) -> T {
        match self.shared.reach(word.addr(), T::WIDTH, &Op::Read) {
            Some((wide, _)) => T::narrow(wide),
            None => self.shared.refuse(word.addr(), T::WIDTH),
        }
    }

    /// The `words` words from `first` on, to be read and written without verbs.
    ///
    /// # Panics
    /// If they do not all exist.
    pub fn word_slice(&self, first: Word64, words: u64) -> WordSlice {
        let addr = first.addr();
        let area = self.shared.area_index(addr).map(|index| &self.shared.areas[index]);
        let slice = area.and_then(|area| area.word_slice(addr.offset, words));
        slice.unwrap_or_else(|| self.shared.refuse(addr, Width::W64))
    }
}
