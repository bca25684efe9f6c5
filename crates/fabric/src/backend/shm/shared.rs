//! A space as one process has it open: what its endpoints share.

use super::area::{Area, Words};
use super::error::SpaceError;
use super::file::open_or_create;
use super::layout::{Layout, Section};
use super::map::Map;
use super::options::SpaceOptions;
use super::pidfd_cache::PidfdCache;
use super::process::{self, Process};
use crate::addr::{Addr, Width};
use crate::backend::clock::Clock;
use crate::verb::Op;
use portable_atomic::AtomicU128;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) map: Arc<Map>,
    pub(super) layout: Layout,
    pub(super) areas: Arc<[Area]>,
    pub(super) hints: Words,
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    pub(super) own: Process,
    /// This process in listings.
    pub(super) label: String,
    pub(super) pidfds: PidfdCache,
}

impl Shared {
    pub(super) fn open(path: &Path, options: &SpaceOptions) -> Result<Self, SpaceError> {
        if !AtomicU128::is_lock_free() {
            return Err(SpaceError::NoWideAtomics);
        }
        let (own, label) = (Process::own()?, process::label(options.program.as_deref()));
        let (map, layout) = open_or_create(path, options)?;
        let areas = (0..layout.areas()).map(|index| Area::new(&map, &layout, index)).collect();
        let hints = Words::new(&map, layout.start(Section::Hints), layout.shape.buckets);
        let (path, clock, pidfds) = (path.to_owned(), Clock::from_fn(process::now), PidfdCache::default());
        Ok(Self { map, layout, areas, hints, path, clock, own, label, pidfds })
    }

    /// The index of the area that `addr` lies in.
    #[inline(always)]
    pub(super) fn area_index(&self, addr: Addr) -> Option<usize> {
        let regions = self.layout.shape.regions as usize;
        let (node, region) = (addr.node.0 as usize, addr.region.0 as usize);
        (region < regions && node < self.layout.shape.nodes as usize).then_some(node * regions + region)
    }

    /// Executes one verb and wakes nobody.
    #[inline(always)]
    pub(super) fn reach(&self, addr: Addr, width: Width, op: &Op) -> Option<(u128, bool)> {
        self.areas.get(self.area_index(addr)?)?.execute(addr.offset, width, op)
    }

    /// Panics with the reason why there is no word at `addr`: a bug of the caller.
    #[cold]
    pub(super) fn refuse(&self, addr: Addr, width: Width) -> ! {
        match self.area_index(addr) {
            Some(index) => panic!(
                "no word of {} bytes at {addr}: the region has {} bytes, and words are aligned to their size",
                width.bytes(),
                self.areas[index].bytes()
            ),
            None => panic!("{addr} lies in no region of this space"),
        }
    }
}
