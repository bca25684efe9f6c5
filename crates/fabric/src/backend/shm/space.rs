//! A space as its users hold it.

use super::area::WordSlice;
use super::clients::ClientInfo;
use super::endpoint::ShmEndpoint;
use super::error::SpaceError;
use super::file::read_bytes;
use super::layout::{AT_CREATED, AT_PARAMS, AT_PARAMS_LEN, AT_TAG, PARAMS_MAX, TAG_MAX};
use super::options::{SpaceOptions, space_path};
use super::shared::Handle;
use super::watch::{Deaths, Died};
use crate::addr::{Addr, NodeId, PeerId, RegionId, Value, Width, Word, Word64};
use crate::verb::Op;
use crate::wait::Time;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A lock space in shared memory, opened by this process. Clones are the same opening.
///
/// Opening does not join: [`endpoint`](Self::endpoint) does, and each endpoint is a client of its own.
#[derive(Clone, Debug)]
pub struct ShmSpace {
    handle: Arc<Handle>,
}

impl ShmSpace {
    /// Opens the space at `path`, and makes it as `options` say if it is not there. Two processes that do this at the
    /// same time get the same space.
    ///
    /// # Errors
    /// What is wrong with the file that is there, or why none could be made. A file that is not ours, or of another
    /// version, boot or pid namespace, is left as it is.
    pub fn open(path: impl AsRef<Path>, options: &SpaceOptions) -> Result<Self, SpaceError> {
        Handle::open(path.as_ref(), options).map(|handle| Self { handle: Arc::new(handle) })
    }

    /// Opens the space called `name` at its [usual place](space_path).
    ///
    /// # Errors
    /// As [`open`](Self::open), and if `name` is no file name.
    pub fn named(name: &str, options: &SpaceOptions) -> Result<Self, SpaceError> {
        Self::open(space_path(name)?, options)
    }

    /// Removes the space's file. Processes that have it open keep what they have, and new ones get a new space: only
    /// for spaces that nobody uses. Removing what is not there is no error.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove(path: impl AsRef<Path>) -> Result<(), SpaceError> {
        match rustix::fs::unlink(path.as_ref()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(SpaceError::System { doing: "remove the lock space", error }),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.handle.path
    }

