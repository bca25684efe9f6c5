//! The asymmetric lock that survives its clients: a client that dies or sleeps in the queue or with the lock in hand is left
//! behind, and the lock goes on without it. The paper has nothing of the kind (it assumes that nobody fails).
//!
//! **A generation** is a fresh, empty lock in the same words. Queues, victim and claims all carry the generation they
//! belong to, and mean nothing in a later one; recovery does nothing but begin the next. So a sleeper that wakes up in
//! the middle of an old generation can write what it likes: nobody listens.
//!
//! **Which generation it is** must be agreed between two sides that share no atomic. Each side has a `Stamp` that only
//! its own clients change, by CAS, and only upwards; the later of the two is what counts. Either side can so begin the
//! next generation alone, and if both do at once they begin the same one.
//!
//! **Claims.** To recover and to enter are two things that must not happen at once, and no CAS can decide between
//! clients of different sides. Both write, then look: who gets the lock writes a claim to its own side's stamp and looks
//! at the other's; who recovers announces it in its own side's stamp and looks at the other's. One of them sees the
//! other. A recoverer that sees a claim takes its announcement back; a claimant that sees an announcement waits for
//! what becomes of it. The claim is the fencing token, and the sign of life that waiters go by.
//!
//! **When.** A claim is good for a lease. A waiter that sees no claim for two leases recovers. A local waiter whose
//! predecessor claimed the lock and whose process has ended ([`Endpoint::is_gone`]) recovers at once.
//!
//! What it must not do: believe anything that is not of its generation, or addressed to this very acquisition.

mod acquire;
mod layout;
mod link;
mod peterson;
mod recover;
mod release;

use super::layout::{MAX_SLOTS, Side};
use super::queue::Slots;
use crate::protocol::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use crate::qplock::give_up::GivesUp;
use layout::{LockWords, Member, Stamp};
use lockwright_fabric::{Addr, Endpoint, Needs};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The asymmetric lock with leases, recovery and fencing tokens.
///
/// ```
/// use lockwright_fabric::backend::inproc::{InProc, block_on};
/// use lockwright_fabric::{NodeId, PeerId};
/// use lockwright_locks::qplock::leased::{Leased, LeasedParams};
/// use lockwright_locks::{Grant, LockClient, Protocol, Space, Want};
///
/// let (space, params) = (Space::of(1), LeasedParams::default());
/// let fabric = InProc::new(1, <Leased>::bytes_per_node(&space, &params));
/// let client = <Leased>::client(fabric.endpoint_at(PeerId::client(0), NodeId(0)), &space, &params);
/// let first = block_on(client.acquire(Want::exclusive(0))).unwrap();
/// block_on(client.release(first)).unwrap();
/// let second = block_on(client.acquire(Want::exclusive(0))).unwrap();
/// assert!(second.token() > first.token());
/// ```
#[derive(Debug)]
pub struct Leased<R = Shipped>(PhantomData<R>);

/// Tunables. All clients of a space must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedParams {
    /// Grants that a side may have in a row while the other waits, at least 1.
    pub budget: u16,
    /// Clients that a node has descriptors for. Only those at home on a memory node need one.
    pub clients: u32,
    /// Acquisitions a client can have under way or hold at once.
    pub slots: u8,
    /// How long a lock may be held. After twice that without a grant, others take the lock away. `u64::MAX`: only the
    /// death of a process is reason enough.
    pub lease_ns: u64,
    /// How often a local waiter looks whether its predecessor's process has ended.
    pub look_ns: u64,
    /// The generation in which a lock is recovered no more.
    pub last_generation: u16,
}

impl LeasedParams {
    /// The defaults: a lease of a second, local deaths noticed within a millisecond.
    pub const DEFAULT: Self = Self {
        budget: 8,
        clients: 1024,
        slots: 4,
        lease_ns: 1_000_000_000,
        look_ns: 1_000_000,
        last_generation: u16::MAX,
    };
}

impl Default for LeasedParams {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Where the mutants of the lock differ. The defaults are what is shipped.
pub trait Rules: std::fmt::Debug + Send + Sync + 'static {
    /// The name on the command line.
    const NAME: &'static str = "qplock-leased";
    /// Who claims the lock looks for a recovery that the other side made or announced.
    const CLAIMS_LOOK: bool = true;
    /// A claim that took longer than a lease is made again.
    const CLAIMS_EXPIRE: bool = true;
    /// Who recovers announces it, and looks for claims once more.
    const ANNOUNCES: bool = true;
    /// Tokens of a later generation are larger.
    const TOKENS_COUNT_GENERATIONS: bool = true;
    /// A queue of an older generation is empty.
    const FORGETS_OLD_QUEUES: bool = true;
    /// A pass counts only for the acquisition it is addressed to.
    const CHECKS_ADDRESS: bool = true;
    /// Only the death of the one that claimed the lock is reason to recover at once, not that of any predecessor.
    const ASKS_FOR_THE_HOLDER: bool = true;
    /// A victim of an older generation says nothing.
    const CHECKS_VICTIM: bool = true;
}

/// What is shipped as `qplock-leased`.
#[derive(Debug)]
pub struct Shipped;

