//! What other users of the machine can put in the way (FIFOs, files and folders under names that they can guess), and
//! what the machine can (a full file system, other namespaces): one clear line, and nobody hangs.

#[path = "../../server/tests/loopback/mod.rs"]
mod loopback;
mod scratch;
mod started;

use lockwright::Client;
use lockwright::inspect::{Entry, Inspector};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use scratch::Scratch;
use started::Started;
use std::fs;
use std::io::{BufRead, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn user() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// `lockwright` with its files in `folder`. If it hangs it is killed, whatever it does about SIGTERM, and exits with 137.
fn lockwright(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "-s", "KILL", "30", env!("CARGO_BIN_EXE_lockwright")]).args(args);
    command.env("LOCKWRIGHT_DIR", folder).env_remove("LOCKWRIGHT_SPACE").env_remove("LOCKWRIGHT_SECRET_FILE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn one_line(output: &Output) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

/// A port that no other test has.
fn free_port() -> u16 {
    loopback::own_address().port()
}

/// Ends a server that is behind `timeout`.
fn stop(served: &Started) {
    let timeout = served.child.id();
    let children = fs::read_to_string(format!("/proc/{timeout}/task/{timeout}/children")).unwrap();
    let pid: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).unwrap();
}

#[test]
fn a_fifo_in_place_of_a_secret_or_its_lock_file_hangs_neither_client_nor_server() {
    let scratch = Scratch::new("fifo");
    let (port, user) = (free_port(), user());
    let folder = &scratch.folder;
    let trap = |name: String| mkfifo(&folder.join(name), Mode::from_bits_truncate(0o666)).unwrap();
    trap(format!("lockwright-{user}-serve-{port}.secret"));
    trap(format!("lockwright-{user}-serve-{port}.once"));
    trap(format!("lockwright-{user}-serve.lock"));
    let address = format!("tcp://127.0.0.1:{port}");
    let nobody = lockwright(folder, &["ls", "--space", &address]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2), "no server is there: {nobody:?}");
    let listen = format!("127.0.0.1:{port}");
    let serve = ["serve", "--state", "none", "--listen", &listen, "--export", "shm:x"];
    let served = Started::new(lockwright(folder, &serve));
    assert!(served.line.starts_with("listening"), "{}", served.line);
    let space = format!("{address}/shm:x");
    let run = lockwright(folder, &["run", "--space", &space, "a", "--", "true"]).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "it finds the secret: {run:?}");
    stop(&served);
    assert_eq!(served.end().0, Some(0));
}

#[test]
fn a_fifo_in_the_private_folder_itself_is_not_read_either() {
    let scratch = Scratch::new("own-fifo");
    let port = free_port();
    let private = scratch.folder.join(format!("lockwright-{}", user()));
    fs::DirBuilder::new().mode(0o700).create(&private).unwrap();
    mkfifo(&private.join(format!("serve-{port}.secret")), Mode::from_bits_truncate(0o600)).unwrap();
    let address = format!("tcp://127.0.0.1:{port}");
    let nobody = lockwright(&scratch.folder, &["ls", "--space", &address]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2), "{nobody:?}");
}

#[test]
fn a_private_folder_that_is_anothers_or_open_to_others_is_refused_in_one_line_and_only_where_it_is_needed() {
    let scratch = Scratch::new("squatted");
    let private = scratch.folder.join(format!("lockwright-{}", user()));
    let listen = format!("127.0.0.1:{}", free_port());
    let export = ["serve", "--state", "none", "--listen", &listen, "--export", "shm:x"];
    let refused = |why: &str| {
        let output = lockwright(&scratch.folder, &export).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let line = one_line(&output);
        assert!(line.contains(why) && line.contains("--secret-file"), "{line}");
    };
    fs::write(&private, "").unwrap();
    refused("is not a folder");
    fs::remove_file(&private).unwrap();
    std::os::unix::fs::symlink("/tmp", &private).unwrap();
    refused("is not a folder");
    fs::remove_file(&private).unwrap();
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o777)).unwrap();
    refused("is open to others");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    if chown(&private, Some(65534), None).is_err() {
        println!("skipped in part: only root can give a folder to another user");
        return;
    }
    refused("belongs to user 65534");
    // A server without a secret needs no folder for it.
    let plain = ["serve", "--state", "none", "--listen", &listen];
    let served = Started::new(lockwright(&scratch.folder, &plain));
    assert!(served.line.starts_with("listening"), "{}", served.line);
    stop(&served);
    assert_eq!(served.end().0, Some(0));
}

