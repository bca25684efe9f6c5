//! Plays a script of acquires and releases with any protocol on any fabric, and tells the checkers about it.

use crate::case::Script;
use lockwright_fabric::observe::{Claim, Mode, Observation};
use lockwright_fabric::{Endpoint, Time};
use lockwright_locks::abandoned::AbandonedAcquires;
use lockwright_locks::{Change, Denied, Grant, LockClient};
use std::rc::Rc;

/// Runs `script` to its end. Every round takes its locks in order and gives them back in reverse. A client that
/// gives up while it waits leaves its acquire to [`AbandonedAcquires`] and goes on.
pub async fn play<E: Endpoint, C: LockClient + 'static>(ep: E, client: C, script: Script) {
    let client = Rc::new(client);
    let abandoned = AbandonedAcquires::default();
    for (number, round) in script.rounds.iter().enumerate() {
        let mut locals = client.locals();
        locals.push(number as u64);
        ep.checkpoint("round", &locals);

        let mut held = Vec::new();
        for want in &round.wants {
            ep.observe(Observation::Waiting(want.claim));
            let acquired = if round.cancellable {
                let acquire = AbandonedAcquires::owned(client.clone(), *want);
                abandoned
                    .drive_with(abandoned.acquire_or_abandon(acquire, ep.alarm(Time(1)), client.clone()))
                    .await
            } else {
                Some(abandoned.drive_with(client.acquire(*want)).await)
            };
            let Some(Ok(grant)) = acquired else {
                ep.observe(Observation::GaveUp(want.claim));
                break;
            };
            ep.observe(Observation::Granted(want.claim, grant.token()));
            held.push((vec![want.claim], grant));
        }
        if held.len() == round.wants.len() {
            for (place, change) in &round.changes {
                abandoned.drive_with(make_change(&ep, &*client, &mut held[*place], *change)).await;
            }
        }
        for (claims, grant) in held.into_iter().rev() {
            claims.iter().for_each(|claim| ep.observe(Observation::Releasing(*claim)));
            if abandoned.drive_with(client.release(grant)).await.is_err() {
                claims.iter().for_each(|claim| ep.observe(Observation::Lost(*claim)));
            }
        }
    }
    abandoned.finish().await;
    client.settle().await;
    ep.checkpoint("done", &client.locals());
}

/// Changes what is held, and says so in a way that leaves no moment in which it counts as neither old nor new.
async fn make_change<E: Endpoint, C: LockClient>(
    ep: &E,
    client: &C,
    (claims, grant): &mut (Vec<Claim>, C::Grant),
    change: Change,
) {
    let old = std::mem::take(claims);
    let in_mode = |mode| old.iter().map(|claim| Claim { mode, ..*claim }).collect::<Vec<_>>();
    let say = |claims: &[Claim], what: &dyn Fn(Claim) -> Observation| {
        claims.iter().for_each(|claim| ep.observe(what(*claim)));
    };
    match change {
        Change::Upgrade(_) => {
            let new = in_mode(Mode::Exclusive);
            say(&new, &Observation::Waiting);
            let upgraded = client.change(grant, change).await.is_ok();
            if upgraded {
                say(&new, &granted(grant.token()));
                say(&old, &Observation::Releasing);
                *claims = new;
            } else {
                say(&new, &Observation::GaveUp);
                *claims = old;
            }
        }
        Change::Downgrade => {
            say(&old, &Observation::Releasing);
            match client.change(grant, change).await {
                Ok(()) => {
                    *claims = in_mode(Mode::Shared);
                    say(claims, &granted(grant.token()));
                }
                // It was taken away, as its release will find.
                Err(Denied::Fabric(_)) => *claims = old,
                Err(denied) => panic!("what is held alone can be shared: {denied}"),
            }
        }
        Change::Shrink { start, end } => {
            let pieces = |claim: &Claim| {
                [(claim.start, claim.end.min(start)), (claim.start.max(end), claim.end)]
                    .map(|(start, end)| Claim { start, end, ..*claim })
            };
            *claims = old.iter().flat_map(pieces).filter(|claim| claim.start < claim.end).collect();
            say(claims, &granted(grant.token()));
            say(&old, &Observation::Releasing);
            client.change(grant, change).await.expect("a part of what is held can be given back");
        }
    }
}

fn granted(token: Option<u64>) -> impl Fn(Claim) -> Observation {
    move |claim| Observation::Granted(claim, token)
}
