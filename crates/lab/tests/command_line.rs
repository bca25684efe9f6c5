//! The binary as its users meet it: exit codes, last lines, and errors that fit on one line.

use std::process::{Command, Output};

fn lockwright(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockwright-lab")).args(args).output().expect("the binary starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("errors are text")
}

fn last_line(output: &Output) -> String {
    stdout(output).lines().last().unwrap_or_default().to_owned()
}

/// A folder of this test's own, gone with the test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bad_arguments_get_one_line_and_exit_2() {
    let bad: &[&[&str]] = &[
        &["check"],
        &["check", "no-such-lock"],
        &["check", "mcs-jumps-queue"],
        &["check", "--all", "--mutant", "mcs-jumps-queue"],
        &["check", "mcs", "--case", "no-such-case"],
        &["check", "mcs", "--clients", "0"],
        &["check", "--mutant", "mcs"],
        &["sim"],
        &["sim", "no-such-lock"],
        &["sim", "mcs", "--clients", "0"],
        &["sim", "mcs", "--writes", "101"],
        &["sim", "mcs", "--zipf", "NaN"],
        &["sim", "mcs", "--soak", "1s"],
        &["sim", "--soak", "1s", "--clients", "9"],
        &["sim", "--soak", "1s", "--locks", "5"],
        &["sim", "--soak", "1s", "--fault", "crash=1@1:before"],
        &["sim", "mcs", "--fault", "meteor=1"],
        &["sim", "mcs", "--fault", "crash=99@1:before"],
        &["sim", "mcs", "--fault", "node-death=7@1ms"],
        &["sim", "mcs", "--lock", "1"],
        &["lab", "run"],
        &["lab", "run", "no-such-experiment"],
        &["lab", "run", "shift-sec2-3", "--jobs", "0"],
        &["frobnicate"],
    ];
    for args in bad {
        let output = lockwright(args);
        let error = stderr(&output);
        assert_eq!(code(&output), 2, "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(error.starts_with("error: "), "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?} prints nothing but the error");
    }
}

#[test]
fn an_unknown_protocol_gets_the_close_names() {
    let error = stderr(&lockwright(&["sim", "cas-backof"]));
    assert!(error.contains("close: cas-backoff"), "{error}");
}

#[test]
fn every_command_explains_itself_with_examples() {
    let commands: [&[&str]; 6] = [&[], &["check"], &["sim"], &["lab"], &["lab", "list"], &["lab", "run"]];
    for command in commands {
        let output = lockwright(&[command, &["--help"]].concat());
        assert_eq!(code(&output), 0, "{command:?}");
        assert!(stdout(&output).contains("Examples:"), "{command:?}");
    }
}

