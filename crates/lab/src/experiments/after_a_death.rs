//! How long what a dead client held keeps those out who want it, in locks with membership.
//!
//! The dead client is dead from the beginning, with its lock, its record, or its place in the queue in memory as it left them. One
//! client asks for that. It waits for the time after which waiters look whether those they wait for are alive, and
//! repairs; others go on beside it, as many as there are. On a real fabric the server looks by itself, as soon as it has
//! destroyed the dead client's connection: so what is counted is the time from the first look.

use super::prelude::*;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Endpoint, NodeId};
use lockwright_locks::{Grant, LockClient, Protocol, Space, Want};
use lockwright_sim::case::Checks;
use lockwright_sim::{NicModel, Setup, SimEndpoint, Simulation};
use std::cell::Cell;
use std::rc::Rc;

/// After which a simulated waiter looks (`proofs`).
pub(super) const FIRST_LOOK_NS: u64 = 1_000_000;
/// Virtual time after which a run has failed.
const UNTIL_NS: u64 = 400_000_000;

/// Who takes part.
pub(super) struct Scene<'a, P: Protocol> {
    pub(super) space: Space,
    pub(super) params: &'a P::Params,
    pub(super) nic: NicModel,
    /// Clients, the one that asks for what the dead held included: it is the first.
    pub(super) clients: usize,
    /// Where each is at home.
    pub(super) home: &'a dyn Fn(usize) -> Option<NodeId>,
    /// What the dead held.
    pub(super) held: Want,
    /// What the others take and give back all the time.
    pub(super) beside: &'a dyn Fn(usize) -> Want,
    /// How long the others pause between two cycles; `None`: they do nothing.
    pub(super) think_ns: Option<u64>,
}

/// Microseconds from the first look until what the dead held is granted.
///
/// # Errors
/// What a checker objects to, or that nobody is granted it.
pub(super) fn recovery_us<P: Protocol>(scene: &Scene<'_, P>) -> Result<f64, LabError> {
    let name = P::INFO.name;
    let fail =
        |cause| LabError::failed(format!("{name}, {} clients after a death", scene.clients), name, cause, 1);
    let checks = Checks { finish: true, quiet: false, tokens: true, permits: false, bypass: None };
    let setup =
        Setup { clients: scene.clients, nic: scene.nic.clone(), checks, recovers: true, ..Setup::default() };
    let mut simulation = Simulation::<P>::new(scene.space, scene.params, setup, None);
    let granted_ns = Rc::new(Cell::new(None));
    for index in 0..scene.clients {
        let (granted_ns, think_ns) = (Rc::clone(&granted_ns), scene.think_ns);
        let want = if index == 0 { scene.held } else { (scene.beside)(index) };
        simulation.spawn((scene.home)(index), |ep, space, params| {
            let client = P::client(ep.clone(), space, params);
            async move {
                if index == 0 {
                    cycle(&ep, &client, want, |at_ns| granted_ns.set(Some(at_ns))).await;
                } else if let Some(think_ns) = think_ns {
                    while granted_ns.get().is_none() {
                        cycle(&ep, &client, want, |_| {}).await;
                        ep.sleep(1 + ep.random() % (2 * think_ns)).await;
                    }
                }
            }
        });
    }
    simulation.run(UNTIL_NS).map_err(fail)?;
    let granted_ns = granted_ns.get().map_or(f64::NAN, |ns: u64| ns as f64);
    Ok((granted_ns - FIRST_LOOK_NS as f64) / 1e3)
}

async fn cycle<C: LockClient>(ep: &SimEndpoint, client: &C, want: Want, granted: impl FnOnce(u64)) {
    ep.observe(Observation::Waiting(want.claim));
    let grant = client.acquire(want).await.expect("a node is never lost here");
    ep.observe(Observation::Granted(want.claim, grant.token()));
    granted(ep.true_now_ns());
    ep.observe(Observation::Releasing(want.claim));
    client.release(grant).await.expect("a node is never lost here");
}

/// A table of such times.
pub(super) fn recoveries() -> Table {
    Table::new("recovery", &["clients", "others", "recovery_us"])
}

/// One row of it.
pub(super) fn row(table: &mut Table, clients: usize, think_ns: Option<u64>, us: f64) {
    let others = think_ns.map_or("idle".to_owned(), |ns| format!("a cycle every {} us", ns / 1_000));
    table.row([clients.to_string(), others, format!("{us:.1}")]);
}

/// What is expected: idle clients cost one look; with busy ones, at most so many further looks.
pub(super) fn claims(idle_us: f64, busy_us: f64) -> Vec<Claim> {
    let within = |id: &str, most: f64, us: f64, note: &str| Claim {
        band: (0.0, most),
        ..Claim::new(id, 0.0, us).expected().note(note)
    };
    vec![
        within(
            "recovery-us-beside-idle-clients",
            FIRST_LOOK_NS as f64 / 1e3,
            idle_us,
            "from the first look on; one look is enough, a second one comes a millisecond later",
        ),
        within(
            "recovery-us-beside-busy-clients",
            20.0 * FIRST_LOOK_NS as f64 / 1e3,
            busy_us,
            "from the first look on; a record that changes meanwhile makes the repair begin again",
        ),
    ]
}
