//! Processes that work under locks of a server over RDMA while they are killed and stopped, and the server is killed and
//! started again, all at random: the stress over tcp, by another way.
//!
//! Needs a device; see `cargo xtask soft-roce`.
#![cfg(target_os = "linux")]

mod served;
#[allow(dead_code, reason = "the parent of the stress on shared memory is not this one")]
mod stress;

use lockwright::fabric::backend::rdma::has_device;
use served::{Changes, Plan, Stress, Transport, is_child};

#[test]
fn processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Rdma) || !has_device() {
        return;
    }
    let test = "processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in";
    let transport = Transport::Rdma;
    let plan =
        Plan { test, transport, export: "", workers: 4, seconds: 10, pause_ms: 300, changes: Changes::All };
    Stress::start(plan, |server, _| format!("{server}/stress")).run().finish().judge();
}
