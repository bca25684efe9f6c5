//! DSLR: Lamport's bakery on one eight-byte word, with plain fetch-and-adds (Yoon, Chowdhury, Mozafari: "Distributed
//! Lock Management with RDMA: Decentralization without Starvation", SIGMOD 2018; ShiftLock §4.1).
//!
//! A client takes a ticket with one fetch-and-add and reads the word until the tickets before it are served; how long
//! it waits between two looks goes by how many those are. Release counts the ticket as served with another. First
//! come, first served, over both modes; readers between two writers share the lock. See [`word`] for the counters and
//! `client` for the steps.
//!
//! What can go wrong, and what is done:
//!
//! - **Counters fill up.** A client that finds the word full takes its increment back and waits. A client that leaves the word
//!   full and with every ticket served sets it back to zero. (Elsewhere that is the task of a client that has the
//!   last ticket, which has to wait for the others to be gone; here nobody waits.)
//! - **A client crashes.** A holder whose lease has run out does not touch the word any more. A waiter that saw no
//!   client served for two leases clears the lock: every client with a ticket is passed over, sees it, and takes another.
//!
//! In ShiftLock's artifact, which is where we have the step from, the waiter that clears passes over only itself and
//! those before it. For a writer that is safe, for a reader it is not: readers with the same writers before them cannot tell that they were counted as served,
//! and enter (see [`rules`], and the mutant `dslr-reader-clears-own`). So here all are passed over, at the price of
//! the order among the clients that waited.
//!
//! Assumed: a verb takes effect within a lease of being issued, and clocks run at the same speed.
//! A client that is paused between the look at its lease and the verb that gives the lock back breaks this.

pub(crate) mod client;
pub mod rules;
pub mod word;

use client::{Bakery, Turn};
use lockwright_fabric::{Addr, Endpoint, Needs, Word64};
use lockwright_locks::{Denied, Grant, Info, LockClient, Lost, Offers, Protocol, Space, Want};
use rules::{AsShipped, Rules};
use std::marker::PhantomData;

/// The DSLR lock, with the rules of `R`: ours, or a mutant's.
#[derive(Debug)]
pub struct Dslr<R = AsShipped>(PhantomData<R>);

/// DSLR's tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DslrParams {
    /// What a client waits between two looks, for every ticket before its own. ShiftLock's artifact: 4096 cycles of
    /// its testbed's 2.2 GHz.
    pub wait_ns: u64,
    /// How long a grant lasts (ShiftLock §4.1: 10 ms). A lock on which nothing moves for twice as long is cleared.
    pub lease_ns: u64,
    /// Tickets of one mode before the word is set back: a power of two, of which the sixteen-bit counters leave half
    /// for clients that find the word full.
    pub limit: u64,
}

impl Default for DslrParams {
    fn default() -> Self {
        Self { wait_ns: 1862, lease_ns: 10_000_000, limit: 1 << 15 }
    }
}

impl<R: Rules> Protocol for Dslr<R> {
    type Params = DslrParams;
    type Client<E: Endpoint> = DslrClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "bakery tickets by fetch-and-add, reads until served",
        source: "DSLR (SIGMOD '18); ShiftLock §4.1",
        offers: Offers { shared: true, tries: true, recovery: true, ..Offers::NONE },
    };

    fn needs(_: &DslrParams) -> Needs {
        Needs { global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, _: &DslrParams) -> u64 {
        space.table_bytes(8)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &DslrParams) -> DslrClient<E, R> {
        DslrClient { bakery: Bakery::new(ep, params), space: *space }
    }

    /// A quiet word has nX = maxX and nS = maxS, whatever they are: no single bit tells.
    fn quiet_mask(_: &Space, _: &DslrParams, _: Addr) -> u64 {
        0
    }
}

/// A granted DSLR lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DslrGrant {
    /// The lock.
    pub lock: u64,
    turn: Turn,
}

impl Grant for DslrGrant {}

/// A client of a table of DSLR locks.
#[derive(Clone, Debug)]
pub struct DslrClient<E, R = AsShipped> {
    bakery: Bakery<E, R>,
    space: Space,
}

impl<E: Endpoint, R: Rules> DslrClient<E, R> {
    fn word(&self, lock: u64) -> Word64 {
        Word64::at(self.space.place(lock, 8))
    }
}

impl<E: Endpoint, R: Rules> LockClient for DslrClient<E, R> {
    type Grant = DslrGrant;

    async fn acquire(&self, want: Want) -> Result<DslrGrant, Denied> {
        let lock = want.claim.lock;
        Ok(DslrGrant { lock, turn: self.bakery.acquire(self.word(lock), want).await? })
    }

    async fn release(&self, grant: DslrGrant) -> Result<(), Lost> {
        self.bakery.release(self.word(grant.lock), grant.turn).await
    }
}
