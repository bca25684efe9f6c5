//! What becomes of a session when its connection drops, hangs, or its server goes away.

mod nets;

use lockwright_fabric::backend::tcp::{
    Backlog, CloseReason, ConnectOptions, Server, ServerOptions, SessionEnd, TcpEndpoint,
};
use lockwright_fabric::{
    BoxedRole, Cond, Deadline, Endpoint, FabricError, Message, NodeId, Outbox, PeerId, Role, Time,
};
use nets::{LinkState, Proxy, connect, expiring, host, patient, quick, serve, serve_roles, until, word};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const LOST: FabricError = FabricError::NodeLost(NodeId(0));

fn number(n: u64) -> Message {
    Message::new(0, 1, &[n])
}

fn is(value: u64) -> Cond {
    Cond::Eq { mask: u128::MAX, value: value.into() }
}

/// Polls once; the future is dropped by the caller.
async fn once<F: Future + Unpin>(mut future: F) -> F {
    std::future::poll_fn(|cx| {
        assert!(pin!(&mut future).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    future
}

#[tokio::test]
async fn a_verb_under_way_when_the_connection_drops_fails_and_the_session_goes_on() {
    let (server, ended) = serve(patient()).await;
    let proxy = Proxy::before(server.address()).await;
    let ep = connect(proxy.address).await;
    assert_eq!(ep.go(word(0).fetch_add(1)).await, Ok(0));
    proxy.set(LinkState::DropsReplies);
    let fabric = server.host().fabric();
    let (verb, ()) = tokio::join!(ep.go(word(0).fetch_add(1)), async {
        until(|| fabric.peek(word(0)) == 2).await;
        proxy.set(LinkState::Down);
    });
    assert_eq!(verb, Err(LOST), "it happened, but the client cannot know");
    // What is asked for meanwhile waits for the next connection.
    let me = ep.me();
    let (next, ()) = tokio::join!(ep.go(word(0).fetch_add(1)), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        proxy.set(LinkState::Up);
    });
    assert_eq!(next, Ok(2));
    assert_eq!((ep.me(), ep.close_reason()), (me, None));
    assert_eq!(*ended.lock().unwrap(), []);
}

#[tokio::test]
async fn messages_survive_a_break_and_come_once_and_in_order() {
    let (server, _) = serve(patient()).await;
    let proxy = Proxy::before(server.address()).await;
    let (receiver, sender) = (connect(proxy.address).await, connect(server.address()).await);
    for n in 0..300 {
        match n {
            50 => proxy.set(LinkState::DropsReplies),
            100 => proxy.set(LinkState::Down),
            200 => proxy.set(LinkState::Up),
            _ => {}
        }
        sender.send(receiver.me(), number(n)).await.unwrap();
    }
    for n in 0..300 {
        assert_eq!(receiver.recv(|_, message| Some(message.words[0])).await, n);
    }
    assert_eq!(receiver.recv_by(Deadline::Now, |_, _| Some(())).await, None);
}

#[tokio::test]
async fn a_wait_goes_on_over_the_next_connection() {
    let (server, _) = serve(patient()).await;
    let proxy = Proxy::before(server.address()).await;
    let (waiter, setter) = (connect(proxy.address).await, connect(server.address()).await);
    let (end, ()) = tokio::join!(waiter.wait_until(word(0).until(is(7))), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.set(LinkState::Down);
        tokio::time::sleep(Duration::from_millis(20)).await;
        setter.go(word(0).write(7)).await.unwrap();
        proxy.set(LinkState::Up);
    });
    assert_eq!(end.map(|end| (end.value, end.met)), Ok((7, true)));
}

#[tokio::test]
async fn a_connection_that_hangs_is_given_up_and_replaced() {
    let (server, ended) = serve(quick()).await;
    let proxy = Proxy::before(server.address()).await;
    let ep = connect(proxy.address).await;
    proxy.set(LinkState::Stalled);
    // Nobody closes anything: only the missing heartbeats tell.
    assert_eq!(ep.go(word(0).read()).await, Err(LOST));
    proxy.set(LinkState::Up);
    // The next connection may be given up, too, if the machine is busy.
    while ep.go(word(0).read()).await.is_err() {
        assert_eq!(ep.close_reason(), None);
    }
    assert_eq!(*ended.lock().unwrap(), []);
}

#[tokio::test]
async fn a_client_that_stays_away_is_lost_and_learns_it() {
    let (server, ended) = serve(expiring()).await;
    let proxy = Proxy::before(server.address()).await;
    let (ep, me) = loop {
        // A busy machine may end the session before the link stalls.
        let ep = connect(proxy.address).await;
        if ep.go(word(0).read()).await.is_ok() {
            break (ep.clone(), ep.me());
        }
    };
    proxy.set(LinkState::Stalled);
    let (fate, wait) = tokio::join!(ep.closed(), ep.wait_until(word(0).until(is(1))));
    assert_eq!((fate, wait.map(|end| end.met)), (CloseReason::Expired, Err(LOST)));
    until(|| ended.lock().unwrap().contains(&(me, SessionEnd::Lost))).await;
    // Others notice nothing, but for what a busy machine does to them.
    loop {
        let other = connect(server.address()).await;
        let sent = other.send(me, number(1)).await;
        if sent != Err(LOST) {
            assert_eq!(sent, Err(FabricError::PeerLost(me)));
            break;
        }
    }
    proxy.set(LinkState::Up);
    assert_eq!(ep.go(word(0).read()).await, Err(LOST), "over is over");
    assert_eq!(ep.post(word(0).write(5)), Err(LOST));
    assert_eq!(ep.recv_by(Deadline::Now, |_, _| Some(())).await, None);
}

#[tokio::test]
async fn goodbye_ends_a_session_at_once() {
    let (server, ended) = serve(ServerOptions { grace: Duration::from_secs(600), ..patient() }).await;
    let ep = connect(server.address()).await;
    let me = ep.me();
    drop(ep.clone());
    assert_eq!(ep.go(word(0).read()).await, Ok(0), "a clone is not the last one");
    // What was posted before still happens.
    ep.post(word(3).write(9)).unwrap();
    drop(ep);
    until(|| *ended.lock().unwrap() == [(me, SessionEnd::Goodbye)]).await;
    assert_eq!(server.host().fabric().peek(word(3)), 9);
}

#[tokio::test]
async fn a_restarted_server_is_a_new_epoch_and_old_sessions_end() {
    let (host, _) = host();
    let first = Server::bind(nets::HERE, Arc::clone(&host), vec![], patient()).await.unwrap();
    let (address, epoch) = (first.address(), first.epoch());
    let ep = connect(address).await;
    assert_eq!(ep.go(word(0).fetch_add(1)).await, Ok(0));
    first.shut_down().await;
    let second = Server::bind(address, host, vec![], patient()).await.unwrap();
    assert!(second.epoch() > epoch);
    assert_eq!(ep.closed().await, CloseReason::Restarted { epoch: second.epoch() });
    assert_eq!(ep.go(word(0).fetch_add(1)).await, Err(LOST));
    let again = connect(address).await;
    assert_eq!(again.epoch(), second.epoch());
    assert_eq!(again.go(word(0).fetch_add(1)).await, Ok(1), "the memory is still the host's");
}

#[tokio::test]
async fn a_server_that_does_not_come_back_ends_the_session() {
    let (server, _) = serve(ServerOptions { grace: Duration::from_millis(60), ..patient() }).await;
    let ep = connect(server.address()).await;
    server.shut_down().await;
    assert_eq!(ep.go(word(0).read()).await, Err(LOST));
    assert_eq!(ep.closed().await, CloseReason::Expired);
}

#[tokio::test]
async fn a_receiver_that_lets_messages_pile_up_is_lost_alone() {
    let backlog = Backlog { messages: 100, bytes: 1 << 20 };
    let (server, ended) =
        serve(ServerOptions { backlog, grace: Duration::from_secs(600), ..patient() }).await;
    let proxy = Proxy::before(server.address()).await;
    let (lazy, other) = (connect(proxy.address).await, connect(server.address()).await);
    proxy.set(LinkState::DropsReplies);
    // A client of the server's own process: its messages are not relayed ones.
    let local = server.host().fabric().endpoint(PeerId::client(1000));
    while ended.lock().unwrap().is_empty() {
        let _ = local.send(lazy.me(), number(1)).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(*ended.lock().unwrap(), [(lazy.me(), SessionEnd::Lost)]);
    assert_eq!(other.go(word(0).fetch_add(1)).await, Ok(0));
}

#[tokio::test]
async fn a_verb_whose_future_is_dropped_after_one_poll_still_happens_in_order() {
    let (server, _) = serve(patient()).await;
    let ep = connect(server.address()).await;
    for n in 0..200 {
        drop(once(ep.go(word(0).cas(2 * n, 2 * n + 1))).await);
        ep.post(word(0).cas(2 * n + 1, 2 * n + 2)).unwrap();
    }
    assert_eq!(ep.go(word(0).read()).await, Ok(400));
    // A future that was never polled has done nothing.
    drop(ep.go(word(0).write(0)));
    assert_eq!(ep.go(word(0).read()).await, Ok(400));
}

#[tokio::test]
async fn a_release_posted_while_the_connection_is_down_is_made_up_for() {
    let (server, _) = serve(patient()).await;
    let proxy = Proxy::before(server.address()).await;
    let ep = connect(proxy.address).await;
    proxy.set(LinkState::Down);
    assert_eq!(ep.go(word(1).read()).await, Err(LOST));
    ep.post(word(0).fetch_add(1)).unwrap();
    drop(once(ep.go(word(0).fetch_add(2))).await);
    proxy.set(LinkState::Up);
    assert_eq!(ep.go(word(0).read()).await, Ok(3));
}

#[tokio::test]
async fn dropped_waits_are_cancelled_at_the_server_and_make_room() {
    let (server, _) = serve(ServerOptions { max_waits: 3, ..patient() }).await;
    let ep = connect(server.address()).await;
    for _ in 0..20 {
        drop(once(ep.wait_until(word(0).until(is(1)))).await);
    }
    // Three at once are allowed; the fourth waits for room instead of breaking the rule.
    let waits: Vec<_> = (1..=4).map(|n| ep.wait_until(word(n).until(is(1)))).collect();
    let mut held = Vec::new();
    for wait in waits {
        held.push(once(wait).await);
    }
    ep.go(word(1).write(1)).await.unwrap();
    assert!(held.remove(0).await.unwrap().met);
    ep.go(word(4).write(1)).await.unwrap();
    assert!(held.pop().unwrap().await.unwrap().met);
    assert_eq!(ep.close_reason(), None);
}

#[tokio::test]
async fn many_requests_at_once_are_answered_each_by_its_own() {
    let (server, _) = serve(patient()).await;
    let ep = connect(server.address()).await;
    for n in 0..100 {
        ep.go(word(n).write(n * n)).await.unwrap();
    }
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let ep = ep.clone();
            tokio::spawn(async move { ep.go((word(n).read(), word(n).fetch_add(1), word(n).read())).await })
        })
        .collect();
    for (n, task) in (0..).zip(tasks) {
        assert_eq!(task.await.unwrap(), Ok((n * n, n * n, n * n + 1)));
    }
}

