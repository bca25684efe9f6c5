//! Citron's tree with membership: range locks in memory that clients change by plain 8-byte verbs, where a holder may hold
//! for hours and only the dead lose their locks.
//!
//! The tree, the cover and the handshake are Citron's (`citron::handshake`): a request occupies its nodes, notifies every m-th
//! ancestor, *then* looks at all of them, and yields. Three things differ:
//! - **Counts instead of tickets and bits** (`words`). A request adds itself to a node and takes itself away again, by
//!   fetch-and-add alone, so no NIC has to mask anything, and a word is the sum of what requests added to it.
//! - **Records** (`progress`). Before it changes a word a client writes down that it is about to, and when it is done, how
//!   many of its nodes it occupies. It never waits in between.
//! - **Repair by subtraction** (`recover`). What the dead left in a word is what the living do not account for.
//!
//! A request that finds a writer at its own node, or a holder above, takes itself back and tries again when they are gone;
//! one that finds others below, or readers where it wants to write, stays and waits for them, since those who come later see
//! it and yield. Nobody queues: who comes first after a release is served first.
//!
//! What it must not do: wait while its record says that it is changing words; hold a node and wait for one to its left, or
//! for a request above a node it holds.

mod acquire;
mod forest;
mod progress;
mod recover;
mod release;
mod words;

pub use forest::{Forest, MAX_DISTANCE, MAX_TREE_UNITS, TreeParams};
pub use progress::Progress;

use super::rules::Shipped;
use super::split::Cover;
use crate::holders::HolderSpace;
use crate::holders::record::MAX_RECORDS;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, RawVerb, Word64};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A space whose ranges are on trees: a holder table, and verbs that are not waited for.
pub trait TreeSpace: HolderSpace {
    /// Executes `verbs` on words of trees, in order, after everything that was stored or executed before. They need not be
    /// waited for.
    fn post(&self, verbs: &[RawVerb]) -> impl Future<Output = Result<(), FabricError>>;

    /// Where a word of the holder table is, for verbs.
    fn place(&self, word: Word64) -> Word64 {
        word
    }

    /// How long a client waits before it looks whether those it waits for are alive. `None`: another process reaps the dead.
    fn patience_ns(&self) -> Option<u64>;

    /// Bits that changes of a record are counted in.
    fn sequence_bits(&self) -> u32 {
        Progress::SEQUENCE_BITS
    }
}

/// Where mutants differ from what is shipped.
pub trait MemberRules: Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A record says that its client changes words before it does.
    const RECORDS_COME_FIRST: bool = true;
    /// A client that waits has written down what it occupies.
    const SETTLES_BEFORE_WAITING: bool = true;
    /// A repair leaves a word alone while a record of the living is changing.
    const REPAIRS_HEED_CHANGES: bool = true;
    /// A repair reads the records again after the word, and starts again if one has changed.
    const REPAIRS_LOOK_TWICE: bool = true;
    /// A repair takes the dead's part away by an addition; else it reads the word before the records and swaps exactly that.
    const REPAIRS_ADD: bool = true;
    /// What a repair takes away by a settled record, that record does not say any more.
    const REPAIRS_ARE_WRITTEN_DOWN: bool = true;
    /// One client repairs at a time.
    const ONE_REPAIRER: bool = true;
    /// Ancestors are looked at after they were notified.
    const LOOKS_AFTER_NOTIFYING: bool = true;
    /// Requests above a node that is occupied already are not waited for: they wait for this one.
    const SPARES_COMMON_ANCESTORS: bool = true;
    /// A request at an internal node waits for those below that were there first.
    const WAITS_FOR_THOSE_BELOW: bool = true;
}

impl MemberRules for Shipped {
    const NAME: &'static str = "citron-member";
}

/// A client of a space's trees. A record is for one acquisition at a time; which ones are free is its user's business.
#[derive(Debug)]
pub struct TreeClient<E, S, R = Shipped> {
    ep: E,
    space: S,
    forest: Forest,
    /// What was last written of each record's progress.
    written: Box<[AtomicU64; MAX_RECORDS as usize]>,
    /// A task of this client repairs.
    is_repairing: AtomicBool,
    rules: PhantomData<R>,
}

/// A granted range.
#[derive(Clone, Debug)]
pub struct TreeGrant {
    record: u8,
    claim: Claim,
    cover: Cover,
    token: u64,
}

impl TreeGrant {
    /// The fencing token.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// What is held.
    pub const fn claim(&self) -> Claim {
        self.claim
    }
}

impl crate::protocol::Grant for TreeGrant {
    fn token(&self) -> Option<u64> {
        Some(self.token)
    }
}

impl<E: Endpoint, S: TreeSpace, R: MemberRules> TreeClient<E, S, R> {
    /// A client that talks through `ep` and writes its records into `space`.
    pub fn new(ep: E, space: S, forest: Forest) -> Self {
        let written = Box::new([const { AtomicU64::new(0) }; MAX_RECORDS as usize]);
        Self { ep, space, forest, written, is_repairing: AtomicBool::new(false), rules: PhantomData }
    }

    /// The trees.
    pub const fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The space.
    pub const fn space(&self) -> &S {
        &self.space
    }

    /// The grant of `claim` by `record`, for users who keep only its token.
    ///
    /// # Panics
    /// If there is no such range: it was granted before.
    pub fn grant_of(&self, record: u8, claim: Claim, token: u64) -> TreeGrant {
        let cover = self.forest.cover(&claim).expect("a granted range is one that the tree has");
        TreeGrant { record, claim, cover, token }
    }
}
