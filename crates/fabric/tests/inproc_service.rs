//! What the conformance suite does not ask of the in-process backend: its roles, its deaths, its bounds, and
//! futures that can go to other threads.

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::{
    Addr, BoxedRole, Cond, Deadline, Endpoint, FabricError, Message, NodeId, Outbox, PeerId, RawVerb, Role,
    Time, Word64, Word128,
};
use std::pin::pin;
use std::task::{Context, Waker};

const COUNTER: Word64 = Word64::at(Addr::new(NodeId(0), 0));
const CLIENT: PeerId = PeerId::client(0);
const SERVER: PeerId = PeerId::role(0);

/// Counts in its node's memory, echoes, and reminds after a while.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reminder {
    of: Option<(PeerId, u64)>,
}

impl Role for Reminder {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        out.send(from, Message::new(message.lock, 1, &message.words));
        let verb: RawVerb = COUNTER.fetch_add(1).raw();
        out.post(verb);
        if message.words[0] > 0 {
            self.of = Some((from, message.lock));
            out.arm(message.words[0], 42);
        }
    }

    fn on_timer(&mut self, _: Time, id: u64, out: &mut Outbox) {
        let (from, lock) = self.of.take().expect("the timer was armed for a client");
        out.send(from, Message::new(lock, 2, &[id]));
    }
}

fn serving() -> (InProc, InProcEndpoint) {
    let fabric = InProc::new(1, 64);
    fabric.serve(vec![BoxedRole::new(Reminder { of: None })]);
    let ep = fabric.endpoint(CLIENT);
    (fabric, ep)
}

#[test]
fn a_role_executes_its_verbs_before_its_messages_leave_and_its_timers_run_out() {
    let (_fabric, ep) = serving();
    block_on(async {
        for n in 1..=100 {
            ep.send(SERVER, Message::new(n, 0, &[])).await.unwrap();
            ep.recv(|from, message| (from == SERVER && message.lock == n).then_some(())).await;
            assert_eq!(ep.go(COUNTER.read()).await, Ok(n));
        }
        let before = ep.now().await;
        ep.send(SERVER, Message::new(7, 0, &[500_000])).await.unwrap();
        let id = ep.recv(|_, message| (message.kind == 2).then_some(message.words[0])).await;
        assert_eq!(id, 42);
        assert!(ep.now().await.since(before) >= 500_000);
    });
}

#[test]
fn a_role_stops_with_its_fabric_and_memory_stays() {
    let (fabric, ep) = serving();
    drop(fabric);
    let lost = Err(FabricError::PeerLost(SERVER));
    assert_eq!(block_on(ep.send(SERVER, Message::default())), lost);
    assert_eq!(block_on(ep.go(COUNTER.read())), Ok(0));
}

#[test]
fn a_role_that_panics_is_lost_to_its_peers() {
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Panics;
    impl Role for Panics {
        fn on_message(&mut self, _: Time, _: PeerId, _: &Message, _: &mut Outbox) {
            panic!("this role was made to panic");
        }
    }
    let fabric = InProc::new(1, 64);
    fabric.serve(vec![BoxedRole::new(Panics)]);
    let ep = fabric.endpoint(CLIENT);
    block_on(async {
        while ep.send(SERVER, Message::default()).await.is_ok() {
            ep.sleep(100_000).await;
        }
    });
}

#[test]
fn a_dying_node_takes_its_role_and_its_waiters_with_it() {
    let (fabric, ep) = serving();
    let waiter = std::thread::spawn({
        let ep = ep.clone();
        move || block_on(ep.wait_until(COUNTER.until(Cond::Eq { mask: 1, value: 1 })))
    });
    block_on(ep.sleep(300_000));
    fabric.kill(NodeId(0));
    assert_eq!(waiter.join().unwrap(), Err(FabricError::NodeLost(NodeId(0))));
    assert_eq!(block_on(ep.go(COUNTER.read())), Err(FabricError::NodeLost(NodeId(0))));
    assert_eq!(block_on(ep.send(SERVER, Message::default())), Err(FabricError::PeerLost(SERVER)));
}