impl Rules for Shipped {}

impl<R: Rules> Protocol for Leased<R> {
    type Params = LeasedParams;
    type Client<E: Endpoint> = GivesUp<E, LeasedClient<E, R>>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "asymmetric lock with leases, recovery and fencing tokens",
        source: "Nelson-Slivon, Tseng, Palmieri: Asymmetric Mutual Exclusion for RDMA; the recovery is ours",
        offers: Offers { tries: true, timeouts: true, tokens: true, recovery: true, ..Offers::NONE },
    };

    fn needs(_: &LeasedParams) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, params: &LeasedParams) -> u64 {
        layout::bytes_per_node(space, params)
    }

    /// # Panics
    /// If the parameters make no sense.
    fn client<E: Endpoint>(ep: E, space: &Space, params: &LeasedParams) -> Self::Client<E> {
        assert!(params.budget >= 1, "a budget is at least 1");
        assert!((1..=MAX_SLOTS).contains(&params.slots), "a client has 1 to 32 descriptors");
        assert!(space.nodes <= layout::MAX_NODES, "a name has room for 2,047 nodes");
        // Not from 0: an earlier process of the same number may have left words that are still on their way.
        let number = Arc::new(AtomicU64::new(ep.random() >> 17));
        let client = LeasedClient {
            ep: ep.clone(),
            space: *space,
            params: *params,
            slots: Arc::default(),
            number,
            rules: PhantomData,
        };
        GivesUp::new(ep, client)
    }

    fn quiet_mask(space: &Space, _: &LeasedParams, addr: Addr) -> u64 {
        layout::quiet_mask(space, addr)
    }

    fn message_name(kind: u32) -> &'static str {
        if kind == link::SUCCESSOR { "Successor" } else { "Handover" }
    }
}

/// A client of the recoverable asymmetric lock.
///
/// # Cancel safety
/// An acquire that is dropped leaves its descriptor in a queue, and the queue stands still behind it until others
/// recover the lock. [`GivesUp`] sees such acquires through.
#[derive(Clone, Debug)]
pub struct LeasedClient<E, R = Shipped> {
    ep: E,
    space: Space,
    params: LeasedParams,
    slots: Arc<Slots>,
    /// That of the last acquisition.
    number: Arc<AtomicU64>,
    rules: PhantomData<R>,
}

/// A granted lock, for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedGrant {
    lock: u64,
    claim: Stamp,
    token: u64,
    member: Member,
    /// Grants left to the side, this one included.
    budget: u16,
}

impl Grant for LeasedGrant {
    fn token(&self) -> Option<u64> {
        Some(self.token)
    }
}

/// Which lock, and from which side.
#[derive(Clone, Copy, Debug)]
struct Place {
    lock: u64,
    words: LockWords,
    side: Side,
}

impl Place {
    const fn other(self) -> Side {
        self.side.other()
    }
}

impl<E: Endpoint, R: Rules> LeasedClient<E, R> {
    fn place(&self, lock: u64) -> Place {
        let words = LockWords::new(&self.space, lock);
        let side = if self.ep.home() == Some(words.node()) { Side::Local } else { Side::Remote };
        Place { lock, words, side }
    }

    /// A new acquisition in `slot`: nothing that was ever written for another one is taken for its own.
    fn member(&self, slot: u8) -> Member {
        let next = |last| Some(layout::number_after(last));
        let last = self.number.fetch_update(Relaxed, Relaxed, next).expect("there is always a next one");
        let number = layout::number_after(last);
        Member { owner: self.ep.me(), slot, node: self.ep.home(), number }
    }

    fn begin(&self) -> Result<u8, Denied> {
        const NO_ROOM: &Reason = &Reason("this lock space has no descriptor left for another client");
        const TOO_MANY: &Reason = &Reason("this client wants more asymmetric locks at once than it may");
        let index = self.ep.me().index().0;
        let limit = if self.ep.home().is_some() { self.params.clients } else { layout::MAX_CLIENTS };
        if index >= limit.min(layout::MAX_CLIENTS) as usize {
            return Err(Denied::Unsupported(NO_ROOM));
        }
        self.slots.take(self.params.slots).ok_or(Denied::Unsupported(TOO_MANY))
    }
}

impl<E: Endpoint, R: Rules> LockClient for LeasedClient<E, R> {
    type Grant = LeasedGrant;

    async fn acquire(&self, want: Want) -> Result<LeasedGrant, Denied> {
        let slot = self.begin()?;
        let outcome = self.enter(self.place(want.claim.lock), slot, want).await;
        if outcome.is_err() {
            self.slots.give_back(slot);
        }
        outcome
    }

    async fn release(&self, grant: LeasedGrant) -> Result<(), Lost> {
        let outcome = self.leave(grant).await;
        self.slots.give_back(grant.member.slot);
        outcome
    }

    fn locals(&self) -> Vec<u64> {
        vec![u64::from(self.slots.taken()), self.number.load(Relaxed)]
    }
}

/// Whether the client leaves rather than wait.
const fn is_try(want: Want) -> bool {
    matches!(want.patience, Patience::Try)
}
