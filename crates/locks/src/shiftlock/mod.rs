//! ShiftLock (FAST 2025): a reader-writer lock whose writers hand it over by message and whose readers count.
//!
//! Writers queue as in MCS; readers add themselves to a counter; an epoch bit tells waiting readers that a writer gave
//! the lock to them (§3.4, §3.5). Uncontended, acquire and release are one verb each, in both modes. Where this differs
//! from the paper, and why, stands in `docs/protocols/shiftlock.md`; in short: messages carry the epoch, the handover's
//! two halves leave together, any waiter recovers a lock with one verb, and every grant has a fencing token.
//!
//! Files: [`layout`] and [`portable`] are the entry's bits, [`versioned`] and
//! [`versioned_portable`] are those of locks with [holder records](crate::holders); `acquire` and `release` are
//! Alg. 2 and 3; `recover` is §3.6, and [`server`] the paper's own way to do it, for comparison; `give_up` is for clients that
//! do not wait to the end; `change` is upgrade and downgrade; `grant` is what a client holds; `members` gives every acquisition
//! its own place in the queue; [`fast_grant`] is the fast path where no verb has to be waited for; [`lookup`] is for spaces
//! that know their clients.
//!
//! What it must not do: rest mutual exclusion on a clock, but for leases (see `recover`).

mod acquire;
pub(crate) mod change;
pub mod fast_grant;
mod give_up;
mod grant;
pub mod layout;
pub mod lookup;
mod members;
mod messages;
pub mod portable;
mod recover;
mod release;
pub mod server;
pub mod shared;
pub mod versioned;
pub mod versioned_portable;

pub use grant::ShiftGrant;

use crate::abandoned::AbandonedAcquires;
use crate::protocol::{Denied, Info, LockClient, Lost, Offers, Protocol, Space, Want};
use acquire::keeps_readers_out;
use layout::{Entry, Guard, Layout, Stamp, Wide};
use lockwright_fabric::{Addr, BoxedRole, Endpoint, Needs, Value, Word};
use lookup::{HolderLookup, NoLookup};
use members::Members;
use server::Resets;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

/// ShiftLock with the entry `L` and the rules of `R`: those shipped, or a mutant's.
#[derive(Debug)]
pub struct ShiftLock<L = Wide, R = Shipped>(PhantomData<(L, R)>);

/// Where mutants differ from what is shipped. The defaults are what is shipped.
pub trait Rules: Debug + 'static {
    /// The name on the command line; none: the layout's.
    const NAME: Option<&'static str> = None;
    /// Writers go by the epoch that the message carries, not by the one they saw when they queued.
    const EPOCH_IS_CARRIED: bool = true;
    /// A release happens only if RelCnt is what the writer believes, so that a handover's FAA that is still on its way
    /// cannot land on top of it.
    const RELEASE_COMPARES_REL_CNT: bool = true;
    /// A change of mode counts readers from the RelCnt that was carried, not from the word.
    const MODE_CHANGE_COMPARES_REL_CNT: bool = true;
    /// A handover counts as a release.
    const HANDOVER_COUNTS: bool = true;
    /// A recovery goes to the next generation, and leaves a larger RelCnt.
    const RECOVERY_LEAPS: bool = true;
    /// A recovery goes to the next generation.
    const RECOVERY_IS_A_GENERATION: bool = true;
    /// A recovery leaves a larger RelCnt.
    const RECOVERY_COUNTS: bool = true;
    /// A recovery counts the readers that may be waited for.
    const RECOVERY_COUNTS_READERS: bool = true;
    /// Nobody is let in when RelCnt is at its limit.
    const TOKENS_END: bool = true;
    /// A reader's release and a handover's FAA happen only in the generation they began in, where the fabric can.
    const ADDS_ARE_GUARDED: bool = true;
    /// A client that waited for long makes sure of its grant.
    const LATE_GRANTS_ARE_CONFIRMED: bool = true;
    /// Who resets a lock after a look at the holder records compares all of the entry, not only RelCnt.
    const RESET_COMPARES_ALL: bool = true;
    /// With holder records: a client that was handed the lock bumps the version of the entry before it believes that.
    const GRANTS_ARE_MADE_SURE: bool = true;
    /// With holder records: a client that was handed the lock waits until that has been counted.
    const GRANTS_ARE_COUNTED: bool = true;
    /// With holder records: after the verb that grants the lock, its client looks whether it was evicted.
    const GRANTED_ARE_ALIVE: bool = true;
    /// Of ranges by holder records: they are written down before the gate is given back.
    const RANGES_ARE_WRITTEN_INSIDE: bool = true;
    /// A wait counts from before the waiter's first verb, not from when it next looked at the clock.
    const WAITS_COUNT_FROM_BEFORE: bool = true;
    /// A waiter whose time is up still takes the handover, and passes it on.
    const GIVING_UP_PASSES_ON: bool = true;
    /// A server that is asked to reset a lock compares RelCnt, besides the era.
    const SERVER_COMPARES_REL_CNT: bool = true;
    /// An upgrade waits for the other readers.
    const UPGRADES_WAIT_FOR_READERS: bool = true;
    /// Of two readers that would be alone the second is refused.
    const SECOND_UPGRADE_IS_REFUSED: bool = true;
    /// An upgrade counts as a release.
    const UPGRADES_COUNT: bool = true;
    /// A writer that becomes a reader tells the one behind it, and how many readers to wait for.
    const DOWNGRADES_TELL: bool = true;
    /// A writer that becomes a reader counts among those that the next writer waits for.
    const DOWNGRADED_ARE_COUNTED: bool = true;
    /// An upgrade past the dead compares all of the entry that it read before it looked at the holder records.
    const UPGRADE_COMPARES_ALL: bool = true;
}

