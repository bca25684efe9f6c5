//! Locks of a space in shared memory.

use super::ball;
use super::bare::{self, Bare};
use super::measure::{Runs, median};
use super::partner::Partner;
use super::{Bound, Row};
use anyhow::{Context, Result};
use lockwright::Client;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A space and a file of the bench's own, gone with it.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    pub(super) space: String,
}

impl Place {
    pub(super) fn new() -> Result<Self> {
        let path = PathBuf::from(format!("/dev/shm/lockwright-bench-{}", std::process::id()));
        // A new folder, closed to others: another user who guesses its name can put nothing into it.
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        let space = format!("shm:{}", path.join("space").display());
        drop(Client::open(&space).wait()?);
        Ok(Self { path, space })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The address of another space in it.
    pub(super) fn space_named(&self, name: &str) -> String {
        format!("shm:{}", self.path.join(name).display())
    }

    pub(super) fn file(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .context("a file to lock")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Locks that nobody else wants, by a held handle.
pub(super) fn uncontended(place: &Place, runs: &Runs) -> Result<Vec<Row>> {
    const CYCLES: u32 = 20_000;
    /// System calls are slow: fewer will do.
    const CALLS: u32 = 2_000;
    let client = Client::open(&place.space).wait()?;
    let mutex = client.mutex("mutex")?;
    let (bare, file) = (Bare::default(), place.file("file")?);
    let times = runs.take_turns([
        (CYCLES, &mut || bare.cycle()),
        (CYCLES, &mut || drop(mutex.lock().wait())),
        (CALLS, &mut || drop((file.lock(), file.unlock()))),
        (CALLS, &mut || bare::ofd_cycle(&file, 0, 64)),
    ]);
    let [cas_ns, mutex_ns, flock_ns, ofd_ns] = times;
    const MUTEX: &str = "two CAS on the lock, two on the handle's count, a record written and cleared";
    let row =
        |what, ns, against, other_ns, bound, made_of| Row { what, ns, against, other_ns, bound, made_of };
    Ok(vec![
        row("mutex, lock and unlock", mutex_ns, "two bare 16-byte CAS", cas_ns, Bound::AtMost(4.0), MUTEX),
        row("mutex, lock and unlock", mutex_ns, "flock", flock_ns, Bound::Faster(5.0), MUTEX),
        row("mutex, lock and unlock", mutex_ns, "fcntl OFD", ofd_ns, Bound::Faster(5.0), MUTEX),
    ])
}

/// Handing a mutex back and forth between two processes that spin: from one's unlock until the other, who waited for it, has it.
///
/// On a virtual machine two cores are two threads of one core now, and far apart a moment later: so the line and the lock take
/// turns, and the row is the round with the median ratio.
pub(super) fn handover(place: &Place, runs: &Runs) -> Result<Option<Row>> {
    const PLAYS: usize = 5;
    if std::thread::available_parallelism()?.get() < 2 {
        return Ok(None);
    }
    let ball = Client::open(&place.space).wait()?.mutex("ball")?;
    let mut rounds = Vec::new();
    for _ in 0..runs.plays.div_ceil(PLAYS) {
        let line_ns = bare::ping_pong(PLAYS);
        let partner = Partner::start("play", &place.space, 1)?;
        let mine = std::thread::scope(|threads| {
            let plays = || {
                bare::pin(0);
                ball::play(&ball, |turns| turns == 100 * PLAYS)
            };
            threads.spawn(plays).join().expect("it does not panic")
        });
        let ns = median(ball::handovers(&mine?, &ball::heard(&partner.end()?)));
        if ns.is_finite() {
            rounds.push((ns, line_ns));
        }
    }
    rounds.sort_by(|(ns, line_ns), (other_ns, other_line_ns)| {
        (ns / line_ns).total_cmp(&(other_ns / other_line_ns))
    });
    // Without a single handover there is a row all the same, and it misses.
    let (ns, other_ns) = rounds.get(rounds.len() / 2).copied().unwrap_or((f64::NAN, f64::NAN));
    let (what, against) = ("handover between processes", "a cache line between cores");
    let made_of =
        "the lock's line there and back, a look at the clock, and two messages more for a queued waiter";
    Ok(Some(Row { what, ns, against, other_ns, bound: Bound::AtMost(6.0), made_of }))
}

/// What a process costs that waits for a second.
pub(super) fn waiter(place: &Place) -> Result<Row> {
    const WAITS: Duration = Duration::from_secs(1);
    let held = Client::open(&place.space).wait()?.mutex("long")?.lock().wait()?;
    let partner = Partner::start("wait", &place.space, 1)?;
    std::thread::sleep(WAITS);
    drop(held);
    let cpu_ns: u64 = partner.end()?.trim().parse().context("the waiter says what it took")?;
    let (what, against) = ("a waiter's CPU", "the second it waits");
    let other_ns = WAITS.as_nanos() as f64;
    let made_of = "a thousand looks at first, then thirty a second";
    Ok(Row { what, ns: cpu_ns as f64, against, other_ns, bound: Bound::AtMost(0.02), made_of })
}
