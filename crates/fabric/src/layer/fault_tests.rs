//! What each order does, on the in-process fabric.

use super::*;
use crate::addr::{Addr, Word64};
use crate::backend::inproc::{InProc, InProcEndpoint, block_on};
use crate::fault::{NetworkFaults, Pause};
use crate::wait::Cond;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const ME: PeerId = PeerId::client(0);
const A: Word64 = Word64::at(Addr::new(NodeId(0), 0));
const B: Word64 = Word64::at(Addr::new(NodeId(0), 8));

fn faulty(fabric: &InProc, plan: FaultPlan) -> Faulty<InProcEndpoint> {
    Faulty::new(fabric.endpoint(ME), Arc::new(plan), 1)
}

fn pends(future: impl Future) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn crash_at(verb: u64, when: CrashPoint) -> FaultPlan {
    FaultPlan { crashes: vec![ClientFault { client: ME, verb, when }], ..FaultPlan::default() }
}

#[test]
fn a_client_crashes_on_either_side_of_its_verb() {
    for (when, left_behind) in [(CrashPoint::Before, 1), (CrashPoint::After, 2)] {
        let fabric = InProc::new(1, 64);
        let ep = faulty(&fabric, crash_at(1, when));
        assert_eq!(block_on(ep.go(A.fetch_add(1))), Ok(0));
        assert!(!ep.has_crashed());
        assert!(pends(ep.go(A.fetch_add(1))));
        assert!(ep.has_crashed());
        assert_eq!(fabric.peek(A), left_behind);
        assert!(pends(ep.go(A.fetch_add(1))) && pends(ep.now()) && pends(ep.sleep(0)), "dead is dead");
        assert_eq!(fabric.peek(A), left_behind);
    }
}

#[test]
fn a_client_can_crash_in_the_middle_of_a_batch() {
    let fabric = InProc::new(1, 64);
    let ep = faulty(&fabric, crash_at(1, CrashPoint::Before));
    assert!(pends(ep.go((A.write(1), B.write(1)))));
    assert_eq!((fabric.peek(A), fabric.peek(B)), (1, 0));
}

#[test]
fn a_crash_of_somebody_else_is_not_mine() {
    let fabric = InProc::new(1, 64);
    let mut plan = crash_at(0, CrashPoint::Before);
    plan.crashes[0].client = PeerId::client(1);
    assert_eq!(block_on(faulty(&fabric, plan).go(A.fetch_add(1))), Ok(0));
}

#[test]
fn a_paused_client_comes_back() {
    let fabric = InProc::new(1, 64);
    let at = ClientFault { client: ME, verb: 1, when: CrashPoint::After };
    let ep = faulty(&fabric, FaultPlan { pauses: vec![Pause { at, ns: 400_000 }], ..FaultPlan::default() });
    block_on(async {
        let before = ep.now().await;
        assert_eq!(ep.go((A.fetch_add(1), A.fetch_add(1), A.fetch_add(1))).await, Ok((0, 1, 2)));
        assert!(ep.now().await.since(before) >= 400_000);
    });
}

#[test]
fn a_node_dies_at_its_time_and_ends_the_waits_for_it() {
    let fabric = InProc::new(1, 64);
    let plain = fabric.endpoint(ME);
    let death = block_on(plain.now()).plus(2_000_000);
    let ep = faulty(&fabric, FaultPlan { node_deaths: vec![(NodeId(0), death.0)], ..FaultPlan::default() });
    let lost = FabricError::NodeLost(NodeId(0));
    block_on(async {
        assert_eq!(ep.wait_until(A.until(Cond::Eq { mask: 1, value: 1 })).await, Err(lost));
        assert!(ep.now().await >= death);
        assert_eq!(ep.go(A.fetch_add(1)).await, Err(lost));
    });
    assert_eq!(fabric.peek(A), 0);
}

/// What arrives of ten packets under `network`.
fn arrivals(network: NetworkFaults) -> Vec<u64> {
    let fabric = InProc::new(1, 64);
    let ep = faulty(&fabric, FaultPlan { network, ..FaultPlan::default() });
    let mut arrived = Vec::new();
    block_on(async {
        for n in 0..10 {
            ep.send_datagram(ME, Message::new(0, 0, &[n])).await.unwrap();
        }
        ep.sleep(network.extra_delay_ns).await;
        ep.now().await;
        while let Some(n) = ep.recv_by(Deadline::Now, |_, message| Some(message.words[0])).await {
            arrived.push(n);
        }
    });
    arrived
}

#[test]
fn packets_are_lost_doubled_delayed_and_overtaken() {
    let none = NetworkFaults::default();
    let in_order: Vec<u64> = (0..10).collect();
    assert_eq!(arrivals(none), in_order);
    assert!(arrivals(NetworkFaults { loss: 1.0, ..none }).is_empty());
    assert_eq!(arrivals(NetworkFaults { duplication: 1.0, ..none }).len(), 20);
    let mut mixed = arrivals(NetworkFaults { reorder: 0.5, ..none });
    assert_ne!(mixed, in_order[..mixed.len()], "somebody was overtaken");
    mixed.sort_unstable();
    mixed.dedup();
    assert!(mixed.len() >= 8, "only those held back at the end are missing");
    let mut late = arrivals(NetworkFaults { extra_delay_ns: 300_000, ..none });
    late.sort_unstable();
    assert_eq!(late, in_order, "late is not lost");
}

#[test]
fn a_seed_repeats_its_faults() {
    let run = || {
        let fabric = InProc::new(1, 64);
        let ep = faulty(&fabric, FaultPlan { crash_rate: 0.01, ..FaultPlan::default() });
        (0..).find(|_| pends(ep.go(A.fetch_add(1))))
    };
    assert_eq!(run(), run());
}

#[test]
fn a_fast_clock_reaches_its_deadlines_early_but_by_its_own_reckoning() {
    let fabric = InProc::new(1, 64);
    let plan = FaultPlan { clock_drift_ppm: 200_000, ..FaultPlan::default() };
    let ep = faulty(&fabric, plan);
    assert_ne!(ep.state.drift_ppm, 0, "another seed, please");
    block_on(async {
        let deadline = ep.now().await.plus(500_000);
        assert_eq!(ep.recv_by(Deadline::At(deadline), |_, _| Some(())).await, None);
        assert!(ep.now().await >= deadline && ep.passed(deadline).await);
    });
    let mut again = pin!(ep.go(A.read()));
    assert!(matches!(again.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(0))));
}
