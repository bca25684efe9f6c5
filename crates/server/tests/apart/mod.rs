//! What tests of servers have in common: looking until something is seen, a process of its own that holds a lock until it is
//! killed, a server and its state.
#![allow(dead_code, reason = "every test program needs some of it")]

#[path = "../loopback/mod.rs"]
mod loopback;

pub(crate) use self::loopback::own_address;
use lockwright::Client;
use lockwright_server::{Server, ServerOptions};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes that goes well.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Where a process of its own finds the space that it is to take locks of.
pub(crate) const TASK: &str = "LOCKWRIGHT_TEST_TASK";

/// Looks until `seen`, for a while.
pub(crate) fn eventually(what: &str, mut seen: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !seen() {
        assert!(Instant::now() < until, "{what}: not seen in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts `test` once more as a process of its own with `address` as its task, and waits until it has said `holds TOKEN`.
pub(crate) fn holder(address: &str, test: &str) -> (Child, u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(TASK, address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let token = lines.map_while(Result::ok).find_map(|line| line.split_once("holds ")?.1.parse().ok());
    (child, token.expect("it says that it holds the lock"))
}

/// A server's file that is gone with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-scratch-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(format!("{}.lock", self.0.display()));
        let _ = std::fs::remove_file(format!("{}.sessions", self.0.display()));
        let _ = std::fs::remove_file(format!("{}.values", self.0.display()));
    }
}

/// Servers that have patience with a silent client, as a busy machine makes of a living one. Of a killed one they learn by
/// its closed connection.
pub(crate) fn options() -> ServerOptions {
    ServerOptions::default()
        .listen("127.0.0.1:0".parse().unwrap())
        .heartbeat(Duration::from_millis(100))
        .grace(Duration::from_secs(20))
}

/// Servers that are started again, with their state.
pub(crate) fn lasting(state: &Scratch) -> ServerOptions {
    options().listen(own_address()).state(&state.0)
}

/// Servers that soon give up a client from which they receive nothing.
pub(crate) fn impatient() -> ServerOptions {
    options().grace(Duration::from_millis(700))
}

pub(crate) fn server() -> Server {
    Server::start(options()).unwrap()
}

/// The server ends, and another one comes with its address.
pub(crate) fn restart(server: Server, options: ServerOptions) -> Server {
    let listen = server.address();
    drop(server);
    Server::start(options.listen(listen)).unwrap()
}

pub(crate) fn address(server: &Server) -> String {
    format!("tcp://{}", server.address())
}

pub(crate) fn client(server: &Server) -> Client {
    Client::open(&address(server)).wait().unwrap()
}
