//! What cannot be had is refused, and named: versions, devices, ports, regions; and what the ports count.

use super::{WORD, a_client, a_host, until};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{
    DeviceChoice, HostOptions, RdmaHost, devices, has_device, port_counters,
};
use lockwright_fabric::count::Counted;
use lockwright_fabric::{Endpoint, Message};
use std::io::{Read, Write};
use std::net::TcpStream;

#[test]
fn a_peer_of_another_version_is_told_which() {
    if !has_device() {
        return;
    }
    let host = a_host();
    let mut old = TcpStream::connect(host.address()).unwrap();
    // A hello of the first version: length, kind, version, and a queue pair.
    let mut hello = 31_u32.to_le_bytes().to_vec();
    hello.extend_from_slice(b"\0LWR1");
    hello.extend_from_slice(&[0; 26]);
    old.write_all(&hello).unwrap();
    let mut said = Vec::new();
    old.read_to_end(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("LWR4") && said.contains("LWR1") && said.contains("same release"), "{said}");
}

#[test]
fn a_region_that_is_too_small_is_named_before_anything_is_done() {
    if !has_device() {
        return;
    }
    let host = a_host();
    let client = a_client(&host);
    client.lends(1, 4096).unwrap();
    let error = client.lends(1, 8192).unwrap_err().to_string();
    assert!(error.contains("lends 4096 bytes on node 0, where 8192 are needed"), "{error}");
    assert!(client.lends(2, 64).unwrap_err().to_string().contains("lends 0 bytes on node 1"));
}

#[test]
fn a_wrong_gid_index_and_a_wrong_port_are_named() {
    if !has_device() {
        return;
    }
    let start = |device: &str| {
        let options = HostOptions { device: device.parse().unwrap(), ..HostOptions::default() };
        RdmaHost::start(InProc::new(1, 64), vec![], options, |_| {}).unwrap_err().to_string()
    };
    let said = start("rxe0:1:99");
    assert!(said.contains("rxe0 has no address at GID index 99 of port 1"), "{said}");
    let said = start("rxe0:5");
    assert!(said.contains("rxe0 has no port 5"), "{said}");
}

/// Sets a link up or down; only the virtual machine lets it.
fn link(device: &str, state: &str) -> bool {
    let done = std::process::Command::new("/bin/ip").args(["link", "set", device, state]).status();
    done.is_ok_and(|status| status.success())
}

#[test]
fn a_port_that_is_down_is_named_with_what_to_do() {
    if !has_device() || std::env::var_os("LOCKWRIGHT_NEED_RDMA").is_none() {
        return;
    }
    // The other end of rxe1's cable is v0, which rxe0 needs: only rxe1's own end goes down.
    assert!(link("v1", "down"));
    let device = DeviceChoice { name: Some("rxe1".to_owned()), ..DeviceChoice::default() };
    let options = HostOptions { device, ..HostOptions::default() };
    let started = RdmaHost::start(InProc::new(1, 64), vec![], options, |_| {});
    assert!(link("v1", "up"));
    let said = started.unwrap_err().to_string();
    assert!(said.contains("port 1 of rxe1 is down") && said.contains("rdma link"), "{said}");
    until("the ports are up again", || {
        let is_up = |device: &str| {
            let state = std::fs::read_to_string(format!("/sys/class/infiniband/{device}/ports/1/state"));
            state.is_ok_and(|state| state.contains("ACTIVE"))
        };
        is_up("rxe0") && is_up("rxe1")
    });
}

#[test]
fn our_counters_agree_with_the_ports() {
    if !has_device() {
        return;
    }
    let host = a_host();
    let (a, b) = (Counted::new(a_client(&host)), Counted::new(a_client(&host)));
    // The first message makes the connection.
    block_on(a.send(b.me(), Message::new(0, 1, &[]))).unwrap();
    block_on(b.recv(|_, _| Some(())));
    let (before, ours) = (port_counters("rxe0", 1), a.tally().snapshot());
    for round in 0..50 {
        block_on(a.go((WORD.fetch_add(1), WORD.read()))).unwrap();
        block_on(a.send(b.me(), Message::new(0, 1, &[round]))).unwrap();
        block_on(b.recv(|_, _| Some(())));
    }
    let (after, ours) = (port_counters("rxe0", 1), a.tally().snapshot() - ours);
    let grown = |name: &str| after.get(name).zip(before.get(name)).map(|(after, before)| after - before);
    let Some(sends) = grown("rdma_sends") else {
        return println!("skipped: the driver has no such counters");
    };
    assert_eq!((ours.sent, sends), (50, 50));
    assert_eq!(grown("rdma_recvs"), Some(50));
    // A packet for every verb and message and one that answers it, at least: retries come on top.
    let least = 2 * (ours.verbs() + ours.sent);
    assert!(grown("sent_pkts").unwrap() >= least, "{after:?} {before:?}");
}

#[test]
fn what_does_not_exist_is_named() {
    let device = DeviceChoice { name: Some("no-such-device".to_owned()), ..DeviceChoice::default() };
    let options = HostOptions { device, ..HostOptions::default() };
    let error = RdmaHost::start(InProc::new(1, 64), vec![], options, |_| {}).unwrap_err().to_string();
    let expected =
        if devices().is_empty() { "no RDMA device" } else { "there is no RDMA device called no-such-device" };
    assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
}
