//! This process's memberships of a space, and keyed locks taken through them.
//!
//! A client joins the space once for every 64 locks that it holds or wants at a time. Each of these memberships is a
//! peer of the fabric with a client of kept locks and a sheet of [`cards`]. One that is declared dead
//! (this process was stopped for longer than its lease) stays until its last guard has gone; new locks go to a new one.
//!
//! The first membership is reached without a lock: most clients never have another.

use super::cards::{self, Card, Pen};
use super::vitals::{Cards, Life};
use super::{AnyGrant, Seat, Ticket};
use crate::error::LockError;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Names, ShmEndpoint, ShmSpace};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError, PeerId};
use lockwright_locks::kept::KeptClient;
use lockwright_locks::shiftlock::stirred::Stirred;
use lockwright_locks::shiftlock::{ShiftGrant, ShiftLock, ShiftParams};
use lockwright_locks::{Denied, Grant, Lost, Protocol, Space};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Names of a space, and therefore lock ids.
pub(crate) const NAMES: u64 = 1 << 20;
/// Every name has a lock of its own, and a gate for its ranges.
pub(crate) const SHAPE: Space = Space::of(2 * NAMES);
/// How long a lock may stand still before a waiter asks whether its holder lives: three of these.
const ASK_NS: u64 = 10_000_000;
const FIRST: u32 = 0;

/// ShiftLock's parameters, the same for everybody.
pub(crate) fn params() -> ShiftParams {
    ShiftParams::default().with_lease(ASK_NS)
}

/// All memberships of this client.
#[derive(Debug)]
pub(crate) struct Members {
    pub(super) space: ShmSpace,
    pub(super) lease_ns: u64,
    first: Arc<Member>,
    /// All but the first.
    list: RwLock<Vec<Arc<Member>>>,
    /// The number of the next; held while joining.
    next: Mutex<u32>,
}

/// One membership.
pub(crate) struct Member {
    pub(super) number: u32,
    pub(super) client: KeptClient<ShmEndpoint, Cards>,
    pub(super) book: Cards,
    /// Bit n: card n is in use.
    cards: AtomicU64,
    /// Bit n: card n has been in use.
    used: AtomicU64,
}

/// A membership on the fast path or any other.
pub(super) enum Which<'a> {
    First(&'a Arc<Member>),
    Other(Arc<Member>),
}

impl Deref for Which<'_> {
    type Target = Member;

    #[inline(always)]
    fn deref(&self) -> &Member {
        match self {
            Which::First(member) => member,
            Which::Other(member) => member,
        }
    }
}

impl Which<'_> {
    pub(super) fn share(&self) -> Arc<Member> {
        match self {
            Which::First(member) => Arc::clone(member),
            Which::Other(member) => Arc::clone(member),
        }
    }
}

impl Members {
    /// Joins `space`.
    pub(crate) fn new(space: ShmSpace, lease_ns: u64) -> Result<Self, LockError> {
        let first = Arc::new(Member::join(&space, lease_ns, FIRST)?);
        Ok(Self { space, lease_ns, first, list: RwLock::default(), next: Mutex::new(FIRST + 1) })
    }

    pub(super) fn all(&self) -> Vec<Arc<Member>> {
        let mut all = vec![Arc::clone(&self.first)];
        all.extend(self.list.read().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        all
    }

    /// Joins once more, unless somebody else just did: `seen` are the members that had no card to give.
    fn join(&self, seen: &[u32]) -> Result<(), LockError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if self.all().iter().any(|member| !seen.contains(&member.number) && member.is_in()) {
            return Ok(());
        }
        let member = Member::join(&self.space, self.lease_ns, *next)?;
        *next += 1;
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.retain(|member| member.is_in() || member.cards.load(SeqCst) != 0);
        list.push(Arc::new(member));
        Ok(())
    }

