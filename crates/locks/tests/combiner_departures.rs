//! A client of the combiner that is gone, on every fabric that has servers and can know of deaths: all it held and all
//! it wanted goes in one step, and those who waited go on. (The simulator and the explorer crash clients themselves.)

#![expect(clippy::disallowed_methods, reason = "real threads are what is tested here")]

use lockwright_fabric::backend::inproc::{InProc, block_on};
use lockwright_fabric::backend::tcp::{ConnectOptions, InProcHost, Server, ServerOptions, TcpEndpoint};
use lockwright_fabric::observe::Mode::{Exclusive, Shared};
use lockwright_fabric::{Deadline, Endpoint, PeerId};
use lockwright_locks::combiner::{Combiner, Params};
use lockwright_locks::{Grant, LockClient, Patience, Protocol, Space, Want};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

type Shipped = Combiner;

const SPACE: Space = Space::of(1).units(100);

const fn write(start: u64, end: u64) -> Want {
    Want::range(0, Exclusive, start, end)
}

const fn read(start: u64, end: u64) -> Want {
    Want::range(0, Shared, start, end)
}

fn client<E: Endpoint>(ep: E) -> <Shipped as Protocol>::Client<E> {
    Shipped::client(ep, &SPACE, &Params::default())
}

/// Takes three ranges, and begins to wait for a range that another client holds; returns the last of its tokens.
async fn take_three<E: Endpoint>(ep: &E) -> u64 {
    let dying = client(ep.clone());
    let mut last = 0;
    for want in [write(0, 10), read(20, 30), write(40, 50)] {
        last = dying.acquire(want).await.expect("nobody else holds it").token().expect("tokens");
    }
    // The other has 60..70: this one is sent, waits, and is left behind in the queue.
    let waits = dying.acquire(write(60, 90));
    let polled = std::pin::pin!(waits);
    let _ = poll_once(polled).await;
    last
}

/// Polls once.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// Whether everything of `SPACE` but what `other` itself holds can be had.
async fn has_everything_again<E: Endpoint>(other: &<Shipped as Protocol>::Client<E>, last: u64) {
    // One that needs all three at once: it is granted only when all of them are gone.
    let all = other.acquire(write(0, 60)).await.expect("the dead hold nothing");
    assert!(all.token().expect("tokens") > last);
    // Nobody is queued before this one.
    let rest = other.acquire(write(70, 90).with(Patience::Try)).await.expect("the dead want nothing");
    for grant in [all, rest] {
        other.release(grant).await.unwrap();
    }
}

#[test]
fn in_process_the_last_endpoint_takes_all_it_held_with_it() {
    let fabric = InProc::new(1, 0);
    fabric.serve(Shipped::roles(&SPACE, &Params::default()));
    let (dying, other) = (fabric.endpoint(PeerId::client(0)), client(fabric.endpoint(PeerId::client(1))));
    let held = block_on(other.acquire(write(60, 70))).unwrap();
    let last = block_on(take_three(&dying));
    let try_all = || block_on(other.acquire(write(0, 60).with(Patience::Try))).is_err();
    assert!(try_all(), "it is alive");
    let clone = dying.clone();
    drop(dying);
    assert!(try_all(), "a clone is the same client");
    drop(clone);
    block_on(has_everything_again(&other, last));
    block_on(other.release(held)).unwrap();
}

#[test]
fn in_process_a_thread_that_panics_takes_all_it_held_with_it() {
    let fabric = Arc::new(InProc::new(1, 0));
    fabric.serve(Shipped::roles(&SPACE, &Params::default()));
    let other = client(fabric.endpoint(PeerId::client(1)));
    let dying = fabric.endpoint(PeerId::client(0));
    let panics = std::thread::spawn(move || {
        block_on(take_three(&dying));
        panic!("this thread was made to panic");
    });
    assert!(panics.join().is_err());
    block_on(has_everything_again(&other, 3));
}

#[test]
fn in_process_who_comes_back_under_the_same_number_begins_anew() {
    let fabric = InProc::new(1, 0);
    fabric.serve(Shipped::roles(&SPACE, &Params::default()));
    for _ in 0..200 {
        let ep = fabric.endpoint(PeerId::client(0));
        let held = client(ep.clone());
        // Never given back: each time the departure of the one before must come first.
        assert!(block_on(held.acquire(write(0, 100))).is_ok());
        assert!(block_on(ep.recv_by(Deadline::Now, |_, _| Some(()))).is_none(), "no refusals");
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

async fn serve() -> Server<InProcHost> {
    let roles = Shipped::roles(&SPACE, &Params::default());
    let options = ServerOptions { grace: Duration::from_millis(50), ..ServerOptions::default() };
    let host = InProcHost::new(InProc::new(1, 64), 100);
    Server::bind("127.0.0.1:0".parse().unwrap(), host, roles, options).await.unwrap()
}

async fn connect(server: &Server<InProcHost>) -> TcpEndpoint {
    TcpEndpoint::connect(server.address(), ConnectOptions::default()).await.unwrap()
}

#[test]
fn over_tcp_a_client_that_closes_takes_all_it_held_with_it() {
    runtime().block_on(async {
        let server = serve().await;
        let (dying, other) = (connect(&server).await, client(connect(&server).await));
        let held = other.acquire(write(60, 70)).await.unwrap();
        let last = take_three(&dying).await;
        assert!(other.acquire(write(0, 60).with(Patience::Try)).await.is_err(), "it is alive");
        drop(dying);
        has_everything_again(&other, last).await;
        other.release(held).await.unwrap();
    });
}

#[test]
fn over_tcp_a_client_whose_connection_breaks_is_gone_after_the_grace_period() {
    let (lasting, mortal) = (runtime(), runtime());
    let server = lasting.block_on(serve());
    let other = client(lasting.block_on(connect(&server)));
    let held = lasting.block_on(other.acquire(write(60, 70))).unwrap();
    // Connected in a runtime of its own: when that ends, the socket is closed and nobody says goodbye.
    let dying = mortal.block_on(connect(&server));
    let last = mortal.block_on(take_three(&dying));
    drop(mortal);
    lasting.block_on(has_everything_again(&other, last));
    lasting.block_on(other.release(held)).unwrap();
    drop(dying);
}

#[test]
fn a_local_client_of_a_server_s_own_process_takes_all_it_held_with_it() {
    runtime().block_on(async {
        let server = serve().await;
        let other = client(connect(&server).await);
        let held = other.acquire(write(60, 70)).await.unwrap();
        let local = server.host().fabric().endpoint(PeerId::client(7));
        let last = take_three(&local).await;
        assert!(other.acquire(write(0, 60).with(Patience::Try)).await.is_err(), "it is alive");
        drop(local);
        has_everything_again(&other, last).await;
        other.release(held).await.unwrap();
    });
}
