//! `lockwright bench --fabric switch`: deciders of FissLock beside other lock servers, on a network of two namespaces of this machine.
//!
//! | | who decides | where it runs |
//! |---|---|---|
//! | decider, XDP | `switch --xdp` | the kernel, on whatever CPU the packet was sent |
//! | decider | `switch` | a process on the clients' CPU, and once on the other |
//! | combiner | `serve`, over TCP | a process on the clients' CPU |
//! | plain | [`super::udp_lock`] | a process on the clients' CPU |
//!
//! Clients are threads of this process, on one CPU. Each takes locks that nobody else wants, one after the other out of so many that
//! none is asked for again before its unlock has arrived. So a grant is a question and an answer over the network every time.
//!
//! CPU time is that of the server's process, and for XDP the program's own, as the kernel counts it; what the network itself takes
//! is in neither as far as interrupts do it.
//!
//! What it must not do: leave a namespace or a process behind.

use super::bare::pin;
use super::udp_lock::UdpClient;
use anyhow::{Context, Result, bail};
use lockwright::Client;
use lockwright_term::{Outcome, grid, say};
use nix::sched::{CloneFlags, setns};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DECIDER: &str = "10.79.0.1";
const CLIENTS: &str = "10.79.0.2";
/// Locks that one client goes through.
const LOCKS: u64 = 64;
const CROWDS: [usize; 3] = [1, 8, 64];
/// Where clients are, and where one decider is beside that.
const NEAR: usize = 0;
const FAR: usize = 1;
/// Whether the kernel counts the time that its programs take.
const COUNTED: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Two namespaces with a cable between them, gone when it is dropped.
struct Network {
    prefix: String,
    /// The secret of servers that listen beyond loopback.
    secret: PathBuf,
}

fn ip(args: &[&str]) -> Result<()> {
    let said = Command::new("ip").args(args).stdin(Stdio::null()).output();
    let said = said.context("there is no `ip` (apt-get install iproute2)")?;
    if !said.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&said.stderr).trim());
    }
    Ok(())
}

impl Network {
    fn new() -> Result<Self> {
        let prefix = format!("lockwright-bench-{}", std::process::id());
        let secret = std::env::temp_dir().join(&prefix);
        fs::write(&secret, SECRET)?;
        let network = Self { prefix, secret };
        let (near, far) = (network.namespace("c"), network.namespace("d"));
        ip(&["netns", "add", &near])?;
        ip(&["netns", "add", &far])?;
        ip(&["-n", &near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &far])?;
        for (space, address) in [(&near, CLIENTS), (&far, DECIDER)] {
            ip(&["-n", space, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", space, "link", "set", "lo", "up"])?;
            ip(&["-n", space, "link", "set", "eth0", "up"])?;
        }
        Ok(network)
    }

    fn namespace(&self, of: &str) -> String {
        format!("{}-{of}", self.prefix)
    }

    /// The calling thread is there from now on, with all threads that it starts.
    fn enter(&self, of: &str) -> Result<()> {
        let namespace = File::open(format!("/run/netns/{}", self.namespace(of)))?;
        Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for of in ["c", "d"] {
            let _ = ip(&["netns", "del", &self.namespace(of)]);
        }
        let _ = fs::remove_file(&self.secret);
    }
}

const SECRET: &str = "of a bench that is soon over";

/// A server's process, killed when it is dropped.
struct Process(Child);

impl Process {
    /// This program with `args`, on a CPU of a namespace; ready when it has said a line.
    fn start(network: &Network, of: &str, core: usize, args: &[&str]) -> Result<Self> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.namespace(of)]).arg(std::env::current_exe()?).args(args);
        command.env_remove("LOCKWRIGHT_SECRET_FILE").env_remove("LOCKWRIGHT_SPACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // What is started is where its thread is.
        let child = std::thread::scope(|threads| {
            threads
                .spawn(|| {
                    pin(core);
                    command.spawn()
                })
                .join()
        });
        let mut process = Self(child.expect("it does not panic").context("a server cannot be started")?);
        let mut line = String::new();
        let out = process.0.stdout.as_mut().context("it has an output")?;
        BufReader::new(out).read_line(&mut line)?;
        if line.is_empty() {
            bail!("`lockwright {}` ended at once", args.join(" "));
        }
        Ok(process)
    }

