//! Looking for ranges in the [index](super::index_layout) of their name, and keeping it.
//!
//! A space that has no index scans all records, and so does one that has, until a scan has read too many for nothing. Whatever
//! is wrong with a tree, it is given up, and the records are scanned.

use super::index::{self, Tree, Trouble};
use super::index_layout::{IndexLayout, Node, Root};
use super::query::Query;
use super::record::{First, HolderRecord, Kind, RecordWord, State, is_semaphore};
use super::space::{RangeSpace, RecordRules};
use super::table::{Direct, HolderTable, RANGE_WORDS, READS, owner, read_whole};
use crate::protocol::Grant;
use crate::shiftlock::ShiftGrant;
use crate::shiftlock::layout::Layout;
use arrayvec::ArrayVec;
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{FabricError, PeerId, Word64};
use std::cell::Cell;

/// A holder of a gate, as its index knows it.
#[derive(Clone, Copy, Debug)]
pub struct GateHold {
    generation: u64,
    token: u64,
}

impl GateHold {
    /// Who has the gate by this grant.
    #[inline(always)]
    pub(super) fn new(grant: &ShiftGrant) -> Self {
        Self { generation: grant.generation(), token: grant.token().unwrap_or_default() }
    }
}

/// Entries that are taken out after one look, at most.
const TAKEN_OUT: usize = 16;

/// What an entry's record says.
enum Answer {
    /// It settles the question.
    Yes,
    /// It does not.
    No,
    /// It is of no range of this lock, or of nobody who is alive.
    Nothing,
}

/// A question that counts the records it is asked of.
struct Counting<'a, Q> {
    query: &'a mut Q,
    records: Cell<u64>,
}

impl<Q: Query> Query for Counting<'_, Q> {
    const READS_RANGE: bool = Q::READS_RANGE;

    #[inline(always)]
    fn may_match(&self, peer: PeerId, record: u64, first: First) -> bool {
        self.records.set(self.records.get() + 1);
        self.query.may_match(peer, record, first)
    }

    #[inline(always)]
    fn may_overlap(&self, start: u64, end: u64) -> bool {
        self.query.may_overlap(start, end)
    }

    fn matches(&self, first: First, range: Option<[u64; 3]>) -> bool {
        self.query.matches(first, range)
    }

    fn settles(&mut self, first: First, range: Option<[u64; 3]>) -> bool {
        self.query.settles(first, range)
    }
}

impl<S: RangeSpace, L: Layout, R: RecordRules> HolderTable<S, L, R> {
    /// The index of ranges of `lock`, where there is any.
    #[inline(always)]
    fn index(&self, lock: u64) -> Option<IndexLayout> {
        const { assert!(S::IS_DIRECT || !S::HAS_INDEX, "an index is read without waiting") };
        if S::HAS_INDEX && !is_semaphore(lock) { Some(self.space().index()) } else { None }
    }

    #[inline(always)]
    fn node(&self, record: u8) -> Node {
        let layout = self.space().layout();
        Node::new(layout, layout.slot(self.space().me()), u64::from(record))
    }

    fn root(&self, layout: &IndexLayout, lock: u64) -> Result<Root, FabricError> {
        self.space().go_now(layout.root(lock).read()).map(Root)
    }

    #[inline(always)]
    fn tree(
        &self,
        layout: IndexLayout,
        lock: u64,
        root: Root,
        inside: GateHold,
    ) -> Option<Tree<'_, S, impl Fn(Word64) -> u64 + '_, R>> {
        Tree::open(self.space(), self.space().loader(), layout, (lock, root), inside.generation)
    }

    /// Whether a live client's record of a range that may overlap `claim`, other than the one that asks, is what `query` looks for.
    /// Of the holder of the gate.
    #[inline(always)]
    pub(super) async fn find_range<Q: Query>(
        &self,
        query: &mut Q,
        record: u8,
        claim: Claim,
        inside: GateHold,
    ) -> Result<bool, FabricError> {
        match self.index(claim.lock) {
            Some(layout) => self.find_indexed(query, (self.node(record), claim), inside, layout),
            None => self.find(query).await,
        }
    }

    #[inline(always)]
    fn find_indexed<Q: Query>(
        &self,
        query: &mut Q,
        (mine, claim): (Node, Claim),
        inside: GateHold,
        layout: IndexLayout,
    ) -> Result<bool, FabricError> {
        let root = self.root(&layout, claim.lock)?;
        if root.exists() {
            match self.find_in_tree(query, (mine, claim), inside, layout, root) {
                Ok(found) => return Ok(found),
                Err(Trouble::Fabric(error)) => return Err(error),
                Err(Trouble::Broken) => self.give_up(&layout, claim.lock)?,
            }
        }
        let mut counting = Counting { query, records: Cell::new(0) };
        let found = self.find_now(&mut counting)?;
        if counting.records.get() > layout.worth && inside.token.is_multiple_of(layout.every) {
            self.build(layout, claim.lock, inside)?;
        }
        Ok(found)
    }

