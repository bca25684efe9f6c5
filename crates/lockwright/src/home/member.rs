//! One membership of a space: a peer of the fabric, with a client of kept locks and a sheet of [`cards`].

use super::cards::{self, Card, Pen, Sheets};
use super::members::{SHAPE, params};
use super::seats::Seats;
use super::vitals::{Cards, Life};
use super::{Granted, Kind, ProtocolGrant, RecordId};
use crate::error::{LockError, LostReason};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Names, ShmEndpoint, ShmSpace};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, PeerId};
use lockwright_locks::Denied;
use lockwright_locks::kept::KeptClient;
use lockwright_locks::kept::ranges::RangeBook;
use lockwright_locks::shiftlock::ShiftGrant;
use lockwright_locks::shiftlock::prompt::Prompt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// One membership.
pub(crate) struct Member {
    pub(super) number: u32,
    pub(super) client: KeptClient<ShmEndpoint, Cards>,
    pub(super) book: Cards,
    pub(super) seats: Seats,
    /// Bit n: card n has been in use.
    used: AtomicU64,
}

impl Member {
    pub(super) fn join(space: &ShmSpace, lease_ns: u64, number: u32) -> Result<Self, LockError> {
        let ep = space.endpoint().map_err(|error| LockError::TooManyClients(error.to_string()))?;
        let (pen, now) = (Pen::new(space, ep.me()), space.now());
        pen.begin(&ep, lease_ns, now).map_err(LockError::from_fabric)?;
        let (sheets, life) = (Sheets::new(space), Arc::new(Life::new(now, lease_ns)));
        let book = Cards { space: space.clone(), ep: ep.clone(), pen, sheets, life };
        let client = KeptClient::new(ep, &SHAPE, &params(), book.clone());
        Ok(Self { number, client, book, seats: Seats::new(), used: AtomicU64::new(0) })
    }

    /// Whether nobody has declared it dead.
    #[inline(always)]
    pub(super) fn is_in(&self) -> bool {
        self.book.ep.is_member()
    }

    /// Why a lock that it had is gone: with the whole membership, or by itself.
    pub(super) fn lost_reason(&self) -> LostReason {
        if self.book.ep.is_member_seq_cst() { LostReason::Broken } else { LostReason::Evicted }
    }

    #[inline(always)]
    pub(super) fn granted(&self, card: u8, grant: ProtocolGrant) -> Granted {
        Granted { grant, record: RecordId::new(self.number, card) }
    }

    /// What the protocol gave out for a keyed lock's granted.
    #[inline(always)]
    pub(super) fn grant(&self, claim: Claim, granted: &Granted) -> ShiftGrant {
        match granted.grant {
            ProtocolGrant::Shift(grant) => grant,
            ProtocolGrant::Prompt(grant) => self.client.lock().grant(granted.record.index(), claim, grant),
            ProtocolGrant::Range { .. } | ProtocolGrant::Remote(_) => unreachable!("a keyed lock's granted"),
        }
    }

    /// A free card, if `take` finds one.
    #[inline(always)]
    pub(super) fn sit(&self, take: impl FnOnce(&Seats) -> Option<u8>) -> Option<u8> {
        let card = take(&self.seats)?;
        let used_before = self.used.load(Relaxed) >> card & 1 == 1;
        (used_before || self.use_first(card)).then_some(card)
    }

    /// Says that `card` is in use from now on, for the first time. `false`, and the card is free, if this client is out.
    #[cold]
    fn use_first(&self, card: u8) -> bool {
        let is_first = self.used.fetch_or(1 << card, SeqCst) >> card & 1 == 0;
        let said = !is_first || self.book.pen.uses(&self.book.ep, u64::from(card)).is_ok();
        if !said {
            self.seats.give_back(card);
        }
        said
    }

    /// Lets others have the card, which is wiped. (An expelled client's sheet is not its own any more.)
    #[inline(always)]
    pub(super) fn stand_up(&self, card: u8) {
        self.seats.give_back(card);
    }
}

/// The usual cases, without a future, a virtual call or a search.
impl Member {
    /// Takes a keyed lock if it is free and the calling thread has a card for it here. `None`: nothing has happened.
    #[inline(always)]
    pub(crate) fn take_quickly(&self, claim: Claim) -> Option<Granted> {
        let card = self.sit(Seats::take_own)?;
        self.taken_quickly(card, self.client.try_take_now(card, claim))
    }

    /// The same, if it becomes free within a moment.
    pub(crate) fn take_soon(&self, claim: Claim) -> Option<Granted> {
        let card = self.sit(Seats::take_own)?;
        self.taken_quickly(card, self.client.take_soon_now(card, claim))
    }

    #[inline(always)]
    fn taken_quickly(&self, card: u8, taken: Result<Prompt, Denied>) -> Option<Granted> {
        match taken {
            Ok(grant) => Some(self.granted(card, ProtocolGrant::Prompt(grant))),
            Err(_) => {
                self.stand_up(card);
                None
            }
        }
    }

    /// Gives a keyed lock back that was taken so, if nobody waits for it. `false`: nothing has happened.
    #[inline(always)]
    pub(crate) fn give_back_quickly(&self, claim: Claim, granted: &Granted) -> bool {
        let (ProtocolGrant::Prompt(grant), card) = (granted.grant, granted.record.index()) else {
            return false;
        };
        let given = granted.record.member() == self.number && self.client.give_back_now(card, claim, grant);
        if given {
            self.stand_up(card);
        }
        given
    }
}

/// What looking into a space takes.
impl Member {
    pub(crate) fn peer(&self) -> PeerId {
        self.book.ep.me()
    }

    /// The directory of names.
    pub(crate) fn names(&self) -> Names {
        self.book.ep.names()
    }

    /// Its cards, and its eyes on those of others.
    pub(crate) fn book(&self) -> &Cards {
        &self.book
    }

    /// How often a lock, or ranges of it, were given back.
    pub(crate) fn releases(&self, kind: Kind, lock: u64) -> Result<u64, FabricError> {
        match kind {
            Kind::Keyed => block_on(self.client.lock().releases(lock)),
            Kind::Ranges => block_on(self.book.ep.go(self.book.changes(lock).read())),
        }
    }

    /// Takes a keyed lock away from whoever holds it by `card`.
    pub(crate) fn take_away(&self, card: &Card) -> Result<bool, FabricError> {
        let Claim { lock, mode, .. } = card.claim;
        block_on(self.client.lock().take_away(lock, mode, card.mark))
    }

    /// Takes a range away from whoever holds it by `card`.
    pub(crate) fn strike(&self, card: &Card) -> Result<bool, FabricError> {
        let struck = cards::strike(&self.book.ep, card)?;
        super::ranges::changed(&self.book.ep, card.claim.lock)?;
        Ok(struck)
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("number", &self.number)
            .field("peer", &self.peer())
            .finish_non_exhaustive()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.book.pen.end(&self.book.ep);
    }
}
