//! Times lock and unlock through a server in another process, beside a bare ping-pong of frames of the same size with that
//! process, and prints both: with the two processes on two cores, then on one.
//!
//! They take turns, in many short runs, and the medians are compared. `lockwright bench` has the same figure beside others;
//! this is the small program for a profiler.

mod apart;

use apart::{Apart, serve_until_the_end, this_program};
use lockwright::Client;
use lockwright_server::{Server, ServerOptions};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Bytes of a request, and of an answer.
const FRAME: usize = 72;
const CYCLES: u32 = 200;
const RUNS: usize = 61;

fn main() {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("serve"), Some(core)) => serve(core.parse().expect("a number")),
        (Some(runs), _) => compare(0, 1, runs.parse().expect("a number of runs")),
        _ => {
            compare(0, 1, RUNS);
            compare(0, 0, RUNS);
        }
    }
}

/// The other process: a server, and an echo.
fn serve(core: usize) {
    pin(core);
    let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = format!("{} {}", server.address(), listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut frame = [0; FRAME];
        while stream.read_exact(&mut frame).is_ok() && stream.write_all(&frame).is_ok() {}
    });
    serve_until_the_end(&addresses);
}

fn compare(mine: usize, theirs: usize, runs: usize) {
    let apart = Apart::start(&this_program(), &["serve", &theirs.to_string()]);
    let (server, echo) = apart.line.split_once(' ').unwrap();
    pin(mine);
    let mut stream = TcpStream::connect(echo).unwrap();
    stream.set_nodelay(true).unwrap();
    let client = Client::open(&format!("tcp://{server}")).wait().unwrap();
    let lock = client.mutex("a").unwrap();
    let mut frame = [0; FRAME];
    let (mut bare, mut locked) = (Vec::new(), Vec::new());
    for _ in 0..=runs {
        bare.push(time(&mut || {
            stream.write_all(&frame).unwrap();
            stream.read_exact(&mut frame).unwrap();
        }));
        locked.push(time(&mut || drop(lock.lock().wait().unwrap())));
    }
    let of = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[times.len() / 10])
    };
    let ((bare, quiet_bare), (locked, quiet)) = (of(&mut bare), of(&mut locked));
    println!(
        "cores {mine} and {theirs}: bare ping-pong {bare:.1} µs, lock and unlock {locked:.1} µs: {:.2} times; of the quietest tenths {:.2}",
        locked / bare,
        quiet / quiet_bare
    );
    drop(client);
    apart.end();
}

fn time(once: &mut dyn FnMut()) -> f64 {
    let began = Instant::now();
    (0..CYCLES).for_each(|_| once());
    began.elapsed().as_secs_f64() * 1e6 / f64::from(CYCLES)
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core).unwrap();
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}