    fn find_in_tree<Q: Query>(
        &self,
        query: &mut Q,
        (mine, claim): (Node, Claim),
        inside: GateHold,
        layout: IndexLayout,
        root: Root,
    ) -> Result<bool, Trouble> {
        let mut tree = self.tree(layout, claim.lock, root, inside).ok_or(Trouble::Broken)?;
        let mut says_nothing = ArrayVec::<Node, TAKEN_OUT>::new();
        let direct = Direct { space: self.space(), load: self.space().loader() };
        let found = tree.any((claim.start, claim.end), &mut |node| {
            if node == mine {
                return Ok(false);
            }
            let said = self.ask(query, claim.lock, node, &direct)?;
            if let Answer::Nothing = said {
                let _ = says_nothing.try_push(node);
            }
            Ok(matches!(said, Answer::Yes))
        })?;
        if inside.token.is_multiple_of(layout.every) {
            for node in says_nothing {
                tree.take_out(node)?;
            }
        }
        Ok(found)
    }

    /// What the record of an entry says: it is the truth.
    #[inline(always)]
    fn ask<Q: Query, F: Fn(Word64) -> u64>(
        &self,
        query: &mut Q,
        lock: u64,
        node: Node,
        direct: &Direct<'_, S, F>,
    ) -> Result<Answer, FabricError> {
        let layout = self.space().layout();
        let (slot, record) = node.place(layout);
        let Some(peer) = owner(direct.load_now(layout.owner(slot))) else { return Ok(Answer::Nothing) };
        let at = layout.record(slot, record);
        if !R::RECORDS_ARE_THE_TRUTH {
            let claim = Claim { lock, mode: Mode::Exclusive, start: 0, end: 0 };
            let first = First::new(State::Held, Kind::Range, &claim, 0);
            return Ok(if query.may_match(peer, record, first) { Answer::Yes } else { Answer::No });
        }
        let first = First(direct.load_now(at.word(RecordWord::First)));
        if !first.is_for(Kind::Range, lock) {
            return Ok(Answer::Nothing);
        }
        if !query.may_match(peer, record, first) {
            return Ok(Answer::No);
        }
        let Some((first, words)) = read_whole!(direct, at, first, RANGE_WORDS, R: load_now) else {
            return Ok(Answer::No);
        };
        if !query.may_match(peer, record, first) || !query.matches(first, Some(words)) {
            return Ok(Answer::No);
        }
        if !self.space().is_alive_now(peer) {
            return Ok(Answer::Nothing);
        }
        Ok(if query.settles(first, Some(words)) { Answer::Yes } else { Answer::No })
    }

    #[cold]
    fn give_up(&self, layout: &IndexLayout, lock: u64) -> Result<(), FabricError> {
        let root = self.root(layout, lock)?;
        index::give_up(self.space(), layout, lock, root).map(drop)
    }

    /// Makes an index of what the records say, those of the dead included: they do no harm.
    #[cold]
    fn build(&self, layout: IndexLayout, lock: u64, inside: GateHold) -> Result<(), FabricError> {
        let root = self.root(&layout, lock)?;
        let built = Tree::<S, _, R>::begin(self.space(), self.space().loader(), layout, (lock, root));
        let built = built.and_then(|mut tree| {
            let (reader, table) = (self.reader(), self.space().layout());
            let is_range = |record: &HolderRecord| record.first.is_for(Kind::Range, lock);
            for client in reader.clients() {
                for record in reader.records(&client).filter(is_range) {
                    let node = Node::new(table, table.slot(client.peer), record.record);
                    tree.add(node, record.claim.start, record.claim.end)?;
                }
            }
            tree.finish(inside.generation)
        });
        match built {
            Err(Trouble::Fabric(error)) => Err(error),
            // Later, then.
            Ok(()) | Err(Trouble::Broken) => Ok(()),
        }
    }

    /// Sees to it that what a record of this client's is about to say is in the index, if there is one. Of the holder of the gate.
    #[inline(always)]
    pub(super) fn enter_index(&self, record: u8, claim: Claim, inside: GateHold) -> Result<(), FabricError> {
        let Some(layout) = self.index(claim.lock) else { return Ok(()) };
        let root = self.root(&layout, claim.lock)?;
        let Some(mut tree) = self.tree(layout, claim.lock, root, inside) else { return Ok(()) };
        match tree.enter(self.node(record), claim.start, claim.end) {
            Ok(()) => Ok(()),
            Err(Trouble::Broken) => self.give_up(&layout, claim.lock),
            Err(Trouble::Fabric(error)) => Err(error),
        }
    }

    /// The other lock that has the entry of a record of this client's in its index.
    #[inline(always)]
    pub(super) fn indexed_elsewhere(&self, record: u8, lock: u64) -> Option<u64> {
        let layout = self.index(lock)?;
        index::other_tree(self.space(), &layout, self.node(record), lock).ok()?
    }

    /// Takes the entry of a free record of this client's out of the index of `lock`. Of the holder of that lock's gate.
    #[cold]
    pub(super) fn leave_index(&self, record: u8, lock: u64, inside: GateHold) -> Result<(), FabricError> {
        let Some(layout) = self.index(lock) else { return Ok(()) };
        let root = self.root(&layout, lock)?;
        let tree = self.tree(layout, lock, root, inside);
        match tree.map(|mut tree| tree.take_out(self.node(record))) {
            Some(Ok(())) => Ok(()),
            Some(Err(Trouble::Fabric(error))) => Err(error),
            Some(Err(Trouble::Broken)) | None => self.give_up(&layout, lock),
        }
    }
}
