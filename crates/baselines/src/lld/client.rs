//! A client of the list: walk, put in, mark.

use super::node::{LIFE, Life, Link, MARK, NODE_BYTES, Node};
use super::slots::{Marked, Slots};
use super::{LldParams, Rules};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Addr, Cond, Deadline, Endpoint, FabricError, Word64, Word128};
use lockwright_locks::{Denied, Grant, LockClient, Lost, Patience, Reason, Space, Want};
use std::marker::PhantomData;

/// A client of the list.
#[derive(Clone, Debug)]
pub struct LldClient<E, R> {
    ep: E,
    space: Space,
    params: LldParams,
    slots: Slots,
    rules: PhantomData<R>,
}

/// A range that is held: its node.
#[derive(Clone, Copy, Debug)]
pub struct LldGrant {
    place: Marked,
    life: Life,
}

impl Grant for LldGrant {}

/// Where a walk has come to: behind the link at `at`, which was `seen` there.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: Word64,
    seen: Link,
    /// When the walk left the head.
    began: u64,
}

/// What a walk met.
enum WalkEnd {
    /// Everything before the place ends before the range, everything behind it starts after it.
    Room(Place),
    /// A client holds a part of the range.
    Holder(Place, Life),
}

impl<E: Endpoint, R: Rules> LockClient for LldClient<E, R> {
    type Grant = LldGrant;

    async fn acquire(&self, want: Want) -> Result<LldGrant, Denied> {
        let range = self.units(&want).map_err(Denied::BadRequest)?;
        let life = self.free_node(range.lock).await?;
        match self.put_in(want, range, life).await {
            Ok(()) => Ok(LldGrant { place: range, life }),
            Err(denied) => {
                // It never came into the list, or that is unknown, because the node is lost.
                self.slots.free(self.space.node_of(range.lock).0, life);
                Err(denied)
            }
        }
    }

    /// Published: one fetch-and-add.
    async fn release(&self, grant: LldGrant) -> Result<(), Lost> {
        let LldGrant { place, life } = grant;
        let marked = self.ep.go(self.link(place.lock, life).fetch_add(MARK)).await;
        let memory_node = self.space.node_of(place.lock).0;
        if R::WAITS_UNTIL_OUT {
            self.slots.give_back(memory_node, life, place);
        } else {
            self.slots.free(memory_node, life);
        }
        marked?;
        Ok(())
    }

    fn locals(&self) -> Vec<u64> {
        self.slots.locals(self.slots.now())
    }
}

impl<E: Endpoint, R: Rules> LldClient<E, R> {
    pub(super) fn new(ep: E, space: Space, params: LldParams) -> Self {
        let client = ep.me().index().0 as u64;
        let slots = Slots::new(client, params.nodes_each as usize, usize::from(space.nodes));
        Self { ep, space, params, slots, rules: PhantomData }
    }

    /// A node that is in no list, for a new life. If there is none, one that was given back is looked for.
    async fn free_node(&self, lock: u64) -> Result<Life, Denied> {
        let memory_node = self.space.node_of(lock).0;
        loop {
            if let Some(life) = self.slots.take(memory_node) {
                return Ok(life);
            }
            let Some(old) = self.slots.marked(memory_node) else {
                return Err(Denied::Unsupported(&Reason("this client holds as many ranges as it has nodes")));
            };
            let (WalkEnd::Room(place) | WalkEnd::Holder(place, _)) = self.walk(old, None, None).await?;
            // A client that holds a part of the old range now came after it was taken out: linked nodes do not overlap.
            self.slots.passed(memory_node, old.lock, old.start + 1, place.began);
        }
    }

    /// Walks to the range's place and puts the node there, as soon as no client holds any of it.
    async fn put_in(&self, want: Want, range: Marked, life: Life) -> Result<(), Denied> {
        let mut from = None;
        loop {
            match self.walk(range, from, Some(life)).await? {
                WalkEnd::Holder(place, holder) => {
                    let deadline = match want.patience {
                        Patience::Forever => Deadline::Never,
                        Patience::Try => return Err(Denied::Busy),
                        Patience::Until(time) => Deadline::At(time),
                    };
                    self.ep.observe(Observation::Retried(want.claim));
                    let held = u128::from(Link::new(holder.version, None).0);
                    let let_go = Cond::Ne { mask: u128::from(LIFE), value: held };
                    let wait = self.link(range.lock, holder).until(let_go).by(deadline);
                    if !self.ep.wait_until(wait).await?.met {
                        return Err(Denied::TimedOut);
                    }
                    from = Some(place);
                }
                WalkEnd::Room(Place { at, seen, began }) => {
                    let node = Node { link: Link::new(life.version, seen.next()), ..node_of(range) };
                    let write = self.node(range.lock, life).write(node.word());
                    let put = seen.to(Some(life));
                    let (_, old) = if R::LOOKS_AT_MARK {
                        self.ep.go((write, at.cas(seen.0, put.0))).await?
                    } else {
                        let cas = at.masked_cas(seen.0, !MARK, put.0, !MARK);
                        self.ep.go((write, cas)).await?
                    };
                    if old == seen.0 || (!R::LOOKS_AT_MARK && old & !MARK == seen.0 & !MARK) {
                        return Ok(());
                    }
                    from = still_there(seen, Link(old)).map(|seen| Place { at, seen, began });
                }
            }
        }
    }

