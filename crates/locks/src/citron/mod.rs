//! Citron: range locks on a segment tree, by one-sided verbs alone (Gao et al., FAST '23, §3).
//!
//! A range is covered by at most k nodes of a static tree ([`split()`]), which are locked from left to right. Two
//! requests conflict only if one's node is the other's, or above it: requests below leave a note at every m-th
//! ancestor, requests above look for notes within m levels.
//!
//! Two ways to make sure that one of the two sees the other, in one code base:
//! - [`Synchrony::Handshake`], the default and ours: tell the ancestors, *then* look at them, and yield. No clock, no
//!   abort, one round trip for an uncontended acquire (`handshake`).
//! - [`Synchrony::Wait`], the paper's: look first; large requests let T_wait pass, small ones that were slower
//!   than that abort (`wait_mode`).
//!
//! [`Citron`] is exclusive: shared wants are served as exclusive ones. [`CitronRw`] has readers too, on a tree with
//! words of its own (`words`, `readers`). What it must not do: hold a node and wait for one to its
//! left, or for a request above a node it holds; see `acquire` for why that would deadlock.

mod acquire;
mod attempt;
mod below;
mod ending;
mod grow;
mod handshake;
mod handshake_leaves;
mod layout;
mod leaf;
pub mod member;
mod params;
mod readers;
mod recover;
mod release;
mod rules;
mod shape;
mod shrink;
mod spill;
mod split;
mod tokens;
mod tree;
mod wait_mode;
mod words;

pub use leaf::MANY_READERS_OF_A_UNIT;
pub use params::{Growth, MAX_K, MAX_M, Params, Synchrony, Timing};
pub use rules::{ReaderWriter, Rules, Shipped};
pub use shape::{Node, Shape};
pub use split::{Cover, split};
pub use words::MANY_READERS;

use crate::protocol::{Denied, Grant, Info, LockClient, Lost, Offers, Protocol, Reason, Space, Want};
use acquire::OnTree;
use attempt::Pieces;
use lockwright_fabric::{Addr, Endpoint, Field, Needs, Time};
use spill::Spill;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tree::{Tree, View};
use words::Words;

/// The most units of a lock.
pub const MAX_UNITS: u64 = 1 << 62;

/// Citron, with the rules of `R`: the shipped ones, or a mutant's.
#[derive(Debug)]
pub struct Citron<R = Shipped>(PhantomData<R>);

/// Citron for readers and writers.
pub type CitronRw = Citron<ReaderWriter>;

impl<R: Rules> Protocol for Citron<R> {
    type Params = Params;
    type Client<E: Endpoint> = CitronClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: if R::READERS {
            "reader-writer range locks on a segment tree, one-sided"
        } else {
            "range locks on a segment tree, one-sided"
        },
        source: if R::READERS { "ours, after Citron §3" } else { "Citron §3; handshake mode is ours" },
        offers: Offers {
            shared: R::READERS,
            ranges: true,
            tokens: true,
            tries: true,
            timeouts: true,
            recovery: true,
        },
    };

    fn needs(_: &Params) -> Needs {
        Needs { masked: true, global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, params: &Params) -> u64 {
        space.table_bytes(shape::<R>(space, params).bytes())
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &Params) -> CitronClient<E, R> {
        let guards = params.lease_ns > 0 && R::ENDINGS_ARE_GUARDED && ep.capabilities().guarded;
        let shape = shape::<R>(space, params);
        CitronClient {
            ep,
            space: *space,
            params: *params,
            leaf_generation: leaf::generation(R::READERS, shape.leaf_units()),
            shape,
            guards,
            grown: Arc::default(),
            rules: PhantomData,
        }
    }

    /// Leaves are empty and nobody is occupied; counters stay where they came to.
    fn quiet_mask(space: &Space, params: &Params, addr: Addr) -> u64 {
        let shape = shape::<R>(space, params);
        let word = addr.offset % shape.bytes() / 8;
        let first_node = shape.words_before_tree();
        let first_leaf = Node { level: shape.levels, place: 0 }.index() - 1 + first_node;
        match word {
            word if word >= first_leaf => !(leaf::generation(R::READERS, shape.leaf_units()).mask() as u64),
            word if word >= first_node && R::READERS => words::QUIET,
            word if word >= first_node => layout::OCC.mask() as u64,
            _ => 0,
        }
    }

    /// `k`, `m`, `escalate-after`, `lease-ns`, `token-level`, `start-units` and `growth` (0 asked, 1 at once, 2 elastic);
    /// `t-wait-ns` chooses wait mode, and `fast-path` (0 or 1) is whether that has §3.8's.
    fn tune(params: &mut Params, name: &str, value: u64) -> bool {
        match name {
            "lease-ns" => {
                params.lease_ns = value;
                return true;
            }
            "start-units" => {
                params.start_units = value;
                return true;
            }
            "growth" => {
                params.growth = match value {
                    0 => Growth::Asked,
                    1 => Growth::AtOnce,
                    2 => Growth::Elastic,
                    _ => return false,
                };
                return true;
            }
            _ => {}
        }
        let Ok(small) = u32::try_from(value) else { return false };
        match name {
            "token-level" => params.token_level = small,
            "fast-path" => params.fast_path = small != 0,
            "k" => params.k = small,
            "m" => params.m = small,
            "escalate-after" => params.escalate_after = small,
            "t-wait-ns" => {
                params.synchrony = Synchrony::Wait(Timing { t_wait_ns: value, ..Timing::default() });
            }
            _ => return false,
        }
        params.check().is_ok()
    }
}

