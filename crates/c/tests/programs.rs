//! The header and the library that cargo has just built, held against each other, without the tools and the optimised builds of
//! `cargo xtask bindings`: so that they do not drift apart between two runs of that.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = include_str!("../include/lockwright.h");

fn sources() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// What follows `before` in `text`, up to the end of the word; each time.
fn words<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let word = |rest: &'a str| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
    text.split(before).skip(1).filter_map(word).collect()
}

#[test]
fn the_header_declares_every_function_of_the_library_and_no_other() {
    let sources = sources();
    let defined = words(&sources, "extern \"C\" fn ");
    let declared: BTreeSet<_> = HEADER
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()) && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("lw_"))
        .collect();
    let defined: BTreeSet<_> = defined.into_iter().filter(|name| name.starts_with("lw_")).collect();
    assert_eq!(defined, declared, "`cargo xtask bindings --bless` writes the header anew");
    assert!(defined.len() > 20, "{defined:?}");
}

#[test]
fn the_header_has_the_numbers_of_the_library() {
    let numbers = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().map(|line| line.trim().trim_end_matches(','));
        lines.filter(|line| line.starts_with("LW_") && line.contains(" = ")).map(str::to_owned).collect()
    };
    let ours: BTreeSet<_> = numbers(&sources()).into_iter().filter(|line| !line.contains("=>")).collect();
    assert_eq!(ours, numbers(HEADER), "`cargo xtask bindings --bless` writes the header anew");
    assert!(ours.len() > 20, "{ours:?}");
}

/// The shared library beside this test, in a folder of its own under the name that its soname says.
fn installed() -> PathBuf {
    let built = std::env::current_exe().unwrap().with_file_name("liblockwright_c.so");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("programs-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let version = if major == "0" { format!("{major}.{minor}") } else { major.to_owned() };
    std::os::unix::fs::symlink(&built, folder.join(format!("liblockwright.so.{version}"))).unwrap();
    std::os::unix::fs::symlink(&built, folder.join("liblockwright.so")).unwrap();
    folder
}

#[test]
fn the_c_programs_compile_against_the_header_and_find_the_library_as_they_expect_it() {
    let folder = installed();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (source, argument) in [("tests/api.c", "20"), ("examples/orders.c", "mem:")] {
        let program = folder.join("program");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(sources.join(source));
        cc.arg("-I").arg(sources.join("include")).arg("-L").arg(&folder).arg("-llockwright");
        let compiled = cc.arg("-o").arg(&program).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let ran = Command::new(&program).env("LD_LIBRARY_PATH", &folder).arg(argument).output().unwrap();
        assert!(ran.status.success(), "{source}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    fs::remove_dir_all(folder).unwrap();
}
