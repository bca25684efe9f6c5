//! The walks in ARCHITECTURE.md: every file and function that they name is there.
//!
//! A walk is written as `file`: `function`, `function` → `file`: `function`. A function behind a file is looked for in the files
//! whose paths end so; any other name, anywhere.

use std::fs;
use std::path::Path;

const MAP: &str = "ARCHITECTURE.md";
const HEADING: &str = "\n## Walks\n";
/// What a name can be.
const DEFINITIONS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "mod", "macro_rules!"];

/// A Rust file: its path below the root, and what is in it.
struct Source {
    path: String,
    text: String,
}

/// Checks the walks.
pub(super) fn check(root: &Path, complaints: &mut Vec<String>) {
    let mut sources = Vec::new();
    for folder in ["crates", "python/src", "xtask/src"] {
        read(root, &root.join(folder), &mut sources);
    }
    match fs::read_to_string(root.join(MAP)) {
        Ok(map) => complaints.extend(look_at(&map, &sources)),
        Err(error) => complaints.push(format!("{MAP}: {error}")),
    }
}

fn read(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    for path in fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            read(root, &path, sources);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            sources.push(Source { path: shown, text: fs::read_to_string(&path).unwrap_or_default() });
        }
    }
}

/// What a walk says that is not so.
fn look_at(map: &str, sources: &[Source]) -> Vec<String> {
    let Some((_, walks)) = map.split_once(HEADING) else {
        return vec![format!("{MAP}: it has no walks")];
    };
    let walks = walks.split("\n## ").next().unwrap_or_default();
    let mut complaints = Vec::new();
    // The files that the next name is looked for in.
    let mut files: Vec<&Source> = Vec::new();
    let mut parts = walks.split('`');
    let mut before = parts.next().unwrap_or_default();
    while let (Some(span), Some(after)) = (parts.next(), parts.next()) {
        let goes_on = matches!(before.trim(), ":" | ",");
        before = after;
        if span.ends_with(".rs") {
            files = sources.iter().filter(|source| ends_with(&source.path, span)).collect();
            if files.is_empty() {
                complaints.push(format!("{MAP}: there is no file `{span}`"));
            }
            continue;
        }
        if !goes_on {
            files.clear();
        }
        if !is_path(span) {
            continue;
        }
        let mut looked_in: Box<dyn Iterator<Item = &Source>> =
            if files.is_empty() { Box::new(sources.iter()) } else { Box::new(files.iter().copied()) };
        if !looked_in.any(|source| source.defines(span)) {
            let place = files.first().map_or("any file", |file| &file.path);
            complaints.push(format!("{MAP}: there is no `{span}` in {place}"));
        }
    }
    complaints
}

/// Whether `path` ends in `end`, whole names compared.
fn ends_with(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

fn is_path(span: &str) -> bool {
    span.split("::").all(|name| !name.is_empty() && name.bytes().all(is_of_a_name))
}

fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl Source {
    /// Whether the last name of `name` is defined here, of the type or in the module before it.
    fn defines(&self, name: &str) -> bool {
        let (of, name) = name.rsplit_once("::").unwrap_or(("", name));
        let of = of.rsplit("::").next().unwrap_or_default();
        let is_there = |what: &&str| {
            self.text.match_indices(&format!("{what} {name}")).any(|(at, found)| {
                let after = self.text.as_bytes().get(at + found.len());
                !after.is_some_and(|byte| is_of_a_name(*byte))
            })
        };
        let is_of = self.text.contains(of) || self.path.ends_with(&format!("/{of}.rs"));
        is_of && DEFINITIONS.iter().any(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(walk: &str) -> Vec<String> {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let sources = [
            source("crates/a/src/lock.rs", "impl Lock { pub fn take(&self) {} fn give_back() {} }"),
            source("crates/b/src/block.rs", "struct Block; fn run() {}"),
            source("crates/b/src/plan.rs", "fn takes() {}"),
        ];
        look_at(&format!("# Map\n\n## Walks\n\n{walk}\n\n## Invariants\n`nothing.rs`"), &sources)
    }

    #[test]
    fn a_walk_whose_files_and_functions_are_there_is_not_complained_about() {
        let walk = "1. `src/lock.rs`: `Lock::take`,\n   `give_back` → `run`, as `a CAS` → `plan::takes` → `block.rs`: `Block`";
        assert_eq!(complaints(walk), [""; 0]);
    }

    #[test]
    fn what_is_not_there_or_elsewhere_is_found() {
        for walk in
            ["`ock.rs`", "`lock.rs`: `tak`", "`lock.rs`: `Block::take`", "`lock.rs`: `take`, `run`", "`gone`"]
        {
            assert_eq!(complaints(walk).len(), 1, "{walk}");
        }
    }
}
