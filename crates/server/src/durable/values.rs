//! The values of locks, in one small file of text beside the state: `value SPACE NAME OPEN SET BYTES`, a line for every change, of
//! which the last of a name counts. Spaces, names and bytes are in hexadecimal.
//!
//! | part | means |
//! |---|---|
//! | OPEN | the token of the grant whose holder has it open, and has not unlocked since; 0: none |
//! | SET | when it was set, in milliseconds since 1970 by the server's clock |
//! | BYTES | the value, or `-` for none |
//!
//! A value that is set is on the disk, and forced there, before its holder is told. That one is open is written before the holder
//! is told, and not forced: that is lost only if the machine dies. So a holder that dies with a value open leaves it open, whether the
//! server lives on or is started again.
//!
//! What this file must not do: know who may read or set a value.

use super::disk::Disk;
use lockwright::wire::MAX_VALUE;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

const HEAD: &str = "lockwright values 1";
/// Locks with a value at a time.
const MAX_VALUES: usize = 1 << 16;
/// The file is written anew once it has so many lines more than values, and at least so many.
const SPARE_LINES: usize = 4096;

/// Whose value: space and name.
pub(crate) type ValueKey = (Vec<u8>, Vec<u8>);

/// The value of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LockValue {
    pub(crate) bytes: Vec<u8>,
    /// The token of the grant whose holder has it open; 0: none.
    pub(crate) open: u64,
    /// When it was set, in milliseconds since 1970.
    pub(crate) set_ms: u64,
}

/// All values of a server.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Values {
    values: BTreeMap<ValueKey, LockValue>,
    lines: usize,
}

/// Whether a change is forced to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Force {
    Yes,
    No,
}

impl Values {
    /// What earlier runs have left on the disk.
    pub(super) fn read(disk: &Disk) -> io::Result<Self> {
        let Some(text) = disk.read_values()? else { return Ok(Self::default()) };
        let foreign =
            || io::Error::new(io::ErrorKind::InvalidData, "these are not the values of a server's locks");
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err(foreign());
        }
        let mut all = Self::default();
        for line in lines.filter(|line| !line.is_empty()) {
            let (key, value) = parse(line).ok_or_else(foreign)?;
            all.lines += 1;
            all.put(key, value);
        }
        Ok(all)
    }

    pub(super) fn get(&self, key: &ValueKey) -> Option<&LockValue> {
        self.values.get(key)
    }

    /// Whether another lock can have a value.
    pub(super) fn has_room(&self, key: &ValueKey, most: usize) -> bool {
        self.values.contains_key(key) || self.values.len() < most
    }

    /// Notes what is written elsewhere.
    pub(super) fn put(&mut self, key: ValueKey, value: LockValue) {
        // An empty value that no holder has open is none.
        if value.bytes.is_empty() && value.open == 0 {
            self.values.remove(&key);
        } else {
            self.values.insert(key, value);
        }
    }

    /// Changes a value, on the disk first. The error says why nothing was changed.
    pub(super) fn change(
        &mut self,
        disk: &mut Disk,
        key: &ValueKey,
        value: LockValue,
        force: Force,
    ) -> Result<(), String> {
        if !self.values.contains_key(key) && self.values.len() >= MAX_VALUES {
            return Err(format!("{MAX_VALUES} locks have a value, and there is no room for another"));
        }
        let why = |error: io::Error| format!("the server cannot write the value down: {error}");
        disk.append_values(&line(key, &value), force == Force::Yes).map_err(why)?;
        self.lines += 1;
        self.put(key.clone(), value);
        if self.lines > 2 * self.values.len() + SPARE_LINES {
            self.rewrite(disk);
        }
        Ok(())
    }

    /// Leaves out of the file what counts no more. If there is no room for a new file, the old one is as good.
    fn rewrite(&mut self, disk: &mut Disk) {
        let mut text = format!("{HEAD}\n");
        text.extend(self.values.iter().map(|(key, value)| line(key, value)));
        match disk.replace_values(&text) {
            Ok(()) => self.lines = self.values.len(),
            Err(error) => {
                tracing::warn!("the file of values is not made smaller: {error}");
                self.lines = 0;
            }
        }
    }

    /// Begins the file of this run.
    pub(super) fn begin(&mut self, disk: &mut Disk) {
        if self.lines > self.values.len() {
            self.rewrite(disk);
        }
    }
}

