//! Real processes that are killed and stopped at random, for half a minute (`LOCKWRIGHT_STRESS_SECS` says otherwise).
//!
//! Eight of them take mutexes, reader-writer locks and ranges of one space in shared memory, and count in files that
//! refuse old tokens. What each of them noted is merged into one history and shown to the checkers that also judge the
//! explorer and the simulator; then the counters are looked at. The processes are this test's own binary, started again
//! with a task in the environment.

#![cfg(target_os = "linux")]

mod stress;

#[test]
fn processes_that_are_killed_and_stopped_lose_no_update() {
    if let Ok(task) = std::env::var(stress::TASK) {
        return stress::child::work(&task);
    }
    let seed = std::env::var("LOCKWRIGHT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let secs = std::env::var("LOCKWRIGHT_STRESS_SECS").ok().and_then(|secs| secs.parse().ok());
    let secs: u64 = secs.unwrap_or(30);
    println!(
        "seed {seed}, {secs} s; LOCKWRIGHT_SEED={seed} LOCKWRIGHT_STRESS_SECS={secs} repeats the choice of victims"
    );
    stress::Stress::start(seed).run_for(std::time::Duration::from_secs(secs)).judge();
}
