//! Making things go wrong, as a [`FaultPlan`] orders: clients that crash or pause at a verb, packets that are
//! lost, doubled, late or overtaken, nodes that die, clocks that drift.
//!
//! A crashed client's operations pend for ever, which is what a crash looks like from inside; whoever drives
//! it looks at [`Faulty::has_crashed`]. Verbs are counted one by one, batches included, so a client can crash
//! in the middle of a batch: the verbs before have happened, the rest never leave. Waits and messages are not
//! counted.
//!
//! The layer has nobody to run things for it. A packet that is to arrive late is kept, and leaves with the
//! client's first operation after its time; one that is never followed by another operation is lost.

use super::{shape, verbs_of};
use crate::addr::{NodeId, PeerId, Value};
use crate::endpoint::{Endpoint, FabricError};
use crate::fault::{ClientFault, CrashPoint, FaultPlan};
use crate::message::Message;
use crate::random::{SplitMix, mix};
use crate::verb::{Batch, Olds, RawVerb};
use crate::wait::{Deadline, Time, Wait, Waited};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An endpoint on which things go wrong.
///
/// ```
/// use lockwright_fabric::backend::inproc::{InProc, block_on};
/// use lockwright_fabric::fault::{FaultPlan, NetworkFaults};
/// use lockwright_fabric::layer::Faulty;
/// use lockwright_fabric::{Deadline, Endpoint, Message, PeerId};
/// use std::sync::Arc;
///
/// let network = NetworkFaults { loss: 1.0, ..NetworkFaults::default() };
/// let plan = Arc::new(FaultPlan { network, ..FaultPlan::default() });
/// let fabric = InProc::new(1, 64);
/// let ep = Faulty::new(fabric.endpoint(PeerId::client(0)), plan, 1);
/// block_on(async {
///     ep.send_datagram(ep.me(), Message::new(0, 1, &[])).await.unwrap();
///     assert_eq!(ep.recv_by(Deadline::Now, |_, _| Some(())).await, None);
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Faulty<E> {
    inner: E,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    plan: Arc<FaultPlan>,
    /// Verbs issued so far.
    verbs: AtomicU64,
    crashed: AtomicBool,
    random: Mutex<SplitMix>,
    held: Mutex<Vec<Held>>,
    /// How much faster this client's clock runs.
    drift_ppm: i64,
}

/// A packet that is kept back.
#[derive(Debug)]
struct Held {
    until: Until,
    to: PeerId,
    message: Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Another packet has been sent.
    Overtaken,
    /// The time has come.
    At(Time),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Crash(CrashPoint),
    Pause(CrashPoint, u64),
}

impl<E: Endpoint> Faulty<E> {
    /// Lets `plan` happen to the client of `inner`. `seed` decides what is left to chance.
    pub fn new(inner: E, plan: Arc<FaultPlan>, seed: u64) -> Self {
        let mut random = SplitMix::new(mix(seed) ^ u64::from(inner.me().0));
        let spread = i64::from(plan.clock_drift_ppm);
        let drift_ppm = if spread == 0 { 0 } else { random.below(2 * spread as u64 + 1) as i64 - spread };
        let state = State {
            plan,
            verbs: AtomicU64::new(0),
            crashed: AtomicBool::new(false),
            random: Mutex::new(random),
            held: Mutex::default(),
            drift_ppm,
        };
        Self { inner, state: Arc::new(state) }
    }

    /// Whether the client has crashed: none of its operations will ever end.
    pub fn has_crashed(&self) -> bool {
        self.state.crashed.load(SeqCst)
    }

    /// Goes on only if the client is alive.
    async fn alive(&self) {
        if self.has_crashed() {
            std::future::pending::<()>().await;
        }
    }

    async fn crash(&self) -> Infallible {
        self.state.crashed.store(true, SeqCst);
        std::future::pending().await
    }

    /// Whether `node` is dead by now.
    async fn is_dead(&self, node: NodeId) -> bool {
        match self.state.death_of(node) {
            Some(death) => self.inner.now().await >= death,
            None => false,
        }
    }

    /// Executes `verbs` and adds what they found to `olds`.
    async fn part(&self, verbs: &[RawVerb], olds: &mut Olds) -> Result<(), FabricError> {
        let Some(first) = verbs.first() else { return Ok(()) };
        if self.is_dead(first.addr.node).await {
            return Err(FabricError::NodeLost(first.addr.node));
        }
        olds.extend(self.inner.go(verbs).await?);
        Ok(())
    }

    /// Sends the kept packets that `is_due` names.
    async fn let_go(&self, is_due: impl Fn(Until) -> bool) -> Result<(), FabricError> {
        let due: Vec<_> = self.state.held().extract_if(.., |held| is_due(held.until)).collect();
        for Held { to, message, .. } in due {
            self.inner.send_datagram(to, message).await?;
        }
        Ok(())
    }

    /// Every operation begins here: a crashed client does nothing, and late packets leave.
    async fn begin(&self) {
        self.alive().await;
        if self.state.held().iter().any(|held| held.until != Until::Overtaken) {
            let now = self.inner.now().await;
            // A packet that cannot be sent is a packet lost.
            let _ = self.let_go(|until| matches!(until, Until::At(time) if time <= now)).await;
        }
    }
}

