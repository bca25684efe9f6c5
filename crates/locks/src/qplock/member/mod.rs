//! The asymmetric lock with membership: reader-writer locks in memory of one node, which its own processes take by CPU
//! instructions and remote clients by plain 8-byte verbs; a holder may hold for hours, and only the dead lose their locks.
//!
//! The two sides meet as in `qplock`: each has a queue, the heads of both run Peterson's lock whose flags are that the queues
//! are not empty, and a side may have *budget* grants in a row while the other waits. Four things differ:
//! - **Tickets instead of links** (`layout`). A queue is two counts. A client draws a ticket by one fetch-and-add, and waits
//!   until its side serves it. There are no messages, and nobody can break a link by dying.
//! - **Records** (`record`). A client writes down that it is about to draw a ticket, and then which one, before it waits.
//! - **Skipped, not repaired** (`recover`). A ticket that no record of the living accounts for was the dead's, or was given up:
//!   a waiter behind it swaps exactly the head that it has read for the next. A side that serves such a ticket does not hold up
//!   the other one, which changes nothing there: no word is changed by read-modify-write from both sides.
//! - **Readers leave the queue** (`acquire`). A reader goes through queue and Peterson's lock as a writer does, says in its record
//!   that it reads, and leaves; the next writer waits for the records of the living that say so.
//!
//! | rule | why |
//! |---|---|
//! | a record says *taking* before the ticket is drawn | a ticket of the living is never skipped |
//! | no client waits before its record has its ticket | a client that skips waits for those that have not settled |
//! | ticket and budget of a head are one word | who dies over a release has passed the lock on, or has not |
//! | what was passed on is only for a client that saw its side serve an earlier ticket after it had drawn its own | while a side's queue was empty the other one may have come in |
//! | a waiter that finds no live head of the other side's queue reads that head again | the lock may have been passed on to a client that came after its record was read |
//!
//! What it must not do: change a word of the other side by read-modify-write, wait without a ticket in the record.

mod acquire;
mod layout;
mod record;
mod recover;
mod release;

pub use super::layout::Side;
pub use layout::{LockTable, LockWords};

use crate::holders::HolderSpace;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, PeerId, Word64};
use std::fmt::Debug;
use std::marker::PhantomData;

/// A space with asymmetric locks: a holder table, and which of its clients are at home on the locks' node.
pub trait MemberSpace: HolderSpace {
    /// The side that `peer` is on, for as long as it is in.
    fn side(&self, peer: PeerId) -> impl Future<Output = Result<Side, FabricError>>;

    /// Where a word of the holder table is, for verbs.
    fn place(&self, word: Word64) -> Word64 {
        word
    }

    /// How long a client waits before it looks whether those it waits for are alive.
    fn patience_ns(&self) -> u64;
}

/// Where mutants differ from what is shipped.
pub trait MemberRules: Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A record says *taking* before the ticket is drawn.
    const RECORDS_COME_FIRST: bool = true;
    /// A client that waits has written its ticket down.
    const SETTLES_BEFORE_WAITING: bool = true;
    /// A client of whom it is not yet known which ticket it drew may have any.
    const SKIPS_HEED_UNSETTLED: bool = true;
    /// A skip compares the head with what was read before the records.
    const SKIPS_COMPARE: bool = true;
    /// A side has nobody who leads it only if its head was the same before and after the records were read.
    const LOOKS_AT_THE_HEAD_AGAIN: bool = true;
    /// The other queue is looked at after the own ticket was drawn.
    const LOOKS_AFTER_DRAWING: bool = true;
    /// Writes `victim` before it waits for the other side.
    const YIELDS: bool = true;
    /// A side whose budget is used up goes through Peterson's lock again.
    const MINDS_BUDGET: bool = true;
    /// A pass is for those who waited when it was written.
    const PASSES_ARE_FOR_WAITERS: bool = true;
    /// A writer waits for readers.
    const WAITS_FOR_READERS: bool = true;
    /// A reader says so before it leaves the queue.
    const READERS_ARE_WRITTEN_DOWN_FIRST: bool = true;
    /// Tokens count the grants of both sides.
    const TOKENS_COUNT_BOTH_SIDES: bool = true;
    /// And how often the lock was taken past a dead head of the other side.
    const TOKENS_COUNT_THE_DEAD: bool = true;
}

impl MemberRules for super::Shipped {
    const NAME: &'static str = "qplock-member";
}

/// A client of a space's asymmetric locks. A record is for one acquisition at a time; which ones are free is its user's
/// business.
#[derive(Clone, Debug)]
pub struct MemberClient<E, S, R = super::Shipped> {
    ep: E,
    space: S,
    locks: LockTable,
    side: Side,
    budget: u16,
    waits_from_ticket: bool,
    rules: PhantomData<R>,
}

/// A granted lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberGrant {
    pub(super) record: u8,
    pub(super) claim: Claim,
    pub(super) ticket: u64,
    pub(super) token: u64,
    /// Grants left to its side, this one included.
    pub(super) budget: u16,
}

impl MemberGrant {
    /// The grant of `claim` by `record`, from what [`ticket`](Self::ticket), [`token`](Self::token) and
    /// [`budget`](Self::budget) said.
    pub const fn new(record: u8, claim: Claim, ticket: u64, token: u64, budget: u16) -> Self {
        Self { record, claim, ticket, token, budget }
    }

    /// The ticket with which the lock was had.
    pub const fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Grants left to its side, this one included.
    pub const fn budget(&self) -> u16 {
        self.budget
    }

    /// The fencing token.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// What is held.
    pub const fn claim(&self) -> Claim {
        self.claim
    }

    /// The record that says so.
    pub const fn record(&self) -> u8 {
        self.record
    }
}

impl crate::protocol::Grant for MemberGrant {
    fn token(&self) -> Option<u64> {
        Some(self.token)
    }
}

impl<E: Endpoint, S: MemberSpace, R: MemberRules> MemberClient<E, S, R> {
    /// A client on `side` of `locks`, which may have `budget` grants in a row while the other side waits.
    ///
    /// # Panics
    /// If the budget is 0.
    pub fn new(ep: E, space: S, locks: LockTable, side: Side, budget: u16) -> Self {
        assert!(budget > 0, "a side may have at least one grant");
        Self { ep, space, locks, side, budget, waits_from_ticket: false, rules: PhantomData }
    }

    /// To checkers the client waits from when it has its ticket: it is in nobody's way before, and nobody in its.
    #[must_use]
    pub fn waiting_from_ticket(mut self, yes: bool) -> Self {
        self.waits_from_ticket = yes;
        self
    }

    /// The space.
    pub const fn space(&self) -> &S {
        &self.space
    }

    /// The side it is on.
    pub const fn side(&self) -> Side {
        self.side
    }
}
