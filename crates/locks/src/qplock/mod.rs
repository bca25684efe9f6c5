//! The asymmetric lock: clients on the lock's own node use CPU instructions, all others one-sided verbs, and neither
//! goes through the other's door (Nelson-Slivon, Tseng, Palmieri: "Asymmetric Mutual Exclusion for RDMA").
//!
//! On most NICs an atomic of the CPU and an atomic of the NIC on one word do not exclude each other, so the two sides
//! may share nothing but reads and writes. Each side has a budgeted MCS queue of its own (`queue`, Alg. 2); the heads
//! of the two queues meet in Peterson's lock, whose flags are the tails of the queues (`acquire`, Alg. 1). Where the
//! text and the listings disagree, the PlusCal of the appendix decides: who finds its queue empty leads and runs
//! Peterson, who is passed the lock has it, unless the budget is used up.
//!
//! What it must not do: change a word of the other side by read-modify-write, or wait for a queue by polling.
//!
//! Four protocols of one code ([`Rules`]): `qplock-printed` is the paper's to the letter; `qplock` looks at the other
//! queue before it yields, which makes an uncontended remote acquire one round trip; `qplock-rw` adds shared mode and
//! fencing tokens; `qplock-fifo` serves both sides strictly in the order in which they came. A fifth, `leased`, has code of
//! its own: it recovers from clients that die, by leases; so has [`member`], by membership. docs/protocols/qplock.md says why each is safe and what was explored.

mod acquire;
mod fifo;
mod give_up;
mod layout;
pub mod leased;
pub mod member;
mod queue;
mod release;

use crate::protocol::{Denied, Grant, Info, LockClient, Lost, Offers, Protocol, Reason, Space, Want};
pub use give_up::GivesUp;
use layout::{Desc, LockWords, Side, Ticket};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Addr, Endpoint, Needs};
use queue::Slots;
use std::marker::PhantomData;
use std::sync::Arc;

/// The asymmetric lock, with the rules of `R`.
///
/// ```
/// use lockwright_fabric::backend::inproc::{InProc, block_on};
/// use lockwright_fabric::{NodeId, PeerId};
/// use lockwright_locks::qplock::{QpLock, QpParams};
/// use lockwright_locks::{LockClient, Protocol, Space, Want};
///
/// let (space, params) = (Space::of(1), QpParams::default());
/// let fabric = InProc::new(1, QpLock::<lockwright_locks::qplock::Shipped>::bytes_per_node(&space, &params));
/// let ep = fabric.endpoint_at(PeerId::client(0), NodeId(0));
/// let client = <QpLock>::client(ep, &space, &params);
/// let grant = block_on(client.acquire(Want::exclusive(0))).unwrap();
/// block_on(client.release(grant)).unwrap();
/// ```
#[derive(Debug)]
pub struct QpLock<R = Shipped>(PhantomData<R>);

/// Tunables. All clients of a space must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpParams {
    /// Grants that a side may have in a row while the other waits (kInitBudget), at least 1.
    pub budget: u16,
    /// Clients that a node has descriptors for. Only those at home on a memory node need one.
    pub clients: u32,
    /// Acquisitions a client can have under way or hold at once.
    pub slots: u8,
    /// Enqueue with one fetch-and-store, as the PlusCal has it, instead of the listing's CAS loop. Needs masked
    /// atomics.
    pub swap: bool,
    /// For the bypass checker, where order is strict: a client counts as waiting from when it has its ticket, not from its
    /// first verb. Before that, clients that share its side may win races for the tail.
    pub waits_from_ticket: bool,
}

impl QpParams {
    /// The defaults. The paper names no budget; 8 keeps a turn of one side in the order of a few round trips.
    pub const DEFAULT: Self =
        Self { budget: 8, clients: 1024, slots: 4, swap: false, waits_from_ticket: false };
}

