//! Many clients of one server at once, each with several requests under way: grants per second, how long a request takes,
//! and what it costs the server.
//!
//! `tcp_load [CLIENTS WINDOW SECONDS [SERVER...]]`: each SERVER is a program like this one, which is started with `serve`, and a
//! number of threads behind a `:` if it is to be told one; they take turns, so that two builds are compared in one run. The
//! clients share one thread and speak the messages of lock spaces themselves (`remote/talk.rs` has the tables), so that they
//! cost as little as they can: what is to be seen is the server.

mod apart;

use apart::{Apart, serve_until_the_end, this_program};
use lockwright_fabric::backend::tcp::{CloseReason, ConnectOptions, SessionHandler, TcpEndpoint};
use lockwright_fabric::{Message, PeerId};
use lockwright_server::{Server, ServerOptions};
use std::cell::RefCell;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DISPATCHER: PeerId = PeerId::role(0);
const GRANTED: u32 = 65;
const TURNS: usize = 5;

thread_local! {
    /// The latencies of this turn, in nanoseconds.
    static TIMES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "serve") {
        return serve(args.get(1).and_then(|threads| threads.parse().ok()));
    }
    let number = |at: usize, or: u64| args.get(at).map_or(or, |arg| arg.parse().expect("a number"));
    let (clients, window, seconds) = (number(0, 32) as usize, number(1, 8), number(2, 1));
    let servers: Vec<String> =
        args.get(3..).filter(|some| !some.is_empty()).map_or_else(|| vec![this_program()], <[_]>::to_vec);
    println!("{clients} clients, {window} requests each, {TURNS} turns of {seconds} s; medians");
    let mut figures = vec![Vec::new(); servers.len()];
    for _ in 0..TURNS {
        for (server, figures) in servers.iter().zip(&mut figures) {
            figures.push(turn(server, clients, window, Duration::from_secs(seconds)));
        }
    }
    for (server, figures) in servers.iter().zip(figures) {
        let median = |of: fn(&Figures) -> f64| {
            let mut all: Vec<f64> = figures.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        println!(
            "{:>9.0} grants/s, p50 {:>7.1} µs, p99 {:>7.1} µs, {:.2} µs of the server's CPU per grant: {server}",
            median(|figures| figures.per_second),
            median(|figures| figures.p50),
            median(|figures| figures.p99),
            median(|figures| figures.cpu),
        );
    }
}

/// What came of a turn; times in microseconds.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    p50: f64,
    p99: f64,
    cpu: f64,
}

/// The other process: a server.
fn serve(threads: Option<usize>) {
    let mut options = ServerOptions::default().listen("127.0.0.1:0".parse().unwrap());
    if let Some(threads) = threads {
        options = options.threads(threads);
    }
    let server = Server::start(options).unwrap();
    serve_until_the_end(&server.address().to_string());
}

fn turn(server: &str, clients: usize, window: u64, time: Duration) -> Figures {
    let (program, threads) = server.split_once(':').unwrap_or((server, ""));
    let apart = Apart::start(program, &["serve", threads]);
    let address = apart.line.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let figures = runtime.block_on(async {
        let mut all = Vec::new();
        for number in 0..clients {
            let ep = TcpEndpoint::connect(address, ConnectOptions::default()).await.unwrap();
            let client = Arc::new(Client { ep, said: Mutex::default(), stop: AtomicBool::new(false) });
            let listener: Arc<dyn SessionHandler> = Arc::<Client>::clone(&client);
            client.ep.set_handler(Arc::downgrade(&listener));
            client.begin(number as u64, window);
            all.push(client);
        }
        // The first moments are not counted.
        tokio::time::sleep(time / 5).await;
        TIMES.take();
        let (began, cpu) = (Instant::now(), cpu(&apart.child));
        tokio::time::sleep(time).await;
        let (mut times, took, cpu) = (TIMES.take(), began.elapsed(), self::cpu(&apart.child) - cpu);
        all.iter().for_each(|client| client.stop.store(true, Relaxed));
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100] as f64 / 1e3;
        Figures {
            per_second: times.len() as f64 / took.as_secs_f64(),
            p50: at(50),
            p99: at(99),
            cpu: cpu * 1e6 / times.len() as f64,
        }
    });
    apart.end();
    figures
}

/// Seconds of CPU that a process has used.
fn cpu(of: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", of.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    // User and system time, in hundredths of a second as everywhere on Linux.
    (ticks(11) + ticks(12)) / 100.0
}

/// A client, and what it has said: how many messages, and when it asked under which handle.
struct Client {
    ep: TcpEndpoint,
    said: Mutex<(u64, Vec<Instant>)>,
    stop: AtomicBool,
}

impl Client {
    fn say(&self, seq: &mut u64, kind: u32, lock: u64, words: [u64; 3], tail: Vec<u64>) {
        *seq += 1;
        let [a, b, c] = words;
        let _ = self.ep.tell(DISPATCHER, &Message { lock, kind, words: [*seq, a, b, c], tail });
    }

    /// Enters the default space, names `window` locks of its own and asks for each.
    fn begin(&self, number: u64, window: u64) {
        let mut said = self.said.lock().unwrap();
        let (seq, asked) = &mut *said;
        self.say(seq, 1, 1, [number, 1, 0], vec![0]);
        for handle in 0..window {
            let name = u64::from_le_bytes(
                *format!("{:04}{handle:04}", number % 10_000).as_bytes().first_chunk().unwrap(),
            );
            self.say(seq, 2, handle, [0; 3], vec![8, name]);
            asked.push(Instant::now());
            self.lock(seq, handle, 1);
        }
    }

    /// Exclusive, and waits: see the tables.
    fn lock(&self, seq: &mut u64, handle: u64, time: u64) {
        self.say(seq, 4 | 1 << 8 | 1 << 9, time << 32 | handle, [0, u64::MAX, handle], Vec::new());
    }
}

impl SessionHandler for Client {
    fn message(&self, _: PeerId, message: Message) -> Option<Message> {
        if message.kind != GRANTED || self.stop.load(Relaxed) {
            assert!(message.kind == GRANTED || message.kind == 71, "refused: {message:?}");
            return None;
        }
        let (id, now) = (message.lock, Instant::now());
        let mut said = self.said.lock().unwrap();
        let (seq, asked) = &mut *said;
        let handle = id & 0xffff_ffff;
        let took = now - std::mem::replace(&mut asked[handle as usize], now);
        TIMES.with_borrow_mut(|times| times.push(took.as_nanos() as u64));
        self.say(seq, 5, id, [0; 3], Vec::new());
        self.lock(seq, handle, (id >> 32) + 1);
        None
    }

    fn reconnected(&self) {
        panic!("the connection broke");
    }

    fn closed(&self, fate: &CloseReason) {
        assert!(self.stop.load(Relaxed), "{fate:?}");
    }
}
