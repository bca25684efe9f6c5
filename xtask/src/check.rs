//! `cargo xtask check`: explores every case of every protocol to its end, and every mutant until it is caught.
//!
//! The program that is run is the one that the tests have built: unoptimised but for the explorer, it takes a little longer
//! than a release build, and less than that and building one. What is looked at here is its report: that nothing was
//! violated is not enough, every case must have been explored exhaustively.

use crate::names::EXPLORER;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Builds the explorer, runs it, and prints what it proved.
pub(crate) fn report(root: &Path) -> ExitCode {
    match build(root).and_then(|program| run(root, &program)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("check: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the program and returns where it is.
///
/// # Errors
/// In one line.
pub(crate) fn build(root: &Path) -> Result<PathBuf, String> {
    crate::steps::program(root, &EXPLORER, &[])
}

/// Explores everything and judges the report.
///
/// # Errors
/// In one line per objection.
pub(crate) fn run(root: &Path, program: &Path) -> Result<(), String> {
    let mut explorer = Command::new(program);
    let output =
        explorer.current_dir(root).args(["check", "--all", "--json"]).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let report = serde_json::from_slice(&output.stdout).map_err(|error| format!("no report: {error}"))?;
    let objections = judge(&report);
    if objections.is_empty() && output.status.success() {
        return Ok(());
    }
    Err(if objections.is_empty() {
        "the explorer says that it failed".to_owned()
    } else {
        objections.join("\n")
    })
}

/// Prints one line per protocol, and returns what is wrong with the report.
fn judge(report: &Value) -> Vec<String> {
    let mut objections = Vec::new();
    let list = |of: &Value, name: &str| of[name].as_array().cloned().unwrap_or_default();
    let (protocols, mutants) = (list(report, "protocols"), list(report, "mutants"));
    let (mut states, mut explored, mut exhaustive) = (0, 0, 0);
    for protocol in &protocols {
        let (name, cases) = (protocol["name"].as_str().unwrap_or("?"), list(protocol, "cases"));
        let seen: u64 = cases.iter().filter_map(|case| case["states"].as_u64()).sum();
        states += seen;
        println!("{name}: {} cases, {seen} states", cases.len());
        if cases.is_empty() {
            objections.push(format!("{name}: no case was explored"));
        }
        explored += cases.len();
        exhaustive += cases.iter().filter(|case| case["exhaustive"] == true).count();
        for case in &cases {
            let place = format!("{name}, case {}", case["case"].as_str().unwrap_or("?"));
            if let Some(found) = case["violation"]["what"].as_str() {
                objections.push(format!("{place}: {found}"));
            } else if case["exhaustive"] != true {
                objections
                    .push(format!("{place}: not explored exhaustively, after {} states", case["states"]));
            }
        }
    }
    let caught = mutants.iter().filter(|mutant| mutant["violations"].as_u64().is_some_and(|n| n > 0)).count();
    println!(
        "check: {} protocols, {exhaustive} of {explored} cases exhaustive, {states} states; {caught} of {} mutants caught",
        protocols.len(),
        mutants.len()
    );
    if protocols.is_empty() || mutants.is_empty() {
        objections.push("the report has no protocols, or no mutants".to_owned());
    }
    if report["ok"] != true {
        objections.push("a protocol is not clean, or a mutant is not caught by its checker".to_owned());
    }
    objections
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn a_report(exhaustive: bool, violation: &Value, ok: bool) -> Value {
        let case = json!({ "case": "two", "states": 5, "exhaustive": exhaustive, "violation": violation });
        let mutant = json!({ "name": "broken", "violations": 1, "cases": [] });
        json!({ "protocols": [{ "name": "mcs", "cases": [case] }], "mutants": [mutant], "ok": ok })
    }

    #[test]
    fn a_clean_and_exhaustive_report_is_accepted() {
        assert!(judge(&a_report(true, &Value::Null, true)).is_empty());
    }

    #[test]
    fn a_case_that_stopped_early_is_an_objection_although_nothing_was_found() {
        let objections = judge(&a_report(false, &Value::Null, true));
        assert_eq!(objections, ["mcs, case two: not explored exhaustively, after 5 states"]);
    }

    #[test]
    fn a_violation_and_an_uncaught_mutant_are_objections() {
        let found = json!({ "checker": "mutual exclusion", "what": "two writers" });
        assert_eq!(judge(&a_report(false, &found, false)).len(), 2);
        assert_eq!(judge(&a_report(true, &Value::Null, false)).len(), 1);
    }

    #[test]
    fn an_empty_report_proves_nothing() {
        assert!(!judge(&json!({ "protocols": [], "mutants": [], "ok": true })).is_empty());
        assert!(!judge(&json!({})).is_empty());
    }
}
