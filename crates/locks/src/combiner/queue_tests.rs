//! The list on threads, and with handlers that die at its weakest point.

#![expect(clippy::disallowed_methods, reason = "real threads are what is tested here")]

use super::core::{ClientId, Request};
use super::queue::{Combining, Full, PATIENCE, list};
use super::sync::atomic::Ordering::{AcqRel, Release};

fn request(id: u32) -> Request {
    Request::Unlock { id }
}

fn taken(combining: &mut Combining) -> Vec<u32> {
    let mut all = Vec::new();
    for _ in 0..3 * PATIENCE {
        combining.take_all(100, &mut all);
    }
    all.into_iter().map(|(client, _)| client.0).collect()
}

#[test]
fn every_handler_s_requests_come_out_once_and_in_its_order() {
    const EACH: u32 = 20_000;
    let (handlers, mut combining) = list(3, 8);
    std::thread::scope(|scope| {
        for (number, mut handler) in handlers.into_iter().enumerate() {
            scope.spawn(move || {
                for id in 0..EACH {
                    while handler.stage(ClientId(number as u32), request(id)).is_err() {
                        std::thread::yield_now();
                    }
                    // Alone, by twos, by threes; full nodes go by themselves.
                    if id % 100 > 50 || id % (number as u32 + 1) == 0 {
                        handler.flush();
                    }
                }
                handler.flush();
            });
        }
        let mut next = [0; 3];
        while next != [EACH; 3] {
            let mut batch = Vec::new();
            combining.take_all(100, &mut batch);
            for (client, what) in &batch {
                assert_eq!(*what, request(next[client.0 as usize]));
                next[client.0 as usize] += 1;
            }
            if batch.is_empty() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(combining.take(), None);
}

#[test]
fn a_handler_that_dies_between_exchange_and_link_stops_nobody() {
    let (mut handlers, mut combining) = list(3, 4);
    let dying = handlers.pop().unwrap();
    handlers[0].push(ClientId(1), request(0)).unwrap();
    dying.push_and_die_between(ClientId(2), request(0));
    handlers[0].push(ClientId(3), request(0)).unwrap();
    handlers[1].push(ClientId(4), request(0)).unwrap();
    assert_eq!(taken(&mut combining), [1, 2, 3, 4]);
    handlers[1].push(ClientId(5), request(0)).unwrap();
    assert_eq!(taken(&mut combining), [5]);
}

#[test]
fn the_last_one_to_append_may_die_too() {
    let (mut handlers, mut combining) = list(2, 4);
    handlers.pop().unwrap().push_and_die_between(ClientId(1), request(0));
    assert_eq!(taken(&mut combining), [1]);
    handlers[0].push(ClientId(2), request(0)).unwrap();
    assert_eq!(taken(&mut combining), [2]);
}

#[test]
fn several_may_die_there_and_the_living_are_all_served() {
    let (mut handlers, mut combining) = list(5, 4);
    handlers.pop().unwrap().push_and_die_between(ClientId(1), request(0));
    handlers[0].push(ClientId(2), request(0)).unwrap();
    handlers.pop().unwrap().die_before(ClientId(9), request(0));
    handlers.pop().unwrap().push_and_die_between(ClientId(3), request(0));
    handlers[1].push(ClientId(4), request(0)).unwrap();
    handlers[0].push(ClientId(5), request(0)).unwrap();
    assert_eq!(taken(&mut combining), [1, 2, 3, 4, 5]);
}

#[test]
fn who_died_after_its_link_is_not_taken_for_the_lost_piece() {
    for first in [0, 1] {
        let (handlers, mut combining) = list(3, 4);
        let mut handlers: Vec<_> = handlers.into_iter().map(Some).collect();
        let mut take = |number: usize| handlers[number].take().unwrap();
        let (between, after) = (take(first), take(1 - first));
        between.push_and_die_between(ClientId(1), request(0));
        let mut living = take(2);
        living.push(ClientId(2), request(0)).unwrap();
        after.push_and_die_after(ClientId(3), request(0));
        living.push(ClientId(4), request(0)).unwrap();
        assert_eq!(taken(&mut combining), [1, 2, 3, 4]);
    }
}

#[test]
fn a_handler_that_is_only_slow_is_waited_for() {
    let (mut handlers, mut combining) = list(2, 4);
    let mut slow = handlers.pop().unwrap();
    slow.stage(ClientId(1), request(0)).unwrap();
    let me = slow.enter();
    let before = slow.shared.tail.0.swap(me, AcqRel);
    handlers[0].push(ClientId(2), request(0)).unwrap();
    assert_eq!(taken(&mut combining), []);
    slow.shared.node(before).next.store(me, Release);
    slow.shared.seats[slow.number as usize].entering.store(0, Release);
    assert_eq!(taken(&mut combining), [1, 2]);
}

#[test]
fn a_handler_with_all_its_requests_in_the_queue_is_told_so() {
    let (mut handlers, mut combining) = list(1, 2);
    handlers[0].push(ClientId(1), request(0)).unwrap();
    handlers[0].push(ClientId(1), request(1)).unwrap();
    assert_eq!(handlers[0].push(ClientId(1), request(2)), Err(Full));
    combining.take();
    // The node last taken still ends the list.
    assert_eq!(handlers[0].push(ClientId(1), request(2)), Err(Full));
    combining.take();
    handlers[0].push(ClientId(1), request(2)).unwrap();
}

#[test]
fn what_is_staged_together_comes_out_together_and_in_order() {
    let (mut handlers, mut combining) = list(2, 3);
    for id in 0..10 {
        handlers[0].stage(ClientId(0), request(id)).unwrap();
    }
    handlers[1].push(ClientId(1), request(0)).unwrap();
    handlers[0].flush();
    assert_eq!(taken(&mut combining), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A full node goes into the list by itself.
    for id in 0..100 {
        handlers[0].stage(ClientId(2), request(id)).unwrap();
    }
    let mut batch = Vec::new();
    combining.take_all(100, &mut batch);
    assert!(!batch.is_empty() && batch.iter().zip(0..).all(|((_, what), id)| *what == request(id)));
}

#[test]
fn what_was_staged_when_the_handler_died_never_came() {
    let (mut handlers, mut combining) = list(2, 2);
    let mut dying = handlers.pop().unwrap();
    dying.push(ClientId(1), request(0)).unwrap();
    dying.stage(ClientId(1), request(1)).unwrap();
    drop(dying);
    handlers[0].push(ClientId(2), request(0)).unwrap();
    assert_eq!(taken(&mut combining), [1, 2]);
}
