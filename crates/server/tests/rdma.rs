//! Processes that work under locks of a server over RDMA while they are killed and stopped, and the server is killed and
//! started again, all at random: the stress over tcp, by another way. Once the server takes the locks, and once they are in
//! one-sided spaces, and taken by the verbs of its clients: with exact ranges, with ranges on trees, and with
//! processes of the host that take the same locks by CPU instructions.
//!
//! Needs a device; see `cargo xtask soft-roce`.
#![cfg(target_os = "linux")]

mod served;
#[allow(dead_code, reason = "the parent of the stress on shared memory is not this one")]
#[path = "../../lockwright/tests/stress/mod.rs"]
mod stress;

use lockwright_fabric::backend::rdma::has_device;
use served::{Offers, Plan, Stress, Transport, is_child, stress_both_sides};

/// Where the machine is emulated, the verbs of a one-sided lock take their time.
fn plan(test: &'static str, offers: Offers<'static>) -> Plan<'static> {
    let (transport, lets_go) = (Transport::Rdma, false);
    Plan { test, transport, offers, workers: 4, seconds: 10, pause_ms: 300, enough: 10, lets_go }
}

#[test]
fn processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Rdma) || !has_device() {
        return;
    }
    let test = "processes_and_servers_that_are_killed_lose_no_update_and_let_no_two_in";
    let plan = plan(test, Offers::Nothing);
    Stress::start(plan, |server, _| format!("{server}/stress")).run().finish().judge();
}

#[test]
fn processes_that_are_killed_under_lent_locks_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Rdma) || !has_device() {
        return;
    }
    let test = "processes_that_are_killed_under_lent_locks_lose_no_update_and_let_no_two_in";
    let plan = plan(test, Offers::Lend("stress"));
    Stress::start(plan, |server, _| format!("{server}/lent:stress")).run().finish().judge();
}

#[test]
fn processes_that_are_killed_under_ranges_on_trees_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Rdma) || !has_device() {
        return;
    }
    let test = "processes_that_are_killed_under_ranges_on_trees_lose_no_update_and_let_no_two_in";
    let plan = plan(test, Offers::LendTree("stress"));
    Stress::start(plan, |server, _| format!("{server}/lent:stress")).run().finish().judge();
}

#[test]
fn processes_of_the_host_and_clients_by_verbs_lose_no_update_and_let_no_two_in() {
    if is_child(Transport::Rdma) || !has_device() {
        return;
    }
    let test = "processes_of_the_host_and_clients_by_verbs_lose_no_update_and_let_no_two_in";
    stress_both_sides(plan(test, Offers::Nothing));
}
