//! Clients in processes of their own. The test binary starts itself again; the child joins a space and does, one after
//! the other, what frames from a socket say. [`Remote`] is an endpoint whose verbs, waits and messages happen there; `words`
//! says how all of it goes over the socket.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "every test binary uses its part of this")]

mod remote;
mod words;

pub use remote::Remote;
pub use words::{decode_error, encode_verb, encode_wait};

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Reclaim, ShmEndpoint, ShmSpace, SpaceOptions};
use lockwright_fabric::*;
use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use words::{COND, VERB, decode_cond, decode_deadline, decode_verb, encode_error, halves, receive, send};

const SOCKET: &str = "LOCKWRIGHT_TEST_SOCKET";
const SPACE: &str = "LOCKWRIGHT_TEST_SPACE";

/// A path of its own under /dev/shm; what is there is removed when dropped.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lockwright-test-{}-p{}.space", std::process::id(), NEXT.fetch_add(1, SeqCst));
        Self(Path::new("/dev/shm").join(name))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A client process. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    pub child: Child,
    pub me: PeerId,
    line: Mutex<UnixStream>,
}

impl Process {
    /// Starts one that joins the space at `path`; `test` is the name of the test that calls [`serve_if_child`].
    pub fn start(path: &Path, test: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), path, test)
    }

    /// The same, with room for few file descriptors; [`EXHAUST`] takes those that are left.
    pub fn start_with_few_descriptors(path: &Path, test: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"ulimit -n 32; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
        Self::start_by(shell, path, test)
    }

    fn start_by(mut command: Command, path: &Path, test: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lockwright-test-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let socket = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let child = command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(SOCKET, &socket)
            .env(SPACE, path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (mut line, _) = listener.accept().unwrap();
        std::fs::remove_file(&socket).unwrap();
        let me = PeerId(receive(&mut line).expect("the child says who it is")[0] as u32);
        Self { child, me, line: Mutex::new(line) }
    }

    /// Has the child do something, and waits for its answer.
    pub fn ask(&self, request: &[u64]) -> Vec<u64> {
        let mut line = self.line.lock().unwrap();
        send(&mut line, request);
        receive(&mut line).expect("the child answers")
    }

    /// Has the child do something, and does not wait.
    pub fn tell(&self, request: &[u64]) {
        send(&mut self.line.lock().unwrap(), request);
    }

    /// The answer to what it was told.
    pub fn answer(&self) -> Option<Vec<u64>> {
        receive(&mut self.line.lock().unwrap())
    }

    pub fn signal(&self, signal: &str) {
        // The shell's own: not every system has the program.
        let kill = format!("kill {signal} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(sent.success());
    }

    /// Nanoseconds of CPU that all its threads have used.
    pub fn cpu_ns(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let stats =
            tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap());
        stats.map(|stat| stat.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub const GO: u64 = 1;
pub const WAIT: u64 = 2;
pub const SEND: u64 = 3;
pub const RECV: u64 = 4;
pub const NOW: u64 = 5;
pub const SLEEP: u64 = 6;
pub const IS_MEMBER: u64 = 7;
/// Opens and closes names until it is killed.
pub const CHURN: u64 = 9;
/// Sends to a peer until it is killed.
pub const FLOOD: u64 = 10;
/// Opens a name and keeps it.
pub const OPEN: u64 = 11;

/// Takes all file descriptors that are left.
pub const EXHAUST: u64 = 12;
/// Whether the process of a client is alive.
pub const IS_ALIVE: u64 = 13;
/// The dead clients.
pub const DEAD: u64 = 14;

/// In a child process: does what it is told until the socket is closed. Elsewhere: nothing.
pub fn serve_if_child() {
    let (Some(socket), Some(path)) = (std::env::var_os(SOCKET), std::env::var_os(SPACE)) else { return };
    let mut line = UnixStream::connect(socket).unwrap();
    let space = ShmSpace::open(path, &SpaceOptions::default()).unwrap();
    let ep = space.endpoint().unwrap();
    send(&mut line, &[ep.me().0.into()]);
    // Files that the child keeps open.
    let mut files: Vec<File> = Vec::new();
    while let Some(request) = receive(&mut line) {
        let answer = match request[0] {
            EXHAUST => {
                files.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
                vec![files.len() as u64]
            }
            _ => serve(&space, &ep, &request),
        };
        send(&mut line, &answer);
    }
    drop(ep);
    std::process::exit(0);
}

fn serve(space: &ShmSpace, ep: &ShmEndpoint, request: &[u64]) -> Vec<u64> {
    let words = &mut request[1..].iter().copied();
    let mut word = || words.next().unwrap();
    match request[0] {
        GO => {
            let verbs: Vec<_> = request[1..].chunks(VERB).map(decode_verb).collect();
            match block_on(ep.go(&verbs[..])) {
                Ok(olds) => std::iter::once(0).chain(olds.into_iter().flat_map(halves)).collect(),
                Err(error) => encode_error(error),
            }
        }
        WAIT => {
            let RawVerb { addr, width, .. } = decode_verb(&request[1..=VERB]);
            let (cond, or) = (decode_cond(&request[1 + VERB..]), decode_cond(&request[1 + VERB + COND..]));
            let deadline = decode_deadline(&request[1 + VERB + 2 * COND..]);
            match width {
                Width::W64 => wait::<u64>(ep, addr, cond.unwrap(), or, deadline),
                Width::W128 => wait::<u128>(ep, addr, cond.unwrap(), or, deadline),
            }
        }
        SEND => {
            let (to, datagram, lock, kind) = (PeerId(word() as u32), word() == 1, word(), word() as u32);
            let message =
                Message { lock, kind, words: [word(), word(), word(), word()], tail: words.collect() };
            let sent = if datagram {
                block_on(ep.send_datagram(to, message))
            } else {
                block_on(ep.send(to, message))
            };
            sent.map_or_else(encode_error, |()| vec![0])
        }
        RECV => {
            let deadline = decode_deadline(&request[1..]);
            match block_on(ep.recv_by(deadline, |from, message| Some((from, message.clone())))) {
                None => vec![],
                Some((from, Message { lock, kind, words, tail })) => {
                    let head = [u64::from(from.0), lock, kind.into()];
                    head.into_iter().chain(words).chain(tail).collect()
                }
            }
        }
        NOW => vec![block_on(ep.now()).0],
        SLEEP => {
            block_on(ep.sleep(word()));
            vec![]
        }
        IS_ALIVE => vec![space.is_alive(PeerId(word() as u32)).into()],
        DEAD => space.dead_clients().iter().map(|client| client.peer.0.into()).collect(),
        IS_MEMBER => vec![ep.is_member().into()],
        CHURN => {
            let names = ep.names();
            for round in word().. {
                let opened: Vec<_> =
                    (0..5).map(|n| names.open(name(round % 7 + n).as_bytes()).unwrap()).collect();
                for lock in opened {
                    let end = |_| {
                        if round % 3 == 0 {
                            Reclaim::Keep
                        } else {
                            Reclaim::Reuse { highest_token: round, own_token: 0 }
                        }
                    };
                    names.close(lock.id, end).unwrap();
                }
            }
            vec![]
        }
        FLOOD => {
            let to = PeerId(word() as u32);
            for n in 0.. {
                let tail = (0..n % 20).collect();
                block_on(ep.send(to, Message { lock: n, kind: 9, words: [n; 4], tail })).unwrap();
            }
            vec![]
        }
        OPEN => vec![ep.names().open(name(word()).as_bytes()).unwrap().id],
        other => panic!("request {other}"),
    }
}

fn wait<T: Value>(
    ep: &ShmEndpoint,
    addr: Addr,
    cond: Cond,
    or: Option<Cond>,
    deadline: Deadline,
) -> Vec<u64> {
    let mut wait = Word::<T>::at(addr).until(cond).by(deadline);
    wait.or = or;
    match block_on(ep.wait_until(wait)) {
        Ok(end) => [0].into_iter().chain(halves(end.value.widen())).chain([end.met.into()]).collect(),
        Err(error) => encode_error(error),
    }
}

/// The `n`-th name: all sorts of lengths.
pub fn name(n: u64) -> String {
    format!("{n}{}", "-".repeat((n * 37 % 250) as usize))
}