#[test]
fn a_client_is_lost_when_its_last_endpoint_is_gone() {
    let fabric = InProc::new(1, 64);
    let (a, b) = (fabric.endpoint(CLIENT), fabric.endpoint(PeerId::client(1)));
    let clone = b.clone();
    drop(b);
    assert_eq!(block_on(a.send(PeerId::client(1), Message::default())), Ok(()));
    drop(clone);
    let lost = Err(FabricError::PeerLost(PeerId::client(1)));
    assert_eq!(block_on(a.send(PeerId::client(1), Message::default())), lost);
}

#[test]
fn a_dropped_wait_leaves_no_trace() {
    let fabric = InProc::new(1, 64);
    let ep = fabric.endpoint(CLIENT);
    for _ in 0..3 {
        let deadline = Deadline::At(block_on(ep.now()).plus(3_600_000_000_000));
        let mut wait = pin!(ep.wait_until(COUNTER.until(Cond::Eq { mask: 1, value: 1 }).by(deadline)));
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(format!("{fabric:?}").contains("Waiter"), "one is parked");
    }
    assert_eq!(block_on(ep.go(COUNTER.fetch_add(1))), Ok(0));
    assert!(!format!("{fabric:?}").contains("Waiter"), "nobody is parked any more");
}

#[test]
fn regions_are_apart_and_home_is_known() {
    let fabric = InProc::with_regions(2, &[64, 16]);
    let ep = fabric.endpoint_at(CLIENT, NodeId(1));
    assert_eq!(ep.home(), Some(NodeId(1)));
    let at = |node, region| {
        let addr = Addr { offset: 0, node: NodeId(node), region: lockwright_fabric::RegionId(region) };
        Word128::at(addr)
    };
    for (value, (node, region)) in (1..).zip([(0, 0), (0, 1), (1, 0), (1, 1)]) {
        fabric.poke(at(node, region), value);
    }
    let all = (at(0, 0).read(), at(0, 1).read(), at(1, 0).read(), at(1, 1).read());
    assert_eq!(block_on(ep.go(all)), Ok((1, 2, 3, 4)));
}

#[test]
#[should_panic(expected = "no word of 8 bytes at n0+0x40: the region has 64 bytes")]
fn a_word_beyond_its_region_panics() {
    let fabric = InProc::new(1, 64);
    let _ = block_on(fabric.endpoint(CLIENT).go(Word64::at(Addr::new(NodeId(0), 64)).read()));
}

#[test]
#[should_panic(expected = "n3+0x0 lies in no region of this fabric")]
fn a_word_on_no_node_panics() {
    let fabric = InProc::new(1, 64);
    let _ = block_on(fabric.endpoint(CLIENT).go(Word64::at(Addr::new(NodeId(3), 0)).read()));
}

#[test]
fn a_seed_gives_every_client_numbers_of_its_own() {
    let numbers = |seed, client| {
        let ep = InProc::new(1, 16).seeded(seed).endpoint(PeerId::client(client));
        let clone = ep.clone();
        [ep.random(), clone.random(), ep.random()]
    };
    assert_eq!(numbers(1, 0), numbers(1, 0));
    assert_ne!(numbers(1, 0), numbers(1, 1));
    assert_ne!(numbers(1, 0), numbers(2, 0));
    let [a, b, c] = numbers(1, 0);
    assert!(a != b && b != c, "clones are one client and share its numbers");
}

#[test]
fn endpoints_and_their_futures_can_go_to_other_threads() {
    fn check<T: Send>(what: T) -> T {
        what
    }
    fn check_sync<T: Send + Sync>(_: &T) {}
    let fabric = InProc::new(1, 64);
    let ep = check(fabric.endpoint(CLIENT));
    check_sync(&ep);
    check_sync(&fabric);
    drop(check(ep.go((COUNTER.read(), COUNTER.write(1)))));
    drop(check(ep.wait_until(COUNTER.until(Cond::Eq { mask: 1, value: 1 }))));
    drop(check(ep.recv_by(Deadline::Now, |_, _| Some(()))));
    drop(check(ep.send(CLIENT, Message::default())));
    drop(check(ep.sleep(1)));
    drop(check(ep.passed(Time(0))));
    let layered = lockwright_fabric::count::Counted::new(ep);
    drop(check(layered.go(COUNTER.read())));
    drop(check(layered.recv(|_, _| Some(()))));
}
