//! The bill of materials: every crate that is compiled into the program, as CycloneDX, from what cargo says.

use crate::names::COMMAND_PROGRAM;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

/// Writes `lockwright.cdx.json`.
///
/// # Errors
/// In a line.
pub(super) fn write(root: &Path, dist: &Path) -> Result<(), String> {
    let args =
        ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-musl"];
    let output = crate::steps::command(root, &args).output().map_err(|error| error.to_string())?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    let components = components(&metadata);
    println!("{} crates", components.len());
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": COMMAND_PROGRAM.name } },
        "components": components,
    });
    fs::write(dist.join("lockwright.cdx.json"), format!("{bill:#}\n")).map_err(|error| error.to_string())
}

/// What the command is made of: its dependencies, and theirs, but for those of tests.
fn components(metadata: &Value) -> Vec<Value> {
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let id = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let packages: HashMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (id(&package["id"]), package)).collect();
    let nodes: HashMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (id(&node["id"]), node)).collect();
    let start = packages.iter().find(|(_, package)| package["name"] == COMMAND_PROGRAM.package);
    let mut open: Vec<String> = start.map(|(id, _)| id.clone()).into_iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(next) = open.pop() {
        if !seen.insert(next.clone()) {
            continue;
        }
        for dependency in nodes.get(&next).map(|node| list(&node["deps"])).unwrap_or_default() {
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                open.push(id(&dependency["pkg"]));
            }
        }
    }
    let component = |package: &Value| {
        let (name, version) = (id(&package["name"]), id(&package["version"]));
        let purl = format!("pkg:cargo/{name}@{version}");
        let licenses = json!([{ "expression": package["license"] }]);
        json!({ "type": "library", "name": name, "version": version, "purl": purl, "licenses": licenses })
    };
    seen.iter().filter_map(|id| packages.get(id)).map(component).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_tests_need_is_not_in_the_bill() {
        let package = |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT" });
        let needs = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("lockwright-cli"), package("used"), package("tested")],
            "resolve": { "nodes": [
                { "id": "lockwright-cli", "deps": [needs("used", Value::Null), needs("tested", json!("dev"))] },
                { "id": "used", "deps": [] },
            ] },
        });
        let names: Vec<_> = components(&metadata).iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names, ["lockwright-cli", "used"]);
    }
}
