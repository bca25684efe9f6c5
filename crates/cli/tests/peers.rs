//! `bench --against`, with a peer that needs no server of its own.

use std::process::Command;

#[test]
fn a_comparison_has_a_figure_for_every_contender_and_refuses_what_it_does_not_know() {
    let bench = |peer: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
        command.args(["bench", "--quick", "--json", "--against", peer]).output().unwrap()
    };
    let refused = bench("mysql");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mysql"));
    let output = bench("parking_lot");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for peer in ["lockwright, tcp", "lockwright, tcp, retain=off", "lockwright, shm", "parking_lot"] {
        for workload in ["own name, 1", "own name, 32", "hot name, 2", "hot name, 8", "bank, 8"] {
            let is_it = |line: &&serde_json::Value| line["peer"] == peer && line["workload"] == workload;
            let line = lines.iter().find(is_it).unwrap_or_else(|| panic!("{peer}, {workload}: {text}"));
            assert!(line["cycles_per_second"].as_f64().unwrap() > 0.0, "{line}");
        }
    }
    for workload in ["hot name, 64", "zipf 50 % writes, 64", "zipf 5 % writes, 64"] {
        assert!(
            lines.iter().any(|line| line["peer"] == "parking_lot" && line["workload"] == workload),
            "{text}"
        );
    }
    let zipf = |line: &&serde_json::Value| line["goal"].as_str().is_some_and(|goal| goal.starts_with("zipf"));
    assert_eq!(lines.iter().filter(zipf).count(), 2, "they are tried in a short run, too: {text}");
    let freed = |peer: &str| {
        let line = lines.iter().find(|line| line["peer"] == peer && line.get("fault").is_some());
        line.and_then(|line| line["killed_free_after_s"].as_f64())
    };
    for peer in ["lockwright, tcp", "lockwright, tcp, retain=off", "lockwright, shm"] {
        assert!(freed(peer).is_some(), "the lock of a killed holder is free again: {text}");
    }
}
