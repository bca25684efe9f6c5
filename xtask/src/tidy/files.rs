//! Rules about single files: Rust files say first what they are and stay short, and no text names a folder of one developer's
//! machine.

use std::fs;
use std::path::Path;

/// A file longer than this holds more than one idea.
const MAX_LINES: usize = 600;

/// Where no test build looks: the lab's library is compiled without one (see its Cargo.toml).
const UNTESTED: &str = "crates/lab/src/";
/// But for these: the test program takes the first in whole, and the program is tested by itself.
const TESTED: [&str; 2] = ["crates/lab/src/workload/", "crates/lab/src/program/"];

/// Folders that hold nothing of the project's own.
const FOREIGN: [&str; 3] = [".git", "target", "out"];

/// Endings of the files that are read as text.
const TEXT: [&str; 9] = ["rs", "toml", "md", "sh", "yml", "yaml", "svg", "c", "run"];

/// Starts of paths that exist on one machine only. Split, so that this file does not complain about itself.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];

/// Checks every file under `root` and returns how many it read.
pub(crate) fn check(root: &Path, complaints: &mut Vec<String>) -> usize {
    walk(root, root, complaints)
}

fn walk(root: &Path, folder: &Path, complaints: &mut Vec<String>) -> usize {
    let Ok(entries) = fs::read_dir(folder) else {
        complaints.push(format!("{}: cannot be listed", folder.display()));
        return 0;
    };
    let mut paths: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    let mut seen = 0;
    for path in paths {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_symlink() || FOREIGN.iter().any(|foreign| name == *foreign) || name.starts_with("target-")
        {
            continue;
        }
        if path.is_dir() {
            seen += walk(root, &path, complaints);
            continue;
        }
        let ending = name.rsplit('.').next().unwrap_or_default();
        if !TEXT.contains(&ending) {
            continue;
        }
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => complaints.extend(look_at(&shown, &text)),
            Err(error) => complaints.push(format!("{shown}: {error}")),
        }
        seen += 1;
    }
    seen
}

/// What is wrong with one file.
fn look_at(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if name.ends_with(".rs") {
        if !text.starts_with("//!") {
            complaints.push(format!("{name}:1: opens without `//!`: say what the file is, and why"));
        }
        let lines = text.lines().count();
        if lines > MAX_LINES {
            complaints.push(format!("{name}: {lines} lines, more than {MAX_LINES}: split it by idea"));
        }
    }
    if name.starts_with(UNTESTED)
        && !TESTED.iter().any(|tested| name.starts_with(tested))
        && text.contains("#[cfg(test)]")
    {
        complaints.push(format!("{name}: unit tests here never run: they belong in crates/lab/tests"));
    }
    for (number, line) in text.lines().enumerate() {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| names_machine_path(line, path)) {
            complaints.push(format!("{name}:{}: names a path of one machine ({path}…)", number + 1));
        }
    }
    complaints
}

/// Whether `line` holds `path` as the start of an absolute path: `a/path/` inside a longer one does not count.
fn names_machine_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~}".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rust_file_must_open_with_what_it_is() {
        assert_eq!(look_at("a.rs", "//! A thing.\nfn main() {}\n"), Vec::<String>::new());
        assert!(look_at("a.rs", "fn main() {}\n")[0].contains("opens without"));
        assert!(look_at("a.md", "no header needed\n").is_empty());
    }

    #[test]
    fn a_long_rust_file_must_be_split() {
        let text = format!("//! Long.\n{}", "\n".repeat(MAX_LINES));
        assert!(look_at("a.rs", &text)[0].contains("split it"));
    }

    #[test]
    fn a_path_of_one_machine_is_found_and_a_longer_one_that_contains_it_is_not() {
        let [home, ..] = MACHINE_PATHS;
        assert!(look_at("a.md", &format!("see {home}me/x"))[0].contains("a.md:1"));
        assert!(look_at("a.md", &format!("see docs{home}x")).is_empty());
    }
}
