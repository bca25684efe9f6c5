//! Every kind of fault happens when asked for, does what it says, and is treated fairly by the checkers.

use lockwright_baselines::cas::Cas;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{
    Addr, AtomicScope, Cond, Deadline, Endpoint, FabricError, Message, NodeId, PeerId, Time, Width, Word64,
};
use lockwright_locks::Want;
use lockwright_locks::shiftlock::{ShiftLock, ShiftParams};
use lockwright_sim::fault::{ClientFault, CrashPoint, FaultPlan, NetworkFaults, Pause};
use lockwright_sim::{Cause, Ended, Plan, Setup, SimEndpoint, World, run};
use std::cell::RefCell;
use std::rc::Rc;

const WORD: Word64 = Word64::at(Addr::new(NodeId(0), 0));
const FAR: u64 = 1_000_000_000;

fn world(faults: FaultPlan) -> World<'static> {
    World::new(Setup { clients: 2, faults, ..Setup::default() })
}

fn at(client: usize, verb: u64, when: CrashPoint) -> ClientFault {
    ClientFault { client: PeerId::client(client), verb, when }
}

/// A place for clients to leave what they saw.
fn notes<T: Default>() -> (Rc<RefCell<T>>, Rc<RefCell<T>>) {
    let notes = Rc::new(RefCell::new(T::default()));
    (Rc::clone(&notes), notes)
}

async fn add_twice(ep: SimEndpoint) {
    ep.go(WORD.fetch_add(1)).await.unwrap();
    ep.go(WORD.fetch_add(10)).await.unwrap();
}

#[test]
fn a_crash_before_a_verb_leaves_it_undone_and_one_after_does_not() {
    for (when, left) in [(CrashPoint::Before, 1), (CrashPoint::After, 11)] {
        let mut world = world(FaultPlan { crashes: vec![at(0, 1, when)], ..FaultPlan::default() });
        world.spawn(None, add_twice);
        assert_eq!(world.run(FAR), Ok(Ended::AllDone));
        world.drain(FAR).unwrap();
        assert_eq!(world.read(WORD.addr(), Width::W64), left, "{when:?}");
        assert_eq!(world.counters().crashes, 1);
    }
}

#[test]
fn a_crash_inside_a_batch_cuts_it_in_two() {
    let mut world = world(FaultPlan { crashes: vec![at(0, 1, CrashPoint::Before)], ..FaultPlan::default() });
    world.spawn(None, |ep| async move {
        ep.go([WORD.fetch_add(1), WORD.fetch_add(10)]).await.unwrap();
        unreachable!("a crashed client goes nowhere");
    });
    world.run(FAR).unwrap();
    world.drain(FAR).unwrap();
    assert_eq!(world.read(WORD.addr(), Width::W64), 1);
}

#[test]
fn a_client_that_polls_can_crash_or_pause_at_any_of_its_reads() {
    let never = Cond::Eq { mask: u128::MAX, value: 1 };
    for (when, reads) in [(CrashPoint::Before, 5), (CrashPoint::After, 6)] {
        let pause = Pause { at: at(0, 2, CrashPoint::Before), ns: 1_000_000 };
        let faults = FaultPlan { crashes: vec![at(0, 5, when)], pauses: vec![pause], ..FaultPlan::default() };
        let mut world = world(faults);
        world.spawn(None, move |ep| async move {
            ep.wait_until(WORD.until(never)).await.unwrap();
        });
        assert_eq!(world.run(FAR), Ok(Ended::AllDone));
        world.drain(FAR).unwrap();
        assert_eq!((world.counters().crashes, world.counters().reads), (1, reads), "{when:?}");
        assert!(world.now_ns() > 1_000_000);
    }
}

#[test]
fn a_paused_client_comes_back_as_if_nothing_had_happened() {
    for when in [CrashPoint::Before, CrashPoint::After] {
        let pause = Pause { at: at(0, 1, when), ns: 1_000_000 };
        let mut world = world(FaultPlan { pauses: vec![pause], ..FaultPlan::default() });
        world.spawn(None, add_twice);
        world.run(500_000).unwrap();
        let meanwhile = if when == CrashPoint::Before { 1 } else { 11 };
        assert_eq!(world.read(WORD.addr(), Width::W64), meanwhile, "{when:?}");
        assert_eq!(world.run(FAR), Ok(Ended::AllDone));
        assert_eq!(world.read(WORD.addr(), Width::W64), 11);
        assert!(world.now_ns() > 1_000_000);
    }
}