#[test]
fn a_space_file_that_others_may_write_or_that_is_no_file_is_refused_in_one_line() {
    let scratch = Scratch::new("exposed");
    assert_eq!(scratch.code(&["run", "a", "--", "true"]), 0);
    let refused = |why: &str| {
        let output = scratch.output(&["run", "a", "--", "true"]);
        assert_eq!(output.status.code(), Some(70), "{output:?}");
        let line = one_line(&output);
        assert!(line.contains(why), "{line}");
    };
    for mode in [0o666, 0o620, 0o602] {
        fs::set_permissions(&scratch.space, fs::Permissions::from_mode(mode)).unwrap();
        refused("can be written by others");
    }
    fs::set_permissions(&scratch.space, fs::Permissions::from_mode(0o600)).unwrap();
    if chown(&scratch.space, Some(65534), None).is_ok() {
        refused("belongs to user 65534");
    } else {
        println!("skipped in part: only root can give a file to another user");
    }
    fs::remove_file(&scratch.space).unwrap();
    mkfifo(&scratch.space, Mode::S_IRWXU).unwrap();
    refused("is not a regular file");
}

/// Whether this process may make such a namespace; says so if not.
fn may_unshare(options: &[&str]) -> bool {
    let tried = Command::new("unshare").args(options).arg("true").stderr(Stdio::null()).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        println!("skipped: `unshare {}` is not permitted here", options.join(" "));
    }
    may
}

#[test]
fn a_full_file_system_is_one_line_and_exit_code_70_and_leaves_nothing_half_made() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let scratch = Scratch::new("full");
    let (folder, mut worked) = (scratch.folder.to_str().unwrap(), false);
    for kib in [16, 64, 128, 200, 300, 400, 420, 440, 460, 480, 500, 520, 560, 600, 2000] {
        // What was made with too little room is used with more.
        let script = r#"mount -t tmpfs -o "size=$1k" none "$0" || exit 99
            "$2" run --space "shm:$0/x" a -- true; code=$?
            mount -o remount,size=4m "$0"
            "$2" run --space "shm:$0/x" a -- true || exit 98
            exit $code"#;
        let mut run = Command::new("timeout");
        run.args(["-s", "KILL", "30", "unshare", "-m", "sh", "-c", script, folder, &kib.to_string()]);
        let output = run.arg(env!("CARGO_BIN_EXE_lockwright")).output().unwrap();
        match output.status.code() {
            Some(0) => worked = true,
            Some(70) => {
                let line = one_line(&output);
                assert!(line.contains("is full") && line.contains(folder), "{kib} KiB: {line}");
                assert!(!worked, "{kib} KiB are enough, as fewer were");
            }
            _ => panic!("{kib} KiB: {output:?}"),
        }
    }
    assert!(worked);
}

#[test]
fn a_process_of_another_time_namespace_is_refused_in_one_line() {
    let elsewhere = ["--fork", "-T", "--monotonic", "86400", "--boottime", "86400"];
    if !may_unshare(&elsewhere) {
        return;
    }
    let scratch = Scratch::new("time");
    let holder = scratch.start(&["run", "a", "--", "sh", "-c", "echo in; exec sleep 600"]);
    let run = scratch.lockwright(&["run", "-n", "a", "--", "echo", "got it"]);
    let mut unshare = Command::new("unshare");
    unshare.args(elsewhere).arg(run.get_program()).args(run.get_args());
    unshare.env("LOCKWRIGHT_SPACE", format!("shm:{}", scratch.space.display()));
    let output = unshare.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(70), &b""[..]), "{output:?}");
    assert!(one_line(&output).contains("time namespace"));
    holder.send(Signal::SIGTERM);
    assert_eq!(holder.end().0, Some(128 + 15));
}

/// What this build can serve.
const SERVERS: &[&str] = if cfg!(feature = "fiss") { &["serve", "switch"] } else { &["serve"] };

