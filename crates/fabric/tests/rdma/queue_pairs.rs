//! Queue pairs that fail, and what was on its way on them.

use super::{WORD, a_client, a_host, until};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{HostOptions, RdmaHost, has_device};
use lockwright_fabric::{Endpoint, FabricError, Message, NodeId, PeerId};

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
fn no_message_of_the_host_is_lost_or_doubled_when_queue_pairs_fail() {
    const MESSAGES: u64 = 300;
    if !has_device() {
        return;
    }
    let options = HostOptions { first_client: 1, ..HostOptions::default() };
    let host = RdmaHost::start(InProc::new(1, 64), vec![], options, |_| {}).unwrap();
    let local = host.local(PeerId::client(0), NodeId(0));
    let remote = a_client(&host);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                block_on(local.send(remote.me(), Message::new(0, 1, &[number]))).unwrap();
                if number % 60 == 30 {
                    host.break_queue_pair(remote.me());
                }
            }
        });
        for number in 0..MESSAGES {
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
