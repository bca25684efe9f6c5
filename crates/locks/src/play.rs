//! Plays a script of acquires and releases with any protocol on any fabric, and tells the checkers about it.

use crate::case::Script;
use crate::protocol::{Grant, LockClient, Lost};
use lockwright_fabric::Endpoint;
use lockwright_fabric::observe::Observation;

/// Runs `script` to its end. Every round takes its locks in order and gives them back in reverse.
pub async fn play<E: Endpoint, C: LockClient>(ep: E, client: C, script: Script) {
    for (number, round) in script.rounds.iter().enumerate() {
        let mut locals = client.locals();
        locals.push(number as u64);
        ep.checkpoint("round", &locals);

        let mut held = Vec::new();
        for want in &round.wants {
            ep.observe(Observation::Waiting(want.claim));
            match client.acquire(*want).await {
                Ok(grant) => {
                    ep.observe(Observation::Granted(want.claim, grant.token()));
                    held.push((want.claim, grant));
                }
                Err(_) => {
                    ep.observe(Observation::GaveUp(want.claim));
                    break;
                }
            }
        }
        for (claim, grant) in held.into_iter().rev() {
            ep.observe(Observation::Releasing(claim));
            match client.release(grant).await {
                Ok(()) => {}
                Err(Lost::Recovered | Lost::Fabric(_)) => ep.observe(Observation::Lost(claim)),
            }
        }
    }
    ep.checkpoint("done", &client.locals());
}
