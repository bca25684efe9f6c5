//! Client processes that count in files under locks, while something is done to the servers.
//!
//! What a file takes is fenced by the token. In the end every count must be there: if two clients ever held a lock at once, one
//! of their counts is lost. Some only read, twice, and must find the same. With `LOCKWRIGHT_CLUSTER_RECORDS=FOLDER` clients write down what they were granted, for
//! `lockwright-lab check --history`.

use lockwright::{Client, GuardState};
use lockwright_fabric::random::SplitMix;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const CLIENTS: u64 = 8;
const LOCKS: u64 = 6;
/// How long a client waits for a lock.
const LONG: Duration = Duration::from_secs(15);
/// Tells a process of this program that it is a client: space, folder and number.
const CLIENT: &str = "LOCKWRIGHT_CLUSTER_CLIENT";

/// What a client writes down while it counts, for when it is killed.
const BEGAN: &[u8] = b"b";
const COUNTED: &[u8] = b"c";
const STALE: &[u8] = b"s";

pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A counter that takes what comes with its last token or a higher one.
struct Fenced(File);

impl Fenced {
    fn open(folder: &Path, name: &str) -> Self {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(name));
        Self(file.expect("a file"))
    }

    fn locked<T>(&self, act: impl FnOnce(&mut File, (u64, u64)) -> T) -> T {
        let file = self.0.try_clone().expect("the same file");
        // A descriptor that was cloned shares the lock; every process has opened its own.
        let mut file =
            Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error).expect("locked");
        let mut text = String::new();
        file.rewind().expect("at the start");
        file.read_to_string(&mut text).expect("read");
        let numbers = text.trim().split_once(' ');
        let is = numbers.map_or((0, 0), |(token, count)| {
            (token.parse().expect("a token"), count.parse().expect("a count"))
        });
        act(&mut file, is)
    }

    fn count(&self) -> u64 {
        self.locked(|_, (_, count)| count)
    }

    /// The count, for a reader: from now on earlier writers are too late.
    fn read(&self, token: u64) -> u64 {
        self.locked(|file, (last, count)| {
            if token > last {
                file.rewind().expect("at the start");
                writeln!(file, "{token:020} {count:010}").expect("written");
            }
            count
        })
    }

    /// `false`: the token is too old, and nothing is written.
    fn write(&self, token: u64, count: u64) -> bool {
        self.locked(|file, (last, _)| {
            let is_new = token >= last;
            if is_new {
                file.rewind().expect("at the start");
                writeln!(file, "{token:020} {count:010}").expect("written");
            }
            is_new
        })
    }
}

/// Whether this process is one of the clients.
pub(crate) fn is_client() -> bool {
    variable(CLIENT).is_some()
}

/// What a client process does: this program again, told to run the test `client`. It counts until it is told to stop, and then says
/// how often it did.
pub(crate) fn count_as_told() {
    let Some(told) = variable(CLIENT) else { return };
    let [space, folder, number] = told.split('\n').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let (folder, number) = (Path::new(folder), number.parse::<u64>().expect("a number"));
    // A server that has come back may first wait for the leases of those that were there.
    let mut options = Client::options().timeout(Duration::from_secs(60));
    if let Ok(secret) = std::fs::read(folder.join("secret")) {
        options = options.secret(secret);
    }
    if let Some(records) = variable("LOCKWRIGHT_CLUSTER_RECORDS") {
        options = options.record(Path::new(&records).join(format!("client-{number}.jsonl")));
    }
    let client = options.open(space).wait().expect("a client");
    let mut random = SplitMix::new(number);
    let (mut counted, mut stale, mut failed, mut read) = (0_u64, 0_u64, 0_u64, 0_u64);
    let steps =
        OpenOptions::new().create(true).append(true).open(folder.join(format!("client-{number}.steps")));
    let mut steps = steps.expect("a file");
    let mut step = |step: &[u8]| steps.write_all(step).expect("written");
    while !folder.join("stop").exists() {
        let name = format!("count-{}", random.below(LOCKS));
        if random.below(4) == 0 {
            let lock = client.rwlock(&name).expect("a name");
            let Ok(guard) = lock.read_timeout(LONG).wait() else {
                failed += 1;
                continue;
            };
            let file = Fenced::open(folder, &name);
            let before = file.read(guard.token());
            std::thread::sleep(Duration::from_millis(random.below(4)));
            let after = file.count();
            // If it holds the lock now, it has held it all the time.
            let is_held = guard.state() == GuardState::Held;
            assert!(!is_held || before == after, "client {number} reads {name}: {before}, then {after}");
            read += u64::from(is_held);
            continue;
        }
        let lock = client.mutex(&name).expect("a name");
        let Ok(guard) = lock.lock_timeout(LONG).wait() else {
            failed += 1;
            continue;
        };
        let file = Fenced::open(folder, &name);
        let count = file.count();
        std::thread::sleep(Duration::from_millis(random.below(4)));
        if guard.state() == GuardState::Held {
            step(BEGAN);
            match file.write(guard.token(), count + 1) {
                true => {
                    step(COUNTED);
                    counted += 1;
                }
                false => {
                    step(STALE);
                    stale += 1;
                }
            }
        }
        drop(guard);
    }
    let said = format!("{counted} {stale} {failed} {read}");
    std::fs::write(folder.join(format!("client-{number}.said")), said).expect("said");
}

