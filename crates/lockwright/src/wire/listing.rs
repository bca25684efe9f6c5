//! Listings on their way from a server to an inspector: lines of bytes, in pages.
//!
//! What this file must not do: trust the bytes. What cannot be read ends the listing.

use crate::inspect::{Entry, EntryState, Heat, Kind, Permits};
use crate::name::LockName;
use std::time::Duration;

/// A listing grows to this many bytes; what does not fit is left out.
pub const MOST: usize = 2 << 20;
/// The first version whose lines say whose a process is, and which thread asked.
const USERS_SINCE: u64 = 7;

/// Bytes being written.
#[derive(Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
    old: bool,
}

impl Writer {
    /// For a client that speaks this version of lock spaces.
    pub fn for_version(version: u64) -> Self {
        Self { out: Vec::new(), old: version < USERS_SINCE }
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    fn number(&mut self, number: u64) {
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        self.out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.out.extend_from_slice(bytes);
    }

    /// Appends a line, unless the listing is full.
    pub fn entry(&mut self, entry: &Entry) {
        if self.out.len() >= MOST {
            return;
        }
        let state = match entry.state {
            EntryState::Held => 0,
            EntryState::Waiting => 1 | if entry.upgrades { 4 } else { 0 },
            EntryState::Retained => 4,
        };
        let flags = [entry.shared, entry.alive, entry.token.is_some(), entry.range.is_some()];
        let bits = flags.iter().enumerate().map(|(bit, flag)| u8::from(*flag) << (bit + 4)).sum::<u8>();
        self.out.push(state | u8::from(entry.changing) << 1 | u8::from(entry.permits.is_some()) << 3 | bits);
        let permits = entry.permits.map(|permits| permits.held..permits.limit);
        let range = entry.range.clone().or(permits).unwrap_or_default();
        for number in [entry.token.unwrap_or(0), range.start, range.end, nanos(entry.age), entry.pid.into()] {
            self.number(number);
        }
        self.bytes(entry.name.as_bytes());
        self.bytes(entry.host.as_bytes());
        self.bytes(entry.program.as_bytes());
        if !self.old {
            self.bytes(entry.user.as_bytes());
            self.number(entry.thread.map_or(0, |thread| u64::from(thread) + 1));
        }
    }

    /// Appends what a lock has seen, unless the listing is full.
    pub fn heat(&mut self, heat: &Heat) {
        if self.out.len() >= MOST {
            return;
        }
        self.out.push(match heat.kind {
            Kind::Keyed => 0,
            Kind::Ranges => 1,
            Kind::Semaphores => 2,
        });
        let counts = [heat.holders, heat.retained, heat.waiters, heat.grants, heat.contended];
        counts.into_iter().chain([nanos(heat.waited)]).for_each(|number| self.number(number));
        self.bytes(heat.name.as_bytes());
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes being read.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    /// All lines of a listing of holders and waiters.
    pub(crate) fn entries(mut self) -> Vec<Entry> {
        std::iter::from_fn(|| self.entry()).collect()
    }

    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = u16::from_le_bytes(*self.take(2)?.first_chunk()?);
        Some(self.take(len.into())?.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    /// The next line.
    pub fn entry(&mut self) -> Option<Entry> {
        let first = *self.take(1)?.first()?;
        let has = |bit: u32| first >> (bit + 4) & 1 == 1;
        let [token, start, end, age, pid] =
            [self.number()?, self.number()?, self.number()?, self.number()?, self.number()?];
        Some(Entry {
            state: match first & 0x5 {
                0 => EntryState::Held,
                4 => EntryState::Retained,
                _ => EntryState::Waiting,
            },
            upgrades: first & 0x5 == 0x5,
            changing: first & 2 != 0,
            shared: has(0),
            alive: has(1),
            token: has(2).then_some(token),
            range: has(3).then_some(start..end),
            permits: (first & 8 != 0).then_some(Permits { held: start, limit: end }),
            age: Duration::from_nanos(age),
            pid: u32::try_from(pid).ok()?,
            name: LockName::new(self.bytes()?).ok()?,
            host: self.text()?,
            program: self.text()?,
            user: self.text()?,
            thread: self.number()?.checked_sub(1).and_then(|thread| u32::try_from(thread).ok()),
        })
    }

    /// What the next lock has seen.
    pub fn heat(&mut self) -> Option<Heat> {
        let kind = match *self.take(1)?.first()? {
            0 => Kind::Keyed,
            1 => Kind::Ranges,
            2 => Kind::Semaphores,
            _ => return None,
        };
        let mut counts = [0; 6];
        for count in &mut counts {
            *count = self.number()?;
        }
        let [holders, retained, waiters, grants, contended, waited] = counts;
        let (name, waited) = (LockName::new(self.bytes()?).ok()?, Duration::from_nanos(waited));
        Some(Heat { name, kind, holders, retained, waiters, grants, contended, waited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            name: LockName::new(b"a\xff").unwrap(),
            state: EntryState::Waiting,
            shared: true,
            range: Some(3..9),
            permits: None,
            token: None,
            age: Duration::from_millis(5),
            pid: 17,
            user: "db".to_owned(),
            thread: Some(0),
            upgrades: true,
            host: "db7".to_owned(),
            program: "backup".to_owned(),
            alive: true,
            changing: false,
        }
    }

    #[test]
    fn lines_come_out_as_they_went_in_and_no_cut_makes_trouble() {
        let held = Entry {
            changing: true,
            state: EntryState::Held,
            token: Some(9),
            range: None,
            permits: Some(Permits { held: 2, limit: 4 }),
            thread: None,
            upgrades: false,
            ..entry()
        };
        let heat = Heat {
            name: LockName::new("x").unwrap(),
            kind: Kind::Semaphores,
            holders: 1,
            retained: 6,
            waiters: 2,
            grants: 3,
            contended: 4,
            waited: Duration::from_secs(5),
        };
        let retained = Entry { state: EntryState::Retained, ..held.clone() };
        let mut out = Writer::default();
        out.entry(&retained);
        assert_eq!(Reader(&out.out).entry(), Some(retained));
        let mut out = Writer::default();
        out.entry(&entry());
        out.entry(&held);
        out.heat(&heat);
        let mut reader = Reader(&out.out);
        assert_eq!((reader.entry(), reader.entry(), reader.heat()), (Some(entry()), Some(held), Some(heat)));
        for cut in 0..out.out.len() {
            let mut reader = Reader(&out.out[..cut]);
            assert!(reader.entry().is_none() || reader.entry().is_none() || reader.heat().is_none());
        }
    }
}
