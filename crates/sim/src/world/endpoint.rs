//! The simulator's endpoint: what a client's future sees of the world.
//!
//! Futures here need no wakers. A client is polled whenever something of its own has come to an end, and each
//! future then looks whether it was meant.

use super::core::{BatchBuilder, Core, OpId, Polling};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{
    Batch, Capabilities, Deadline, Endpoint, FabricError, Message, NodeId, PeerId, Time, Value, Wait, Waited,
};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A client that asks the time or its mailbox so often without anything else happening is made to wait.
const INSTANT_LIMIT: u32 = 1_000;
/// For this long.
const INSTANT_PAUSE_NS: u64 = 1_000;

/// One simulated client's access to the fabric. Made by [`World::spawn`](super::World::spawn).
///
/// Messages to a client that crashed or ended vanish without an error, as a network's do: a protocol has to
/// live with that, and a kinder answer would hide it.
#[derive(Clone, Debug)]
pub struct SimEndpoint {
    core: Rc<RefCell<Core>>,
    index: u32,
    home: Option<NodeId>,
    offers: Capabilities,
}

impl SimEndpoint {
    pub(crate) fn new(core: Rc<RefCell<Core>>, index: u32, home: Option<NodeId>) -> Self {
        let offers = core.borrow().model.offers;
        Self { core, index, home, offers }
    }

    /// Virtual time as it is, without this client's drift: for harnesses that measure.
    pub fn true_now_ns(&self) -> u64 {
        let core = self.core.borrow();
        core.clients[self.index as usize].busy_until_ns.max(core.now_ns)
    }

    /// When the first verb since the client last said that it acquires or releases was answered; now, if none was.
    pub fn first_answer_ns(&self) -> u64 {
        match self.core.borrow().clients[self.index as usize].first_answer_ns {
            0 => self.true_now_ns(),
            ns => ns,
        }
    }

    /// What the client said it does is done: a release that took no verb, for one.
    pub fn settle(&self) {
        self.core.borrow_mut().settle(self.index);
    }

    /// What was counted in the whole world so far.
    pub fn counters(&self) -> super::Counters {
        self.core.borrow().counters.clone()
    }

    /// The client computes for `ns`: whatever it starts next leaves so much later. Cheaper than a sleep, and
    /// the same to the other clients, as long as it does not look at the clock or its mailbox first.
    pub fn spend(&self, ns: u64) {
        let mut core = self.core.borrow_mut();
        let now_ns = core.now_ns;
        let client = &mut core.clients[self.index as usize];
        client.busy_until_ns = client.busy_until_ns.max(now_ns) + ns;
    }

    /// The client's clock: true time and its drift.
    fn clock(&self) -> u64 {
        let core = self.core.borrow();
        let client = &core.clients[self.index as usize];
        let true_ns = client.busy_until_ns.max(core.now_ns);
        drifted(true_ns, client.drift_ppb)
    }

    /// True nanoseconds that pass while the client's clock does `ns`.
    fn true_ns(&self, ns: u64) -> u64 {
        match self.core.borrow().clients[self.index as usize].drift_ppb {
            0 => ns,
            ppb => (u128::from(ns) * 1_000_000_000 / (1_000_000_000 + i128::from(ppb)) as u128) as u64,
        }
    }

