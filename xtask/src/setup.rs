//! `cargo xtask setup`: what the test command needs of the machine, what of it is missing, and how it is got.
//!
//! Cargo's tools are built into the project's own folder among the user's caches, in versions that are named here and without
//! optimisation, which takes a fraction of the time: neither is slow at what it does here. A C compiler comes by apt. What
//! soft-RoCE needs, its chore fetches by itself. This file installs and says what is there; which step needs what, the steps say.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Something that a step needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Runs tests side by side.
    Nextest,
    /// Judges dependencies.
    Deny,
    /// Makes small changes to the code. Of no use to the test command.
    Mutants,
    /// Interprets tests.
    Miri,
    /// Links programs; compiles ring, and the check of the RDMA bindings.
    Compiler,
    /// Shows the server's page.
    Chromium,
    /// Makes the C header.
    Cbindgen,
    /// Compile what is written in C and C++.
    Gcc,
    Clang,
    /// Says how the C library is linked.
    PkgConfig,
    /// Watches the memory of programs.
    Valgrind,
    /// Runs the Python package's tests, and pip, which gets maturin.
    Python,
    /// Links the static program.
    Musl,
    /// Makes the Debian package.
    CargoDeb,
    /// Makes a Debian to try it in.
    Debootstrap,
    /// A shell and its commands without glibc.
    Busybox,
    /// Read container images.
    ImageTools,
    /// Have locks, too.
    Peers,
    /// Lock files, and notice if that does not work.
    Lockers,
    /// Makes network namespaces.
    Ip,
    /// Loses packets.
    Nft,
}

impl Need {
    const ALL: [Self; 5] = [Self::Compiler, Self::Nextest, Self::Deny, Self::Miri, Self::Chromium];

