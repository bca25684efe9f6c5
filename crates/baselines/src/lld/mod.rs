//! LLD: a range lock as a linked list in remote memory, changed by one-sided verbs (Citron §4.1, Table 1).
//!
//! The list is that of Kogan, Dice and Issa ("Scalable range locks for scalable address spaces and beyond", EuroSys
//! 2020, §4): what is held, by its start. A client walks from the head to its place, one READ a node, waits where it
//! meets an overlapping range, and puts its node in with a CAS; release marks the node, and a client that walks by takes
//! marked ones out. On a CPU that is pointer chasing; here every step of it is a round trip, which is what it is
//! compared for.
//!
//! Published is a list for threads, whose memory is reclaimed when every thread has gone by. Clients that may be
//! anywhere cannot wait for each other like that. So nodes have versions (`node`): a client uses its own nodes
//! again when it knows that they are out of the list (`slots`), and who still stands on one sees that it has changed
//! and starts over.
//!
//! What makes that safe: linked nodes, marked or not, lie side by side in order of their starts, and one that was taken
//! out never comes back. So a client that has walked from an unmarked node to one beyond the place of its old node has
//! shown that the old one is out.
//!
//! What it must not do: put a node behind a marked one, for that may be out of the list already.
//!
//! Exclusive ranges only (shared wants are served as exclusive ones), no order among waiters, no recovery: the
//! published list has variants for readers and for fairness that Citron is not compared with.

mod client;
mod node;
mod slots;

pub use client::{LldClient, LldGrant};

use lockwright_fabric::{Addr, Endpoint, Needs};
use lockwright_locks::{Info, Offers, Protocol, Space};
use node::{MAX_NODES, NODE_BYTES};
use std::fmt::Debug;
use std::marker::PhantomData;

/// The linked list by one-sided verbs, with the rules of `R`: ours, or a mutant's.
#[derive(Debug)]
pub struct Lld<R = AsShipped>(PhantomData<R>);

/// Where the mutants differ.
pub trait Rules: Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A node is put only behind one that is still in the list.
    const LOOKS_AT_MARK: bool = true;
    /// A node is used again only when it is out of the list.
    const WAITS_UNTIL_OUT: bool = true;
}

/// The rules that are shipped.
#[derive(Debug)]
pub struct AsShipped;

impl Rules for AsShipped {
    const NAME: &'static str = "lld";
}

/// Tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LldParams {
    /// Clients there can be.
    pub clients: u32,
    /// Nodes of each of them: as many ranges it can hold at once, and more make reuse easier.
    pub nodes_each: u32,
}

impl Default for LldParams {
    fn default() -> Self {
        Self { clients: 256, nodes_each: 4 }
    }
}

impl<R: Rules> Protocol for Lld<R> {
    type Params = LldParams;
    type Client<E: Endpoint> = LldClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "range locks as a linked list of what is held, walked by one-sided reads",
        source: "Citron §4.1, Table 1; Kogan, Dice, Issa (EuroSys '20)",
        offers: Offers { ranges: true, tries: true, timeouts: true, ..Offers::NONE },
    };

    fn needs(_: &LldParams) -> Needs {
        Needs { wide: true, global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, params: &LldParams) -> u64 {
        space.table_bytes(NODE_BYTES) + u64::from(params.clients) * u64::from(params.nodes_each) * NODE_BYTES
    }

    /// # Panics
    /// If there are more nodes than a link can name.
    fn client<E: Endpoint>(ep: E, space: &Space, params: &LldParams) -> LldClient<E, R> {
        let nodes = u64::from(params.clients) * u64::from(params.nodes_each);
        assert!((1..=MAX_NODES).contains(&nodes), "{nodes} nodes are none or too many");
        LldClient::new(ep, *space, *params)
    }

    /// What was given back last stays in the list until a client walks by.
    fn quiet_mask(_: &Space, _: &LldParams, _: Addr) -> u64 {
        0
    }
}
