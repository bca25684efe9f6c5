//! The state machine against the kernel's own locks: several real processes do random operations on one file in memory
//! (`/dev/shm`), one after the other, and every answer must be the same: who is granted what, who is in the way, who waits and
//! is let in, and who would wait for itself. After every operation all locks and waiters must be those of `/proc/locks`.
//!
//! | variable | |
//! |---|---|
//! | `LOCKWRIGHT_KERNEL_OPS` | operations; 20,000 unless said |
//! | `LOCKWRIGHT_KERNEL_SEED` | repeats a run that was printed |
//!
//! A worker is this program again as a process of its own, told what to do line by line. The next line is sent only when
//! `/proc/locks` shows every waiting worker. A worker that was told to wait and has not come to it yet may be overtaken by the
//! next request: the kernel then sees the requests in another order and refuses another one of a circle than we do. So may a
//! waiter that was woken and has not blocked again. When all of them are blocked, a circle comes to be by a new request only,
//! and a waiter is never refused.
//!
//! Two things are not the same:
//! - The kernel follows one blocker of each waiter, so a circle through another one is not found: we refuse, and the kernel
//!   waits. Then the circle is looked for by other means, a worker in it must have several blockers, and the one that asked is
//!   killed, which must free its locks.
//! - In which order an operation let in several waiters is not seen before `F_GETLK` names one of them. All orders that are
//!   possible are kept until an answer contradicts them.

mod workers;

use lockwright_fabric::random::SplitMix;
use lockwright_posix::{Extent, FileLocks, InTheWay, Kind, NoCover, Owner, Piece, Refusal, Waits};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use workers::{POSITION, SIZE, Worker, kernel_locks, lock_line};

const WORKERS: usize = 4;
/// The longest wait for an answer, for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

