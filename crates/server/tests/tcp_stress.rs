//! Processes that work under locks of a server over tcp while they are killed and stopped, and the server is killed and
//! started again, all at random (`LOCKWRIGHT_STRESS_SECONDS` says for how long, sixteen seconds each unless told otherwise).
//!
//! Once with a space of the server's own, whose locks are also upgraded, downgraded and given back in part, once with a space of shared memory that the server exports, where local
//! processes and clients for whom the server takes the locks are all after the same ones, and with one-sided spaces,
//! with exact ranges, with ranges on trees, and with processes that take the locks by CPU instructions.
#![cfg(target_os = "linux")]

mod served;
#[allow(dead_code, reason = "the parent of the stress on shared memory is not this one")]
#[path = "../../lockwright/tests/stress/mod.rs"]
mod stress;

use served::{Offers, Plan, Stress, Transport, is_child, stress_both_sides};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

const PLAN: Plan<'static> = Plan {
    test: "",
    transport: Transport::Tcp,
    offers: Offers::Nothing,
    workers: 8,
    seconds: 16,
    pause_ms: 100,
    enough: 30,
    lets_go: false,
};

#[test]
fn processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Tcp) {
        return;
    }
    let test = "processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in";
    Stress::start(Plan { test, ..PLAN }, |server, _| format!("{server}/stress")).run().finish().judge();
}

#[test]
fn local_processes_and_clients_of_one_exported_space_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Tcp) {
        return;
    }
    let test = "local_processes_and_clients_of_one_exported_space_lose_no_update_and_let_no_two_in";
    let file = format!("/dev/shm/lockwright-test-stress-{}", std::process::id());
    let space = format!("shm:{file}");
    Stress::start(Plan { test, offers: Offers::Export(&space), ..PLAN }, |server, worker| match worker % 2 {
        0 => space.clone(),
        _ => format!("{server}/{space}"),
    })
    .run()
    .finish()
    .judge();
    let _ = fs::remove_file(file);
}

#[test]
fn processes_that_are_killed_under_lent_locks_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Tcp) {
        return;
    }
    let test = "processes_that_are_killed_under_lent_locks_lose_no_update_and_let_no_two_in";
    let plan = Plan { test, offers: Offers::Lend("stress"), ..PLAN };
    Stress::start(plan, |server, _| format!("{server}/lent:stress")).run().finish().judge();
}

#[test]
fn processes_that_are_killed_under_ranges_on_trees_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Tcp) {
        return;
    }
    let test = "processes_that_are_killed_under_ranges_on_trees_lose_no_update_and_let_no_two_in";
    let plan = Plan { test, offers: Offers::LendTree("stress"), ..PLAN };
    Stress::start(plan, |server, _| format!("{server}/lent:stress")).run().finish().judge();
}

#[test]
fn processes_of_the_host_and_clients_by_verbs_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Tcp) {
        return;
    }
    let test = "processes_of_the_host_and_clients_by_verbs_lose_no_update_and_let_no_two_in";
    stress_both_sides(Plan { test, seconds: 8, ..PLAN });
}

#[test]
fn a_ghost_that_held_the_same_locks_at_the_same_times_is_noticed() {
    if is_child(Transport::Tcp) {
        return;
    }
    let test = "a_ghost_that_held_the_same_locks_at_the_same_times_is_noticed";
    let plan = Plan { test, workers: 3, seconds: 1, ..PLAN };
    let stress = Stress::start(plan, |server, _| format!("{server}/stress")).run().finish();
    // One whose history is as good as its original's, which was alone.
    let longest = fs::read_dir(&stress.folder).unwrap().flatten().map(|file| file.path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("log-") && name != "log-parent"
    });
    let longest =
        longest.max_by_key(|path| fs::metadata(path).unwrap().len()).expect("a worker has left a log");
    fs::copy(longest, stress.folder.join("log-ghost")).unwrap();
    let judged = catch_unwind(AssertUnwindSafe(|| stress.judge()));
    let said = judged.expect_err("two were in at once").downcast::<String>().expect("with a reason");
    // Its grants are those of another: two hold, or the same token was given twice. Which of them is seen first is chance.
    assert!(said.contains("mutual exclusion") || said.contains("token order"), "{said}");
}

#[test]
fn an_upgrade_that_lets_go_in_between_is_noticed() {
    if is_child(Transport::Tcp) {
        return;
    }
    let test = "an_upgrade_that_lets_go_in_between_is_noticed";
    let plan = Plan { test, workers: 5, seconds: 2, lets_go: true, ..PLAN };
    let stress = Stress::start(plan, |server, _| format!("{server}/stress")).run().finish();
    let judged = catch_unwind(AssertUnwindSafe(|| stress.judge()));
    let said = judged.expect_err("a writer came in between").downcast::<String>().expect("with a reason");
    // Two are in at once, or the reader that let go finds its token refused, for the writer's is newer. Which is seen first is
    // chance.
    assert!(said.contains("mutual exclusion") || said.contains("a token was refused"), "{said}");
}
