//! Clients in processes of their own. The test binary starts itself again; the child joins a space and does, one after
//! the other, what frames from a socket say. [`Remote`] is an endpoint whose verbs, waits and messages happen there.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its part of this")]

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{Reclaim, ShmEndpoint, ShmSpace, SpaceOptions};
use lockwright_fabric::*;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;

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
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lockwright-test-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let socket = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
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
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
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

fn send(line: &mut UnixStream, words: &[u64]) {
    let mut bytes = (words.len() as u64).to_le_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    line.write_all(&bytes).unwrap();
}

fn receive(line: &mut UnixStream) -> Option<Vec<u64>> {
    let mut word = [0; 8];
    line.read_exact(&mut word).ok()?;
    let mut bytes = vec![0; 8 * u64::from_le_bytes(word) as usize];
    line.read_exact(&mut bytes).ok()?;
    Some(bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect())
}

pub const GO: u64 = 1;
pub const WAIT: u64 = 2;
pub const SEND: u64 = 3;
pub const RECV: u64 = 4;
pub const NOW: u64 = 5;
pub const SLEEP: u64 = 6;
pub const IS_IN: u64 = 7;
pub const GROWN: u64 = 8;
/// Opens and closes names until it is killed.
pub const CHURN: u64 = 9;
/// Sends to a peer until it is killed.
pub const FLOOD: u64 = 10;
/// Opens a name and keeps it.
pub const OPEN: u64 = 11;

