//! A client's membership of a lent space, for one session: the locks and ranges it takes by its own verbs.
//!
//! The entry of a lock has room for four acquisitions of one client at a time; those beyond wait here until one of them is
//! over. Every acquisition has a card whose lowest bits are its place among the four.

use super::endpoint::LentEndpoint;
use crate::error::LockError;
use crate::home::cards::CARDS;
use crate::home::{AnyGrant, Kind, Refused, Seat, Ticket};
use crate::lent::book::{Kept, client};
use crate::lent::layout;
use lockwright_fabric::observe::Claim;
use lockwright_locks::kept::Book;
use lockwright_locks::kept::ranges::RangeCards;
use lockwright_locks::shiftlock::ShiftGrant;
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;
use lockwright_locks::{Denied, Lost};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Acquisitions of one lock at a time.
const PLACES: u64 = StirredPortable::PER_CLIENT;

/// One membership. It ends with its session, and everything it held with it.
#[derive(Debug)]
pub(super) struct Guest {
    /// Which of this client's.
    pub(super) number: u32,
    client: Kept<LentEndpoint>,
    desk: Mutex<Desk>,
}

/// Which cards and places are taken.
#[derive(Debug, Default)]
struct Desk {
    /// Bit n: card n is in use.
    cards: u64,
    /// By lock.
    rooms: HashMap<u64, Room>,
    /// What a card's holder gives back with it.
    permits: HashMap<u8, (u64, OwnedSemaphorePermit)>,
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

impl Desk {
    /// A free card, in the first place that has one.
    fn take(&mut self, places: impl IntoIterator<Item = u64>) -> Option<u8> {
        for place in places {
            let free = (place..CARDS).step_by(PLACES as usize).find(|card| self.cards >> card & 1 == 0);
            if let Some(card) = free {
                self.cards |= 1 << card;
                return Some(card as u8);
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

/// Somebody who waits for a place, until it has one.
struct Coming<'a> {
    guest: &'a Guest,
    lock: u64,
    came: bool,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if !self.came {
            self.guest.desk().leave(self.lock);
        }
    }
}

impl Guest {
    pub(super) fn new(number: u32, ep: LentEndpoint) -> Self {
        Self { number, client: client(ep), desk: Mutex::default() }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A card with a place in `lock`; waited for only if one should.
    async fn sit(&self, lock: u64, wait: bool) -> Result<u8, Refused> {
        let free = {
            let mut desk = self.desk();
            let new = || Room { taken: 0, free: Arc::new(Semaphore::new(PLACES as usize)), users: 0 };
            let room = desk.rooms.entry(lock).or_insert_with(new);
            room.users += 1;
            Arc::clone(&room.free)
        };
        let mut coming = Coming { guest: self, lock, came: false };
        let permit = if wait { free.acquire_owned().await.ok() } else { free.try_acquire_owned().ok() };
        let permit = permit.ok_or(Refused::Busy)?;
        let mut desk = self.desk();
        let taken = desk.rooms.get(&lock).map_or(0, |room| room.taken);
        let card = desk.take((0..PLACES).filter(|place| taken >> place & 1 == 0)).ok_or_else(full)?;
        if let Some(room) = desk.rooms.get_mut(&lock) {
            room.taken |= 1 << (u64::from(card) % PLACES);
        }
        desk.permits.insert(card, (lock, permit));
        coming.came = true;
        Ok(card)
    }

    /// The card is free again, and its place.
    fn stand_up(&self, card: u8) {
        let mut desk = self.desk();
        desk.cards &= !(1 << card);
        let Some((lock, permit)) = desk.permits.remove(&card) else { return };
        if let Some(room) = desk.rooms.get_mut(&lock) {
            room.taken &= !(1 << (u64::from(card) % PLACES));
        }
        desk.leave(lock);
        drop(permit);
    }

    /// Takes a lock: now or never, or however long it takes.
    pub(super) async fn take(self: Arc<Self>, claim: Claim, wait: bool) -> Result<Ticket, Refused> {
        let card = self.sit(claim.lock, wait).await?;
        let client = &self.client;
        let granted = match client.try_take(card, claim).await {
            Err(Denied::Busy) if wait => client.take(card, claim).await,
            Err(Denied::Busy) => client.try_past_the_dead(card, claim).await,
            tried => tried,
        };
        match granted {
            Ok(grant) => Ok(self.ticket(card, AnyGrant::Shift(grant))),
            Err(denied) => {
                // Whatever the attempt left in the lock's word, nobody's card says that it is held.
                let _ = client.book().write(card, None).await;
                self.stand_up(card);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Takes a range, likewise.
    pub(super) async fn take_range(self: Arc<Self>, claim: Claim, wait: bool) -> Result<Ticket, Refused> {
        let gate = self.sit(layout::gate(claim.lock), wait).await?;
        let range = self.desk().take((0..PLACES).rev());
        let Some(range) = range else {
            self.stand_up(gate);
            return Err(full());
        };
        let cards = RangeCards { gate, range };
        let taken = match wait {
            true => self.client.take_range(cards, claim).await,
            false => self.client.try_range(cards, claim).await,
        };
        self.stand_up(gate);
        match taken {
            Ok(token) => Ok(self.ticket(range, AnyGrant::Range { token })),
            Err(denied) => {
                self.stand_up(range);
                Err(Refused::new(denied, claim))
            }
        }
    }

    fn ticket(&self, card: u8, grant: AnyGrant) -> Ticket {
        Ticket { grant, seat: Seat::new(self.number, card) }
    }

    /// Gives a lock or a range back.
    pub(super) async fn give_back(self: Arc<Self>, claim: Claim, ticket: Ticket) -> Result<(), Lost> {
        let card = ticket.seat.card();
        let given = match ticket.grant {
            AnyGrant::Shift(grant) => self.client.give_back(card, grant).await,
            _ => self.client.give_range_back(card, claim).await,
        };
        self.stand_up(card);
        given
    }

    /// Whether a grant is still good: one READ.
    pub(super) async fn holds(self: Arc<Self>, kind: Kind, claim: Claim, ticket: Ticket) -> Option<bool> {
        use lockwright_locks::kept::ranges::RangeBook;
        let held = match (kind, ticket.grant) {
            (Kind::Keyed, AnyGrant::Shift(grant)) => self.holds_lock(&grant).await,
            _ => self.client.book().is_entered(ticket.seat.card(), claim).await,
        };
        held.ok()
    }

    async fn holds_lock(&self, grant: &ShiftGrant) -> Result<bool, lockwright_fabric::FabricError> {
        self.client.lock().holds(grant).await
    }
}

fn full() -> Refused {
    Refused::Error(LockError::NoSeat(
        "a client of a lent space can hold and want 64 locks at a time, not more".to_owned(),
    ))
}

const _: () = assert!(CARDS.is_multiple_of(PLACES), "every place has as many cards");