    const fn name(self) -> &'static str {
        match self {
            Self::Nextest => "cargo-nextest",
            Self::Deny => "cargo-deny",
            Self::Mutants => "cargo-mutants",
            Self::Miri => "Miri",
            Self::Compiler => "a C compiler",
            Self::Chromium => "Chromium",
            Self::Cbindgen => "cbindgen",
            Self::Gcc => "gcc, g++",
            Self::Clang => "clang",
            Self::PkgConfig => "pkg-config",
            Self::Valgrind => "valgrind",
            Self::Python => "Python with venv",
            Self::Musl => "musl",
            Self::CargoDeb => "cargo-deb",
            Self::Debootstrap => "debootstrap",
            Self::Busybox => "a static busybox",
            Self::ImageTools => "skopeo, umoci",
            Self::Peers => "Redis, etcd, PostgreSQL, ZooKeeper",
            Self::Lockers => "ping_pong, stress-ng, sqlite3, Python's own tests",
            Self::Ip => "ip",
            Self::Nft => "nft",
        }
    }

    /// The command that gets it, for people.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Self::Nextest => "cargo install --locked cargo-nextest",
            Self::Deny => "cargo install --locked cargo-deny",
            Self::Mutants => "cargo install --locked cargo-mutants",
            Self::Miri => "rustup toolchain install nightly --profile minimal -c miri,rust-src",
            Self::Compiler => "apt-get install gcc libc6-dev",
            Self::Chromium => "apt-get install chromium chromium-driver iproute2",
            Self::Cbindgen => "cargo install --locked cbindgen",
            Self::Gcc => "apt-get install gcc g++",
            Self::Clang => "apt-get install clang",
            Self::PkgConfig => "apt-get install pkg-config",
            Self::Valgrind => "apt-get install valgrind",
            Self::Python => "apt-get install python3-venv",
            Self::Musl => "rustup target add x86_64-unknown-linux-musl && apt-get install musl-tools",
            Self::CargoDeb => "cargo install --locked cargo-deb",
            Self::Debootstrap => "apt-get install debootstrap",
            Self::Busybox => "apt-get install busybox-static",
            Self::ImageTools => "apt-get install skopeo umoci",
            Self::Peers => "apt-get install redis-server etcd-server postgresql zookeeper",
            Self::Lockers => "apt-get install ctdb stress-ng sqlite3 python3 libpython3.11-testsuite",
            Self::Ip => "apt-get install iproute2",
            Self::Nft => "apt-get install nftables",
        }
    }

    /// Whether it is there.
    pub(crate) fn is_there(self, root: &Path) -> bool {
        match self {
            Self::Nextest => succeeds(&mut crate::steps::command(root, &["nextest", "--version"])),
            Self::Deny => succeeds(&mut crate::steps::command(root, &["deny", "--version"])),
            Self::Mutants => succeeds(&mut crate::steps::command(root, &["mutants", "--version"])),
            Self::Miri => succeeds(&mut nightly(root, &["miri", "--version"])),
            Self::Compiler => succeeds(Command::new("cc").arg("--version")),
            Self::Chromium => {
                ["chromium", "chromedriver"].iter().all(|it| succeeds(Command::new(it).arg("--version")))
                    && Self::Ip.is_there(root)
            }
            Self::Cbindgen => succeeds(Command::new(tools(root).join("bin/cbindgen")).arg("--version")),
            Self::Gcc => succeeds(Command::new("g++").arg("--version")),
            Self::Clang => succeeds(Command::new("clang++").arg("--version")),
            Self::PkgConfig => succeeds(Command::new("pkg-config").arg("--version")),
            Self::Valgrind => succeeds(Command::new("valgrind").arg("--version")),
            Self::Python => succeeds(Command::new("python3").args(["-c", "import ensurepip"])),
            Self::Musl => {
                let core = ["--print", "target-libdir", "--target", MUSL];
                let folder = Command::new("rustc").current_dir(root).args(core).output();
                let folder = folder.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
                folder.is_ok_and(|folder| Path::new(&folder).exists())
                    && succeeds(Command::new("musl-gcc").arg("--version"))
            }
            Self::CargoDeb => succeeds(&mut crate::steps::command(root, &["deb", "--version"])),
            Self::Debootstrap => succeeds(Command::new("debootstrap").arg("--version")),
            // Another package has one that is not static.
            Self::Busybox => {
                Path::new("/usr/share/doc/busybox-static").exists() && Path::new(BUSYBOX).exists()
            }
            Self::ImageTools => {
                ["skopeo", "umoci"].iter().all(|it| succeeds(Command::new(it).arg("--version")))
            }
            Self::Lockers => {
                let tests = ["-c", "import test.test_fcntl, test.test_mailbox"];
                ["/usr/bin/ping_pong", "/usr/bin/stress-ng", "/usr/bin/sqlite3"]
                    .iter()
                    .all(|it| Path::new(it).exists())
                    && succeeds(Command::new("/usr/bin/python3").args(tests))
            }
            Self::Ip => succeeds(Command::new("ip").arg("-V")),
            Self::Nft => succeeds(Command::new("nft").arg("--version")),
            Self::Peers => {
                ["redis-server", "etcd"].iter().all(|it| succeeds(Command::new(it).arg("--version")))
                    && ["/usr/lib/postgresql", "/usr/share/java/zookeeper.jar"]
                        .iter()
                        .all(|it| Path::new(it).exists())
            }
        }
    }

    /// Makes sure that it is there, and installs it if it `may`.
    ///
    /// # Errors
    /// In one line, if it is not there in the end.
    pub(crate) fn get(self, root: &Path, may: bool) -> Result<(), String> {
        if self.is_there(root) {
            return Ok(());
        }
        let (name, by_hand) = (self.name(), self.command());
        if !may {
            return Err(format!("{name} is missing; `cargo xtask setup --install` or `{by_hand}` gets it"));
        }
        println!("installing {name}");
        let start = Instant::now();
        self.install(root).map_err(|why| format!("{name} cannot be had here: `{by_hand}`: {why}"))?;
        println!("installing {name} took {:.1} s", start.elapsed().as_secs_f64());
        if self.is_there(root) { Ok(()) } else { Err(format!("{name} was installed and does not work")) }
    }

    fn install(self, root: &Path) -> Result<(), String> {
        match self {
            // Versions that the toolchain of rust-toolchain.toml can build; without what lets nextest update itself.
            Self::Nextest => install_tool(
                root,
                &["cargo-nextest@0.9.143", "--no-default-features", "--features", "default-no-update"],
            ),
            Self::Deny => install_tool(root, &["cargo-deny@0.20.2"]),
            Self::Mutants => install_tool(root, &["cargo-mutants@27.1.0"]),
            Self::Miri => {
                let rustup = |args: &[&str]| done(Command::new("rustup").args(args));
                // A nightly that is there stays as it is.
                if succeeds(&mut nightly(root, &["--version"])) {
                    rustup(&["component", "add", "--toolchain", "nightly", "miri", "rust-src"])
                } else {
                    let components = ["--profile", "minimal", "--component", "miri,rust-src"];
                    rustup(
                        &[&["toolchain", "install", "nightly", "--no-self-update"][..], &components].concat(),
                    )
                }
            }
            Self::Chromium => apt(&["chromium", "chromium-driver", "iproute2"]),
            Self::Cbindgen => install_tool(root, &["cbindgen@0.29.4"]),
            Self::Compiler => apt(&["gcc", "libc6-dev"]),
            Self::Gcc => apt(&["gcc", "g++"]),
            Self::Clang => apt(&["clang", "libclang-rt-dev"]),
            Self::PkgConfig => apt(&["pkg-config"]),
            Self::Valgrind => apt(&["valgrind"]),
            Self::Python => apt(&["python3", "python3-venv"]),
            Self::Musl => {
                done(Command::new("rustup").args(["target", "add", MUSL]))?;
                apt(&["musl-tools"])
            }
            Self::CargoDeb => install_tool(root, &["cargo-deb@3.8.0"]),
            Self::Debootstrap => apt(&["debootstrap"]),
            Self::Busybox => apt(&["busybox-static"]),
            Self::ImageTools => apt(&["skopeo", "umoci"]),
            Self::Peers => apt(&["redis-server", "etcd-server", "postgresql", "zookeeper"]),
            Self::Lockers => apt(&["ctdb", "stress-ng", "sqlite3", "python3", "libpython3.11-testsuite"]),
            Self::Ip => apt(&["iproute2"]),
            Self::Nft => apt(&["nftables"]),
        }
    }
}