/// In a child process: does what it is told until the socket is closed. Elsewhere: nothing.
pub fn serve_if_child() {
    let (Some(socket), Some(path)) = (std::env::var_os(SOCKET), std::env::var_os(SPACE)) else { return };
    let mut line = UnixStream::connect(socket).unwrap();
    let space = ShmSpace::open(path, &SpaceOptions::default()).unwrap();
    let ep = space.endpoint().unwrap();
    send(&mut line, &[ep.me().0.into()]);
    while let Some(request) = receive(&mut line) {
        let answer = serve(&space, &ep, &request);
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
        IS_IN => vec![ep.is_in().into()],
        GROWN => vec![space.bytes(NodeId(0), RegionId(0))],
        CHURN => {
            let names = ep.names();
            for round in word().. {
                let opened: Vec<_> =
                    (0..5).map(|n| names.open(name(round % 7 + n).as_bytes()).unwrap()).collect();
                for lock in opened {
                    let end = |_| {
                        if round % 3 == 0 { Reclaim::Keep } else { Reclaim::Reuse { highest_token: round } }
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

fn halves(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}

fn whole(words: &[u64]) -> u128 {
    u128::from(words[0]) | u128::from(words[1]) << 64
}

const VERB: usize = 12;
const COND: usize = 5;

pub fn encode_verb(verb: &RawVerb) -> Vec<u64> {
    let (code, operands) = match verb.op {
        Op::Read => (0, [0; 4]),
        Op::Write(value) => (1, [value, 0, 0, 0]),
        Op::Cas { expect, new } => (2, [expect, new, 0, 0]),
        Op::FetchAdd(add) => (3, [add, 0, 0, 0]),
        Op::MaskedCas(m) => (4, [m.compare, m.compare_mask, m.swap, m.swap_mask]),
        Op::MaskedFetchAdd(f) => (5, [f.add, f.boundaries, 0, 0]),
        Op::GuardedFetchAdd { fields: f, guard, guard_mask } => (6, [f.add, f.boundaries, guard, guard_mask]),
    };
    let place = u64::from(verb.addr.node.0) << 32 | u64::from(verb.addr.region.0);
    let head = [place, verb.addr.offset, verb.width.bytes(), code];
    head.into_iter().chain(operands.into_iter().flat_map(halves)).collect()
}

fn decode_verb(words: &[u64]) -> RawVerb {
    let [a, b, c, d] = std::array::from_fn(|i| whole(&words[4 + 2 * i..]));
    let op = match words[3] {
        0 => Op::Read,
        1 => Op::Write(a),
        2 => Op::Cas { expect: a, new: b },
        3 => Op::FetchAdd(a),
        4 => Op::MaskedCas(MaskedCas { compare: a, compare_mask: b, swap: c, swap_mask: d }),
        5 => Op::MaskedFetchAdd(Fields { add: a, boundaries: b }),
        _ => Op::GuardedFetchAdd { fields: Fields { add: a, boundaries: b }, guard: c, guard_mask: d },
    };
    let (node, region) = (NodeId((words[0] >> 32) as u16), RegionId(words[0] as u16));
    let width = if words[2] == 8 { Width::W64 } else { Width::W128 };
    RawVerb { addr: Addr { offset: words[1], node, region }, width, op }
}

fn encode_cond(cond: Option<Cond>) -> [u64; COND] {
    let field = |f: Field| u128::from(f.shift) | u128::from(f.bits) << 32;
    let (code, a, b) = match cond {
        None => (0, 0, 0),
        Some(Cond::Eq { mask, value }) => (1, mask, value),
        Some(Cond::Ne { mask, value }) => (2, mask, value),
        Some(Cond::FieldsEq(a, b)) => (3, field(a), field(b)),
        Some(Cond::AtLeast(a, value)) => (4, field(a), value),
    };
    let ([a, b], [c, d]) = (halves(a), halves(b));
    [code, a, b, c, d]
}

fn decode_cond(words: &[u64]) -> Option<Cond> {
    let (a, b) = (whole(&words[1..]), whole(&words[3..]));
    let field = |wide: u128| Field { shift: wide as u32, bits: (wide >> 32) as u32 };
    Some(match words[0] {
        0 => return None,
        1 => Cond::Eq { mask: a, value: b },
        2 => Cond::Ne { mask: a, value: b },
        3 => Cond::FieldsEq(field(a), field(b)),
        _ => Cond::AtLeast(field(a), b),
    })
}

fn encode_deadline(deadline: Deadline) -> [u64; 2] {
    match deadline {
        Deadline::Never => [0, 0],
        Deadline::Now => [1, 0],
        Deadline::At(time) => [2, time.0],
    }
}

fn decode_deadline(words: &[u64]) -> Deadline {
    match words[0] {
        0 => Deadline::Never,
        1 => Deadline::Now,
        _ => Deadline::At(Time(words[1])),
    }
}

pub fn encode_wait<T: Value>(wait: &Wait<T>) -> Vec<u64> {
    let mut request = vec![WAIT];
    request.extend(encode_verb(&wait.word.read().raw()));
    request.extend(encode_cond(Some(wait.cond)));
    request.extend(encode_cond(wait.or));
    request.extend(encode_deadline(wait.deadline));
    request
}

fn encode_error(error: FabricError) -> Vec<u64> {
    match error {
        FabricError::NodeLost(node) => vec![1, node.0.into()],
        FabricError::PeerLost(peer) => vec![2, peer.0.into()],
        FabricError::Expelled => vec![3],
    }
}

pub fn decode_error(words: &[u64]) -> FabricError {
    match words[0] {
        1 => FabricError::NodeLost(NodeId(words[1] as u16)),
        2 => FabricError::PeerLost(PeerId(words[1] as u32)),
        _ => FabricError::Expelled,
    }
}

/// An endpoint whose client is another process.
#[derive(Clone, Debug)]
pub struct Remote {
    pub process: Arc<Process>,
    letters: Arc<Mutex<VecDeque<(PeerId, Message)>>>,
}

impl Remote {
    pub fn new(process: Process) -> Self {
        Self { process: Arc::new(process), letters: Arc::default() }
    }

    fn post(&self, to: PeerId, message: Message, datagram: bool) -> Result<(), FabricError> {
        let Message { lock, kind, words, tail } = message;
        let mut request = vec![SEND, to.0.into(), datagram.into(), lock, kind.into()];
        request.extend(words.into_iter().chain(tail));
        let answer = self.process.ask(&request);
        if answer[0] == 0 { Ok(()) } else { Err(decode_error(&answer)) }
    }

    fn time(&self) -> Time {
        Time(self.process.ask(&[NOW])[0])
    }
}

impl Endpoint for Remote {
    fn me(&self) -> PeerId {
        self.process.me
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let mut request = vec![GO];
        batch.each(&mut |verb| {
            request.extend(encode_verb(&verb));
            0
        });
        let answer = self.process.ask(&request);
        if answer[0] != 0 {
            return Err(decode_error(&answer));
        }
        let mut olds = answer[1..].chunks(2).map(whole);
        Ok(batch.each(&mut |_| olds.next().unwrap()))
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let answer = self.process.ask(&encode_wait(&wait));
        if answer[0] != 0 {
            return Err(decode_error(&answer));
        }
        Ok(Waited { value: T::narrow(whole(&answer[1..])), met: answer[3] == 1, polls: 0 })
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.post(to, message, false)
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.post(to, message, true)
    }

    /// Every poll lets the child wait for a moment.
    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        mut pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        let mut looked = 0;
        std::future::poll_fn(|cx| {
            loop {
                let mut letters = self.letters.lock().unwrap();
                while looked < letters.len() {
                    let (from, message) = &letters[looked];
                    if let Some(answer) = pick(*from, message) {
                        letters.remove(looked);
                        return Poll::Ready(Some(answer));
                    }
                    looked += 1;
                }
                let now = self.time();
                let soon = match deadline {
                    Deadline::Now => Deadline::Now,
                    Deadline::At(time) => Deadline::At(time.min(now.plus(2_000_000))),
                    Deadline::Never => Deadline::At(now.plus(2_000_000)),
                };
                let [kind, at] = encode_deadline(soon);
                let answer = self.process.ask(&[RECV, kind, at]);
                if answer.is_empty() {
                    break;
                }
                let words = [answer[3], answer[4], answer[5], answer[6]];
                let tail = answer[7..].to_vec();
                let message = Message { lock: answer[1], kind: answer[2] as u32, words, tail };
                letters.push_back((PeerId(answer[0] as u32), message));
            }
            let over = match deadline {
                Deadline::Now => true,
                Deadline::At(time) => self.time() >= time,
                Deadline::Never => false,
            };
            if over {
                return Poll::Ready(None);
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    async fn now(&self) -> Time {
        self.time()
    }

    async fn sleep(&self, ns: u64) {
        self.process.ask(&[SLEEP, ns]);
    }

    fn random(&self) -> u64 {
        0
    }
}
