//! A run: so many clients that acquire and release locks of one protocol until enough has been done.

use crate::case::Checks;
use crate::failure::{Cause, Failure, replay_line};
use crate::plan::Plan;
use crate::ranges::Picker;
use crate::report::Report;
use crate::rng::Rng;
use crate::simulation::Simulation;
use crate::tally::{Tally, Times};
use crate::world::{Progress, Setup, SimEndpoint};
use lockwright_fabric::observe::{Claim, Mode, Observation};
use lockwright_fabric::{Addr, Endpoint, NodeId, Verb, Word64};
use lockwright_locks::{Grant, LockClient, Lost, Protocol, Space};
use std::cell::RefCell;
use std::rc::Rc;

/// After the last client is done, what is still under way has this long to arrive before memory is looked at.
const SETTLE_NS: u64 = 50_000_000;

/// Runs `plan` with the protocol `P`.
///
/// Deterministic: the same plan and parameters give the same report, and a run that fails is repeated with a
/// timeline before the failure is handed back.
///
/// ```
/// use lockwright_baselines::mcs::Mcs;
/// use lockwright_sim::{Plan, run};
///
/// let plan = Plan { clients: 8, locks: 10, ops: 1_000, ..Plan::default() };
/// let report = run::<Mcs>(&plan, &()).unwrap();
/// assert_eq!(report.cycles, 1_000);
/// assert!(report.per_cycle.atomics < 2.0);
/// ```
///
/// # Errors
/// What a checker objects to, clients that never finish, or lock memory that is not free in the end; and plans
/// that make no sense.
pub fn run<P: Protocol>(plan: &Plan, params: &P::Params) -> Result<Report, Failure> {
    run_with::<P>(plan, params, &mut |_| {})
}

