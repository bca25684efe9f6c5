//! A program that knows nothing of us, on a mount and on the folder below it: the kernel says what every answer must be. Skipped
//! where nothing can be mounted.

#![cfg(target_os = "linux")]

use lockwright::Client;
use lockwright_mount::{MountOptions, Mounted, Unmounted};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For a program that waits for what never comes, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn compiled(place: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../posix/tests/locks.c");
    let program = place.join("locks");
    let mut cc = Command::new("cc");
    let output = cc.args(["-std=gnu11", "-pthread"]).arg(source).arg("-o").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn said(program: &Path, what: &str, folder: &Path) -> String {
    fs::create_dir_all(folder).unwrap();
    let mut command = Command::new(program);
    let mut child =
        command.args([what]).arg(folder).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let ended = ends(&mut child);
    if !ended {
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(ended && output.status.success(), "{}, after it said:\n{said}", output.status);
    said
}

fn ends(child: &mut Child) -> bool {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn every_answer_on_a_mount_is_the_kernels() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err()
        || !rustix::process::geteuid().is_root()
    {
        println!("skipped: only root mounts here, and with /dev/fuse");
        return;
    }
    let place = PathBuf::from(format!("/dev/shm/lockwright-answers-{}", std::process::id()));
    let (source, at) = (place.join("source"), place.join("mount"));
    fs::create_dir_all(&source).unwrap();
    fs::create_dir(&at).unwrap();
    let program = compiled(&place);
    let options = MountOptions {
        source: source.clone(),
        at: at.clone(),
        space: format!("shm:{}", place.join("space").display()),
        name: None,
        passthrough: true,
        allow_other: true,
        cache: Duration::ZERO,
    };
    let mounted = Mounted::new(&options, &Client::options()).expect("root mounts");
    let pairs = ["same", "differs"]
        .map(|what| (said(&program, what, &source.join("kernel")), said(&program, what, &at.join("ours"))));
    let unmounted = mounted.unmount();
    let _ = nix::mount::umount2(&at, nix::mount::MntFlags::MNT_DETACH);
    fs::remove_dir_all(&place).unwrap();
    for (kernels, ours) in pairs {
        // FUSE does not say that it asks for a description: the process that took its lock is named.
        let kernels = kernels.replace(", a description's,", ", ours,");
        let mut story = "";
        for (kernels, ours) in kernels.lines().zip(ours.lines()) {
            story = kernels.strip_prefix("== ").unwrap_or(story);
            assert_eq!(ours, kernels, "of {story}: ours, and the kernel's");
        }
        assert_eq!(ours.lines().count(), kernels.lines().count());
    }
    assert_eq!(unmounted.unwrap(), Unmounted::Clean);
}
