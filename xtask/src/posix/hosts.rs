//! Two hosts and a server, as network namespaces behind one bridge. Their mounts are of the same files, which is as if both had
//! the same network file system.

use super::ways::{Mount, NotMounted, Server};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Who there is, and the last part of its address.
const NAMES: [(&str, u32); 3] = [("server", 1), ("one", 2), ("two", 3)];

/// See the module. All is gone when this is dropped.
pub(super) struct Hosts {
    /// Dropped before the namespaces go.
    server: Option<Server>,
    network: Network,
    secret: PathBuf,
}

struct Network {
    prefix: String,
}

fn ip(args: &[&str]) -> bool {
    let mut ip = Command::new("ip");
    ip.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ip.status().is_ok_and(|status| status.success())
}

impl Hosts {
    /// `None`, and a line that says so, where there can be none.
    pub(super) fn start(program: &Path, folder: &Path) -> Result<Option<Self>, String> {
        let Some(network) = Network::start() else {
            println!(
                "\n== two hosts: skipped: it takes root, `ip` and a kernel with network namespaces and bridges"
            );
            return Ok(None);
        };
        let secret = folder.join("secret");
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&secret);
        file.and_then(|mut file| file.write_all(b"known to two hosts and a server"))
            .map_err(|error| format!("{}: {error}", secret.display()))?;
        let at = address("server");
        let mut serve = network.command("server", program);
        serve
            .args(["serve", "--state", "none", "--listen", &format!("{at}:0"), "--secret-file"])
            .arg(&secret);
        let server = Server::start_as(serve.current_dir(folder), &at)?;
        Ok(Some(Self { server: Some(server), network, secret }))
    }

    /// A mount on one of the hosts.
    pub(super) fn mount(
        &self,
        program: &Path,
        host: &str,
        folders: (PathBuf, PathBuf),
    ) -> Result<Mount, NotMounted> {
        let mut command = self.network.command(host, program);
        command.arg("mount");
        let space = self.server.as_ref().map(|server| server.address.clone()).unwrap_or_default();
        let secret = self.secret.to_string_lossy();
        Mount::start_as(command, folders, &space, &["--name", "files", "--secret-file", &secret])
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_file(&self.secret);
    }
}

fn address(name: &str) -> String {
    let last = NAMES.iter().find(|(other, _)| *other == name).map_or(0, |(_, last)| *last);
    format!("10.79.0.{last}")
}

impl Network {
    fn start() -> Option<Self> {
        if !crate::setup::is_root() || !ip(&["netns", "list"]) {
            return None;
        }
        let network = Self { prefix: format!("posix-{}", std::process::id()) };
        let switch = network.namespace("switch");
        let mut made = ip(&["netns", "add", &switch])
            && ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", &switch, "link", "set", "br0", "up"]);
        for (name, _) in NAMES {
            let (space, port) = (network.namespace(name), format!("p-{name}"));
            let address = format!("{}/24", address(name));
            made = made
                && ip(&["netns", "add", &space])
                && ip(&[
                    "-n", &space, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns",
                    &switch,
                ])
                && ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])
                && ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])
                && ip(&["-n", &space, "link", "set", "eth0", "up"])
                && ip(&["-n", &space, "link", "set", "lo", "up"]);
        }
        made.then_some(network)
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// A program on one of the hosts. `ip netns exec` would hide what it mounts.
    fn command(&self, on: &str, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(on))).arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in NAMES.map(|(name, _)| name).into_iter().chain(["switch"]) {
            ip(&["netns", "del", &self.namespace(name)]);
        }
    }
}