#[test]
fn the_version_is_the_packages() {
    let output = lockwright(&["--version"]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).starts_with(&format!("lockwright-lab {}", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_list_names_protocols_cases_and_mutants() {
    let output = lockwright(&["check", "--list"]);
    assert_eq!(code(&output), 0);
    let list = stdout(&output);
    for name in ["cas", "cas-backoff", "mcs", "rpc", "four-clients", "mcs-jumps-queue"] {
        assert!(list.contains(name), "{name} is missing from the list");
    }
    assert!(last_line(&output).ends_with(" mutants"), "{}", last_line(&output));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&lockwright(&["check", "--list", "--json"]))).unwrap();
    assert!(json.as_array().is_some_and(|list| list.len() >= 6));
}

#[test]
fn a_clean_protocol_ends_with_its_states_and_exit_0() {
    let output = lockwright(&["check", "mcs"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let last = last_line(&output);
    assert!(last.starts_with("mcs: states=") && last.ends_with("exhaustive=yes violations=0"), "{last}");
}

#[test]
fn the_examples_of_check_name_what_there_is() {
    let list: serde_json::Value =
        serde_json::from_str(&stdout(&lockwright(&["check", "--list", "--json"]))).unwrap();
    let find = |name: &str| {
        let found = list.as_array().unwrap().iter().find(|listed| listed["name"] == name);
        found.unwrap_or_else(|| panic!("the help names {name}, which there is not"))
    };
    let help = stdout(&lockwright(&["check", "--help"]));
    let examples = help.lines().filter_map(|line| line.trim().strip_prefix("lockwright-lab check "));
    let mut cases = 0;
    for example in examples {
        let words: Vec<&str> = example.split("  ").next().unwrap().split(' ').collect();
        let after = |option| words.iter().position(|word| *word == option).map(|at| words[at + 1]);
        if let Some(mutant) = after("--mutant") {
            find(mutant);
        }
        if !words[0].starts_with("--") {
            let protocol = find(words[0]);
            if let Some(case) = after("--case") {
                cases += 1;
                let known = protocol["cases"].as_array().unwrap();
                assert!(known.iter().any(|known| known["name"] == case), "{example}: no such case");
            }
        }
    }
    assert!(cases > 0, "an example with a case");
}

#[test]
fn a_crash_without_recovery_says_what_was_not_checked() {
    let check = |protocol| lockwright(&["check", protocol, "--case", "tries", "--crash"]);
    for unrecoverable in ["mcs", "rpc"] {
        let output = check(unrecoverable);
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let last = last_line(&output);
        let unchecked = "violations=0, deadlock and livelock NOT checked: it has no recovery";
        assert!(last.ends_with(unchecked), "{last}");
    }
    let shiftlock = check("shiftlock");
    assert!(last_line(&shiftlock).ends_with("violations=0"), "it recovers: {}", last_line(&shiftlock));
}

#[test]
fn a_crash_that_asks_for_more_than_a_lock_promises_is_refused_in_one_line() {
    for (protocol, case) in [("holders-ranges", "stopped"), ("ss", "overlapping")] {
        let output = lockwright(&["check", protocol, "--case", case, "--crash"]);
        assert_eq!(code(&output), 2, "{}", stdout(&output));
        let said = stderr(&output);
        assert!(said.contains(&format!("no crash can be added to case {case} of {protocol}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let all = lockwright(&["check", "ss", "--crash"]);
    assert_eq!(code(&all), 0, "{}", stdout(&all));
    assert!(stdout(&all).contains("overlapping              NOT explored with a crash"), "{}", stdout(&all));
    assert!(last_line(&all).contains("exhaustive=no violations=0"), "{}", last_line(&all));
}

#[test]
fn a_mutant_that_is_caught_exits_0_unless_it_was_to_be_clean() {
    assert_eq!(code(&lockwright(&["check", "--mutant", "mcs-jumps-queue"])), 0);
    assert_eq!(code(&lockwright(&["check", "--mutant", "mcs-jumps-queue", "--expect-clean"])), 1);
    // One client alone cannot go wrong: the mutant is not caught, and that is what is wrong.
    let alone = lockwright(&["check", "--mutant", "mcs-jumps-queue", "--clients", "1"]);
    assert_eq!(code(&alone), 1, "{}", stdout(&alone));
    assert!(last_line(&alone).contains("NOT CAUGHT"), "{}", last_line(&alone));
}

#[test]
fn a_protocol_and_its_mutants_are_one_command() {
    let output = lockwright(&["check", "semaphore", "--mutants"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("semaphore: states=") && text.contains("exhaustive=yes violations=0"), "{text}");
    assert!(last_line(&output).starts_with("semaphore: protocols=1 clean=1 mutants=3 caught=3 "), "{text}");
}

#[test]
fn a_mutant_is_caught_with_a_trace() {
    let output = lockwright(&["check", "--mutant", "mcs-jumps-queue"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("VIOLATION of mutual exclusion"));
    let last = last_line(&output);
    assert!(last.starts_with("mutant mcs-jumps-queue: caught by mutual exclusion"), "{last}");
    assert!(last.contains("as expected"), "{last}");
}

#[test]
fn a_check_as_json_is_one_document() {
    let output = lockwright(&["check", "mcs", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["ok"], true);
    assert_eq!(json["protocols"][0]["name"], "mcs");
    assert_eq!(json["protocols"][0]["violations"], 0);
}

#[test]
fn a_search_that_is_cut_short_says_so() {
    let output = lockwright(&["check", "cas", "--case", "four-clients", "--max-states", "10"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    assert!(last_line(&output).contains("exhaustive=no"), "{}", last_line(&output));
}

#[test]
fn the_same_seed_gives_the_same_report_to_the_byte() {
    let run = |seed| {
        let args = [
            "sim",
            "cas-backoff",
            "--clients",
            "8",
            "--locks",
            "4",
            "--ops",
            "2000",
            "--json",
            "--seed",
            seed,
        ];
        let output = lockwright(&args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"), "the seed matters");
    let report: serde_json::Value = serde_json::from_str(&run("7")).unwrap();
    assert_eq!(report["protocol"], "cas-backoff");
}

#[test]
fn a_simulated_run_says_that_it_is_simulated() {
    let output = lockwright(&["sim", "mcs", "--clients", "4", "--locks", "2", "--ops", "500"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).lines().next().unwrap_or_default().ends_with("(simulated)"));
    assert!(last_line(&output).starts_with("simulated: "), "{}", last_line(&output));
}

#[test]
fn a_simulated_mutant_is_caught_with_exit_1() {
    let output = lockwright(&["sim", "mcs-jumps-queue", "--clients", "8", "--locks", "1", "--ops", "2000"]);
    assert_eq!(code(&output), 1, "{}{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("mutual exclusion"), "{}", stderr(&output));
}

#[test]
fn an_experiment_writes_its_files_and_its_exit_code_tells_of_misses() {
    let scratch = Scratch::new("lab-quick");
    let out = scratch.0.to_str().expect("the target folder has a plain name");
    let html = format!("{out}/report");
    let output = lockwright(&["lab", "run", "citron-fig11", "--quick", "--out", out, "--html", &html]);
    let text = stdout(&output);
    let misses = text.lines().filter(|line| line.contains(" MISS: ")).count();
    assert_eq!(code(&output), i32::from(misses > 0), "{text}{}", stderr(&output));
    let last = last_line(&output);
    assert!(
        last.starts_with("lab: experiments=1 claims=") && last.ends_with(&format!(" misses={misses}")),
        "{last}"
    );
    assert!(scratch.0.join("citron-fig11.json").exists(), "the report is missing");
    let written = |ending: &str| {
        let files = std::fs::read_dir(&scratch.0).unwrap().map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|own| own == ending)).collect::<Vec<_>>()
    };
    assert!(!written("csv").is_empty(), "the table is missing");
    let svg = std::fs::read_to_string(&written("svg")[0]).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("computed"),
        "a picture says where its figures come from"
    );
    let page = std::fs::read_to_string(scratch.0.join("report/index.html")).unwrap();
    assert!(page.contains(&svg), "the picture is in the page");
    assert_eq!(page.matches("<td>MISS: ").count(), misses);
    assert_eq!(
        page.matches("<td>ok").count() + misses,
        text.lines().filter(|line| line.starts_with("claim ")).count()
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_known_at_once() {
    let output = lockwright(&["lab", "run", "shift-sec2-3", "--quick", "--out", "/dev/null/out"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).starts_with("error: cannot write /dev/null/out"), "{}", stderr(&output));
    let output = lockwright(&["lab", "run", "shift-sec2-3", "--quick", "--html", "/dev/null/page"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).starts_with("error: cannot make /dev/null/page"), "{}", stderr(&output));
}

#[test]
fn a_soak_goes_on_for_so_long_and_says_how_much_time_that_was() {
    let soaked = lockwright(&["sim", "--soak", "1s", "--clients", "3", "--seed", "4"]);
    let line = last_line(&soaked);
    assert_eq!(code(&soaked), 0, "{}{}", stdout(&soaked), stderr(&soaked));
    assert!(line.starts_with("soak: seeds=4..") && line.ends_with("violations=0"), "{line}");
    assert!(!line.contains("events=0 ") && !line.contains("virtual=0.0 days"), "{line}");
}