    fn sleep_true(&self, ns: u64) -> Pending<'_> {
        Pending { ep: self, op: self.core.borrow_mut().start_sleep(self.index, ns), open: true }
    }

    /// Time until the client's clock shows `at`.
    fn until(&self, at: Time) -> u64 {
        self.true_ns(at.0.saturating_sub(self.clock()))
    }

    /// Keeps a client that never waits from stopping the world.
    async fn yield_now(&self) {
        let too_often = {
            let mut core = self.core.borrow_mut();
            let client = &mut core.clients[self.index as usize];
            client.instant += 1;
            client.instant > INSTANT_LIMIT
        };
        if too_often {
            self.sleep_true(INSTANT_PAUSE_NS).await;
        }
    }

    async fn transmit(&self, to: PeerId, message: Message, datagram: bool) -> Result<(), FabricError> {
        let sent = self.core.borrow_mut().client_send(self.index, to, message, datagram);
        match sent {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// A wait on a word of the client's own node: a CPU that spins on its cache costs the network nothing.
    async fn wait_at_home<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let value = self.go(wait.word.read()).await?;
        let met = wait.met_by(value);
        let timeout_ns = match wait.deadline {
            _ if met => return Ok(Waited { value, met, polls: 0 }),
            Deadline::Now => return Ok(Waited { value, met, polls: 0 }),
            Deadline::At(at) => Some(self.until(at)),
            Deadline::Never => None,
        };
        let mut change = {
            let at = (wait.word.addr(), T::WIDTH);
            let op = self.core.borrow_mut().start_local_wait(self.index, at, wait.cond, wait.or);
            Pending { ep: self, op, open: true }
        };
        let mut timeout = timeout_ns.map(|ns| self.sleep_true(ns));
        let seen = std::future::poll_fn(|cx| {
            if let Poll::Ready(seen) = Pin::new(&mut change).poll(cx) {
                return Poll::Ready(seen);
            }
            match &mut timeout {
                Some(timeout) => Pin::new(timeout).poll(cx).map(|_| None),
                None => Poll::Pending,
            }
        })
        .await;
        match seen {
            Some(value) => Ok(Waited { value: T::narrow(value), met: true, polls: 0 }),
            None => Ok(Waited { value: self.go(wait.word.read()).await?, met: false, polls: 0 }),
        }
    }
}

fn drifted(true_ns: u64, ppb: i64) -> u64 {
    if ppb == 0 {
        return true_ns;
    }
    (i128::from(true_ns) + i128::from(true_ns) * i128::from(ppb) / 1_000_000_000) as u64
}

impl Endpoint for SimEndpoint {
    fn me(&self) -> PeerId {
        PeerId::client(self.index as usize)
    }

    fn home(&self) -> Option<NodeId> {
        self.home
    }

    fn capabilities(&self) -> Capabilities {
        self.offers
    }

    #[inline]
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        BatchFuture { ep: self, batch, op: None }
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        if self.home == Some(wait.word.addr().node) {
            return self.wait_at_home(wait).await;
        }
        let pace_ns = if wait.pace_ns == 0 { self.core.borrow().model.poll_ns } else { wait.pace_ns };
        let polling = Polling {
            cond: wait.cond,
            or: wait.or,
            pace_ns: self.true_ns(pace_ns),
            deadline_ns: match wait.deadline {
                Deadline::Never => u64::MAX,
                Deadline::Now => 0,
                Deadline::At(at) => self.true_now_ns() + self.until(at),
            },
            polls: 0,
        };
        let verb = wait.word.read().raw();
        let op = self.core.borrow_mut().start_poll(self.index, verb, polling);
        let Some(op) = op else { return std::future::pending().await };
        let (seen, polls) = Pending { ep: self, op, open: true }.polled().await?;
        let value = T::narrow(seen);
        Ok(Waited { value, met: wait.met_by(value), polls })
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.transmit(to, message, false).await
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.transmit(to, message, true).await
    }

    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        let mut mail = ReceiveFuture { ep: self, pick, seen: 0 };
        let timeout_ns = match deadline {
            Deadline::Never => None,
            Deadline::Now => {
                self.yield_now().await;
                return mail.look();
            }
            Deadline::At(at) => Some(self.until(at)),
        };
        let mut timeout = None;
        std::future::poll_fn(|cx| {
            if let Some(taken) = mail.look() {
                return Poll::Ready(Some(taken));
            }
            let Some(ns) = timeout_ns else { return Poll::Pending };
            let timeout = timeout.get_or_insert_with(|| self.sleep_true(ns));
            Pin::new(timeout).poll(cx).map(|_| None)
        })
        .await
    }

    async fn now(&self) -> Time {
        self.yield_now().await;
        Time(self.clock())
    }

    async fn sleep(&self, ns: u64) {
        self.sleep_true(self.true_ns(ns)).await;
    }

    fn random(&self) -> u64 {
        self.core.borrow_mut().clients[self.index as usize].rng.bits()
    }

    #[inline(always)]
    fn observe(&self, what: Observation) {
        self.core.borrow_mut().observe(self.index, what);
    }
}

