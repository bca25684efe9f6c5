//! The Python package: a wheel, installed into a fresh virtual environment for every interpreter that is there, and its tests.

use super::c::scratch;
use super::verdict;
use crate::setup::{Need, done};
use crate::steps::{self, Ended};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "lockwright-python";

/// What the tests need besides the wheel.
const TOOLS: [&str; 2] = ["maturin>=1.8,<2", "pytest"];

/// The release of filelock whose own tests are run, and what they need.
const FILELOCK: &str = "filelock==3.20.0";
const FILELOCK_NEEDS: [&str; 4] = ["pytest>=8.4", "pytest-asyncio>=1.2", "pytest-mock", "pytest-timeout"];

/// Interpreters that the wheel is tried with, if they are there. The first is what `python3` is.
const INTERPRETERS: [&str; 6] =
    ["python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13"];

/// The extension module as cargo builds it, beside the package's own files, in Python without any other tool: every class once, and
/// the README's lines. Skipped where there is no Python.
pub(crate) fn smoke(root: &Path) -> Ended {
    if done(Command::new("python3").args(["-c", "import asyncio"])).is_err() {
        println!("skipped: there is no Python: `apt-get install python3`");
        return Ended::Skipped;
    }
    verdict(try_module(root))
}

fn try_module(root: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let status = steps::command(root, &["build", "--package", PACKAGE]).status().map_err(failed)?;
    if !status.success() {
        return Err(format!("{PACKAGE} does not compile"));
    }
    let scratch = scratch(root)?;
    let (folder, target) = (scratch.join("module"), scratch.parent().unwrap_or(root).to_owned());
    let package = folder.join("lockwright");
    fs::create_dir_all(&package).map_err(failed)?;
    for entry in fs::read_dir(root.join("python/lockwright")).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().extension().is_some_and(|ending| ending == "py") {
            fs::copy(entry.path(), package.join(entry.file_name())).map_err(failed)?;
        }
    }
    let module = package.join("_lockwright.abi3.so");
    // One that runs is not written over.
    let _ = fs::remove_file(&module);
    fs::copy(target.join("debug/lib_lockwright.so"), module).map_err(failed)?;
    let space = format!("shm:/dev/shm/lockwright-py-smoke-{}", std::process::id());
    let mut python = Command::new("python3");
    python.current_dir(&folder).env("PYTHONPATH", &folder).arg(root.join("python/tests/smoke.py"));
    let tried = done(python.args(["mem:", &space]));
    let _ = fs::remove_file(&space["shm:".len()..]);
    tried?;
    let readme = super::readme::block(root, "python")?;
    done(Command::new("python3").current_dir(&folder).env("PYTHONPATH", &folder).arg("-c").arg(readme))
}

/// Builds the wheel into `folder` and returns where it is.
///
/// # Errors
/// In a line.
pub(crate) fn wheel(root: &Path, folder: &Path, release: bool, may: bool) -> Result<PathBuf, String> {
    Need::Python.get(root, may)?;
    let tools = environment(root, "python3", "tools")?;
    done(Command::new(tools.join("bin/pip")).args(["install", "--quiet"]).args(TOOLS))
        .map_err(|why| format!("maturin cannot be had here: {why}"))?;
    let _ = fs::remove_dir_all(folder);
    let mut maturin = Command::new(tools.join("bin/maturin"));
    maturin.current_dir(root.join("python")).args(["build", "--quiet", "--out"]).arg(folder);
    if release {
        maturin.arg("--release");
    }
    done(&mut maturin)?;
    let wheels = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut wheels = wheels.filter_map(Result::ok).map(|entry| entry.path());
    let wheel = wheels.find(|path| path.extension().is_some_and(|ending| ending == "whl"));
    wheel.ok_or_else(|| "maturin made no wheel".to_owned())
}

