//! [`Endpoint`]: everything that a lock protocol may do.

use crate::addr::{NodeId, PeerId, Value};
use crate::capability::Capabilities;
use crate::message::Message;
use crate::observe::Observation;
use crate::verb::Batch;
use crate::wait::{Deadline, Time, Wait, Waited};

/// Why a verb or a message failed.
///
/// Aligned to eight bytes, so that results which carry it are copied in whole words: two 4-byte stores read back by one
/// 8-byte load stall the CPU for longer than an uncontended lock takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32, align(8))]
pub enum FabricError {
    /// The node that owns the memory cannot be reached. Whether the verb was executed is not known.
    #[error("memory node {} cannot be reached", .0.0)]
    NodeLost(NodeId),
    /// The peer cannot be reached, or takes no messages from this client. Whether the message arrived is not known.
    #[error("peer {0} cannot be reached")]
    PeerLost(PeerId),
    /// Other clients took this one for dead and may have recovered its locks: nothing it asks for is executed any more.
    #[error("this client was evicted from the lock space: others took it for dead")]
    Evicted,
}

/// One client's access to the fabric.
///
/// A protocol is generic over this trait and nothing else. Clones are cheap and are the same client. Futures must be polled
/// to take effect and may be joined: two `go`s in flight are executed in any order.
///
/// What one client awaits takes effect in program order, and so do the verbs of a batch: a READ that begins after an awaited
/// WRITE or atomic sees memory after it, on any word. Peterson's lock depends on it (a store, then a load of another word).
/// Backends on CPUs therefore execute every verb by sequentially consistent instructions; on a NIC it is the order of one
/// queue pair.
///
/// Not `Send`: the futures of backends for threads are `Send` by inference, and the simulator is single-threaded.
pub trait Endpoint: Clone + 'static {
    /// Whether verbs are instructions of this CPU, so that [`try_go`](Endpoint::try_go) always executes them.
    const IS_IMMEDIATE: bool = false;

    /// This client's id.
    fn me(&self) -> PeerId;

    /// The node this client runs on, if that node owns lock memory: verbs there are CPU instructions.
    fn home(&self) -> Option<NodeId> {
        None
    }

    /// What this fabric can do.
    fn capabilities(&self) -> Capabilities;

    /// Executes `batch` in order at one node, in one round trip, and returns every old word.
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>>;

    /// Executes `batch` without a future, if verbs are instructions of this CPU. The fast path of protocols.
    ///
    /// # Errors
    /// The batch, not executed, on other fabrics: use [`go`](Endpoint::go).
    #[inline(always)]
    fn try_go<B: Batch>(&self, batch: B) -> Result<Result<B::Old, FabricError>, B> {
        Err(batch)
    }

    /// Waits until a word meets a condition. Not a loop in the protocol, so that the explorer can block on it, the simulator
    /// charges the READs of a polling client, shared memory spins and parks, and a server pushes.
    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>>;

    /// Sends `message` reliably, and in order per pair of peers. Ready when it has been sent.
    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>>;

    /// Sends `message` as a datagram: it may be lost, duplicated, delayed or reordered.
    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>>;

    /// Takes the first buffered or arriving message for which `pick` returns `Some`; the others stay buffered. `None` when
    /// `deadline` passes first. Cancel safe.
    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>>;

    /// Whether the mailbox is known to be empty, by one load. False also if the fabric cannot tell: then receive.
    #[inline(always)]
    fn has_no_mail(&self) -> bool {
        false
    }

    /// The time. A step of the explorer: a clock is shared state.
    fn now(&self) -> impl Future<Output = Time>;

    /// Whether `deadline` has passed. The explorer, which has no clock, explores both answers where a timeout may happen.
    fn passed(&self, deadline: Time) -> impl Future<Output = bool> {
        async move { self.now().await >= deadline }
    }

    /// Ready at `deadline`: raced against an acquire, it is a user's timeout. In the explorer it is ready at any step, or
    /// never; leases use deadlines instead.
    fn alarm(&self, deadline: Time) -> impl Future<Output = ()> {
        async move {
            loop {
                let left = deadline.since(self.now().await);
                if left == 0 {
                    return;
                }
                self.sleep(left).await;
            }
        }
    }

    /// Whether the fabric knows that `peer` is gone for good, so that nothing it began will take effect any more: on one host,
    /// its process has ended. Over a network this cannot be known, and the answer is always false.
    fn is_gone(&self, peer: PeerId) -> impl Future<Output = bool> {
        let _ = peer;
        std::future::ready(false)
    }

    /// Sleeps for `ns` nanoseconds. Ready at once in the explorer, where any time may pass between two steps: do not race it
    /// against something else.
    fn sleep(&self, ns: u64) -> impl Future<Output = ()>;

    /// Whether `peer` has died, or has been silent for long enough to be taken for dead. False on fabrics that cannot tell.
    /// The explorer knows crashed clients, and explores both answers about a paused one.
    fn suspects(&self, peer: PeerId) -> impl Future<Output = bool> {
        let _ = peer;
        std::future::ready(false)
    }

    /// A random number, from the fabric so that runs can be repeated. Only for backoff: the explorer returns zero, so no
    /// protocol may depend on it for safety.
    fn random(&self) -> u64;

    /// Tells the explorer that the client's future depends on `label` and `locals` only, not on the history since this
    /// acquire or release began. Put it at the head of retry loops, which would otherwise never reach a state twice. `locals`
    /// must hold everything that the code will still use: the explorer compares two histories with the same mark and reports
    /// an error if they continue differently. Free on other fabrics.
    #[inline(always)]
    fn mark(&self, label: &'static str, locals: &[u64]) {
        let _ = (label, locals);
    }

    /// As [`Endpoint::mark`], for the code that drives a lock client, between operations: no earlier history matters, and
    /// nothing is held.
    #[inline(always)]
    fn checkpoint(&self, label: &'static str, locals: &[u64]) {
        let _ = (label, locals);
    }

    /// Reports what this client does with a lock to checkers and recorders.
    #[inline(always)]
    fn observe(&self, observation: Observation) {
        let _ = observation;
    }

    /// [`Endpoint::recv_by`] without a deadline.
    fn recv<T>(&self, pick: impl FnMut(PeerId, &Message) -> Option<T>) -> impl Future<Output = T> {
        async {
            self.recv_by(Deadline::Never, pick)
                .await
                .expect("a receive without a deadline ends with a message")
        }
    }
}