#[test]
fn a_dead_node_answers_that_it_is_lost_and_takes_its_clients_along() {
    let mut world = world(FaultPlan { node_deaths: vec![(NodeId(0), 100_000)], ..FaultPlan::default() });
    let (seen, notes) = notes::<Option<FabricError>>();
    world.spawn(None, |ep| async move {
        loop {
            if let Err(lost) = ep.go(WORD.fetch_add(1)).await {
                *seen.borrow_mut() = Some(lost);
                return;
            }
        }
    });
    world.spawn(Some(NodeId(0)), |ep| async move {
        loop {
            ep.sleep(1_000).await;
        }
    });
    assert_eq!(world.run(FAR), Ok(Ended::AllDone));
    assert_eq!(*notes.borrow(), Some(FabricError::NodeLost(NodeId(0))));
    assert_eq!(world.counters().crashes, 1);
}

/// Sends a hundred numbered datagrams and gives back the numbers that arrived, in order.
fn datagrams(network: NetworkFaults) -> (Vec<u64>, World<'static>) {
    let mut world = world(FaultPlan { network, ..FaultPlan::default() });
    let (seen, notes) = notes::<Vec<u64>>();
    world.spawn(None, |ep| async move {
        for number in 0..100 {
            ep.send_datagram(PeerId::client(1), Message::new(0, 1, &[number])).await.unwrap();
            ep.sleep(100).await;
        }
    });
    world.spawn(None, |ep| async move {
        let until = Deadline::At(Time(10_000_000));
        while let Some(number) = ep.recv_by(until, |_, message| Some(message.words[0])).await {
            seen.borrow_mut().push(number);
        }
    });
    assert_eq!(world.run(FAR), Ok(Ended::AllDone));
    let arrived = notes.borrow().clone();
    (arrived, world)
}

#[test]
fn datagrams_are_lost_doubled_reordered_and_delayed() {
    let none = NetworkFaults::default();
    let (arrived, world) = datagrams(NetworkFaults { loss: 0.3, ..none });
    assert!((50..90).contains(&arrived.len()) && world.counters().lost as usize == 100 - arrived.len());
    let (arrived, world) = datagrams(NetworkFaults { duplication: 0.3, ..none });
    assert!(arrived.len() as u64 == 100 + world.counters().doubled && world.counters().doubled > 10);
    let (arrived, world) = datagrams(NetworkFaults { reorder: 0.3, ..none });
    assert!(arrived.len() == 100 && !arrived.is_sorted() && world.counters().reordered > 10);
    let (arrived, _) = datagrams(NetworkFaults { extra_delay_ns: 50_000, ..none });
    assert!(arrived.len() == 100 && !arrived.is_sorted());
}

#[test]
fn reliable_messages_arrive_once_and_in_order_whatever_the_network_does() {
    let network = NetworkFaults { loss: 0.5, duplication: 0.5, reorder: 0.5, extra_delay_ns: 20_000 };
    let mut world = world(FaultPlan { network, ..FaultPlan::default() });
    world.spawn(None, |ep| async move {
        for number in 0..100 {
            ep.send(PeerId::client(1), Message::new(0, 1, &[number])).await.unwrap();
        }
    });
    world.spawn(None, |ep| async move {
        for number in 0..100 {
            assert_eq!(ep.recv(|_, message| Some(message.words[0])).await, number);
        }
    });
    assert_eq!(world.run(FAR), Ok(Ended::AllDone));
}

#[test]
fn clocks_drift_apart_within_the_bound() {
    let mut world = world(FaultPlan { clock_drift_ppm: 200, ..FaultPlan::default() });
    let (seen, notes) = notes::<Vec<u64>>();
    for _ in 0..2 {
        let seen = Rc::clone(&seen);
        world.spawn(None, |ep| async move {
            ep.sleep(1_000_000_000).await;
            let error = ep.now().await.0.abs_diff(ep.true_now_ns());
            assert!(error <= ep.true_now_ns() / 1_000_000 * 200 + 1);
            seen.borrow_mut().push(error);
        });
    }
    assert_eq!(world.run(2 * FAR), Ok(Ended::AllDone));
    let errors = notes.borrow();
    assert!(errors[0] != errors[1] && errors.iter().all(|error| *error > 0));
}

#[test]
fn under_weak_scope_a_local_write_inside_a_remote_atomic_is_lost() {
    // The remote add reads 0; the CPU adds 100 while it is at work; the add then writes 0 + 1.
    let lost = (1..200).any(|seed| {
        let mut setup = Setup { clients: 2, seed, ..Setup::default() };
        setup.nic.offers.scope = AtomicScope::Nic;
        let mut world = World::new(setup);
        world.spawn(None, |ep| async move {
            ep.go(WORD.fetch_add(1)).await.unwrap();
        });
        world.spawn(Some(NodeId(0)), |ep| async move {
            ep.go(WORD.fetch_add(100)).await.unwrap();
        });
        world.run(FAR).unwrap();
        world.drain(FAR).unwrap();
        world.read(WORD.addr(), Width::W64) == 1
    });
    assert!(lost);
}

