//! Dependencies between the project's crates point one way, and this is the table that says which.
//!
//! A crate that is missing here is a complaint, so that a new one has to take its place in the order.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Crate, what it may see, and what its tests may see besides.
const LAYERS: [(&str, &[&str], &[&str]); 17] = [
    ("lockwright-fabric", &[], &[]),
    // A protocol that could name the simulator would soon have a simulated version.
    ("lockwright-locks", &["lockwright-fabric"], &["lockwright-sim"]),
    ("lockwright-baselines", &["lockwright-fabric", "lockwright-locks"], &[]),
    ("lockwright-sim", &["lockwright-fabric", "lockwright-locks"], &["lockwright-baselines"]),
    (
        "lockwright-proofs",
        // The server's and the client's state machines are explored, too.
        &[
            "lockwright-fabric",
            "lockwright-locks",
            "lockwright-baselines",
            "lockwright-sim",
            "lockwright",
            "lockwright-server",
            "lockwright-cluster",
        ],
        &[],
    ),
    // Who serves which shard is decided without knowing what a lock is.
    ("lockwright-cluster", &[], &[]),
    // Users of the library or the program compile neither simulator, proofs nor baselines.
    ("lockwright", &["lockwright-fabric", "lockwright-locks", "lockwright-cluster"], &["lockwright-sim"]),
    // What other languages link: users of the library like any other.
    ("lockwright-c", &["lockwright"], &[]),
    ("lockwright-python", &["lockwright"], &[]),
    // Locks of existing programs: a user of the library, too.
    ("lockwright-posix", &["lockwright"], &["lockwright-fabric", "lockwright-server"]),
    ("lockwright-preload", &["lockwright", "lockwright-posix"], &[]),
    ("lockwright-mount", &["lockwright", "lockwright-posix"], &["lockwright-server"]),
    (
        "lockwright-server",
        &["lockwright", "lockwright-fabric", "lockwright-locks", "lockwright-cluster"],
        &["lockwright-sim"],
    ),
    ("lockwright-term", &[], &[]),
    (
        "lockwright-lab",
        &[
            "lockwright-fabric",
            "lockwright-locks",
            "lockwright-baselines",
            "lockwright-sim",
            "lockwright-proofs",
            "lockwright-term",
        ],
        // Records of a real server and its clients are judged.
        &["lockwright", "lockwright-server"],
    ),
    (
        "lockwright-cli",
        &[
            "lockwright",
            "lockwright-fabric",
            "lockwright-locks",
            "lockwright-mount",
            "lockwright-server",
            "lockwright-term",
        ],
        &["lockwright-cluster"],
    ),
    ("xtask", &[], &[]),
];

/// Reads every manifest of the workspace, by way of cargo, and holds it against the table.
pub(crate) fn check(root: &Path, complaints: &mut Vec<String>) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output();
    match output {
        Ok(output) if output.status.success() => match serde_json::from_slice(&output.stdout) {
            Ok(metadata) => complaints.extend(look_at(&metadata)),
            Err(error) => complaints.push(format!("cargo metadata: {error}")),
        },
        Ok(output) => {
            complaints.push(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Err(error) => complaints.push(format!("cargo metadata: {error}")),
    }
}

fn look_at(metadata: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, may, tests_may)) = LAYERS.iter().find(|(layer, ..)| *layer == name) else {
            complaints.push(format!("{name}: not in the table of layers (xtask/src/tidy/layers.rs)"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Only the project's own crates have a path.
            if dependency["path"].is_null() {
                continue;
            }
            let on = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            if !(may.contains(&on) || for_tests && tests_may.contains(&on)) {
                let kind = if for_tests { "its tests may not see" } else { "may not see" };
                complaints.push(format!("{name}: {kind} {on} (xtask/src/tidy/layers.rs says why)"));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn depends(name: &str, on: &str, kind: Option<&str>) -> Vec<String> {
        look_at(&json!({ "packages": [{
            "name": name,
            "dependencies": [{ "name": on, "path": "somewhere", "kind": kind }, { "name": "serde" }],
        }] }))
    }

    #[test]
    fn locks_see_the_simulator_in_tests_only() {
        assert!(depends("lockwright-locks", "lockwright-sim", Some("dev")).is_empty());
        assert_eq!(depends("lockwright-locks", "lockwright-sim", None).len(), 1);
    }

    #[test]
    fn nothing_points_back_up() {
        assert_eq!(depends("lockwright-fabric", "lockwright-locks", None).len(), 1);
        assert_eq!(depends("lockwright", "lockwright-sim", None).len(), 1);
        assert_eq!(depends("lockwright", "lockwright-server", None).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_table_is_a_complaint() {
        assert!(depends("newcomer", "lockwright", None)[0].contains("not in the table"));
    }
}
