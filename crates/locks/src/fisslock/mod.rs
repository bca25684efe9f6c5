//! FissLock: grant decisions in the network, holders and waiters on the servers ("Fast and Scalable In-network Lock
//! Management Using Lock Fission", Zhang et al., OSDI 2024).
//!
//! A lock is split in two. The **decider**, a switch between all machines, keeps 18 bits of it and decides grants in half a
//! round trip ([`pipeline`], `decider`). The **agent** keeps who holds it and who waits, on the machine of a holder
//! (`agent`), and moves with the lock from machine to machine. A machine's lock library and its agents are `machine`;
//! packets between machines and deciders may be lost, doubled, delayed and overtaken (`packet`, `lane`).
//!
//! | workflow (Fig. 5) | packets |
//! |---|---|
//! | 1 free lock | ACQUIRE; the decider answers GRANT with an empty agent |
//! | 2 shared lock, shared request | ACQUIRE; the decider answers GRANT and tells the agent |
//! | 3 must wait | ACQUIRE, passed on to the agent; later GRANT, with the agent (8) or without it |
//! | 4, 5 agent on this machine | none |
//! | 6 others hold it too | none |
//! | 7 last holder, no waiter | FREE |
//! | 8 last holder, with a waiter | GRANT with the agent, through the decider |
//! | 9 agent elsewhere | RELEASE, passed on to the agent |
//!
//! What is ours, and why, is told in `docs/protocols/fisslock.md`: lanes, verdicts that can be had again, agents that
//! wait for the decider's word before they are gone, tokens, and locks that machines keep where the switch is full.
//!
//! Roles: machines are the roles `0..machines` on the nodes of the same number; the deciders come after them and are in
//! the network, and last comes the coordinator, who puts things right when a machine is lost or a decider restarted
//! (`coordinator`, `machine::recovery`).

mod agent;
mod client;
mod coordinator;
pub mod datagram;
mod decider;
mod directory;
mod lane;
mod machine;
mod packet;
pub mod pipeline;
mod report;

pub use client::{FissClient, FissGrant};
pub use coordinator::Coordinator;
pub use decider::Decider;
pub use machine::Machine;
pub use packet::{is_from_coordinator, is_from_machine};

use self::pipeline::{Checks, Preference, Switch};
use crate::protocol::{Info, Offers, Protocol, Space};
use lockwright_fabric::{BoxedRole, Endpoint, Needs, PeerId};
use std::collections::BTreeSet;
use std::marker::PhantomData;

/// The epoch in which everything begins. A decider that was restarted is in epoch 0 until its registers are back.
const FIRST_EPOCH: u32 = 1;

/// Tunables of FissLock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    /// Whom the decider lets in while readers hold a lock.
    pub preference: Preference,
    /// How many readers may pass a waiting writer before its agent has them kept out ([`Preference::Readers`]).
    pub readers_past_writer: u32,
    /// Packets that a machine may have on their way to one decider at a time.
    pub lanes: u32,
    /// Deciders, among which locks are dealt out round robin (§5.4).
    pub racks: u16,
    /// Locks that the switches hold, all together. Those above are kept by machines, round robin (§6).
    pub switch_locks: u64,
    /// How long a machine waits before it sends a packet again; never, if zero.
    pub retransmit_ns: u64,
    /// Whether grants carry fencing tokens.
    pub tokens: bool,
    /// Whether lock ids are arbitrary numbers, which a directory maps to places in the registers.
    pub sparse_ids: bool,
    /// The first so many clients go before the others in wait queues.
    pub urgent_clients: u32,
    /// Waiters that go along with an agent, so that a GRANT fits into a packet. Those behind them ask again.
    pub queue_limit: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            preference: Preference::Readers,
            readers_past_writer: 8,
            lanes: 64,
            racks: 1,
            switch_locks: Switch::TOFINO.capacity(),
            retransmit_ns: 100_000,
            tokens: true,
            sparse_ids: false,
            urgent_clients: 0,
            queue_limit: usize::MAX,
        }
    }
}

impl Params {
    /// Whether a writer that waits keeps readers out from the first moment.
    fn bars_at_once(&self) -> bool {
        self.preference == Preference::Writers
    }
}

