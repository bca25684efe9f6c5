//! The endpoint: everything a lock protocol may do, and the only thing it sees of the world.

use crate::addr::{NodeId, PeerId, Value};
use crate::capability::Capabilities;
use crate::message::Message;
use crate::observe::Observation;
use crate::verb::Batch;
use crate::wait::{Deadline, Time, Wait, Waited};

/// Why a verb or a message did not happen.
///
/// Aligned to eight bytes so that results which carry it are copied in whole words: pieces of four that are read back
/// as eight stall the CPU for longer than an uncontended lock takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32, align(8))]
pub enum FabricError {
    /// The node that owns the memory cannot be reached. Whether the verb happened is not known.
    #[error("memory node {} cannot be reached", .0.0)]
    NodeLost(NodeId),
    /// The peer cannot be reached. Whether the message arrived is not known.
    #[error("peer {0} cannot be reached")]
    PeerLost(PeerId),
    /// This client was declared dead by others, who may have taken its locks: it is out, and nothing it asks for is
    /// done any more.
    #[error("this client was declared dead by others and is out of the lock space")]
    Evicted,
}

/// One client's access to the fabric.
///
/// A protocol is generic over this trait and nothing else; see the crate's documentation for the places it
/// runs in. Cloning an endpoint is cheap and gives the same client. Futures must be polled to take effect and
/// may be joined: two `go`s in flight at once execute in any order.
///
/// What one client awaits takes effect in program order, and so do the verbs of a batch: a READ that begins after a
/// WRITE or an atomic was awaited sees memory after it, on whichever words. Peterson's lock rests on it (a store, then a
/// load of another word, with nothing in between that could let the load pass). Backends on CPUs therefore execute every
/// verb with sequentially consistent instructions; on a NIC it is the order of one queue pair.
///
/// `Send` is left out on purpose: futures of a backend for threads come out `Send` by themselves, and the
/// simulator stays single-threaded.
pub trait Endpoint: Clone + 'static {
    /// Whether verbs take no waiting: they are instructions of this CPU, and [`try_go`](Endpoint::try_go) never
    /// hands them back.
    const IS_IMMEDIATE: bool = false;

    /// Who this is.
    fn me(&self) -> PeerId;

    /// The node this client runs on, if that node owns lock memory: verbs there are CPU instructions.
    fn home(&self) -> Option<NodeId> {
        None
    }

    /// What this fabric can do.
    fn capabilities(&self) -> Capabilities;

    /// Executes `batch` in order at one node, in one round trip, and returns every old word.
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>>;

    /// Executes `batch` here and now, where that takes no waiting: verbs that are instructions of this CPU. Everywhere
    /// else it is handed back and has to [`go`](Endpoint::go). The same verbs either way; what is saved is a future to
    /// keep them in.
    ///
    /// # Errors
    /// The batch, untouched, where it would have to be waited for.
    #[inline(always)]
    fn try_go<B: Batch>(&self, batch: B) -> Result<Result<B::Old, FabricError>, B> {
        Err(batch)
    }

    /// Waits until a word meets a condition. Not a loop in the protocol: the explorer blocks on it, the
    /// simulator charges the READs a client would make, shared memory spins and parks, a server may push.
    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>>;

    /// Sends `message` reliably and in order (per pair of peers). Done when it has left.
    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>>;

    /// Sends `message` as a packet that may be lost, doubled, delayed or overtaken.
    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>>;

    /// Takes the first buffered or arriving message for which `pick` returns something and leaves the rest
    /// buffered; `None` when `deadline` passes first. Takes nothing if the future is dropped.
    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>>;

    /// Whether a receive with [`Deadline::Now`] would find nothing, where one load can tell. False also where it cannot:
    /// then receive.
    #[inline(always)]
    fn has_no_mail(&self) -> bool {
        false
    }

    /// The time. A step of its own: a clock is shared state.
    fn now(&self) -> impl Future<Output = Time>;

    /// Whether the clock has come to `deadline`. The explorer, which has no clock, answers both ways wherever a
    /// timeout may happen.
    fn passed(&self, deadline: Time) -> impl Future<Output = bool> {
        async move { self.now().await >= deadline }
    }

    /// Done when the clock comes to `deadline`: raced against an acquire, it is a user who gives up. In the
    /// explorer it rings at any moment, or never; leases go by deadlines instead.
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

    /// Whether the fabric knows that `peer` is gone for good: nothing it began will happen any more. On one host that is
    /// the end of its process; over a network nobody can know it, and the answer is always no.
    fn is_gone(&self, peer: PeerId) -> impl Future<Output = bool> {
        let _ = peer;
        std::future::ready(false)
    }

    /// Lets `ns` nanoseconds pass. The explorer lets any time pass between two steps anyway, so there it is over at
    /// once: never race it against something else.
    fn sleep(&self, ns: u64) -> impl Future<Output = ()>;

    /// Whether `peer` has died, or has been silent for so long that others may take it for dead. Fabrics that cannot tell
    /// suspect nobody; a space that can has its own ways. The explorer knows who has crashed, and answers both ways about
    /// somebody who is paused.
    fn suspects(&self, peer: PeerId) -> impl Future<Output = bool> {
        let _ = peer;
        std::future::ready(false)
    }

    /// A random number, from the fabric so that runs can be repeated. Only for spreading waits: the explorer
    /// returns zero, so no protocol may rest its safety on it.
    fn random(&self) -> u64;

    /// Tells the explorer that, of everything that happened since this acquire or release began, nothing but
    /// `label` and `locals` matters from here on. Put it at retry heads, where loops would otherwise never meet
    /// a state they had before. Everything the code will still use must be in `locals` (the explorer compares
    /// two histories that reach the same mark and objects if they go on differently). Costs nothing elsewhere.
    #[inline(always)]
    fn mark(&self, label: &'static str, locals: &[u64]) {
        let _ = (label, locals);
    }

    /// As [`Endpoint::mark`], for whoever drives a lock client: nothing that happened before matters, nothing is
    /// held, but `label` and `locals`.
    #[inline(always)]
    fn checkpoint(&self, label: &'static str, locals: &[u64]) {
        let _ = (label, locals);
    }

    /// Tells whoever watches what this client does with a lock.
    #[inline(always)]
    fn observe(&self, what: Observation) {
        let _ = what;
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
