//! The initial RAM disk: busybox, the programs with the libraries they link, soft-RoCE's modules, and a script that sets
//! up two soft-RoCE devices and runs the programs one after the other.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Program;

/// Kernel modules; what they depend on comes with them.
const MODULES: [&str; 6] = ["crc32_generic", "crc32c_intel", "ib_uverbs", "rdma_cm", "rdma_rxe", "veth"];

/// How long one program may take inside the machine, in seconds.
const PATIENCE: u32 = 600;

/// Makes the disk and returns its path.
///
/// # Errors
/// In one line.
pub(super) fn make(cache: &Path, tree: &Path, programs: &[Program]) -> Result<PathBuf, String> {
    let disk = cache.join("disk");
    let _ = fs::remove_dir_all(&disk);
    for folder in
        ["bin", "lib/modules", "lib64", "proc", "sys", "dev", "tmp", "run", "etc/libibverbs.d", "programs"]
    {
        fs::create_dir_all(disk.join(folder)).map_err(|error| error.to_string())?;
    }
    copy(&first(tree, &["bin/busybox", "usr/bin/busybox"])?, &disk.join("bin/busybox"))?;
    let mut linked = vec![
        (
            first(tree, &["bin/ip", "sbin/ip", "usr/bin/ip", "usr/sbin/ip"]).or_else(|_| host("ip"))?,
            disk.join("bin/ip"),
        ),
        (
            first(tree, &["bin/rdma", "sbin/rdma", "usr/bin/rdma", "usr/sbin/rdma"])
                .or_else(|_| host("rdma"))?,
            disk.join("bin/rdma"),
        ),
    ];
    for program in programs {
        let stripped = cache.join(&program.name);
        strip(&program.path, &stripped)?;
        linked.push((stripped, disk.join("programs").join(&program.name)));
    }
    let libraries = tree.join("usr/lib/x86_64-linux-gnu");
    let verbs = first(tree, &["usr/lib/x86_64-linux-gnu/libibverbs.so.1"])?;
    linked.push((verbs, disk.join("lib/libibverbs.so.1")));
    let providers = fs::read_dir(libraries.join("libibverbs")).map_err(|error| error.to_string())?;
    for provider in
        providers.flatten().map(|entry| entry.path()).filter(|path| name_of(path).starts_with("librxe"))
    {
        let place = format!("usr/lib/x86_64-linux-gnu/libibverbs/{}", name_of(&provider));
        linked.push((provider.clone(), disk.join(place)));
    }
    let mut needed = BTreeSet::new();
    for (from, to) in &linked {
        copy(from, to)?;
        needed.extend(libraries_of(from, tree)?);
    }
    for library in needed {
        let place = if name_of(&library).starts_with("ld-linux") { "lib64" } else { "lib" };
        copy(&library, &disk.join(place).join(name_of(&library)))?;
    }
    fs::write(disk.join("etc/libibverbs.d/rxe.driver"), "driver rxe\n").map_err(|error| error.to_string())?;
    let order = modules(tree, &disk)?;
    let names: Vec<_> =
        programs.iter().filter(|program| program.is_test).map(|program| program.name.clone()).collect();
    let init = disk.join("init");
    fs::write(&init, script(&order, &names)).map_err(|error| error.to_string())?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
    pack(cache, tree, &disk)
}

/// Copies a program without what only a debugger wants: the machine's memory is small, and its disk is unpacked at every boot.
fn strip(from: &Path, to: &Path) -> Result<(), String> {
    let stripped = Command::new("strip").arg("--strip-debug").arg("-o").arg(to).arg(from).status();
    if stripped.is_ok_and(|status| status.success()) { Ok(()) } else { copy(from, to) }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn first(tree: &Path, places: &[&str]) -> Result<PathBuf, String> {
    let found = places.iter().map(|place| tree.join(place)).find(|path| path.exists());
    found.ok_or_else(|| format!("{} is not among the packages", places[0]))
}

/// A program of the host: packages that the host has are not fetched again.
fn host(name: &str) -> Result<PathBuf, String> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.ok_or_else(|| format!("{name} is neither among the packages nor on this machine"))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    }
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

/// The shared libraries that `program` links, those of the packages before the host's.
fn libraries_of(program: &Path, tree: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", library_path(tree)).output();
    let output = output.map_err(|error| format!("cannot start ldd: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let paths = said.lines().filter_map(|line| {
        let path = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
        path.starts_with('/').then(|| PathBuf::from(path.split(" (").next().unwrap_or(path)))
    });
    Ok(paths.collect())
}