impl Default for QpParams {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Where the variants and mutants of the lock differ. The defaults are what is shipped as `qplock`.
pub trait Rules: std::fmt::Debug + Send + Sync + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// One line for lists.
    const SUMMARY: &'static str =
        "asymmetric lock: local clients without verbs, remote ones without loopback";
    /// Look at the other queue before yielding to it: if it is empty, there is nobody to yield to.
    const LOOKS_FIRST: bool = true;
    /// Shared mode and fencing tokens.
    const EXTENDED: bool = false;
    /// Strict order across the sides: by tickets instead of budgets.
    const FIFO: bool = false;

    /// Each side has a queue of its own.
    const TWO_QUEUES: bool = true;
    /// The store of one's own tail takes effect before the look at the other's.
    const FENCED: bool = true;
    /// A client that finds its queue empty runs Peterson's lock, and who is passed the lock does not (PlusCal p2). Algorithm
    /// 1's text has it the other way round.
    const LEADER_RUNS_PETERSON: bool = true;
    /// Writes `victim` before it waits (Alg. 1 line 6).
    const YIELDS: bool = true;
    /// Reacquires when the budget is used up (Alg. 2 line 11).
    const MINDS_BUDGET: bool = true;
    /// A release that finds a client queued behind it waits to learn which (Alg. 2 line 18).
    const WAITS_FOR_SUCCESSOR: bool = true;
    /// A writer waits for the readers of both sides.
    const WAITS_FOR_REMOTE_READERS: bool = true;
    /// A cohort that yields writes the token back first.
    const WRITES_TOKEN_BACK: bool = true;
    /// With strict order: the lock is not passed on past an earlier one of the other side.
    const MINDS_TICKETS: bool = true;
    /// Strict order: a head that could enter lets one of the other side go first that came earlier.
    const LETS_EARLIER_GO: bool = true;
}

/// What is shipped as `qplock`.
#[derive(Debug)]
pub struct Shipped;

impl Rules for Shipped {
    const NAME: &'static str = "qplock";
}

/// The paper's lock to the letter.
#[derive(Debug)]
pub struct AsPrinted;

impl Rules for AsPrinted {
    const NAME: &'static str = "qplock-printed";
    const SUMMARY: &'static str = "asymmetric lock as its paper prints it: every leader yields first";
    const LOOKS_FIRST: bool = false;
}

/// With shared mode and fencing tokens.
#[derive(Debug)]
pub struct Extended;

impl Rules for Extended {
    const NAME: &'static str = "qplock-rw";
    const SUMMARY: &'static str = "asymmetric reader-writer lock with fencing tokens";
    const EXTENDED: bool = true;
}

/// First come, first served, across the sides too.
#[derive(Debug)]
pub struct InOrder;

impl Rules for InOrder {
    const NAME: &'static str = "qplock-fifo";
    const SUMMARY: &'static str = "asymmetric lock that is strictly first come, first served";
    const FIFO: bool = true;
}

impl<R: Rules> Protocol for QpLock<R> {
    type Params = QpParams;
    type Client<E: Endpoint> = GivesUp<E, QpClient<E, R>>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: R::SUMMARY,
        source: "Nelson-Slivon, Tseng, Palmieri: Asymmetric Mutual Exclusion for RDMA, Alg. 1, 2 and appendix",
        offers: Offers {
            tries: true,
            timeouts: true,
            shared: R::EXTENDED,
            tokens: R::EXTENDED,
            ..Offers::NONE
        },
    };

    fn needs(params: &QpParams) -> Needs {
        // Messages for clients that are at home nowhere. Scope: any, which is what the lock is for.
        Needs { masked: params.swap, messages: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, params: &QpParams) -> u64 {
        layout::bytes_per_node(space, params)
    }

    /// Clone it for more tasks of one client; two clients made for one peer would share descriptors without knowing.
    ///
    /// # Panics
    /// If the parameters make no sense.
    fn client<E: Endpoint>(ep: E, space: &Space, params: &QpParams) -> Self::Client<E> {
        assert!((1..=layout::MAX_BUDGET).contains(&params.budget), "a budget is at least 1");
        assert!((1..=layout::MAX_SLOTS).contains(&params.slots), "a client has 1 to 32 descriptors");
        assert!(space.nodes <= layout::MAX_NODES, "a tail has room for 2,047 nodes");
        let (space, params) = (*space, *params);
        let client = QpClient { ep: ep.clone(), space, params, slots: Arc::default(), rules: PhantomData };
        GivesUp::new(ep, client)
    }

    fn quiet_mask(space: &Space, _: &QpParams, addr: Addr) -> u64 {
        layout::quiet_mask(space, addr)
    }

    fn message_name(kind: u32) -> &'static str {
        if kind == queue::SUCCESSOR { "Successor" } else { "Handover" }
    }
}

