//! The paper's own recovery (§3.6), for comparison: the server resets dead locks, once per era.
//!
//! Each memory node has an era, which the server's CPU counts and clients can read. A waiter whose timer ran out reads the
//! era and then RelCnt, both in one batch, and asks the server to reset the lock; a server that is in another era by then
//! refuses, and the waiter comes again a lease later. So one node recovers one lock at a time, and every recovery takes a
//! batch, a message each way and one more look, where the waiter's own reset takes one verb (see `recover`).
//!
//! Two things differ from the paper. The request carries RelCnt and the server compares it: the era alone does not
//! protect a lock that came back to life between the look and the reset (`shiftlock-blind-server`). And RelCnt only rises,
//! instead of leaping by 2⁶³, which would be back where it was after two recoveries.

use super::layout::{Entry, Layout};
use super::lookup::HolderLookup;
use super::messages::Reset;
use super::recover::{StallTimer, reset};
use super::{Core, Rules};
use crate::protocol::Space;
use lockwright_fabric::observe::{Claim, Observation};
use lockwright_fabric::{
    Addr, BoxedRole, Deadline, Endpoint, FabricError, Message, NodeId, Op, Outbox, PeerId, RawVerb, Role,
    Time, Value, Width, Word64,
};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// Who resets a dead lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resets {
    /// A waiter, with one verb.
    #[default]
    ByWaiter,
    /// The server that has its memory, as in the paper. For comparison.
    ByServer,
}

/// What the era takes of a node's lock memory: a word, and room to keep 16-byte entries aligned.
pub(super) const ERA_BYTES: u64 = 16;

/// Where the era of `node` stands: behind its locks.
const fn era_at(space: &Space, node: NodeId, width: Width) -> Addr {
    Addr::new(node, space.table_bytes(width.bytes()))
}

/// The server side: one for each node.
pub(super) fn roles<L: Layout, R: Rules>(space: &Space) -> Vec<BoxedRole> {
    let server = |node| Server::<L, R> { era: 0, node: NodeId(node), space: *space, of: PhantomData };
    (0..space.nodes).map(server).map(BoxedRole::new).collect()
}

/// A memory node's CPU.
#[derive(Debug)]
struct Server<L, R> {
    era: u64,
    node: NodeId,
    space: Space,
    of: PhantomData<fn() -> (L, R)>,
}

impl<L: Layout, R: Rules> Role for Server<L, R> {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let lock = message.lock;
        let Some(asked) = Reset::read(message) else { return };
        let ours = lock < self.space.locks && self.space.node_of(lock) == self.node;
        let done = ours && asked.era == self.era;
        if done && let Some(mut reset) = reset::<L, R>(asked.stamp) {
            self.era += 1;
            let width = L::Word::WIDTH;
            if !R::SERVER_COMPARES_REL_CNT {
                reset.compare_mask = 0;
            }
            // The era first: a client that finds the lock reset finds the era over.
            out.post(Word64::at(era_at(&self.space, self.node, width)).write(self.era).raw());
            let addr = self.space.place(lock, width.bytes());
            out.post(RawVerb { addr, width, op: Op::MaskedCas(reset) });
        }
        out.send(from, asked.answer(lock, done));
    }
}

impl<E: Endpoint, L: Layout, R: Rules, O, W: HolderLookup> Core<E, L, R, O, W> {
    /// Asks the server to reset the lock, until it is of a new generation (`true`) or moves again.
    pub(super) async fn ask_server(&self, claim: Claim, timer: &mut StallTimer) -> Result<bool, FabricError> {
        let lock = claim.lock;
        let node = self.space.node_of(lock);
        let server = PeerId::role(usize::from(node.0));
        let look = (Word64::at(era_at(&self.space, node, L::Word::WIDTH)).read(), self.word(lock).read());
        loop {
            let (era, seen) = self.ep.go(look).await?;
            let entry = Entry::<L>::of(seen);
            if entry.generation() != timer.stamp.generation() {
                if timer.by_me {
                    self.ep.observe(Observation::Recovered(claim));
                }
                return Ok(true);
            }
            if entry.stamp() != timer.stamp {
                *timer = self.stall_timer(entry.stamp(), timer.began).await;
                return Ok(false);
            }
            let ask = Reset { era, stamp: timer.stamp };
            self.ep.send(server, ask.to_server(lock)).await?;
            let patience = Deadline::At(self.ep.now().await.plus(self.params.lease_ns));
            timer.by_me =
                self.ep.recv_by(patience, |_, message| ask.read_answer(lock, message)).await == Some(true);
            if !timer.by_me {
                self.ep.sleep(self.params.lease_ns).await; // another lock has its turn
            }
        }
    }
}

// Written out, since the layout and the rules are no part of the state.
impl<L, R> Server<L, R> {
    const fn state(&self) -> (u64, NodeId, Space) {
        (self.era, self.node, self.space)
    }
}

impl<L, R> Clone for Server<L, R> {
    fn clone(&self) -> Self {
        let (era, node, space) = self.state();
        Self { era, node, space, of: PhantomData }
    }
}

impl<L, R> PartialEq for Server<L, R> {
    fn eq(&self, other: &Self) -> bool {
        self.state() == other.state()
    }
}

impl<L, R> Eq for Server<L, R> {}

impl<L, R> Hash for Server<L, R> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.state().hash(hasher);
    }
}