/// What FissLock goes by. The defaults are right; every other value is a mutant.
pub trait Rules: Checks {
    /// The name on the command line, for a mutant.
    const NAME: Option<&'static str> = None;
    /// A packet that the decider has seen before changes nothing (§4.2).
    const NUMBERS_ARE_CHECKED: bool = true;
    /// A machine sends the next packet of a lane when the last is done with.
    const ONE_AT_A_TIME: bool = true;

    /// A release on a machine whose agent is leaving waits until it is known whether the agent has left.
    const RELEASES_WAIT: bool = true;

    /// Packets from before a failure do nothing.
    const EPOCHS_ARE_CHECKED: bool = true;
    /// A decider that was restarted grants nothing before its registers are back (S3).
    const RESTARTED_IS_CLOSED: bool = true;
    /// Machines are asked what they hold when agents are made anew (S1).
    const HOLDERS_ARE_GATHERED: bool = true;
    /// An agent forgets holders that no machine vouches for (S2).
    const AGENTS_ARE_SET_RIGHT: bool = true;
    /// No agent leaves while locks are being put right.
    const DEPARTURES_WAIT: bool = true;
    /// A decider's stamps go on above all that were given before it lost count.
    const STAMPS_LEAP: bool = true;
}

/// The rules that are shipped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shipped;

impl Checks for Shipped {}

impl Rules for Shipped {}

/// Machine number `mid`, counted from 1: zero is none.
pub fn machine_of(mid: u8) -> PeerId {
    PeerId::role(usize::from(mid) - 1)
}

/// The coordinator, behind machines and deciders.
pub fn coordinator_of(machines: u16, params: &Params) -> PeerId {
    PeerId::role(usize::from(machines) + usize::from(params.racks))
}

/// The machine that keeps the agent of a lock for which the switch has no room: if it is lost, the next one.
fn resident(lid: u64, machines: u16, lost: &BTreeSet<u8>) -> u8 {
    let machines = u64::from(machines);
    let mut in_turn = (lid..lid + machines).map(|lid| (lid % machines) as u8 + 1);
    in_turn.find(|mid| !lost.contains(mid)).unwrap_or(1)
}

/// FissLock as a protocol.
#[derive(Debug)]
pub struct FissLock<R = Shipped>(PhantomData<R>);

impl<R: Rules> Protocol for FissLock<R> {
    type Params = Params;
    type Client<E: Endpoint> = FissClient<E, R>;

    const INFO: Info = Info {
        name: match R::NAME {
            Some(name) => name,
            None => "fisslock",
        },
        summary: "grant decisions in the network, holders and waiters on the machines of the holders",
        source: "FissLock (OSDI '24)",
        offers: Offers {
            shared: true,
            tokens: true,
            tries: true,
            timeouts: true,
            recovery: true,
            ..Offers::NONE
        },
    };

    fn needs(_: &Params) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    /// Locks are in the switch and in agents.
    fn bytes_per_node(_: &Space, _: &Params) -> u64 {
        0
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &Params) -> Self::Client<E> {
        FissClient::new(ep, space, params)
    }

    fn roles(space: &Space, params: &Params) -> Vec<BoxedRole> {
        let machines = space.nodes;
        let machine = |index| BoxedRole::new(Machine::<R>::new(index, machines, params));
        let decider = |_| BoxedRole::new(Decider::<R>::new(space.locks, machines, params));
        let coordinator = BoxedRole::new(Coordinator::<R>::new(machines, params));
        (1..=machines).map(machine).chain((0..params.racks).map(decider)).chain([coordinator]).collect()
    }

    /// The coordinator is none, but it is on no machine either.
    fn switches(_: &Space, params: &Params) -> usize {
        usize::from(params.racks) + 1
    }

    fn tune(params: &mut Params, name: &str, value: u64) -> bool {
        match name {
            "switch_locks" => params.switch_locks = value,
            "lanes" => params.lanes = value as u32,
            "racks" => params.racks = value as u16,
            "retransmit_ns" => params.retransmit_ns = value,
            "prefers_writers" => params.preference = Preference::Writers,
            _ => return false,
        }
        true
    }

    fn message_name(kind: u32) -> &'static str {
        packet::name(kind)
    }
}
