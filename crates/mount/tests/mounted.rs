//! Real mounts on this machine's kernel: files that are passed through, and locks that exclude each other across mounts. Where
//! there is no FUSE, or it may not be used, every test says that it was skipped.

use lockwright::Client;
use lockwright_mount::{MountError, MountOptions, Mounted, Unmounted};
use lockwright_server::{Server, ServerOptions};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of the test's own, gone with it.
struct Place(PathBuf);

impl Place {
    /// `None` if nothing can be mounted here.
    fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let is_root = rustix::process::geteuid().is_root();
        if File::options().read(true).write(true).open("/dev/fuse").is_err() || !is_root {
            println!("skipped: only root mounts here, and with /dev/fuse");
            return None;
        }
        let name = format!("lockwright-mount-{}-{}", std::process::id(), NUMBER.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::create_dir(path.join("source")).unwrap();
        // Every user may enter, whatever mask the test runs under.
        for path in [&path, &path.join("source")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Some(Self(path))
    }

    fn space(&self) -> String {
        format!("shm:{}", self.0.join("space").display())
    }

    fn source(&self) -> PathBuf {
        self.0.join("source")
    }

    fn options(&self, at: &str, space: &str) -> MountOptions {
        let _ = fs::create_dir(self.0.join(at));
        MountOptions {
            source: self.source(),
            at: self.0.join(at),
            space: space.to_owned(),
            name: (!space.starts_with("shm:")).then(|| "files".to_owned()),
            passthrough: true,
            allow_other: true,
            cache: Duration::ZERO,
        }
    }

    fn mount(&self, at: &str, space: &str) -> Mounted {
        mount(&self.options(at, space))
    }
}

fn mount(options: &MountOptions) -> Mounted {
    Mounted::new(options, &Client::options()).expect("root mounts")
}

impl Drop for Place {
    fn drop(&mut self) {
        for at in ["one", "two"] {
            let _ = nix::mount::umount2(&self.0.join(at), nix::mount::MntFlags::MNT_DETACH);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(path: impl AsRef<Path>) -> File {
    File::options().create(true).truncate(false).read(true).write(true).open(path).unwrap()
}

fn range(file: &File, kind: i32, start: i64, len: i64) -> Result<(), Errno> {
    let asked = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&asked))
        .map(drop)
        .map_err(|error| Errno::from_raw_os_error(error as i32))
}

/// Held while a process is started. Until it runs its own program it has every file open that this one has open then, and what
/// is mounted is in use.
static STARTING: Mutex<()> = Mutex::new(());

fn start(command: &mut Command) -> Child {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

/// Unmounts what has no open file: nor has any process that another test is about to start.
fn unmount_unused(mounted: &Mounted) {
    let _none_starts = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Clean);
}

/// Whether a process sleeps in this system call.
fn sleeps_in(child: &Child, call: i64) -> bool {
    let found = fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap();
    found.split(' ').next() == Some(&call.to_string())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn files_are_passed_through_by_the_kernel_and_without_it() {
    let Some(place) = Place::new() else { return };
    for passthrough in [true, false] {
        let mounted = mount(&MountOptions { passthrough, ..place.options("one", &place.space()) });
        let (at, source) = (mounted.at().to_owned(), place.source());
        let big: Vec<u8> = (0..3_000_000_u32).map(|byte| (byte % 251) as u8).collect();
        fs::write(at.join("big"), &big).unwrap();
        assert_eq!(fs::read(source.join("big")).unwrap(), big);
        assert_eq!(fs::read(at.join("big")).unwrap(), big);
        // What others write below is seen at once.
        fs::write(source.join("big"), b"short").unwrap();
        assert_eq!(fs::metadata(at.join("big")).unwrap().len(), 5);
        assert_eq!(fs::read(at.join("big")).unwrap(), b"short");
        let file = File::options().append(true).open(at.join("big")).unwrap();
        File::options().append(true).open(source.join("big")).unwrap().write_at(b" and", 0).unwrap();
        std::io::Write::write_all(&mut &file, b" long").unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(source.join("big")).unwrap(), b"short and long");
        drop(file);

        let file = open(at.join("sparse"));
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"here", 1 << 19).unwrap();
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
        assert!(data > 0 && data <= 1 << 19, "{data}");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 21).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 21);
        let (mut from, mut to, copy) = (1 << 19, 0, open(at.join("copy")));
        assert_eq!(rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 4).unwrap(), 4);
        assert_eq!(fs::read(source.join("copy")).unwrap(), b"here");
        drop((file, copy));

        fs::create_dir(at.join("folder")).unwrap();
        fs::rename(at.join("copy"), at.join("folder/copy")).unwrap();
        fs::hard_link(at.join("folder/copy"), at.join("link")).unwrap();
        let (link, copy) =
            (fs::metadata(at.join("link")).unwrap(), fs::metadata(at.join("folder/copy")).unwrap());
        assert_eq!((link.ino(), link.nlink()), (copy.ino(), 2));
        symlink("folder/copy", at.join("symlink")).unwrap();
        assert_eq!(fs::read_link(at.join("symlink")).unwrap(), Path::new("folder/copy"));
        assert_eq!(fs::read(at.join("symlink")).unwrap(), b"here");
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        let (link, big) = (at.join("link"), at.join("big"));
        rustix::fs::renameat_with(rustix::fs::CWD, &link, rustix::fs::CWD, &big, exchange).unwrap();
        assert_eq!(fs::read(source.join("big")).unwrap(), b"here");
        assert_eq!(
            fs::remove_dir(at.join("folder")).unwrap_err().kind(),
            std::io::ErrorKind::DirectoryNotEmpty
        );

        fs::set_permissions(&big, fs::Permissions::from_mode(0o640)).unwrap();
        let long_ago = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
        File::options().write(true).open(&big).unwrap().set_modified(long_ago).unwrap();
        let below = fs::metadata(source.join("big")).unwrap();
        assert_eq!((below.mode() & 0o7777, below.modified().unwrap()), (0o640, long_ago));
        rustix::fs::setxattr(&big, "user.colour", b"green", rustix::fs::XattrFlags::empty()).unwrap();
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(source.join("big"), "user.colour", &mut value).unwrap();
        assert_eq!(&value[..len], b"green");
        rustix::fs::removexattr(&big, "user.colour").unwrap();
        assert_eq!(rustix::fs::getxattr(&big, "user.colour", &mut value), Err(Errno::NODATA));

        // More than one answer of the kernel's has.
        let names: Vec<_> = (0..700).map(|number| format!("{number}-{}", "n".repeat(number % 200))).collect();
        names.iter().for_each(|name| fs::write(at.join("folder").join(name), name).unwrap());
        let listed = fs::read_dir(at.join("folder")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut listed: Vec<_> = listed.map(|name| name.into_string().unwrap()).collect();
        listed.sort();
        let mut expected: Vec<_> = names.into_iter().chain(["copy".to_owned()]).collect();
        expected.sort();
        assert_eq!(listed, expected);
        fs::remove_dir_all(at.join("folder")).unwrap();
        for name in ["big", "link", "symlink", "sparse"] {
            fs::remove_file(at.join(name)).unwrap();
        }
        assert_eq!(fs::read_dir(&source).unwrap().count(), 0);
        unmount_unused(&mounted);
        assert!(mounted.wait(PATIENCE), "it ends");
    }
}

