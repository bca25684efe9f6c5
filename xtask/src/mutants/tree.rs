//! A copy of the project in `target/mutants`, where changes are made to the code and taken back.
//!
//! The build folder beside it has no debug information, and is begun anew when it has grown past [`ROOM`].

use super::judges::{ROWS, Row};
use serde_json::Value;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes that the build folder may take.
const ROOM: u64 = 5 << 30;

/// Seconds for the list of all changes, which may have to wait for a build.
const LIST_SECONDS: u64 = 1_200;

/// A change that cargo-mutants has thought of.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Which of [`ROWS`] it belongs to.
    pub(super) row: usize,
    pub(super) name: String,
    file: String,
    /// Where the text that is replaced begins and ends: lines and columns from 1.
    span: [(usize, usize); 2],
    replacement: String,
}

impl Change {
    fn parse(listed: &Value) -> Option<Self> {
        let text = |name: &str| listed[name].as_str().map(ToOwned::to_owned);
        let file = text("file")?;
        let row = ROWS.iter().position(|row| file.starts_with(row.files.trim_end_matches("**")))?;
        let place = |end: &str| {
            let number = |name: &str| listed["span"][end][name].as_u64().map(|number| number as usize);
            Some((number("line")?, number("column")?))
        };
        Some(Self {
            row,
            name: text("name")?,
            file,
            span: [place("start")?, place("end")?],
            replacement: text("replacement")?,
        })
    }

    /// The text of the file with the change made.
    fn apply(&self, text: &str) -> Option<String> {
        let [start, end] = self.span.map(|place| offset(text, place));
        let (start, end) = (start?, end?);
        (start <= end).then(|| format!("{}{}{}", &text[..start], self.replacement, &text[end..]))
    }
}

/// The byte at which a line and column, counted in characters from 1, begins.
fn offset(text: &str, (line, column): (usize, usize)) -> Option<usize> {
    let line_start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let mut places = text[line_start..].char_indices().map(|(at, _)| line_start + at);
    places
        .nth(column - 1)
        .or_else(|| (text[line_start..].chars().count() + 1 == column).then_some(text.len()))
}

/// The copy.
pub(super) struct Tree {
    code: PathBuf,
    build: PathBuf,
}

impl Tree {
    /// Copies what git knows of, as it is now. The build of the last time stays.
    pub(super) fn new(root: &Path) -> Result<Self, String> {
        let place = root.join("target").join("mutants");
        let tree = Self { code: place.join("tree"), build: place.join("build") };
        let said = |error: std::io::Error| format!("{}: {error}", tree.code.display());
        let files = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output().map_err(said)?;
        let mut known = HashSet::new();
        for file in String::from_utf8_lossy(&files.stdout).split('\0').filter(|file| !file.is_empty()) {
            let (from, to) = (root.join(file), tree.code.join(file));
            let Ok(bytes) = std::fs::read(&from) else { continue };
            known.insert(to.clone());
            // What has not changed keeps its time, and is not compiled again.
            if std::fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            std::fs::create_dir_all(to.parent().unwrap_or(&tree.code)).map_err(said)?;
            std::fs::write(&to, bytes).map_err(said)?;
        }
        remove_others(&tree.code, &known).map_err(said)?;
        if size(&tree.build) > ROOM {
            std::fs::remove_dir_all(&tree.build).map_err(said)?;
        }
        Ok(tree)
    }

    /// A command of cargo's in the copy, ended after `seconds`. Building may have to wait for other builds: that counts, too.
    pub(super) fn cargo(&self, seconds: u64, args: &[&str]) -> Command {
        let inner = crate::steps::command(&self.code, args);
        let mut cargo = limited(seconds, inner.get_program());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => cargo.env(name, value),
                None => cargo.env_remove(name),
            };
        }
        // Of compiled code that was changed, nothing is used again but by the next change to the same file.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").current_dir(&self.code).args(inner.get_args());
        cargo.stdin(Stdio::null());
        cargo
    }

    pub(super) fn build_folder(&self) -> &Path {
        &self.build
    }

    pub(super) fn code(&self) -> &Path {
        &self.code
    }

    /// Every change that could be made.
    pub(super) fn list(&self) -> Result<Vec<Change>, String> {
        let mut list = self.cargo(LIST_SECONDS, &["mutants", "--list", "--json", "--workspace"]);
        for Row { files, .. } in &ROWS {
            list.args(["--file", files]);
        }
        let output = list.output().map_err(|error| error.to_string())?;
        let parsed: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("cargo-mutants lists nothing: {error}"))?;
        let listed = parsed.as_array().ok_or("cargo-mutants lists nothing")?;
        let mut all: Vec<_> = listed.iter().filter_map(Change::parse).collect();
        all.sort_by_key(|change| change.row);
        Ok(all)
    }

    /// Makes the change and returns the text as it was.
    pub(super) fn make(&self, change: &Change) -> Result<String, String> {
        let path = self.code.join(&change.file);
        let before = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", change.file))?;
        let after = change.apply(&before).ok_or_else(|| format!("{}: no such place", change.name))?;
        std::fs::write(&path, after).map_err(|error| format!("{}: {error}", change.file))?;
        Ok(before)
    }

    /// Takes the change back.
    pub(super) fn restore(&self, change: &Change, before: &str) -> Result<(), String> {
        std::fs::write(self.code.join(&change.file), before)
            .map_err(|error| format!("{}: {error}", change.file))
    }
}

/// `program`, ended with all that it has started after `seconds`; its exit code is then 124.
pub(super) fn limited(seconds: u64, program: &std::ffi::OsStr) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &seconds.to_string()]).arg(program);
    command
}

/// Removes what is below `folder` and not `known`.
fn remove_others(folder: &Path, known: &HashSet<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_others(&entry.path(), known)?;
        } else if !known.contains(&entry.path()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Bytes of all files below `folder`.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn a_change(start: (usize, usize), end: (usize, usize), replacement: &str) -> Change {
        let place = |(line, column)| json!({ "line": line, "column": column });
        let span = json!({ "start": place(start), "end": place(end) });
        let listed = json!({ "name": "n", "file": "crates/server/src/f.rs", "span": span, "replacement": replacement });
        Change::parse(&listed).expect("all that it needs is there")
    }

    #[test]
    fn a_change_replaces_what_is_between_its_places_and_nothing_else() {
        let text = "fn f() {\n    é + b\n}\n";
        assert_eq!(a_change((2, 7), (2, 8), "*").apply(text).unwrap(), "fn f() {\n    é * b\n}\n");
        assert_eq!(a_change((2, 5), (2, 10), "()").apply(text).unwrap(), "fn f() {\n    ()\n}\n");
        assert_eq!(a_change((1, 1), (3, 2), "").apply(text).unwrap(), "\n");
    }

    #[test]
    fn a_place_that_is_not_in_the_text_changes_nothing() {
        assert_eq!(a_change((2, 40), (2, 41), "*").apply("fn f() {\n}\n"), None);
    }
}