/// The first line of the file.
pub(super) fn head() -> String {
    format!("{HEAD}\n")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if text == "-" {
        return Some(Vec::new());
    }
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}

/// Where a shard's value stands in etcd, behind those of the shard.
pub(crate) fn key_text((space, name): &ValueKey) -> String {
    format!("{}/{}", hex(space), hex(name))
}

/// What stands there; `None`: nothing.
pub(crate) fn value_text(LockValue { bytes, open, set_ms }: &LockValue) -> Option<String> {
    (*open != 0 || !bytes.is_empty()).then(|| format!("{open} {set_ms} {}", hex(bytes)))
}

/// What was read there.
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "only a cluster has shards"))]
pub(crate) fn of_texts(key: &str, value: &str) -> Option<(ValueKey, LockValue)> {
    let (space, name) = key.split_once('/')?;
    parse(&format!("value {space} {name} {value}"))
}

fn line((space, name): &ValueKey, LockValue { bytes, open, set_ms }: &LockValue) -> String {
    format!("value {} {} {open} {set_ms} {}\n", hex(space), hex(name), hex(bytes))
}

fn parse(line: &str) -> Option<(ValueKey, LockValue)> {
    let words: Vec<_> = line.split(' ').collect();
    let ["value", space, name, open, set_ms, bytes] = words[..] else { return None };
    let bytes = unhex(bytes).filter(|bytes| bytes.len() <= MAX_VALUE)?;
    let value = LockValue { bytes, open: open.parse().ok()?, set_ms: set_ms.parse().ok()? };
    Some(((unhex(space)?, unhex(name)?), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ValueKey {
        (b"stock".to_vec(), name.as_bytes().to_vec())
    }

    #[test]
    fn lines_come_back_as_they_were_written_and_others_are_refused() {
        let value = LockValue { bytes: vec![0, 255, 7], open: 9, set_ms: 5 };
        assert_eq!(parse(line(&key("a"), &value).trim_end()), Some((key("a"), value)));
        let long = format!("value 61 61 0 0 {}", "00".repeat(MAX_VALUE + 1));
        for bad in
            ["value 61 61 0 0", "value 6 61 0 0 -", "value 61 61 x 0 -", "value zz 61 0 0 -", "lock", &long]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_in_etcd_comes_back_as_it_was_written() {
        let key = (b"".to_vec(), b"a/b\xff".to_vec());
        let value = LockValue { bytes: vec![0, 32, 9], open: 7, set_ms: 5 };
        assert_eq!(of_texts(&key_text(&key), &value_text(&value).unwrap()), Some((key, value)));
        assert_eq!(value_text(&LockValue { set_ms: 5, ..LockValue::default() }), None);
        assert!(of_texts("61", "0 0 -").is_none() && of_texts("61/61", "0 0").is_none());
    }

    #[test]
    fn the_file_keeps_what_counts_and_does_not_grow_with_every_change() {
        let mut disk = Disk::Memory(crate::durable::Journal::default());
        let mut values = Values::default();
        for round in 0..3 * SPARE_LINES as u64 {
            let value = LockValue { bytes: vec![round as u8], open: 0, set_ms: round };
            values.change(&mut disk, &key("a"), value, Force::Yes).unwrap();
        }
        let gone = LockValue { bytes: vec![1], open: 3, set_ms: 0 };
        values.change(&mut disk, &key("b"), gone, Force::No).unwrap();
        values.change(&mut disk, &key("b"), LockValue::default(), Force::No).unwrap();
        let text = disk.read_values().unwrap().unwrap();
        assert!(text.lines().count() < 2 * SPARE_LINES, "{} lines", text.lines().count());
        let again = Values::read(&disk).unwrap();
        assert_eq!(again.values, values.values);
        assert_eq!(again.get(&key("a")).unwrap().set_ms, 3 * SPARE_LINES as u64 - 1);
        assert_eq!(again.get(&key("b")), None);
    }
}
