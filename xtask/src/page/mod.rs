//! `cargo xtask page`: the page of `serve --http` in a real browser, with real clicks, on a real server with real locks.
//!
//! Screenshots are left in `target/page`, to be looked at. The server that asks for its secret listens on an address that is
//! not loopback, in a network namespace of this chore's own: its own user would need no secret on loopback. There are two
//! servers of a cluster in it, too, if there is an etcd.

mod servers;
mod webdriver;

use self::servers::Cluster;
use self::webdriver::Browser;
use crate::names::{COMMAND_PROGRAM, TESTED};
use crate::setup::Need;
use crate::{etcd, steps};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

/// Set in the network namespace: the program to be tried.
const INSIDE: &str = "LOCKWRIGHT_PAGE_INSIDE";
/// An address for documentation, on this namespace's loopback device.
const ADDRESS: &str = "198.51.100.7";
const SECRET: &str = "a secret of more than sixteen bytes";
/// As any page may be called that wants to do harm.
const HOSTILE: &str = "<img src=x onerror='document.title=1'>";

/// Runs the page's tests and prints `N passed, N failed` as the last line.
pub(crate) fn report(root: &Path, may: bool) -> ExitCode {
    if let Err(why) = Need::Chromium.get(root, may) {
        println!("skipped: {why}\n\n0 passed, 0 failed, 1 skipped");
        return ExitCode::SUCCESS;
    }
    let Some(program) = std::env::var_os(INSIDE).map(PathBuf::from) else {
        // From here other machines can be reached, which may have to be asked.
        return match steps::program(root, &COMMAND_PROGRAM, TESTED) {
            Ok(program) => inside_a_namespace(root, &program),
            Err(why) => {
                println!("{why}");
                ExitCode::FAILURE
            }
        };
    };
    let folder = root.join("target/page");
    let _ = std::fs::remove_dir_all(&folder);
    let (mut count, mut skipped) = ([0; 2], 0);
    for (name, test) in TESTS {
        let began = Instant::now();
        let outcome = std::fs::create_dir_all(&folder)
            .map_err(|error| error.to_string())
            .and_then(|()| World::start(&program, &folder))
            .and_then(|mut world| test(&mut world));
        let seconds = began.elapsed().as_secs_f64();
        if outcome.as_ref().is_err_and(|why| why == NO_ETCD) {
            println!("skipped {name}: {NO_ETCD}");
            skipped += 1;
            continue;
        }
        match &outcome {
            Ok(()) => println!("ok      {name} ({seconds:.1} s)"),
            Err(why) => println!("FAILED  {name} ({seconds:.1} s): {why}"),
        }
        count[usize::from(outcome.is_err())] += 1;
    }
    let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    println!("\n{} passed, {} failed{skipped}; pictures in target/page", count[0], count[1]);
    if count[1] == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts this chore again, with a network of its own that reaches nobody.
fn inside_a_namespace(root: &Path, program: &Path) -> ExitCode {
    let script = format!(r#"ip link set lo up && ip addr add {ADDRESS}/32 dev lo && exec "$0" page"#);
    let Ok(this) = std::env::current_exe() else { return ExitCode::FAILURE };
    let mut unshare = Command::new("unshare");
    unshare.arg("--net").current_dir(root).env(INSIDE, program);
    if let Ok(path) = etcd::path(root) {
        unshare.env("PATH", path);
    }
    // Root needs no namespace of users, which a root below the machine's own could not have.
    if !crate::setup::is_root() {
        unshare.arg("--map-root-user");
    }
    match unshare.args(["sh", "-c", &script]).arg(this).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("no network namespace can be made here: {error}");
            ExitCode::FAILURE
        }
    }
}

/// WebDriver's names for these keys.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

type Test = fn(&mut World) -> Result<(), String>;
const TESTS: [(&str, Test); 9] = [
    ("held locks are listed, and names are text whatever they say", lists),
    ("a search narrows the list", searches),
    ("a lock's page shows who holds and who waits", shows_a_lock),
    ("a lock is broken after a question, and only then", breaks),
    ("who waits for whom is drawn", draws),
    ("a deadlock is drawn, and told in words", draws_a_deadlock),
    ("it works by keyboard, on a phone, in the dark", adapts),
    ("on an address that others reach, it asks for the secret", asks_for_the_secret),
    ("a cluster's servers and shards are shown, and a server that is killed", shows_a_cluster),
];

/// Why the cluster's page is not tried.
const NO_ETCD: &str = "there is no etcd";

