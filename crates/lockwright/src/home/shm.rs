//! `shm:`, a space in this host's shared memory: any process of this user, no server.
//!
//! A client joins the space once for every 64 locks that it holds or wants at a time. Each of these memberships is a
//! peer of the fabric with a ShiftLock client and a sheet of [`cards`](super::cards). Before a waiter takes a lock
//! away from somebody it asks the cards whether a living process holds it: dead processes are seen at once, stopped
//! ones after their lease.
//!
//! What this file must not do: keep anything about a lock outside the space.

use super::cards::{self, Pen, State};
use super::hosted::{Drive, drive};
use super::{AnyGrant, BoxFuture, Home, Kind, Refused, Seat, Standing, Ticket};
use crate::error::{HandleError, LockError, OpenError};
use crate::name::LockName;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace, SpaceError, SpaceOptions};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, Time};
use lockwright_locks::shiftlock::witness::Witness;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_locks::{Denied, Grant, Lost, Patience, Protocol, Space, Want};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// What a space of ours is called; raised when the meaning of its memory changes.
const TAG: &str = "lockwright 1, shiftlock";
/// Names, and therefore lock ids.
const NAMES: u64 = 1 << 20;
/// Bits of a peer's number that ShiftLock has room for.
const PEER_BITS: u32 = 24;
/// How long a lock may stand still before a waiter asks whether its holder lives: three of these.
const ASK_NS: u64 = 10_000_000;
/// Signs of life per lease.
const BEATS: u32 = 4;

drive!(
    /// Keyed locks between processes.
    Keyed,
    ShiftLock,
    ShmEndpoint,
    AnyGrant::Shift
);

/// An opened space of this host.
#[derive(Debug)]
pub(crate) struct ShmHome {
    pub(super) space: ShmSpace,
    shape: Space,
    params: ShiftParams,
    lease_ns: u64,
    members: RwLock<Vec<Arc<Member>>>,
    joining: Mutex<u32>,
}

/// One membership of this client.
pub(super) struct Member {
    number: u32,
    pub(super) ep: ShmEndpoint,
    pub(super) client: Arc<<Keyed as Drive>::Client>,
    pen: Pen,
    /// Bit n: card n is in use.
    cards: AtomicU64,
    /// Bit n: card n has been in use.
    used: AtomicU64,
    /// The last sign of life.
    beat: AtomicU64,
}

/// Asks the cards.
#[derive(Debug)]
struct Cards {
    space: ShmSpace,
}

impl Witness for Cards {
    fn is_held(&self, lock: u64) -> bool {
        is_held(&self.space, Kind::Keyed, lock)
    }
}

/// Whether somebody who is alive holds `lock`. Whoever has been silent for longer than its lease is declared dead.
fn is_held(space: &ShmSpace, kind: Kind, lock: u64) -> bool {
    let now = space.now();
    cards::sheets(space).any(|sheet| {
        let holds = sheet
            .cards(space)
            .any(|card| card.state.holds() && card.kind == kind && card.claim.lock == lock);
        holds && is_alive(space, &sheet, now)
    })
}

/// Whether the client of `sheet` lives, by its process and its lease.
pub(super) fn is_alive(space: &ShmSpace, sheet: &cards::Sheet, now: Time) -> bool {
    if !space.is_alive(sheet.peer) {
        return false;
    }
    if sheet.is_expired(now) {
        space.declare_dead(sheet.peer);
        return false;
    }
    true
}

/// The options every space of ours is made with.
pub(crate) fn options() -> SpaceOptions {
    let locks = <ShiftLock>::bytes_per_node(&Space::of(NAMES), &ShiftParams::default());
    SpaceOptions::default()
        .clients(cards::SLOTS)
        .peer_bits(PEER_BITS)
        .names(NAMES)
        .memory(1, &[locks, cards::BYTES])
        .tag(TAG)
}

/// Opens the space at `path`, and looks whether it is one of ours.
pub(crate) fn open(path: &Path, create: bool) -> Result<ShmSpace, OpenError> {
    let refuse = |why: String| OpenError::Space { space: path.display().to_string(), why };
    let space = ShmSpace::open(path, &options().create(create)).map_err(|error| refuse(error.to_string()))?;
    if space.tag() != TAG {
        return Err(refuse(format!("it is a space of another kind ({:?}), not {TAG:?}", space.tag())));
    }
    Ok(space)
}

