//! The RDMA backend on real queue pairs: the conformance suite, the fence, and both sides of a host's memory.
//!
//! Needs a device: soft-RoCE in the virtual machine of `cargo xtask soft-roce` will do. Without one the tests say so and
//! do nothing.

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{HostOptions, RdmaEndpoint, RdmaHost, RdmaOptions, devices};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_fabric::{Addr, Cond, Endpoint, FabricError, Message, NodeId, PeerId, Word64};
use std::sync::{Arc, Mutex};

/// A host and its clients on one device.
struct Net {
    endpoints: Vec<RdmaEndpoint>,
    _host: RdmaHost,
}

impl Net {
    fn new(shape: Shape, options: &RdmaOptions) -> Self {
        let fabric = InProc::new(shape.nodes, shape.bytes);
        let host = RdmaHost::start(fabric, vec![], HostOptions::default(), |_| {}).unwrap();
        let connect = |client| {
            let ep = RdmaEndpoint::connect(host.address(), options.clone()).unwrap();
            assert_eq!(ep.me(), PeerId::client(client));
            ep
        };
        Self { endpoints: (0..shape.clients).map(connect).collect(), _host: host }
    }
}

impl Rig for Net {
    type E = RdmaEndpoint;

    fn run(&mut self, tasks: Vec<Task<RdmaEndpoint>>) {
        std::thread::scope(|scope| {
            for (ep, task) in std::iter::zip(&self.endpoints, tasks) {
                scope.spawn(move || block_on(task(ep.clone())));
            }
        });
    }
}

/// Whether there is anything to test on.
fn has_device() -> bool {
    let found = !devices().is_empty();
    assert!(
        found || std::env::var_os("LOCKWRIGHT_NEED_RDMA").is_none(),
        "no RDMA device, where there must be one"
    );
    if !found {
        println!("skipped: no RDMA device; `cargo xtask soft-roce` brings its own");
    }
    found
}

mod plain {
    use super::{Net, RdmaOptions, has_device};
    lockwright_fabric::conformance_tests!(if has_device(); |shape| Net::new(shape, &RdmaOptions::default()));
}

mod with_emulated_masks {
    use super::{Net, RdmaOptions, has_device};
    lockwright_fabric::conformance_tests!(if has_device(); |shape| {
        Net::new(shape, &RdmaOptions { emulate_masks: true, ..RdmaOptions::default() })
    });
}

const WORD: Word64 = Word64::at(Addr::new(NodeId(0), 64));

#[test]
fn a_fenced_client_changes_nothing_any_more_and_others_go_on() {
    if !has_device() {
        return;
    }
    let gone = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&gone);
    let on_lost = move |peer| log.lock().unwrap().push(peer);
    let host = RdmaHost::start(InProc::new(1, 4096), vec![], HostOptions::default(), on_lost).unwrap();
    let connect = || RdmaEndpoint::connect(host.address(), RdmaOptions::default()).unwrap();
    let (zombie, other) = (connect(), connect());
    assert_eq!(block_on(zombie.go(WORD.fetch_add(1))), Ok(0));
    assert!(host.expel(zombie.me()) && !host.expel(zombie.me()));
    assert_eq!(*gone.lock().unwrap(), [zombie.me()]);
    assert_eq!(block_on(zombie.go(WORD.write(99))), Err(FabricError::NodeLost(NodeId(0))));
    assert_eq!(block_on(other.go(WORD.fetch_add(1))), Ok(1));
    assert_eq!(host.fabric().peek(WORD), 2);
}

#[test]
fn a_client_that_leaves_is_missed() {
    if !has_device() {
        return;
    }
    let (sender, left) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    let on_lost = move |peer| sender.lock().unwrap().send(peer).unwrap_or_default();
    let host = RdmaHost::start(InProc::new(1, 64), vec![], HostOptions::default(), on_lost).unwrap();
    let client = RdmaEndpoint::connect(host.address(), RdmaOptions::default()).unwrap();
    let peer = client.me();
    drop(client);
    assert_eq!(left.recv(), Ok(peer));
}

#[test]
fn local_and_remote_clients_share_memory_and_write_to_each_other() {
    if !has_device() {
        return;
    }
    let options = HostOptions { first_client: 1, ..HostOptions::default() };
    let host = RdmaHost::start(InProc::new(1, 4096), vec![], options, |_| {}).unwrap();
    let local = host.local(PeerId::client(0), NodeId(0));
    let remote = RdmaEndpoint::connect(host.address(), RdmaOptions::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_on(local.go(WORD.write(5))).unwrap();
            let seen = block_on(local.wait_until(WORD.until(Cond::Eq { mask: 7, value: 6 }))).unwrap();
            assert!(seen.met);
            block_on(local.send(remote.me(), Message::new(1, 2, &[3]))).unwrap();
            let from = block_on(local.recv(|from, message| (message.words[0] == 4).then_some(from)));
            assert_eq!(from, remote.me());
        });
        scope.spawn(|| {
            let seen = block_on(remote.wait_until(WORD.until(Cond::Eq { mask: 7, value: 5 }))).unwrap();
            assert!(seen.met && seen.polls > 0);
            assert_eq!(block_on(remote.go(WORD.cas(5, 6))), Ok(5));
            let from = block_on(remote.recv(|from, message| (message.words[0] == 3).then_some(from)));
            assert_eq!(from, local.me());
            block_on(remote.send(local.me(), Message::new(1, 2, &[4]))).unwrap();
        });
    });
}

#[test]
fn more_peers_than_connections_can_still_be_written_to() {
    if !has_device() {
        return;
    }
    let host = RdmaHost::start(InProc::new(1, 64), vec![], HostOptions::default(), |_| {}).unwrap();
    let options = RdmaOptions { max_peers: 2, ..RdmaOptions::default() };
    let endpoints: Vec<_> =
        (0..5).map(|_| RdmaEndpoint::connect(host.address(), options.clone()).unwrap()).collect();
    for round in 0..3 {
        for other in &endpoints[1..] {
            block_on(endpoints[0].send(other.me(), Message::new(0, 1, &[round]))).unwrap();
        }
    }
    for other in &endpoints[1..] {
        for round in 0..3 {
            let (from, first) = block_on(other.recv(|from, message| Some((from, message.words[0]))));
            assert_eq!((from, first), (endpoints[0].me(), round));
        }
    }
}

#[test]
fn what_does_not_exist_is_named() {
    use lockwright_fabric::backend::rdma::DeviceChoice;
    let device = DeviceChoice { name: Some("no-such-device".to_owned()), ..DeviceChoice::default() };
    let options = HostOptions { device, ..HostOptions::default() };
    let error = RdmaHost::start(InProc::new(1, 64), vec![], options, |_| {}).unwrap_err().to_string();
    let expected =
        if devices().is_empty() { "no RDMA device" } else { "there is no RDMA device called no-such-device" };
    assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
}
