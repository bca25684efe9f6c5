//! The RDMA backend on real queue pairs: the conformance suite, the fence, and both sides of a host's memory.
//!
//! Needs a device: soft-RoCE in the virtual machine of `cargo xtask soft-roce` will do. Without one the tests say so and
//! do nothing.

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{
    DeviceChoice, HostOptions, RdmaEndpoint, RdmaHost, RdmaOptions, Reception, devices, has_device,
    port_counters,
};
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd, together};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_fabric::layer::Counted;
use lockwright_fabric::{
    Addr, AtomicScope, Cond, Endpoint, FabricError, Message, NodeId, PeerId, RegionId, Word64,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
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
fn a_queue_pair_in_error_is_replaced_and_only_what_was_under_way_fails() {
    if !has_device() {
        return;
    }
    let host = a_host();
    let (client, other) = (a_client(&host), a_client(&host));
    for round in 1..=3 {
        assert_eq!(block_on(client.go(WORD.fetch_add(1))), Ok(2 * (round - 1)));
        // On this side it is noticed at once; on the other, when nothing has answered for a while.
        if round == 2 {
            assert!(host.break_queue_pair(client.me()));
        } else {
            client.break_queue_pair();
        }
        // Under way when it is noticed: whether it happened is not known, and it must not happen later.
        assert_eq!(block_on(client.go(WORD.fetch_add(0))), Err(FabricError::NodeLost(NodeId(0))));
        // What comes then waits for the new queue pair, and goes over it.
        assert_eq!(block_on(client.go(WORD.fetch_add(1))), Ok(2 * round - 1));
        assert_eq!(client.renewals(), round);
        assert!(!client.is_lost());
    }
    let fault = client.last_fault().expect("something went wrong");
    assert!(fault.starts_with("rxe0 port 1: "), "{fault}");
    // Others have noticed nothing.
    assert_eq!((block_on(other.go(WORD.read())), other.renewals()), (Ok(6), 0));
}

#[test]
fn no_letter_of_the_host_is_lost_or_doubled_when_queue_pairs_fail() {
    const LETTERS: u64 = 300;
    if !has_device() {
        return;
    }
    let options = HostOptions { first_client: 1, ..HostOptions::default() };
    let host = RdmaHost::start(InProc::new(1, 64), vec![], options, |_| {}).unwrap();
    let local = host.local(PeerId::client(0), NodeId(0));
    let remote = a_client(&host);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..LETTERS {
                block_on(local.send(remote.me(), Message::new(0, 1, &[number]))).unwrap();
                if number % 60 == 30 {
                    host.break_queue_pair(remote.me());
                }
            }
        });
        for number in 0..LETTERS {
            let got = block_on(remote.recv(|_, message| Some(message.words[0])));
            assert_eq!(got, number, "in order, once each");
        }
    });
    assert!(remote.renewals() > 0 && !remote.is_lost());
}

#[test]
fn what_is_posted_unheard_comes_before_what_is_issued_later() {
    if !has_device() {
        return;
    }
    let host = a_host();
    let client = a_client(&host);
    for value in 1..200 {
        until("there is room", || client.post(WORD.write(value)));
        assert_eq!(block_on(client.go(WORD.read())), Ok(value));
    }
    // If the queue pair fails in between, that can be seen.
    let before = client.renewals();
    client.break_queue_pair();
    until("the queue pair is replaced", || {
        block_on(client.go(WORD.read())).is_ok() && client.renewals() > before
    });
    until("there is room", || client.post(WORD.fetch_add(1)));
    assert_eq!(block_on(client.go(WORD.read())), Ok(200));
}

/// Lends memory to those who say so.
struct Lender {
    memory: Arc<InProc>,
    lent: Mutex<Vec<PeerId>>,
    next: AtomicU32,
}

impl Reception for Lender {
    fn admit(&self, name: &str) -> Option<PeerId> {
        let peer = PeerId(self.next.fetch_add(1, Relaxed));
        if name.ends_with("\nlend") {
            self.lent.lock().unwrap().push(peer);
        }
        Some(peer)
    }

    fn memory(&self, peer: PeerId) -> Option<Arc<InProc>> {
        self.lent.lock().unwrap().contains(&peer).then(|| Arc::clone(&self.memory))
    }

    fn attach(&self, _: PeerId, _: Inbox) {}

    fn deliver(&self, _: PeerId, _: PeerId, _: &Message) {}

    fn on_lost(&self, _: PeerId, _: SessionEnd) {}
}