/// A server, its clients and a browser.
struct World {
    program: PathBuf,
    folder: PathBuf,
    browser: Browser,
    server: Option<Server>,
    cluster: Option<Cluster>,
    clients: Vec<Child>,
    /// What they say: a command that cannot say anything would end.
    outputs: Vec<ChildStdout>,
}

struct Server {
    process: Child,
    space: String,
    page: String,
    secret: Option<PathBuf>,
}

impl Drop for World {
    fn drop(&mut self) {
        let server = self.server.take().map(|server| server.process);
        for mut process in self.clients.drain(..).chain(server) {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(self.folder.join("profile"));
    }
}

impl World {
    fn start(program: &Path, folder: &Path) -> Result<Self, String> {
        let browser = Browser::start(folder)?;
        browser.resize(1100, 1000)?;
        Ok(Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            browser,
            server: None,
            cluster: None,
            clients: Vec::new(),
            outputs: Vec::new(),
        })
    }

    /// Starts a server that shows its page at `host`, and opens it.
    fn serve(&mut self, host: &str, secret: Option<&str>) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let mut command = Command::new(&self.program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--state", "none", "--json", "--http"]);
        command.arg(format!("{host}:0"));
        let file = self.folder.join("secret");
        if let Some(secret) = secret {
            std::fs::write(&file, secret).map_err(text)?;
            command.arg("--secret-file").arg(&file);
        }
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(text)?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut line).map_err(text)?;
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let (space, page) =
            (format!("tcp://{}/stock", said["listening"].as_str().unwrap_or_default()), &said["http"]);
        let page = format!("http://{}/", page.as_str().unwrap_or_default());
        self.browser.go(&page)?;
        self.server = Some(Server { process, space, page, secret: secret.map(|_| file) });
        Ok(())
    }

    /// A process that holds or waits for locks. Says when it is running, unless it `waits`.
    fn run(&mut self, args: &[&str], waits: bool) -> Result<(), String> {
        self.run_script(args, "echo in; exec sleep 600", waits)
    }

    /// The same, with this script under the locks. `$0` is the program.
    fn run_script(&mut self, args: &[&str], script: &str, waits: bool) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let mut command = Command::new(&self.program);
        command.args(["run", "--space", self.server.as_ref().map_or(servers::SPACE, |server| &server.space)]);
        if let Some(secret) = self.server.as_ref().and_then(|server| server.secret.as_ref()) {
            command.arg("--secret-file").arg(secret);
        }
        command.args(args).args(["--", "sh", "-c", script]).arg(&self.program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(text)?;
        let mut out = process.stdout.take().expect("it is piped");
        self.clients.push(process);
        if !waits {
            BufReader::new(&mut out).read_line(&mut String::new()).map_err(text)?;
        }
        self.outputs.push(out);
        Ok(())
    }

    fn picture(&self, name: &str) -> Result<(), String> {
        let base64 = self.browser.screenshot()?;
        let path = self.folder.join(format!("{name}.png"));
        let mut decoder = Command::new("base64")
            .arg("--decode")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(path).map_err(|error| error.to_string())?)
            .spawn()
            .map_err(|error| error.to_string())?;
        let written = decoder.stdin.take().expect("it is piped").write_all(base64.as_bytes());
        written.and_then(|()| decoder.wait()).map(drop).map_err(|error| error.to_string())
    }
}

/// An expression that is true if a table's text has all of these.
fn says(table: &str, words: &[&str]) -> String {
    let has =
        words.iter().map(|word| format!("document.getElementById('{table}').innerText.includes({word:?})"));
    has.collect::<Vec<_>>().join(" && ")
}

fn lists(world: &mut World) -> Result<(), String> {
    world.serve("127.0.0.1", None)?;
    world.run(&["backup"], false)?;
    world.run(&[HOSTILE], false)?;
    world.run(&["--range", "0..10", "file"], false)?;
    world.run(&["-j", "4", "gpu"], false)?;
    world.browser.until(&says("locks", &["backup", HOSTILE, "1 ranges", "1 with permits"]))?;
    world.browser.until("document.title === 'Locks' && !document.querySelector('td img')")?;
    world.browser.until("document.querySelectorAll('.tile').length === 5")?;
    world.picture("locks")
}