#[tokio::test]
async fn local_clients_of_the_host_and_remote_ones_share_words_and_messages() {
    let (host, _) = host();
    let local = host.fabric().endpoint(PeerId::client(5000));
    let server = Server::bind(nets::HERE, host, vec![], patient()).await.unwrap();
    let remote = connect(server.address()).await;
    let (end, _) = tokio::join!(local.wait_until(word(0).until(is(3))), remote.go(word(0).write(3)));
    assert!(end.unwrap().met);
    let (end, _) = tokio::join!(remote.wait_until(word(0).until(is(4))), local.go(word(0).write(4)));
    assert!(end.unwrap().met);
    remote.send(local.me(), number(1)).await.unwrap();
    assert_eq!(local.recv(|from, message| Some((from, message.words[0]))).await, (remote.me(), 1));
    local.send(remote.me(), number(2)).await.unwrap();
    assert_eq!(remote.recv(|from, message| Some((from, message.words[0]))).await, (local.me(), 2));
}

/// Counts what it is told, answers after a while, forwards to the other role, and panics when told to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct TestRole {
    total: u64,
    last: Option<PeerId>,
}

impl Role for TestRole {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        match message.kind {
            1 => {
                self.total += message.words[0];
                out.post(word(9).write(self.total).raw());
                out.send(from, Message::new(0, 1, &[self.total]));
            }
            2 => {
                self.last = Some(from);
                out.arm(1_000_000, 77);
            }
            3 => out.send(PeerId::role(1), Message::new(0, 4, &[u64::from(from.0)])),
            4 => out.send(PeerId(message.words[0] as u32), Message::new(0, 4, &[])),
            _ => panic!("the role was told to panic"),
        }
    }

    fn on_timer(&mut self, _: Time, id: u64, out: &mut Outbox) {
        out.send(self.last.unwrap(), Message::new(0, 2, &[id]));
    }
}