impl ShmHome {
    pub(crate) fn new(space: ShmSpace, lease: Duration) -> Result<Self, LockError> {
        let home = Self {
            space,
            shape: Space::of(NAMES),
            params: ShiftParams { lease_ns: ASK_NS, trust_ns: ASK_NS, ..ShiftParams::default() },
            lease_ns: u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX),
            members: RwLock::default(),
            joining: Mutex::default(),
        };
        home.join(&[])?;
        home.bury();
        Ok(home)
    }

    /// The longest silence before this client can be declared dead.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease_ns)
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Joins once more, unless somebody else just did: `seen` are the members that had no card to give.
    fn join(&self, seen: &[u32]) -> Result<(), LockError> {
        let mut next = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        if self.members().iter().any(|member| !seen.contains(&member.number) && member.ep.is_in()) {
            return Ok(());
        }
        let no_seat = |error: SpaceError| LockError::NoSeat(error.to_string());
        let ep = self.space.endpoint().map_err(no_seat)?;
        let (pen, now) = (Pen::new(ep.me()), self.space.now());
        pen.begin(&ep, self.lease_ns, now)?;
        let witness = Arc::new(Cards { space: self.space.clone() });
        let client = <ShiftLock>::client_with(ep.clone(), &self.shape, &self.params, witness);
        let member = Member {
            number: *next,
            ep,
            client: Arc::new(client),
            pen,
            cards: AtomicU64::new(0),
            used: AtomicU64::new(0),
            beat: AtomicU64::new(now.0),
        };
        *next += 1;
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        // Those who were declared dead go when their last guard has gone.
        members.retain(|member| member.ep.is_in() || member.cards.load(SeqCst) != 0);
        members.push(Arc::new(member));
        Ok(())
    }

    /// A free card.
    #[inline]
    pub(super) fn sit(&self) -> Result<(Arc<Member>, u64), LockError> {
        loop {
            let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            for member in members.iter().rev() {
                if member.ep.is_in()
                    && let Some(card) = member.take_card()?
                {
                    return Ok((Arc::clone(member), card));
                }
            }
            let seen: Vec<_> = members.iter().map(|member| member.number).collect();
            drop(members);
            self.join(&seen)?;
        }
    }

    pub(super) fn member(&self, seat: Seat) -> Arc<Member> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let found = members.iter().find(|member| member.number == seat.member);
        Arc::clone(found.expect("a membership stays as long as one of its cards is in use"))
    }

    /// Drops the names of dead clients, whose locks nobody waits for, so that names and slots can be used again.
    fn bury(&self) {
        for dead in self.space.dead_clients() {
            self.space.bury(dead.peer);
        }
    }
}

impl Member {
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
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("number", &self.number).field("peer", &self.ep.me()).finish_non_exhaustive()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.pen.end(&self.ep);
    }
}

fn token(grant: &AnyGrant) -> u64 {
    let AnyGrant::Shift(grant) = grant;
    grant.token().unwrap_or_default()
}