/// Where the packages keep their libraries, for the dynamic loader.
pub(super) fn library_path(tree: &Path) -> String {
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
        .map(|folder| tree.join(folder).display().to_string());
    folders.join(":")
}

/// Copies the modules and returns their names in the order in which they load.
fn modules(tree: &Path, disk: &Path) -> Result<Vec<String>, String> {
    let version = kernel_version(tree)?;
    let kmod = first(tree, &["bin/kmod", "usr/bin/kmod"]).or_else(|_| host("kmod"))?;
    // kmod goes by the name it is called by.
    let tools = disk.with_file_name("tools");
    fs::create_dir_all(&tools).map_err(|error| error.to_string())?;
    for tool in ["depmod", "modprobe"] {
        copy(&kmod, &tools.join(tool))?;
    }
    let run = |tool: &str, args: &[&str]| -> Result<String, String> {
        let output = Command::new(tools.join(tool)).args(args).stderr(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot start {tool}: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let base = tree.display().to_string();
    run("depmod", &["-b", &base, &version])?;
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        for line in run("modprobe", &["-d", &base, "-S", &version, "--show-depends", module])?.lines() {
            let Some(path) = line.strip_prefix("insmod ").map(str::trim) else { continue };
            let path = Path::new(path.split_whitespace().next().unwrap_or(path));
            if !order.contains(&name_of(path)) {
                copy(path, &disk.join("lib/modules").join(name_of(path)))?;
                order.push(name_of(path));
            }
        }
    }
    Ok(order)
}

/// The version of the kernel among the packages.
///
/// # Errors
/// If there is none.
pub(super) fn kernel_version(tree: &Path) -> Result<String, String> {
    let entries =
        fs::read_dir(tree.join("lib/modules")).map_err(|error| format!("no kernel was unpacked: {error}"))?;
    let mut versions: Vec<_> = entries.flatten().map(|entry| name_of(&entry.path())).collect();
    versions.sort();
    versions.pop().ok_or_else(|| "no kernel was unpacked".to_owned())
}

/// The first process of the machine. rxe0 and rxe1 sit on the two ends of a pair of virtual cables.
fn script(modules: &[String], programs: &[String]) -> String {
    let mut lines = vec![
        "#!/bin/busybox sh".to_owned(),
        "/bin/busybox --install -s /bin".to_owned(),
        "export PATH=/bin LD_LIBRARY_PATH=/lib RUST_BACKTRACE=1 LOCKWRIGHT_NEED_RDMA=1".to_owned(),
        "export LOCKWRIGHT_BIN=/programs/lockwright HOME=/tmp".to_owned(),
        "mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/shm"
            .to_owned(),
        "mount -t tmpfs shm /dev/shm; ulimit -l unlimited".to_owned(),
    ];
    lines.extend(modules.iter().map(|module| format!("insmod /lib/modules/{module} 2>/dev/null")));
    lines.extend(
        [
            "/bin/ip link set lo up",
            "/bin/ip link add v0 type veth peer name v1",
            "/bin/ip addr add 10.0.0.1/24 dev v0; /bin/ip addr add 10.0.1.1/24 dev v1",
            "/bin/ip link set v0 up; /bin/ip link set v1 up",
            "/bin/rdma link add rxe0 type rxe netdev v0",
            "/bin/rdma link add rxe1 type rxe netdev v1",
            "/bin/rdma link show",
        ]
        .map(str::to_owned),
    );
    for program in programs {
        lines.push(format!("echo; echo \"== {program}\""));
        lines.push(format!(
            "timeout {PATIENCE} /programs/{program} --test-threads 1 || echo \"{program} ended with $?\""
        ));
    }
    lines.push("sync; poweroff -f".to_owned());
    lines.join("\n") + "\n"
}

fn pack(cache: &Path, tree: &Path, disk: &Path) -> Result<PathBuf, String> {
    let initrd = cache.join("initrd.cpio");
    let cpio = first(tree, &["bin/cpio", "usr/bin/cpio"]).or_else(|_| host("cpio"))?;
    let line = format!(
        "cd '{}' && find . | '{}' --quiet -o -H newc > '{}'",
        disk.display(),
        cpio.display(),
        initrd.display()
    );
    let packed = Command::new("sh").args(["-c", &line]).status().map_err(|error| error.to_string())?;
    if packed.success() { Ok(initrd) } else { Err("the RAM disk cannot be packed".to_owned()) }
}
