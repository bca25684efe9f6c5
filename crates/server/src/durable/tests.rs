//! What a server remembers, from run to run and on bad disks.

use super::file::StateFile;
use super::*;
use std::path::PathBuf;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-durable-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn begin(&self) -> (Durable, bool) {
        Durable::begin(Some(&self.0), Duration::from_secs(8)).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(format!("{}.lock", self.0.display()));
        let _ = std::fs::remove_file(format!("{}.sessions", self.0.display()));
        let _ = std::fs::remove_file(format!("{}.values", self.0.display()));
    }
}

#[test]
fn tokens_rise_from_run_to_run_and_only_one_server_has_the_file() {
    let scratch = Scratch::new("tokens");
    let (mut first, awaited) = scratch.begin();
    assert!(!awaited, "nobody can hold anything before the first run");
    let far = first.first_token() + 10 * BLOCK;
    first.before_grant(far).unwrap();
    assert!(
        Durable::begin(Some(&scratch.0), Duration::ZERO).unwrap_err().to_string().contains("another server")
    );
    drop(first);
    let (second, awaited) = scratch.begin();
    assert!(awaited && second.first_token() > far);
}

#[test]
fn only_holders_of_the_last_open_run_are_heard_and_not_those_who_lost_their_locks() {
    let scratch = Scratch::new("accepts");
    let (mut first, _) = scratch.begin();
    let token = first.first_token();
    first.before_grant(token).unwrap();
    first.gone(7).unwrap();
    first.broken(token + 1).unwrap();
    let run = first.epoch;
    drop(first);
    let (second, awaited) = scratch.begin();
    assert!(awaited && second.accepts(run, 1, token));
    assert!(!second.accepts(run, 7, token), "its session was lost");
    assert!(!second.accepts(run, 1, token + 1), "its lock was broken");
    assert!(!second.accepts(second.epoch, 1, token), "this run's own sessions claim nothing");
    assert!(!second.accepts(run, 1, second.first_token()), "nobody has tokens of the future");
    drop(second);
    // The second run ended before it was open: nothing was given away.
    let (mut third, awaited) = scratch.begin();
    assert!(awaited && third.accepts(run, 1, token) && !third.accepts(run, 7, token));
    third.open().unwrap();
    third.before_grant(third.first_token()).unwrap();
    drop(third);
    let (fourth, awaited) = scratch.begin();
    assert!(awaited && !fourth.accepts(run, 1, token), "others may have had the lock since");
}

/// No state file can be made from now on.
fn fill_the_disk() {
    file::FULL.set(true);
}

#[test]
fn a_server_that_is_restarted_on_a_full_disk_goes_on_in_the_file_that_is_there() {
    let scratch = Scratch::new("full");
    let (mut first, _) = scratch.begin();
    let token = first.first_token();
    first.before_grant(token).unwrap();
    first.gone(7).unwrap();
    let (run, id) = (first.epoch, first.id());
    drop(first);
    fill_the_disk();
    let (mut second, awaited) = scratch.begin();
    assert!(awaited && second.accepts(run, 1, token) && !second.accepts(run, 7, token));
    second.open().unwrap();
    second.before_grant(second.first_token()).unwrap();
    let (run, token) = (second.epoch, second.first_token());
    drop(second);
    let (third, awaited) = scratch.begin();
    assert!(awaited && third.accepts(run, 1, token) && third.first_token() > token && third.id() == id);
}

#[test]
fn while_the_state_cannot_be_written_nothing_is_granted_and_later_it_is_again() {
    let scratch = Scratch::new("later");
    let (mut durable, _) = scratch.begin();
    let token = durable.first_token();
    let real = durable.disk.put_file(StateFile::go_on(Path::new("/dev/full"), "").ok());
    assert!(durable.before_grant(token).unwrap_err().contains("cannot write its state"));
    assert!(durable.gone(7).is_err());
    let now = Instant::now();
    durable.retry(now);
    durable.retry(now + 2 * RETRY);
    assert!(durable.before_grant(token).is_err(), "there is no room yet");
    durable.disk.put_file(real);
    durable.retry(now + 4 * RETRY);
    durable.before_grant(token).unwrap();
    let run = durable.epoch;
    drop(durable);
    assert!(!scratch.begin().0.accepts(run, 7, token), "what had to be written was");
}

#[test]
fn what_is_not_a_regular_file_is_no_state_and_left_alone() {
    for path in ["/dev/full", "/dev/zero"] {
        let error = Durable::begin(Some(Path::new(path)), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{path}: {error}");
        assert!(!PathBuf::from(format!("{path}.lock")).exists(), "{path}");
    }
}

#[test]
fn sessions_that_hold_nothing_are_not_waited_for_and_the_others_only_until_they_have_claimed() {
    let scratch = Scratch::new("holders");
    let (mut first, _) = scratch.begin();
    first.track_holders(true);
    first.before_grant(first.first_token()).unwrap();
    first.holds(1, 11);
    first.holds(2, 12);
    first.holds(3, 13);
    first.holds_no_more(3);
    first.gone(12).unwrap();
    drop(first);
    let (mut second, awaited) = scratch.begin();
    second.track_holders(false);
    assert!(awaited && !second.has_claimed(99));
    assert!(second.has_claimed(11), "the others are gone");
    drop(second);
    let (mut third, awaited) = scratch.begin();
    third.track_holders(false);
    assert!(awaited && !third.has_claimed(11), "after a run that was not open every session is waited for");
    third.open().unwrap();
    third.before_grant(third.first_token()).unwrap();
    drop(third);
    assert!(!scratch.begin().1, "nobody holds anything");
}

#[test]
fn nobody_is_waited_for_after_an_orderly_end_or_a_run_without_grants() {
    let scratch = Scratch::new("clean");
    let (mut first, _) = scratch.begin();
    let token = first.first_token();
    first.before_grant(token).unwrap();
    first.end(true);
    drop(first);
    let (second, awaited) = scratch.begin();
    assert!(!awaited && second.first_token() > token);
    drop(second);
    assert!(!scratch.begin().1);
}

#[test]
fn a_line_that_was_cut_off_does_not_count_and_another_file_is_refused() {
    let scratch = Scratch::new("cut");
    std::fs::write(&scratch.0, "lockwright serve 1\nrun 5 accepts 5\ntokens 9\nopen\ngran").unwrap();
    let past = parse(&file::read(&scratch.0).unwrap().unwrap()).unwrap();
    assert!(past.open && !past.granted && past.tokens == 9);
    assert_eq!(parse("something else\n"), None);
    assert_eq!(parse("lockwright serve 1\nrun 5 accepts 5\nbananas 3\n"), None);
    assert_eq!(parse(""), None);
}
