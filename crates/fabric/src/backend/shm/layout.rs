//! The layout of a space file: written by its creator, read by all other processes.
//!
//! The file starts with three pages. Page 0 is written once, before the file has a name; page 1 holds the words that all
//! clients change, page 2 the sizes of the areas.
//!
//! | page 0, byte | holds |
//! |---|---|
//! | 0 | magic, `LOCKWRGT` |
//! | 8 | version of this layout |
//! | 16..32 | boot id of the host |
//! | 32 | pid namespace of the client table's pids |
//! | 40 | creation time, CLOCK_MONOTONIC, nanoseconds |
//! | 48..128 | ten parameters, see [`Shape`] |
//! | 128..256 | sections: (offset, bytes) each, see [`Section`] |
//! | 256..768 | areas: (offset, reserved bytes) each |
//! | 768..832 | tag: the protocol's name |
//! | 832 | time namespace of its clocks and start times; 0 where the kernel has none |
//!
//! | page 1, byte | holds |
//! |---|---|
//! | 4160 | where the next search for a free client slot starts |
//! | 4224 | directory: its lock |
//! | 4288.. | directory: names ever used, first free, references ever used, first free, live names, token floor |
//!
//! Page 2 has one cache line per area: its size in bytes.

use super::error::SpaceError;
use super::map::Map;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"LOCKWRGT");
/// Raised whenever a byte of the file changes its meaning.
pub(super) const VERSION: u64 = 3;

pub(super) const PAGE: u64 = 4096;
pub(super) const HEADER_BYTES: u64 = 3 * PAGE;

pub(super) const AT_VERSION: u64 = 8;
pub(super) const AT_BOOT: u64 = 16;
pub(super) const AT_PID_NS: u64 = 32;
pub(super) const AT_CREATED: u64 = 40;
const AT_SHAPE: u64 = 48;
const AT_SECTIONS: u64 = 128;
const AT_AREAS: u64 = 256;
pub(super) const AT_TAG: u64 = 768;
/// The longest tag.
pub(super) const TAG_MAX: usize = 64;
pub(super) const AT_TIME_NS: u64 = 832;

pub(super) const AT_CURSOR: u64 = PAGE + 64;
pub(super) const AT_NAMES_LOCK: u64 = PAGE + 128;
pub(super) const AT_NAMES_USED: u64 = PAGE + 192;
pub(super) const AT_NAMES_FREE: u64 = PAGE + 200;
pub(super) const AT_REFS_USED: u64 = PAGE + 208;
pub(super) const AT_REFS_FREE: u64 = PAGE + 216;
pub(super) const AT_NAMES_LIVE: u64 = PAGE + 224;
pub(super) const AT_TOKEN_FLOOR: u64 = PAGE + 232;

const AT_LIMITS: u64 = 2 * PAGE;
/// The most areas: nodes times regions.
pub(super) const MAX_AREAS: u64 = 32;

pub(super) const SLOT_BYTES: u64 = 256;
pub(super) const CELL_BYTES: u64 = 64;
/// Waiters that one bucket of the parking table can hold.
pub(super) const WAITERS_PER_BUCKET: u64 = 16;
pub(super) const ENTRY_BYTES: u64 = 320;
pub(super) const REF_BYTES: u64 = 16;

const _: () = assert!(AT_SHAPE + 10 * 8 <= AT_SECTIONS);
const _: () = assert!(AT_SECTIONS + 16 * Section::COUNT as u64 <= AT_AREAS);
const _: () = assert!(AT_AREAS + 16 * MAX_AREAS <= AT_TAG);
const _: () = assert!(AT_TAG + TAG_MAX as u64 <= AT_TIME_NS && AT_TIME_NS + 8 <= PAGE);
const _: () = assert!(AT_LIMITS + 64 * MAX_AREAS <= HEADER_BYTES);

/// The parameters that decide a file's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Client slots, a power of two.
    pub(super) clients: u64,
    /// Bits of a peer's number.
    pub(super) peer_bits: u64,
    /// Cells of a mailbox.
    pub(super) cells: u64,
    /// Buckets of the parking table, a power of two.
    pub(super) buckets: u64,
    /// Names.
    pub(super) names: u64,
    /// References to names.
    pub(super) refs: u64,
    /// Memory nodes.
    pub(super) nodes: u64,
    /// Regions of each.
    pub(super) regions: u64,
    /// Bytes from one area to the next.
    pub(super) reserve: u64,
    /// Nanoseconds that a sender waits for a receiver that takes nothing out of its full mailbox.
    pub(super) patience_ns: u64,
}

impl Shape {
    fn to_words(self) -> [u64; 10] {
        let Self { clients, peer_bits, cells, buckets, names, refs, nodes, regions, reserve, patience_ns } =
            self;
        [clients, peer_bits, cells, buckets, names, refs, nodes, regions, reserve, patience_ns]
    }

    fn from_words(words: [u64; 10]) -> Self {
        let [clients, peer_bits, cells, buckets, names, refs, nodes, regions, reserve, patience_ns] = words;
        Self { clients, peer_bits, cells, buckets, names, refs, nodes, regions, reserve, patience_ns }
    }

    /// Whether a file of this shape can be laid out; also guards against a corrupt header.
    fn is_sane(&self) -> bool {
        let small = 1..=1 << 32;
        self.clients.is_power_of_two()
            && self.buckets.is_power_of_two()
            && [self.clients, self.cells, self.buckets, self.names, self.refs]
                .iter()
                .all(|n| small.contains(n))
            && self.peer_bits > u64::from(self.clients.trailing_zeros())
            && self.peer_bits <= 31
            && self.nodes * self.regions >= 1
            && self.nodes.saturating_mul(self.regions) <= MAX_AREAS
            && self.reserve.is_multiple_of(PAGE)
            && (PAGE..=1 << 46).contains(&self.reserve)
    }
}

