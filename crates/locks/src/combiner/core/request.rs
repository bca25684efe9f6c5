//! What a client can ask of the combiner, what it is told, and why it can be refused.

use lockwright_fabric::observe::Mode;

/// A client's number: small, given by the server that accepts its connection. All it holds is released when it departs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// The lock in which every name has a unit of its own: a keyed lock `n` is the range `n..n + 1` of it.
pub const NAMES: u64 = u64::MAX;

/// What a client asks for. `id` is the client's own number for the request, from then on the name of what it holds;
/// it may be used again once the lock was given back, or its cancellation answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// The units `start..end` of `lock`. Granted, or (without `wait`) found busy.
    Lock {
        /// The client's number for it.
        id: u32,
        /// Which lock; [`NAMES`] for all keyed ones.
        lock: u64,
        /// How.
        mode: Mode,
        /// First unit.
        start: u64,
        /// One past the last unit.
        end: u64,
        /// Whether to queue if it cannot be had at once.
        wait: bool,
    },
    /// So many permits of the semaphore `lock`, of which there are `limit`. Granted, or (without `wait`) found busy. They are
    /// given back by [`Unlock`](Self::Unlock), all together.
    Permits {
        /// The client's number for it.
        id: u32,
        /// Which semaphore: a lock of its own, without ranges.
        lock: u64,
        /// How many.
        weight: u64,
        /// Of how many in all.
        limit: u64,
        /// Whether to queue if there are not enough.
        wait: bool,
    },
    /// Gives it back. Answered only if refused.
    Unlock {
        /// What was granted.
        id: u32,
    },
    /// Gives back the units `start..end` of it and keeps the rest. If that leaves two pieces, the second is from then
    /// on called `rest`. Answered only if refused.
    UnlockPart {
        /// What was granted.
        id: u32,
        /// First unit given back.
        start: u64,
        /// One past the last unit given back.
        end: u64,
        /// A free id for the second piece.
        rest: u32,
    },
    /// From shared to exclusive, without letting go in between. Its place in the queue is that of the lock it has: before all
    /// waiters. Granted (with a new token), found busy, or refused where another holder of a common unit already waits for
    /// the same, since each would wait for the other.
    Upgrade {
        /// What was granted.
        id: u32,
        /// Whether to wait for the other readers.
        wait: bool,
    },
    /// From exclusive to shared, without letting go in between; gives up an upgrade that waits. Answered with a new token.
    Downgrade {
        /// What was granted.
        id: u32,
    },
    /// The client no longer wants it. Gone afterwards, whether it still waited or was granted meanwhile; always answered.
    Cancel {
        /// What was asked for.
        id: u32,
    },
    /// Tokens given from now on are larger than this one, which another combiner gave to the same client.
    Raise {
        /// The other's token.
        token: u64,
    },
}

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Who.
    pub client: ClientId,
    /// About which of its requests.
    pub id: u32,
    /// What.
    pub answer: Answer,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is held, with this fencing token.
    Granted {
        /// Larger than that of every earlier conflicting grant.
        token: u64,
    },
    /// It could not be had at once; nothing was changed.
    Busy,
    /// It no longer exists.
    Cancelled,
    /// It is held in shared mode from now on.
    Downgraded {
        /// The token from now on.
        token: u64,
    },
    /// Nonsense was asked for; nothing was changed.
    Refused(Refusal),
}

/// Why a request makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The range has no units, or ends before it starts.
    #[error("the range is empty or reversed")]
    EmptyRange,
    /// The client still uses that number for something else.
    #[error("the id is in use for another request of this client")]
    IdInUse,
    /// Ids are smaller than a limit, and so are clients' numbers.
    #[error("the id or the client's number is larger than this server allows")]
    TooLarge,
    /// The client has nothing of that number.
    #[error("this client holds nothing under that id")]
    NotHeld,
    /// The request still waits, or its upgrade does.
    #[error("the request still waits")]
    StillWaiting,
    /// The units are not all part of what is held.
    #[error("the units are not all part of the range that is held")]
    NotInside,
    /// Upgrades need a shared lock, downgrades an exclusive one.
    #[error("the lock is already held in that mode")]
    SameMode,
    /// Another reader of a common unit waits for its upgrade: each would wait for the other.
    #[error("another reader already waits to upgrade, and each would wait for the other")]
    UpgradeConflict,
    /// A request is for at least one permit, and for at most as many as there are.
    #[error("the semaphore does not have that many permits")]
    NotThatMany,
    /// Others hold or want permits of the same semaphore and say that it has another number of them.
    #[error("others use this semaphore with another limit")]
    OtherLimit,
    /// Permits are given back, all of them, and not changed.
    #[error("permits can be given back, but not changed")]
    IsPermits,
}

impl Refusal {
    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [Self; 11] = [
        Self::EmptyRange,
        Self::IdInUse,
        Self::TooLarge,
        Self::NotHeld,
        Self::StillWaiting,
        Self::NotInside,
        Self::SameMode,
        Self::UpgradeConflict,
        Self::NotThatMany,
        Self::OtherLimit,
        Self::IsPermits,
    ];

    /// Its number on the wire.
    pub fn number(self) -> u64 {
        Self::ALL.iter().position(|other| *other == self).expect("ALL lists every refusal") as u64
    }
}

/// What a server allows: bounds on the memory that clients can make it take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Clients' numbers are smaller than this.
    pub clients: u32,
    /// A client's ids are smaller than this: as many requests can it have at a time.
    pub ids: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { clients: 1 << 16, ids: 1 << 20 }
    }
}
