//! The port's own counters, to be set against ours: what the driver publishes in sysfs, which differs from driver to driver.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The kernel counts a lifespan in ticks of its clock, of ten milliseconds at most.
const TICK: Duration = Duration::from_millis(10);

/// The hardware counters of a port, by their names; empty if the driver has none. The kernel answers from what it has read within
/// their lifespan (10 ms, mostly), so this waits for that long first.
///
/// ```
/// assert!(lockwright_fabric::backend::rdma::port_counters("no-such-device", 1).is_empty());
/// ```
pub fn port_counters(device: &str, port: u8) -> BTreeMap<String, u64> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters");
    let lifespan_ms =
        fs::read_to_string(format!("{folder}/lifespan")).ok().and_then(|ms| ms.trim().parse().ok());
    if let Some(ms) = lifespan_ms {
        std::thread::sleep(Duration::from_millis(ms) + TICK);
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let value = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), value))
    };
    entries.filter_map(read).collect()
}

/// Work requests that this process has posted.
pub(super) static POSTED: AtomicU64 = AtomicU64::new(0);

/// How many work requests this process has posted so far, by hosts and clients, verbs and messages: what a cycle of something
/// costs is the difference.
pub fn posted() -> u64 {
    POSTED.load(Relaxed)
}
