//! Boots the machine without KVM, shows its console as it goes, and gives back all it said.

use super::image::{kernel_version, library_path};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A machine that has not powered off by then hangs.
const PATIENCE: Duration = Duration::from_secs(1500);

/// Runs the machine to its end, or to the end of patience.
///
/// # Errors
/// If qemu cannot be started.
pub(super) fn boot(cache: &Path, tree: &Path, initrd: &Path) -> Result<String, String> {
    let kernel = tree.join("boot").join(format!("vmlinuz-{}", kernel_version(tree)?));
    let mut qemu = Command::new(tree.join("usr/bin/qemu-system-x86_64"));
    qemu.env("LD_LIBRARY_PATH", library_path(tree));
    for folder in ["usr/share/qemu", "usr/share/seabios"] {
        qemu.arg("-L").arg(tree.join(folder));
    }
    // Soft-RoCE reads memory with the kernel's memcpy. On a CPU that says it is good at copying bytes, that is a loop over
    // bytes, which the emulation really makes byte by byte, and a READ of a word beside an atomic could see half of it.
    let cpu = "max,erms=off,fsrm=off";
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "2", "-m", "1024", "-nic", "none"]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
    qemu.args([
        "-append",
        "console=ttyS0 panic=-1 quiet",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-no-reboot",
    ]);
    let mut machine = qemu
        .current_dir(cache)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start qemu: {error}"))?;
    let console = machine.stdout.take().ok_or("qemu has no console")?;
    let (line_of, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            if line_of.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    let (start, mut log) = (Instant::now(), String::new());
    loop {
        let left = PATIENCE.saturating_sub(start.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                println!("  {}", line.trim_end());
                log.push_str(&line);
                log.push('\n');
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                println!("  the machine hangs");
                let _ = machine.kill();
                break;
            }
        }
    }
    let _ = machine.wait();
    Ok(log)
}