fn searches(world: &mut World) -> Result<(), String> {
    world.serve("127.0.0.1", None)?;
    for name in ["orders/41", "orders/42", "backup"] {
        world.run(&[name], false)?;
    }
    world.browser.until("document.getElementById('locks').rows.length === 3")?;
    world.browser.write("#search", "orders/4")?;
    world.browser.until("document.getElementById('locks').rows.length === 2")?;
    world.browser.write("#search", "2")?;
    world.browser.until("document.getElementById('locks').rows.length === 1")?;
    world.browser.until(&says("locks", &["orders/42"]))
}

fn shows_a_lock(world: &mut World) -> Result<(), String> {
    world.serve("127.0.0.1", None)?;
    world.run(&["backup"], false)?;
    // Over before anybody looks.
    let mut over = world.clients.pop().expect("just started");
    let pid = over.id().to_string();
    over.kill().and_then(|()| over.wait()).map_err(|error| error.to_string())?;
    world.run(&["backup"], false)?;
    world.run(&["-s", "backup"], true)?;
    world.browser.until(&says("locks", &["backup"]))?;
    world.browser.click("#locks button")?;
    let pids: Vec<_> = world.clients.iter().map(|client| client.id().to_string()).collect();
    world
        .browser
        .until(&says("entries", &["held", "waiting", "exclusive", "shared", "sh", &pids[0], &pids[1]]))?;
    world.browser.until(&says("history", &["exclusive", &pid, "ago"]))?;
    world.picture("lock")?;
    world.browser.click("#close")?;
    world.browser.until("document.getElementById('lock').hidden")
}

fn breaks(world: &mut World) -> Result<(), String> {
    world.serve("127.0.0.1", None)?;
    world.run(&["backup"], false)?;
    world.run(&["backup"], true)?;
    let pids: Vec<_> = world.clients.iter().map(|client| client.id().to_string()).collect();
    world.browser.until(&says("locks", &["backup"]))?;
    world.browser.click("#locks button")?;
    let break_button = "#entries button";
    world.browser.until(&format!("document.querySelector({break_button:?})"))?;
    // The keyboard's focus stays on a button while events come in.
    world.browser.run(&format!("document.querySelector({break_button:?}).focus()"))?;
    world.browser.run(
        "const before = show; show = seen => { before(seen); window.shown = (window.shown ?? 0) + 1; }",
    )?;
    world.browser.until("window.shown >= 2")?;
    world.browser.until(&format!("document.activeElement === document.querySelector({break_button:?})"))?;
    world.browser.press(ENTER)?;
    world.browser.until("document.getElementById('ask').open")?;
    world.picture("question")?;
    world.browser.click("#no")?;
    world.browser.until("!document.getElementById('ask').open")?;
    world
        .browser
        .until(&format!("document.getElementById('entries').rows[0]?.innerText.includes({:?})", pids[0]))?;
    world.browser.click(break_button)?;
    world.browser.click("#yes")?;
    world.browser.until(&says("status", &["Broken"]))?;
    world
        .browser
        .until(&format!("document.getElementById('entries').rows[0]?.innerText.includes({:?})", pids[1]))?;
    world.browser.until("document.getElementById('history').rows[0]?.innerText.includes('broken')")
}

fn draws(world: &mut World) -> Result<(), String> {
    world.serve("127.0.0.1", None)?;
    world.run(&["a"], false)?;
    for _ in 0..3 {
        world.run(&["a"], true)?;
    }
    world.browser.until("document.querySelectorAll('#graph rect').length === 4")?;
    world.browser.until(&says("graph-text", &["3 waits"]))?;
    world.browser.run("document.getElementById('graph').scrollIntoView()")?;
    world.picture("waits")
}

fn draws_a_deadlock(world: &mut World) -> Result<(), String> {
    world.serve("127.0.0.1", None)?;
    let space = world.server.as_ref().expect("it is started").space.clone();
    let go = world.folder.join("go");
    let _ = std::fs::remove_file(&go);
    for (first, second) in [("a", "b"), ("b", "a")] {
        let waits = format!("while [ ! -e '{}' ]; do sleep 0.05; done", go.display());
        let script = format!("echo in; {waits}; exec \"$0\" run --space '{space}' {second} -- true");
        world.run_script(&[first], &script, false)?;
    }
    // They hold one lock each, and have not asked for the other.
    world.browser.until(&says("locks", &["a", "b"]))?;
    world.browser.until("!document.querySelector('#graph path.deadlock')")?;
    std::fs::write(&go, "").map_err(|error| error.to_string())?;
    // Each command waits for the other's lock, and each `run` for its command.
    world.browser.until("document.querySelectorAll('#graph path.deadlock').length === 4")?;
    world.browser.until(&says("graph-text", &["4 waits", "with a deadlock"]))?;
    world.browser.click("#waits-list summary")?;
    world.browser.until(&says("waits", &["deadlock", "has a, runs it", "has b, runs it"]))?;
    world.browser.until("document.getElementById('waits').rows.length === 4")?;
    world.browser.run("document.getElementById('graph').scrollIntoView()")?;
    world.picture("deadlock")
}

