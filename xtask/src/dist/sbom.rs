//! Bills of materials: every crate that is compiled into what users get, as CycloneDX, from what cargo says.

use super::program::TARGET;
use crate::names::{COMMAND_PROGRAM, LIBRARIES, PACKAGED, PRELOAD};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What libraries are built for.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// Something that users get: its name, what CycloneDX calls it, and of which package with which features for what it is built.
type Product = (&'static str, &'static str, &'static str, &'static str, &'static str);

const PRODUCTS: [Product; 4] = [
    (COMMAND_PROGRAM.name, "application", COMMAND_PROGRAM.package, PACKAGED, TARGET),
    ("liblockwright", "library", "lockwright-c", LIBRARIES, HOST),
    ("liblockwright_posix", "library", PRELOAD, "", HOST),
    // As pyproject.toml has it built.
    ("lockwright-python", "library", "lockwright-python", LIBRARIES, HOST),
];

/// Writes a bill for each, called by its name.
///
/// # Errors
/// In a line.
pub(super) fn write(root: &Path, dist: &Path) -> Result<(), String> {
    PRODUCTS.iter().try_for_each(|product| bill(root, dist, product))
}

fn bill(root: &Path, dist: &Path, &(name, kind, package, features, target): &Product) -> Result<(), String> {
    let of = ["tree", "--locked", "--package", package, "--features", features, "--target", target];
    // What builds the program and what macros need is not in it.
    let how = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}|{l}"];
    let output = crate::steps::command(root, &[&of[..], &how].concat()).output();
    let output = output.map_err(|error| error.to_string())?;
    let components = components(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() || components.is_empty() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    println!("{name}: {} crates", components.len());
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": kind, "name": name } },
        "components": components,
    });
    fs::write(dist.join(format!("{name}.cdx.json")), format!("{bill:#}\n")).map_err(|error| error.to_string())
}

/// Lines like `NAME vVERSION (PATH) (*)|LICENCE`, each crate once.
fn components(tree: &str) -> Vec<Value> {
    let lines: BTreeSet<_> = tree.lines().filter_map(of_line).collect();
    let component = |(name, version, license): (&str, &str, &str)| {
        let purl = format!("pkg:cargo/{name}@{version}");
        let licenses = json!([{ "expression": license }]);
        json!({ "type": "library", "name": name, "version": version, "purl": purl, "licenses": licenses })
    };
    lines.into_iter().map(component).collect()
}

fn of_line(line: &str) -> Option<(&str, &str, &str)> {
    let (package, license) = line.split_once('|')?;
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    // A crate that was listed before is marked so behind its licence.
    Some((name, version, license.trim_end_matches(" (*)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_in_the_bill_once_however_often_cargo_lists_it() {
        let tree =
            "lockwright-cli v0.1.0 (/crates/cli)|MIT OR Apache-2.0\nused v1.2.3|MIT\n\nused v1.2.3|MIT (*)\n";
        let found: Vec<_> = components(tree).iter().map(|one| one["purl"].clone()).collect();
        assert_eq!(found, ["pkg:cargo/lockwright-cli@0.1.0", "pkg:cargo/used@1.2.3"]);
    }
}
