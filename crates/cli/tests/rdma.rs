//! `lockwright serve --rdma` and `lockwright run` on real queue pairs: the commands as users give them.
//!
//! Needs a device; see `cargo xtask soft-roce`. There the command is where `LOCKWRIGHT_BIN` says.

mod one_sided;

use lockwright_fabric::backend::rdma::has_device;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn lockwright(args: &[&str]) -> Command {
    let program =
        std::env::var("LOCKWRIGHT_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_lockwright").to_owned());
    let mut command = Command::new(program);
    command.args(args);
    command
}

fn output(args: &[&str]) -> Output {
    lockwright(args).output().expect("the command starts")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A server that is killed at the end.
struct Served {
    child: Child,
    rdma: String,
    tcp: String,
}

impl Served {
    fn start(more: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", more)
    }

    fn start_at(rdma: &str, more: &[&str]) -> Self {
        let args = ["serve", "--json", "--listen", "127.0.0.1:0", "--heartbeat", "0.2"];
        let mut command = lockwright(&args);
        if !more.contains(&"--grace") {
            command.args(["--grace", "1"]);
        }
        command.args(["--rdma", rdma]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = |what: &str| {
            let from = line.split_once(&format!("\"{what}\":\"")).expect(&line).1;
            from.split_once('"').unwrap().0.to_owned()
        };
        Self { child, rdma: said("rdma"), tcp: said("listening") }
    }

    fn space(&self) -> String {
        format!("rdma://{}/stock", self.rdma)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run that holds the lock and has said so.
fn holder(space: &str, lock: &str) -> Child {
    let mut child = lockwright(&["run", "--space", space, lock, "--", "sh", "-c", "echo holds; sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "holds\n");
    child
}

#[test]
fn run_takes_locks_of_a_server_over_rdma() {
    if !has_device() {
        return;
    }
    let served = Served::start(&[]);
    let space = served.space();
    let mut last = 0;
    for _ in 0..3 {
        let run = output(&[
            "run",
            "--space",
            &space,
            "job",
            "--",
            "sh",
            "-c",
            "echo $LOCKWRIGHT_LOCK $LOCKWRIGHT_TOKEN",
        ]);
        assert!(run.status.success(), "{}", err(&run));
        let said = out(&run);
        let token = said.trim().strip_prefix("job ").unwrap().parse::<u64>().unwrap();
        assert!(token > last, "tokens rise");
        last = token;
    }
}

#[test]
fn a_lock_that_is_held_is_seen_waited_for_and_freed_when_its_holder_is_killed() {
    if !has_device() {
        return;
    }
    let served = Served::start(&[]);
    let space = served.space();
    let mut held = holder(&space, "job");
    let busy = output(&["run", "--space", &space, "-n", "job", "--", "true"]);
    assert_eq!(busy.status.code(), Some(1), "{}", err(&busy));
    let listed = output(&["ls", "--space", &space]);
    assert!(out(&listed).contains("job"), "{}{}", out(&listed), err(&listed));
    let waiter = lockwright(&["run", "--space", &space, "job", "--", "echo", "mine"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    held.kill().unwrap();
    held.wait().unwrap();
    let mine = waiter.wait_with_output().unwrap();
    assert_eq!((mine.status.code(), out(&mine).as_str()), (Some(0), "mine\n"));
}

#[test]
fn readers_share_and_ranges_that_do_not_meet_are_held_together() {
    if !has_device() {
        return;
    }
    let served = Served::start(&[]);
    let space = served.space();
    let inner = format!(
        "{} run --space {space} -n -s config -- echo both",
        lockwright(&[]).get_program().to_string_lossy()
    );
    let shared = output(&["run", "--space", &space, "-s", "config", "--", "sh", "-c", &inner]);
    assert_eq!(out(&shared), "both\n", "{}", err(&shared));
    let program = lockwright(&[]).get_program().to_string_lossy().into_owned();
    let apart = format!("{program} run --space {space} -n --range 64..128 file -- echo apart");
    let ranges = output(&["run", "--space", &space, "--range", "0..64", "file", "--", "sh", "-c", &apart]);
    assert_eq!(out(&ranges), "apart\n", "{}", err(&ranges));
}

#[test]
fn a_killed_server_that_comes_back_gives_held_locks_back_to_their_holders() {
    if !has_device() {
        return;
    }
    let state = std::env::temp_dir().join(format!("lockwright-rdma-{}.state", std::process::id()));
    // An emulated machine takes seconds to start a server: the holder's lease must not be over before it can claim.
    let args = ["--grace", "30", "--state", state.to_str().unwrap()];
    let mut served = Served::start(&args);
    let (space, rdma) = (served.space(), served.rdma.clone());
    let mut held = holder(&space, "job");
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let again = Served::start_at(&rdma, &args);
    assert_eq!(again.rdma, rdma);
    // It listens to claims first, and grants what nobody claimed.
    let other = output(&["run", "--space", &space, "-w", "60", "other", "--", "true"]);
    assert!(other.status.success(), "{}", err(&other));
    let busy = output(&["run", "--space", &space, "-n", "job", "--", "true"]);
    assert_eq!(busy.status.code(), Some(1), "the holder has claimed it: {}", err(&busy));
    assert!(held.try_wait().unwrap().is_none(), "and goes on");
    held.kill().unwrap();
    held.wait().unwrap();
    let _ = std::fs::remove_file(&state);
}

#[test]
fn a_secret_keeps_strangers_out() {
    if !has_device() {
        return;
    }
    let file = |name: &str, text: &str| {
        let path = std::env::temp_dir().join(format!("lockwright-rdma-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) = (file("right", "0123456789abcdef0123"), file("wrong", "3210fedcba9876543210"));
    let served = Served::start(&["--secret-file", &right]);
    let space = served.space();
    let with = output(&["run", "--space", &space, "--secret-file", &right, "job", "--", "echo", "in"]);
    assert_eq!(out(&with), "in\n", "{}", err(&with));
    for args in [&["run", "--space", &space][..], &["run", "--space", &space, "--secret-file", &wrong]] {
        let without = output(&[args, &["job", "--", "true"]].concat());
        assert_eq!(without.status.code(), Some(70));
        assert!(err(&without).contains("secret") && err(&without).lines().count() == 1, "{}", err(&without));
    }
    let exposed = output(&["serve", "--listen", "127.0.0.1:0", "--state", "none", "--rdma", "0.0.0.0:0"]);
    assert_eq!(exposed.status.code(), Some(2));
    assert!(err(&exposed).contains("a secret is needed"), "{}", err(&exposed));
}

#[test]
fn what_is_wrong_is_said_in_one_line_that_names_the_device() {
    if !has_device() {
        return;
    }
    let serve = |device: &str| {
        let args = ["serve", "--listen", "127.0.0.1:0", "--state", "none", "--rdma", "127.0.0.1:0"];
        let said = output(&[&args[..], &["--rdma-device", device]].concat());
        assert_eq!(said.status.code(), Some(2));
        assert_eq!(err(&said).lines().count(), 1, "{}", err(&said));
        err(&said)
    };
    let said = serve("no-such-device");
    assert!(said.contains("no RDMA device called no-such-device; this machine has rxe0"), "{said}");
    let said = serve("rxe0:1:200");
    assert!(said.contains("rxe0 has no address at GID index 200 of port 1"), "{said}");
    let said = serve("rxe0:7");
    assert!(said.contains("rxe0") && said.contains("port 7"), "{said}");
    let said = serve("rxe0:one");
    assert!(said.contains("NAME:PORT:GID"), "{said}");
    let gone = output(&["run", "--space", "rdma://127.0.0.1:1/x", "job", "--", "true"]);
    assert_eq!(gone.status.code(), Some(70));
    assert!(err(&gone).contains("cannot be reached"), "{}", err(&gone));
}

#[test]
fn the_doctor_knows_the_devices() {
    if !has_device() {
        return;
    }
    let doctor = output(&["doctor"]);
    let said = out(&doctor);
    let line = said.lines().find(|line| line.starts_with("RDMA")).expect("a line about RDMA");
    assert!(line.contains("rxe0 port 1 is up") && line.contains("8-byte atomics"), "{line}");
}

#[test]
fn the_bench_holds_our_counters_against_the_ports() {
    if !has_device() {
        return;
    }
    let began = Instant::now();
    let bench = output(&["bench", "--fabric", "rdma", "--quick"]);
    let said = out(&bench);
    // On a machine that is emulated a time may miss its goal. A count may not.
    let is_missed = said.contains("MISS");
    assert_eq!(bench.status.code(), Some(is_missed.into()), "{said}{}", err(&bench));
    assert!(said.contains("rdma_sends") && said.contains("sent_pkts"), "{said}");
    assert!(!said.contains("DIFFERS"), "{said}");
    // READ and CAS each way; five WRITEs of the holder record, one of which wipes the mark of the grant before, so that no
    // reader takes it for this one's; a message for the request, the grant, the unlock and its answer.
    for (space, verbs) in [("by own verbs", " 9.00"), ("by the server's combiner", " 4.00")] {
        let row = said.lines().find(|line| line.contains(space)).expect(&said);
        assert!(row.contains(verbs), "{row}");
    }
    // Two locks of the host's processes, beside clients that come by verbs.
    let here: Vec<_> = said.lines().filter(|line| line.contains("by CPU instructions")).collect();
    assert!(here.len() == 2 && here.iter().all(|row| row.contains(" 0.00 ")), "{said}");
    for held in [1, 16, 64, 256] {
        let row = format!("one-sided range on a tree, {held} held, 1.0 round trips");
        assert!(said.contains(&row), "{row}: {said}");
    }
    // Not by a macro, whose output nobody sees if the test passes.
    std::io::stdout().write_all(said.as_bytes()).unwrap();
    assert!(began.elapsed() < Duration::from_secs(600));
}
