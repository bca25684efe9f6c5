//! Whether it costs anything that locks stay with their last user where they are shared: clients that pick names by Zipf, with
//! locks that stay and with locks that do not, in turns in one run.
//!
//! `zipf_load [CLIENTS NAMES SECONDS TURNS]`, by default 64 clients, a million names, exponent 0.99, 2 s and 9 turns of each. The
//! clients are threads of one process that block, each with a session of its own; the server is another process. A client keeps
//! the handles of all names that it has used, as a program does whose locks may stay.

mod apart;

use apart::{Apart, serve_until_the_end, this_program};
use lockwright::{Client, Mutex};
use lockwright_server::{Server, ServerOptions};
use lockwright_sim::{Rng, Zipf};
use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What is left of the throughput, at least.
const GOAL: f64 = 0.97;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "serve") {
        let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
        return serve_until_the_end(&server.address().to_string());
    }
    let number = |at: usize, or: u64| args.get(at).map_or(or, |arg| arg.parse().expect("a number"));
    let (clients, names, seconds, turns) = (number(0, 64), number(1, 1_000_000), number(2, 2), number(3, 9));
    let time = Duration::from_secs(seconds);
    println!(
        "{clients} clients, {names} names by Zipf 0.99, {turns} turns of {seconds} s of each; medians, least and most"
    );
    let (mut on, mut off, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..turns {
        // Who is first changes from turn to turn.
        let order = if turn % 2 == 0 { [true, false] } else { [false, true] };
        let mut rates = order.map(|retain| (retain, rate(clients, names, retain, time)));
        rates.sort_by_key(|(retain, _)| *retain);
        let [(_, without), (_, with)] = rates;
        off.push(without);
        on.push(with);
        ratios.push(with / without);
    }
    println!("locks do not stay: {} cycles/s", spread(&mut off, 0));
    println!("locks stay:        {} cycles/s", spread(&mut on, 0));
    let ratio = spread(&mut ratios, 3);
    let verdict = if ratios[ratios.len() / 2] >= GOAL { "ok" } else { "MISS" };
    println!("ratio:             {ratio}, at least {GOAL}: {verdict}");
}

fn spread(all: &mut [f64], digits: usize) -> String {
    all.sort_by(f64::total_cmp);
    format!("{:.digits$} ({:.digits$} to {:.digits$})", all[all.len() / 2], all[0], all[all.len() - 1])
}

/// Locks and unlocks per second of all clients together.
fn rate(clients: u64, names: u64, retain: bool, time: Duration) -> f64 {
    let apart = Apart::start(&this_program(), &["serve"]);
    let address = format!("tcp://{}", apart.line);
    let (stop, cycles, counts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
    let begun = Barrier::new(clients as usize + 1);
    let took = std::thread::scope(|scope| {
        for number in 0..clients {
            let (address, stop, cycles, counts, begun) = (&address, &stop, &cycles, &counts, &begun);
            scope.spawn(move || {
                let client = Client::options().retain(retain).open(address).wait().unwrap();
                let (zipf, mut rng) = (Zipf::new(names, 0.99), Rng::new(1, number));
                let mut locks: HashMap<u64, Mutex> = HashMap::new();
                begun.wait();
                while !stop.load(Relaxed) {
                    let name = zipf.sample(&mut rng);
                    let lock = locks.entry(name).or_insert_with(|| client.mutex(name.to_string()).unwrap());
                    drop(lock.lock().wait().unwrap());
                    cycles.fetch_add(u64::from(counts.load(Relaxed)), Relaxed);
                }
            });
        }
        begun.wait();
        // The first moments are not counted.
        std::thread::sleep(time / 4);
        counts.store(true, Relaxed);
        let began = Instant::now();
        std::thread::sleep(time);
        counts.store(false, Relaxed);
        let took = began.elapsed();
        stop.store(true, Relaxed);
        took
    });
    apart.end();
    cycles.into_inner() as f64 / took.as_secs_f64()
}