#[test]
fn a_dropped_wait_waits_no_longer_but_a_dropped_verb_still_happens() {
    let mut world = world(FaultPlan::default());
    world.spawn(None, |ep| async move {
        let verb = ep.go(WORD.fetch_add(1));
        let sleep = ep.sleep(100);
        let mut verb = Box::pin(verb);
        let mut sleep = std::pin::pin!(sleep);
        std::future::poll_fn(|cx| {
            assert!(verb.as_mut().poll(cx).is_pending());
            sleep.as_mut().poll(cx)
        })
        .await;
        drop(verb);
        assert_eq!(ep.go(WORD.read()).await, Ok(1));
    });
    assert_eq!(world.run(FAR), Ok(Ended::AllDone));
}

#[test]
fn a_lock_without_recovery_may_hang_after_a_crash_but_nobody_enters() {
    let faults = FaultPlan { crash_rate: 0.001, ..FaultPlan::default() };
    for seed in 1..=5 {
        let plan = Plan {
            clients: 8,
            locks: 4,
            ops: 5_000,
            seed,
            faults: faults.clone(),
            max_virtual_ns: 50_000_000,
            ..Plan::default()
        };
        let report = run::<Cas>(&plan, &()).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.crashed > 0);
    }
}

#[test]
fn pauses_by_rate_delay_and_break_nothing() {
    let faults = FaultPlan { pause_rate: 0.001, pause_ns: 100_000, ..FaultPlan::default() };
    let plan = Plan { clients: 8, locks: 4, ops: 5_000, faults, ..Plan::default() };
    let paused = run::<Cas>(&plan, &()).unwrap();
    let calm = run::<Cas>(&Plan { faults: FaultPlan::default(), ..plan }, &()).unwrap();
    assert!(paused.acquire.max_ns > 100_000 && paused.virtual_ns > calm.virtual_ns);
}

/// Client 0 is granted the lock and crashes; client 1 is granted it later, with or without a recovery.
fn takes_over(recovers: bool, says_so: bool) -> Result<(), String> {
    let setup = Setup {
        clients: 2,
        recovers,
        faults: FaultPlan { crashes: vec![at(0, 1, CrashPoint::Before)], ..FaultPlan::default() },
        ..Setup::default()
    };
    let mut world = World::new(setup);
    let claim = Want::exclusive(0).claim;
    world.spawn(None, move |ep| async move {
        ep.observe(Observation::Waiting(claim));
        ep.go(WORD.fetch_add(1)).await.unwrap();
        ep.observe(Observation::Granted(claim, None));
        ep.go(WORD.fetch_add(1)).await.unwrap();
    });
    world.spawn(None, move |ep| async move {
        ep.sleep(100_000).await;
        ep.observe(Observation::Waiting(claim));
        ep.go(WORD.fetch_add(1)).await.unwrap();
        ep.observe(Observation::Granted(claim, None));
        if says_so {
            ep.observe(Observation::Recovered(claim));
        }
    });
    let ran = world.run(FAR).map(|_| ()).and_then(|()| world.finish());
    ran.map_err(|violation| violation.to_string())
}

#[test]
fn a_crashed_holder_gives_way_only_to_a_recovery() {
    assert_eq!(takes_over(true, true), Ok(()));
    assert!(takes_over(true, false).unwrap_err().contains("nobody recovered it"));
    assert!(takes_over(false, true).unwrap_err().contains("while C0 holds L0x"));
}

#[test]
fn a_run_that_takes_too_long_is_called_stuck() {
    let plan = Plan { max_virtual_ns: 10_000, ..Plan::default() };
    let failure = run::<Cas>(&plan, &()).unwrap_err();
    assert!(matches!(failure.cause, Cause::Stuck { moving: true, .. }), "{failure}");
}

/// Who hands a lock on by a message and counts it by a verb at the same time has released it when the message is there, also if
/// the verb's node is dead by then.
#[test]
fn a_lock_that_was_handed_on_is_released_though_the_verb_beside_the_message_found_its_node_dead() {
    for seed in 1..=12 {
        let faults = FaultPlan { node_deaths: vec![(NodeId(1), 300_000)], ..FaultPlan::default() };
        let (clients, local_clients, locks, nodes) = (24, 4, 60, 2);
        let plan =
            Plan { seed, clients, local_clients, locks, nodes, ops: 20_000, faults, ..Plan::default() };
        run::<ShiftLock>(&plan, &ShiftParams::default()).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
