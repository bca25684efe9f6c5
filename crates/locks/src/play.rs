//! Plays a script of acquires and releases with any protocol on any fabric, and tells the checkers about it.

use crate::case::Script;
use crate::orphans::Orphans;
use crate::protocol::{Grant, LockClient};
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Endpoint, Time};
use std::rc::Rc;

/// Runs `script` to its end. Every round takes its locks in order and gives them back in reverse. A client that
/// gives up while it waits leaves its acquire to [`Orphans`] and goes on.
pub async fn play<E: Endpoint, C: LockClient + 'static>(ep: E, client: C, script: Script) {
    let client = Rc::new(client);
    let orphans = Orphans::default();
    for (number, round) in script.rounds.iter().enumerate() {
        let mut locals = client.locals();
        locals.push(number as u64);
        ep.checkpoint("round", &locals);

        let mut held = Vec::new();
        for want in &round.wants {
            ep.observe(Observation::Waiting(want.claim));
            let acquired = if round.cancellable {
                let acquire = Orphans::owned(client.clone(), *want);
                orphans.beside(orphans.unless(acquire, ep.alarm(Time(1)), client.clone())).await
            } else {
                Some(orphans.beside(client.acquire(*want)).await)
            };
            let Some(Ok(grant)) = acquired else {
                ep.observe(Observation::GaveUp(want.claim));
                break;
            };
            ep.observe(Observation::Granted(want.claim, grant.token()));
            held.push((want.claim, grant));
        }
        for (claim, grant) in held.into_iter().rev() {
            ep.observe(Observation::Releasing(claim));
            if orphans.beside(client.release(grant)).await.is_err() {
                ep.observe(Observation::Lost(claim));
            }
        }
    }
    orphans.finish().await;
    client.settle().await;
    ep.checkpoint("done", &client.locals());
}
