//! This process's memberships of a space, and keyed locks taken through them.
//!
//! A client joins the space once for every 64 locks that it holds or wants at a time. Each of these memberships is a
//! peer of the fabric with a ShiftLock client and a sheet of [`cards`]. One that is declared dead
//! (this process was stopped for longer than its lease) stays until its last guard has gone; new locks go to a new one.

use super::cards::{self, Card, Pen, State};
use super::hosted::{Drive, drive};
use super::resets::{self, Cards};
use super::{AnyGrant, Kind, Seat, Ticket};
use crate::error::LockError;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Names, ShmEndpoint, ShmSpace};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError, PeerId};
use lockwright_locks::shiftlock::witness::SharedClient;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{Denied, Grant, LockClient, Lost, Patience, Protocol, Space, Want};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Names of a space, and therefore lock ids.
pub(crate) const NAMES: u64 = 1 << 20;
/// Every name has a lock of its own, and a gate for its ranges.
pub(crate) const SHAPE: Space = Space::of(2 * NAMES);
/// How long a lock may stand still before a waiter asks whether its holder lives: three of these.
const ASK_NS: u64 = 10_000_000;

drive!(
    /// Keyed locks between processes.
    Keyed,
    SharedClient<ShmEndpoint>,
    AnyGrant::Shift
);

/// ShiftLock's parameters, the same for everybody.
pub(crate) fn params() -> ShiftParams {
    ShiftParams::default().with_lease(ASK_NS)
}

/// All memberships of this client.
#[derive(Debug)]
pub(crate) struct Members {
    pub(super) space: ShmSpace,
    pub(super) lease_ns: u64,
    list: RwLock<Vec<Arc<Member>>>,
    next: Mutex<u32>,
}

/// One membership.
pub(crate) struct Member {
    pub(super) number: u32,
    space: ShmSpace,
    pub(super) ep: ShmEndpoint,
    pub(super) client: Arc<<Keyed as Drive>::Client>,
    pub(super) pen: Pen,
    /// Bit n: card n is in use.
    cards: AtomicU64,
    /// Bit n: card n has been in use.
    used: AtomicU64,
    /// The last sign of life.
    pub(super) beat: AtomicU64,
}

impl Members {
    /// Joins `space`.
    pub(crate) fn new(space: ShmSpace, lease_ns: u64) -> Result<Self, LockError> {
        let members = Self { space, lease_ns, list: RwLock::default(), next: Mutex::default() };
        members.join(&[])?;
        Ok(members)
    }

    pub(super) fn all(&self) -> Vec<Arc<Member>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Joins once more, unless somebody else just did: `seen` are the members that had no card to give.
    fn join(&self, seen: &[u32]) -> Result<(), LockError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if self.all().iter().any(|member| !seen.contains(&member.number) && member.ep.is_in()) {
            return Ok(());
        }
        let ep = self.space.endpoint().map_err(|error| LockError::NoSeat(error.to_string()))?;
        let (pen, now) = (Pen::new(ep.me()), self.space.now());
        pen.begin(&ep, self.lease_ns, now)?;
        let witness = Arc::new(Cards { space: self.space.clone(), ep: ep.clone() });
        let client = <ShiftLock>::shared_client(ep.clone(), &SHAPE, &params(), Some(witness));
        let member = Member {
            number: *next,
            space: self.space.clone(),
            ep,
            client: Arc::new(client),
            pen,
            cards: AtomicU64::new(0),
            used: AtomicU64::new(0),
            beat: AtomicU64::new(now.0),
        };
        *next += 1;
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.retain(|member| member.ep.is_in() || member.cards.load(SeqCst) != 0);
        list.push(Arc::new(member));
        Ok(())
    }

    /// A member that is in, for whatever needs no card.
    pub(crate) fn any(&self) -> Result<Arc<Member>, LockError> {
        loop {
            let list = self.all();
            if let Some(member) = list.iter().find(|member| member.ep.is_in()) {
                return Ok(Arc::clone(member));
            }
            self.join(&list.iter().map(|member| member.number).collect::<Vec<_>>())?;
        }
    }

    /// Whether a membership has not been declared dead.
    #[inline]
    pub(super) fn is_in(&self, number: u32) -> bool {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().any(|member| member.number == number && member.ep.is_in())
    }

    /// A free card.
    #[inline]
    pub(super) fn sit(&self) -> Result<(Arc<Member>, u64), LockError> {
        loop {
            let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
            for member in list.iter() {
                if member.ep.is_in()
                    && let Some(card) = member.take_card()?
                {
                    return Ok((Arc::clone(member), card));
                }
            }
            let seen: Vec<_> = list.iter().map(|member| member.number).collect();
            drop(list);
            self.join(&seen)?;
        }
    }

    #[inline]
    pub(super) fn member(&self, seat: Seat) -> Arc<Member> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        let found = list.iter().find(|member| member.number == seat.member);
        Arc::clone(found.expect("a membership stays as long as one of its cards is in use"))
    }

    /// A sign of life for all of them.
    pub(super) fn beat(&self) {
        let now = self.space.now();
        for member in self.all() {
            if member.pen.beat(&member.ep, now).is_ok() {
                member.beat.store(now.0, SeqCst);
            }
        }
    }

    /// Takes a keyed lock if it is free.
    #[inline]
    pub(super) fn try_take(&self, claim: Claim) -> Result<Ticket, Denied> {
        let (member, card) = self.sit().map_err(no_seat)?;
        match member.attempt(card, claim) {
            Ok(grant) => Ok(member.ticket(card, grant)),
            Err(denied) => {
                member.stand_up(card);
                Err(denied)
            }
        }
    }

    /// Takes a keyed lock, however long it takes. Nothing is done before the first poll.
    pub(super) async fn take(self: Arc<Self>, claim: Claim) -> Result<Ticket, Denied> {
        let (member, card) = self.sit().map_err(no_seat)?;
        match member.queue(card, claim).await {
            Ok(grant) => Ok(member.ticket(card, grant)),
            Err(denied) => {
                member.stand_up(card);
                Err(denied)
            }
        }
    }

    /// Gives a keyed lock back.
    pub(super) async fn give_back(self: Arc<Self>, claim: Claim, ticket: Ticket) -> Result<(), Lost> {
        let (member, card) = (self.member(ticket.seat), u64::from(ticket.seat.card));
        // From here on it is no holder: others need not wait for it, even if it must wait for its successor.
        let released = match member.pen.state(&member.ep, card, State::Releasing, Kind::Keyed, claim.mode) {
            Ok(()) => {
                let AnyGrant::Shift(grant) = ticket.grant else { unreachable!("a keyed lock's ticket") };
                member.client.release(grant).await
            }
            Err(lost) => Err(lost.into()),
        };
        member.stand_up(card);
        released.map_err(|lost| match lost {
            // Declared dead: the lock is gone with the client.
            Lost::Fabric(FabricError::Expelled) => Lost::Recovered,
            lost => lost,
        })
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
        self.ep.me()
    }

    /// The directory of names.
    pub(crate) fn names(&self) -> Names {
        self.ep.names()
    }

    /// Takes a keyed lock away from whoever holds it with `token`.
    pub(crate) fn take_away(&self, lock: u64, mode: Mode, token: u64) -> Result<bool, FabricError> {
        block_on(self.client.take_away(lock, mode, token))
    }

    /// Takes a range away from whoever holds it by `card`.
    pub(crate) fn strike(&self, card: &Card) -> Result<bool, FabricError> {
        let struck = cards::strike(&self.ep, card)?;
        super::ranges::changed(&self.ep, card.claim.lock)?;
        Ok(struck)
    }
}