/// The shape of a space's trees. Leaves of reader-writer trees have a byte per unit.
fn shape<R: Rules>(space: &Space, params: &Params) -> Shape {
    let most = if R::READERS { 8 } else { 64 };
    let start_units = if R::READERS { 0 } else { params.start_units };
    Shape::new(space, &Params { leaf_units: params.leaf_units.min(most), start_units, ..*params })
}

/// A client of Citron.
#[derive(Debug)]
pub struct CitronClient<E, R> {
    ep: E,
    space: Space,
    params: Params,
    shape: Shape,
    /// The generation of a leaf.
    leaf_generation: Field,
    /// Whether a verb that ends an operation compares the generation in which that began. If the fabric cannot, the host has
    /// to destroy a dead client's connection before others recover what it left.
    guards: bool,
    /// The configuration of trees that have grown, as far as this client knows.
    grown: Arc<Mutex<BTreeMap<u64, u64>>>,
    rules: PhantomData<R>,
}

impl<E: Clone, R> Clone for CitronClient<E, R> {
    /// The same client: what it knows of the trees is shared.
    fn clone(&self) -> Self {
        let Self { ep, space, params, shape, leaf_generation, guards, grown, rules } = self;
        Self {
            ep: ep.clone(),
            space: *space,
            params: *params,
            shape: *shape,
            leaf_generation: *leaf_generation,
            guards: *guards,
            grown: Arc::clone(grown),
            rules: *rules,
        }
    }
}

/// A granted range.
#[derive(Clone, Debug)]
pub struct CitronGrant {
    lock: u64,
    words: Words,
    pieces: Pieces,
    token: Option<u64>,
    /// When the lease runs out, for clients that go by it.
    expires: Option<Time>,
    /// What the tree was like then.
    view: View,
    /// The turn at the spillover mutex, for what lies past the tree's end.
    spill: Option<Spill>,
}

impl Grant for CitronGrant {
    fn token(&self) -> Option<u64> {
        self.token
    }
}

impl<E: Endpoint, R: Rules> LockClient for CitronClient<E, R> {
    type Grant = CitronGrant;

    async fn acquire(&self, want: Want) -> Result<CitronGrant, Denied> {
        let (start, end) = self.units(&want).map_err(Denied::BadRequest)?;
        if self.shape.grows() {
            return self.acquire_or_spill(want, start, end).await;
        }
        let tree = self.tree(want.claim.lock);
        match self.acquire_on_tree(want, tree, (start, end), Some((start, end)), None).await? {
            OnTree::Granted(grant) => Ok(grant),
            OnTree::Grown | OnTree::Renewed => unreachable!("this tree does not grow"),
        }
    }

    async fn release(&self, grant: CitronGrant) -> Result<(), Lost> {
        if let Some(expires) = grant.expires
            && self.ep.passed(expires).await
        {
            return Err(Lost::Recovered);
        }
        let tree = Tree::of(grant.lock, &self.space, self.shape, grant.view);
        let mut is_mine = self.release_on_tree(&tree, grant.words, &grant.pieces).await?;
        if let Some(spill) = grant.spill {
            is_mine &= self.give_spill_back(&tree, spill).await?;
        }
        if self.params.growth == Growth::Elastic {
            // Whether it could is nobody's concern.
            let _ = self.shrink(grant.lock).await;
        }
        if is_mine { Ok(()) } else { Err(Lost::Recovered) }
    }

    fn locals(&self) -> Vec<u64> {
        let known = self.known();
        known.iter().filter(|(_, config)| **config != 0).flat_map(|(lock, config)| [*lock, *config]).collect()
    }
}

impl<E: Endpoint, R: Rules> CitronClient<E, R> {
    /// The units that `want` means, or what is wrong with it.
    fn units(&self, want: &Want) -> Result<(u64, u64), &'static Reason> {
        self.params.check()?;
        if R::READERS && self.params.start_units > 0 {
            return Err(&Reason("reader-writer trees do not grow"));
        }
        if R::READERS && self.params.synchrony != Synchrony::Handshake {
            return Err(&Reason("reader-writer ranges exist in handshake mode only"));
        }
        let (claim, units) = (want.claim, self.space.units);
        if units == 0 || units > MAX_UNITS {
            return Err(&Reason("a range lock must have from 1 to 2^62 units"));
        }
        if claim.lock >= self.space.locks {
            return Err(&Reason("there is no such lock in this space"));
        }
        if (claim.start, claim.end) == (0, u64::MAX) {
            return Ok((0, units));
        }
        if claim.end > 1 << 63 {
            return Err(&Reason("the range ends past 2^63"));
        }
        if claim.start == claim.end {
            return Err(&Reason("the range is empty"));
        }
        if claim.start > claim.end {
            return Err(&Reason("the range is reversed: it ends before it starts"));
        }
        if claim.end > units {
            return Err(&Reason("the range ends past the last unit of the lock"));
        }
        Ok((claim.start, claim.end))
    }

    /// The tree of `lock`, as far as this client knows.
    fn tree(&self, lock: u64) -> Tree {
        let config = if self.shape.grows() { self.known().get(&lock).copied().unwrap_or(0) } else { 0 };
        let grown = grow::grown(config);
        Tree::of(lock, &self.space, self.shape, View { grown, config, m: self.params.m })
    }

    /// Takes note of how far a tree has grown.
    fn remember(&self, tree: &Tree, config: u64) {
        self.known().insert(tree.lock(), grow::published(config));
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The units of `node` that are asked for, if it is a leaf.
    fn mask(&self, node: Node, (start, end): (u64, u64)) -> u64 {
        if self.shape.is_leaf(node) { self.shape.leaf_mask(node, start, end) } else { 0 }
    }

    /// Whether this client can do no harm after others took it for dead, whatever its clock says.
    fn is_zombie_proof(&self) -> bool {
        self.guards && self.leaf_generation != ending::NONE
    }
}
