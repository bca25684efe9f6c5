//! Messages between clients.

use super::{Rig, Shape, alone, task};
use crate::addr::PeerId;
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::wait::Deadline;
use std::pin::pin;
use std::task::Poll;

const SOON_NS: u64 = 300_000;
const A: PeerId = PeerId::client(0);
const B: PeerId = PeerId::client(1);

/// Message number `n` about lock `lock`.
fn numbered(lock: u64, n: u64) -> Message {
    Message::new(lock, 1, &[n])
}

async fn next<E: Endpoint>(ep: &E, lock: u64) -> u64 {
    ep.recv(|_, message| (message.lock == lock).then_some(message.words[0])).await
}

/// First sent, first received.
pub fn messages_of_a_pair_arrive_in_order<R: Rig>(make: &impl Fn(Shape) -> R) {
    make(Shape::of(2)).run(vec![
        task(|ep: R::E| async move {
            for n in 0..200 {
                ep.send(B, numbered(0, n)).await.unwrap();
                // Sometimes the receiver waits for the sender, sometimes it finds a heap.
                if n % 60 == 0 {
                    ep.sleep(SOON_NS).await;
                }
            }
        }),
        task(|ep: R::E| async move {
            for n in 0..200 {
                assert_eq!(next(&ep, 0).await, n);
            }
        }),
    ]);
}

/// A receive takes the first message it wants out of the middle; the others keep their order.
pub fn what_a_receive_does_not_pick_stays_buffered<R: Rig>(make: &impl Fn(Shape) -> R) {
    make(Shape::of(2)).run(vec![
        task(|ep: R::E| async move {
            for (lock, n) in [(1, 10), (2, 20), (1, 11), (2, 21), (3, 30)] {
                ep.send(B, numbered(lock, n)).await.unwrap();
            }
        }),
        task(|ep: R::E| async move {
            assert_eq!(next(&ep, 3).await, 30);
            assert_eq!(next(&ep, 2).await, 20);
            assert_eq!(next(&ep, 1).await, 10);
            let any = async || ep.recv(|_, message| Some(message.words[0])).await;
            assert_eq!((any().await, any().await), (11, 21));
        }),
    ]);
}

/// Everything that was put in comes out.
pub fn a_message_carries_its_sender_and_all_its_words<R: Rig>(make: &impl Fn(Shape) -> R) {
    let sent = Message { lock: u64::MAX, kind: 77, words: [1, 2, 3, u64::MAX], tail: (0..100).collect() };
    let expected = sent.clone();
    make(Shape::of(2)).run(vec![
        task(move |ep: R::E| async move {
            assert_eq!(ep.me(), A);
            ep.send(B, sent).await.unwrap();
        }),
        task(move |ep: R::E| async move {
            assert_eq!(ep.me(), B);
            let got = ep.recv(|from, message| Some((from, message.clone()))).await;
            assert_eq!(got, (A, expected));
        }),
    ]);
}

/// `Deadline::Now`: what is there, or nothing.
pub fn a_receive_without_patience_looks_once<R: Rig>(make: &impl Fn(Shape) -> R) {
    make(Shape::of(2)).run(vec![
        task(|ep: R::E| async move {
            ep.send(B, numbered(1, 5)).await.unwrap();
            ep.send(B, numbered(2, 6)).await.unwrap();
        }),
        task(|ep: R::E| async move {
            let none = ep.recv_by(Deadline::Now, |_, message| (message.lock == 9).then_some(())).await;
            assert_eq!(none, None);
            assert_eq!(next(&ep, 2).await, 6);
            // The pair's order says that this one is there by now.
            let there = ep.recv_by(Deadline::Now, |_, message| Some(message.words[0])).await;
            assert_eq!(there, Some(5));
            assert_eq!(ep.recv_by(Deadline::Now, |_, _| Some(())).await, None);
        }),
    ]);
}