fn adapts(world: &mut World) -> Result<(), String> {
    world.serve("127.0.0.1", None)?;
    world.run(&["backup"], false)?;
    world.run(&["backup"], true)?;
    world.browser.until(&says("locks", &["backup"]))?;
    // Space, search, and then the first lock.
    world.browser.run("document.getElementById('search').focus()")?;
    world.browser.press(TAB)?;
    world.browser.until("document.activeElement.closest('#locks')")?;
    world.browser.press(ENTER)?;
    world.browser.until("document.activeElement.id === 'lock-title'")?;
    world.browser.resize(390, 844)?;
    world.browser.prefer("dark")?;
    world.browser.until("document.documentElement.scrollWidth <= window.innerWidth")?;
    world.browser.until("getComputedStyle(document.body).backgroundColor === 'rgb(22, 24, 26)'")?;
    world.picture("phone")
}

fn asks_for_the_secret(world: &mut World) -> Result<(), String> {
    world.serve(ADDRESS, Some(SECRET))?;
    world.run(&["backup"], false)?;
    world.browser.until("!document.getElementById('login').hidden")?;
    world.browser.until("document.getElementById('locks').rows.length === 0")?;
    world.browser.write("#secret", "something else of many bytes")?;
    world.browser.click("#login button")?;
    world.browser.until(&says("status", &["not the server's secret"]))?;
    world.browser.run("document.getElementById('secret').value = ''")?;
    world.browser.write("#secret", SECRET)?;
    world.browser.click("#login button")?;
    world.browser.until(&says("locks", &["backup"]))?;
    world.browser.until("document.getElementById('login').hidden && !document.cookie")?;
    let url = world.browser.run("return location.href")?;
    let page = &world.server.as_ref().expect("it is started").page;
    if url != page.as_str() { Err(format!("the address has changed to {url}")) } else { Ok(()) }
}

fn shows_a_cluster(world: &mut World) -> Result<(), String> {
    let cluster = Cluster::start(&world.program, &world.folder)?.ok_or(NO_ETCD)?;
    world.browser.go(&format!("http://{}/", servers::PAGES[0]))?;
    world.cluster = Some(cluster);
    world.browser.until("!document.getElementById('cluster').hidden")?;
    // Evenly, once both are there.
    world.browser.until(
        "[...document.getElementById('servers').rows].map(row => row.cells[1].innerText).join() === '3,3'",
    )?;
    world.browser.until(&says("cluster-text", &["6 of 6 shards open", "the 3 that this server serves"]))?;
    world.browser.click("#cluster summary")?;
    world.browser.until("document.getElementById('shards').rows.length === 6")?;
    // Some of so many are in the shards of either server.
    let names: Vec<_> = (0..12).map(|number| format!("job/{number}")).collect();
    for name in &names {
        world.run(&[name], false)?;
    }
    let rows = "document.getElementById('locks').rows.length";
    world.browser.until(&format!("0 < {rows} && {rows} < 12"))?;
    world.browser.click("#locks button")?;
    world.browser.until(&says("entries", &["held", "exclusive", "sh"]))?;
    world.browser.click("#close")?;
    world.browser.run("document.getElementById('cluster').scrollIntoView()")?;
    world.picture("cluster")?;
    world.cluster.as_mut().expect("it is started").kill_second();
    world.browser.until(&says("cluster-text", &["6 of 6 shards open", "the 6 that this server serves"]))?;
    world.browser.until("document.getElementById('servers').rows.length === 1")?;
    world.browser.until(&format!("{rows} === 12"))?;
    // Broken here, as etcd has it: its `run` ends, and with it the grant.
    world.browser.click("#locks button")?;
    world.browser.until("document.querySelector('#entries button')")?;
    world.browser.click("#entries button")?;
    world.browser.click("#yes")?;
    world.browser.until(&says("status", &["Broken"]))?;
    world.browser.until("document.getElementById('history').rows[0]?.innerText.includes('broken')")
}