#[test]
fn other_users_have_the_rights_that_they_have_below_and_own_what_they_make() {
    const NOBODY: u32 = 65534;
    let Some(place) = Place::new() else { return };
    let mounted = place.mount("one", &place.space());
    let at = mounted.at();
    fs::write(at.join("secret"), "s").unwrap();
    fs::set_permissions(at.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(at.join("free")).unwrap();
    fs::set_permissions(at.join("free"), fs::Permissions::from_mode(0o777)).unwrap();
    let as_nobody = |script: &str| {
        let mut shell = Command::new("sh");
        start(shell.args(["-c", script]).current_dir(at).uid(NOBODY).gid(NOBODY)).wait().unwrap().success()
    };
    assert!(!as_nobody("cat secret 2>/dev/null"));
    assert!(!as_nobody("echo > new 2>/dev/null"));
    assert!(as_nobody("umask 027; echo mine > free/file; mkdir free/folder; ln -s x free/link"));
    for (name, mode) in [("file", 0o640), ("folder", 0o750), ("link", 0o777)] {
        let made = fs::symlink_metadata(place.source().join("free").join(name)).unwrap();
        assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (NOBODY, NOBODY, mode), "{name}");
    }
    assert!(as_nobody("chmod 600 free/file && ! chown root free/file 2>/dev/null"));
}

fn locks_exclude_each_other(one: &Mounted, two: &Mounted) {
    let [first, second] = [one, two].map(|mounted| open(mounted.at().join("file")));
    range(&first, libc::F_WRLCK, 0, 10).unwrap();
    assert_eq!(range(&second, libc::F_RDLCK, 9, 1), Err(Errno::AGAIN));
    range(&second, libc::F_WRLCK, 10, 10).unwrap();
    range(&first, libc::F_RDLCK, 0, 10).unwrap();
    range(&second, libc::F_RDLCK, 0, 10).unwrap();
    assert_eq!(range(&first, libc::F_WRLCK, 0, 10), Err(Errno::AGAIN));
    assert_eq!(range(&first, libc::F_RDLCK, 15, 1), Err(Errno::AGAIN));
    // Flocks and record locks know nothing of each other.
    second.try_lock().unwrap();
    assert!(first.try_lock().is_err());
    assert!(first.try_lock_shared().is_err());
    // With its last descriptor, all that a description had goes.
    drop(second);
    until("the closed description's locks are free", || range(&first, libc::F_WRLCK, 0, 0).is_ok());
    until("and its flock", || first.try_lock().is_ok());
}

#[test]
fn locks_of_two_mounts_over_shared_memory_exclude_each_other() {
    let Some(place) = Place::new() else { return };
    let [one, two] = ["one", "two"].map(|at| place.mount(at, &place.space()));
    locks_exclude_each_other(&one, &two);
}