impl Member {
    pub(super) fn ticket(&self, card: u64, grant: AnyGrant) -> Ticket {
        Ticket { grant, seat: Seat { member: self.number, card: card as u16 } }
    }

    #[inline]
    fn take_card(&self) -> Result<Option<u64>, FabricError> {
        let mut taken = self.cards.load(SeqCst);
        while taken != u64::MAX {
            let card = u64::from(taken.trailing_ones());
            match self.cards.compare_exchange_weak(taken, taken | 1 << card, SeqCst, SeqCst) {
                Ok(_) => {
                    if self.used.load(SeqCst) >> card & 1 == 0 {
                        self.used.fetch_or(1 << card, SeqCst);
                        self.pen.uses(&self.ep, card)?;
                    }
                    return Ok(Some(card));
                }
                Err(now) => taken = now,
            }
        }
        Ok(None)
    }

    /// Clears the card and lets others have it.
    #[inline]
    pub(super) fn stand_up(&self, card: u64) {
        // An expelled client's sheet is not its own any more.
        let _ = self.pen.clear(&self.ep, card);
        self.cards.fetch_and(!(1 << card), SeqCst);
    }

    /// One attempt that never queues.
    #[inline]
    fn attempt(&self, card: u64, claim: Claim) -> Result<AnyGrant, Denied> {
        self.pen.fill(&self.ep, card, (State::Taking, Kind::Keyed, &claim), 0, self.space.now())?;
        let grant = Keyed::try_acquire(&self.client, Want { claim, patience: Patience::Forever })?;
        if !resets::is_undisturbed(&self.ep, claim.lock) {
            // A reader can come in beside a dead one, just when a writer is about to reset the lock.
            return block_on(self.confirm(claim, grant));
        }
        self.pen.token(&self.ep, card, token(&grant))?;
        Ok(grant)
    }

    /// Waits for a reset to be over; the grant is void if the lock was reset.
    #[cold]
    async fn confirm(&self, claim: Claim, grant: AnyGrant) -> Result<AnyGrant, Denied> {
        resets::undisturbed(&self.space, &self.ep, claim.lock).await?;
        let AnyGrant::Shift(shift) = &grant else { unreachable!("only keyed locks are reset") };
        if self.client.holds(shift).await? {
            return Ok(grant);
        }
        // Says that it was lost, which is known, and tidies up.
        let _ = Keyed::release(Arc::clone(&self.client), grant).await;
        Err(Denied::Busy)
    }

    /// An attempt that queues. A grant counts only if the lock was not reset before the card said that it is held: see
    /// [`resets`].
    async fn queue(&self, card: u64, claim: Claim) -> Result<AnyGrant, Denied> {
        let (want, began) = (Want { claim, patience: Patience::Forever }, self.space.now());
        loop {
            self.pen.fill(&self.ep, card, (State::Waiting, Kind::Keyed, &claim), 0, began)?;
            let grant = Keyed::acquire(Arc::clone(&self.client), want).await?;
            let card_now = (State::Held, Kind::Keyed, &claim);
            self.pen.fill(&self.ep, card, card_now, token(&grant), self.space.now())?;
            match self.confirm(claim, grant).await {
                Err(Denied::Busy) => {}
                outcome => return outcome,
            }
        }
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("number", &self.number)
            .field("peer", &self.ep.me())
            .finish_non_exhaustive()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.pen.end(&self.ep);
    }
}

/// Bytes of the keyed locks.
pub(crate) fn lock_bytes() -> u64 {
    <ShiftLock>::bytes_per_node(&SHAPE, &params())
}

/// What the regions of a space are for, and how large they are: locks, cards, resets, counts of changes.
pub(crate) fn regions() -> [u64; 4] {
    [lock_bytes(), cards::BYTES, resets::bytes(SHAPE.locks), super::ranges::bytes(NAMES)]
}