fn pick<T: Copy>(random: &mut SplitMix, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// What we say.
struct Model {
    /// The record locks, once for each order in which their owners can have come. In nothing else they differ.
    orders: Vec<FileLocks<NoCover>>,
    flocks: FileLocks<NoCover>,
    waits: Waits<(Extent, Kind)>,
}

fn process(worker: usize) -> Owner {
    Owner::Process(worker as u64)
}

fn description(worker: usize, file: usize) -> Owner {
    Owner::Description((10 * worker + file % 2) as u64)
}

fn answer(taken: Result<(), Refusal>) -> String {
    match taken {
        Ok(()) => "0".to_owned(),
        Err(Refusal::Held(_)) => libc::EAGAIN.to_string(),
        Err(other) => panic!("there is no cover: {other:?}"),
    }
}

impl Model {
    fn records(&self) -> &FileLocks<NoCover> {
        &self.orders[0]
    }

    fn lock(&mut self, owner: Owner, pid: u32, extent: Extent, kind: Kind) -> Result<(), Refusal> {
        let mut all = self.orders.iter_mut().map(|records| records.lock(owner, pid, extent, kind));
        let taken = all.next().unwrap();
        assert!(all.all(|other| other.is_ok() == taken.is_ok()));
        taken
    }

    fn unlock(&mut self, owner: Owner, extent: Extent) {
        self.orders.iter_mut().for_each(|records| records.unlock(owner, extent).unwrap());
    }

    fn close(&mut self, worker: usize, file: usize) {
        self.unlock(process(worker), Extent::WHOLE);
        // The description of 2 is still 0's.
        if file != 2 {
            self.unlock(description(worker, file), Extent::WHOLE);
            let _ = self.flocks.unlock(description(worker, file), Extent::WHOLE);
        }
    }

    /// Who is in the way of a worker.
    fn blockers(&self, worker: usize, (extent, kind): (Extent, Kind)) -> Vec<Owner> {
        self.records().blockers(process(worker), extent, kind)
    }

    fn circle(&self, worker: usize, wants: (Extent, Kind)) -> bool {
        let blockers =
            |owner: Owner, (extent, kind): &(Extent, Kind)| self.records().blockers(owner, *extent, *kind);
        self.waits.would_close_a_circle(process(worker), self.blockers(worker, wants), blockers)
    }

    /// What `F_GETLK` says, for each of the orders.
    fn test(&mut self, owner: Owner, extent: Extent, kind: Kind) -> Vec<String> {
        let say = |records: &mut FileLocks<NoCover>| {
            let Some(InTheWay::Here(found)) = records.test(owner, extent, kind).unwrap() else {
                return "0 free".to_owned();
            };
            let (piece, kind) = (found.piece, if found.piece.kind == Kind::Read { "r" } else { "w" });
            let pid = if matches!(found.owner, Owner::Process(_)) { i64::from(piece.pid) } else { -1 };
            format!("0 {kind} {} {} {pid}", piece.extent.start, piece.extent.len())
        };
        self.orders.iter_mut().map(say).collect()
    }

    /// `came` have been let in by one operation, in an unknown order; `before` it were these.
    fn let_in(&mut self, before: Vec<FileLocks<NoCover>>, came: &[(usize, u32, Extent, Kind)]) {
        let mut open: Vec<_> = before.into_iter().map(|records| (records, came.to_vec())).collect();
        self.orders.clear();
        while let Some((records, left)) = open.pop() {
            for (at, &(worker, pid, extent, kind)) in left.iter().enumerate() {
                let (mut records, mut left) = (records.clone(), left.clone());
                left.remove(at);
                if records.lock(process(worker), pid, extent, kind).is_ok() {
                    open.push((records, left));
                }
            }
            let is_new = |other: &FileLocks<NoCover>| !other.table().owners().eq(records.table().owners());
            if left.is_empty() && self.orders.iter().all(is_new) {
                self.orders.push(records);
            }
        }
        assert!(!self.orders.is_empty(), "{came:?} cannot have been let in");
    }
}

/// What the waiting workers and `asks` want.
fn wanted(workers: &[Worker], asks: usize, wants: (Extent, Kind)) -> Vec<Option<(Extent, Kind)>> {
    let waits = |worker: &Worker| worker.waits.map(|(_, extent, kind)| (extent, kind));
    let mut wanted: Vec<_> = workers.iter().map(waits).collect();
    wanted[asks] = Some(wants);
    wanted
}

/// A circle by other means: from each to each, until nothing is added.
fn is_circle(model: &Model, wanted: &[Option<(Extent, Kind)>], asks: usize) -> bool {
    let mut reach = [[false; WORKERS]; WORKERS];
    for (index, row) in reach.iter_mut().enumerate() {
        let Some(wants) = wanted[index] else { continue };
        for owner in model.blockers(index, wants) {
            if let Owner::Process(other) = owner {
                row[other as usize] = true;
            }
        }
    }
    for middle in 0..WORKERS {
        for from in 0..WORKERS {
            for to in 0..WORKERS {
                reach[from][to] |= reach[from][middle] && reach[middle][to];
            }
        }
    }
    reach[asks][asks]
}

/// Whether every worker in the circle has one blocker, so that the kernel cannot follow a wrong one.
fn is_plain_circle(model: &Model, wanted: &[Option<(Extent, Kind)>], asks: usize) -> bool {
    let mut at = asks;
    for _ in 0..WORKERS {
        let Some(wants) = wanted[at] else { return false };
        let [Owner::Process(next)] = model.blockers(at, wants)[..] else { return false };
        at = next as usize;
        if at == asks {
            return true;
        }
    }
    false
}

#[derive(Debug, Default)]
struct Seen {
    granted: u64,
    busy: u64,
    waited: u64,
    deadlocks: u64,
    /// Circles that only we found.
    unseen: u64,
    /// Answers that told in which order waiters were let in.
    told: u64,
    killed: u64,
}

struct Run {
    path: PathBuf,
    /// What `/proc/locks` calls the file.
    name: String,
    random: SplitMix,
    model: Model,
    workers: Vec<Worker>,
    seen: Seen,
}

impl Run {
    /// Lets in all who waited and need not any more, and waits until the kernel's locks and waiters are ours.
    fn settle(&mut self) {
        self.let_in();
        let ours = self.locks();
        let begun = Instant::now();
        loop {
            let kernels = kernel_locks(&self.name);
            for (index, worker) in
                self.workers.iter().enumerate().filter(|(_, worker)| worker.waits.is_some())
            {
                let said = worker.hears.try_recv();
                assert!(said.is_err(), "{index} waits, and the kernel says {said:?}; we have {ours:?}");
            }
            if kernels == ours {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "we have {ours:?}, and the kernel has {kernels:?}");
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// What [`kernel_locks`] must be.
    fn locks(&self) -> Vec<String> {
        let mut locks = Vec::new();
        for (table, is_flock) in [(self.model.records().table(), false), (self.model.flocks.table(), true)] {
            for owner in table.owners() {
                let line = |piece: &Piece| {
                    let (what, pid) = match owner {
                        _ if is_flock => ("FLOCK", i64::from(piece.pid)),
                        Owner::Process(_) => ("POSIX", i64::from(piece.pid)),
                        Owner::Description(_) => ("OFDLCK", -1),
                    };
                    lock_line(what, piece.kind, pid, piece.extent)
                };
                locks.extend(table.pieces(owner).iter().map(line));
            }
        }
        locks.extend(self.workers.iter().filter_map(Worker::wait_line));
        locks.sort();
        locks
    }

    fn let_in(&mut self) {
        let before = self.model.orders.clone();
        let mut came = Vec::new();
        loop {
            let free = |index: &usize| {
                let waits = self.workers[*index].waits;
                waits.is_some_and(|(_, extent, kind)| self.model.blockers(*index, (extent, kind)).is_empty())
            };
            let found: Vec<_> = (0..WORKERS).filter(free).collect();
            if found.is_empty() {
                break;
            }
            let begun = Instant::now();
            let (index, said) = loop {
                let heard = found.iter().find_map(|index| {
                    Some((*index, self.workers[*index].hears.recv_timeout(Duration::from_millis(1)).ok()?))
                });
                if let Some(heard) = heard {
                    break heard;
                }
                assert!(begun.elapsed() < PATIENCE, "one of {found:?} is let in; {:?}", self.locks());
            };
            let (waiter, extent, kind) = self.workers[index].waits.take().unwrap();
            assert_eq!(said, "0", "{index} is let in");
            self.model.waits.end(waiter);
            let pid = self.workers[index].child.id();
            self.model.lock(process(index), pid, extent, kind).unwrap();
            came.push((index, pid, extent, kind));
        }
        if came.len() > 1 {
            self.model.let_in(before, &came);
        }
    }

    fn step(&mut self) {
        let index = self.random.below(WORKERS as u64) as usize;
        if self.workers[index].waits.is_some() {
            // Sometimes a waiting worker is killed, or all would soon wait.
            if self.random.below(8) == 0 {
                self.kill(index);
            }
            return;
        }
        let file = self.random.below(3) as usize;
        let kind = pick(&mut self.random, &[Some(Kind::Read), Some(Kind::Write), None]);
        let letter = kind.map_or("u", |kind| if kind == Kind::Read { "r" } else { "w" });
        let whence = pick(&mut self.random, &[0, 0, 0, 1, 2]);
        let base = [0, POSITION, SIZE][whence];
        let start = self.random.below(40) as i64 - if whence == 0 { 2 } else { 60 };
        let len = pick(&mut self.random, &[0, 1, 2, 5, 10, 30, -1, -5, i64::MAX]);
        let extent = Extent::new(base, start, len);
        let range = format!("{letter} {whence} {start} {len}");
        let pid = self.workers[index].child.id();
        let what = self.random.below(100);
        let (line, expected) = match what {
            0..3 => {
                self.model.close(index, file);
                (format!("close {file}"), "0".to_owned())
            }
            3..15 => {
                let owner = description(index, file);
                let expected = match kind {
                    Some(kind) => answer(self.model.flocks.flock(owner, pid, kind)),
                    None => {
                        let _ = self.model.flocks.unlock(owner, Extent::WHOLE);
                        "0".to_owned()
                    }
                };
                (format!("flock {file} {letter}"), expected)
            }
            _ => {
                let by_process = !what.is_multiple_of(3);
                let owner = if by_process { process(index) } else { description(index, file) };
                let Ok(extent) = extent else {
                    let error = match extent {
                        Err(lockwright_posix::BadExtent::TooFar) => libc::EOVERFLOW,
                        _ => libc::EINVAL,
                    };
                    return self.ask(index, &format!("set {file} {range}"), &error.to_string());
                };
                match (what, kind) {
                    (..=40, Some(kind)) => {
                        let get = if by_process { "get" } else { "ofdget" };
                        return self.test(index, &format!("{get} {file} {range}"), (owner, extent, kind));
                    }
                    (_, Some(kind)) => {
                        if by_process && what > 60 {
                            return self.wait(index, file, &range, (extent, kind));
                        }
                        let expected = answer(self.model.lock(owner, pid, extent, kind));
                        (format!("{} {file} {range}", if by_process { "set" } else { "ofd" }), expected)
                    }
                    (_, None) => {
                        self.model.unlock(owner, extent);
                        (format!("{} {file} {range}", if by_process { "set" } else { "ofd" }), "0".to_owned())
                    }
                }
            }
        };
        self.ask(index, &line, &expected);
        self.settle();
    }

    fn test(&mut self, index: usize, line: &str, (owner, extent, kind): (Owner, Extent, Kind)) {
        let expected = self.model.test(owner, extent, kind);
        self.workers[index].say(line);
        let said = self.workers[index].hear();
        let table = self.model.records().table();
        assert!(
            expected.contains(&said),
            "{index}: {line}: we say one of {expected:?}, and the kernel {said}; {table:?}"
        );
        let mut told = expected.iter();
        let orders = self.model.orders.len();
        self.model.orders.retain(|_| told.next() == Some(&said));
        self.seen.told += u64::from(self.model.orders.len() < orders);
        self.seen.granted += 1;
    }

    fn ask(&mut self, index: usize, line: &str, expected: &str) {
        self.workers[index].say(line);
        let said = self.workers[index].hear();
        assert_eq!(
            expected,
            said,
            "{index}: {line}: we say, and the kernel says; {:?}",
            self.model.records().table()
        );
        if expected.starts_with("0") { self.seen.granted += 1 } else { self.seen.busy += 1 }
    }

    fn wait(&mut self, index: usize, file: usize, range: &str, (extent, kind): (Extent, Kind)) {
        let pid = self.workers[index].child.id();
        let line = format!("wait {file} {range}");
        match self.model.lock(process(index), pid, extent, kind) {
            Ok(()) => {
                self.ask(index, &line, "0");
                return self.settle();
            }
            Err(Refusal::Held(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
        let circle = self.model.circle(index, (extent, kind));
        let wanted = wanted(&self.workers, index, (extent, kind));
        assert_eq!(circle, is_circle(&self.model, &wanted, index), "{index}: {line}: {wanted:?}");
        let refused = circle && is_plain_circle(&self.model, &wanted, index);
        self.workers[index].say(&line);
        let waiter = self.model.waits.begin(process(index), (extent, kind));
        self.workers[index].waits = Some((waiter, extent, kind));
        self.seen.waited += 1;
        if !circle {
            return self.settle();
        }
        let (waits, begun) = (self.workers[index].wait_line().unwrap(), Instant::now());
        loop {
            if let Ok(said) = self.workers[index].hears.try_recv() {
                assert_eq!(said, libc::EDEADLK.to_string(), "{index}: {line}: {wanted:?}");
                self.seen.deadlocks += 1;
                self.workers[index].waits = None;
                self.model.waits.end(waiter);
                return self.settle();
            }
            if kernel_locks(&self.name).contains(&waits) {
                assert!(!refused, "{index}: {line}: we refuse, and the kernel waits: {wanted:?}");
                self.seen.unseen += 1;
                return self.kill(index);
            }
            assert!(begun.elapsed() < PATIENCE, "{index}: {line}: the kernel neither waits nor answers");
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn kill(&mut self, index: usize) {
        self.workers[index].kill();
        if let Some((waiter, ..)) = self.workers[index].waits {
            self.model.waits.end(waiter);
        }
        self.model.close(index, 0);
        self.model.close(index, 1);
        self.workers[index] = Worker::new(&self.path);
        self.seen.killed += 1;
        self.settle();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn variable(name: &str, unless: u64) -> u64 {
    std::env::var(name).map_or(unless, |value| value.parse().expect("a number"))
}

#[test]
fn all_answers_are_the_kernels() {
    let ops = variable("LOCKWRIGHT_KERNEL_OPS", 20_000);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = variable("LOCKWRIGHT_KERNEL_SEED", now.as_nanos() as u64 | 1);
    println!("LOCKWRIGHT_KERNEL_SEED={seed} LOCKWRIGHT_KERNEL_OPS={ops}");
    let path = PathBuf::from(format!("/dev/shm/lockwright-kernel-{}", std::process::id()));
    std::fs::write(&path, vec![0; SIZE as usize]).unwrap();
    let workers = (0..WORKERS).map(|_| Worker::new(&path)).collect();
    let stat = std::fs::metadata(&path).unwrap();
    let (major, minor) = (libc::major(stat.dev()), libc::minor(stat.dev()));
    let name = format!("{major:02x}:{minor:02x}:{}", stat.ino());
    let model = Model {
        orders: vec![FileLocks::new(NoCover)],
        flocks: FileLocks::new(NoCover),
        waits: Waits::default(),
    };
    let mut run = Run { path, name, random: SplitMix::new(seed), model, workers, seen: Seen::default() };
    for _ in 0..ops {
        run.step();
    }
    println!("{:?}", run.seen);
    assert!(run.seen.waited > 0 && run.seen.deadlocks > 0, "a run without them says little: {:?}", run.seen);
}