/// Starts the clients of a space. They share `folder`, in which a file `secret` has what servers want to know.
pub(crate) struct Counting {
    /// Their numbers and processes.
    clients: Vec<(u64, Child)>,
    /// Of those that were killed.
    killed: Vec<u64>,
    last: u64,
    folder: std::path::PathBuf,
}

impl Counting {
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn start(space: &str, folder: &Path) -> Self {
        let mut counting = Self::none(folder);
        for _ in 0..CLIENTS {
            counting.one_more(space);
        }
        counting
    }

    /// With nobody who counts yet.
    pub(crate) fn none(folder: &Path) -> Self {
        Self { clients: Vec::new(), killed: Vec::new(), last: 0, folder: folder.to_owned() }
    }

    /// Starts one more, from where the calling thread is. Its number.
    pub(crate) fn one_more(&mut self, space: &str) -> u64 {
        let number = self.last;
        self.last += 1;
        let told = format!("{space}\n{}\n{number}", self.folder.display());
        let mut client = Command::new(std::env::current_exe().expect("this program"));
        client.args(["--exact", "client", "--nocapture"]).env(CLIENT, told);
        client.stdin(Stdio::null()).stdout(Stdio::null());
        self.clients.push((number, client.spawn().expect("a client")));
        number
    }

    /// Kills one of them.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn kill(&mut self, number: u64) {
        let at = self.clients.iter().position(|(of, _)| *of == number).expect("it is there");
        let (_, mut client) = self.clients.swap_remove(at);
        client.kill().and_then(|()| client.wait()).expect("killed");
        self.killed.push(number);
    }

    /// Stops one of them, or lets it go on.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn signal(&self, number: u64, signal: Signal) {
        let (_, client) = self.clients.iter().find(|(of, _)| *of == number).expect("it is there");
        kill(Pid::from_raw(client.id().cast_signed()), signal).expect("it is told");
    }

    /// Tells them to stop, and holds what they say against what is in the files.
    pub(crate) fn end(mut self) {
        std::fs::write(self.folder.join("stop"), "").expect("told");
        for (number, client) in &mut self.clients {
            assert!(client.wait().expect("ended").success(), "client {number} failed");
        }
        let mut sums = [0_u64; 4];
        for (number, _) in &self.clients {
            let said = std::fs::read_to_string(self.folder.join(format!("client-{number}.said")));
            for (sum, part) in sums.iter_mut().zip(said.expect("said").split(' ')) {
                *sum += part.parse::<u64>().expect("a number");
            }
        }
        let [mut counted, mut stale, failed, read] = sums;
        // Killed between the file and its own note of it: that count may be there or not.
        let mut unsure = 0;
        for number in &self.killed {
            let steps = std::fs::read(self.folder.join(format!("client-{number}.steps"))).unwrap_or_default();
            let count = |step: &[u8]| steps.iter().filter(|made| step.contains(made)).count() as u64;
            counted += count(COUNTED);
            stale += count(STALE);
            unsure += count(BEGAN) - count(COUNTED) - count(STALE);
        }
        let file = |lock| Fenced::open(&self.folder, &format!("count-{lock}"));
        let there: u64 = (0..LOCKS).map(|lock| file(lock).count()).sum();
        println!(
            "{counted} counts, {there} in the files, {read} reads; {stale} refused as stale, {failed} not granted in time; {} killed, {unsure} while it counted",
            self.killed.len()
        );
        assert!((counted..=counted + unsure).contains(&there), "a count was lost: two held the lock");
        assert!(counted > 0, "something was granted");
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        for (_, client) in &mut self.clients {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

/// A seed, of the environment or of the clock, and for how many seconds something is done; printed, to be repeated.
pub(crate) fn seed_and_time() -> (SplitMix, Duration) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = variable("LOCKWRIGHT_CLUSTER_SEED");
    let seed = seed.map_or(now.subsec_micros().into(), |seed| seed.parse().expect("a seed"));
    let secs = variable("LOCKWRIGHT_CLUSTER_SECS").map_or(20, |secs| secs.parse().expect("seconds"));
    println!("LOCKWRIGHT_CLUSTER_SEED={seed} LOCKWRIGHT_CLUSTER_SECS={secs} repeats these faults");
    (SplitMix::new(seed), Duration::from_secs(secs))
}