#[test]
fn memory_is_lent_to_those_who_are_to_have_it_and_its_atomics_are_one_step_to_them() {
    if !has_device() {
        return;
    }
    let memory = Arc::new(InProc::new(1, 4096));
    let (lent, next) = (Mutex::default(), AtomicU32::new(1));
    let lender = Lender { memory: Arc::clone(&memory), lent, next };
    let options = HostOptions { heartbeat: Duration::from_millis(50), ..HostOptions::default() };
    let host = RdmaHost::receive(Arc::new(lender), options).unwrap();
    let connect = |name: &str| {
        let options = RdmaOptions { name: name.to_owned(), ..RdmaOptions::default() };
        RdmaEndpoint::connect(host.address(), options).unwrap()
    };
    let (has, has_not) = (connect("one\nlend"), connect("two"));
    let region = RegionId(0);
    assert_eq!((has.lends_in(NodeId(0), region), has_not.lends_in(NodeId(0), region)), (4096, 0));
    assert_eq!(block_on(has.go(WORD.fetch_add(3))), Ok(0));
    assert_eq!(memory.peek(WORD), 3);
    let scopes = [&has, &has_not].map(|ep| ep.capabilities().scope);
    assert_eq!(scopes, [AtomicScope::Global, AtomicScope::Nic]);
    // Signs of life are answered, again and again.
    std::thread::sleep(Duration::from_millis(200));
    until("a sign of life is answered", || has.acknowledged() < Duration::from_millis(190));
}

/// Says again what it is told, when all that came together is there.
#[derive(Default)]
struct Echo {
    inbox: Mutex<Option<Inbox>>,
    heard: Mutex<Vec<Message>>,
    settled: AtomicU32,
}

impl Reception for Echo {
    fn admit(&self, _: &str) -> Option<PeerId> {
        Some(PeerId::client(0))
    }

    fn attach(&self, _: PeerId, inbox: Inbox) {
        *self.inbox.lock().unwrap() = Some(inbox);
    }

    fn deliver(&self, _: PeerId, _: PeerId, message: &Message) {
        self.heard.lock().unwrap().push(message.clone());
    }

    fn settle(&self) {
        self.settled.fetch_add(1, Relaxed);
        let inbox = self.inbox.lock().unwrap().clone().unwrap();
        together(|| {
            // Not let go of in between: another thread may settle what came next, and must not be first.
            let mut heard = self.heard.lock().unwrap();
            heard.drain(..).for_each(|message| assert!(inbox.deliver(PeerId::role(0), message)));
        });
    }

    fn on_lost(&self, _: PeerId, _: SessionEnd) {}
}

#[test]
fn letters_that_come_together_are_settled_together_and_answers_leave_in_their_order() {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    if !has_device() {
        return;
    }
    let echo = Arc::new(Echo::default());
    let host = RdmaHost::receive(Arc::clone(&echo) as Arc<dyn Reception>, HostOptions::default()).unwrap();
    let client = a_client(&host);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for number in 0..EACH {
                    // Some are long: few of them fit together.
                    let tail = vec![number; if number % 10 == 0 { 300 } else { 0 }];
                    let message = Message { tail, ..Message::new(0, 1, &[thread, number]) };
                    block_on(client.send(PeerId::role(0), message)).unwrap();
                }
            });
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let message = block_on(client.recv(|_, message| Some(message.clone())));
            let [thread, number, ..] = message.words;
            assert_eq!(number, next[thread as usize], "in order, once each");
            assert!(message.tail.iter().all(|word| *word == number));
            next[thread as usize] += 1;
        }
    });
    let settled = echo.settled.load(Relaxed);
    println!("{} letters, settled in {settled} goes", THREADS * EACH);
    assert!((1..=(THREADS * EACH) as u32).contains(&settled), "{settled}");
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
    assert!(said.contains("LWR3") && said.contains("LWR1") && said.contains("same release"), "{said}");
}

#[test]
fn what_only_mlx5_has_is_refused_elsewhere_and_the_device_is_named() {
    if !has_device() {
        return;
    }
    let host = a_host();
    let extended = RdmaOptions { extended_atomics: true, ..RdmaOptions::default() };
    let dynamic = RdmaOptions { dynamic: true, ..RdmaOptions::default() };
    for (options, what) in
        [(extended, "masked and 16-byte atomics"), (dynamic, "dynamically connected transport")]
    {
        let error = RdmaEndpoint::connect(host.address(), options).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("rxe0 is no mlx5 device"), "{error}");
    }
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
    // The first letter makes the connection.
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
    // A packet for every verb and letter and one that answers it, at least: retries come on top.
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
