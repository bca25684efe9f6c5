//! `lockwright serve` and its clients, with real processes: who gets in, what is listed, and what a killed server, a
//! killed client and a broken lock do to others.

mod started;

use lockwright::{GuardState, TryLockError};
use nix::sys::signal::Signal;
use serde_json::Value;
use started::{Started, limited};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn lockwright(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
    command.args(args).env_remove("LOCKWRIGHT_SPACE").env_remove("LOCKWRIGHT_SECRET_FILE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("lockwright-serve-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A server, and its clients' commands.
struct Served {
    process: Started,
    said: Value,
}

impl Served {
    fn start(listen: &str, more: &[&str]) -> Self {
        let args = [&["serve", "--json", "--listen", listen, "--grace", "1", "--heartbeat", "0.1"], more];
        let process = Started::new(lockwright(&args.concat()));
        let said = serde_json::from_str(&process.line).unwrap_or_else(|_| {
            panic!("the server said {:?}", process.line);
        });
        Self { process, said }
    }

    fn address(&self) -> String {
        self.said["listening"].as_str().unwrap().to_owned()
    }

    fn client(&self, args: &[&str]) -> Command {
        let mut command = lockwright(args);
        command.env("LOCKWRIGHT_SPACE", format!("tcp://{}/stock", self.address()));
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.client(args).output().unwrap()
    }

    fn code(&self, args: &[&str]) -> i32 {
        self.output(args).status.code().unwrap()
    }

    fn listed(&self, lock: &str) -> Vec<Value> {
        let output = self.output(&["ls", "--json", lock]);
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn eventually(what: &str, mut seen: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !seen() {
        assert!(Instant::now() < until, "{what}: not seen in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn run_ls_break_and_top_work_through_a_server() {
    let served = Served::start("127.0.0.1:0", &[]);
    assert_eq!(served.code(&["run", "a", "--", "sh", "-c", "exit 7"]), 7);
    let holder =
        Started::new(served.client(&["run", "a", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN; exec sleep 60"]));
    let token: u64 = holder.line.parse().unwrap();
    assert_eq!(served.code(&["run", "-n", "a", "--", "true"]), 1);
    assert_eq!(served.code(&["run", "-w", "0.05", "-E", "75", "a", "--", "true"]), 75);
    assert_eq!(served.code(&["run", "--range", "0..5", "a", "--", "true"]), 0, "ranges are another lock");
    let waiter = served.client(&["run", "a", "--", "true"]).spawn().unwrap();
    eventually("a waiter", || served.listed("a").len() == 2);
    let listed = served.listed("a");
    assert_eq!((&listed[0]["state"], &listed[1]["state"]), (&"held".into(), &"waiting".into()));
    assert_eq!((&listed[0]["token"], &listed[0]["pid"]), (&token.into(), &holder.child.id().into()));
    let top: Value =
        serde_json::from_slice(&served.output(&["top", "--json", "--interval", "0.2"]).stdout).unwrap();
    assert_eq!((&top["locks"][0]["lock"], &top["locks"][0]["waiting"]), (&"a".into(), &1.0.into()));
    assert_eq!(served.code(&["break", "a", "--token", &(token + 1).to_string()]), 1, "not that grant");
    assert_eq!(served.code(&["break", "a", "--token", &token.to_string()]), 0);
    assert!(waiter.wait_with_output().unwrap().status.success());
    let (code, _, err) = holder.end();
    assert_eq!(code, Some(128 + Signal::SIGTERM as i32), "{err}");
    assert!(err.contains("lost"), "{err}");
    assert!(served.listed("a").is_empty());
}

#[test]
fn without_a_secret_only_the_servers_user_and_root_break_its_locks() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can start commands as other users");
        return;
    }
    // Where other users can execute it, wherever it was built.
    let folder = folder("users");
    let program = folder.join("lockwright");
    fs::copy(env!("CARGO_BIN_EXE_lockwright"), &program).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let (root, user, other) = (0, 12_345, 12_346);
    let as_user = |uid, args: &[&str], space: &str| {
        let mut command = Command::new(&program);
        command.args(args).uid(uid).current_dir("/").env_clear().env("LOCKWRIGHT_SPACE", space);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    for (server, may, may_not) in [(root, vec![root], vec![user]), (user, vec![user, root], vec![other])] {
        let args = ["serve", "--json", "--listen", "127.0.0.1:0", "--state", "none"];
        let served = Started::new(as_user(server, &args, ""));
        let said: Value = serde_json::from_str(&served.line).expect("the server says where it listens");
        let space = format!("tcp://{}/stock", said["listening"].as_str().unwrap());
        let client = lockwright::Client::open(&space).wait().unwrap();
        let lock = client.mutex("a").unwrap();
        for (uid, breaks) in may_not.iter().map(|uid| (*uid, false)).chain(may.iter().map(|uid| (*uid, true)))
        {
            let guard = lock.lock().wait().unwrap();
            let token = guard.token().to_string();
            let output = as_user(uid, &["break", "a", "--token", &token], &space).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.success(), breaks, "server of {server}, break by {uid}: {said}");
            if breaks {
                eventually("the loss", || guard.state() != GuardState::Held);
            } else {
                assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
                assert!(said.contains("the server's user") && said.contains("--secret-file"), "{said}");
                assert_eq!(lock.try_lock().wait().unwrap_err(), TryLockError::Busy, "it stays held");
                guard.unlock().wait().unwrap();
            }
        }
        // The label is what a client calls itself; the user is what the kernel says.
        served.send(Signal::SIGTERM);
        let log = served.end().2;
        for (message, users) in [("may not break", may_not), ("a lock is broken", may)] {
            let lines: Vec<_> = log.lines().filter(|line| line.contains(message)).collect();
            assert_eq!(lines.len(), users.len(), "{log}");
            for (line, uid) in lines.iter().zip(users) {
                assert!(line.contains(&format!("user={uid} from=\"127.0.0.1:")), "{line}");
            }
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn who_breaks_a_lock_by_way_of_the_page_is_in_the_log() {
    let served = Served::start("127.0.0.1:0", &["--http=127.0.0.1:0", "--state", "none"]);
    let holder =
        Started::new(served.client(&["run", "a", "--", "sh", "-c", "echo $LOCKWRIGHT_TOKEN; exec sleep 60"]));
    let http = served.said["http"].as_str().unwrap();
    let body = serde_json::json!({ "space": "stock", "lock": "61", "token": holder.line }).to_string();
    let mut page = TcpStream::connect(http).unwrap();
    let from = page.local_addr().unwrap();
    let head = format!(
        "POST /api/break HTTP/1.1\r\nHost: {http}\r\nX-Lockwright: 1\r\nContent-Length: {}",
        body.len()
    );
    write!(page, "{head}\r\n\r\n{body}").unwrap();
    let mut said = String::new();
    page.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
    served.process.send(Signal::SIGTERM);
    let log = served.process.end().2;
    let line = log.lines().find(|line| line.contains("a lock is broken")).expect(&log);
    let user = nix::unistd::geteuid();
    assert!(line.contains(&format!("token={} user={user} from=\"{from}\"", holder.line)), "{line}");
}

#[test]
fn a_killed_client_frees_its_locks_and_a_stopped_server_says_goodbye() {
    let served = Served::start("127.0.0.1:0", &[]);
    let holder = Started::new(served.client(&["run", "a", "--", "sh", "-c", "echo in; exec sleep 60"]));
    holder.send(Signal::SIGKILL);
    assert_eq!(served.code(&["run", "-w", "10", "a", "--", "true"]), 0);
    served.process.send(Signal::SIGTERM);
    let Served { process, .. } = served;
    assert_eq!(process.end().0, Some(0));
}

#[test]
fn a_command_goes_on_under_its_lock_while_the_server_is_killed_and_restarted() {
    let folder = folder("restart");
    let state = folder.join("state");
    let args = ["--state", state.to_str().unwrap()];
    let served = Served::start("127.0.0.1:0", &args);
    let address = served.address();
    let script = "echo in; while ! [ -e \"$0\" ]; do sleep 0.02; done; exit 3";
    let done = folder.join("done");
    let holder = Started::new(served.client(&["run", "a", "--", "sh", "-c", script, done.to_str().unwrap()]));
    assert_eq!(holder.line, "in");
    served.process.send(Signal::SIGKILL);
    drop(served);
    let served = Served::start(&address, &args);
    assert_eq!(served.said["recovering"], true);
    let rival = served.client(&["run", "-w", "3", "a", "--", "true"]).output().unwrap();
    assert_eq!(
        rival.status.code(),
        Some(1),
        "nobody else gets the lock: {}",
        String::from_utf8_lossy(&rival.stderr)
    );
    assert_eq!(served.listed("a").len(), 1);
    fs::write(&done, "").unwrap();
    let (code, _, err) = holder.end();
    assert_eq!((code, err.as_str()), (Some(3), ""));
    assert_eq!(served.code(&["run", "-n", "a", "--", "true"]), 0);
    let _ = fs::remove_dir_all(folder);
}

#[test]
fn a_command_is_ended_when_the_server_is_gone_for_good() {
    let served = Served::start("127.0.0.1:0", &[]);
    let args = ["run", "--lease", "1", "a", "--", "sh", "-c", "echo in; exec sleep 60"];
    let holder = Started::new(served.client(&args));
    drop(served);
    let (code, _, err) = holder.end();
    assert_eq!(code, Some(128 + Signal::SIGTERM as i32), "{err}");
    assert!(err.contains("lost"), "{err}");
}

#[test]
fn who_may_come_in_is_said_in_one_line() {
    let one_line = |output: &Output| {
        let text = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        (output.status.code().unwrap(), text)
    };
    let refused = lockwright(&["serve", "--listen", "0.0.0.0:0", "--state", "none"]).output().unwrap();
    let (code, text) = one_line(&refused);
    assert!(code == 2 && text.contains("--secret-file") && text.contains("--tls-cert"), "{text}");
    let folder = folder("token");
    let secret = folder.join("secret");
    fs::write(&secret, "too short\n").unwrap();
    let weak = lockwright(&["serve", "--secret-file", secret.to_str().unwrap()]).output().unwrap();
    assert!(one_line(&weak).1.contains("16 bytes"));
    fs::write(&secret, "a long and random line of text\n").unwrap();
    // Reachable from elsewhere, and so with a secret only.
    let served = Served::start("0.0.0.0:0", &["--secret-file", secret.to_str().unwrap()]);
    let port = served.address().rsplit_once(':').unwrap().1.to_owned();
    let space = format!("tcp://127.0.0.1:{port}/stock");
    let run = ["run", "--space", &space, "a", "--", "true"];
    let (code, text) = one_line(&lockwright(&run).output().unwrap());
    assert!(code == 70 && text.contains("wants a secret"), "{text}");
    let with = ["run", "--space", &space, "--secret-file", secret.to_str().unwrap(), "a", "--", "true"];
    assert_eq!(lockwright(&with).output().unwrap().status.code(), Some(0));
    for (space, code) in [("tcp://", 64), ("tcp://127.0.0.1:1/x", 70), ("tcp://no.such.host.invalid:1/x", 70)]
    {
        let output = lockwright(&["run", "--space", space, "a", "--", "true"]).output().unwrap();
        assert_eq!(one_line(&output).0, code, "{space}");
    }
    let _ = fs::remove_dir_all(folder);
}

/// A certificate for `localhost` and its key, in files.
fn certificate(folder: &Path, name: &str) -> [String; 2] {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let path = |end: &str| folder.join(format!("{name}.{end}")).to_str().unwrap().to_owned();
    let files = [path("cert"), path("key")];
    fs::write(&files[0], made.cert.pem()).unwrap();
    fs::write(&files[1], made.signing_key.serialize_pem()).unwrap();
    files
}

#[test]
fn tls_and_a_secret_from_end_to_end() {
    let folder = folder("tls");
    let ([cert, key], [other, _]) = (certificate(&folder, "mine"), certificate(&folder, "other"));
    let secret = |name: &str, text: &str| {
        let path = folder.join(name).to_str().unwrap().to_owned();
        fs::write(&path, text).unwrap();
        path
    };
    let (right, wrong) =
        (secret("right", "a long and random line of text"), secret("wrong", "another line that is long"));
    let guarded = ["--tls-cert", &cert, "--tls-key", &key, "--secret-file", &right];
    let served = Served::start("0.0.0.0:0", &guarded);
    let port = served.address().rsplit_once(':').unwrap().1.to_owned();
    let run = |host: &str, trust: &[&str]| {
        let space = format!("tcp://{host}:{port}/stock");
        let args = [&["run", "--space", &space], trust, &["a", "--", "true"]].concat();
        let output = lockwright(&args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let both = ["--tls-ca", &cert, "--secret-file", &right];
    assert_eq!(run("localhost", &both), (0, String::new()));
    for (host, trust, why) in [
        ("localhost", &["--tls-ca", &cert][..], "secret"),
        ("localhost", &["--tls-ca", &cert, "--secret-file", &wrong][..], "secret"),
        ("localhost", &["--tls-ca", &other, "--secret-file", &right][..], "certificate"),
        ("127.0.0.1", &both[..], "certificate"),
        ("localhost", &["--secret-file", &right][..], ""),
    ] {
        let (code, text) = run(host, trust);
        assert!(code == 70 && text.contains(why) && text.lines().count() == 1, "{trust:?} at {host}: {text}");
    }
    assert_eq!(run("localhost", &both), (0, String::new()), "nobody was disturbed");
    let swapped = lockwright(&["serve", "--tls-cert", &key, "--tls-key", &cert]).output().unwrap();
    assert_eq!(swapped.status.code(), Some(2));
    let half = lockwright(&["serve", "--tls-cert", &cert]).output().unwrap();
    assert_eq!(half.status.code(), Some(2));
    let _ = fs::remove_dir_all(folder);
}

#[test]
fn an_exported_space_is_for_its_user_and_those_who_know_the_secret() {
    let folder = folder("export");
    let with = |command: &mut Command| {
        let output = command.env("LOCKWRIGHT_DIR", &folder).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let mut serve = lockwright(&["serve", "--json", "--listen", "127.0.0.1:0", "--export", "shm:"]);
    serve.env("LOCKWRIGHT_DIR", &folder);
    let process = Started::new(serve);
    let said: Value = serde_json::from_str(&process.line).unwrap();
    let space = format!("tcp://{}/shm:", said["listening"].as_str().unwrap());
    for space in [&space, &"shm:".to_owned()] {
        let inner = ["run", "-n", "--space", "shm:", "a", "--", "true"];
        let tries =
            [&["run", "--space", space, "a", "--", env!("CARGO_BIN_EXE_lockwright")], &inner[..]].concat();
        assert_eq!(
            with(&mut lockwright(&tries)).0,
            1,
            "{space}: held, and so not to be had by a local process"
        );
    }
    let run = ["run", "--space", &space, "a", "--", "true"];
    assert_eq!(with(&mut lockwright(&run)), (0, String::new()));
    // Another user, who does not find the secret.
    let strange = lockwright(&run).env("LOCKWRIGHT_DIR", folder.join("nowhere")).output().unwrap();
    let text = String::from_utf8(strange.stderr).unwrap();
    assert!(strange.status.code() == Some(70) && text.contains("wants a secret"), "{text}");
    let far = lockwright(&["serve", "--listen", "0.0.0.0:0", "--export", "shm:", "--state", "none"]);
    let (code, text) = with(&mut { far });
    assert!(code == 2 && text.contains("--secret-file"), "{text}");
    drop(process);
    let _ = fs::remove_dir_all(folder);
}

#[test]
fn a_server_without_descriptors_takes_no_lock_from_a_local_process() {
    const DESCRIPTORS: u32 = 48;
    const SECRET: &str = "a long and random line of text";
    let folder = folder("descriptors");
    let secret = folder.join("secret");
    fs::write(&secret, SECRET).unwrap();
    let with_folder = |mut command: Command| {
        command.env("LOCKWRIGHT_DIR", &folder);
        command
    };
    let serve = ["serve", "--json", "--listen", "127.0.0.1:0", "--export", "shm:", "--secret-file"];
    let serve = with_folder(lockwright(&[&serve[..], &[secret.to_str().unwrap()]].concat()));
    let server = Started::new(limited(DESCRIPTORS, &serve));
    let said: Value = serde_json::from_str(&server.line).unwrap();
    let address = said["listening"].as_str().unwrap();
    let run = ["run", "--space", "shm:", "h", "--", "sh", "-c", "echo in; exec sleep 60"];
    let holder = Started::new(with_folder(lockwright(&run)));
    let options = lockwright::Client::options().secret(SECRET);
    let lock = options.open(&format!("tcp://{address}/shm:")).wait().unwrap().mutex("h").unwrap();
    assert!(matches!(lock.try_lock().wait(), Err(TryLockError::Busy)));
    // Clients until there is no room for another: the server closes idle connections for newcomers, but not these.
    let hurried = options.clone().timeout(Duration::from_secs(2));
    let open = || hurried.clone().open(&format!("tcp://{address}/shm:")).wait().ok();
    let crowd: Vec<_> = (0..DESCRIPTORS).map_while(|_| open()).collect();
    assert!(crowd.len() < DESCRIPTORS as usize, "a server without descriptors");
    assert!(matches!(lock.try_lock().wait(), Err(TryLockError::Busy)));
    drop(crowd);
    holder.send(Signal::SIGTERM);
    let (code, _, err) = holder.end();
    assert_eq!((code, err.as_str()), (Some(128 + 15), ""), "it held the lock until the end");
    let _ = fs::remove_dir_all(folder);
}