    /// A member that is in, for whatever needs no card.
    pub(crate) fn any(&self) -> Result<Arc<Member>, LockError> {
        loop {
            let all = self.all();
            if let Some(member) = all.iter().find(|member| member.is_in()) {
                return Ok(Arc::clone(member));
            }
            self.join(&all.iter().map(|member| member.number).collect::<Vec<_>>())?;
        }
    }

    /// Whether a membership has not been declared dead.
    #[inline(always)]
    pub(super) fn is_in(&self, number: u32) -> bool {
        if number == FIRST {
            return self.first.is_in();
        }
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().any(|member| member.number == number && member.is_in())
    }

    /// A free card.
    #[inline(always)]
    pub(super) fn sit(&self) -> Result<(Which<'_>, u8), LockError> {
        if self.first.is_in()
            && let Some(card) = self.first.take_card()?
        {
            return Ok((Which::First(&self.first), card));
        }
        self.sit_elsewhere()
    }

    #[cold]
    fn sit_elsewhere(&self) -> Result<(Which<'_>, u8), LockError> {
        loop {
            let all = self.all();
            for member in &all {
                if member.is_in()
                    && let Some(card) = member.take_card()?
                {
                    return Ok((Which::Other(Arc::clone(member)), card));
                }
            }
            self.join(&all.iter().map(|member| member.number).collect::<Vec<_>>())?;
        }
    }

    #[inline(always)]
    pub(super) fn member(&self, seat: Seat) -> Which<'_> {
        if seat.member == FIRST {
            return Which::First(&self.first);
        }
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        let found = list.iter().find(|member| member.number == seat.member);
        Which::Other(Arc::clone(found.expect("a membership stays as long as one of its cards is in use")))
    }

    /// A sign of life for all of them.
    pub(super) fn beat(&self) {
        for member in self.all() {
            // One that comes too late is out, and is found to be so by whoever uses it.
            let _ = member.book.beat();
        }
    }

    /// Takes a keyed lock if it is free.
    #[inline(always)]
    pub(super) fn try_take(&self, claim: Claim) -> Result<Ticket, Denied> {
        let (member, card) = self.sit().map_err(no_seat)?;
        match block_on(member.client.try_take(card, claim)) {
            Ok(grant) => Ok(member.granted(card, grant)),
            Err(denied) => {
                member.stand_up(card);
                Err(denied)
            }
        }
    }

    /// Takes a keyed lock, however long it takes. Nothing is done before the first poll.
    pub(super) async fn take(self: Arc<Self>, claim: Claim) -> Result<Ticket, Denied> {
        let (member, card) = {
            let (member, card) = self.sit().map_err(no_seat)?;
            (member.share(), card)
        };
        match member.client.take(card, claim).await {
            Ok(grant) => Ok(member.granted(card, grant)),
            Err(denied) => {
                member.stand_up(card);
                Err(denied)
            }
        }
    }

    /// Gives a keyed lock back if nobody has to be waited for; else nothing has happened.
    #[inline(always)]
    pub(super) fn give_back_at_once(&self, ticket: &Ticket) -> Option<Result<(), Lost>> {
        let AnyGrant::Shift(grant) = ticket.grant else { unreachable!("a keyed lock's ticket") };
        let (member, card) = (self.member(ticket.seat), ticket.seat.card);
        let given = block_on(member.client.give_back_at_once(card, grant))?;
        member.stand_up(card);
        Some(given.map_err(told))
    }

    /// Gives a keyed lock back.
    pub(super) async fn give_back(self: Arc<Self>, ticket: Ticket) -> Result<(), Lost> {
        let AnyGrant::Shift(grant) = ticket.grant else { unreachable!("a keyed lock's ticket") };
        let (member, card) = (self.member(ticket.seat).share(), ticket.seat.card);
        let given = member.client.give_back(card, grant).await;
        member.stand_up(card);
        given.map_err(told)
    }
}

/// Declared dead: the lock is gone with the client.
fn told(lost: Lost) -> Lost {
    match lost {
        Lost::Fabric(FabricError::Expelled) => Lost::Recovered,
        lost => lost,
    }
}

