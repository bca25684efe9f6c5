//! A client's cycle at a server while thousands of connections say nothing, beside the same without them.

use super::measure::{Runs, median};
use super::tcp::Other;
use super::{Bound, Row};
use anyhow::Result;
use lockwright::Client;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Connections that say nothing, and those that are kept of a crowd that comes and goes.
const IDLE: usize = 5000;
const CROWD: usize = 500;
const CYCLES: usize = 1001;
/// What else this process has open.
const OTHER_FILES: u64 = 1000;

/// The rows; or why there are none.
pub(super) fn flooded(runs: &Runs) -> Result<Result<Vec<Row>, String>> {
    let (soft, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let needed = (IDLE + CROWD) as u64 + OTHER_FILES;
    if most < needed {
        return Ok(Err(format!(
            "idle connections: this takes {needed} file descriptors, and may have {most}"
        )));
    }
    // The server has as many descriptors as a system gives unless told otherwise.
    let other = Other::start(1)?;
    setrlimit(Resource::RLIMIT_NOFILE, needed.max(soft), most)?;
    let client = Client::options().retain(false).open(&format!("tcp://{}", other.server)).wait()?;
    let lock = client.mutex("flooded")?;
    let cycle = || -> Result<f64> {
        let mut times = Vec::with_capacity(CYCLES);
        for _ in 0..CYCLES {
            let began = Instant::now();
            drop(lock.lock().wait()?);
            times.push(began.elapsed().as_nanos() as f64);
        }
        Ok(median(times))
    };
    let (mut quiet, mut still, mut flooded) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs.floods {
        quiet.push(cycle()?);
        let idle: Vec<_> = (0..IDLE).map(|_| TcpStream::connect(&other.server)).collect::<Result<_, _>>()?;
        still.push(cycle()?);
        let stop = AtomicBool::new(false);
        let cycle = std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut crowd = VecDeque::new();
                while !stop.load(Relaxed) {
                    crowd.extend(TcpStream::connect(&other.server));
                    crowd.drain(..crowd.len().saturating_sub(CROWD));
                }
            });
            let cycle = cycle();
            stop.store(true, Relaxed);
            cycle
        });
        flooded.push(cycle?);
        drop(idle);
    }
    let quiet = median(quiet);
    let row = |what, ns, bound, made_of| Row {
        what,
        ns,
        against: "the same without them",
        other_ns: quiet,
        bound,
        made_of,
    };
    Ok(Ok(vec![
        row(
            "tcp mutex, beside 5,000 idle connections",
            median(still),
            Bound::AtMost(2.0),
            "the server's poll, which should not grow with connections that say nothing",
        ),
        row(
            "the same, while more connect as fast as they can",
            median(flooded),
            Bound::Shown,
            "the kernel's handshakes, and the server's accept and close of each",
        ),
    ]))
}
