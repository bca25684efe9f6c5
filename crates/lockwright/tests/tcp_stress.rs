//! Processes that work under locks of a server over tcp while everybody is killed and stopped at random.
#![cfg(target_os = "linux")]

mod served;

#[test]
fn processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in() {
    served::run(served::Stress {
        test: "processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in",
        scheme: "tcp",
        exports: false,
        workers: 8,
        seconds: 30,
        holds: 20,
    });
}

#[test]
fn local_processes_and_guests_of_one_space_lose_no_update_and_let_no_two_in() {
    served::run(served::Stress {
        test: "local_processes_and_guests_of_one_space_lose_no_update_and_let_no_two_in",
        scheme: "tcp",
        exports: true,
        workers: 8,
        seconds: 30,
        holds: 20,
    });
}