/// As [`run`], telling `progress` how far it is from time to time.
///
/// # Errors
/// As [`run`].
pub fn run_with<P: Protocol>(
    plan: &Plan,
    params: &P::Params,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Failure> {
    let fail = |cause, timeline: String| Failure {
        protocol: P::INFO.name,
        cause,
        seed: plan.seed,
        replay: replay::<P>(plan, params).into(),
        timeline: timeline.into(),
    };
    sensible::<P>(plan, params).map_err(|cause| fail(cause, String::new()))?;
    match once::<P>(plan, params, false, progress) {
        Ok(report) => Ok(report),
        Err((cause, _)) => {
            // The fast run kept no timeline. It happens again, exactly.
            let timeline = once::<P>(plan, params, true, &mut |_| {}).err().map(|(_, timeline)| timeline);
            Err(fail(cause, timeline.unwrap_or_default()))
        }
    }
}

fn replay<P: Protocol>(plan: &Plan, params: &P::Params) -> String {
    let mut line = replay_line(P::INFO.name, plan);
    if let Some(ranges) = &plan.ranges {
        line.push_str(&format!("   # with {ranges:?}"));
    }
    if plan.data {
        line.push_str("   # with data");
    }
    if format!("{params:?}") != format!("{:?}", P::Params::default()) {
        line.push_str(&format!("   # with {params:?}"));
    }
    line
}

fn sensible<P: Protocol>(plan: &Plan, params: &P::Params) -> Result<(), Cause> {
    let most = P::most_clients(params);
    if plan.clients > most {
        let problem = format!("{} has room for {most} clients, not for {}", P::INFO.name, plan.clients);
        return Err(Cause::BadPlan(problem));
    }
    let problem = if plan.clients == 0 {
        "a run needs clients"
    } else if plan.locks == 0 {
        "a run needs locks"
    } else if plan.nodes == 0 {
        "a run needs a memory node"
    } else if !(0.0..=100.0).contains(&plan.writes_percent) {
        "writes are between 0 and 100 percent"
    } else if !(0.0..=1.0).contains(&plan.abandon_rate) {
        "a chance lies between 0 and 1"
    } else if !plan.ranges.as_ref().is_none_or(|ranges| ranges.fit_locks(plan.locks)) {
        "a range has from one unit up to those of a lock"
    } else if plan.zipf.is_nan() || plan.zipf < 0.0 {
        "a Zipf exponent is zero or more"
    } else {
        return Ok(P::needs(params).met_by(P::INFO.name, plan.nic.offers)?);
    };
    Err(Cause::BadPlan(problem.to_owned()))
}

fn once<P: Protocol>(
    plan: &Plan,
    params: &P::Params,
    trace: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, (Cause, String)> {
    let units = plan.ranges.as_ref().map_or(1, |ranges| ranges.units);
    let space = Space::of(plan.locks).over(plan.nodes).units(units);
    let data_from = plan.data.then(|| P::bytes_per_node(&space, params).next_multiple_of(8));
    let offers = P::INFO.offers;
    let setup = Setup {
        seed: plan.seed,
        clients: plan.clients,
        nic: plan.nic.clone(),
        data_bytes: if plan.data { 8 + space.table_bytes(8) } else { 0 },
        faults: plan.faults.clone(),
        // Every range that was ever granted would have to be looked at for every grant.
        checks: Checks {
            finish: true,
            quiet: true,
            tokens: offers.tokens && plan.ranges.is_none(),
            permits: false,
            bypass: None,
        },
        recovers: offers.recovery,
        trace,
        ..Setup::default()
    };
    let mut simulation = Simulation::<P>::new(space, params, setup, None);
    simulation.world.on_progress(progress);
    let job = Rc::new(Job::new(plan, space, data_from));
    for (index, picker) in Picker::all(plan).into_iter().enumerate() {
        let home = (index < plan.local_clients).then(|| NodeId(index as u16 % plan.nodes));
        let rng = Rng::new(plan.seed, 1_000_000 + index as u64);
        let work = Work { picker, rng, job: Rc::clone(&job) };
        simulation.spawn(home, |ep, space, params| {
            let client = P::client(ep.clone(), space, params);
            work.run(ep, client)
        });
    }
    let watched = match plan.duration_ns.filter(|_| plan.cut_off) {
        Some(duration_ns) => simulation.world.run(duration_ns).map(|_| ()).map_err(Cause::Violation),
        None => watch_to_the_end(&mut simulation, plan).and_then(|()| all_free(&mut simulation, plan)),
    };
    match watched {
        Ok(()) => Ok(job.tally.borrow().report::<P>(plan, &simulation.world)),
        Err(cause) => {
            let word = if let Cause::NotFree { addr, .. } = cause { Some(addr) } else { None };
            Err((cause, simulation.world.timeline(word)))
        }
    }
}

fn watch_to_the_end<P: Protocol>(simulation: &mut Simulation<'_, P>, plan: &Plan) -> Result<(), Cause> {
    let ended = simulation.run(plan.max_virtual_ns);
    let world = &mut simulation.world;
    // A lock without recovery may hang after a crash: that is no news. Anything else is.
    let may_hang = !P::INFO.offers.recovery && world.counters().crashes > 0;
    if !(may_hang && matches!(ended, Err(Cause::Stuck { .. }))) {
        ended?;
    }
    world.drain(world.now_ns().saturating_add(SETTLE_NS)).map_err(Cause::Violation)?;
    world.finish().map_err(Cause::Violation)
}

/// After a run without faults, lock memory is as it was in the beginning.
fn all_free<P: Protocol>(simulation: &mut Simulation<'_, P>, plan: &Plan) -> Result<(), Cause> {
    let Simulation { world, space, params, initial } = simulation;
    let counters = world.counters();
    if counters.crashes + counters.pauses > 0
        || plan.abandon_rate > 0.0
        || !plan.faults.node_deaths.is_empty()
    {
        return Ok(());
    }
    world.with_memory(|memory| {
        let check = |(addr, is): (Addr, u64)| {
            let was = initial.get(&addr).copied().unwrap_or(0);
            let mask = if is == was { 0 } else { P::quiet_mask(space, params, addr) };
            if (is ^ was) & mask == 0 { Ok(()) } else { Err(Cause::NotFree { addr, was, is, mask }) }
        };
        if initial.is_empty() {
            memory.lock_words_set().try_for_each(check)
        } else {
            memory.lock_words().try_for_each(check)
        }
    })
}

/// What all clients are to do.
struct Job {
    writes: f64,
    abandons: f64,
    hold_ns: u64,
    between_ns: u64,
    space: Space,
    /// Where the words that locks protect begin.
    data_from: Option<u64>,
    tally: RefCell<Tally>,
}

impl Job {
    fn new(plan: &Plan, space: Space, data_from: Option<u64>) -> Self {
        Self {
            space,
            data_from,
            writes: plan.writes_percent / 100.0,
            abandons: plan.abandon_rate,
            hold_ns: plan.hold_ns,
            between_ns: plan.nic.cycle_overhead_ns + plan.think_ns,
            tally: RefCell::new(Tally::new(plan)),
        }
    }

    /// What the holder of `claim` does with the data.
    fn data(&self, claim: &Claim) -> Option<Verb<u64>> {
        let word = Word64::at(self.space.place(claim.lock, 8).plus(self.data_from?));
        // Zero, so that memory is in the end as it was.
        Some(if claim.mode == Mode::Exclusive { word.write(0) } else { word.read() })
    }
}

/// One client's work. Its future is most of what a client takes of the caches, so there is nothing in it that all have.
struct Work {
    picker: Picker,
    rng: Rng,
    job: Rc<Job>,
}

/// How often a client looks whether it is its turn.
const TURN_NS: u64 = 1_000;

impl Work {
    async fn run<C: LockClient>(mut self, ep: SimEndpoint, client: C) {
        loop {
            let is_due = {
                let mut tally = self.job.tally.borrow_mut();
                if tally.is_over(ep.true_now_ns()) {
                    return;
                }
                let is_due = self.picker.is_due(&tally.done);
                tally.to_start -= u64::from(is_due);
                is_due
            };
            if !is_due {
                ep.sleep(TURN_NS).await;
                continue;
            }
            let want = self.picker.pick(&mut self.rng, self.job.writes);
            let wanted_ns = ep.true_now_ns();
            ep.observe(Observation::Waiting(want.claim));
            let Ok(grant) = client.acquire(want).await else {
                ep.observe(Observation::GaveUp(want.claim));
                // A lost node stays lost: without a pause this client would ask for ever in no time.
                ep.sleep(self.job.between_ns.max(1)).await;
                continue;
            };
            let (first_ns, granted_ns) = (ep.first_answer_ns(), ep.true_now_ns());
            ep.observe(Observation::Granted(want.claim, grant.token()));
            if let Some(data) = self.job.data(&want.claim) {
                // A node that is lost is the release's business.
                let _ = ep.go(data).await;
            }
            let hold_ns = self.job.hold_ns + self.picker.hold_ns(&want);
            if hold_ns > 0 {
                ep.sleep(hold_ns).await;
            }
            if self.job.abandons > 0.0 && self.rng.chance(self.job.abandons) {
                ep.observe(Observation::Lost(want.claim));
                ep.sleep(self.job.between_ns.max(1)).await;
                continue;
            }
            let releasing_ns = ep.true_now_ns();
            ep.observe(Observation::Releasing(want.claim));
            if let Err(Lost::Recovered | Lost::Fabric(_)) = client.release(grant).await {
                ep.observe(Observation::Lost(want.claim));
            }
            ep.settle();
            let (released_first_ns, released_ns) = (ep.first_answer_ns(), ep.true_now_ns());
            let times =
                Times { wanted_ns, first_ns, granted_ns, releasing_ns, released_first_ns, released_ns };
            let mut tally = self.job.tally.borrow_mut();
            self.picker.is_done(&mut tally.done);
            if tally.cycle(want.claim.mode, self.picker.kind(), times) {
                tally.before = Some(ep.counters());
            }
            drop(tally);
            ep.spend(self.job.between_ns);
        }
    }
}
