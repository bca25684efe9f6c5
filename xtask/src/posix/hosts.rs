//! Two hosts and a server, as network namespaces behind one bridge. Their mounts are of the same files, which is as if both had
//! the same network file system. The server is one alone, and later one of a cluster, with its etcd beside it.

use super::ways::{Mount, NotMounted, Server};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Who there is, and the last part of its address.
const NAMES: [(&str, u32); 3] = [("server", 1), ("one", 2), ("two", 3)];

/// How long an etcd may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

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
    quiet(Command::new("ip").args(args)).status().is_ok_and(|status| status.success())
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

    /// The space of the server that is alone.
    pub(super) fn space(&self) -> String {
        self.server.as_ref().map(|server| server.address.clone()).unwrap_or_default()
    }

    /// A mount on one of the hosts.
    pub(super) fn mount(
        &self,
        program: &Path,
        host: &str,
        folders: (PathBuf, PathBuf),
        space: &str,
    ) -> Result<Mount, NotMounted> {
        let mut command = self.network.command(host, program);
        command.arg("mount");
        let secret = self.secret.to_string_lossy();
        Mount::start_as(command, folders, space, &["--name", "files", "--secret-file", &secret])
    }

    /// A cluster of one server, on an etcd that is found on `path`.
    pub(super) fn cluster(&self, program: &Path, folder: &Path, path: &OsStr) -> Result<Cluster, String> {
        let at = address("server");
        let mut cluster = Cluster {
            processes: Vec::new(),
            folder: folder.join("etcd"),
            space: format!("cluster://{at}:2379/posix/files"),
        };
        let mut etcd = self.network.command("server", Path::new("etcd"));
        etcd.env("PATH", path).arg("--unsafe-no-fsync").arg("--data-dir").arg(&cluster.folder);
        etcd.args(["--listen-client-urls", "http://0.0.0.0:2379"]);
        etcd.args(["--advertise-client-urls", &format!("http://{at}:2379")]);
        cluster.processes.push(quiet(&mut etcd).spawn().map_err(|error| error.to_string())?);
        let began = Instant::now();
        let mut asked = self.network.command("server", Path::new("etcdctl"));
        quiet(asked.env("PATH", path).args(["endpoint", "health"]));
        while !asked.status().is_ok_and(|status| status.success()) {
            if began.elapsed() > PATIENCE {
                return Err("etcd does not answer".to_owned());
            }
        }
        let mut serve = self.network.command("server", program);
        serve.args(["serve", "--cluster", "etcd://127.0.0.1:2379/posix", "--shards", "2"]);
        serve
            .args(["--listen", &format!("{at}:5700"), "--secret-file"])
            .arg(&self.secret)
            .current_dir(folder);
        let mut server =
            quiet(&mut serve).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let said = server.stdout.take().map(BufReader::new);
        cluster.processes.push(server);
        match said.map(|mut said| said.read_line(&mut String::new())) {
            Some(Ok(1..)) => Ok(cluster),
            _ => Err("the server of a cluster does not start".to_owned()),
        }
    }
}

/// Ended when it is dropped.
pub(super) struct Cluster {
    processes: Vec<Child>,
    /// etcd's.
    folder: PathBuf,
    pub(super) space: String,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
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