/// `Deadline::At`: nothing, and the clock has come to it; a message in time is taken.
pub fn a_receive_gives_up_at_its_deadline_and_not_before<R: Rig>(make: &impl Fn(Shape) -> R) {
    make(Shape::of(2)).run(vec![
        task(|ep: R::E| async move {
            next(&ep, 1).await;
            ep.sleep(SOON_NS).await;
            ep.send(B, numbered(2, 8)).await.unwrap();
        }),
        task(|ep: R::E| async move {
            let deadline = ep.now().await.plus(SOON_NS);
            assert_eq!(ep.recv_by(Deadline::At(deadline), |_, _| Some(())).await, None);
            assert!(ep.now().await >= deadline, "the receive gave up too early");
            ep.send(A, numbered(1, 0)).await.unwrap();
            let far = Deadline::At(ep.now().await.plus(600_000_000_000));
            assert_eq!(ep.recv_by(far, |_, message| Some(message.words[0])).await, Some(8));
        }),
    ]);
}

/// A receive that was polled and dropped leaves the message to the next one.
pub fn a_dropped_receive_takes_nothing<R: Rig>(make: &impl Fn(Shape) -> R) {
    make(Shape::of(2)).run(vec![
        task(|ep: R::E| async move {
            next(&ep, 1).await;
            ep.send(B, numbered(2, 8)).await.unwrap();
        }),
        task(|ep: R::E| async move {
            {
                let mut dropped = pin!(ep.recv(|_, message| (message.lock == 2).then_some(())));
                std::future::poll_fn(|cx| {
                    assert!(dropped.as_mut().poll(cx).is_pending(), "nobody has sent anything yet");
                    Poll::Ready(())
                })
                .await;
            }
            ep.send(A, numbered(1, 0)).await.unwrap();
            assert_eq!(next(&ep, 2).await, 8);
        }),
    ]);
}

/// A client's own mailbox is like any other.
pub fn a_client_can_write_to_itself<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        ep.send(ep.me(), numbered(1, 4)).await.unwrap();
        assert_eq!(ep.recv(|from, message| Some((from, message.words[0]))).await, (A, 4));
    });
}

/// Four clients write to a fifth: each pair's order is kept and nothing is lost.
pub fn many_senders_lose_nothing<R: Rig>(make: &impl Fn(Shape) -> R) {
    const SENDERS: usize = 4;
    const EACH: u64 = 200;
    let to = PeerId::client(SENDERS);
    let mut tasks: Vec<_> = (0..SENDERS)
        .map(|_| {
            task(move |ep: R::E| async move {
                for n in 0..EACH {
                    ep.send(to, numbered(0, n)).await.unwrap();
                }
            })
        })
        .collect();
    tasks.push(task(|ep: R::E| async move {
        let mut expected = [0; SENDERS];
        for _ in 0..SENDERS as u64 * EACH {
            let (from, n) = ep.recv(|from, message| Some((from.index().0, message.words[0]))).await;
            assert_eq!(n, expected[from], "from client {from}");
            expected[from] += 1;
        }
        assert_eq!(ep.recv_by(Deadline::Now, |_, _| Some(())).await, None);
    }));
    make(Shape::of(SENDERS + 1)).run(tasks);
}

/// A send to a peer that does not exist is an error, a datagram is not.
pub fn an_unknown_peer_is_reported_as_lost<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        let nobody = PeerId::client(1000);
        assert_eq!(ep.send(nobody, numbered(0, 0)).await, Err(FabricError::PeerLost(nobody)));
        assert_eq!(ep.send_datagram(nobody, numbered(0, 0)).await, Ok(()));
    });
}

/// Without faults a datagram arrives.
pub fn datagrams_arrive_when_nothing_is_wrong<R: Rig>(make: &impl Fn(Shape) -> R) {
    make(Shape::of(2)).run(vec![
        task(|ep: R::E| async move {
            for n in 1..=10 {
                ep.send_datagram(B, numbered(0, n)).await.unwrap();
            }
        }),
        task(|ep: R::E| async move {
            let mut sum = 0;
            for _ in 0..10 {
                sum += next(&ep, 0).await;
            }
            assert_eq!(sum, 55);
        }),
    ]);
}
