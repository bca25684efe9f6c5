//! Registers as the kernel's program has them, byte by byte: the structs of `decider.bpf.c`, on a little-endian machine.
//!
//! | value | bytes | |
//! |---|---|---|
//! | config | 0, 4, 8, 16, 20 | epoch, closed, locks (8 bytes), lanes, port (2 bytes, as in a frame) |
//! | | 22 | restricted: only some addresses may send |
//! | group | 0, 4, 8, 12, 16, 48, 80 | spin lock, free, shared, bar; 32 × inca, 32 × mid; the epoch they are of |
//! | lanes | 0, 4, 260, 324, 388 | spin lock; 64 × seq, 64 × verdict, 64 × agent; the epoch they are of |
//! | peer | 0, 4, 8, 24… | spin lock, known, key (16 bytes), address |
//! | stamp | 0, 8 | spin lock, stamp (8 bytes) |

use lockwright_locks::fisslock::datagram::{Key, Limits};
#[cfg(test)]
use lockwright_locks::fisslock::pipeline::LaneRegisters;
use lockwright_locks::fisslock::pipeline::LockRegisters;

/// Locks that share a spin lock.
pub(super) const LOCKS_PER_GROUP: usize = 32;
/// Lanes that a machine can have.
pub(super) const MAX_LANES: usize = 64;

pub(super) const CONFIG: usize = 24;
pub(super) const GROUP: usize = 84;
#[cfg(test)]
pub(super) const LANES: usize = 392;
pub(super) const PEER: usize = 56;
pub(super) const STAMP: usize = 16;

pub(super) fn config(epoch: u32, closed: bool, limits: Limits, port: u16, restricted: bool) -> [u8; CONFIG] {
    let mut value = [0; CONFIG];
    value[..4].copy_from_slice(&epoch.to_le_bytes());
    value[4] = u8::from(closed);
    value[8..16].copy_from_slice(&limits.locks.to_le_bytes());
    value[16..20].copy_from_slice(&limits.lanes.to_le_bytes());
    value[20..22].copy_from_slice(&port.to_be_bytes());
    value[22] = u8::from(restricted);
    value
}

/// The registers of up to 32 locks, as they are in `epoch`; the missing ones are free.
pub(super) fn group(epoch: u32, locks: impl Iterator<Item = LockRegisters>) -> [u8; GROUP] {
    let mut value = empty_group(epoch);
    let [mut free, mut shared, mut bar] = [u32::MAX, 0, 0];
    for (at, lock) in locks.enumerate() {
        free &= !(u32::from(!lock.free) << at);
        shared |= u32::from(lock.shared) << at;
        bar |= u32::from(lock.bar) << at;
        value[16 + at] = lock.inca;
        value[48 + at] = lock.mid;
    }
    for (at, bits) in [free, shared, bar].into_iter().enumerate() {
        value[4 + 4 * at..8 + 4 * at].copy_from_slice(&bits.to_le_bytes());
    }
    value
}

/// What registers of an earlier epoch count as.
pub(super) fn empty_group(epoch: u32) -> [u8; GROUP] {
    let mut value = [0; GROUP];
    value[4..8].fill(0xff);
    value[80..].copy_from_slice(&epoch.to_le_bytes());
    value
}

/// Whether lock `at` of a group is free, in the group's own epoch.
pub(super) fn is_free(group: &[u8; GROUP], at: usize) -> bool {
    group[4 + at / 8] >> (at % 8) & 1 != 0
}

pub(super) fn epoch_of(group: &[u8; GROUP]) -> u32 {
    group.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
pub(super) fn lanes(epoch: u32, lanes: impl Iterator<Item = LaneRegisters>) -> [u8; LANES] {
    let mut value = [0; LANES];
    for (at, lane) in lanes.enumerate() {
        value[4 + 4 * at..8 + 4 * at].copy_from_slice(&lane.seq.to_le_bytes());
        value[260 + at] = lane.decided;
        value[324 + at] = lane.agent;
    }
    value[388..].copy_from_slice(&epoch.to_le_bytes());
    value
}

pub(super) fn peer(key: Option<Key>) -> [u8; PEER] {
    let mut value = [0; PEER];
    if let Some(Key([first, second])) = key {
        value[4] = 1;
        value[8..16].copy_from_slice(&first.to_le_bytes());
        value[16..24].copy_from_slice(&second.to_le_bytes());
    }
    value
}

pub(super) fn stamp(stamp: u64) -> [u8; STAMP] {
    let mut value = [0; STAMP];
    value[8..].copy_from_slice(&stamp.to_le_bytes());
    value
}

pub(super) fn stamp_of(value: &[u8; STAMP]) -> u64 {
    value.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