/// What is shipped.
#[derive(Debug)]
pub struct Shipped;

impl Rules for Shipped {}

/// Tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShiftParams {
    /// After so many writers in a row the lock goes to the readers (the paper's N, §3.5.2). Rows of more than 2²³ - 1
    /// writers are not counted on: a threshold above that is never reached.
    pub threshold: u32,
    /// When that time comes and no reader waits, go on among writers: the optimisation that the paper leaves as future
    /// work.
    pub skips_idle_readers: bool,
    /// The longest a client may hold the lock, and the longest a step of the protocol takes it (§3.6). Waiters take a
    /// lock for dead after three of these without a release. 0: nobody recovers anything.
    pub lease_ns: u64,
    /// A client that gets the lock after waiting for less than this believes it at once; else it makes sure, with one verb
    /// more, that nobody takes the lock for dead just then. At most two leases. 0: always makes sure (and readers only
    /// ever get in when no writer is there).
    pub trust_ns: u64,
    /// Locks of this generation are recovered no more. For the explorer: generations wrap, so this is for few of them.
    pub last_generation: u64,
    /// Who resets a dead lock.
    pub resets: Resets,
    /// With holder records: how often in a row they must say that a lock may be on its way to a live client, before the lock is
    /// reset all the same.
    pub asks: u32,
}

impl Default for ShiftParams {
    /// The paper's threshold; a lease that threads on a busy machine keep.
    fn default() -> Self {
        Self { skips_idle_readers: true, ..Self::paper() }.with_lease(1_000_000_000)
    }
}

impl ShiftParams {
    /// As in the paper's evaluation: leases of 10 ms, and readers get their turn even if none waits.
    pub const fn paper() -> Self {
        const LEASE_NS: u64 = 10_000_000;
        Self {
            threshold: 16,
            skips_idle_readers: false,
            lease_ns: LEASE_NS,
            trust_ns: LEASE_NS,
            last_generation: u64::MAX,
            resets: Resets::ByWaiter,
            asks: 1,
        }
    }

    /// The same with another lease.
    #[must_use]
    pub const fn with_lease(mut self, lease_ns: u64) -> Self {
        (self.lease_ns, self.trust_ns) = (lease_ns, lease_ns);
        self
    }
}

impl<L: Layout, R: Rules> Protocol for ShiftLock<L, R> {
    type Params = ShiftParams;
    type Client<E: Endpoint> = ShiftClient<E, L, R>;

    const INFO: Info = Info {
        name: match R::NAME {
            Some(name) => name,
            None => L::NAME,
        },
        summary: L::SUMMARY,
        source: "ShiftLock, FAST 2025",
        offers: Offers {
            shared: true,
            ranges: false,
            tokens: true,
            tries: true,
            timeouts: true,
            recovery: true,
        },
    };

    fn needs(_: &ShiftParams) -> Needs {
        L::NEEDS
    }

    fn bytes_per_node(space: &Space, params: &ShiftParams) -> u64 {
        let table = space.table_bytes(L::Word::WIDTH.bytes());
        match params.resets {
            Resets::ByWaiter => table,
            Resets::ByServer => table + server::ERA_BYTES,
        }
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &ShiftParams) -> ShiftClient<E, L, R> {
        ShiftClient { core: Rc::new(Core::new(ep, space, params, NoLookup)) }
    }

