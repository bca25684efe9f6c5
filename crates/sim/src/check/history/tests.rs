//! Histories that are fine, and histories in which something is wrong.

use super::*;

fn judged(logs: &[&str]) -> Result<(), String> {
    let named = logs.iter().zip(["1", "2", "parent"]).map(|(log, name)| (name, *log));
    History::of(named).and_then(|history| history.check()).map_err(|violation| violation.to_string())
}

fn counted(log: &str, last: u64) -> Result<u64, String> {
    let history = History::of([("1", log)]).unwrap();
    history.updates_missing(|_| last).map_err(|violation| violation.to_string())
}

#[test]
fn a_history_in_which_two_ranges_overlap_is_refused() {
    let one = "1 G range x 0 4 7\n5 R\n6 U held\n";
    let other = "2 G range s 3 6 8\n3 R\n4 U held\n";
    assert!(judged(&[one, other]).unwrap_err().starts_with("mutual exclusion"));
}

#[test]
fn a_history_in_which_two_ranges_only_touch_is_fine() {
    let one = "1 G range x 0 4 7\n5 R\n6 U held\n";
    let other = "2 G range x 4 6 8\n3 R\n4 U held\n";
    assert_eq!(judged(&[one, other]), Ok(()));
}

#[test]
fn a_history_in_which_a_token_falls_is_refused() {
    let one = "1 G range x 0 4 9\n2 R\n3 U held\n";
    let other = "4 G range x 3 6 8\n5 R\n6 U held\n";
    assert!(judged(&[one, other]).unwrap_err().starts_with("token order"));
}

#[test]
fn what_was_lost_may_overlap_but_not_have_a_token_twice() {
    let one = "1 G a x 0 1 7\n5 R\n6 U lost\n";
    assert_eq!(judged(&[one, "2 G a x 0 1 8\n3 R\n4 U held\n"]), Ok(()));
    assert!(judged(&[one, "2 G a x 0 1 7\n3 R\n4 U held\n"]).unwrap_err().starts_with("token order"));
    let fenced = "1 G a x 0 1 7\n2 F\n5 R\n6 U held\n";
    assert!(judged(&[fenced]).unwrap_err().contains("a token was refused"));
}

#[test]
fn a_client_that_is_killed_held_its_lock_until_then_unless_it_slept() {
    let (killed, next) = ("1 G a x 0 1 7\n", "3 G a x 0 1 8\n4 R\n5 U held\n");
    assert_eq!(judged(&[killed, next, "2 K 1\n"]), Ok(()));
    assert!(judged(&[killed, next, "4 K 1\n"]).unwrap_err().starts_with("mutual exclusion"));
    assert_eq!(judged(&[killed, next, "2 S 1\n6 C 1\n7 K 1\n"]), Ok(()));
}

#[test]
fn changes_with_nobody_in_between_are_fine_and_counted() {
    let one = "1 G range s 0 9 1\n5 X 0 3\n6 V 4 6\n7 D 6\n8 d 6 4\n20 R\n21 U held\n";
    let other =
        "2 G range s 0 9 2\n3 R\n4 U held\n9 G range s 6 9 5\n10 R\n11 U held\n12 G range x 4 6 6\n13 R\n";
    assert_eq!(judged(&[one, other]), Ok(()));
    let changes = History::of([("1", one)]).unwrap().changes();
    assert_eq!(changes, Changes { upgrades: 1, downgrades: 1, parts: 1 });
}

#[test]
fn a_writer_that_comes_in_during_a_change_is_noticed() {
    let upgrade = "1 G range s 0 4 7\n5 X 0 9\n6 R\n7 U held\n";
    assert!(judged(&[upgrade, "2 G range x 3 6 8\n3 R\n4 U held\n"]).unwrap_err().starts_with("mutual"));
    let downgrade = "1 G a x 0 1 7\n2 D 0\n6 d 0 8\n7 R\n8 U held\n";
    assert!(judged(&[downgrade, "3 G a x 0 1 9\n4 R\n5 U held\n"]).unwrap_err().starts_with("mutual"));
    let part = "1 G range x 0 9 7\n2 V 4 6\n7 R\n8 U held\n";
    assert!(judged(&[part, "3 G range x 5 7 9\n4 R\n5 U held\n"]).unwrap_err().starts_with("mutual"));
    let killed = "1 G a s 0 1 7\n5 X 0 9\n";
    let writer = "2 G a x 0 1 8\n3 R\n4 U held\n";
    assert!(judged(&[killed, writer, "9 K 1\n"]).unwrap_err().starts_with("mutual"));
    assert_eq!(judged(&[killed, writer, "2 S 1\n6 C 1\n9 K 1\n"]), Ok(()), "it may have lost it");
}

#[test]
fn a_token_that_was_never_noted_bounds_nothing() {
    let killed = "1 G a x 0 1 7\n2 D 0\n";
    for token in [8, 9] {
        let next = format!("4 G a x 0 1 {token}\n5 R\n6 U held\n");
        assert_eq!(judged(&[killed, &next, "3 K 1\n"]), Ok(()), "it had not begun, or was done");
    }
    let next = "4 G a x 0 1 7\n5 R\n6 U held\n";
    assert!(judged(&[killed, next, "3 K 1\n"]).is_err());
}

#[test]
fn updates_that_are_lost_or_made_with_old_tokens_are_noticed_and_gaps_counted() {
    assert_eq!(counted("1 W count 1 7\n2 W count 2 8\n3 W count 5 9\n", 6), Ok(3));
    assert!(counted("1 W count 1 7\n2 W count 1 8\n", 1).unwrap_err().contains("written twice"));
    assert!(counted("1 W count 1 8\n2 W count 2 7\n", 2).unwrap_err().contains("no newer token"));
    assert!(counted("1 W count 1 8\n2 W count 2 9\n", 1).unwrap_err().contains("after 2 updates"));
}
