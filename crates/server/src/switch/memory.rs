//! What a decider's control plane must not forget when it is restarted, in one small file of text.
//!
//! | line | written | means |
//! |---|---|---|
//! | `lockwright switch 1` | first | what it is |
//! | `id I` | at the start | the decider, across restarts |
//! | `boot B` | at the start | the machine's boot: after another one the lines about members may be missing |
//! | `lease T` | at the start | clients of this run may hold on for so many milliseconds |
//! | `blocks N` | ahead of time, on the disk before it counts | no block of stamps of N or above was given |
//! | `epoch E` | before machines hear of it | |
//! | `member M K K` | before a machine is let in | its number and key |
//! | `gone M` | before its locks go to others | |
//! | `clean` | at an orderly end | no machine was there |
//!
//! Holders and waiters are not written down: machines know them, and report them (§5.3 of the paper). Blocks also go on above
//! the clock's, so that tokens rise even if the file is lost.

use crate::durable::file::{self, StateFile, alone};
use lockwright_locks::fisslock::datagram::Key;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const HEAD: &str = "lockwright switch 1";
/// Blocks promised at a time.
const AHEAD: u64 = 256;
/// Blocks are counted from the beginning of 2026, one for every 128 seconds: 2^17 grants a second in the long run.
const YEAR_2026: u64 = 1_767_225_600;
const SECONDS_PER_BLOCK: u64 = 128;
/// Epochs that a machine's crash may have taken from the file.
const EPOCHS_LOST: u32 = 1 << 16;

/// The memory of a control plane.
#[derive(Debug)]
pub(super) struct Memory {
    file: Option<StateFile>,
    /// Keeps other deciders away from it.
    _alone: Option<File>,
    pub(super) id: u128,
    blocks_below: u64,
}

/// What an earlier run has left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Past {
    pub(super) epoch: u32,
    pub(super) block: u64,
    /// How long machines of it may hold on.
    pub(super) lease: Duration,
    /// Machines that may still be there; `None`: any that says it was one.
    pub(super) members: Option<BTreeMap<u8, Key>>,
}

impl Past {
    /// Whether there may be machines that have to be waited for.
    pub(super) fn is_awaited(&self) -> bool {
        self.members.as_ref().is_none_or(|members| !members.is_empty())
    }
}

#[derive(Default)]
struct Lines {
    id: Option<u128>,
    boot: String,
    lease: u64,
    blocks: u64,
    epoch: u32,
    members: BTreeMap<u8, Key>,
    clean: bool,
}

fn parse(text: &str) -> Option<Lines> {
    let mut lines = text.lines();
    (lines.next() == Some(HEAD)).then_some(())?;
    let mut read = Lines::default();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        // The last line may have been cut off.
        match words[..] {
            ["id", id] => read.id = u128::from_str_radix(id, 16).ok(),
            ["boot", boot] => read.boot = boot.to_owned(),
            ["lease", ms] => read.lease = ms.parse().unwrap_or(0),
            ["blocks", blocks] => read.blocks = blocks.parse::<u64>().unwrap_or(0).max(read.blocks),
            ["epoch", epoch] => read.epoch = epoch.parse::<u32>().unwrap_or(0).max(read.epoch),
            ["member", mid, first, second] => {
                if let (Ok(mid), Ok(first), Ok(second)) =
                    (mid.parse(), u64::from_str_radix(first, 16), u64::from_str_radix(second, 16))
                {
                    read.members.insert(mid, Key([first, second]));
                }
            }
            ["gone", mid] => {
                if let Ok(mid) = mid.parse() {
                    read.members.remove(&mid);
                }
            }
            ["clean"] => read.clean = true,
            _ => {}
        }
    }
    Some(read)
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

