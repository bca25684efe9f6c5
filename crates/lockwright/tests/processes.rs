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

#[test]
#[should_panic(expected = "mutual exclusion")]
fn a_history_in_which_two_ranges_overlap_is_refused() {
    let one = "1 G range x 0 4 7\n5 R\n6 U held\n";
    let other = "2 G range s 3 6 8\n3 R\n4 U held\n";
    stress::judge_told("overlap", &[one, other]);
}

#[test]
fn a_history_in_which_two_ranges_only_touch_is_fine() {
    let one = "1 G range x 0 4 7\n5 R\n6 U held\n";
    let other = "2 G range x 4 6 8\n3 R\n4 U held\n";
    stress::judge_told("touch", &[one, other]);
}

#[test]
#[should_panic(expected = "token")]
fn a_history_in_which_a_token_falls_is_refused() {
    let one = "1 G range x 0 4 9\n2 R\n3 U held\n";
    let other = "4 G range x 3 6 8\n5 R\n6 U held\n";
    stress::judge_told("token", &[one, other]);
}

#[test]
fn a_history_of_changes_with_nobody_in_between_is_fine() {
    let one = "1 G range s 0 9 1\n5 X 0 3\n6 V 4 6\n7 D 6\n8 d 6 4\n20 R\n21 U held\n";
    let other = "2 G range s 0 9 2\n3 R\n4 U held\n9 G range s 6 9 5\n10 R\n11 U held\n12 G range x 4 6 6\n13 R\n14 U held\n";
    stress::judge_told("changes", &[one, other]);
}

#[test]
#[should_panic(expected = "mutual exclusion")]
fn a_history_in_which_a_writer_comes_before_an_upgrade_is_done_is_refused() {
    let one = "1 G range s 0 4 7\n5 X 0 9\n6 R\n7 U held\n";
    let other = "2 G range x 3 6 8\n3 R\n4 U held\n";
    stress::judge_told("upgrade", &[one, other]);
}

#[test]
#[should_panic(expected = "mutual exclusion")]
fn a_history_in_which_a_writer_comes_with_a_downgrade_is_refused() {
    let one = "1 G rwlock x 0 1 7\n2 D 0\n6 d 0 8\n7 R\n8 U held\n";
    let other = "3 G rwlock x 0 1 9\n4 R\n5 U held\n";
    stress::judge_told("downgrade", &[one, other]);
}

#[test]
#[should_panic(expected = "mutual exclusion")]
fn a_history_in_which_more_is_given_away_than_the_part_is_refused() {
    let one = "1 G range x 0 9 7\n2 V 4 6\n7 R\n8 U held\n";
    let other = "3 G range x 5 7 9\n4 R\n5 U held\n";
    stress::judge_told("part", &[one, other]);
}
