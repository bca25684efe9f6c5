//! Every line of the guide's table against other programs, tried: what it says of `lockwright run` is so. Options in depth are
//! tried in `options`, `jobs` and `once`.

mod scratch;
mod started;

use scratch::Scratch;
use started::Started;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

const GUIDE: &str = include_str!("../../../docs/guide.md");
const HOLDS: [&str; 4] = ["--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN; exec sleep 600"];

/// What the table says of us, by line.
fn table() -> BTreeMap<String, String> {
    let mut lines = GUIDE.lines().skip_while(|line| !line.ends_with("| etcdctl lock | lockwright run |"));
    lines.nth(1).expect("the table is there");
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = lines.take_while(|line| line.starts_with('|')).map(cells);
    rows.map(|row| (row[0].clone(), row[row.len() - 1].clone())).collect()
}

/// A holder of lock `a`, with these options.
fn holder(scratch: &Scratch, options: &[&str]) -> Started {
    scratch.start(&[&["run"], options, &["a"], &HOLDS].concat())
}

fn codes(scratch: &Scratch, tries: &[(&[&str], i32)]) {
    for (args, code) in tries {
        let args = [&["run"][..], args].concat();
        assert_eq!(scratch.code(&args), *code, "{args:?}");
    }
}

fn across_machines(scratch: &Scratch) {
    let mut serve = scratch.lockwright(&["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none"]);
    serve.env_remove("LOCKWRIGHT_SPACE");
    let server = Started::new(serve);
    let said: serde_json::Value = serde_json::from_str(&server.line).unwrap();
    let space = format!("tcp://{}/stock", said["listening"].as_str().unwrap());
    let _holder = holder(scratch, &["--space", &space]);
    codes(scratch, &[(&["-n", "--space", &space, "a", "--", "true"], 1), (&["-n", "a", "--", "true"], 0)]);
}

fn several(scratch: &Scratch) {
    let _holder = scratch.start(&[&["run", "a", "b"], &HOLDS[..]].concat());
    codes(scratch, &[(&["-n", "a", "--", "true"], 1), (&["-n", "b", "--", "true"], 1)]);
}

fn rest_of_a_script(scratch: &Scratch) {
    let script = r#""$0" run --for $$ a && exec sleep 600"#;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lockwright")]);
    shell.env("LOCKWRIGHT_SPACE", format!("shm:{}", scratch.space.display()));
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let script = Started::new(shell);
    codes(scratch, &[(&["-n", "a", "--", "true"], 1)]);
    drop(script);
    codes(scratch, &[(&["-w", "60", "a", "--", "true"], 0)]);
}

