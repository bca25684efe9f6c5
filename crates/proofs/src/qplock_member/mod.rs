//! The asymmetric lock with membership, as the explorer runs it: the shipped client on locks and records in one memory, with
//! local clients that are at home there and remote ones whose read-modify-writes are a read and a later write to the local
//! ones. Any client may be killed between any two steps.

mod cases;
mod mutants;

use crate::holders::memory::{Fenced, Part, TICKETS};
use crate::member_cases::PATIENCE_NS;
use crate::{Case, Proof, Visitor};
use lockwright_fabric::{Addr, Endpoint, FabricError, Needs, NodeId, PeerId, Word64};
use lockwright_locks::qplock::Shipped;
use lockwright_locks::qplock::member::{
    LockTable, MemberClient, MemberGrant, MemberRules, MemberSpace, Side,
};
use lockwright_locks::{
    Change, Denied, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use std::marker::PhantomData;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<QpMember>();
    mutants::visit_mutants(visitor);
}

/// The asymmetric lock with membership, with the rules of `R`: those shipped, or a mutant's.
#[derive(Debug)]
pub struct QpMember<R = Shipped>(PhantomData<R>);

/// The node of the locks, and of its local clients.
const HERE: NodeId = NodeId(0);

/// Tunables.
#[derive(Clone, Debug)]
pub struct MemberParams {
    /// Grants that a side may have in a row while the other waits.
    pub budget: u16,
    /// Clients that there is a record for.
    pub clients: u64,
    /// So many of them, the first ones, are local.
    pub locals: u64,
    /// Whether a client counts as waiting from when it has its ticket.
    pub waits_from_ticket: bool,
    /// Tickets that the dead left behind in the queue of either side, the local one's first.
    pub left_by_the_dead: [u64; 2],
}

impl Default for MemberParams {
    fn default() -> Self {
        Self { budget: 8, clients: 256, locals: 0, waits_from_ticket: false, left_by_the_dead: [0; 2] }
    }
}

/// Where things are: locks, then records.
const fn locks(space: &Space) -> LockTable {
    LockTable::new(Addr::new(HERE, 0), space.locks)
}

const fn part(space: &Space, params: &MemberParams) -> Part {
    Part::new(locks(space).bytes(), params.clients, 1, 0, TICKETS)
}

impl<R: MemberRules> Protocol for QpMember<R> {
    type Params = MemberParams;
    type Client<E: Endpoint> = Explored<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "asymmetric reader-writer lock; only the dead lose theirs",
        source: "ours, after Nelson-Slivon, Tseng, Palmieri: Asymmetric Mutual Exclusion for RDMA",
        offers: Offers {
            shared: true,
            ranges: false,
            tokens: true,
            tries: true,
            timeouts: true,
            recovery: true,
        },
    };

    fn needs(_: &MemberParams) -> Needs {
        Needs::default()
    }

    fn most_clients(params: &MemberParams) -> usize {
        params.clients as usize
    }

    fn bytes_per_node(space: &Space, params: &MemberParams) -> u64 {
        locks(space).bytes() + part(space, params).bytes()
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &MemberParams) -> Explored<E, R> {
        let side = if ep.home() == Some(HERE) { Side::Local } else { Side::Remote };
        // On one host all clients are local, whatever the tunables say.
        let locals = if side == Side::Local && params.locals == 0 { u64::MAX } else { params.locals };
        let table = Fenced { ep: ep.clone(), part: part(space, params), dead: None, more: Locals(locals) };
        let client = MemberClient::new(ep, table, locks(space), side, params.budget);
        Explored(client.waiting_from_ticket(params.waits_from_ticket))
    }

    fn initial_memory(space: &Space, params: &MemberParams) -> Vec<(Addr, u64)> {
        let words = locks(space).lock(0);
        let left = [Side::Local, Side::Remote].into_iter().zip(params.left_by_the_dead);
        left.filter(|(_, left)| *left > 0).map(|(side, left)| (words.tail(side).addr(), left)).collect()
    }

    /// Records are free; tickets are wherever they came to.
    fn quiet_mask(space: &Space, params: &MemberParams, addr: Addr) -> u64 {
        if part(space, params).is_first_word(addr.offset) { u64::MAX } else { 0 }
    }

    fn tune(params: &mut MemberParams, name: &str, value: u64) -> bool {
        match (name, u16::try_from(value)) {
            ("budget", Ok(budget)) if budget > 0 => params.budget = budget,
            ("locals", Ok(locals)) => params.locals = locals.into(),
            _ => return false,
        }
        true
    }
}

impl Proof for QpMember {
    fn cases() -> Vec<Case<MemberParams>> {
        cases::all()
    }
}

/// How many clients are local, the first ones.
#[derive(Clone, Copy, Debug)]
pub struct Locals(u64);

impl<E: Endpoint> MemberSpace for Fenced<E, Locals> {
    async fn side(&self, peer: PeerId) -> Result<Side, FabricError> {
        let (index, _) = peer.index();
        Ok(if (index as u64) < self.more.0 { Side::Local } else { Side::Remote })
    }

    fn place(&self, word: Word64) -> Word64 {
        self.stored(word)
    }

    fn patience_ns(&self) -> u64 {
        PATIENCE_NS
    }
}

/// A client of the explorer's: one acquisition at a time, so one record.
#[derive(Debug)]
pub struct Explored<E, R>(MemberClient<E, Fenced<E, Locals>, R>);

const RECORD: u8 = 0;

impl<E: Endpoint, R: MemberRules> LockClient for Explored<E, R> {
    type Grant = MemberGrant;

    async fn acquire(&self, want: Want) -> Result<MemberGrant, Denied> {
        match want.patience {
            Patience::Forever => self.0.take(RECORD, want.claim).await,
            Patience::Try => self.0.try_take(RECORD, want.claim).await,
            Patience::Until(deadline) => {
                let given_up = || self.0.space().ep.alarm(deadline);
                self.0.take_unless(RECORD, want.claim, given_up).await
            }
        }
    }

    async fn release(&self, grant: MemberGrant) -> Result<(), Lost> {
        self.0.give_back(grant).await
    }

    async fn change(&self, grant: &mut MemberGrant, change: Change) -> Result<(), Denied> {
        match change {
            Change::Downgrade => match self.0.downgrade(grant).await {
                Ok(()) => Ok(()),
                Err(Lost::Fabric(error)) => Err(error.into()),
                Err(Lost::Recovered) => unreachable!("nobody takes a lock away from the living"),
            },
            _ => Err(Denied::Unsupported(&Reason("an asymmetric lock is only downgraded"))),
        }
    }
}
