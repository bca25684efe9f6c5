//! Records that are fine, and records in which something is wrong.

use super::*;

fn record(by: &str, process: &str, lines: &[String]) -> String {
    let head = format!(r#"{{"record":1,"by":"{by}","boot":"b","process":"{process}"}}"#);
    std::iter::once(head).chain(lines.iter().cloned()).map(|line| line + "\n").collect()
}

fn line(at: u64, event: &str, mode: &str, token: u64) -> String {
    let held = if event == "released" { r#","held":true"# } else { "" };
    format!(
        r#"{{"at":{at},"event":"{event}","space":"served/s","lock":"a","kind":"keyed","mode":"{mode}","token":{token}{held}}}"#
    )
}

fn seen_by(client: &str, line: &str) -> String {
    line.replacen("\"space\"", &format!("\"client\":\"{client}\",\"space\""), 1)
}

/// What is found in these records.
fn judged(records: &[String]) -> Vec<String> {
    let folder = std::env::temp_dir();
    let mut judge = Judge::default();
    for (number, text) in records.iter().enumerate() {
        let name = format!("lockwright-history-{}-{number}-{:p}", std::process::id(), text.as_ptr());
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        judge.read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
    }
    judge.violations().iter().map(Violation::to_string).collect()
}

fn held(from: u64, to: u64, token: u64) -> Vec<String> {
    [(from, "granted"), (to, "releases"), (to + 1, "released")]
        .map(|(at, event)| line(at, event, "exclusive", token))
        .to_vec()
}

#[test]
fn holds_one_after_the_other_are_clean_and_two_at_once_are_not() {
    let [one, other] =
        [(held(1, 4, 7), "1 h p"), (held(5, 8, 8), "2 h p")].map(|(l, who)| record("client", who, &l));
    assert_eq!(judged(&[one.clone(), other]), [""; 0]);
    let found = judged(&[one, record("client", "2 h p", &held(3, 8, 8))]);
    assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
}

#[test]
fn grants_of_a_lock_that_stayed_with_a_client_have_the_tokens_that_came_with_it() {
    let stays = r#""kind":"keyed","mode":"exclusive","start":8,"end":10,"token":7"#;
    let stays =
        line(2, "retained", "exclusive", 7).replace(r#""kind":"keyed","mode":"exclusive","token":7"#, stays);
    let granted = [line(1, "granted", "exclusive", 7), stays, line(30, "released", "exclusive", 7)];
    let server = record("server", "9 h s", &granted.map(|line| seen_by("1 h p #1", &line)));
    let server = server + "{\"ended\":1}\n";
    let client =
        |last| record("client", "1 h p", &[held(3, 4, 7), held(5, 8, 9), held(9, 12, last)].concat());
    assert_eq!(judged(&[server.clone(), record("client", "1 h p", &held(3, 4, 9))]), [""; 0]);
    let found = judged(&[server, client(10)]);
    assert!(found[0].contains("token 10, and no server granted that"), "{found:?}");
}

#[test]
fn a_token_that_falls_or_comes_twice_is_found_also_of_a_lost_lock() {
    let one = record("client", "1 h p", &held(1, 4, 7));
    let found = judged(&[one.clone(), record("client", "2 h p", &held(5, 8, 6))]);
    assert!(found[0].starts_with("token order"), "{found:?}");
    let lost = [line(5, "granted", "exclusive", 7), line(9, "lost", "exclusive", 7)];
    let found = judged(&[one, record("client", "2 h p", &lost)]);
    assert!(found[0].contains("two writers"), "{found:?}");
}

#[test]
fn more_permits_of_a_semaphore_than_there_are_is_found() {
    // So many of three.
    let permits = |process: &str, weight: u64, (from, to): (u64, u64), token| {
        let units = format!(r#""kind":"semaphore","start":{weight},"end":4,"#);
        let lines = [(from, "granted"), (to, "releases"), (to + 1, "released")];
        let lines =
            lines.map(|(at, event)| line(at, event, "shared", token).replace(r#""kind":"keyed","#, &units));
        record("client", process, &lines)
    };
    let (one, two) = (permits("1 h p", 1, (1, 8), 7), permits("2 h p", 2, (2, 4), 8));
    // Granted in another order than they have tokens.
    let next = permits("3 h p", 2, (5, 9), 6);
    assert_eq!(judged(&[one.clone(), two.clone(), next]), [""; 0]);
    let found = judged(&[one, two, permits("3 h p", 1, (3, 9), 9)]);
    assert!(found[0].starts_with("mutual exclusion") && found[0].contains("permits are out"), "{found:?}");
}

#[test]
fn a_lost_lock_may_be_held_by_another_before_its_client_knows() {
    let lost = [line(1, "granted", "exclusive", 7), line(9, "lost", "exclusive", 7)];
    let records = [record("client", "1 h p", &lost), record("client", "2 h p", &held(5, 8, 8))];
    assert_eq!(judged(&records), [""; 0]);
}

#[test]
fn an_upgrade_beside_another_reader_is_found() {
    let upgrades = [line(1, "granted", "shared", 7), line(5, "upgraded", "exclusive", 9)];
    let upgrades = record("client", "1 h p", &[&upgrades[..], &held(0, 9, 9)[1..]].concat());
    let reader = |to| {
        let lines = [(2, "granted"), (to, "releases"), (to + 1, "released")];
        record("client", "2 h p", &lines.map(|(at, event)| line(at, event, "shared", 8)))
    };
    assert_eq!(judged(&[upgrades.clone(), reader(3)]), [""; 0]);
    assert!(judged(&[upgrades, reader(7)])[0].starts_with("mutual exclusion"));
}

#[test]
fn what_a_client_was_granted_its_server_must_have_granted() {
    let client = record("client", "1 h p", &held(2, 4, 7));
    let server = |token| {
        let lines = [line(1, "granted", "exclusive", token), line(5, "released", "exclusive", token)];
        record("server", "9 h lockwright", &lines.map(|line| seen_by("1 h p", &line)))
    };
    assert_eq!(judged(&[client.clone(), server(7)]), [""; 0]);
    assert!(judged(&[client, server(8)])[0].contains("no server granted"));
}

#[test]
fn two_clients_of_one_process_and_one_file_exclude_each_other() {
    let both = [&held(1, 6, 7)[..1], &held(3, 8, 8), &held(1, 9, 7)[1..]].concat();
    let found = judged(&[record("client", "1 h p", &both)]);
    assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
    let upgrades = [line(1, "granted", "shared", 7), line(5, "upgraded", "exclusive", 9)];
    assert_eq!(judged(&[record("client", "1 h p", &[&upgrades, &held(0, 9, 9)[1..]].concat())]), [""; 0]);
}

#[test]
fn an_upgrade_is_of_what_is_held_and_not_of_what_is_being_given_back() {
    let lines = [
        line(1, "granted", "shared", 6),
        line(2, "releases", "shared", 6),
        line(3, "granted", "shared", 7),
        line(5, "upgraded", "exclusive", 8),
        // The answer to the first came late.
        line(6, "released", "shared", 6),
    ];
    let lines = [&lines[..], &held(0, 8, 8)[1..]].concat();
    assert_eq!(judged(&[record("client", "1 h p", &lines)]), [""; 0]);
    let found = judged(&[record("client", "1 h p", &lines), record("client", "2 h p", &held(4, 7, 9))]);
    assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
}

#[test]
fn processes_that_share_a_file_are_told_apart_by_their_lines() {
    let [one, other] = ["1 h p", "2 h p"].map(|who| record("client", who, &[]));
    let lines = [
        seen_by("1 h p", &line(1, "granted", "shared", 7)),
        seen_by("2 h p", &line(2, "granted", "shared", 7)),
        seen_by("1 h p", &line(3, "upgraded", "exclusive", 9)),
        seen_by("2 h p", &line(4, "releases", "shared", 7)),
        seen_by("2 h p", &line(5, "released", "shared", 7)),
        seen_by("1 h p", &line(6, "releases", "exclusive", 9)),
        seen_by("1 h p", &line(7, "released", "exclusive", 9)),
    ];
    let found = judged(&[one + &other + &lines.join("\n") + "\n"]);
    assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
}

#[test]
fn a_part_is_of_the_grant_with_its_token_and_not_of_one_that_is_being_given_back() {
    let range = |at, event, start: u64, end: u64, token| {
        let units = format!(r#""kind":"ranges","start":{start},"end":{end},"#);
        line(at, event, "exclusive", token).replace(r#""kind":"keyed","#, &units)
    };
    let lines = [
        range(1, "granted", 0, 10, 7),
        range(2, "releases", 0, 10, 7),
        range(3, "granted", 2, 8, 8),
        range(4, "gives", 4, 6, 8),
        // The answer to the first came late.
        range(7, "released", 0, 10, 7),
    ];
    let other = [range(5, "granted", 4, 6, 9), range(8, "releases", 4, 6, 9), range(9, "released", 4, 6, 9)];
    let one = record("client", "1 h p", &lines);
    assert_eq!(judged(&[one.clone(), record("client", "2 h p", &other)]), [""; 0]);
    let kept = [range(5, "granted", 3, 4, 9), range(8, "releases", 3, 4, 9), range(9, "released", 3, 4, 9)];
    let given_back = [range(10, "releases", 2, 4, 8), range(11, "released", 2, 4, 8)];
    let one = record("client", "1 h p", &[&lines[..], &given_back].concat());
    let found = judged(&[one, record("client", "2 h p", &kept)]);
    assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
}

/// A server's record of these tokens, granted one after the other.
fn granted_by_server(tokens: &[u64], end: &str) -> String {
    let grants = tokens.iter().flat_map(|token| {
        let at = token * 10;
        [line(at, "granted", "exclusive", *token), line(at + 9, "released", "exclusive", *token)]
    });
    let lines: Vec<_> = grants.map(|line| seen_by("1 h p", &line)).collect();
    record("server", "9 h lockwright", &lines) + end
}

#[test]
fn a_server_that_was_killed_may_not_have_written_its_last_grants() {
    let client = |token: u64| record("client", "1 h p", &held(token * 10 + 1, token * 10 + 2, token));
    let (ends, killed) = (granted_by_server(&[7, 8], "{\"ended\":1}\n"), granted_by_server(&[7, 8], ""));
    assert!(judged(&[ends, client(9)])[0].contains("no server granted"));
    assert_eq!(judged(&[killed.clone(), client(9)]), [""; 0]);
    assert!(judged(&[killed.clone(), client(6)])[0].contains("no server granted"));
    // Started again, it goes on above all tokens of before.
    let again = killed + &granted_by_server(&[20, 22], "{\"ended\":1}\n");
    assert_eq!(judged(&[again.clone(), client(9)]), [""; 0]);
    assert!(judged(&[again, client(21)])[0].contains("no server granted"));
}

#[test]
fn a_server_that_grants_twice_at_once_is_found_by_its_own_record() {
    let lines = [(1, "granted", 7), (2, "granted", 8), (3, "released", 7), (4, "released", 8)];
    let lines =
        lines.map(|(at, event, token)| seen_by(&token.to_string(), &line(at, event, "exclusive", token)));
    let found = judged(&[record("server", "9 h lockwright", &lines)]);
    assert!(found[0].starts_with("mutual exclusion"), "{found:?}");
    // Lost counts as given back: the server has said so, and granted it to another.
    let lines = [(1, "granted", 7), (2, "lost", 7), (3, "granted", 8), (4, "released", 8)];
    let lines =
        lines.map(|(at, event, token)| seen_by(&token.to_string(), &line(at, event, "exclusive", token)));
    assert_eq!(judged(&[record("server", "9 h lockwright", &lines)]), [""; 0]);
}

#[test]
fn a_line_that_was_cut_off_does_not_count_and_another_file_is_refused() {
    let mut cut = record("client", "1 h p", &held(1, 4, 7));
    cut.push_str("{\"at\":9,\"eve");
    assert_eq!(judged(&[cut]), [""; 0]);
    let path = std::env::temp_dir().join(format!("lockwright-no-history-{}", std::process::id()));
    std::fs::write(&path, "{\"a\":1}\n").unwrap();
    let refused = Judge::default().read(&path).unwrap_err().to_string();
    std::fs::remove_file(path).unwrap();
    assert!(refused.contains("no record"), "{refused}");
}
