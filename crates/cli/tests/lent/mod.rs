//! Locks in memory that a server lends over RDMA: taken by the verbs of `lockwright run` and of the library, from several
//! processes, some of which are killed.

use super::{Served, err, has_device, holder, lockwright, out, output};
use lockwright::fenced::{FencedError, FencedFile};
use lockwright::{Client, LockError};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TASK: &str = "LOCKWRIGHT_TEST_LENT";
const LONG: Duration = Duration::from_secs(60);

fn server() -> (Served, String) {
    let served = Served::start(&["--lend", "stock"]);
    let space = format!("rdma://{}/lent:stock", served.rdma);
    (served, space)
}

#[test]
fn run_takes_lent_locks_by_its_own_verbs_and_a_killed_holder_frees_them() {
    if !has_device() {
        return;
    }
    let (_served, space) = server();
    let mut last = 0;
    for _ in 0..2 {
        let run = output(&["run", "--space", &space, "job", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN"]);
        assert!(run.status.success(), "{}", err(&run));
        let token = out(&run).trim().parse::<u64>().unwrap();
        assert!(token > last, "tokens rise");
        last = token;
    }
    let mut held = holder(&space, "job");
    let busy = output(&["run", "--space", &space, "-n", "job", "--", "true"]);
    assert_eq!(busy.status.code(), Some(1), "{}", err(&busy));
    let listed = output(&["ls", "--space", &space]);
    assert!(out(&listed).contains("job"), "{}{}", out(&listed), err(&listed));
    let waiter = lockwright(&["run", "--space", &space, "job", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    held.kill().unwrap();
    held.wait().unwrap();
    let mine = waiter.wait_with_output().unwrap();
    assert_eq!(mine.status.code(), Some(0), "{}", err(&mine));
    assert!(out(&mine).trim().parse::<u64>().unwrap() > last);
}

#[test]
fn a_holder_that_is_stopped_for_too_long_loses_its_lent_lock_and_learns_it() {
    if !has_device() {
        return;
    }
    let (_served, space) = server();
    let mut held = holder(&space, "job");
    let signal = |name: &str, child: &Child| {
        let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    };
    signal("STOP", &held);
    // Three heartbeats and the grace period later its queue pair is destroyed, and its lock is free.
    let next = output(&["run", "--space", &space, "-w", "60", "job", "--", "echo", "mine"]);
    assert_eq!(out(&next), "mine\n", "{}", err(&next));
    signal("CONT", &held);
    let ended = held.wait().unwrap();
    assert!(!ended.success(), "it learns that it has lost the lock, and ends what it runs: {ended}");
}

#[test]
fn lent_readers_share_and_lent_ranges_that_do_not_meet_are_held_together() {
    if !has_device() {
        return;
    }
    let (_served, space) = server();
    let (one, two) = (Client::open(&space).unwrap(), Client::open(&space).unwrap());
    let readers = (one.rwlock("a").unwrap().read().wait().unwrap(), two.rwlock("a").unwrap().read().wait());
    assert!(one.mutex("a").unwrap().try_lock().is_err());
    drop(readers);
    let written = two.rwlock("a").unwrap().write().wait().unwrap();
    let late = one.mutex("a").unwrap().lock_timeout(Duration::from_millis(100)).wait();
    assert!(matches!(late, Err(LockError::TimedOut)));
    written.unlock().wait().unwrap();
    drop(one.mutex("a").unwrap().lock().wait().unwrap());
    let (mine, theirs) = (one.range_lock("r").unwrap(), two.range_lock("r").unwrap());
    let low = mine.write(0..64).wait().unwrap();
    let high = theirs.write(64..128).wait().unwrap();
    assert!(theirs.try_read(60..70).is_err());
    assert!(high.token() > low.token());
    low.unlock().wait().unwrap();
    drop(theirs.read(0..64).wait().unwrap());
}

#[test]
fn what_would_be_unsound_or_is_not_there_is_refused_in_words() {
    if !has_device() {
        return;
    }
    let served = Served::start(&["--lend", "stock", "--export", "shm:rdma-test"]);
    let refused = |space: &str| {
        let run = output(&["run", "--space", space, "job", "--", "true"]);
        assert_eq!(run.status.code(), Some(70), "{space}: {}", err(&run));
        assert_eq!(err(&run).lines().count(), 1, "{}", err(&run));
        err(&run)
    };
    let (rdma, tcp) = (&served.rdma, &served.tcp);
    let said = refused(&format!("rdma://{rdma}/lent:nothing"));
    assert!(said.contains("lends no space called nothing"), "{said}");
    // The server's CPU would have to change words that its NIC changes.
    let said = refused(&format!("tcp://{tcp}/lent:stock"));
    assert!(said.contains("come by rdma://"), "{said}");
    // And the NIC words that CPUs change.
    let said = refused(&format!("rdma://{rdma}/shm:rdma-test?verbs"));
    assert!(said.contains("do not exclude each other"), "{said}");
    // Words are nobody's business who did not ask for them when it came.
    let said = refused(&format!("rdma://{rdma}/stock?verbs"));
    assert!(said.contains("?verbs"), "{said}");
    let broken = output(&["break", "--space", &format!("rdma://{rdma}/lent:stock"), "job", "--token", "1"]);
    assert!(err(&broken).contains("cannot be broken"), "{}", err(&broken));
    let plain = Served::start(&[]);
    let said = refused(&format!("rdma://{}/lent:stock", plain.rdma));
    assert!(said.contains("lends no space called stock"), "{said}");
}

/// A process that takes one kind of lock over and over, adds one to a file under it, and says what it wrote with which token.
fn work(space: &str, kind: &str, file: &Path) {
    let client = Client::open(space).unwrap();
    let mut file = FencedFile::open(file).unwrap();
    println!();
    loop {
        let taken = match kind {
            "mutex" => client.mutex("a").unwrap().lock(),
            "rwlock" => client.rwlock("b").unwrap().write(),
            _ => client.range_lock("c").unwrap().write(3..9),
        };
        let Ok(guard) = taken.wait() else { return };
        let token = guard.token();
        // One that lost its lock to somebody who has written since reads nothing.
        let Ok(seen) = file.read_as(token) else { return };
        let next = String::from_utf8(seen).unwrap().parse::<u64>().unwrap_or(0) + 1;
        match file.write(token, next.to_string().as_bytes()) {
            Ok(()) => println!("{next} {token}"),
            Err(FencedError::Stale(_)) => {}
            Err(error) => panic!("{error}"),
        }
        if guard.unlock().wait().is_err() {
            return;
        }
        if kind == "rwlock" && next.is_multiple_of(3) {
            drop(client.rwlock("b").unwrap().read().wait());
        }
    }
}

const STRESS: &str = "lent::processes_that_are_killed_under_lent_locks_lose_no_update_and_let_no_two_in";
const KINDS: [&str; 3] = ["mutex", "rwlock", "range"];
const KILLS: usize = 6;

type Worker = (Child, JoinHandle<Vec<String>>);

fn start(space: &str, kind: &str, file: &Path) -> Worker {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([STRESS, "--exact", "--nocapture"])
        .env(TASK, format!("{space}\n{kind}\n{}", file.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || said.lines().map_while(Result::ok).collect());
    (child, reader)
}

fn count(file: &Path) -> u64 {
    let read = FencedFile::open(file).ok().and_then(|mut file| file.read().ok());
    read.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok()).unwrap_or(0)
}

#[test]
fn processes_that_are_killed_under_lent_locks_lose_no_update_and_let_no_two_in() {
    if let Ok(task) = std::env::var(TASK) {
        let parts: Vec<_> = task.split('\n').collect();
        let [space, kind, file] = parts[..] else { panic!("a task has three parts") };
        return work(space, kind, Path::new(file));
    }
    if !has_device() {
        return;
    }
    let (_served, space) = server();
    let folder = std::env::temp_dir().join(format!("lent-stress-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |kind: &str| folder.join(kind);
    let workers = |kind: &'static str| (0..2).map(move |_| kind);
    let mut workers: Vec<_> =
        KINDS.into_iter().flat_map(workers).map(|kind| (kind, start(&space, kind, &file(kind)))).collect();
    let mut ended = Vec::new();
    for kill in 0..=KILLS {
        // Everybody gets on before the next one is killed: whatever it held or waited for is recovered.
        for kind in KINDS {
            let (before, patience) = (count(&file(kind)), Instant::now() + LONG);
            while count(&file(kind)) < before + 3 {
                assert!(Instant::now() < patience, "{kind}: nobody gets on after {kill} kills");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        if kill < KILLS {
            let at = kill % workers.len();
            let (kind, victim) = &mut workers[at];
            let next = start(&space, kind, &file(kind));
            let mut victim = std::mem::replace(victim, next);
            victim.0.kill().unwrap();
            ended.push((*kind, victim));
        }
    }
    for (_, (child, _)) in &mut workers {
        child.kill().unwrap();
    }
    for kind in KINDS {
        let mut history = Vec::new();
        for (_, (mut child, reader)) in
            ended.extract_if(.., |(of, _)| *of == kind).chain(workers.extract_if(.., |(of, _)| *of == kind))
        {
            let _ = child.wait();
            for line in reader.join().unwrap() {
                // Whoever was killed may have left half a line.
                let Some((number, token)) = line.split_once(' ') else { continue };
                history.extend(number.parse::<u64>().ok().zip(token.parse::<u64>().ok()));
            }
        }
        history.sort_unstable();
        for pair in history.windows(2) {
            let [(number, token), (later, next)] = pair else { unreachable!("pairs") };
            assert!(number < later, "{kind}: {number} was written twice: two were in at once");
            assert!(token < next, "{kind}: tokens fell from {token} to {next}");
        }
        let (last, noted) = (count(&file(kind)), history.len() as u64);
        println!("{kind}: {noted} updates noted of {last}");
        // Whoever is killed between writing and saying so leaves a gap.
        assert!(last - noted <= (KILLS + 6) as u64, "{kind}: {noted} updates noted of {last}");
    }
    let _ = std::fs::remove_dir_all(folder);
}
