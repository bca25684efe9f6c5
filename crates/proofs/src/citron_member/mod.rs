//! Citron's tree with membership, as the explorer runs it: the shipped client on trees and records in one memory, killed
//! between any two steps. A client that is dead does nothing any more, as on a fabric that destroys its connection first.

mod cases;
mod mutants;

use crate::holders::memory::{Fenced, Part, RANGES};
use crate::member_cases::PATIENCE_NS;
use crate::{Case, Proof, Visitor};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, Needs, NodeId, PeerId, RawVerb, Word64};
use lockwright_locks::citron::Shipped;
use lockwright_locks::citron::member::{Forest, MemberRules, TreeClient, TreeGrant, TreeParams, TreeSpace};
use lockwright_locks::holders::record::{First, Kind, RecordWord, State};
use lockwright_locks::{
    Change, Denied, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use std::marker::PhantomData;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<CitronMember>();
    mutants::visit_mutants(visitor);
}

/// Citron's tree with membership, with the rules of `R`: those shipped, or a mutant's.
#[derive(Debug)]
pub struct CitronMember<R = Shipped>(PhantomData<R>);

/// The progress of a record with one node that is occupied, and of one that is changing.
const SETTLED: u64 = 1;
const CHANGING: u64 = 1 << 7;

/// Tunables.
#[derive(Clone, Debug)]
pub struct MemberParams {
    /// Nodes of a cover, at most.
    pub k: u32,
    /// The meet-in-the-middle distance.
    pub m: u32,
    /// Clients that there is a record for.
    pub clients: u64,
    /// Bits that changes of a record are counted in.
    pub sequence_bits: u32,
    /// Whether the first unit was left behind by a client that held it and is dead: the one after the last.
    pub left_by_the_dead: bool,
    /// And it died in the middle of something.
    pub left_in_the_middle: bool,
}

impl Default for MemberParams {
    fn default() -> Self {
        Self {
            k: 2,
            m: 2,
            clients: 256,
            sequence_bits: 56,
            left_by_the_dead: false,
            left_in_the_middle: false,
        }
    }
}

/// Where things are: trees, then records.
fn forest(space: &Space, params: &MemberParams) -> Forest {
    let trees = TreeParams { locks: space.locks, units: space.units, unit: 1, k: params.k, m: params.m };
    Forest::new(Addr::new(NodeId(0), 0), trees)
}

fn part(space: &Space, params: &MemberParams) -> Part {
    let dead = u64::from(params.left_by_the_dead);
    Part::new(forest(space, params).bytes(), params.clients + dead, 1, 0, RANGES)
}

/// What the dead client left: a unit, and that it is written down.
fn left_by_the_dead(space: &Space, params: &MemberParams) -> Vec<(Addr, u64)> {
    let (forest, part) = (forest(space, params), part(space, params));
    let claim = Claim { lock: 0, mode: Mode::Exclusive, start: 0, end: 1 };
    let record = part.layout.record(params.clients, 0);
    let words = [
        (RecordWord::First, First::new(State::Taking, Kind::Range, &claim, 0).0),
        (RecordWord::End, claim.end),
        (RecordWord::PROGRESS, if params.left_in_the_middle { CHANGING } else { SETTLED }),
    ];
    let places = words.map(|(word, value)| (part.place(record.word(word)), value));
    let record = places.into_iter().filter_map(|(place, value)| Some((place?.addr(), value)));
    record.chain(forest.left_by(&claim).into_iter().map(|(word, value)| (word.addr(), value))).collect()
}

impl<R: MemberRules> Protocol for CitronMember<R> {
    type Params = MemberParams;
    type Client<E: Endpoint> = Explored<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "reader-writer ranges on Citron's tree; only the dead lose theirs",
        source: "ours, after Citron §3",
        offers: Offers {
            shared: true,
            ranges: true,
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
        forest(space, params).bytes() + part(space, params).bytes()
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &MemberParams) -> Explored<E, R> {
        let dead = params.left_by_the_dead.then(|| PeerId::client(params.clients as usize));
        let (part, more) = (part(space, params), SequenceBits(params.sequence_bits));
        let records = Records { ep: ep.clone(), part, dead, more };
        Explored(TreeClient::new(ep, records, forest(space, params)))
    }

    fn initial_memory(space: &Space, params: &MemberParams) -> Vec<(Addr, u64)> {
        if params.left_by_the_dead { left_by_the_dead(space, params) } else { Vec::new() }
    }

    /// Nodes are empty; counts of grants and of changes are wherever they came to.
    fn quiet_mask(space: &Space, params: &MemberParams, addr: Addr) -> u64 {
        let forest = forest(space, params);
        let is_first = part(space, params).is_first_word(addr.offset);
        if is_first || addr.offset < forest.bytes() && forest.is_node(addr.offset) { u64::MAX } else { 0 }
    }
}

impl Proof for CitronMember {
    fn cases() -> Vec<Case<MemberParams>> {
        cases::all()
    }
}

/// One client's access to the records, and the bits that changes of a record are counted in.
pub type Records<E> = Fenced<E, SequenceBits>;

/// Bits that changes of a record are counted in.
#[derive(Clone, Copy, Debug)]
pub struct SequenceBits(u32);

impl<E: Endpoint> TreeSpace for Records<E> {
    async fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        if verbs.is_empty() {
            return Ok(());
        }
        self.ep.go(verbs).await.map(drop)
    }

    fn place(&self, word: Word64) -> Word64 {
        self.stored(word)
    }

    fn patience_ns(&self) -> Option<u64> {
        Some(PATIENCE_NS)
    }

    fn sequence_bits(&self) -> u32 {
        self.more.0
    }
}

/// A client of the explorer's: one acquisition at a time, so one record.
#[derive(Debug)]
pub struct Explored<E, R>(TreeClient<E, Records<E>, R>);

const RECORD: u8 = 0;

impl<E: Endpoint, R: MemberRules> LockClient for Explored<E, R> {
    type Grant = TreeGrant;

    async fn acquire(&self, want: Want) -> Result<TreeGrant, Denied> {
        match want.patience {
            Patience::Forever => self.0.take(RECORD, want.claim).await,
            Patience::Try => self.0.try_take(RECORD, want.claim).await,
            Patience::Until(deadline) => {
                let given_up = || self.0.space().ep.alarm(deadline);
                self.0.take_unless(RECORD, want.claim, given_up).await
            }
        }
    }

    async fn release(&self, grant: TreeGrant) -> Result<(), Lost> {
        self.0.give_back(grant).await
    }

    async fn change(&self, grant: &mut TreeGrant, change: Change) -> Result<(), Denied> {
        match change {
            Change::Downgrade => match self.0.downgrade(grant).await {
                Ok(()) => Ok(()),
                Err(Lost::Fabric(error)) => Err(error.into()),
                Err(Lost::Recovered) => unreachable!("nobody takes a range away from the living"),
            },
            _ => Err(Denied::Unsupported(&Reason("ranges on a tree are only downgraded"))),
        }
    }

    fn locals(&self) -> Vec<u64> {
        vec![self.0.progress(RECORD).0]
    }
}