impl Memory {
    /// Begins a run whose machines have this `lease`. Without a path nothing is remembered.
    pub(super) fn begin(path: Option<&Path>, lease: Duration, new_id: u128) -> io::Result<(Self, Past)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let clock = now.saturating_sub(YEAR_2026) / SECONDS_PER_BLOCK;
        let nobody = Some(BTreeMap::new());
        let Some(path) = path else {
            let past = Past { block: clock, members: nobody, ..Past::default() };
            return Ok((Self { file: None, _alone: None, id: new_id, blocks_below: u64::MAX }, past));
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        file::check(path)?;
        let alone = alone(path)?;
        let foreign = || io::Error::new(io::ErrorKind::InvalidData, "this is not the state of a decider");
        let lines = match file::read(path)? {
            Some(text) => parse(&text).ok_or_else(foreign)?,
            None => Lines { clean: true, boot: boot(), ..Lines::default() },
        };
        let same_boot = lines.boot == boot();
        let past = Past {
            epoch: lines.epoch + if same_boot { 0 } else { EPOCHS_LOST },
            block: lines.blocks.max(clock),
            lease: Duration::from_millis(lines.lease),
            members: match (lines.clean, same_boot) {
                (true, _) => nobody,
                (false, true) => Some(lines.members),
                (false, false) => None,
            },
        };
        let id = lines.id.unwrap_or(new_id);
        let file = Self::write_anew(path, id, lease, &past)?;
        let blocks_below = past.block + AHEAD;
        Ok((Self { file: Some(file), _alone: Some(alone), id, blocks_below }, past))
    }

    fn write_anew(path: &Path, id: u128, lease: Duration, past: &Past) -> io::Result<StateFile> {
        let (boot, lease, blocks) = (boot(), lease.max(past.lease).as_millis(), past.block + AHEAD);
        // Where members may be missing, the boot is written as unknown: the next run, too, then waits for any machine that
        // says it was one.
        let boot = if past.members.is_some() { boot } else { "unknown".to_owned() };
        let epoch = past.epoch;
        let mut text =
            format!("{HEAD}\nid {id:x}\nboot {boot}\nlease {lease}\nblocks {blocks}\nepoch {epoch}\n");
        for (mid, Key([first, second])) in past.members.iter().flatten() {
            let _ = writeln!(text, "member {mid} {first:x} {second:x}");
        }
        StateFile::replace(path, &text)
    }

    /// Writes a line. One that is not `forced` need not be on the disk: a crash of the whole machine is noticed by its boot.
    fn note(&mut self, line: &str, forced: bool, what_if_not: &str) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.append_maybe_forced(line, forced)
        {
            tracing::error!(%error, "the state cannot be written: {what_if_not}");
        }
    }

    fn note_machine(&mut self, line: &str) {
        self.note(line, false, "a restart may take a member for gone");
    }

    pub(super) fn member(&mut self, mid: u8, Key([first, second]): Key) {
        self.note_machine(&format!("member {mid} {first:x} {second:x}\n"));
    }

    pub(super) fn gone(&mut self, mid: u8) {
        self.note_machine(&format!("gone {mid}\n"));
    }

    pub(super) fn epoch(&mut self, epoch: u32) {
        self.note_machine(&format!("epoch {epoch}\n"));
    }

    pub(super) fn clean(&mut self) {
        self.note_machine("clean\n");
    }

    /// Block `block` is about to be used.
    pub(super) fn block(&mut self, block: u64) {
        if block < self.blocks_below {
            return;
        }
        self.blocks_below = block + AHEAD;
        let line = format!("blocks {}\n", self.blocks_below);
        self.note(&line, true, "tokens may fall after a restart of this machine");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_run_knows_who_was_there_and_goes_on_with_epochs_and_blocks() {
        let folder = std::env::temp_dir().join(format!("lockwright-switch-{}", std::process::id()));
        let path = folder.join("switch.state");
        let lease = Duration::from_secs(8);
        let (mut memory, past) = Memory::begin(Some(&path), lease, 7).unwrap();
        assert!(!past.is_awaited());
        memory.member(1, Key([1, 2]));
        memory.member(2, Key([3, 4]));
        memory.gone(1);
        memory.epoch(9);
        memory.block(past.block + AHEAD);
        drop(memory);
        let (mut memory, again) = Memory::begin(Some(&path), lease, 8).unwrap();
        assert_eq!((memory.id, again.epoch, again.lease), (7, 9, lease));
        assert_eq!(again.members, Some(BTreeMap::from([(2, Key([3, 4]))])));
        assert!(again.block >= past.block + 2 * AHEAD);
        memory.clean();
        assert!(Memory::begin(Some(&path), lease, 8).is_err(), "another decider uses it");
        drop(memory);
        let (_, clean) = Memory::begin(Some(&path), lease, 8).unwrap();
        assert!(!clean.is_awaited());
        std::fs::write(&path, "something else\n").unwrap();
        assert!(Memory::begin(Some(&path), lease, 8).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
