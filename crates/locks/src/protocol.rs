//! What a lock protocol is: the traits that every one of them implements, and the words they share.

use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, BoxedRole, Endpoint, FabricError, Needs, NodeId, Time};
use std::fmt::{self, Debug};

/// A lock protocol: who it is, what it needs, and how a client of it is made.
///
/// The type itself is never built; it stands for the protocol where code is generic over one.
pub trait Protocol: 'static {
    /// Tunables, set at run time, the same for all clients of a space.
    type Params: Clone + Debug + Default + Send + Sync + 'static;
    /// A client of the protocol on the fabric `E`.
    type Client<E: Endpoint>: LockClient;

    /// Name, source and what it offers.
    const INFO: Info;

    /// What the fabric must be able to do.
    fn needs(params: &Self::Params) -> Needs;

    /// Bytes of lock memory on every node for `space`.
    fn bytes_per_node(space: &Space, params: &Self::Params) -> u64;

    /// A client that talks through `ep`.
    fn client<E: Endpoint>(ep: E, space: &Space, params: &Self::Params) -> Self::Client<E>;

    /// The server side, if there is one: role `i` is reached as `PeerId::role(i)` and lives on node `i`.
    fn roles(space: &Space, params: &Self::Params) -> Vec<BoxedRole> {
        let _ = (space, params);
        Vec::new()
    }

    /// How many of the roles, the last ones, are in the network and not on a node: switches that all packets pass, half the
    /// way from every node.
    fn switches(space: &Space, params: &Self::Params) -> usize {
        let _ = (space, params);
        0
    }

    /// How many clients there can be at most: as many as its words have bits or its tables have room for.
    fn most_clients(params: &Self::Params) -> usize {
        let _ = params;
        usize::MAX
    }

    /// Words of lock memory that do not start as zero.
    fn initial_memory(space: &Space, params: &Self::Params) -> Vec<(Addr, u64)> {
        let _ = (space, params);
        Vec::new()
    }

    /// Which bits of the eight bytes at `addr` must be as they were in the beginning when nobody holds or wants
    /// anything. Counters that only rise are left out of it.
    fn quiet_mask(space: &Space, params: &Self::Params, addr: Addr) -> u64 {
        let _ = (space, params, addr);
        u64::MAX
    }

    /// Sets the tunable called `name`, for callers that know a protocol only by its name. False if there is none, or if
    /// `value` is nothing for it.
    fn tune(params: &mut Self::Params, name: &str, value: u64) -> bool {
        let _ = (params, name, value);
        false
    }

    /// What a message of this kind is called, for traces.
    fn message_name(kind: u32) -> &'static str {
        let _ = kind;
        "message"
    }
}

/// One client of a protocol. Locks are acquired and released through it.
pub trait LockClient {
    /// What a granted lock is: whatever release needs to know.
    type Grant: Grant;

    /// Acquires what `want` says, or says why not. A denied client leaves nothing behind.
    fn acquire(&self, want: Want) -> impl Future<Output = Result<Self::Grant, Denied>>;

    /// Gives the lock back.
    fn release(&self, grant: Self::Grant) -> impl Future<Output = Result<(), Lost>>;

    /// Drives on what the client left behind when it gave up ([`Patience::Until`]), until nothing is left. A client that
    /// is about to be dropped must do this, or others may wait for it for ever (where nobody recovers).
    fn settle(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Changes what is held without ever letting go of it. What is denied changes nothing. Most protocols cannot.
    fn change(&self, grant: &mut Self::Grant, change: Change) -> impl Future<Output = Result<(), Denied>> {
        let _ = (grant, change);
        async { Err(Denied::Unsupported(&Reason("held locks are not changed"))) }
    }

    /// State that lives on from one acquire to the next, for the explorer's marks. Most clients have none.
    fn locals(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// What every grant can tell.
pub trait Grant {
    /// The fencing token: larger than that of every earlier conflicting grant of this lock. `None` for
    /// protocols without tokens.
    fn token(&self) -> Option<u64> {
        None
    }
}

/// A grant of a protocol that has nothing to carry but the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lock.
    pub lock: u64,
}

impl Grant for Held {}

const _: () = assert!(size_of::<Result<Held, Denied>>() <= 16, "an acquire's result fits into two registers");

/// A grant that carries a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenGrant {
    /// The lock.
    pub lock: u64,
    /// The token.
    pub token: Option<u64>,
}

impl Grant for TokenGrant {
    fn token(&self) -> Option<u64> {
        self.token
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    /// Which lock, in which mode, which units of it.
    pub claim: Claim,
    /// How long it is ready to wait.
    pub patience: Patience,
}

impl Want {
    /// The whole of `lock`, alone, however long it takes.
    #[inline(always)]
    pub const fn exclusive(lock: u64) -> Self {
        Self::whole(lock, Mode::Exclusive)
    }

    /// The whole of `lock`, together with other readers, however long it takes.
    #[inline(always)]
    pub const fn shared(lock: u64) -> Self {
        Self::whole(lock, Mode::Shared)
    }

