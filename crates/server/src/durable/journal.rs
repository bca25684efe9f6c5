//! A server's disk in memory, for the explorer: it can be copied and compared, and lets the server die at any of its writes.

use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::io;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    text: String,
    /// The run it is about, whether it is complete, and the key of every session that may hold something.
    holders: Option<(u64, bool, BTreeMap<u32, u128>)>,
    /// The file of values.
    values: String,
    writes: u32,
    /// At which of the writes to come the server dies, and whether that is on the disk.
    dies: Option<(u32, bool)>,
    dead: bool,
}

/// What is on it. How often it was written decides about nothing.
impl Hash for Journal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.text, &self.holders, &self.values).hash(state);
    }
}

impl Journal {
    /// Lets the server die at the nth write from now on; `true`: after it, `false`: before it.
    pub const fn die_at(&mut self, dies: Option<(u32, bool)>) {
        (self.dies, self.writes) = (dies, 0);
    }

    /// Writes since [`die_at`](Self::die_at).
    pub const fn writes(&self) -> u32 {
        self.writes
    }

    /// Bytes on it, but for the keys of sessions.
    pub const fn bytes(&self) -> usize {
        self.text.len() + self.values.len()
    }

    /// What the next run finds.
    #[must_use]
    pub fn after_death(&self) -> Self {
        let Self { text, holders, values, .. } = self.clone();
        Self { text, holders, values, ..Self::default() }
    }

    /// Writes, unless the server is dead by then.
    fn write(&mut self, write: impl FnOnce(&mut Self)) -> io::Result<()> {
        self.writes += 1;
        let dies = self.dies.filter(|(at, _)| *at == self.writes);
        if !self.dead && dies.is_none_or(|(_, kept)| kept) {
            write(self);
        }
        self.dead |= dies.is_some();
        if self.dead { Err(io::Error::other("the server is dead")) } else { Ok(()) }
    }

    pub(super) fn lines(&self) -> Option<String> {
        (!self.text.is_empty()).then(|| self.text.clone())
    }

    pub(super) fn replace(&mut self, text: &str) -> io::Result<()> {
        self.write(|journal| text.clone_into(&mut journal.text))
    }

    pub(super) fn append(&mut self, lines: &str) -> io::Result<()> {
        self.write(|journal| journal.text.push_str(lines))
    }

    pub(super) fn values(&self) -> Option<String> {
        (!self.values.is_empty()).then(|| self.values.clone())
    }

    pub(super) fn replace_values(&mut self, text: &str) -> io::Result<()> {
        self.write(|journal| text.clone_into(&mut journal.values))
    }

    pub(super) fn append_values(&mut self, line: &str) -> io::Result<()> {
        self.write(|journal| {
            if journal.values.is_empty() {
                journal.values = super::values::head();
            }
            journal.values.push_str(line);
        })
    }

    pub(super) fn holders(&self, run: u64) -> Option<HashSet<u128>> {
        let (of, complete, keys) = self.holders.as_ref()?;
        (*of == run && *complete).then(|| keys.values().copied().collect())
    }

    pub(super) fn begin_holders(&mut self, run: u64, complete: bool) {
        let _ = self.write(|journal| journal.holders = Some((run, complete, BTreeMap::new())));
    }

    pub(super) fn put_holder(&mut self, number: u32, key: u128) {
        let _ = self.write(|journal| {
            if let Some((_, _, keys)) = &mut journal.holders {
                match key {
                    0 => keys.remove(&number),
                    key => keys.insert(number, key),
                };
            }
        });
    }

    pub(super) fn complete_holders(&mut self) {
        let _ = self.write(|journal| {
            if let Some((_, complete, _)) = &mut journal.holders {
                *complete = true;
            }
        });
    }
}