#[tokio::test]
async fn roles_answer_keep_time_and_talk_to_each_other() {
    let roles = vec![BoxedRole::new(TestRole::default()), BoxedRole::new(TestRole::default())];
    let server = serve_roles(roles).await;
    let ep = connect(server.address()).await;
    let role = PeerId::role(0);
    for n in 1..=10 {
        ep.send(role, number(1)).await.unwrap();
        let answer =
            ep.recv_by(Deadline::Now, |from, message| (from == role).then_some(message.words[0])).await;
        assert_eq!(answer, Some(n), "the answer comes with the receipt");
    }
    assert_eq!(ep.go(word(9).read()).await, Ok(10));
    ep.send(role, Message::new(0, 2, &[])).await.unwrap();
    assert_eq!(ep.recv(|_, message| (message.kind == 2).then_some(message.words[0])).await, 77);
    ep.send(role, Message::new(0, 3, &[])).await.unwrap();
    assert_eq!(ep.recv(|from, message| (message.kind == 4).then_some(from)).await, PeerId::role(1));
    let local = server.host().fabric().endpoint(PeerId::client(5000));
    local.send(role, number(5)).await.unwrap();
    assert_eq!(local.recv(|_, message| Some(message.words[0])).await, 15, "local clients reach roles too");
}

