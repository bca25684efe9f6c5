//! What happens in a space when processes join at the same time, are stopped, evicted, and killed.

#![cfg(all(feature = "shm", target_os = "linux"))]

mod children;

use children::*;
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Reclaim, ShmSpace, SpaceOptions};
use lockwright_fabric::*;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const WORD: Word64 = Word64::at(Addr::new(NodeId(0), 0));

/// What child processes run; a test only because that is how a test binary finds it.
#[test]
fn child() {
    serve_if_child();
}

fn space(place: &Place) -> ShmSpace {
    ShmSpace::open(&place.0, &SpaceOptions::default().names(64)).unwrap()
}

/// A wait that never ends by itself.
fn for_ever() -> Vec<u64> {
    encode_wait(&WORD.until(Cond::Eq { mask: u128::MAX, value: 77 }))
}

/// Until it sleeps, and not only for a moment, as on its way there.
fn asleep(process: &Process) {
    const LOOKS: u32 = 10;
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let (mut looks, mut used) = (0, 0);
    while looks < LOOKS {
        let now = process.cpu_ns();
        looks = if now == used && state().contains(") S ") { looks + 1 } else { 0 };
        used = now;
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn processes_that_make_a_space_at_once_make_one() {
    for _ in 0..3 {
        let place = Place::new();
        let barrier = Barrier::new(6);
        let processes: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                Process::start(&place.0, "child")
            };
            let started: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let space = space(&place);
        let mut joined: Vec<_> = space.clients().iter().map(|client| client.peer).collect();
        let mut expected: Vec<_> = processes.iter().map(|process| process.me).collect();
        joined.sort_unstable();
        expected.sort_unstable();
        assert_eq!(joined, expected, "all processes are in the same space");
    }
}

#[test]
fn a_killed_client_is_dead_until_it_is_reaped() {
    let place = Place::new();
    let space = space(&place);
    let mut victim = Process::start(&place.0, "child");
    let bystander = Process::start(&place.0, "child");
    victim.tell(&for_ever());
    asleep(&victim);
    assert!(space.is_alive(victim.me));
    victim.child.kill().unwrap();
    // A zombie counts as dead.
    while space.is_alive(victim.me) {
        std::thread::yield_now();
    }
    assert!(!space.is_alive(victim.me) && space.is_alive(bystander.me));
    let dead: Vec<_> = space.dead_clients().iter().map(|client| client.peer).collect();
    assert_eq!(dead, [victim.me]);
    let ep = space.endpoint().unwrap();
    let lost = Err(FabricError::PeerLost(victim.me));
    assert_eq!(block_on(ep.send(victim.me, Message::default())), lost);
    assert!(space.reap(victim.me));
    assert!(space.dead_clients().is_empty());
    assert!(!space.reap(bystander.me), "a member is not reaped");
    victim.child.wait().unwrap();
}

#[test]
fn a_message_to_a_killed_client_fails_at_the_sender() {
    let place = Place::new();
    let space = space(&place);
    let mut victim = Process::start(&place.0, "child");
    victim.tell(&for_ever());
    asleep(&victim);
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    let ep = space.endpoint().unwrap();
    let sent = block_on(ep.send(victim.me, Message::default()));
    assert_eq!(
        sent,
        Err(FabricError::PeerLost(victim.me)),
        "it slept when it died: nothing was needed to notice"
    );
}

#[test]
fn an_evicted_client_learns_it_on_waking() {
    let place = Place::new();
    let space = space(&place);
    let (stopped, waiting) = (Process::start(&place.0, "child"), Process::start(&place.0, "child"));
    let go: Vec<_> = [GO].into_iter().chain(encode_verb(&WORD.fetch_add(1).raw())).collect();
    assert_eq!(stopped.ask(&go), [0, 0, 0]);
    stopped.signal("-STOP");
    waiting.tell(&for_ever());
    asleep(&waiting);
    assert!(space.is_alive(stopped.me), "a stopped process is not dead");
    assert!(space.evict(stopped.me) && space.evict(waiting.me));
    assert!(!space.evict(stopped.me), "it is already");
    assert!(!space.is_alive(stopped.me));
    let learned = |answer: &[u64]| assert_eq!(decode_error(answer), FabricError::Evicted);
    learned(&waiting.answer().unwrap());
    stopped.tell(&go);
    assert!(!space.reap(stopped.me), "its process may still touch what is its");
    stopped.signal("-CONT");
    learned(&stopped.answer().unwrap());
    assert_eq!(stopped.ask(&[IS_MEMBER]), [0]);
    assert_eq!(space.peek(WORD), 1, "its verb was not done");
    let message: Vec<_> = [SEND, waiting.me.0.into()].into_iter().chain([0; 7]).collect();
    learned(&stopped.ask(&message));
}

#[test]
fn a_blocked_waiter_uses_no_cpu() {
    let place = Place::new();
    let _space = space(&place);
    let process = Process::start(&place.0, "child");
    let second = process.ask(&[NOW])[0] + 1_000_000_000;
    let before = process.cpu_ns();
    let never = WORD.until(Cond::Eq { mask: u128::MAX, value: 77 }).by(Deadline::At(Time(second)));
    assert_eq!(process.ask(&encode_wait(&never))[3], 0);
    let used = process.cpu_ns() - before;
    println!("a waiter blocked for one second used {} µs of CPU", used / 1000);
    assert!(used < 200_000_000, "{used} ns");
}

#[test]
fn a_process_killed_in_the_directory_wedges_nothing() {
    let place = Place::new();
    let space = space(&place);
    let ep = space.endpoint().unwrap();
    let names = ep.names();
    let backlog = names.open(b"backlog").unwrap();
    for round in 0..25 {
        let mut process = Process::start(&place.0, "child");
        process.tell(&[CHURN, round]);
        std::thread::sleep(Duration::from_micros(300 + 170 * round));
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        assert_eq!(names.open(b"backlog").unwrap(), backlog);
        names.close(backlog.id, |_| unreachable!("it is still open")).unwrap();
        assert!(!space.is_alive(process.me));
        names.drop_all_of(process.me, |_| Reclaim::Reuse { highest_token: 0, own_token: 0 }).unwrap();
        assert_eq!(names.names_of(process.me).unwrap(), []);
        assert!(space.reap(process.me), "round {round}");
    }
    // Nothing has leaked: all the room is there.
    names.sweep(|_| Reclaim::Reuse { highest_token: 0, own_token: 0 }).unwrap();
    assert_eq!(names.len(), 1);
    let opened: Vec<_> = (0..63).map(|n| names.open(name(n).as_bytes()).unwrap().id).collect();
    assert_eq!(
        names.open(b"one too many").unwrap_err().to_string().split(',').next(),
        Some("the lock space has room for 64 names")
    );
    assert_eq!(names.all().unwrap().len(), 64);
    for id in opened {
        names.close(id, |_| Reclaim::Keep).unwrap();
    }
}

#[test]
fn names_of_a_killed_process_are_known_and_dropped() {
    let place = Place::new();
    let space = space(&place);
    let mut process = Process::start(&place.0, "child");
    let ids = [process.ask(&[OPEN, 1])[0], process.ask(&[OPEN, 2])[0]];
    let names = space.endpoint().unwrap().names();
    let shared = names.open(name(2).as_bytes()).unwrap();
    assert_eq!(shared.id, ids[1]);
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    assert!(!space.is_alive(process.me));
    assert!(!space.reap(process.me), "its names say which locks it may hold");
    assert_eq!(names.names_of(process.me).unwrap(), ids);
    let mut asked = Vec::new();
    let dropped = names.drop_all_of(process.me, |id| {
        asked.push(id);
        Reclaim::Reuse { highest_token: 41, own_token: 0 }
    });
    assert_eq!(dropped.unwrap(), ids);
    assert_eq!(asked, ids[..1], "the other is still in use");
    assert_eq!(names.find(name(1).as_bytes()).unwrap(), None);
    assert_eq!(names.open(name(1).as_bytes()).unwrap().token_base, 41, "tokens of the name go on rising");
    assert!(space.reap(process.me));
}

#[test]
fn a_sender_killed_while_it_writes_stops_nobody() {
    let place = Place::new();
    let space = space(&place);
    let ep = space.endpoint().unwrap();
    for round in 0..20 {
        let mut process = Process::start(&place.0, "child");
        process.tell(&[FLOOD, ep.me().0.into()]);
        // It writes as fast as it is read.
        let until = Instant::now() + Duration::from_micros(500 + 130 * round);
        let check = |from: PeerId, message: &Message| {
            let whole = message.words == [message.lock; 4] && message.tail.len() as u64 == message.lock % 20;
            Some((from, whole))
        };
        while Instant::now() < until {
            if let Some((from, whole)) = block_on(ep.recv_by(Deadline::Now, check)) {
                assert!(whole && from == process.me);
            }
        }
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        block_on(ep.send(ep.me(), Message { words: [1, 2, 3, 4], ..Message::default() })).unwrap();
        while block_on(ep.recv(|from, _| Some(from))) != ep.me() {}
        assert!(!space.is_alive(process.me) && space.reap(process.me));
    }
}

#[test]
fn a_space_of_ten_million_locks_opens_quickly() {
    let place = Place::new();
    let options = SpaceOptions::default().lock_bytes(160_000_000).names(10_000_000);
    let start = Instant::now();
    let made = ShmSpace::open(&place.0, &options).unwrap();
    let first = start.elapsed();
    let start = Instant::now();
    let ep = ShmSpace::open(&place.0, &options).unwrap().endpoint().unwrap();
    println!("ten million locks: made in {first:?}, opened and joined in {:?}", start.elapsed());
    let last = Word128::at(Addr::new(NodeId(0), 160_000_000 - 16));
    assert_eq!(block_on(ep.go(last.fetch_add(1))), Ok(0));
    let used = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&place.0).unwrap()) * 512;
    println!("it uses {} KiB", used / 1024);
    assert!(used < 1 << 20);
    drop(made);
}

#[test]
fn a_full_client_table_is_said_and_the_dead_make_room() {
    let place = Place::new();
    let space = ShmSpace::open(&place.0, &SpaceOptions::default().clients(2).peer_bits(4)).unwrap();
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (first, second) = (space.endpoint().unwrap(), space.endpoint().unwrap());
        let full = space.endpoint().unwrap_err().to_string();
        assert_eq!(full, "the lock space has room for 2 clients, and that many are there");
        seen.extend([first.me(), second.me()]);
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "numbers are not used again soon: {seen:?}");
    let mut killed = Process::start(&place.0, "child");
    let _other = space.endpoint().unwrap();
    assert!(space.endpoint().is_err());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(space.endpoint().is_ok(), "the slot of a dead process is used again");
}