/// The file's parts between the header and the lock memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// The client table.
    Clients,
    /// A ring of cells per client.
    Mailboxes,
    /// Parking: one word per bucket, set if it may have waiters.
    Hints,
    /// Parking: the waiters.
    Waiters,
    /// Directory: hash buckets.
    NameIndex,
    /// Directory: the names.
    Names,
    /// Directory: who uses them.
    Refs,
}

impl Section {
    const COUNT: usize = 7;
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) shape: Shape,
    sections: [u64; Section::COUNT],
    /// Where lock memory begins.
    pub(super) meta_bytes: u64,
}

impl Layout {
    /// The layout of a file of this shape.
    pub(super) fn new(shape: Shape) -> Result<Self, SpaceError> {
        if !shape.is_sane() {
            return Err(SpaceError::BadOptions(
                "the numbers of clients, names, cells or areas are out of bounds",
            ));
        }
        let sizes = [
            shape.clients * SLOT_BYTES,
            shape.clients * shape.cells * CELL_BYTES,
            shape.buckets * 8,
            shape.buckets * WAITERS_PER_BUCKET * 8,
            Self::index_len(&shape) * 4,
            shape.names * ENTRY_BYTES,
            shape.refs * REF_BYTES,
        ];
        let mut end = HEADER_BYTES;
        let sections = sizes.map(|size| {
            let start = end;
            end = (end + size).next_multiple_of(PAGE);
            start
        });
        Ok(Self { shape, sections, meta_bytes: end })
    }

    fn index_len(shape: &Shape) -> u64 {
        (shape.names * 2).next_power_of_two()
    }

    /// Length of the directory's hash index, a power of two.
    pub(super) fn index(&self) -> u64 {
        Self::index_len(&self.shape)
    }

    #[inline(always)]
    pub(super) const fn start(&self, section: Section) -> u64 {
        self.sections[section as usize]
    }

    pub(super) const fn areas(&self) -> u64 {
        self.shape.nodes * self.shape.regions
    }

    /// Where area `index` begins.
    pub(super) const fn area(&self, index: u64) -> u64 {
        self.meta_bytes + index * self.shape.reserve
    }

    /// Bytes of the whole file.
    pub(super) const fn span(&self) -> u64 {
        self.area(self.areas())
    }

    /// The word that holds the size of area `index`.
    pub(super) const fn limit_at(index: u64) -> u64 {
        AT_LIMITS + 64 * index
    }

    /// Writes the tables into a new file.
    pub(super) fn write(&self, map: &Map) {
        for (at, word) in (AT_SHAPE..).step_by(8).zip(self.shape.to_words()) {
            map.u64(at).store(word, Relaxed);
        }
        let ends = self.sections[1..].iter().chain([&self.meta_bytes]);
        for ((at, start), end) in (AT_SECTIONS..).step_by(16).zip(self.sections).zip(ends) {
            map.u64(at).store(start, Relaxed);
            map.u64(at + 8).store(end - start, Relaxed);
        }
        for area in 0..self.areas() {
            map.u64(AT_AREAS + 16 * area).store(self.area(area), Relaxed);
            map.u64(AT_AREAS + 16 * area + 8).store(self.shape.reserve, Relaxed);
        }
    }

    /// Reads the tables of a file whose magic and version are ours.
    pub(super) fn read(map: &Map) -> Result<Self, SpaceError> {
        let shape = Shape::from_words(std::array::from_fn(|i| map.u64(AT_SHAPE + 8 * i as u64).load(SeqCst)));
        let layout = Self::new(shape).map_err(|_| SpaceError::Damaged("its parameters are out of bounds"))?;
        let starts = (AT_SECTIONS..).step_by(16).zip(layout.sections);
        if starts.into_iter().any(|(at, start)| map.u64(at).load(SeqCst) != start) {
            return Err(SpaceError::Damaged("its table of sections is not what its parameters say"));
        }
        Ok(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        clients: 64,
        peer_bits: 16,
        cells: 8,
        buckets: 16,
        names: 100,
        refs: 200,
        nodes: 2,
        regions: 1,
        reserve: 1 << 20,
        patience_ns: 1,
    };

    #[test]
    fn sections_follow_each_other_and_start_at_pages() {
        let layout = Layout::new(SHAPE).unwrap();
        assert!(layout.sections.iter().all(|start| start.is_multiple_of(PAGE)));
        assert!(layout.sections.is_sorted_by(|a, b| a < b), "{:?}", layout.sections);
        assert_eq!(layout.start(Section::Clients), HEADER_BYTES);
        assert_eq!(layout.start(Section::Mailboxes), HEADER_BYTES + 64 * SLOT_BYTES);
        assert_eq!(layout.span(), layout.meta_bytes + (2 << 20));
    }

    #[test]
    fn a_shape_survives_its_words() {
        assert_eq!(Shape::from_words(SHAPE.to_words()), SHAPE);
    }

    #[test]
    fn shapes_out_of_bounds_are_refused() {
        for shape in [
            Shape { clients: 63, ..SHAPE },
            Shape { peer_bits: 6, ..SHAPE },
            Shape { nodes: 0, ..SHAPE },
            Shape { nodes: u64::MAX, ..SHAPE },
            Shape { names: u64::MAX, ..SHAPE },
            Shape { reserve: 1, ..SHAPE },
        ] {
            assert!(Layout::new(shape).is_err(), "{shape:?}");
        }
    }
}