    fn roles(space: &Space, params: &ShiftParams) -> Vec<BoxedRole> {
        match params.resets {
            Resets::ByWaiter => Vec::new(),
            Resets::ByServer => server::roles::<L, R>(space),
        }
    }

    /// Epoch and RelCnt are wherever they came to; nobody is inside or waits. Eras only rise.
    fn quiet_mask(space: &Space, _: &ShiftParams, addr: Addr) -> u64 {
        if addr.offset >= space.table_bytes(L::Word::WIDTH.bytes()) {
            return 0;
        }
        let quiet = L::RDR_CNT.mask() | L::TAIL.mask();
        (quiet >> (addr.offset % L::Word::WIDTH.bytes() * 8)) as u64
    }

    fn tune(params: &mut ShiftParams, name: &str, value: u64) -> bool {
        match name {
            "threshold" => params.threshold = u32::try_from(value).unwrap_or(u32::MAX),
            "skips-idle-readers" => params.skips_idle_readers = value != 0,
            "lease-ns" => *params = params.clone().with_lease(value),
            "trust-ns" => params.trust_ns = value,
            "server-resets" => params.resets = if value == 0 { Resets::ByWaiter } else { Resets::ByServer },
            _ => return false,
        }
        true
    }

    fn message_name(kind: u32) -> &'static str {
        messages::name(kind)
    }
}

/// A client of ShiftLock.
pub struct ShiftClient<E, L, R> {
    core: Rc<Core<E, L, R>>,
}

impl<E: Debug, L, R> Debug for ShiftClient<E, L, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShiftClient").field("ep", &self.core.ep).finish_non_exhaustive()
    }
}

/// What a client and the acquires it left behind share. `O` keeps those; the client for several threads, whose user keeps
/// them, has none (`shared`).
struct Core<E, L, R, O = AbandonedAcquires, W = NoLookup> {
    ep: E,
    space: Space,
    params: ShiftParams,
    /// Whether additions are guarded by the generation. If the fabric cannot, the host has to destroy a dead client's
    /// connection before its locks are recovered.
    guards: bool,
    members: Members,
    /// When this client last looked at the clock, in nanoseconds.
    last_look: AtomicU64,
    /// Acquires that were given up, which must still take their handover and pass it on.
    abandoned: O,
    /// Asked before a lock is reset.
    lookup: W,
    of: PhantomData<(L, R)>,
}

impl<E: Endpoint, L: Layout, R: Rules> LockClient for ShiftClient<E, L, R> {
    type Grant = ShiftGrant;

    async fn acquire(&self, want: Want) -> Result<ShiftGrant, Denied> {
        self.core.acquire(want).await
    }

    async fn release(&self, grant: ShiftGrant) -> Result<(), Lost> {
        self.core.release(grant).await
    }

    async fn settle(&self) {
        self.core.abandoned.finish().await;
    }

    fn locals(&self) -> Vec<u64> {
        let mut locals = self.core.members.locals();
        locals.push(self.core.last_look().0);
        locals
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O: Default, W: HolderLookup> Core<E, L, R, O, W> {
    fn new(ep: E, space: &Space, params: &ShiftParams, lookup: W) -> Self {
        Self {
            space: *space,
            params: params.clone(),
            guards: R::ADDS_ARE_GUARDED && ep.capabilities().guarded,
            members: Members::new::<L>(ep.me()),
            last_look: AtomicU64::new(0),
            abandoned: O::default(),
            lookup,
            of: PhantomData,
            ep,
        }
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    #[inline(always)]
    fn word(&self, lock: u64) -> Word<L::Word> {
        Word::at(self.space.place(lock, L::Word::WIDTH.bytes()))
    }

    /// What an addition is guarded by that belongs to the generation of `stamp`.
    #[inline(always)]
    fn guard(&self, stamp: Stamp) -> Option<Guard> {
        self.guards.then(|| Guard::generation::<L>(stamp))
    }

    /// What a reader's coming is guarded by: that RelCnt is not at its limit, and no reader waits to be alone.
    #[inline(always)]
    fn lets_in(&self) -> Option<Guard> {
        let mask = keeps_readers_out::<L, R>();
        (self.guards && mask != 0).then_some(Guard { mask, value: 0 })
    }

    /// Whether nobody new is let in.
    #[inline(always)]
    fn is_spent(entry: Entry<L>) -> bool {
        R::TOKENS_END && entry.is_spent()
    }
}