impl Home for ShmHome {
    fn bind(&self, name: &LockName, kind: Kind) -> Result<u64, HandleError> {
        if kind == Kind::Ranges {
            return Err(HandleError::Unsupported("range locks"));
        }
        let mut h = 0xcbf2_9ce4_8422_2325u64;
        for b in name.as_bytes() {
            h = (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(h % NAMES)
    }

    fn unbind(&self, _: &LockName, _: u64, _: Kind) {}

    fn try_acquire(&self, kind: Kind, claim: Claim) -> Result<Ticket, Refused> {
        let (member, card) = self.sit().map_err(Refused::Error)?;
        let tried = member.attempt(card, kind, claim);
        match tried {
            Ok(grant) => Ok(Ticket { grant, seat: Seat { member: member.number, card: card as u16 } }),
            Err(denied) => {
                member.stand_up(card);
                Err(Refused::new(denied, claim))
            }
        }
    }

    fn acquire(&self, kind: Kind, claim: Claim) -> BoxFuture<Result<Ticket, Refused>> {
        let (member, card) = match self.sit() {
            Ok(seat) => seat,
            Err(error) => return Box::pin(async { Err(Refused::Error(error)) }),
        };
        let now = self.space.now();
        let space = self.space.clone();
        Box::pin(async move {
            let granted = member.queue(card, kind, claim, now, &space).await;
            match granted {
                Ok(grant) => Ok(Ticket { grant, seat: Seat { member: member.number, card: card as u16 } }),
                Err(denied) => {
                    member.stand_up(card);
                    Err(Refused::new(denied, claim))
                }
            }
        })
    }

    fn release(&self, kind: Kind, claim: Claim, ticket: Ticket) -> BoxFuture<Result<(), Lost>> {
        let (member, card) = (self.member(ticket.seat), u64::from(ticket.seat.card));
        // From here on it is no holder: whoever waits need not wait for it, even if it must wait for its successor.
        let said = member.pen.state(&member.ep, card, State::Releasing, kind, claim.mode);
        let release = Keyed::release(Arc::clone(&member.client), ticket.grant);
        Box::pin(async move {
            let released = match said {
                Ok(()) => release.await,
                Err(lost) => Err(lost.into()),
            };
            member.stand_up(card);
            released.map_err(|lost| match lost {
                // Declared dead: the lock is gone with the client.
                Lost::Fabric(FabricError::Expelled) => Lost::Recovered,
                lost => lost,
            })
        })
    }

    fn token(&self, ticket: &Ticket) -> u64 {
        token(&ticket.grant)
    }

    fn standing(&self, _: Kind, _: Claim, ticket: &Ticket) -> Standing {
        let member = self.member(ticket.seat);
        let AnyGrant::Shift(grant) = &ticket.grant;
        match block_on(member.client.holds(grant)) {
            Ok(false) | Err(FabricError::Expelled) => Standing::Lost,
            Err(_) => Standing::Uncertain,
            Ok(true) => {
                let silent = self.space.now().since(Time(member.beat.load(SeqCst)));
                if silent > self.lease_ns { Standing::Uncertain } else { Standing::Held }
            }
        }
    }

    fn heartbeat(&self) -> Duration {
        let now = self.space.now();
        for member in self.members() {
            if member.pen.beat(&member.ep, now).is_ok() {
                member.beat.store(now.0, SeqCst);
            }
        }
        self.bury();
        self.lease() / BEATS
    }
}

impl Member {
    /// One attempt that never queues.
    #[inline]
    fn attempt(&self, card: u64, kind: Kind, claim: Claim) -> Result<AnyGrant, Denied> {
        let now = block_on(self.ep.now());
        self.pen.fill(&self.ep, card, (State::Taking, kind, &claim), 0, now)?;
        let grant = Keyed::try_acquire(&self.client, Want { claim, patience: Patience::Forever })?;
        self.pen.token(&self.ep, card, token(&grant))?;
        Ok(grant)
    }

    /// An attempt that queues. A grant counts only if the lock was not reset before the card said so: until then, a
    /// waiter whose vigil ran out could take this client for one that still waits.
    async fn queue(
        &self,
        card: u64,
        kind: Kind,
        claim: Claim,
        now: Time,
        space: &ShmSpace,
    ) -> Result<AnyGrant, Denied> {
        self.pen.fill(&self.ep, card, (State::Waiting, kind, &claim), 0, now)?;
        let want = Want { claim, patience: Patience::Forever };
        loop {
            let grant = Keyed::acquire(Arc::clone(&self.client), want).await?;
            self.pen.fill(&self.ep, card, (State::Held, kind, &claim), token(&grant), space.now())?;
            let AnyGrant::Shift(shift) = &grant;
            if self.client.holds(shift).await? {
                return Ok(grant);
            }
            self.pen.fill(&self.ep, card, (State::Waiting, kind, &claim), 0, now)?;
            // Says that it was lost, which is known, and tidies up.
            let _ = Keyed::release(Arc::clone(&self.client), grant).await;
        }
    }
}
