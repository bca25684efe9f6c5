//! Processes that lock as they are told, and what the kernel says of their locks.

use crate::PATIENCE;
use lockwright_posix::waits::Waiter;
use lockwright_posix::{Extent, Kind};
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

const FILE: &str = "LOCKWRIGHT_KERNEL_FILE";
/// Bytes of the file, and where every descriptor stands in it.
pub(crate) const SIZE: i64 = 100;
pub(crate) const POSITION: i64 = 50;
fn open(path: &Path) -> File {
    let mut file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(POSITION as u64)).unwrap();
    file
}

/// Descriptors 0 and 1 were opened, 2 is another one of 0's description.
fn open_all(path: &Path) -> [File; 3] {
    let first = open(path);
    let dup = first.try_clone().unwrap();
    [first, open(path), dup]
}

fn flock(kind: &str, whence: &str, start: &str, len: &str) -> libc::flock {
    libc::flock {
        l_type: match kind {
            "r" => libc::F_RDLCK,
            "w" => libc::F_WRLCK,
            _ => libc::F_UNLCK,
        } as i16,
        l_whence: whence.parse().unwrap(),
        l_start: start.parse().unwrap(),
        l_len: len.parse().unwrap(),
        l_pid: 0,
    }
}

fn number(outcome: Result<i32, nix::Error>) -> String {
    outcome.map_or_else(|error| (error as i32).to_string(), |_| "0".to_owned())
}

/// What a worker does for a line.
fn obey(files: &mut [File; 3], path: &Path, line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let file = &files[words[1].parse::<usize>().unwrap()];
    match words[..] {
        ["set", _, kind, whence, start, len] => {
            number(fcntl(file, FcntlArg::F_SETLK(&flock(kind, whence, start, len))))
        }
        ["wait", _, kind, whence, start, len] => {
            number(fcntl(file, FcntlArg::F_SETLKW(&flock(kind, whence, start, len))))
        }
        ["ofd", _, kind, whence, start, len] => {
            number(fcntl(file, FcntlArg::F_OFD_SETLK(&flock(kind, whence, start, len))))
        }
        [get @ ("get" | "ofdget"), _, kind, whence, start, len] => {
            let mut lock = flock(kind, whence, start, len);
            let ask =
                if get == "get" { FcntlArg::F_GETLK(&mut lock) } else { FcntlArg::F_OFD_GETLK(&mut lock) };
            match number(fcntl(file, ask)).as_str() {
                "0" if i32::from(lock.l_type) == libc::F_UNLCK => "0 free".to_owned(),
                "0" => {
                    let kind = if i32::from(lock.l_type) == libc::F_RDLCK { "r" } else { "w" };
                    format!("0 {kind} {} {} {}", lock.l_start, lock.l_len, lock.l_pid)
                }
                error => error.to_owned(),
            }
        }
        ["flock", _, kind] => {
            let taken = match kind {
                "r" => file.try_lock_shared(),
                "w" => file.try_lock(),
                _ => file.unlock().map_err(TryLockError::Error),
            };
            match taken {
                Ok(()) => "0".to_owned(),
                Err(TryLockError::WouldBlock) => libc::EAGAIN.to_string(),
                Err(TryLockError::Error(error)) => error.raw_os_error().unwrap_or(-1).to_string(),
            }
        }
        ["close", "0"] => {
            let [first, _, dup] = open_all(path);
            (files[0], files[2]) = (first, dup);
            "0".to_owned()
        }
        ["close", "1"] => {
            files[1] = open(path);
            "0".to_owned()
        }
        ["close", "2"] => {
            let other = files[0].try_clone().unwrap();
            files[2] = other;
            "0".to_owned()
        }
        _ => panic!("{line}"),
    }
}

/// A process of its own, if it was told to be one.
#[test]
fn worker() {
    let Some(path) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let mut files = open_all(&path);
    for line in std::io::stdin().lines() {
        let answer = obey(&mut files, &path, &line.unwrap());
        println!("\n= {answer}");
        std::io::stdout().flush().unwrap();
    }
}

pub(crate) struct Worker {
    pub(crate) child: Child,
    says: ChildStdin,
    pub(crate) hears: Receiver<String>,
    /// What it waits for.
    pub(crate) waits: Option<(Waiter, Extent, Kind)>,
}

impl Worker {
    pub(crate) fn new(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "workers::worker", "--nocapture"])
            .env(FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (send, hears) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix("= ") {
                    let _ = send.send(answer.to_owned());
                }
            }
        });
        Self { says: child.stdin.take().unwrap(), child, hears, waits: None }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.says, "{line}").unwrap();
    }

    pub(crate) fn hear(&self) -> String {
        self.hears.recv_timeout(PATIENCE).expect("an answer of the kernel's")
    }

    /// Its wait as [`kernel_locks`] says it.
    pub(crate) fn wait_line(&self) -> Option<String> {
        let (_, extent, kind) = self.waits?;
        Some(lock_line("-> POSIX", kind, i64::from(self.child.id()), extent))
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A lock as [`kernel_locks`] says it.
pub(crate) fn lock_line(what: &str, kind: Kind, pid: i64, extent: Extent) -> String {
    let mode = if kind == Kind::Read { "READ" } else { "WRITE" };
    let last = if extent.end == Extent::END { "EOF".to_owned() } else { (extent.end - 1).to_string() };
    format!("{what} {mode} {pid} {} {last}", extent.start)
}

/// The locks and waiters in `/proc/locks` of the file that it calls `name`.
pub(crate) fn kernel_locks(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/locks").unwrap();
    let line = |line: &str| {
        let (words, waits) = (line.split_whitespace().skip(1), line.contains("->"));
        let words: Vec<_> = words.filter(|word| *word != "->").collect();
        let [what, _, mode, pid, file, first, last] = words[..] else { return None };
        let waits = if waits { "-> " } else { "" };
        (file == name).then(|| format!("{waits}{what} {mode} {pid} {first} {last}"))
    };
    let mut locks: Vec<_> = text.lines().filter_map(line).collect();
    locks.sort();
    locks
}