#[test]
fn a_server_whose_state_is_no_file_says_so_in_one_line() {
    let scratch = Scratch::new("state");
    let fifo = scratch.file("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    mkfifo(&scratch.file("state.lock"), Mode::S_IRWXU).unwrap();
    let states = [fifo, scratch.file("state"), "/dev/full".into(), "/dev/zero".into()];
    for server in SERVERS {
        for state in &states {
            let serve = [server, "--listen", "127.0.0.1:0", "--state", state.to_str().unwrap()];
            let output = lockwright(&scratch.folder, &serve).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{state:?}: {output:?}");
            assert!(one_line(&output).contains("is not a regular file"), "{output:?}");
        }
    }
    for device in ["full", "zero"] {
        assert!(!Path::new(&format!("/dev/{device}.lock")).exists(), "nothing is left beside a device");
    }
}

#[test]
fn a_link_beside_the_state_is_not_written_through() {
    let scratch = Scratch::new("link");
    let victim = scratch.file("victim");
    for server in SERVERS {
        fs::write(&victim, "precious").unwrap();
        let state = scratch.file(server);
        let fresh = scratch.file(&format!("{server}.new"));
        std::os::unix::fs::symlink(&victim, &fresh).unwrap();
        let serve = [server, "--listen", "127.0.0.1:0", "--state", state.to_str().unwrap()];
        let served = Started::new(lockwright(&scratch.folder, &serve));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{server}");
        stop(&served);
        assert_eq!(served.end().0, Some(0));
    }
}

#[test]
fn a_server_restarted_on_a_full_disk_lets_its_holder_keep_its_lock_and_give_it_back() {
    if !may_unshare(&["-m"]) {
        return;
    }
    let scratch = Scratch::new("full-state");
    let (folder, listen) = (scratch.folder.to_str().unwrap(), format!("127.0.0.1:{}", free_port()));
    // The file system is seen by these processes only; killed with `kill`, the server says nothing to its disk.
    let script = r#"mount -t tmpfs -o size=1m none "$0" || exit 99
        serve() { "$2" serve --listen "$1" --state "$0/state" --heartbeat 0.1 & }
        serve "$@"; first=$!
        read -r go
        kill -9 $first; wait $first
        cat /dev/zero > "$0/rest" 2> /dev/null
        [ "$(stat -f -c %a "$0")" = 0 ] || exit 98
        serve "$@"; second=$!
        read -r go
        kill $second; wait $second"#;
    let mut servers = Command::new("timeout");
    servers.args(["--foreground", "-s", "KILL", "60", "unshare", "-m", "sh", "-c", script, folder, &listen]);
    servers.arg(env!("CARGO_BIN_EXE_lockwright"));
    servers.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut served = Started::new(servers);
    assert!(served.line.starts_with("listening"), "{}", served.line);
    let space = format!("tcp://{listen}/stock");
    let client = Client::open(&space).wait().unwrap();
    let guard = client.mutex("a").unwrap().lock().wait().unwrap();
    let mut commands = served.child.stdin.take().unwrap();
    commands.write_all(b"go\n").unwrap();
    let mut line = String::new();
    served.stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening"), "the second server: {line}");
    let until = Instant::now() + Duration::from_secs(30);
    let holds = |entry: &Entry| entry.token == Some(guard.token());
    while !Inspector::open(&space)
        .is_ok_and(|server| server.entries().is_ok_and(|seen| seen.iter().any(holds)))
    {
        assert!(Instant::now() < until, "the second server has not heard the claim");
        std::thread::sleep(Duration::from_millis(20));
    }
    guard.unlock().wait().unwrap();
    drop(client.mutex("a").unwrap().lock().wait().unwrap());
    drop(client);
    commands.write_all(b"go\n").unwrap();
    let (code, _, log) = served.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_server_that_waits_for_something_while_it_starts_ends_by_sigterm() {
    let scratch = Scratch::new("slow-start");
    let fifo = scratch.file("secret");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let secret = fifo.to_str().unwrap();
    let mut starts: Vec<Vec<&str>> = SERVERS
        .iter()
        .map(|server| vec![*server, "--listen", "127.0.0.1:0", "--secret-file", secret])
        .collect();
    if cfg!(feature = "mount") {
        let folder = scratch.folder.to_str().unwrap();
        starts.push(vec![
            "mount",
            "--space",
            "tcp://127.0.0.1:1/x",
            "--name",
            "x",
            "--secret-file",
            secret,
            folder,
            folder,
        ]);
    }
    for start in starts {
        let mut served = lockwright(&scratch.folder, &start).spawn().unwrap();
        // Open for writing as soon as the server has opened it for reading, and never written.
        let writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", served.id())).unwrap();
        let pid: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        assert_eq!(served.wait().unwrap().code(), Some(0), "{start:?}");
        drop(writer);
    }
}
