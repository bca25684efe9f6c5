//! The combiner: reader-writer range locks held by the server, one round trip each ("Server-sided range locking is
//! better than client-sided locking", J. Dezalos, EPFL 2024).
//!
//! Threads that read requests queue them; one combiner takes them out in order and alone owns a tree of everything held
//! and wanted ([`core`]). A request that conflicts with nothing before it is
//! granted at once; any other counts what stands before it and is granted when that count comes to zero. So nobody
//! overtakes an earlier request it conflicts with. `server` and `client` carry this over any fabric, in the
//! thesis's two ways of learning of a grant (polling by RPC, polling a flag) and in ours: the server answers when the
//! lock is granted.
//!
//! What it must not do: rely on clients. They are not trusted with lock words; whatever they send, the worst that
//! comes of it is a clear refusal.

mod changes;
mod client;
pub mod core;
mod flags;
mod ids;
mod message;
pub(crate) mod records;
mod server;
mod shards;
pub(crate) mod tree;
#[cfg(test)]
mod tree_tests;
mod wide;

pub use client::{CombinerClient, CombinerGrant};
pub use flags::Flags;
pub use server::{CombinerServer, Learning};

use self::core::{Rules, Shipped};
use crate::protocol::{Info, Offers, Protocol, Space};
use lockwright_fabric::{Addr, BoxedRole, Endpoint, Needs, NodeId};
use std::fmt::Debug;
use std::marker::PhantomData;

/// Tunables of the combiner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Pause between two polls; none, as the thesis has it. Zero leaves flags to the fabric's own pace.
    pub poll_ns: u64,
    /// For how many clients there are flags, where flags are polled.
    pub flag_clients: u32,
    /// How many flags each of them has: as many requests of one client can wait at a time.
    pub flags_each: u32,
    /// Whether every flag has a cache line to itself.
    pub padded: bool,
    /// For the bypass checker: a client that polls by RPC counts as waiting from the moment the server took note of its
    /// request, not from when it sent it. While a message is under way another client may come first.
    pub waits_from_note: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { poll_ns: 0, flag_clients: 256, flags_each: 4, padded: true, waits_from_note: false }
    }
}

/// A kind of combiner: how its clients learn of grants, and (for mutants) what is wrong with it.
pub trait Variant: Debug + 'static {
    /// What the combiner goes by.
    type Rules: Rules;
    /// Name, source, what it offers.
    const INFO: Info;
    /// Whether a claim on `start..end` is for `start` of `end - 1` permits of a semaphore.
    const PERMITS: bool = false;
    /// How clients of this shard learn of their grants.
    fn learning(params: &Params, shard: u16) -> Learning;
}

/// Name, summary and source of a kind of combiner: they all offer the same.
pub const fn info(name: &'static str, summary: &'static str, source: &'static str) -> Info {
    let offers =
        Offers { shared: true, ranges: true, tokens: true, tries: true, timeouts: true, recovery: true };
    Info { name, summary, source, offers }
}

/// The server answers when the lock is granted.
#[derive(Debug)]
pub struct Pushed;

impl Variant for Pushed {
    type Rules = Shipped;
    const INFO: Info = info(
        "combiner",
        "server-side reader-writer range locks; the server answers when the lock is granted",
        "Dezalos, EPFL 2024, §4; pushed grants are ours",
    );
    fn learning(_: &Params, _: u16) -> Learning {
        Learning::Pushed
    }
}

/// Semaphores; the server answers when permits are granted.
#[derive(Debug)]
pub struct Semaphore;

impl Variant for Semaphore {
    type Rules = Shipped;
    const INFO: Info =
        info("semaphore", "server-side counting semaphores, first come, first served", "this project");
    const PERMITS: bool = true;
    fn learning(_: &Params, _: u16) -> Learning {
        Learning::Pushed
    }
}

/// Clients poll by RPC.
#[derive(Debug)]
pub struct PollRpc;

impl Variant for PollRpc {
    type Rules = Shipped;
    const INFO: Info = info(
        "combiner-poll-rpc",
        "server-side reader-writer range locks; clients poll by RPC",
        "Dezalos, EPFL 2024, §4.1 (1)",
    );
    fn learning(_: &Params, _: u16) -> Learning {
        Learning::PollRpc
    }
}

/// No handlers and no combiner: one thread takes requests, changes the tree and answers; who has to wait polls.
#[derive(Debug)]
pub struct IntervalTree;

impl Variant for IntervalTree {
    type Rules = Shipped;
    const INFO: Info = info(
        "interval-tree",
        "one server thread with an interval tree answers at once; clients that must wait poll by RPC",
        "Dezalos, EPFL 2024, §5.1",
    );
    fn learning(_: &Params, _: u16) -> Learning {
        Learning::AnswerThenPoll
    }
}

/// Clients poll a flag in the server's memory.
#[derive(Debug)]
pub struct PollFlag;

impl Variant for PollFlag {
    type Rules = Shipped;
    const INFO: Info = info(
        "combiner-poll-flag",
        "server-side reader-writer range locks; clients poll a flag by one-sided reads",
        "Dezalos, EPFL 2024, §4.1 (2); padded flags are ours",
    );
    fn learning(params: &Params, shard: u16) -> Learning {
        let Params { flag_clients: clients, flags_each: each, padded, .. } = *params;
        Learning::PollFlag(Flags { node: NodeId(shard), clients, each, padded })
    }
}

/// The combiner as a protocol.
#[derive(Debug)]
pub struct Combiner<V = Pushed>(PhantomData<V>);

impl<V: Variant> Protocol for Combiner<V> {
    type Params = Params;
    type Client<E: Endpoint> = CombinerClient<E, V>;

    const INFO: Info = V::INFO;

    fn needs(_: &Params) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(_: &Space, params: &Params) -> u64 {
        if let Learning::PollFlag(flags) = V::learning(params, 0) { flags.bytes() } else { 0 }
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &Params) -> Self::Client<E> {
        CombinerClient::new(ep, *space, params.clone())
    }

    fn roles(space: &Space, params: &Params) -> Vec<BoxedRole> {
        let server = |shard| BoxedRole::new(CombinerServer::<V::Rules>::new(V::learning(params, shard)));
        (0..space.nodes).map(server).collect()
    }

    /// A flag keeps the last token it told of until its next use.
    fn quiet_mask(_: &Space, _: &Params, _: Addr) -> u64 {
        0
    }

    /// `padded` (0 or 1), `poll-ns`, `flag-clients`, `flags-each`.
    fn tune(params: &mut Params, name: &str, value: u64) -> bool {
        let small = u32::try_from(value).ok().filter(|value| *value > 0);
        match (name, small) {
            ("padded", _) if value <= 1 => params.padded = value == 1,
            ("poll-ns", _) => params.poll_ns = value,
            ("flag-clients", Some(clients)) => params.flag_clients = clients,
            ("flags-each", Some(each)) => params.flags_each = each,
            _ => return false,
        }
        true
    }

    fn message_name(kind: u32) -> &'static str {
        message::name(kind)
    }
}

#[cfg(test)]
pub(crate) mod test_random {
    //! How much random work tests do.

    /// How many times as much random work was asked for: `LOCKWRIGHT_RANDOM=50` makes some ten million operations.
    pub(crate) fn more() -> u64 {
        let asked = std::env::var("LOCKWRIGHT_RANDOM").ok();
        asked.map_or(1, |asked| asked.parse().expect("LOCKWRIGHT_RANDOM is a number"))
    }
}