#[tokio::test]
async fn a_role_that_panics_is_lost_and_nobody_else() {
    let roles = vec![BoxedRole::new(TestRole::default()), BoxedRole::new(TestRole::default())];
    let server = serve_roles(roles).await;
    let ep = connect(server.address()).await;
    ep.send(PeerId::role(0), Message::new(0, 99, &[])).await.unwrap();
    assert_eq!(ep.send(PeerId::role(0), number(1)).await, Err(FabricError::PeerLost(PeerId::role(0))));
    assert_eq!(ep.send(PeerId::role(1), number(1)).await, Ok(()));
    assert_eq!(ep.close_reason(), None);
}

#[test]
fn requests_fail_when_the_runtime_that_reads_is_gone() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, ep) = runtime.block_on(async {
        let (server, _) = serve(patient()).await;
        let ep = TcpEndpoint::connect(server.address(), ConnectOptions::default()).await.unwrap();
        (server, ep)
    });
    let waiting = ep.clone();
    let waiter = std::thread::spawn(move || {
        lockwright_fabric::backend::inproc::block_on(waiting.wait_until(word(0).until(is(1))))
            .map(|end| end.met)
    });
    drop(server);
    drop(runtime);
    assert_eq!(waiter.join().unwrap(), Err(LOST));
}
