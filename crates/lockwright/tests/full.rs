//! A file system that fills up while locks are made: an error for a client that wants another name, and no harm to the
//! others.

#![cfg(target_os = "linux")]

use lockwright::{Client, HandleError};
use std::process::{Command, Stdio};

const FOLDER: &str = "LOCKWRIGHT_TEST_FULL";
/// Names, more than the index has pages.
const TRIES: usize = 4_000;

/// In a mount namespace of its own, with a small file system.
#[test]
fn names_that_no_longer_fit_are_refused_and_those_that_are_there_go_on() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return fill(&folder.to_string_lossy());
    }
    let may = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: `unshare -m` is not permitted here");
        return;
    }
    let folder = std::env::temp_dir().join(format!("lockwright-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let name = "names_that_no_longer_fit_are_refused_and_those_that_are_there_go_on";
    // One page more each time: another part of what a name needs is the first without room.
    for kib in (700..716).chain(1440..1600).step_by(4) {
        let script = format!(r#"mount -t tmpfs -o size={kib}k none "${FOLDER}" && exec "$0" "$@""#);
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .arg(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(FOLDER, &folder)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{kib} KiB: {} {}", output.status, String::from_utf8_lossy(&text));
    }
    std::fs::remove_dir(folder).unwrap();
}

fn fill(folder: &str) {
    let client = Client::open(&format!("shm:{folder}/x")).wait().unwrap();
    let first = client.mutex("the first").unwrap();
    let mut locks = Vec::new();
    let refused = loop {
        match client.mutex(format!("name {}", locks.len())) {
            Ok(lock) => {
                drop(lock.lock().wait().unwrap());
                drop(client.range_lock(lock.name().as_bytes()).unwrap().write(3..9).wait().unwrap());
                locks.push(lock);
            }
            Err(error) => break error,
        }
        assert!(locks.len() < 100_000, "the file system does not fill up");
    };
    println!("room for {} names", locks.len());
    assert!(matches!(refused, HandleError::TooManyLocks(_)), "{refused:?}");
    assert!(refused.to_string().contains("is full") && refused.to_string().contains(folder), "{refused}");
    // A name's place in the index is anywhere in it, by a hash that nobody knows: of so many, all parts of the index are
    // looked at, also those without memory.
    for n in 0..TRIES {
        let more = client.mutex(format!("more {n}"));
        assert!(matches!(more, Ok(_) | Err(HandleError::TooManyLocks(_))), "{more:?}");
    }
    for lock in locks.iter().chain([&first]) {
        drop(lock.lock().wait().unwrap());
    }
}