    /// Walks on `from` a place, or from the head, to where the range would be; takes marked nodes out on its way, and
    /// takes note of nodes of its own that it did not meet. `mine` is the node that is to be put in, for marks.
    async fn walk(
        &self,
        range: Marked,
        from: Option<Place>,
        mine: Option<Life>,
    ) -> Result<WalkEnd, FabricError> {
        let head = Word64::at(self.space.place(range.lock, NODE_BYTES));
        let memory_node = self.space.node_of(range.lock).0;
        let mut at_place = from;
        loop {
            let place = match at_place {
                Some(place) => place,
                None => {
                    let began = self.slots.now();
                    self.mark(range, Place { at: head, seen: Link(MARK), began }, mine);
                    Place { at: head, seen: Link(self.ep.go(head.read()).await?), began }
                }
            };
            self.mark(range, place, mine);
            let Place { at, seen, began } = place;
            let Some(next) = seen.next() else {
                self.slots.passed(memory_node, range.lock, u64::MAX, began);
                return Ok(WalkEnd::Room(place));
            };
            let node = Node::of(self.ep.go(self.node(range.lock, next).read()).await?);
            if node.link.own() != next.version {
                // It has been used again: the place is old.
                at_place = None;
            } else if node.link.is_marked() {
                let without = seen.to(node.link.next());
                let old = self.ep.go(at.cas(seen.0, without.0)).await?;
                let now = if old == seen.0 { Some(without) } else { still_there(seen, Link(old)) };
                at_place = now.map(|seen| Place { seen, ..place });
            } else if node.end <= range.start {
                at_place = Some(Place { at: self.link(range.lock, next), seen: node.link, began });
            } else {
                self.slots.passed(memory_node, range.lock, node.start, began);
                let room = node.start >= range.end;
                return Ok(if room { WalkEnd::Room(place) } else { WalkEnd::Holder(place, next) });
            }
        }
    }

    fn mark(&self, range: Marked, place: Place, mine: Option<Life>) {
        let mine = mine.map_or(0, |life| life.number);
        let mut locals = vec![range.lock, range.start, place.at.addr().offset, place.seen.0, mine];
        locals.extend(self.slots.locals(place.began));
        self.ep.mark("lld walks", &locals);
    }

    fn units(&self, want: &Want) -> Result<Marked, &'static Reason> {
        let claim = want.claim;
        if self.ep.me().index().0 as u64 >= u64::from(self.params.clients) {
            return Err(&Reason("the list has no nodes for another client"));
        }
        if claim.lock >= self.space.locks {
            return Err(&Reason("there is no such lock in this space"));
        }
        let (start, end) = if (claim.start, claim.end) == (0, u64::MAX) {
            (0, self.space.units)
        } else {
            (claim.start, claim.end)
        };
        if start >= end {
            return Err(&Reason("the range is empty or reversed"));
        }
        if end > self.space.units {
            return Err(&Reason("the range ends past the last unit of the lock"));
        }
        if end > u64::from(u32::MAX) {
            return Err(&Reason("the list's ranges end below 2^32"));
        }
        Ok(Marked { lock: claim.lock, start, end })
    }

    fn addr(&self, lock: u64, life: Life) -> Addr {
        let nodes = Addr::new(self.space.node_of(lock), self.space.table_bytes(NODE_BYTES));
        nodes.plus((life.number - 1) * NODE_BYTES)
    }

    fn node(&self, lock: u64, life: Life) -> Word128 {
        Word128::at(self.addr(lock, life))
    }

    fn link(&self, lock: u64, life: Life) -> Word64 {
        Word64::at(self.addr(lock, life))
    }
}

/// A link that is not what was seen: is it still in the list, and only leads elsewhere?
fn still_there(seen: Link, now: Link) -> Option<Link> {
    (!now.is_marked() && now.own() == seen.own()).then_some(now)
}

fn node_of(range: Marked) -> Node {
    Node { link: Link(0), start: range.start, end: range.end }
}
