//! Five machines: a decider, and four with two client processes each, with faults at random from a seed. The processes of a
//! machine are killed, its packets are lost, it is cut off; the decider is killed, or told to end, and started again. All the time one
//! machine loses a few packets of a hundred, and the clients of another reach the decider by way of a proxy that loses, doubles,
//! delays and reorders them. Once with the decider in user space, and in builds with the feature `xdp` once with that in the kernel.
//!
//! Machines are network namespaces, so this needs root; it runs with LOCKWRIGHT_NETWORK=1 in the environment. `LOCKWRIGHT_CLUSTER_SECS` says how long (20),
//! `LOCKWRIGHT_CLUSTER_SEED` repeats the order of faults.

mod counting;
#[path = "../../server/tests/lossy/mod.rs"]
mod lossy;
mod machines;
mod started;

use counting::{CLIENTS, Counting, count_as_told, is_client, seed_and_time, variable};
use lockwright_fabric::random::SplitMix;
use lossy::Lossy;
use machines::{Machines, SWITCH};
use nix::sys::signal::Signal;
use serde_json::Value;
use started::Started;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const DECIDER: &str = "d";
const HOSTS: [&str; 4] = ["c0", "c1", "c2", "c3"];
/// Whose packets are lost all the time, so many of a hundred.
const LOSSY: (&str, u32) = ("c1", 5);
/// Whose clients reach the decider by way of a proxy.
const BEHIND_PROXY: usize = 3;
const PORT: u16 = 5627;
/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn client() {
    count_as_told();
}

