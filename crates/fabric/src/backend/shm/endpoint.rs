//! A client's endpoint: verbs executed at once by this CPU, messages through mailboxes.

use super::area::{Area, Words};
use super::client::Client;
use super::error::SpaceError;
use super::receive::Receive;
use super::send::Sending;
use super::shared::Handle;
use super::wait::Waiting;
use super::watch::Died;
use crate::addr::{Addr, NodeId, PeerId, RegionId, Value, Width};
use crate::backend::clock::Alarm;
use crate::backend::now::{Done, Now};
use crate::backend::run::rest_on;
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::verb::{Batch, Executor, RawVerb};
use crate::wait::{Deadline, Time, Wait, Waited};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Context, Poll};

/// Up to here a sleeper spins: putting a thread to sleep and waking it takes longer.
const SPIN_NS: u64 = 10_000;

/// One client of a [`ShmSpace`](super::ShmSpace).
///
/// A verb happens when `go` is called, and its future is ready at the first poll. Clones are the same client; when the
/// last one is dropped, the client leaves the space. An endpoint must not be used after a `fork`: the child is another
/// process, and joins for itself.
///
/// ```
/// use lockwright_fabric::backend::{block_on, shm::{ShmSpace, SpaceOptions}};
/// use lockwright_fabric::{Addr, Endpoint, NodeId, Word64};
///
/// # let path = std::env::temp_dir().join(format!("lockwright-doc-endpoint-{}.space", std::process::id()));
/// let space = ShmSpace::open(&path, &SpaceOptions::default())?;
/// let ep = space.endpoint()?;
/// let word = Word64::at(Addr::new(NodeId(0), 8));
/// assert_eq!(block_on(ep.go((word.fetch_add(5), word.read()))), Ok((0, 5)));
/// # ShmSpace::remove(&path)?;
/// # Ok::<_, lockwright_fabric::backend::shm::SpaceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShmEndpoint {
    /// Beside the client, though reachable through it: a verb's way to its word is short.
    areas: Arc<[Area]>,
    /// The client's standing in the table.
    standing: Words,
    hints: Words,
    expected: u64,
    me: PeerId,
    nodes: u16,
    regions: u16,
    client: Arc<Client>,
}

impl ShmEndpoint {
    pub(super) fn join(shared: &Arc<Handle>) -> Result<Self, SpaceError> {
        let client = Client::join(shared)?;
        let shape = &shared.layout.shape;
        Ok(Self {
            areas: Arc::clone(&shared.areas),
            standing: Words::new(&shared.map, shared.slot_at(client.joined.slot), 1),
            hints: shared.hints.clone(),
            expected: client.joined.standing.0,
            me: client.joined.peer,
            nodes: shape.nodes as u16,
            regions: shape.regions as u16,
            client,
        })
    }

    /// Whether this client is still in: nobody has declared it dead.
    #[inline(always)]
    pub fn is_member(&self) -> bool {
        self.standing.get(0).load(Relaxed) == self.expected
    }

    /// [`is_member`](Self::is_member), looked at after everything this thread did before.
    #[inline(always)]
    pub fn is_member_seq_cst(&self) -> bool {
        self.standing.get(0).load(SeqCst) == self.expected
    }

    /// Done when somebody declares this client dead.
    pub fn expelled(&self) -> Died {
        Died::new(&self.client.shared, self.me)
    }

    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Executes one verb and rings for those who waited for what it did.
    #[inline(always)]
    fn execute(&self, verb: RawVerb) -> u128 {
        let RawVerb { addr, width, op } = verb;
        let found = if addr.node.0 < self.nodes && addr.region.0 < self.regions {
            let index = addr.node.0 as usize * self.regions as usize + addr.region.0 as usize;
            self.areas.get(index).and_then(|area| area.execute(addr.offset, width, &op))
        } else {
            None
        };
        let Some((old, changed)) = found else { self.refuse(addr.node, addr.region, addr.offset, width) };
        if changed && super::park::is_awaited(&self.hints, addr) {
            self.call(addr.node, addr.region, addr.offset);
        }
        old
    }