/// A client of the asymmetric lock.
///
/// # Cancel safety
/// An acquire that is dropped leaves its descriptor in a queue, and the queue stands still behind it. Give up through
/// [`AbandonedAcquires`](crate::abandoned::AbandonedAcquires), or by a deadline ([`GivesUp`]).
#[derive(Clone, Debug)]
pub struct QpClient<E, R = Shipped> {
    ep: E,
    space: Space,
    params: QpParams,
    slots: Arc<Slots>,
    rules: PhantomData<R>,
}

/// A granted asymmetric lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpGrant {
    lock: u64,
    /// Zero for variants without tokens.
    token: u64,
    /// Grants left to the cohort, this one included.
    budget: u16,
    slot: u8,
    mode: Mode,
    /// When it came, where strict order asks for it.
    ticket: Ticket,
    /// For variants without tokens there is none to tell.
    has_token: bool,
}

impl Grant for QpGrant {
    fn token(&self) -> Option<u64> {
        self.has_token.then_some(self.token)
    }
}

/// One acquisition's place in the world: which words, which side, which descriptor.
#[derive(Clone, Copy, Debug)]
struct Place {
    lock: u64,
    words: LockWords,
    side: Side,
    me: Desc,
}

impl<E: Endpoint, R: Rules> QpClient<E, R> {
    /// Whether the client's own CPU reaches the lock decides which side it is on.
    #[inline(always)]
    fn place(&self, lock: u64, slot: u8) -> Place {
        let words = LockWords::new(&self.space, lock);
        let home = self.ep.home();
        let side = if home == Some(words.node()) { Side::Local } else { Side::Remote };
        let me = Desc { owner: self.ep.me(), slot, node: home, ticket: Ticket::default() };
        Place { lock, words, side, me }
    }

    /// A descriptor for what `want` asks.
    #[inline(always)]
    fn begin(&self, want: Want) -> Result<Place, Denied> {
        let limit = if self.ep.home().is_some() { self.params.clients } else { layout::MAX_CLIENTS };
        if self.ep.me().index().0 >= limit.min(layout::MAX_CLIENTS) as usize {
            return Err(Denied::Unsupported(&Reason(
                "this lock space has no descriptor left for another client",
            )));
        }
        let Some(slot) = self.slots.take(self.params.slots) else {
            return Err(Denied::Unsupported(&Reason(
                "this client wants more asymmetric locks at once than it may",
            )));
        };
        Ok(self.place(want.claim.lock, slot))
    }
}

impl<E: Endpoint, R: Rules> LockClient for QpClient<E, R> {
    type Grant = QpGrant;

    #[inline(always)]
    fn acquire(&self, want: Want) -> impl Future<Output = Result<QpGrant, Denied>> {
        self.acquire_fast(want)
    }

    fn release(&self, grant: QpGrant) -> impl Future<Output = Result<(), Lost>> {
        self.give_back(grant)
    }

    fn locals(&self) -> Vec<u64> {
        vec![u64::from(self.slots.taken())]
    }
}
