//! A server that is flooded with connections that say nothing: clients go on, newcomers get in, and it takes no more memory.

#[allow(dead_code, reason = "this needs some of it")]
mod started;

use lockwright::Client;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use started::{Started, limited};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const IDLE: usize = 5000;
/// Far more than all places for those who have not said who they are can take.
const MEMORY: u64 = 64 << 20;

fn lockwright(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The address of a server that says it in JSON.
fn listening(server: &Started) -> String {
    let said: serde_json::Value = serde_json::from_str(&server.line).unwrap();
    said["listening"].as_str().unwrap().to_owned()
}

fn resident(server: &Started) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Some locks and unlocks that the server is asked for. How long they take, `lockwright bench` measures.
fn cycles(client: &Client) {
    let lock = client.mutex("cycle").unwrap();
    (0..200).for_each(|_| drop(lock.lock().wait().unwrap()));
}

#[test]
fn thousands_of_idle_connections_stop_no_client_and_keep_no_newcomer_out() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if most < IDLE as u64 + 1000 {
        println!("skipped: this needs {} file descriptors, and may have {most}", IDLE + 1000);
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let serve = lockwright(&["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none"]);
    // As many descriptors as a system gives unless told otherwise: fewer than the crowd would take.
    let server = Started::new(limited(1024, &serve));
    let address = listening(&server);
    let open = || Client::open(&format!("tcp://{address}/?retain=off")).wait().unwrap();
    let client = open();
    cycles(&client);
    let before = resident(&server);
    let idle: Vec<_> = (0..IDLE).map(|_| TcpStream::connect(&address).unwrap()).collect();
    cycles(&client);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut crowd = std::collections::VecDeque::new();
            while !stop.load(Relaxed) {
                crowd.extend(TcpStream::connect(&address));
                crowd.drain(..crowd.len().saturating_sub(500));
            }
        });
        cycles(&client);
        for _ in 0..10 {
            drop(open().mutex("a").unwrap().lock().wait().unwrap());
        }
        stop.store(true, Relaxed);
    });
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < MEMORY, "{grown} bytes more");
    drop(idle);
}

#[test]
fn a_server_without_descriptors_closes_idle_connections_for_newcomers() {
    let serve = lockwright(&["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none"]);
    let server = Started::new(limited(64, &serve));
    let address = listening(&server);
    let idle: Vec<_> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let space = format!("tcp://{address}");
    let run = lockwright(&["run", "--space", &space, "-w", "20", "a", "--", "true"]).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    drop(idle);
}

/// A server in front of `server` that closes the first connections as soon as they have spoken.
fn overrun(server: String, closed: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, near) in listener.incoming().enumerate() {
            let mut near = near.unwrap();
            if number < closed {
                let _ = near.read(&mut [0; 1]);
                continue;
            }
            let far = TcpStream::connect(&server).unwrap();
            let (mut from, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut near, &mut { &far });
                let _ = (&far).flush();
                let _ = far.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    address
}

#[test]
fn a_client_whose_handshake_is_broken_off_tries_again_until_its_deadline() {
    let server = Started::new(lockwright(&["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none"]));
    let behind = |closed| format!("tcp://{}", overrun(listening(&server), closed));
    for args in [&["ls"][..], &["run", "-w", "20", "a", "--", "true"]] {
        let output = lockwright(args).env("LOCKWRIGHT_SPACE", behind(5)).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let refused = Client::options().timeout(Duration::from_millis(200)).open(&behind(usize::MAX)).wait();
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("too many clients connect at once"), "{why}");
}
