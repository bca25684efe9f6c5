//! The C library: its header, where it is installed, and the programs that are compiled against it as a user would.

use crate::names::LIBRARIES;
use crate::setup::{Need, done, tools};
use crate::steps;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the chore is about.
const PACKAGE: &str = "lockwright-c";
const CRATE: &str = "crates/c";

/// A C and a C++ compiler that belong together.
#[derive(Clone, Copy)]
pub(crate) struct Compiler {
    pub(crate) c: &'static str,
    cxx: &'static str,
    need: Need,
}

pub(crate) const COMPILERS: [Compiler; 2] = [
    Compiler { c: "gcc", cxx: "g++", need: Need::Gcc },
    Compiler { c: "clang", cxx: "clang++", need: Need::Clang },
];

/// Where the tests are told of a space in a server.
const SERVED: &str = "LOCKWRIGHT_SERVER";

/// What every program is compiled with.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-g"];

/// Compares the header with what cbindgen makes of the sources, or rewrites it if it is to be `bless`ed.
///
/// # Errors
/// In a line or two.
pub(crate) fn header(root: &Path, may: bool, bless: bool) -> Result<(), String> {
    Need::Cbindgen.get(root, may)?;
    let folder = root.join(CRATE);
    let mut cbindgen = Command::new(tools(root).join("bin/cbindgen"));
    let output = cbindgen.current_dir(&folder).args(["--quiet", "--config", "cbindgen.toml", "."]).output();
    let output = output.map_err(|error| format!("cannot start cbindgen: {error}"))?;
    if !output.status.success() {
        return Err(format!("cbindgen: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let path = folder.join("include/lockwright.h");
    if bless {
        return fs::write(path, output.stdout).map_err(|error| error.to_string());
    }
    if fs::read(path).is_ok_and(|header| header == output.stdout) {
        Ok(())
    } else {
        Err(format!(
            "{CRATE}/include/lockwright.h is out of date: `cargo xtask bindings --bless` rewrites it"
        ))
    }
}

/// Builds the library, optimised if it is for `release`, and installs it below `folder`: header, libraries, and a pkg-config file
/// that finds them wherever they are moved together.
///
/// # Errors
/// In a line.
pub(crate) fn install(root: &Path, folder: &Path, release: bool) -> Result<(), String> {
    let (files, version) = build(root, release)?;
    let short = soname(&version);
    let (include, lib) = (folder.join("include"), folder.join("lib"));
    let pkgconfig = lib.join("pkgconfig");
    let put = || -> std::io::Result<()> {
        fs::create_dir_all(&include)?;
        fs::create_dir_all(&pkgconfig)?;
        fs::copy(root.join(CRATE).join("include/lockwright.h"), include.join("lockwright.h"))?;
        let shared = format!("liblockwright.so.{version}");
        for (from, to) in [("so", shared.as_str()), ("a", "liblockwright.a")] {
            let built = files.iter().find(|file| file.extension().is_some_and(|ending| ending == from));
            let built = built.ok_or_else(|| std::io::Error::other(format!("cargo made no .{from}")))?;
            // Programs that run with the old one go on with it.
            let _ = fs::remove_file(lib.join(to));
            fs::copy(built, lib.join(to))?;
        }
        for (link, to) in [
            (format!("liblockwright.so.{short}"), shared.clone()),
            ("liblockwright.so".into(), shared.clone()),
        ] {
            let _ = fs::remove_file(lib.join(&link));
            symlink(to, lib.join(link))?;
        }
        let template = fs::read_to_string(root.join(CRATE).join("lockwright.pc.in"))?;
        let text = template.replace("@version@", &version).replace("@private@", PRIVATE_LIBS);
        fs::write(pkgconfig.join("lockwright.pc"), text)
    };
    put().map_err(|error| format!("cannot install below {}: {error}", folder.display()))
}

/// What the static library needs besides, as `rustc --print native-static-libs` says.
const PRIVATE_LIBS: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// The version in the soname: the major one, and before 1.0 the minor one, too. `crates/c/build.rs` has the same rule.
fn soname(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if major == "0" { format!("0.{minor}") } else { major.to_owned() }
}

/// The library's files, and its version.
fn build(root: &Path, release: bool) -> Result<(Vec<PathBuf>, String), String> {
    let args = ["build", "--message-format", "json-render-diagnostics", "--package", PACKAGE];
    let mut cargo = steps::command(root, &args);
    cargo.args(["--features", LIBRARIES]);
    if release {
        cargo.arg("--release");
    }
    let output = cargo.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{PACKAGE} does not compile"));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let ours = |message: &Value| message["target"]["name"] == "lockwright_c";
    let message = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(ours);
    let message = message.ok_or_else(|| "cargo does not say where the library is".to_owned())?;
    let files = message["filenames"].as_array().into_iter().flatten();
    let files = files.filter_map(|file| file.as_str().map(PathBuf::from)).collect();
    // `path+file:///…/crates/c#lockwright-c@0.1.0`
    let id = message["package_id"].as_str().unwrap_or_default();
    Ok((files, id.rsplit(['@', '#']).next().unwrap_or_default().to_owned()))
}

/// An unoptimised library in a folder of the build's own.
///
/// # Errors
/// In a line.
pub(crate) fn install_for_tests(root: &Path) -> Result<PathBuf, String> {
    let prefix = scratch(root)?.join("prefix");
    install(root, &prefix, false).map(|()| prefix)
}

/// Where the programs go.
pub(crate) fn scratch(root: &Path) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("bindings");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Compiles the tests and the example with one compiler, in every way in which users link, and runs them; the tests in the space
/// that is `served`, too.
///
/// # Errors
/// What the compiler or the program said.
pub(crate) fn programs(
    root: &Path,
    prefix: &Path,
    (compiler, served): (Compiler, &str),
    may: bool,
) -> Result<(), String> {
    compiler.need.get(root, may)?;
    Need::PkgConfig.get(root, may)?;
    let tests = root.join(CRATE).join("tests");
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let (api, raii) = (tests.join("api.c"), tests.join("raii.cpp"));
    let compile = |source: &Path, name: &str, cxx: bool, extra: &[&str], linked: Linked| {
        let (program, standard) = if cxx { (compiler.cxx, "-std=c++17") } else { (compiler.c, "-std=c11") };
        let to = scratch(root)?.join(format!("{name}-{}", compiler.c));
        let mut command = Command::new(program);
        command.arg(standard).args(STRICT).args(extra).arg(source).arg("-o").arg(&to);
        done(command.args(linked.flags(prefix)?))?;
        run(&to, prefix, served)?;
        println!("{name}: ok");
        Ok::<_, String>(())
    };
    compile(&api, "api", false, &[], Linked::Shared)?;
    compile(&api, "api-static", false, &[], Linked::Static)?;
    compile(&api, "api-sanitized", false, &sanitizers, Linked::Shared)?;
    compile(&raii, "raii", true, &[], Linked::Shared)?;
    compile(&raii, "raii-sanitized", true, &sanitizers, Linked::Shared)?;
    let readme = scratch(root)?.join("readme.c");
    fs::write(&readme, super::readme::block(root, "c")?).map_err(|error| error.to_string())?;
    compile(&readme, "readme", false, &[], Linked::Shared)?;
    compile(&root.join(CRATE).join("examples/orders.c"), "orders", false, &[], Linked::Shared)
}

/// Compiles the example into `folder` as its first comment says, with either library, and runs it.
///
/// # Errors
/// What gcc, pkg-config or the program said.
pub(crate) fn example(root: &Path, prefix: &Path, folder: &Path, may: bool) -> Result<(), String> {
    Need::Gcc.get(root, may)?;
    Need::PkgConfig.get(root, may)?;
    for linked in [Linked::Shared, Linked::Static] {
        let program = folder.join("orders");
        let mut gcc = Command::new("gcc");
        gcc.arg(root.join(CRATE).join("examples/orders.c")).args(linked.flags(prefix)?);
        done(gcc.arg("-o").arg(&program))?;
        run(&program, prefix, "")?;
    }
    Ok(())
}

/// Compiles one program against the installed library.
///
/// # Errors
/// What the compiler said.
pub(super) fn compile(
    compiler: &str,
    options: &[&str],
    source: &Path,
    program: &Path,
    prefix: &Path,
) -> Result<(), String> {
    let mut command = Command::new(compiler);
    command.args(STRICT).args(options).arg(source).arg("-o").arg(program);
    done(command.args(Linked::Shared.flags(prefix)?))
}

/// How a program is linked.
#[derive(Clone, Copy)]
enum Linked {
    Shared,
    Static,
}

impl Linked {
    /// The compiler's arguments, as pkg-config gives them to users.
    fn flags(self, prefix: &Path) -> Result<Vec<String>, String> {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs"]);
        if matches!(self, Self::Static) {
            pkg_config.arg("--static");
        }
        let output = pkg_config.arg("lockwright").output().map_err(|error| format!("pkg-config: {error}"))?;
        if !output.status.success() {
            return Err(format!("pkg-config: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let flags = String::from_utf8_lossy(&output.stdout);
        // The linker prefers the shared library unless it is told the archive's name.
        let whole = |flag: &str| match (self, flag) {
            (Self::Static, "-llockwright") => "-l:liblockwright.a".to_owned(),
            (_, flag) => flag.to_owned(),
        };
        Ok(flags.split_whitespace().map(whole).collect())
    }
}

/// A program of the tests'; `orders` is given a space of its own by way of its argument.
fn run(program: &Path, prefix: &Path, served: &str) -> Result<(), String> {
    let is_example = program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("orders"));
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    if !served.is_empty() {
        command.env(SERVED, served);
    }
    if is_example {
        command.arg("mem:");
    }
    done(&mut command).map_err(|why| format!("{}: {why}", program.display()))
}

/// A lock that `lockwright break` takes away from a C program, which must hear of it.
///
/// # Errors
/// What went wrong.
pub(crate) fn lost(root: &Path, prefix: &Path, breaker: &Path) -> Result<(), String> {
    let folder = scratch(root)?;
    let program = folder.join("lost");
    let source = root.join(CRATE).join("tests/lost.c");
    compile("gcc", &["-std=gnu11"], &source, &program, prefix)?;
    let file = PathBuf::from(format!("/dev/shm/lockwright-c-lost-{}", std::process::id()));
    let space = format!("shm:{}", file.display());
    let mut holder = Command::new(&program);
    holder.env("LD_LIBRARY_PATH", prefix.join("lib")).arg(&space).stdout(Stdio::piped());
    let mut holder = holder.spawn().map_err(|error| error.to_string())?;
    let mut token = String::new();
    // Kept until the program has ended: it says something more.
    let mut out = holder.stdout.take().map(BufReader::new);
    let said = out.as_mut().map(|out| out.read_line(&mut token));
    let broken = match said {
        Some(Ok(read)) if read > 0 => {
            let mut command = Command::new(breaker);
            done(command.args(["break", "lost", "--space", &space, "--token", token.trim()]))
        }
        _ => Err("the program said nothing".to_owned()),
    };
    let ended = holder.wait().map_err(|error| error.to_string());
    let _ = fs::remove_file(file);
    broken?;
    if ended?.success() { Ok(()) } else { Err("the program did not hear of it".to_owned()) }
}

/// The tests once more under valgrind, which does not need the compiler's help.
///
/// # Errors
/// What valgrind said last.
pub(crate) fn valgrind(root: &Path, prefix: &Path, served: &str, may: bool) -> Result<(), String> {
    Need::Valgrind.get(root, may)?;
    let suppressions = root.join(CRATE).join("tests/valgrind.supp");
    let mut valgrind = Command::new("valgrind");
    valgrind.env("LD_LIBRARY_PATH", prefix.join("lib"));
    if !served.is_empty() {
        valgrind.env(SERVED, served);
    }
    // It runs one thread at a time, in turn if told to; few rounds are enough for it.
    valgrind.args(["--quiet", "--fair-sched=yes", "--error-exitcode=9"]);
    valgrind.arg(format!("--suppressions={}", suppressions.display()));
    done(valgrind.arg(scratch(root)?.join("api-gcc")).arg("5"))
}
