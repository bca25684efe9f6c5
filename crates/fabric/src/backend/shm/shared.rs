//! A space as one process has it open: what endpoints, watchers and the directory share.

use super::area::{Area, Words};
use super::error::SpaceError;
use super::file::open_or_make;
use super::layout::{Layout, Section};
use super::map::Map;
use super::options::SpaceOptions;
use super::process::{self, Process};
use super::watch::Watch;
use crate::addr::{Addr, Width};
use crate::backend::clock::Clock;
use crate::verb::Op;
use portable_atomic::AtomicU128;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// One opened space.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) map: Arc<Map>,
    pub(super) layout: Layout,
    pub(super) areas: Arc<[Area]>,
    pub(super) hints: Words,
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) own: Process,
    pub(super) watch: Watch,
}

/// A hold on an opened space. Threads that work for it have only [`Shared`] itself; they stop when the last hold goes.
#[derive(Debug)]
pub(super) struct Handle(Arc<Shared>);

impl Handle {
    pub(super) fn open(path: &Path, options: &SpaceOptions) -> Result<Self, SpaceError> {
        Shared::open(path, options).map(|shared| Self(Arc::new(shared)))
    }

    /// For a thread of the space's own.
    pub(super) fn share(&self) -> Arc<Shared> {
        Arc::clone(&self.0)
    }
}

impl Deref for Handle {
    type Target = Shared;

    #[inline(always)]
    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stop_watching();
    }
}

impl Shared {
    fn open(path: &Path, options: &SpaceOptions) -> Result<Self, SpaceError> {
        if !AtomicU128::is_lock_free() {
            return Err(SpaceError::NoWideAtomics);
        }
        let own = Process::own()?;
        let (map, layout) = open_or_make(path, options)?;
        let area = |index| Area::new(&map, layout.area(index), Layout::limit_at(index));
        let areas = (0..layout.areas()).map(area).collect();
        let hints = Words::new(&map, layout.start(Section::Hints), layout.shape.buckets);
        let (path, clock, watch) = (path.to_owned(), Clock::by(process::now), Watch::default());
        Ok(Self { map, layout, areas, hints, path, clock, own, watch })
    }

    /// Which area an address lies in.
    #[inline(always)]
    pub(super) fn area_index(&self, addr: Addr) -> Option<usize> {
        let regions = self.layout.shape.regions as usize;
        let (node, region) = (addr.node.0 as usize, addr.region.0 as usize);
        (region < regions && node < self.layout.shape.nodes as usize).then_some(node * regions + region)
    }

    /// Executes one verb without looking for waiters.
    #[inline(always)]
    pub(super) fn reach(&self, addr: Addr, width: Width, op: &Op) -> Option<(u128, bool)> {
        self.areas.get(self.area_index(addr)?)?.execute(addr.offset, width, op)
    }

    /// Makes an area at least `bytes` long.
    pub(super) fn grow(&self, area: u64, bytes: u64) -> Result<(), SpaceError> {
        let bytes = bytes.next_multiple_of(16);
        let reserved = self.layout.shape.reserve;
        if bytes > reserved {
            return Err(SpaceError::TooLarge { wanted: bytes, reserved });
        }
        let limit = self.map.u64(Layout::limit_at(area));
        if limit.load(SeqCst) < bytes {
            // First the file, then the word that lets others reach what is new.
            self.map.extend(self.layout.area(area) + bytes)?;
            limit.fetch_max(bytes, SeqCst);
        }
        Ok(())
    }

    /// Why there is no word at `addr`: that is a mistake of the caller.
    #[cold]
    pub(super) fn refuse(&self, addr: Addr, width: Width) -> ! {
        match self.area_index(addr) {
            Some(index) => panic!(
                "{addr} is no place for a word of {} bytes: the region has {} bytes, and words are aligned to their size",
                width.bytes(),
                self.areas[index].bytes()
            ),
            None => panic!("{addr} lies in no region of this space"),
        }
    }
}
