//! The same from Rust, to hold `benches/pair.c` against: a lock and its unlock on shared memory, in nanoseconds.

use lockwright::Client;
use std::time::Instant;

const PAIRS: u32 = 200_000;
const ROUNDS: u32 = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = format!("/dev/shm/lockwright-pair-{}", std::process::id());
    let lock = Client::open(&format!("shm:{path}")).wait()?.rwlock("pair")?;
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..PAIRS {
            lock.write().wait()?.unlock().wait()?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS));
    }
    std::fs::remove_file(path)?;
    println!("{best:.1}");
    Ok(())
}