    /// The whole of `lock` in `mode`.
    #[inline(always)]
    pub const fn whole(lock: u64, mode: Mode) -> Self {
        Self { claim: Claim { lock, mode, start: 0, end: u64::MAX }, patience: Patience::Forever }
    }

    /// The units `start..end` of `lock` in `mode`.
    #[inline(always)]
    pub const fn range(lock: u64, mode: Mode, start: u64, end: u64) -> Self {
        Self { claim: Claim { lock, mode, start, end }, patience: Patience::Forever }
    }

    /// The same, put together anew. A fast path that keeps a want only for its slow path keeps it in pieces then, which
    /// can stay in registers; a whole one is copied through memory by every acquire.
    #[inline(always)]
    #[must_use]
    pub const fn anew(self) -> Self {
        let Self { claim: Claim { lock, mode, start, end }, patience } = self;
        Self { claim: Claim { lock, mode, start, end }, patience }
    }

    /// The same, with other patience.
    #[must_use]
    pub const fn with(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }
}

/// How long a client is ready to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Patience {
    /// As long as it takes.
    #[default]
    Forever,
    /// Not at all: take the lock if it is free, never queue.
    Try,
    /// Until then.
    Until(Time),
}

/// A reason in words, behind a thin reference: an acquire's result should fit into two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(pub &'static str);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A change to what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// From shared to exclusive, if the other readers are gone in time.
    Upgrade(Patience),
    /// From exclusive to shared.
    Downgrade,
    /// Gives back the units `start..end` of it and keeps the rest.
    Shrink {
        /// First unit given back.
        start: u64,
        /// One past the last unit given back.
        end: u64,
    },
}

/// Why a lock was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Denied {
    /// Another client holds it, and this one only tried.
    #[error("the lock is held by another client")]
    Busy,
    /// It could not be had in time.
    #[error("the lock could not be had in time")]
    TimedOut,
    /// The protocol cannot do this.
    #[error("this protocol cannot do that: {0}")]
    Unsupported(&'static Reason),
    /// Nonsense was asked for; nothing was changed.
    #[error("{0}")]
    BadRequest(&'static Reason),
    /// The lock has given out all its tokens: they only rise, and there is no room for more.
    #[error("this lock has given out all its tokens; use another name")]
    Exhausted,
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// A release found that the lock was no longer this client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Lost {
    /// Its lease ran out and the lock was recovered: others may have held it meanwhile.
    #[error("the lock was taken away after its lease ran out")]
    Recovered,
    /// The fabric failed; recovery will free the lock.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// Name, source and what a protocol offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for lists.
    pub summary: &'static str,
    /// Paper and place in it.
    pub source: &'static str,
    /// What it offers.
    pub offers: Offers,
}

/// What a protocol offers beyond acquire and release in exclusive mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Shared mode.
    pub shared: bool,
    /// Ranges.
    pub ranges: bool,
    /// Fencing tokens.
    pub tokens: bool,
    /// [`Patience::Try`].
    pub tries: bool,
    /// [`Patience::Until`].
    pub timeouts: bool,
    /// Recovery from a crashed client.
    pub recovery: bool,
}

impl Offers {
    /// A plain mutex that waits for ever.
    pub const NONE: Self =
        Self { shared: false, ranges: false, tokens: false, tries: false, timeouts: false, recovery: false };
}

/// The shape of a lock space: how many locks, on how many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Space {
    /// Number of locks.
    pub locks: u64,
    /// Number of memory nodes they are spread over.
    pub nodes: u16,
    /// Units per lock, for range locks.
    pub units: u64,
}

impl Space {
    /// `locks` locks on one node.
    pub const fn of(locks: u64) -> Self {
        Self { locks, nodes: 1, units: 1 }
    }

    /// The same locks spread over `nodes` nodes.
    #[must_use]
    pub const fn over(mut self, nodes: u16) -> Self {
        self.nodes = nodes;
        self
    }

    /// The same space with `units` units per lock.
    #[must_use]
    pub const fn units(mut self, units: u64) -> Self {
        self.units = units;
        self
    }

    /// Where lock `lock` is, if every lock takes `stride` bytes: round robin over the nodes.
    #[inline(always)]
    pub const fn place(&self, lock: u64, stride: u64) -> Addr {
        if self.nodes == 1 {
            return Addr::new(NodeId(0), lock * stride);
        }
        let nodes = self.nodes as u64;
        Addr::new(NodeId((lock % nodes) as u16), lock / nodes * stride)
    }

    /// The node lock `lock` is on.
    #[inline(always)]
    pub const fn node_of(&self, lock: u64) -> NodeId {
        NodeId((lock % self.nodes as u64) as u16)
    }

    /// Bytes a node needs for its share, at `stride` bytes per lock.
    pub const fn table_bytes(&self, stride: u64) -> u64 {
        self.locks.div_ceil(self.nodes as u64) * stride
    }
}
