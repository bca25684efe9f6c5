//! What a lock over tcp costs: an uncontended lock and unlock by compare-and-swap through the server, against a bare
//! ping-pong of the same bytes between two blocking sockets, over the loopback interface, in the same run.
//!
//! `cargo bench -p lockwright-fabric --bench tcp`
//!
//! Server and client, and the two ends of the ping-pong, are one thread each. The two of a pair take turns, and every
//! figure is the median of many short runs, so that a busy machine disturbs both alike. With more work than cores the
//! medians still swing; the last column is the ratio of the quietest tenths. The goal is at most 1.3 where the release
//! is not waited for.

use lockwright_fabric::backend::inproc::{InProc, block_on};
use lockwright_fabric::backend::tcp::frame::Frame;
use lockwright_fabric::backend::tcp::{ConnectOptions, InProcHost, Server, ServerOptions, TcpEndpoint};
use lockwright_fabric::{Addr, Endpoint, NodeId, Word64};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};

const CYCLES: u32 = 400;
const RUNS: usize = 41;
const LOCK: Word64 = Word64::at(Addr::new(NodeId(0), 64));

fn main() {
    let ask = bytes_of(&Frame::Go { id: 1, quiet: false, verbs: vec![LOCK.cas(0, 1).raw()] });
    let answer = bytes_of(&Frame::Done { id: 1, olds: vec![0] });
    println!("uncontended lock + unlock over loopback tcp, median of {RUNS} runs of {CYCLES}, microseconds");
    println!("ping-pong: {} bytes there, {} bytes back, blocking sockets", ask.len(), answer.len());
    println!("{:<44} {:>8} {:>9} {:>7} {:>7}", "", "lock", "ping-pong", "ratio", "quiet");
    let address = serve();
    let mut pong = PingPong::new(ask, answer.len());
    let here = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ep = here.block_on(TcpEndpoint::connect(address, ConnectOptions::default())).expect("connected");
    compare("release posted", &mut pong, || spawned(&here, cycles(ep.clone(), post)));
    compare("release polled once and dropped", &mut pong, || {
        spawned(&here, cycles(ep.clone(), drop_release));
    });
    compare("release waited for", &mut pong, || {
        spawned(&here, cycles(ep.clone(), wait_release));
    });
    drop(ep);
    drop(here);
    let (runtime, ep) = elsewhere(address);
    compare("release posted, runtime on another thread", &mut pong, || block_on(cycles(ep.clone(), post)));
    drop(ep);
    drop(runtime);
}

/// A server on a thread of its own.
fn serve() -> SocketAddr {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let host = InProcHost::new(InProc::new(1, 4096), 0);
            let here = "127.0.0.1:0".parse().expect("an address");
            let server = Server::bind(here, host, vec![], ServerOptions::default()).await.expect("a server");
            sender.send(server.address()).expect("the client asks");
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().expect("the server starts")
}

fn elsewhere(address: SocketAddr) -> (Runtime, TcpEndpoint) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let ep = runtime.block_on(TcpEndpoint::connect(address, ConnectOptions::default())).expect("connected");
    (runtime, ep)
}

/// As a task, which is what users have: the future that a runtime was started with is woken by a system call.
fn spawned(runtime: &Runtime, work: impl Future<Output = ()> + Send + 'static) {
    runtime.block_on(async { tokio::spawn(work).await.expect("no panic") });
}

async fn cycles<F: Future<Output = ()>>(ep: TcpEndpoint, release: fn(TcpEndpoint) -> F) {
    for _ in 0..CYCLES {
        assert_eq!(ep.go(LOCK.cas(0, 1)).await, Ok(0));
        release(ep.clone()).await;
    }
}

async fn post(ep: TcpEndpoint) {
    ep.post(LOCK.cas(1, 0)).expect("posted");
}

async fn drop_release(ep: TcpEndpoint) {
    let mut release = pin!(ep.go(LOCK.cas(1, 0)));
    std::future::poll_fn(|cx| {
        assert!(release.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

async fn wait_release(ep: TcpEndpoint) {
    assert_eq!(ep.go(LOCK.cas(1, 0)).await, Ok(1));
}

/// Two blocking sockets.
struct PingPong {
    stream: TcpStream,
    ask: Vec<u8>,
    answer: Vec<u8>,
}

impl PingPong {
    fn new(ask: Vec<u8>, answer_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (mut other, _) = listener.accept().expect("connected");
        stream.set_nodelay(true).expect("a socket");
        other.set_nodelay(true).expect("a socket");
        let mut asked = vec![0; ask.len()];
        std::thread::spawn(move || {
            let answer = vec![0; answer_bytes];
            while other.read_exact(&mut asked).is_ok() && other.write_all(&answer).is_ok() {}
        });
        Self { stream, ask, answer: vec![0; answer_bytes] }
    }

    fn play(&mut self) {
        for _ in 0..CYCLES {
            self.stream.write_all(&self.ask).expect("written");
            self.stream.read_exact(&mut self.answer).expect("read");
        }
    }
}

/// Runs the two in turns and prints their medians.
fn compare(name: &str, pong: &mut PingPong, mut lock: impl FnMut()) {
    let (mut locks, mut pongs) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        locks.push(time(&mut lock));
        pongs.push(time(&mut || pong.play()));
    }
    locks.sort_by(f64::total_cmp);
    pongs.sort_by(f64::total_cmp);
    let (lock, pong) = (locks[RUNS / 2], pongs[RUNS / 2]);
    let quiet = locks[RUNS / 10] / pongs[RUNS / 10];
    println!("{name:<44} {lock:>8.1} {pong:>9.1} {:>7.2} {quiet:>7.2}", lock / pong);
}

fn time(run: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e6 / f64::from(CYCLES)
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}
