//! What is said while etcd is gone: to those who hold locks, and to those who ask for them.

use crate::servers::{Cluster, PATIENCE, until_held};
use lockwright::{GuardState, TryLockError};
use std::time::{Duration, Instant};

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it takes too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_a_majority_of_etcd_nothing_new_is_granted_and_holders_are_told_and_it_heals() {
    let Some(mut cluster) = Cluster::start("majority") else { return };
    let (holder, other) = (cluster.client(), cluster.client());
    let guard = holder.mutex("held").unwrap().lock().wait().unwrap();
    let free = cluster.neighbour("held");
    drop(other.mutex(&free).unwrap().lock().wait().unwrap());
    until_held(&guard);
    (0..2).for_each(|at| cluster.members.kill(at));
    // Its server is certain for a while, then it is not; then the lease of its client is over.
    let mut seen = vec![GuardState::Held];
    until("the holder is told", || {
        let state = guard.state();
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        state != GuardState::Held
    });
    let mut why = String::new();
    until("nothing new is granted", || match other.mutex(&free).unwrap().try_lock().wait() {
        Err(TryLockError::Busy) => panic!("nobody has it"),
        Err(error) => {
            why = error.to_string();
            true
        }
        Ok(_) => false,
    });
    assert!(why.contains("the server answers") && why.contains("lease in etcd"), "{why}");
    let error = other.mutex(&free).unwrap().lock().wait().expect_err("nobody is certain").to_string();
    assert!(
        error.contains("certain of its lease in etcd") || error.contains("could not be reached"),
        "{error}"
    );
    until("the lock is lost", || {
        let state = guard.state();
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        state == GuardState::Lost
    });
    assert!(seen.len() <= 3, "nothing comes back: {seen:?}");
    assert_eq!(cluster.metric("lockwright_lease_seconds"), 0.0, "servers say so");
    let last = guard.token();
    drop(guard);
    (0..2).for_each(|at| cluster.members.restart(at));
    cluster.until_even();
    let mut again = None;
    until("it is granted again", || {
        again = other.mutex("held").unwrap().lock().wait().ok();
        again.is_some()
    });
    assert!(again.expect("granted").token() > last);
}