    // The cold paths take an address in pieces: a whole one would go through memory, on the hot path too.

    #[cold]
    #[inline(never)]
    fn refuse(&self, node: NodeId, region: RegionId, offset: u64, width: Width) -> ! {
        self.client.shared.refuse(Addr { offset, node, region }, width)
    }

    #[cold]
    #[inline(never)]
    fn call(&self, node: NodeId, region: RegionId, offset: u64) {
        self.client.shared.call(Addr { offset, node, region });
    }
}

/// Executes a batch's verbs here and now, unless the client is out.
struct Direct<'a> {
    ep: &'a ShmEndpoint,
    out: bool,
}

impl Executor for Direct<'_> {
    #[inline(always)]
    fn execute(&mut self, verb: RawVerb) -> u128 {
        if self.out {
            return 0;
        }
        self.ep.execute(verb)
    }
}

impl Endpoint for ShmEndpoint {
    const IS_IMMEDIATE: bool = true;

    #[inline(always)]
    fn me(&self) -> PeerId {
        self.me
    }

    /// Node 0: verbs are instructions of this host's CPU.
    #[inline(always)]
    fn home(&self) -> Option<NodeId> {
        Some(NodeId(0))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    #[inline(always)]
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        let out = !self.is_member();
        let olds = batch.run(&mut Direct { ep: self, out });
        Done::new(olds, if out { Some(FabricError::Evicted) } else { None })
    }

    #[inline(always)]
    fn try_go<B: Batch>(&self, batch: B) -> Result<Result<B::Old, FabricError>, B> {
        if !self.is_member() {
            return Ok(Err(FabricError::Evicted));
        }
        Ok(Ok(batch.run(&mut Direct { ep: self, out: false })))
    }

    fn wait_until<T: Value>(&self, wait: Wait<T>) -> impl Future<Output = Result<Waited<T>, FabricError>> {
        Waiting::new(&self.client, wait)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        Sending::new(&self.client, to, &message)
    }

    /// Nothing is lost here, but a packet that cannot be delivered is, as on a network, not missed.
    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        let sending = Sending::new(&self.client, to, &message);
        async move {
            match sending.await {
                Err(FabricError::PeerLost(_)) => Ok(()),
                other => other,
            }
        }
    }

    #[inline(always)]
    fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> impl Future<Output = Option<T>> {
        Receive::new(&self.client, deadline, pick)
    }

    #[inline(always)]
    fn has_no_mail(&self) -> bool {
        self.client.has_no_letter()
    }

    /// CLOCK_MONOTONIC, the same for all processes of the host.
    fn now(&self) -> impl Future<Output = Time> {
        Now::new(self.client.shared.clock.now())
    }

    /// Whether its process is known to have ended, or it was declared dead. One system call.
    fn is_gone(&self, peer: PeerId) -> impl Future<Output = bool> {
        std::future::ready(!self.client.shared.still_alive(peer))
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        let until = self.client.shared.clock.now().plus(ns);
        Sleep { client: &self.client, until, ns, polled: false, alarm: None }
    }

    fn random(&self) -> u64 {
        self.client.random()
    }
}

/// The future of `sleep`.
#[derive(Debug)]
struct Sleep<'a> {
    client: &'a Client,
    until: Time,
    ns: u64,
    polled: bool,
    alarm: Option<Alarm>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.ns == 0 {
            return Poll::Ready(());
        }
        let clock = &this.client.shared.clock;
        loop {
            let left = this.until.since(clock.now());
            if left == 0 {
                return Poll::Ready(());
            }
            if this.ns <= SPIN_NS {
                std::hint::spin_loop();
                continue;
            }
            if !std::mem::replace(&mut this.polled, true) {
                // The first poll may come from a `block_on` that has made no waker yet.
                cx.waker().wake_by_ref();
            } else if !rest_on(cx.waker(), None, Some(left)) {
                clock.keep_alarm(&mut this.alarm, Deadline::At(this.until), cx);
            }
            return Poll::Pending;
        }
    }
}