    /// CPU time so far: of its threads, and of its programs in the kernel.
    fn cpu_ns(&self) -> Result<u64> {
        let folder = PathBuf::from(format!("/proc/{}", self.0.id()));
        let mut sum = 0;
        for task in fs::read_dir(folder.join("task"))? {
            let stat = fs::read_to_string(task?.path().join("schedstat"))?;
            sum += stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
        let mut programs = BTreeMap::new();
        for file in fs::read_dir(folder.join("fdinfo"))? {
            let said = fs::read_to_string(file?.path()).unwrap_or_default();
            let value = |name: &str| {
                said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
            };
            // Several descriptors can be of one program.
            programs.extend(value("prog_id:").zip(value("run_time_ns:")));
        }
        Ok(sum + programs.values().sum::<u64>())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kernel counts the time of its programs, as long as this is there.
struct Counting(String);

impl Counting {
    fn start() -> Result<Self> {
        let before = fs::read_to_string(COUNTED).context("the kernel does not count its programs' time")?;
        fs::write(COUNTED, "1")?;
        Ok(Self(before))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = fs::write(COUNTED, self.0.trim());
    }
}

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Xdp,
    Decider,
    FarDecider,
    Combiner,
    Plain,
}

impl Server {
    const ALL: [Self; 5] = [Self::Xdp, Self::Decider, Self::FarDecider, Self::Combiner, Self::Plain];

    const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "decider, XDP",
            Self::Decider | Self::FarDecider => "decider, user space",
            Self::Combiner => "combiner, TCP",
            Self::Plain => "plain lock, UDP",
        }
    }

    const fn place(self) -> &'static str {
        match self {
            Self::Xdp => "in the clients' CPU's interrupts",
            Self::FarDecider => "on the other CPU",
            _ => "on the clients' CPU",
        }
    }

    fn start(self, network: &Network) -> Result<Process> {
        let (fiss, tcp) = (format!("{DECIDER}:5627"), format!("{DECIDER}:5625"));
        let secret = network.secret.display().to_string();
        let switch = ["switch", "--state", "none", "--secret-file", &secret, "--listen", &fiss];
        match self {
            Self::Xdp => Process::start(network, "d", NEAR, &[&switch[..], &["--xdp", "eth0"]].concat()),
            Self::Decider => Process::start(network, "d", NEAR, &switch),
            Self::FarDecider => Process::start(network, "d", FAR, &switch),
            Self::Combiner => {
                let state = ["--state", "none", "--listen", &tcp, "--secret-file", &secret];
                Process::start(network, "d", NEAR, &[&["serve"], &state[..]].concat())
            }
            Self::Plain => Process::start(
                network,
                "d",
                NEAR,
                &["bench", "--partner", "plain@0", &format!("{DECIDER}:5626")],
            ),
        }
    }

    /// A client of it: takes and gives back the lock of that number.
    fn client(self, number: usize) -> Result<Box<dyn FnMut(u64) -> Result<Duration> + Send>> {
        if self == Self::Plain {
            let mut client = UdpClient::new(format!("{DECIDER}:5626").parse()?)?;
            let first = number as u64 * LOCKS;
            return Ok(Box::new(move |lock| {
                let began = Instant::now();
                client.lock(first + lock)?;
                let took = began.elapsed();
                client.unlock(first + lock)?;
                Ok(took)
            }));
        }
        let space = match self {
            Self::Combiner => format!("tcp://{DECIDER}:5625/bench"),
            _ => format!("fiss://{DECIDER}:5627/bench"),
        };
        let options = Client::options().secret(SECRET).retain(false).timeout(Duration::from_secs(60));
        let client = options.open(&space).wait()?;
        let locks = (0..LOCKS).map(|lock| client.mutex(format!("{number}-{lock}")));
        let locks = locks.collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(move |lock| {
            let began = Instant::now();
            let guard = locks[lock as usize].lock().wait()?;
            let took = began.elapsed();
            drop(guard);
            Ok(took)
        }))
    }
}

/// What was measured of one server under so many clients.
struct Measured {
    server: Server,
    clients: usize,
    p50_ns: f64,
    p99_ns: f64,
    per_second: f64,
    cpu_ns: f64,
}

fn measure(server: Server, clients: usize, network: &Network, time: Duration) -> Result<Measured> {
    let process = server.start(network)?;
    // With the clients themselves, who come and are no grants.
    let (ready, go, over) = (Barrier::new(clients + 1), Barrier::new(clients + 1), AtomicBool::new(false));
    std::thread::scope(|threads| {
        let started: Vec<_> = (0..clients)
            .map(|number| {
                let (ready, go, over) = (&ready, &go, &over);
                threads.spawn(move || -> Result<Vec<u64>> {
                    pin(NEAR);
                    let entered = network.enter("c").and_then(|()| server.client(number));
                    let warm = entered.and_then(|mut client| {
                        (0..LOCKS).try_for_each(|lock| client(lock).map(drop)).map(|()| client)
                    });
                    ready.wait();
                    go.wait();
                    let (mut client, mut times) = (warm?, Vec::new());
                    for lock in (0..LOCKS).cycle() {
                        if over.load(Relaxed) {
                            break;
                        }
                        times.push(client(lock)?.as_nanos() as u64);
                    }
                    Ok(times)
                })
            })
            .collect();
        ready.wait();
        let (began, before) = (Instant::now(), process.cpu_ns());
        go.wait();
        std::thread::sleep(time);
        over.store(true, Relaxed);
        let (took, after) = (began.elapsed(), process.cpu_ns());
        let mut times = Vec::new();
        for thread in started {
            times.extend(thread.join().expect("it does not panic")?);
        }
        times.sort_unstable();
        let at =
            |share: f64| times.get((times.len() as f64 * share) as usize).map_or(f64::NAN, |ns| *ns as f64);
        let grants = times.len() as f64;
        let cpu_ns = (after? - before?) as f64 / grants;
        Ok(Measured {
            server,
            clients,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            per_second: grants / took.as_secs_f64(),
            cpu_ns,
        })
    })
}