/// What a protocol would say of a space without room.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn no_seat(error: LockError) -> Denied {
    const FULL: &lockwright_locks::Reason =
        &lockwright_locks::Reason("the space has no room for another client");
    match error {
        LockError::Space(error) => Denied::Fabric(error),
        _ => Denied::Unsupported(FULL),
    }
}

#[inline(always)]
pub(super) fn token(grant: &AnyGrant) -> u64 {
    match grant {
        AnyGrant::Shift(grant) => grant.token().unwrap_or_default(),
        AnyGrant::Range { token } => *token,
        AnyGrant::Remote(_) => unreachable!("a space gets back the grants that it gave out"),
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

    /// Takes a keyed lock away from whoever holds it with `token`.
    pub(crate) fn take_away(&self, lock: u64, mode: Mode, token: u64) -> Result<bool, FabricError> {
        block_on(self.client.lock().take_away(lock, mode, token))
    }

    /// Takes a range away from whoever holds it by `card`.
    pub(crate) fn strike(&self, card: &Card) -> Result<bool, FabricError> {
        let struck = cards::strike(&self.book.ep, card)?;
        super::ranges::changed(&self.book.ep, card.claim.lock)?;
        Ok(struck)
    }
}

impl Member {
    fn join(space: &ShmSpace, lease_ns: u64, number: u32) -> Result<Self, LockError> {
        let ep = space.endpoint().map_err(|error| LockError::NoSeat(error.to_string()))?;
        let (pen, now) = (Pen::new(ep.me()), space.now());
        pen.begin(&ep, lease_ns, now)?;
        let life = Arc::new(Life::new(now, lease_ns));
        let book = Cards { space: space.clone(), ep: ep.clone(), pen, life };
        let client = KeptClient::new(ep, &SHAPE, &params(), book.clone());
        Ok(Self { number, client, book, cards: AtomicU64::new(0), used: AtomicU64::new(0) })
    }

    /// Whether nobody has declared it dead.
    #[inline(always)]
    pub(super) fn is_in(&self) -> bool {
        self.book.ep.is_in()
    }

    /// A keyed lock that was granted by `card`.
    #[inline(always)]
    fn granted(&self, card: u8, grant: ShiftGrant) -> Ticket {
        let grant = AnyGrant::Shift(grant);
        self.book.pen.token(&self.book.ep, u64::from(card), token(&grant));
        self.ticket(card, grant)
    }

    #[inline(always)]
    pub(super) fn ticket(&self, card: u8, grant: AnyGrant) -> Ticket {
        Ticket { grant, seat: Seat { member: self.number, card } }
    }

    #[inline(always)]
    fn take_card(&self) -> Result<Option<u8>, FabricError> {
        let mut taken = self.cards.load(SeqCst);
        while taken != u64::MAX {
            let card = taken.trailing_ones();
            match self.cards.compare_exchange_weak(taken, taken | 1 << card, SeqCst, SeqCst) {
                Ok(_) => {
                    if self.used.load(SeqCst) >> card & 1 == 0 {
                        self.used.fetch_or(1 << card, SeqCst);
                        self.book.pen.uses(&self.book.ep, u64::from(card))?;
                    }
                    return Ok(Some(card as u8));
                }
                Err(now) => taken = now,
            }
        }
        Ok(None)
    }

    /// Lets others have the card, which is wiped. (An expelled client's sheet is not its own any more.)
    #[inline(always)]
    pub(super) fn stand_up(&self, card: u8) {
        self.cards.fetch_and(!(1 << card), SeqCst);
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

/// Bytes of the keyed locks.
pub(crate) fn lock_bytes() -> u64 {
    <ShiftLock<Stirred>>::bytes_per_node(&SHAPE, &params())
}

/// What the regions of a space are for, and how large they are: locks, cards, counts of changes.
pub(crate) fn regions() -> [u64; 3] {
    [lock_bytes(), cards::BYTES, super::ranges::bytes(NAMES)]
}
