//! Machines of one test: network namespaces behind one bridge. What one sends to another can be dropped, in one direction or both.
//!
//! A direction is cut by a wrong address of the link layer for the other machine: packets leave, and no machine takes them. So nothing
//! but `ip` is needed, and the sender is told nothing, as on a network that loses packets.

use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::process::{Command, Stdio};

/// See the module. They are gone when this is dropped.
pub(crate) struct Machines {
    prefix: String,
    names: Vec<&'static str>,
}

/// What has all cables in it.
pub(crate) const SWITCH: &str = "switch";
/// Nobody has this address.
const NOBODY: &str = "02:00:00:00:00:99";

/// Whether an `ip` command succeeds.
fn ip(args: &[&str]) -> bool {
    let mut ip = Command::new("ip");
    ip.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ip.status().is_ok_and(|status| status.success())
}

impl Machines {
    /// `None`, and a line that says so, where there can be none.
    pub(crate) fn start(names: &[&'static str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || !ip(&["netns", "list"]) {
            println!("skipped: only root makes network namespaces, with `ip` (apt-get install iproute2)");
            return None;
        }
        let prefix = format!("serve-{}", std::process::id());
        let machines = Self { prefix, names: names.to_vec() };
        let switch = machines.namespace(SWITCH);
        let made = ip(&["netns", "add", &switch])
            && ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", &switch, "link", "set", "lo", "up"])
            && ip(&["-n", &switch, "link", "set", "br0", "up"]);
        if !made {
            println!("skipped: this kernel has no network namespaces or bridges");
            return None;
        }
        for name in names {
            let (space, port) = (machines.namespace(name), format!("p-{name}"));
            let address = format!("{}/24", machines.address(name));
            for args in [
                &["netns", "add", &space][..],
                &[
                    "-n", &space, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns",
                    &switch,
                ],
                &["-n", &switch, "link", "set", &port, "master", "br0", "up"],
                &["-n", &space, "addr", "add", &address, "dev", "eth0"],
                &["-n", &space, "link", "set", "eth0", "up"],
                &["-n", &space, "link", "set", "lo", "up"],
            ] {
                assert!(ip(args), "ip {}", args.join(" "));
            }
        }
        Some(machines)
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// The address of a machine.
    pub(crate) fn address(&self, name: &str) -> String {
        let at = self.names.iter().position(|other| *other == name).expect("one of them");
        format!("10.77.0.{}", 10 + at)
    }

    /// A program on a machine. Its process is the command's own.
    pub(crate) fn command(&self, on: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(on), program]);
        command
    }

    /// The calling thread, and what it starts from now on, is on this machine.
    pub(crate) fn enter(&self, name: &str) {
        let file = File::open(format!("/run/netns/{}", self.namespace(name))).expect("it was made");
        setns(file, CloneFlags::CLONE_NEWNET).expect("root may");
    }

    /// Of a hundred packets (UDP) that this machine is sent, so many are lost from now on. By `nft`; false if that cannot be.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn lose(&self, at: &str, percent: u32) -> bool {
        let rules = format!(
            "table inet lossy; delete table inet lossy; table inet lossy {{ chain in {{ type filter hook input priority 0; \
             meta l4proto udp numgen random mod 100 < {percent} counter drop; }}; }}"
        );
        let mut nft = self.command(at, "nft");
        nft.arg(rules).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        nft.status().is_ok_and(|status| status.success())
    }

    /// How many were lost there.
    #[allow(dead_code, reason = "not every test program needs it")]
    pub(crate) fn lost(&self, at: &str) -> u64 {
        let said = self.command(at, "nft").args(["list", "table", "inet", "lossy"]).output().expect("nft");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let count = said.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        count.unwrap_or(0)
    }

    /// Nothing that `from` sends to `to` arrives any more.
    pub(crate) fn cut(&self, from: &str, to: &str) {
        let (space, to) = (self.namespace(from), self.address(to));
        let args =
            ["-n", &space, "neigh", "replace", &to, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"];
        assert!(ip(&args), "cut {from} {to}");
    }

    /// Everything arrives again.
    pub(crate) fn heal(&self) {
        for from in &self.names {
            ip(&["-n", &self.namespace(from), "neigh", "flush", "dev", "eth0", "nud", "permanent"]);
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&SWITCH]) {
            ip(&["netns", "del", &self.namespace(name)]);
        }
    }
}