/// A batch under way.
struct BatchFuture<'a, B> {
    ep: &'a SimEndpoint,
    batch: B,
    op: Option<OpId>,
}

// Nothing in it is ever pinned: verbs are values.
impl<B> Unpin for BatchFuture<'_, B> {}

impl<B: Batch> Future for BatchFuture<'_, B> {
    type Output = Result<B::Old, FabricError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut core = this.ep.core.borrow_mut();
        if this.op.is_none() {
            let batch = this.batch;
            this.op = core.start_batch(this.ep.index, |verbs| list(batch, verbs));
        }
        let Some(op) = this.op else { return Poll::Pending };
        let state = core.op(op);
        if !state.done {
            return Poll::Pending;
        }
        let outcome = match state.error {
            Some(lost) => Err(lost),
            None => {
                let mut at = 0;
                Ok(this.batch.each(&mut |_| {
                    at += 1;
                    core.old(op, at - 1)
                }))
            }
        };
        this.op = None;
        core.free_op(op);
        Poll::Ready(outcome)
    }
}

/// Appends the verbs of `batch`; the answers it shapes here are nobody's.
#[inline]
fn list<B: Batch>(batch: B, verbs: &mut BatchBuilder<'_>) {
    batch.each(&mut |verb| {
        verbs.add(verb);
        0
    });
}

impl<B> Drop for BatchFuture<'_, B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(op) = self.op {
            self.ep.core.borrow_mut().abandon(op);
        }
    }
}

/// A sleep, or a wait at home: ready when its operation is, with what was seen, if anything.
struct Pending<'a> {
    ep: &'a SimEndpoint,
    op: OpId,
    open: bool,
}

impl Pending<'_> {
    /// Ends a wait that polls: what it saw last, and how many READs it took.
    async fn polled(mut self) -> Result<(u128, u32), FabricError> {
        std::future::poll_fn(|_| if self.is_done() { Poll::Ready(()) } else { Poll::Pending }).await;
        let mut core = self.ep.core.borrow_mut();
        let (error, polls) = (core.op(self.op).error, core.polls(self.op));
        let seen = core.op(self.op).first_old();
        core.free_op(self.op);
        drop(core);
        self.open = false;
        match error {
            Some(lost) => Err(lost),
            None => Ok((seen.expect("a READ was answered"), polls)),
        }
    }

    fn is_done(&self) -> bool {
        self.ep.core.borrow().op(self.op).done
    }
}

impl Future for Pending<'_> {
    type Output = Option<u128>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u128>> {
        let this = self.get_mut();
        let mut core = this.ep.core.borrow_mut();
        if !core.op(this.op).done {
            return Poll::Pending;
        }
        let seen = core.op(this.op).first_old();
        core.free_op(this.op);
        this.open = false;
        Poll::Ready(seen)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.open {
            self.ep.core.borrow_mut().abandon(self.op);
        }
    }
}

/// A look into the mailbox. Every message is shown to `pick` once.
struct ReceiveFuture<'a, F> {
    ep: &'a SimEndpoint,
    pick: F,
    seen: u64,
}

impl<F> ReceiveFuture<'_, F> {
    fn look<T>(&mut self) -> Option<T>
    where
        F: FnMut(PeerId, &Message) -> Option<T>,
    {
        let mut core = self.ep.core.borrow_mut();
        let mailbox = &mut core.clients[self.ep.index as usize].mailbox;
        let first = mailbox.partition_point(|(seq, ..)| *seq <= self.seen);
        for at in first..mailbox.len() {
            let (seq, from, message) = &mailbox[at];
            self.seen = *seq;
            if let Some(taken) = (self.pick)(*from, message) {
                mailbox.remove(at);
                return Some(taken);
            }
        }
        None
    }
}
