//! Two processes and one file: one asks who is in the way (`F_GETLK`) without end, the other takes its lock and gives it back.
//! A look takes nothing, so no lock is ever refused; and it names the process that holds one.

use lockwright::Client;
use lockwright_posix::{Extent, FileId, Kind, Node, Owner, Piece, Request, Stop};
use lockwright_server::{Server, ServerOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// The space of a process that looks.
const SPACE: &str = "LOCKWRIGHT_LOOKS_AT";
const HELD: Extent = Extent { start: 10, end: 20 };

fn node(space: &str) -> (Node, std::sync::Arc<lockwright_posix::NodeFile>) {
    let node = Node::open(space, &Client::options()).unwrap();
    let file = node.file(&FileId { name: "1:2".to_owned(), flocks: false }).unwrap();
    (node, file)
}

fn request(extent: Extent) -> Request {
    Request { owner: Owner::Process(1), pid: std::process::id(), extent, kind: Kind::Write }
}

/// A process of its own, if it was told to be one: looks until it is told to end, and says what it saw.
#[test]
fn looker() {
    let Some(space) = std::env::var_os(SPACE) else { return };
    let (node, file) = node(space.to_str().unwrap());
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = std::sync::Arc::clone(&ended);
    std::thread::spawn(move || {
        std::io::stdin().lines().for_each(drop);
        told.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    println!("\n= looks");
    std::io::stdout().flush().unwrap();
    let (mut free, mut seen) = (0, Vec::new());
    while !ended.load(std::sync::atomic::Ordering::SeqCst) {
        match node.test(&file, &request(Extent { start: 0, end: 15 })).unwrap() {
            None => free += 1,
            Some(piece) => seen.push(piece),
        }
    }
    let expected = |piece: &Piece| {
        let holder = std::env::var("LOCKWRIGHT_HOLDER").unwrap();
        (piece.extent, piece.kind, piece.pid.to_string()) == (HELD, Kind::Write, holder)
    };
    let wrong = seen.iter().find(|piece| !expected(piece));
    println!("\n= {free} {} {wrong:?}", seen.len());
}

fn start(space: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "looker", "--nocapture"]);
    command.env(SPACE, space).env("LOCKWRIGHT_HOLDER", std::process::id().to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// `times` locks, and more until the other process has seen both one that is held and none.
fn nobody_is_refused(space: &str, times: u32) {
    let (node, file) = node(space);
    let mut looker = start(space);
    let out = BufReader::new(looker.stdout.take().unwrap());
    let mut says =
        out.lines().map_while(Result::ok).filter_map(|line| Some(line.strip_prefix("= ")?.to_owned()));
    assert_eq!(says.next().as_deref(), Some("looks"));
    let mut refused = 0;
    for _ in 0..times {
        match node.try_lock(&file, &request(HELD)) {
            Ok(()) => node.unlock(&file, Owner::Process(1), HELD).unwrap(),
            Err(Stop::Busy) => refused += 1,
            Err(stop) => panic!("{stop:?}"),
        }
    }
    drop(looker.stdin.take());
    let said = says.next().unwrap();
    assert!(looker.wait().unwrap().success());
    println!("{said}");
    assert_eq!(refused, 0, "of {times} locks that no other process holds");
    let [free, seen, wrong] = said.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(wrong, "None", "of {seen} that were seen");
    assert!(free != "0" && seen != "0", "a run that sees only one of both says little: {said}");
}

#[test]
fn a_look_refuses_nobody_in_shared_memory() {
    let path = format!("/dev/shm/lockwright-posix-looks-{}", std::process::id());
    nobody_is_refused(&format!("shm:{path}"), 200_000);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_look_refuses_nobody_behind_a_server() {
    let options = ServerOptions::default().listen("127.0.0.1:0".parse().unwrap());
    let server = Server::start(options).unwrap();
    nobody_is_refused(&format!("tcp://{}/posix", server.address()), 4_000);
}
