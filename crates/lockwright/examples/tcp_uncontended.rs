//! Times lock and unlock through a server on this machine, beside a bare ping-pong of frames of the same size between two
//! threads, and prints both.

use lockwright::Client;
use lockwright::server::{Server, ServerOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a request, and of an answer.
const FRAME: usize = 72;
const ROUNDS: u32 = 5000;

fn bare() -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    std::thread::spawn(move || {
        let mut frame = [0; FRAME];
        while server.read_exact(&mut frame).is_ok() {
            server.write_all(&frame).unwrap();
        }
    });
    let mut frame = [0; FRAME];
    let mut once = || {
        client.write_all(&frame).unwrap();
        client.read_exact(&mut frame).unwrap();
    };
    time(&mut once)
}

fn time(once: &mut dyn FnMut()) -> Duration {
    (0..ROUNDS / 10).for_each(|_| once());
    let began = Instant::now();
    (0..ROUNDS).for_each(|_| once());
    began.elapsed() / ROUNDS
}

fn main() {
    let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    let client = Client::open(&format!("tcp://{}", server.address())).unwrap();
    let lock = client.mutex("a").unwrap();
    for _ in 0..3 {
        let bare = bare();
        let locked = time(&mut || drop(lock.lock().wait().unwrap()));
        let ratio = locked.as_secs_f64() / bare.as_secs_f64();
        println!("bare ping-pong {bare:?}, lock and unlock {locked:?}: {ratio:.2} times");
    }
}
