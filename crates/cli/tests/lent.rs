//! `lockwright serve --lend`: what it lends, what `spaces` says of it, and how `run` and `ls` use it. Here over TCP, where the
//! server's CPU executes the verbs; `tests/rdma.rs` has the same over queue pairs.

mod scratch;
mod started;

use nix::sys::signal::Signal;
use scratch::Scratch;
use serde_json::{Value, json};
use started::Started;
use std::process::{Command, Output};
use std::time::Instant;

/// `lockwright` with its shared memory and secrets in the test's folder.
fn lockwright(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = scratch.lockwright(args);
    command.env("LOCKWRIGHT_DIR", &scratch.folder);
    command.env_remove("LOCKWRIGHT_SPACE").env_remove("LOCKWRIGHT_SECRET_FILE");
    command
}

fn output(scratch: &Scratch, args: &[&str]) -> Output {
    lockwright(scratch, args).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const LEND: [&str; 10] = [
    "serve",
    "--listen",
    "127.0.0.1:0",
    "--state",
    "none",
    "--lend=plain",
    "--lend=trees,tree,unit=16,units=64,names=4",
    "--lend=here,local=3",
    "--lend=also,local",
    "--json",
];

/// A server, and where its spaces are.
fn served(scratch: &Scratch) -> (Started, String, Value) {
    let served = Started::new(lockwright(scratch, &LEND));
    let said: Value = serde_json::from_str(&served.line).unwrap();
    let address = format!("tcp://{}/lent:", said["listening"].as_str().unwrap());
    (served, address, said)
}

#[test]
fn one_server_lends_exact_trees_and_local_spaces_and_says_what_each_runs() {
    let scratch = Scratch::new("lent-kinds");
    let (_served, address, said) = served(&scratch);
    let trees = json!({
        "space": "lent:trees", "keyed": "holders", "ranges": "citron-member", "unit": 16, "units": 64, "names": 4,
    });
    let local =
        |name: &str, budget: u64| json!({ "space": name, "keyed": "qplock-member", "budget": budget });
    let plain = json!({ "space": "lent:plain", "keyed": "holders", "ranges": "holders" });
    assert_eq!(said["lends"], json!([plain, trees, local("lent:here", 3), local("lent:also", 8)]));
    let at = ["plain", "trees", "here"].map(|name| format!("{address}{name}"));
    let asked = output(&scratch, &["spaces", "--json", &at[0], &at[1], &at[2], "shm:lent:here"]);
    let spaces = lines(&asked);
    let [plain, trees, there, here] = &spaces[..] else { panic!("{asked:?}") };
    assert_eq!((&plain["keyed"], &plain["ranges"]), (&json!("holders"), &json!("holders")));
    assert_eq!((&trees["keyed"], &trees["ranges"]), (&json!("holders"), &json!("citron-member")));
    assert_eq!(trees["parameters"], json!({ "names": 4, "units": 64, "unit": 16 }));
    for local in [there, here] {
        assert_eq!((&local["keyed"], &local["parameters"]["budget"]), (&json!("qplock-member"), &json!(3)));
    }
    // The same words for people.
    let told = Started::new(lockwright(
        &scratch,
        &[&LEND[..5], &["--lend", "x,tree", "--lend", "y", "--local"]].concat(),
    ));
    told.send(Signal::SIGTERM);
    let (_, told, _) = told.end();
    for words in
        ["names by holders", "ranges by citron-member", "names by qplock-member", "--space shm:lent:y"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn a_local_lock_is_one_lock_for_both_sides_and_listed_from_either() {
    let scratch = Scratch::new("lent-local");
    let (_served, address, _) = served(&scratch);
    let there = format!("{address}here");
    for (holds, other) in [("shm:lent:here", &there[..]), (&there, "shm:lent:here")] {
        let began = Instant::now();
        let holder = ["run", "--space", holds, "job", "--", "sh", "-c", "echo in; exec sleep 600"];
        let holder = Started::new(lockwright(&scratch, &holder));
        assert_eq!(holder.line, "in");
        let busy = output(&scratch, &["run", "--space", other, "-n", "job", "--", "true"]);
        assert_eq!(busy.status.code(), Some(1), "{busy:?}");
        for space in ["shm:lent:here", &there] {
            let listed = lines(&output(&scratch, &["ls", "--space", space, "--json"]));
            let held: Vec<_> = listed.iter().map(|entry| (&entry["lock"], &entry["state"])).collect();
            assert_eq!(held, [(&json!("job"), &json!("held"))], "{space}");
            let (age, most) = (listed[0]["since_seconds"].as_f64().unwrap(), began.elapsed().as_secs_f64());
            assert!(age <= most, "{space}, held by {holds}: since {age} s, and it began {most} s ago");
        }
        holder.send(Signal::SIGTERM);
        holder.end();
        let free = output(&scratch, &["run", "--space", other, "-w", "20", "job", "--", "true"]);
        assert_eq!(free.status.code(), Some(0), "{free:?}");
    }
    let range = output(&scratch, &["run", "--space", &there, "--range", "0..4", "job", "--", "true"]);
    assert_eq!(range.status.code(), Some(70), "{range:?}");
    assert!(String::from_utf8_lossy(&range.stderr).contains("for names only"), "{range:?}");
}

#[test]
fn ranges_of_a_lent_tree_are_locked_by_whole_units() {
    let scratch = Scratch::new("lent-tree");
    let (_served, address, _) = served(&scratch);
    let space = format!("{address}trees");
    let holder =
        ["run", "--space", &space, "--range", "0..10", "job", "--", "sh", "-c", "echo in; exec sleep 600"];
    let holder = Started::new(lockwright(&scratch, &holder));
    assert_eq!(holder.line, "in");
    let code = |range: &str| {
        output(&scratch, &["run", "--space", &space, "-n", "--range", range, "job", "--", "true"])
            .status
            .code()
    };
    assert_eq!((code("10..12"), code("16..32")), (Some(1), Some(0)), "a unit has 16 numbers");
    let past = output(&scratch, &["run", "--space", &space, "--range", "0..1025", "job", "--", "true"]);
    assert_eq!(past.status.code(), Some(64), "{past:?}");
    assert!(String::from_utf8_lossy(&past.stderr).contains("bound"), "{past:?}");
    holder.send(Signal::SIGTERM);
    holder.end();
}

#[test]
fn what_cannot_be_lent_is_said_in_words() {
    let scratch = Scratch::new("lent-wrong");
    for (lend, why) in [
        ("x,local=0", "a number from 1 to 65535"),
        ("x,local,tree", "nothing comes after `local`"),
        ("x,tree,local", "none of unit=N, units=N and names=N"),
        ("x,unit=3", "after the name comes"),
        ("x,tree,unit=0", "at least one"),
        ("a/b", "has no"),
    ] {
        let refused = output(&scratch, &["serve", "--lend", lend]);
        assert_eq!(refused.status.code(), Some(2), "{lend}: {refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(why), "{lend}: {said}");
    }
}