    /// Whether the file at [`path`](Self::path) is still the one that was opened. If somebody has removed it, others
    /// who open the space now get another, with locks of its own.
    pub fn is_current(&self) -> bool {
        let (Ok(mine), Ok(there)) =
            (rustix::fs::fstat(self.handle.map.file()), rustix::fs::stat(&self.handle.path))
        else {
            return false;
        };
        (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
    }

    /// What the maker called the space's protocol.
    pub fn tag(&self) -> String {
        let bytes = read_bytes(&self.handle.map, AT_TAG, TAG_MAX);
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    /// The maker's own parameters.
    pub fn params(&self) -> Vec<u8> {
        let len = self.handle.map.u64(AT_PARAMS_LEN).load(SeqCst) as usize;
        read_bytes(&self.handle.map, AT_PARAMS, len.min(PARAMS_MAX))
    }

    /// When the space was made, by the clock of [`now`](Self::now).
    pub fn created(&self) -> Time {
        Time(self.handle.map.u64(AT_CREATED).load(SeqCst))
    }

    /// The time that all clients of the space share: CLOCK_MONOTONIC.
    pub fn now(&self) -> Time {
        self.handle.clock.now()
    }

    /// Joins the space as a new client.
    ///
    /// # Errors
    /// [`SpaceError::TooManyClients`], or if the system has no memory for it.
    pub fn endpoint(&self) -> Result<ShmEndpoint, SpaceError> {
        ShmEndpoint::join(&self.handle)
    }

    /// Bytes of lock memory in a region; 0 if there is no such region.
    pub fn bytes(&self, node: NodeId, region: RegionId) -> u64 {
        let area = self.handle.area_index(Addr { offset: 0, node, region });
        area.map_or(0, |index| self.handle.areas[index].bytes())
    }

    /// Makes a region at least `bytes` long. New memory is zero. Nothing moves, every process can use it at once, and
    /// two processes that grow it at the same time get the larger size.
    ///
    /// # Errors
    /// [`SpaceError::TooLarge`] beyond what was reserved, [`SpaceError::System`] if there is no memory.
    pub fn grow(&self, node: NodeId, region: RegionId, bytes: u64) -> Result<(), SpaceError> {
        let area = self.handle.area_index(Addr { offset: 0, node, region });
        let area = area.ok_or(SpaceError::BadOptions("the space has no such region"))?;
        self.handle.grow(area as u64, bytes)
    }

    /// Takes memory for these bytes of a region, so that a full file system is an error here and not a signal (SIGBUS)
    /// at the first verb that touches them. Opening a large space takes no memory at all.
    ///
    /// # Errors
    /// [`SpaceError::System`] if there is no memory; [`SpaceError::TooLarge`] outside the region.
    pub fn provide(&self, addr: Addr, bytes: u64) -> Result<(), SpaceError> {
        let index =
            self.handle.area_index(addr).ok_or(SpaceError::BadOptions("the space has no such region"))?;
        let (end, limit) = (addr.offset.saturating_add(bytes), self.handle.areas[index].bytes());
        if end > limit {
            return Err(SpaceError::TooLarge { wanted: end, reserved: limit });
        }
        self.handle.map.provide(self.handle.layout.area(index as u64) + addr.offset, bytes.max(1))
    }

    /// Everybody who is in the space, or dead and not yet buried.
    pub fn clients(&self) -> Vec<ClientInfo> {
        self.handle.clients()
    }

    /// Those who are dead and not yet buried: lock words may still name them, and somebody must recover those locks,
    /// drop their [names](super::Names::drop_all_of), and [`reap`](Self::reap) them.
    pub fn dead_clients(&self) -> Vec<ClientInfo> {
        self.clients().into_iter().filter(|client| !client.alive).collect()
    }

    /// Whether `peer` is in the space and its process not known to have ended. Looks at the process: a few system calls.
    pub fn is_alive(&self, peer: PeerId) -> bool {
        self.handle.is_alive(peer)
    }

    /// Declares `peer` dead, though its process may only be stopped or slow: its lease ran out. From then on its verbs
    /// fail with [`FabricError::Evicted`](crate::FabricError::Evicted). At most one verb, of which it had begun to
    /// execute the instruction, can still take effect, as with a client that dies for real. `false` if it was out
    /// already.
    pub fn evict(&self, peer: PeerId) -> bool {
        self.handle.evict(peer)
    }

    /// Lets the slot of a dead client be used again, once no lock word names it any more. `false` if it is alive, still
    /// uses names, or was only declared dead and its process has neither ended nor dropped the endpoint: try again
    /// later.
    pub fn reap(&self, peer: PeerId) -> bool {
        self.handle.reap(peer)
    }

    /// Done when `peer` is out: dead, declared dead, or gone in peace. Seen at once, by a pidfd.
    pub fn died(&self, peer: PeerId) -> Died {
        Died::new(&self.handle, peer)
    }

    /// Tells of every death from now on.
    pub fn deaths(&self) -> Deaths {
        Deaths::new(&self.handle)
    }

    /// What `word` holds, without a client: for looking after.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn peek<T: Value>(&self, word: Word<T>) -> T {
        match self.handle.reach(word.addr(), T::WIDTH, &Op::Read) {
            Some((wide, _)) => T::narrow(wide),
            None => self.handle.refuse(word.addr(), T::WIDTH),
        }
    }

    /// The `words` words from `first` on, to be read and written without verbs.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn word_slice(&self, first: Word64, words: u64) -> WordSlice {
        let addr = first.addr();
        let area = self.handle.area_index(addr).map(|index| &self.handle.areas[index]);
        let lines = area.and_then(|area| area.word_slice(addr.offset, words));
        lines.unwrap_or_else(|| self.handle.refuse(addr, Width::W64))
    }
}