#[test]
fn locks_of_two_mounts_over_tcp_exclude_each_other_and_fail_when_the_server_is_gone() {
    let Some(place) = Place::new() else { return };
    let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    let space = format!("tcp://{}/files", server.address());
    let [one, two] = ["one", "two"].map(|at| place.mount(at, &space));
    locks_exclude_each_other(&one, &two);
    let file = open(one.at().join("file"));
    range(&file, libc::F_WRLCK, 0, 10).unwrap();
    drop(server);
    assert_eq!(range(&file, libc::F_WRLCK, 20, 10), Err(Errno::NOLCK));
    assert_eq!(range(&open(two.at().join("other")), libc::F_WRLCK, 0, 1), Err(Errno::NOLCK));
    fs::write(one.at().join("file"), "files go on").unwrap();
}

#[test]
fn requests_that_wait_hold_up_nobody_and_get_their_lock_in_the_end() {
    const WAITERS: usize = 60;
    let Some(place) = Place::new() else { return };
    let mounted = place.mount("one", &place.space());
    let path = mounted.at().join("file");
    let held = open(&path);
    held.lock().unwrap();
    let granted = AtomicU32::new(0);
    std::thread::scope(|threads| {
        let wait = || {
            open(&path).lock().unwrap();
            granted.fetch_add(1, SeqCst);
        };
        (0..WAITERS).for_each(|_| drop(threads.spawn(wait)));
        for turn in 0..500 {
            fs::write(mounted.at().join("other"), turn.to_string()).unwrap();
        }
        assert_eq!(granted.load(SeqCst), 0);
        held.unlock().unwrap();
    });
    assert_eq!(granted.load(SeqCst) as usize, WAITERS);
}

#[test]
fn a_program_that_waits_can_be_killed() {
    let Some(place) = Place::new() else { return };
    // Waits for a holder on the same mount end in another way than for one elsewhere.
    let [one, two] = ["one", "two"].map(|at| place.mount(at, &place.space()));
    let held = open(one.at().join("file"));
    held.lock().unwrap();
    for at in [one.at(), two.at()] {
        let mut waiter = start(Command::new("sh").args(["-c", "exec 9<file; exec flock 9"]).current_dir(at));
        until("it waits", || sleeps_in(&waiter, libc::SYS_flock));
        waiter.kill().unwrap();
        until("it is gone", || waiter.try_wait().unwrap().is_some());
    }
    held.unlock().unwrap();
    until("who was killed has got nothing", || open(two.at().join("file")).try_lock().is_ok());
}

#[test]
fn what_is_in_use_is_out_of_sight_and_ends_with_its_last_file() {
    let Some(place) = Place::new() else { return };
    let mounted = place.mount("one", &place.space());
    let file = open(mounted.at().join("file"));
    assert_eq!(mounted.unmount().unwrap(), Unmounted::InUse);
    assert!(!mounted.at().join("file").exists());
    file.write_all_at(b"still here", 0).unwrap();
    range(&file, libc::F_WRLCK, 0, 10).unwrap();
    drop(file);
    assert!(mounted.wait(PATIENCE), "it ends");
    assert_eq!(fs::read(place.source().join("file")).unwrap(), b"still here");
}

#[test]
fn what_cannot_be_mounted_is_refused_in_one_line() {
    let Some(place) = Place::new() else { return };
    let good = place.options("one", &place.space());
    let refused = |options: &MountOptions| {
        let error = Mounted::new(options, &Client::options()).expect_err("it is refused");
        assert!(!error.to_string().contains('\n'), "{error}");
        error
    };
    let bad = |name: Option<&str>| MountOptions { name: name.map(str::to_owned), ..good.clone() };
    for name in ["", "a b", "a\nb", &"n".repeat(65)] {
        assert!(matches!(refused(&bad(Some(name))), MountError::Name(_)), "{name:?}");
    }
    let nameless = MountOptions { space: "tcp://127.0.0.1:1/x".to_owned(), ..good.clone() };
    assert!(matches!(refused(&nameless), MountError::Nameless(_)));
    let unreachable = MountOptions { name: Some("n".to_owned()), ..nameless };
    assert!(matches!(refused(&unreachable), MountError::Space(_)));
    fs::create_dir(place.source().join("inside")).unwrap();
    let inside = MountOptions { at: place.source().join("inside"), ..good.clone() };
    assert!(matches!(refused(&inside), MountError::Folder { .. }));
    let nowhere = MountOptions { source: place.0.join("nowhere"), ..good.clone() };
    assert!(matches!(refused(&nowhere), MountError::Folder { .. }));
    // And nothing is left mounted.
    unmount_unused(&mount(&good));
    // A folder can be mounted in its own place.
    fs::write(place.source().join("file"), "x").unwrap();
    let own = mount(&MountOptions { at: place.source(), ..good });
    assert_eq!(fs::read(own.at().join("file")).unwrap(), b"x");
    open(own.at().join("file")).try_lock().unwrap();
    drop(own);
}
