//! Which records of a one-sided space's member are in use, and for which locks.
//!
//! The entry of a lock has room for four acquisitions of one client at a time; those beyond wait here until one of them is
//! over. Every acquisition has a record whose lowest bits are its place among the four.

use super::member::full;
use crate::backend::Refused;
use crate::backend::holders::RECORDS;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Acquisitions of one lock at a time.
const PLACES: u64 = VersionedPortable::PER_CLIENT;

/// One membership's records.
#[derive(Debug, Default)]
pub(super) struct Rooms(Mutex<Assignments>);

/// Which records and places are taken.
#[derive(Debug, Default)]
struct Assignments {
    /// Bit n: record n is in use.
    records: u64,
    /// By lock.
    rooms: HashMap<u64, Room>,
    /// What a record's holder gives back with it.
    permits: HashMap<u8, (u64, OwnedSemaphorePermit)>,
    /// Records that are free, and how many connections had broken when they became so: what cleared them may be lost with
    /// the next one.
    freed: HashMap<u8, u64>,
}

/// The places of one lock.
#[derive(Debug)]
struct Room {
    /// Bit n: place n is taken.
    taken: u64,
    /// One permit for every place that is not.
    free: Arc<Semaphore>,
    /// Those who have a place or wait for one.
    users: usize,
}

impl Assignments {
    /// A free record, in the first place that has one.
    fn take(&mut self, places: impl IntoIterator<Item = u64>) -> Option<u8> {
        for place in places {
            let free =
                (place..RECORDS).step_by(PLACES as usize).find(|record| self.records >> record & 1 == 0);
            if let Some(record) = free {
                self.records |= 1 << record;
                self.freed.remove(&(record as u8));
                return Some(record as u8);
            }
        }
        None
    }

    fn leave(&mut self, lock: u64) {
        if let Some(room) = self.rooms.get_mut(&lock) {
            room.users -= 1;
            if room.users == 0 {
                self.rooms.remove(&lock);
            }
        }
    }
}

/// A waiter for a place, until it has one.
struct Coming<'a> {
    rooms: &'a Rooms,
    lock: u64,
    came: bool,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if !self.came {
            self.rooms.desk().leave(self.lock);
        }
    }
}

impl Rooms {
    fn desk(&self) -> MutexGuard<'_, Assignments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record with a place in `lock`; waited for only if one should.
    pub(super) async fn claim(&self, lock: u64, wait: bool) -> Result<u8, Refused> {
        let free = {
            let mut desk = self.desk();
            let new = || Room { taken: 0, free: Arc::new(Semaphore::new(PLACES as usize)), users: 0 };
            let room = desk.rooms.entry(lock).or_insert_with(new);
            room.users += 1;
            Arc::clone(&room.free)
        };
        let mut coming = Coming { rooms: self, lock, came: false };
        let permit = if wait { free.acquire_owned().await.ok() } else { free.try_acquire_owned().ok() };
        let permit = permit.ok_or(Refused::Busy)?;
        let mut desk = self.desk();
        let taken = desk.rooms.get(&lock).map_or(0, |room| room.taken);
        let record = desk.take((0..PLACES).filter(|place| taken >> place & 1 == 0)).ok_or_else(full)?;
        if let Some(room) = desk.rooms.get_mut(&lock) {
            room.taken |= 1 << (u64::from(record) % PLACES);
        }
        desk.permits.insert(record, (lock, permit));
        coming.came = true;
        Ok(record)
    }

    /// A record that no lock's queue gets to see, from where the fewest are missed.
    pub(super) fn spare(&self) -> Option<u8> {
        self.desk().take((0..PLACES).rev())
    }

    /// Whether a record is free that was given back over a connection which has broken since, so many ago.
    pub(super) fn has_doubtful(&self, breaks: u64) -> bool {
        self.desk().freed.values().any(|freed| *freed != breaks)
    }

    /// Takes some of these records, to clear them again: not so many that none is left.
    pub(super) fn take_doubtful(&self, breaks: u64) -> Vec<u8> {
        let mut desk = self.desk();
        let doubtful = desk.freed.iter().filter(|(_, freed)| **freed != breaks);
        let doubtful: Vec<u8> = doubtful.map(|(record, _)| *record).take(PLACES as usize).collect();
        for record in &doubtful {
            desk.freed.remove(record);
            desk.records |= 1 << record;
        }
        doubtful
    }

    /// The record is free again, and its place, after so many connections broke.
    pub(super) fn free(&self, record: u8, breaks: u64) {
        let mut desk = self.desk();
        desk.records &= !(1 << record);
        desk.freed.insert(record, breaks);
        let Some((lock, permit)) = desk.permits.remove(&record) else { return };
        if let Some(room) = desk.rooms.get_mut(&lock) {
            room.taken &= !(1 << (u64::from(record) % PLACES));
        }
        desk.leave(lock);
        drop(permit);
    }
}

const _: () = assert!(RECORDS.is_multiple_of(PLACES), "every place has as many records");