/// Everything, gone when it is dropped.
struct World {
    decider: Started,
    in_kernel: bool,
    /// What the other end of the decider's cable must have for the kernel's: a program that passes everything.
    _far_end: Option<Started>,
    proxy: Lossy,
    clients: Counting,
    /// The numbers of the clients, by their machines.
    at: [Vec<u64>; 4],
    folder: Folder,
    machines: Machines,
    /// One world at a time: namespaces have one name.
    _alone: MutexGuard<'static, ()>,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn piped(mut command: Command) -> Started {
    command.env_remove("LOCKWRIGHT_SECRET_FILE").env_remove("LOCKWRIGHT_SPACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    Started::new(command)
}

fn decide(machines: &Machines, folder: &Folder, in_kernel: bool) -> Started {
    let mut decider = machines.command(DECIDER, env!("CARGO_BIN_EXE_lockwright"));
    decider.args(["switch", "--json", "--listen", &format!("{}:{PORT}", machines.address(DECIDER))]);
    decider.arg("--state").arg(folder.0.join("state"));
    decider.arg("--secret-file").arg(folder.0.join("counts/secret"));
    if in_kernel {
        decider.args(["--xdp", "eth0"]);
    }
    let decider = piped(decider);
    assert!(decider.line.contains("listening"), "the decider says {:?}", decider.line);
    decider
}

impl World {
    fn start(in_kernel: bool) -> Option<Self> {
        if variable("LOCKWRIGHT_NETWORK").is_none() {
            println!("skipped: `cargo xtask xdp` runs this, or LOCKWRIGHT_NETWORK=1 in the environment");
            return None;
        }
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<_> = [DECIDER].into_iter().chain(HOSTS).collect();
        let machines = Machines::start(&names)?;
        if !machines.lose(LOSSY.0, LOSSY.1) {
            println!("skipped: there is no nft that loses packets (apt-get install nftables)");
            return None;
        }
        let name = format!("lockwright-decider-{}-{in_kernel}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(folder.0.join("counts")).expect("a folder");
        std::fs::write(folder.0.join("counts/secret"), "nobody else knows this, and it is long enough")
            .expect("written");
        // The decider of another machine: what is not for it passes.
        let far_end = in_kernel.then(|| {
            let mut other = machines.command(SWITCH, env!("CARGO_BIN_EXE_lockwright"));
            other.args(["switch", "--json", "--state", "none", "--xdp", &format!("p-{DECIDER}")]);
            piped(other)
        });
        let decider = decide(&machines, &folder, in_kernel);
        machines.enter(HOSTS[BEHIND_PROXY]);
        let address = format!("{}:{PORT}", machines.address(DECIDER)).parse().expect("an address");
        let proxy = Lossy::to(address, 3, 20_261_118);
        let clients = Counting::none(&folder.0.join("counts"));
        let at = [const { Vec::new() }; 4];
        let mut world = Self {
            decider,
            in_kernel,
            _far_end: far_end,
            proxy,
            clients,
            at,
            folder,
            machines,
            _alone: alone,
        };
        (0..HOSTS.len()).for_each(|host| world.populate(host));
        Some(world)
    }

    fn space(&self, host: usize) -> String {
        match host {
            BEHIND_PROXY => format!("fiss://{}/stock", self.proxy.address),
            _ => format!("fiss://{}:{PORT}/stock", self.machines.address(DECIDER)),
        }
    }

    /// Starts the clients of a machine.
    fn populate(&mut self, host: usize) {
        let space = self.space(host);
        self.machines.enter(HOSTS[host]);
        for _ in 0..CLIENTS as usize / HOSTS.len() {
            let number = self.clients.one_more(&space);
            self.at[host].push(number);
        }
    }

    fn status(&self) -> Option<Value> {
        let mut asked = self.machines.command(DECIDER, env!("CARGO_BIN_EXE_lockwright"));
        asked.args(["switch", "--json", &format!("--status={}:{PORT}", self.machines.address(DECIDER))]);
        asked.arg("--secret-file").arg(self.folder.0.join("counts/secret"));
        let said = asked.stdin(Stdio::null()).output().expect("it runs");
        serde_json::from_slice(&said.stdout).ok()
    }

    /// All clients are there, and the decider, which counts from its last start, has granted something.
    fn until_all_go_on(&self) -> Value {
        let began = Instant::now();
        loop {
            let status = self.status();
            let is_so = |status: &Value| {
                (&status["state"], status["clients"].as_u64()) == (&Value::from("open"), Some(CLIENTS))
                    && status["packets"]["grants"].as_u64() > Some(0)
            };
            match status {
                Some(status) if is_so(&status) => return status,
                _ => assert!(began.elapsed() < PATIENCE, "it takes too long until all go on: {status:?}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Nothing of a decider that was killed decides any more.
    fn assert_no_program(&self) {
        let said = self.machines.command(DECIDER, "ip").args(["link", "show", "eth0"]).output().expect("ip");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(!said.contains("xdp"), "{said}");
    }

    /// One fault, for a while.
    fn fault(&mut self, random: &mut SplitMix) -> String {
        let (what, host) = (random.below(7), random.below(4) as usize);
        let pause = Duration::from_millis(200 + random.below(2800));
        let name = HOSTS[host];
        match what {
            0 | 1 => {
                for number in std::mem::take(&mut self.at[host]) {
                    self.clients.kill(number);
                }
                std::thread::sleep(pause);
                self.populate(host);
                format!("{name}: its clients killed, others started after {pause:?}")
            }
            2 | 3 => {
                let how = if what == 2 { Signal::SIGKILL } else { Signal::SIGTERM };
                self.decider.send(how);
                let _ = self.decider.child.wait();
                self.assert_no_program();
                std::thread::sleep(pause);
                self.decider = decide(&self.machines, &self.folder, self.in_kernel);
                format!("the decider: {how}, and started again after {pause:?}")
            }
            4 => {
                self.machines.cut(name, DECIDER);
                std::thread::sleep(pause);
                self.machines.heal();
                format!("{name}: what it sends is lost for {pause:?}")
            }
            5 => {
                self.machines.cut(DECIDER, name);
                std::thread::sleep(pause);
                self.machines.heal();
                format!("{name}: what it is sent is lost for {pause:?}")
            }
            _ => {
                let number = self.at[host][0];
                self.clients.signal(number, Signal::SIGSTOP);
                std::thread::sleep(pause);
                self.clients.signal(number, Signal::SIGCONT);
                format!("{name}: a client stopped for {pause:?}")
            }
        }
    }
}

fn lose_no_count(in_kernel: bool) {
    if is_client() {
        return;
    }
    let Some(mut world) = World::start(in_kernel) else { return };
    let (mut random, time) = seed_and_time();
    world.until_all_go_on();
    let until = Instant::now() + time;
    while Instant::now() < until {
        println!("{}", world.fault(&mut random));
        std::thread::sleep(Duration::from_millis(200 + random.below(1500)));
    }
    // Whatever is wrong heals by itself.
    let status = world.until_all_go_on();
    println!("{status}");
    assert_eq!(status["by"].as_str().expect("a place").contains("kernel"), in_kernel, "{status}");
    let lost = world.machines.lost(LOSSY.0);
    let proxied = world.proxy.lost.load(std::sync::atomic::Ordering::Relaxed);
    println!("{lost} packets lost at {}, {proxied} at the proxy", LOSSY.0);
    assert!(lost > 0 && proxied > 0, "{lost} {proxied}");
    let World { clients, .. } = &mut world;
    std::mem::replace(clients, Counting::none(&PathBuf::new())).end();
}

#[test]
fn whatever_happens_on_the_network_of_a_decider_no_count_under_a_lock_is_lost() {
    lose_no_count(false);
}

#[cfg(feature = "xdp")]
#[test]
fn whatever_happens_on_the_network_of_a_decider_in_the_kernel_no_count_under_a_lock_is_lost() {
    lose_no_count(true);
}
