//! A real server and its clients write down what they do, and their records are judged together.
#![cfg(target_os = "linux")]

use lockwright::Client;
use lockwright_server::{Server, ServerOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of this test's own, gone with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-history-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder can be made");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The last line of what is found in all records, and whether it is clean.
    fn judged(&self) -> (String, bool) {
        let mut files: Vec<_> =
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        let mut judge = Command::new(env!("CARGO_BIN_EXE_lockwright-lab"));
        let output = judge.args(["check", "--history"]).args(files).output().expect("the program starts");
        assert_eq!(output.stderr, b"", "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).expect("it is text");
        (said, output.status.success())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(folder: &Scratch) -> Server {
    let options = ServerOptions::default()
        .listen("127.0.0.1:0".parse().unwrap())
        .state(folder.file("state"))
        .record(folder.file("server.jsonl"));
    Server::start(options).expect("a server can be started")
}

fn connect(folder: &Scratch, server: &Server, number: usize) -> Client {
    let record = folder.file(&format!("client-{number}.jsonl"));
    let address = format!("tcp://{}/stock", server.address());
    Client::options().record(record).open(&address).wait().expect("the server is there")
}

/// Everything that can be done to locks, some rounds of it.
fn work(client: &Client) {
    let mutex = client.mutex("one").unwrap();
    let shared = client.rwlock("two").unwrap();
    let ranges = client.range_lock("three").unwrap();
    for round in 0..20 {
        drop(mutex.lock().wait().unwrap());
        drop(mutex.try_lock().wait());
        let reader = shared.read().wait().unwrap();
        if round % 3 == 0
            && let Ok(writer) = reader.try_upgrade().wait()
        {
            drop(writer.downgrade().wait());
        }
        let mut range = ranges.write(round..round + 10).wait().unwrap();
        let _ = range.unlock_part(round + 3..round + 5);
    }
}

/// A server, three clients, and their records.
fn recorded(name: &str) -> Scratch {
    let folder = Scratch::new(name);
    let server = start(&folder);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let client = connect(&folder, &server, number);
            // Before another client can be in the way.
            if number == 0 {
                let reader = client.rwlock("two").unwrap().read().wait().unwrap();
                drop(reader.upgrade().wait().unwrap().downgrade().wait().unwrap());
            }
            scope.spawn(move || work(&client));
        }
    });
    drop(server);
    folder
}

fn edit(path: &Path, edit: impl FnOnce(Vec<&str>) -> Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = edit(text.lines().collect());
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn what_a_server_and_three_clients_wrote_down_is_clean_and_whole() {
    let folder = recorded("clean");
    let (said, clean) = folder.judged();
    assert!(
        clean && said.contains("records=4 writers=6") && said.contains("missed=0 violations=0"),
        "{said}"
    );
    let server = std::fs::read_to_string(folder.file("server.jsonl")).unwrap();
    for event in ["granted", "released", "upgraded", "downgraded", "gives"] {
        assert!(server.contains(&format!("\"event\":\"{event}\"")), "no {event} in\n{server}");
    }
    let count = |event: &str| server.matches(&format!("\"event\":\"{event}\"")).count();
    // Of a range with a hole two pieces are given back.
    assert_eq!(count("granted") + count("gives"), count("released"));
}

#[test]
fn a_grant_that_is_missing_from_the_servers_record_is_noticed() {
    let folder = recorded("missing");
    edit(&folder.file("server.jsonl"), |lines| {
        let gone = lines.iter().position(|line| line.contains("\"event\":\"granted\"")).unwrap();
        lines.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, line)| (*line).to_owned()).collect()
    });
    let (said, clean) = folder.judged();
    assert!(!clean && said.contains("no server granted that"), "{said}");
}

#[test]
fn a_lock_that_two_clients_held_at_once_is_noticed() {
    let folder = recorded("twice");
    // The second client's first hold of the mutex ends later than it did.
    edit(&folder.file("client-1.jsonl"), |lines| {
        let first = |line: &&&str| line.contains("\"granted\"") && line.contains("\"lock\":\"one\"");
        let (_, token) = lines.iter().find(first).unwrap().rsplit_once("\"token\":").unwrap();
        let token = format!("\"token\":{}", token.trim_end_matches('}'));
        let (last, kept): (Vec<&str>, _) =
            lines.iter().partition(|line| line.contains("\"release") && line.contains(&token));
        let late =
            last.iter().map(|line| format!("{{\"at\":{},{}", u64::MAX, line.split_once(',').unwrap().1));
        kept.iter().map(ToString::to_string).chain(late).collect()
    });
    let (said, clean) = folder.judged();
    assert!(!clean && said.contains("mutual exclusion"), "{said}");
}

#[test]
fn a_record_goes_on_when_its_server_is_started_again_and_claims_are_no_new_grants() {
    let folder = Scratch::new("again");
    let server = start(&folder);
    let address = server.address();
    let client = connect(&folder, &server, 0);
    let mutex = client.mutex("one").unwrap();
    let guard = mutex.lock().wait().unwrap();
    drop(server);
    let options = ServerOptions::default().listen(address).state(folder.file("state"));
    let again = Server::start(options.record(folder.file("server.jsonl"))).expect("its port is free again");
    assert!(again.began_recovering());
    drop(mutex_of_another(&folder, &again));
    assert!(guard.unlock().wait().is_ok(), "it was claimed");
    drop((mutex, client, again));
    let server = std::fs::read_to_string(folder.file("server.jsonl")).unwrap();
    assert!(
        server.contains("\"event\":\"claimed\"") && server.matches("\"ended\":1").count() == 2,
        "{server}"
    );
    let (said, clean) = folder.judged();
    assert!(clean, "{said}");
}

/// Another client's lock, granted when claims are over.
fn mutex_of_another(folder: &Scratch, server: &Server) -> Client {
    let client = connect(folder, server, 1);
    drop(client.mutex("two").unwrap().lock().wait().unwrap());
    client
}