impl State {
    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn random(&self) -> MutexGuard<'_, SplitMix> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self, rate: f64) -> bool {
        rate > 0.0 && self.random().chance(rate)
    }

    fn extra_delay_ns(&self) -> u64 {
        match self.plan.network.extra_delay_ns {
            0 => 0,
            most => self.random().below(most.saturating_add(1).max(1)),
        }
    }

    fn death_of(&self, node: NodeId) -> Option<Time> {
        self.plan.node_deaths.iter().filter(|(dead, _)| *dead == node).map(|(_, at)| Time(*at)).min()
    }

    /// What goes wrong at this client's verb number `verb`.
    fn fault_at(&self, client: PeerId, verb: u64) -> Option<Fault> {
        let hits = |fault: &ClientFault| fault.client == client && fault.verb == verb;
        if let Some(crash) = self.plan.crashes.iter().find(|crash| hits(crash)) {
            return Some(Fault::Crash(crash.when));
        }
        if let Some(pause) = self.plan.pauses.iter().find(|pause| hits(&pause.at)) {
            return Some(Fault::Pause(pause.at.when, pause.ns));
        }
        let FaultPlan { crash_rate, pause_rate, pause_ns, .. } = *self.plan;
        let either = |coin: bool| if coin { CrashPoint::Before } else { CrashPoint::After };
        if self.chance(crash_rate) {
            return Some(Fault::Crash(either(self.random().chance(0.5))));
        }
        self.chance(pause_rate).then(|| Fault::Pause(either(self.random().chance(0.5)), pause_ns))
    }

    /// What this client's clock shows at the true time.
    fn shown(&self, time: Time) -> Time {
        Time(scale(time.0, 1_000_000 + self.drift_ppm, 1_000_000))
    }

    /// The first true time at which this client's clock shows `time`, or so many nanoseconds more.
    fn truly(&self, ns: u64) -> u64 {
        if self.drift_ppm == 0 {
            ns
        } else {
            scale(ns, 1_000_000, 1_000_000 + self.drift_ppm).saturating_add(1)
        }
    }

    fn true_deadline(&self, deadline: Deadline) -> Deadline {
        match deadline {
            Deadline::At(time) => Deadline::At(Time(self.truly(time.0))),
            other => other,
        }
    }
}

fn scale(ns: u64, by: i64, over: i64) -> u64 {
    let scaled = u128::from(ns) * by.max(1).unsigned_abs() as u128 / over.max(1).unsigned_abs() as u128;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

impl<E: Endpoint> Endpoint for Faulty<E> {
    crate::delegate!(inner: me home capabilities suspects random mark checkpoint observe);

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        self.begin().await;
        let verbs = verbs_of(batch);
        let first = self.state.verbs.fetch_add(verbs.len() as u64, SeqCst);
        let (mut olds, mut done) = (Olds::new(), 0);
        for (index, number) in (first..).take(verbs.len()).enumerate() {
            let Some(fault) = self.state.fault_at(self.me(), number) else { continue };
            let (Fault::Crash(when) | Fault::Pause(when, _)) = fault;
            let cut = if when == CrashPoint::Before { index } else { index + 1 };
            let lost = self.part(&verbs[done..cut], &mut olds).await;
            done = cut;
            match fault {
                Fault::Crash(_) => match self.crash().await {},
                Fault::Pause(_, ns) => self.inner.sleep(ns).await,
            }
            lost?;
        }
        let rest = self.part(&verbs[done..], &mut olds).await;
        self.alive().await;
        rest.map(|()| shape(batch, &olds))
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        self.begin().await;
        let node = wait.word.addr().node;
        let deadline = self.state.true_deadline(wait.deadline);
        // A node that dies ends the waits for its words.
        let until = match (self.state.death_of(node), deadline) {
            (Some(death), Deadline::Never) => Deadline::At(death),
            (Some(death), Deadline::At(time)) => Deadline::At(death.min(time)),
            (_, other) => other,
        };
        if self.is_dead(node).await {
            return Err(FabricError::NodeLost(node));
        }
        let end = self.inner.wait_until(wait.by(until)).await;
        self.alive().await;
        if end.is_ok_and(|end| !end.met) && self.is_dead(node).await {
            return Err(FabricError::NodeLost(node));
        }
        end
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.begin().await;
        let delay_ns = self.state.extra_delay_ns();
        if delay_ns > 0 {
            self.inner.sleep(delay_ns).await;
        }
        let sent = self.inner.send(to, message).await;
        self.alive().await;
        sent
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.begin().await;
        let network = self.state.plan.network;
        if self.state.chance(network.loss) {
            return Ok(());
        }
        let copies = if self.state.chance(network.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let delay_ns = self.state.extra_delay_ns();
            let held = if self.state.chance(network.reorder) {
                Some(Until::Overtaken)
            } else if delay_ns > 0 {
                Some(Until::At(self.inner.now().await.plus(delay_ns)))
            } else {
                None
            };
            if let Some(until) = held {
                self.state.held().push(Held { until, to, message: message.clone() });
            } else {
                self.inner.send_datagram(to, message.clone()).await?;
                self.let_go(|until| until == Until::Overtaken).await?;
            }
        }
        self.alive().await;
        Ok(())
    }

    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        self.begin().await;
        let taken = self.inner.recv_by(self.state.true_deadline(deadline), pick).await;
        self.alive().await;
        taken
    }

    async fn now(&self) -> Time {
        self.begin().await;
        self.state.shown(self.inner.now().await)
    }

    async fn passed(&self, deadline: Time) -> bool {
        self.begin().await;
        self.inner.passed(Time(self.state.truly(deadline.0))).await
    }

    async fn is_gone(&self, peer: PeerId) -> bool {
        self.begin().await;
        self.inner.is_gone(peer).await
    }

    async fn sleep(&self, ns: u64) {
        self.begin().await;
        self.inner.sleep(self.state.truly(ns)).await;
        self.alive().await;
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