/// Where that package has it.
pub(crate) const BUSYBOX: &str = "/bin/busybox";

/// What the static program is built for.
const MUSL: &str = "x86_64-unknown-linux-musl";

fn apt(packages: &[&str]) -> Result<(), String> {
    let mut apt = Command::new("apt-get");
    // At this run level no service is started by being installed.
    apt.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1").arg("--quiet=2");
    done(Command::new("apt-get").args(["--quiet=2", "update"]))?;
    done(apt.args(["--yes", "--no-install-recommends", "install"]).args(packages))
}

/// Prints what is there and what is missing, and gets that if it `may`.
pub(crate) fn report(root: &Path, may: bool) -> ExitCode {
    let mut missing = 0;
    for need in Need::ALL {
        match need.get(root, may) {
            Ok(()) => println!("ok       {}", need.name()),
            Err(why) => {
                println!("missing  {why}");
                missing += 1;
            }
        }
    }
    match crate::soft_roce::prerequisites() {
        Ok(()) => println!("ok       what `cargo xtask soft-roce` starts from; it fetches the rest itself"),
        Err(why) => {
            println!("missing  for soft-RoCE: {why}");
            missing += 1;
        }
    }
    if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The project's folder among the user's caches: a fresh clone finds there what an earlier one fetched. In `root` if there is
/// no such place.
pub(crate) fn cache(root: &Path) -> PathBuf {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    caches.unwrap_or_else(|| root.join("target")).join("lockwright")
}

/// Where cargo's tools are put.
pub(crate) fn tools(root: &Path) -> PathBuf {
    cache(root).join("tools")
}

/// A command of the nightly toolchain's cargo. `+nightly` is understood by rustup's cargo, not by a toolchain's own.
pub(crate) fn nightly(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").arg("+nightly").args(args);
    command
}

/// Whether the user may change the system.
pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn install_tool(root: &Path, what: &[&str]) -> Result<(), String> {
    let mut cargo = crate::steps::command(root, &["install", "--quiet", "--locked", "--debug", "--root"]);
    let build = root.join("target").join("tools");
    cargo.env("CARGO_TARGET_DIR", &build).env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    let installed = done(cargo.arg(tools(root)).args(what));
    let _ = std::fs::remove_dir_all(build);
    installed
}

/// Runs the command.
///
/// # Errors
/// The last line of what it said, if it failed.
pub(crate) fn done(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim().to_owned())
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
