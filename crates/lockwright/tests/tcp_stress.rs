//! Processes that work under locks of a server over tcp while everybody is killed and stopped at random.
#![cfg(target_os = "linux")]

mod served;

#[test]
fn processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in() {
    served::run(served::Stress {
        test: "processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in",
        scheme: "tcp",
        workers: 8,
        seconds: 16,
        holds: 20,
    });
}