/// What is to be reached, and was it.
struct Goal {
    what: &'static str,
    ratio: f64,
    bound: f64,
    at_most: bool,
}

impl Goal {
    fn holds(&self) -> bool {
        if self.at_most { self.ratio <= self.bound } else { self.ratio >= self.bound }
    }
}

fn goals(all: &[Measured]) -> Vec<Goal> {
    let of = |server| all.iter().find(|one| one.server == server && one.clients == 1);
    let (Some(xdp), Some(near), Some(tcp)) = (of(Server::Xdp), of(Server::Decider), of(Server::Combiner))
    else {
        return Vec::new();
    };
    vec![
        Goal {
            what: "XDP p50 against the decider in user space on the same CPU, 1 client",
            ratio: xdp.p50_ns / near.p50_ns,
            bound: 0.5,
            at_most: true,
        },
        Goal {
            what: "XDP p50 against the combiner over TCP, 1 client",
            ratio: xdp.p50_ns / tcp.p50_ns,
            bound: 0.6,
            at_most: true,
        },
        Goal {
            what: "grants per CPU second of the decider, XDP against user space, 1 client",
            ratio: near.cpu_ns / xdp.cpu_ns,
            bound: 3.0,
            at_most: false,
        },
    ]
}

/// Why a goal is missed, as far as this run can tell.
const MADE_OF: &str = "the client's part is in all figures: system calls, and a thread that reads packets, is woken and wakes the task";

pub(super) fn run(quick: bool, busy: Option<&str>, json: bool, out: &mut impl Write) -> Result<Outcome> {
    if !nix::unistd::geteuid().is_root() {
        bail!("only root makes network namespaces, between which this is measured");
    }
    let network = Network::new()?;
    let counting = Counting::start();
    let time = Duration::from_millis(if quick { 300 } else { 2000 });
    // Frames that a driver turns round are lost at an end of a virtual cable that has no program.
    let far_end = ["switch", "--state", "none", "--xdp", "eth0"];
    let far_end = if cfg!(feature = "xdp") {
        Process::start(&network, "c", FAR, &far_end)
            .and_then(|far_end| counting.map(|counting| (far_end, counting)))
    } else {
        Err(anyhow::anyhow!("this build has no XDP: `cargo build --features xdp` makes one that does"))
    };
    if let Err(why) = &far_end {
        say!("without XDP: {why:#}");
    }
    let mut all = Vec::new();
    for server in Server::ALL.into_iter().filter(|server| *server != Server::Xdp || far_end.is_ok()) {
        for clients in CROWDS {
            let measured = measure(server, clients, &network, time);
            all.push(measured.with_context(|| format!("{}, {clients} clients", server.name()))?);
        }
    }
    let goals = goals(&all);
    if json {
        for one in &all {
            let said = json!({
                "server": one.server.name(), "place": one.server.place(), "clients": one.clients, "p50_ns": one.p50_ns,
                "p99_ns": one.p99_ns, "grants_per_second": one.per_second, "cpu_ns_per_grant": one.cpu_ns,
            });
            writeln!(out, "{said}")?;
        }
        for goal in &goals {
            let said =
                json!({ "goal": goal.what, "ratio": goal.ratio, "bound": goal.bound, "holds": goal.holds() });
            writeln!(out, "{said}")?;
        }
    } else {
        write(&all, &goals, busy, out)?;
    }
    Ok(Outcome::clean_if(goals.iter().all(Goal::holds)))
}

fn write(all: &[Measured], goals: &[Goal], busy: Option<&str>, out: &mut impl Write) -> Result<()> {
    let head = ["", "where", "clients", "grant p50", "p99", "grants/s", "server CPU per grant"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(all.iter().map(|one| {
        let [p50, p99, cpu] = [one.p50_ns, one.p99_ns, one.cpu_ns].map(super::time);
        let (clients, rate) = (one.clients.to_string(), format!("{:.0}", one.per_second));
        [one.server.name().into(), one.server.place().into(), clients, p50, p99, rate, cpu]
    }));
    grid(out, &lines)?;
    for goal in goals {
        let verdict = if goal.holds() { "ok" } else { "MISS" };
        let most = if goal.at_most { "most" } else { "least" };
        writeln!(out, "{verdict:4} {}: {:.2}, at {most} {}", goal.what, goal.ratio, goal.bound)?;
        if !goal.holds() {
            let busy = busy.map(|busy| format!("; {busy}")).unwrap_or_default();
            writeln!(out, "     {MADE_OF}{busy}")?;
        }
    }
    if goals.is_empty() {
        writeln!(out, "no goal was looked at: they are of XDP")?;
    }
    Ok(())
}