/// Installs the wheel alone into a new environment in `folder` and runs the README's lines there.
///
/// # Errors
/// What pip or Python said.
pub(crate) fn fresh(root: &Path, wheel: &Path, folder: &Path) -> Result<(), String> {
    done(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    done(Command::new(folder.join("bin/pip")).args(["install", "--quiet", "--no-index"]).arg(wheel))?;
    let mut python = Command::new(folder.join("bin/python"));
    done(python.current_dir(folder).arg("-c").arg(super::readme::block(root, "python")?))
}

/// Installs the wheel for every interpreter and runs its tests; `program` is the `lockwright` that breaks locks in them.
///
/// # Errors
/// What pytest said last.
pub(crate) fn tests(root: &Path, wheel: &Path, program: &Path) -> Result<(), String> {
    let mut seen = Vec::new();
    for interpreter in INTERPRETERS {
        let Some(version) = version(interpreter).filter(|version| !seen.contains(version)) else { continue };
        let environment = environment(root, interpreter, &version)?;
        let mut pip = Command::new(environment.join("bin/pip"));
        pip.args(["install", "--quiet", "--force-reinstall", "pytest"]).arg(wheel);
        done(&mut pip).map_err(|why| format!("Python {version}: {why}"))?;
        let mut pytest = pytest(root, &environment)?;
        pytest.env("LOCKWRIGHT_PROGRAM", program).arg(root.join("python/tests"));
        let said = last_line(&mut pytest).map_err(|said| format!("Python {version}:\n{said}"))?;
        let readme = super::readme::block(root, "python")?;
        let mut python = Command::new(environment.join("bin/python"));
        done(python.current_dir(scratch(root)?).arg("-c").arg(readme))
            .map_err(|why| format!("the README's lines in Python {version}: {why}"))?;
        println!("Python {version}: {said}");
        seen.push(version);
    }
    Ok(())
}

/// The stubs, held against what Python finds in the installed wheel.
///
/// # Errors
/// What mypy's stubtest said.
pub(crate) fn stubs(root: &Path, wheel: &Path) -> Result<(), String> {
    let environment = environment(root, "python3", "stubs")?;
    let mut pip = Command::new(environment.join("bin/pip"));
    done(pip.args(["install", "--quiet", "--force-reinstall", "mypy"]).arg(wheel))?;
    let mut stubtest = Command::new(environment.join("bin/python"));
    stubtest.current_dir(scratch(root)?).args([
        "-m",
        "mypy.stubtest",
        "--concise",
        "--ignore-disjoint-bases",
        "lockwright",
    ]);
    done(&mut stubtest)
}

/// filelock's own tests, as they are published with its source, on our mutexes.
///
/// # Errors
/// What pytest said.
pub(crate) fn filelock(root: &Path, wheel: &Path) -> Result<(), String> {
    let environment = environment(root, "python3", "filelock")?;
    let pip = |args: &[&str]| {
        let mut pip = Command::new(environment.join("bin/pip"));
        pip.args(&args[..1]).arg("--quiet").args(&args[1..]);
        pip
    };
    done(pip(&["install", "--force-reinstall", FILELOCK]).args(FILELOCK_NEEDS).arg(wheel))?;
    let folder = scratch(root)?.join("filelock");
    let _ = fs::remove_dir_all(&folder);
    let source = ["download", "--no-deps", "--no-binary", ":all:", FILELOCK, "--dest"];
    done(pip(&source).arg(&folder)).map_err(|why| format!("filelock's source cannot be had: {why}"))?;
    let archive = folder.join(format!("{}.tar.gz", FILELOCK.replace("==", "-")));
    done(Command::new("tar").args(["--strip-components=1", "-xzf"]).arg(archive).arg("-C").arg(&folder))?;
    let mut pytest = pytest(root, &environment)?;
    pytest.env("PYTHONPATH", root.join("python/tests")).args(["-p", "filelock_adapter"]);
    pytest.args(["test_filelock.py", "test_async_filelock.py"].map(|name| folder.join("tests").join(name)));
    println!("{FILELOCK}: {}", last_line(&mut pytest)?);
    Ok(())
}

/// pytest in an environment. A test that hangs says where, and the run ends.
fn pytest(root: &Path, environment: &Path) -> Result<Command, String> {
    let mut pytest = Command::new(environment.join("bin/python"));
    // Not inside of the project: the folder `lockwright` there has no extension module.
    pytest.current_dir(scratch(root)?).args(["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]);
    pytest.args(["-o", "faulthandler_timeout=120", "-o", "faulthandler_exit_on_timeout=true"]);
    Ok(pytest)
}

/// What a command said last; the error is all that it said.
fn last_line(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        return Err(format!("{said}\n{}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(said.lines().next_back().unwrap_or_default().to_owned())
}

/// A virtual environment of its own.
pub(super) fn environment(root: &Path, interpreter: &str, name: &str) -> Result<PathBuf, String> {
    let folder = scratch(root)?.join(format!("venv-{name}"));
    if !folder.join("bin/pip").exists() {
        done(Command::new(interpreter).args(["-m", "venv"]).arg(&folder))?;
    }
    Ok(folder)
}

/// The version of an interpreter that can have virtual environments, if it is there.
fn version(interpreter: &str) -> Option<String> {
    let ask = "import ensurepip, sys; print('%d.%d.%d' % sys.version_info[:3])";
    let output = Command::new(interpreter).args(["-c", ask]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
