//! The memory of all nodes: plain words, changed one verb at a time.

use lockwright_fabric::backend::{large_pages, prefetch};
use lockwright_fabric::{Addr, NodeId, RawVerb, RegionId, Width};

/// Registered memory: the lock table of every node, its only region.
#[derive(Clone, Debug)]
pub struct Memory {
    tables: Vec<Vec<u64>>,
}

impl Memory {
    /// `bytes` of zeroes in region 0 of each of `nodes` nodes.
    pub(crate) fn new(nodes: u16, bytes: u64) -> Self {
        // Rounded up to whole 16-byte words. Zeroed by the operating system, page by page as touched; large pages, for
        // locks are touched at random.
        let words = bytes.div_ceil(16) as usize * 2;
        let table = |_| {
            let mut table = vec![0; words];
            large_pages(&mut table);
            table
        };
        Self { tables: (0..nodes).map(table).collect() }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> u16 {
        self.tables.len() as u16
    }

    /// The word at `addr`; a 64-bit one sits in the low bits.
    #[inline]
    pub fn read(&self, addr: Addr, width: Width) -> u128 {
        let (words, at) = (self.table(addr), (addr.offset / 8) as usize);
        match width {
            Width::W64 => u128::from(words[at]),
            Width::W128 => u128::from(words[at]) | (u128::from(words[at + 1]) << 64),
        }
    }

    /// Sets the word at `addr`.
    #[inline]
    pub fn write(&mut self, addr: Addr, width: Width, value: u128) {
        let (words, at) = (self.table_mut(addr), (addr.offset / 8) as usize);
        words[at] = value as u64;
        if width == Width::W128 {
            words[at + 1] = (value >> 64) as u64;
        }
    }

    /// Executes `verb` and says what was there before.
    #[inline]
    pub(crate) fn execute(&mut self, verb: &RawVerb) -> u128 {
        let (words, at) = (self.table_mut(verb.addr), (verb.addr.offset / 8) as usize);
        match verb.width {
            Width::W64 => {
                let word = &mut words[at];
                let old = u128::from(*word);
                if let Some(new) = verb.op.apply(Width::W64, old) {
                    *word = new as u64;
                }
                old
            }
            Width::W128 => {
                let [low, high] = &mut words[at..at + 2] else { unreachable!("two words are two words") };
                let old = u128::from(*low) | (u128::from(*high) << 64);
                if let Some(new) = verb.op.apply(Width::W128, old) {
                    (*low, *high) = (new as u64, (new >> 64) as u64);
                }
                old
            }
        }
    }

    /// Says that the word at `addr` will be needed when a verb arrives there.
    #[inline]
    pub(crate) fn prefetch(&self, addr: Addr) {
        if let Some(word) = self.table(addr).get((addr.offset / 8) as usize) {
            prefetch(word);
        }
    }

    /// The words of every node's lock table, eight bytes each.
    pub fn lock_words(&self) -> impl Iterator<Item = (Addr, u64)> + '_ {
        self.tables.iter().enumerate().flat_map(|(node, words)| {
            words
                .iter()
                .enumerate()
                .map(move |(at, word)| (Addr::new(NodeId(node as u16), at as u64 * 8), *word))
        })
    }

    /// Those of them that are not zero. Most of a large table never were anything else.
    pub(crate) fn lock_words_set(&self) -> impl Iterator<Item = (Addr, u64)> + '_ {
        const SKIPPED: usize = 64;
        self.tables.iter().enumerate().flat_map(|(node, words)| {
            let chunks = words.chunks(SKIPPED).enumerate();
            let set = chunks.filter(|(_, chunk)| chunk.iter().fold(0, |all, word| all | word) != 0);
            set.flat_map(move |(chunk, words)| {
                let at = move |word| Addr::new(NodeId(node as u16), ((chunk * SKIPPED + word) * 8) as u64);
                words
                    .iter()
                    .enumerate()
                    .map(move |(word, value)| (at(word), *value))
                    .filter(|(_, value)| *value != 0)
            })
        })
    }

    #[inline]
    fn table(&self, addr: Addr) -> &[u64] {
        assert_eq!(addr.region, RegionId(0), "a simulated node has one region");
        &self.tables[addr.node.0 as usize]
    }

    #[inline]
    fn table_mut(&mut self, addr: Addr) -> &mut [u64] {
        assert_eq!(addr.region, RegionId(0), "a simulated node has one region");
        &mut self.tables[addr.node.0 as usize]
    }
}
