//! Record locks of existing programs: under the preloaded library beside the kernel's, on a mount beside a bare FUSE round trip,
//! and data of a mount beside that of the folder below.
//!
//! Every process is this program: one calls `fcntl` with the library loaded, one without, and one is the mount.

use super::bare;
use super::measure::{Runs, median};
use super::partner::{Partner, ready};
use super::shm::Place;
use super::{Bound, Row};
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Locks of one run.
const CYCLES: u32 = 1_000;
/// What is written and read at a time, and in all.
const BLOCK: usize = 128 << 10;
const BLOCKS: u32 = 256;
const LIBRARY: &str = "liblockwright_posix_preload.so";

/// The rows, and for what there is none, why.
pub(super) fn rows(place: &Place, runs: &Runs, library: Option<&PathBuf>) -> Result<(Vec<Row>, Vec<String>)> {
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    let beside = std::env::current_exe()?.with_file_name(LIBRARY);
    let library = library.unwrap_or(&beside);
    if library.exists() {
        rows.push(preload(place, runs, library)?);
    } else {
        let how = "`cargo build --release -p lockwright-preload` makes it, --preload says where it is";
        skipped.push(format!("the preloaded library: there is no {} ({how})", library.display()));
    }
    match Mount::start(place)? {
        Ok(mount) => rows.extend(mounted(&mount, runs)?),
        Err(why) => skipped.push(format!("the mount: {why}")),
    }
    Ok((rows, skipped))
}

fn preload(place: &Place, runs: &Runs, library: &Path) -> Result<Row> {
    let ours = place.path().join("preload");
    let kernels = place.path().join("kernel");
    for path in [&ours, &kernels] {
        File::create(path).context("a file to lock")?;
    }
    let environment = [
        ("LD_PRELOAD", library.as_os_str()),
        ("LOCKWRIGHT_POSIX", ours.as_os_str()),
        ("LOCKWRIGHT_SPACE", place.space.as_ref()),
    ];
    let mut with = Partner::start_with("fcntl", &ours.to_string_lossy(), 0, environment)?;
    let mut without = Partner::start_with("fcntl", &kernels.to_string_lossy(), 0, [])?;
    // The kernel must know nothing of what the library has locked.
    with.ask("hold")?;
    let free = bare::try_ofd(&File::options().write(true).open(&ours)?);
    ensure!(free, "{} is not in effect here (a static program?)", library.display());
    with.ask("free")?;
    let mut times = [Vec::new(), Vec::new()];
    for run in 0..=runs.runs {
        for (partner, times) in [&mut with, &mut without].into_iter().zip(&mut times) {
            let ns: f64 =
                partner.ask("run")?.trim().parse().context("the other process says how long it took")?;
            if run > 0 {
                times.push(ns);
            }
        }
    }
    let [ns, other_ns] = times.map(median);
    with.end()?;
    without.end()?;
    Ok(Row {
        what: "preloaded fcntl, lock and unlock",
        ns,
        against: "the kernel's fcntl",
        other_ns,
        bound: Bound::Faster(3.0),
        made_of: "the descriptor looked up, the file's table, a range lock of the space",
    })
}

/// The other process's part: locks the file whenever it is told to.
pub(super) fn partner(path: &str, core: usize) -> Result<()> {
    bare::pin(core);
    let mut out = ready()?;
    let file = File::options().read(true).write(true).open(path)?;
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "hold" => bare::record_lock(&file, true),
            "free" => bare::record_lock(&file, false),
            "run" => {
                let began = Instant::now();
                (0..CYCLES).for_each(|_| record_cycle(&file));
                write!(out, "{}", began.elapsed().as_nanos() as f64 / f64::from(CYCLES))?;
            }
            other => bail!("no such part: {other}"),
        }
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}

fn record_cycle(file: &File) {
    bare::record_lock(file, true);
    bare::record_lock(file, false);
}

/// A mount of the bench's own, gone with it.
struct Mount {
    child: Child,
    source: PathBuf,
    at: PathBuf,
}

impl Mount {
    /// Or why there is none.
    fn start(place: &Place) -> Result<Result<Self, String>> {
        let [source, at] = ["source", "mount"].map(|name| place.path().join(name));
        for folder in [&source, &at] {
            std::fs::create_dir(folder)?;
        }
        let mut child = Command::new(std::env::current_exe()?)
            .args(["mount", "--space", &place.space_named("mounted")])
            .args([&source, &at])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the mount")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("it has an output")?).read_line(&mut line)?;
        if !line.is_empty() {
            return Ok(Ok(Self { child, source, at }));
        }
        let mut complaint = String::new();
        child.stderr.take().context("it has an output")?.read_to_string(&mut complaint)?;
        child.wait()?;
        Ok(Err(complaint.trim().trim_start_matches("error: ").to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let ended = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        if ended.is_ok() {
            let _ = self.child.wait();
        }
    }
}

fn mounted(mount: &Mount, runs: &Runs) -> Result<Vec<Row>> {
    let open = |folder: &Path| {
        let path = folder.join("file");
        File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .context("a file to lock")
    };
    let (below, file) = (open(&mount.source)?, open(&mount.at)?);
    let [lock_ns, trips_ns] = runs.take_turns([
        (CYCLES / 4, &mut || record_cycle(&file)),
        (CYCLES / 4, &mut || {
            for _ in 0..2 {
                let _ = file.metadata().expect("it is open");
            }
        }),
    ]);
    let block = vec![7; BLOCK];
    let write = |file: &File| {
        for index in 0..BLOCKS {
            file.write_all_at(&block, u64::from(index) * BLOCK as u64).expect("there is room");
        }
    };
    let read = |file: &File| {
        let mut block = vec![0; BLOCK];
        for index in 0..BLOCKS {
            file.read_exact_at(&mut block, u64::from(index) * BLOCK as u64).expect("it was written");
        }
    };
    let few = Runs { runs: runs.runs / 4, plays: 0, floods: 0 };
    let [write_below, write_ns, read_below, read_ns] = few.take_turns([
        (1, &mut || write(&below)),
        (1, &mut || write(&file)),
        (1, &mut || read(&below)),
        (1, &mut || read(&file)),
    ]);
    let row =
        |what, ns, against, other_ns, bound, made_of| Row { what, ns, against, other_ns, bound, made_of };
    const LOCK: &str = "two FUSE round trips, the file's table, a range lock of the space";
    Ok(vec![
        row(
            "record lock on a mount, and unlock",
            lock_ns,
            "two fstat on it",
            trips_ns,
            Bound::AtMost(2.0),
            LOCK,
        ),
        row("32 MiB written on a mount", write_ns, "the same below", write_below, Bound::Shown, ""),
        row("32 MiB read on a mount", read_ns, "the same below", read_below, Bound::Shown, ""),
    ])
}