fn starts_again(scratch: &Scratch) {
    let args = ["run", "--keep-running=0.01", "a", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN"];
    let mut holder = scratch.start(&args);
    let mut again = String::new();
    holder.stdout.read_line(&mut again).unwrap();
    assert_eq!(again.trim(), holder.line);
}

fn once_in_a_time(scratch: &Scratch) {
    let done = scratch.file("done");
    let line = format!("echo x >> {}", done.display());
    for _ in 0..3 {
        let mut fire = scratch.lockwright(&["run", "--once-per", "1d", "a", "-c", &line]);
        assert!(fire.env("XDG_STATE_HOME", &scratch.folder).status().unwrap().success());
    }
    assert_eq!(fs::read_to_string(done).unwrap(), "x\n");
}

fn ends_the_command(scratch: &Scratch) {
    let end = scratch.file("end");
    let script = format!("echo $LOCKWRIGHT_TOKEN; while [ ! -e {} ]; do sleep 0.05; done", end.display());
    let lose = |options: &[&str]| {
        let holder = scratch.start(&[&["run"], options, &["a", "-c", &script]].concat());
        assert_eq!(scratch.code(&["break", "a", "--token", &holder.line.clone()]), 0);
        holder
    };
    assert_eq!(lose(&[]).end().0, Some(128 + 15));
    let goes_on = lose(&["--on-lost", "warn"]);
    fs::write(end, "").unwrap();
    assert_eq!(goes_on.end().0, Some(0));
}

/// A holder that loses its lock. On this signal it writes `told`, and goes on until there is an `end`; then it exits with 4.
fn loses(scratch: &Scratch, options: &[&str], signal: &str) -> Started {
    let [told, end] = ["told", "end"].map(|name| scratch.file(name).display().to_string());
    let script = format!(
        "trap '' TERM; trap 'echo x > {told}' {signal}
         echo $LOCKWRIGHT_TOKEN; while [ ! -e {end} ]; do sleep 0.02; done; exit 4"
    );
    let holder = scratch.start(&[&["run"], options, &["a", "-c", &script]].concat());
    assert_eq!(scratch.code(&["break", "a", "--token", &holder.line.clone()]), 0);
    let until = Instant::now() + Duration::from_secs(60);
    while !scratch.file("told").exists() {
        assert!(Instant::now() < until, "it was not told");
        std::thread::sleep(Duration::from_millis(5));
    }
    holder
}

fn another_signal(scratch: &Scratch) {
    let holder = loses(scratch, &["--signal", "USR1", "--kill-after", "600"], "USR1");
    fs::write(scratch.file("end"), "").unwrap();
    assert_eq!(holder.end().0, Some(4));
}

fn kills_it_after(scratch: &Scratch) {
    assert_eq!(loses(scratch, &["--kill-after", "0.5"], "TERM").end().0, Some(128 + 9));
    fs::remove_file(scratch.file("told")).unwrap();
    let has_time = loses(scratch, &["--kill-after", "600"], "TERM");
    fs::write(scratch.file("end"), "").unwrap();
    assert_eq!(has_time.end().0, Some(4));
}

fn tokens_rise(scratch: &Scratch) {
    let token = || {
        let output = scratch.output(&["run", "a", "-c", "echo $LOCKWRIGHT_TOKEN"]);
        String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().unwrap()
    };
    assert!(token() < token());
}

fn who_has_it(scratch: &Scratch) {
    let holder = holder(scratch, &[]);
    let told = scratch.output(&["run", "--test", "a"]);
    assert_eq!(told.status.code(), Some(1));
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(&format!("process {} ", holder.child.id())), "{told}");
    assert_eq!(scratch.listed("a")[0]["pid"], holder.child.id());
    let mut waits = scratch.lockwright(&["run", "--verbose", "a", "--", "true"]).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(waits.stderr.take().unwrap()).read_line(&mut told).unwrap();
    waits.kill().unwrap();
    waits.wait().unwrap();
    assert!(told.contains("waiting for a: process"), "{told}");
}

#[test]
fn every_line_of_the_table_is_so() {
    let mut tried = 0;
    for (line, says) in table() {
        let scratch = Scratch::new(&format!("table-{tried}"));
        match line.as_str() {
            "across machines" => across_machines(&scratch),
            "wait for so long at most" => {
                let _holder = holder(&scratch, &[]);
                codes(&scratch, &[(&["-w", "0.05", "a", "--", "true"], 1)]);
            }
            "do nothing if taken" => {
                let _holder = holder(&scratch, &[]);
                codes(&scratch, &[(&["-n", "a", "--", "true"], 1), (&["--skip", "a", "--", "false"], 0)]);
            }
            "readers together" => {
                let _holder = holder(&scratch, &["-s"]);
                codes(&scratch, &[(&["-n", "-s", "a", "--", "true"], 0), (&["-n", "a", "--", "true"], 1)]);
            }
            "several locks" => several(&scratch),
            "N at a time" => {
                let _holders = [holder(&scratch, &["-j", "2"]), holder(&scratch, &["-j", "2"])];
                codes(&scratch, &[(&["-n", "-j", "2", "a", "--", "true"], 1)]);
            }
            "hold for the rest of a script" => rest_of_a_script(&scratch),
            "start again when it ends" => starts_again(&scratch),
            "at most once in a time" => once_in_a_time(&scratch),
            "ends the command when the lock is lost" => ends_the_command(&scratch),
            "tells it by another signal first" => another_signal(&scratch),
            "and kills it some time after that" => kills_it_after(&scratch),
            "hold for a time at least" => {
                let _holder = scratch.start(&["run", "--hold-at-least", "600", "a", "--", "echo", "done"]);
                codes(&scratch, &[(&["-w", "0.3", "a", "--", "true"], 1)]);
            }
            "fencing token" => tokens_rise(&scratch),
            "who has it" => who_has_it(&scratch),
            other => panic!("nobody has tried {other:?}"),
        }
        assert!(!says.is_empty(), "{line}: we have it, and the table says nothing");
        tried += 1;
    }
    assert_eq!(tried, 15);
}
