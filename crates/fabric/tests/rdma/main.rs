//! The RDMA backend on real queue pairs: the conformance suite, the fence, and both sides of a host's memory.
//!
//! Needs a device: soft-RoCE in the virtual machine of `cargo xtask soft-roce` will do. Without one the tests say so and
//! do nothing.

mod queue_pairs;
mod refusals;
mod service;

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{HostOptions, RdmaEndpoint, RdmaHost, RdmaOptions, has_device};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_fabric::{Addr, Cond, Endpoint, FabricError, Message, NodeId, PeerId, Word64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

fn a_host() -> RdmaHost {
    RdmaHost::start(InProc::new(1, 4096), vec![], HostOptions::default(), |_| {}).unwrap()
}

fn a_client(host: &RdmaHost) -> RdmaEndpoint {
    RdmaEndpoint::connect(host.address(), RdmaOptions::default()).unwrap()
}

/// Waits until something that others do is done.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_revoked_key_is_refused_and_the_error_says_so() {
    if !has_device() {
        return;
    }
    let host = a_host();
    let (client, other) = (a_client(&host), a_client(&host));
    assert_eq!(block_on(client.go(WORD.fetch_add(1))), Ok(0));
    assert!(host.revoke_keys(client.me()));
    assert_eq!(block_on(client.go(WORD.write(99))), Err(FabricError::NodeLost(NodeId(0))));
    let fault = client.last_fault().expect("something went wrong");
    assert!(fault.contains("rxe0") && fault.contains("the key was revoked"), "{fault}");
    // Only this client's: keys are per client.
    assert_eq!(block_on(other.go(WORD.fetch_add(1))), Ok(1));
    assert_eq!(host.fabric().peek(WORD), 2);
}

#[test]
fn a_zombies_verbs_under_way_do_not_land_after_its_fence() {
    const CLIENTS: u64 = 4;
    if !has_device() {
        return;
    }
    // Everything that was written when the host says that the client is gone stays as it is.
    let gone = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&gone);
    let host = RdmaHost::start(InProc::new(1, 4096), vec![], HostOptions::default(), move |peer| {
        log.lock().unwrap().push(peer);
    })
    .unwrap();
    for round in 0..CLIENTS {
        let word = Word64::at(Addr::new(NodeId(0), 128 + 8 * round));
        let zombie = a_client(&host);
        std::thread::scope(|scope| {
            scope.spawn(|| while block_on(zombie.go([word.fetch_add(1); 8])).is_ok() {});
            until("it begins", || host.fabric().peek(word) > 20);
            assert!(host.expel(zombie.me()));
            let at_the_fence = host.fabric().peek(word);
            assert_eq!(gone.lock().unwrap().len() as u64, round + 1);
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(host.fabric().peek(word), at_the_fence, "a verb landed after the fence");
        });
    }
}
