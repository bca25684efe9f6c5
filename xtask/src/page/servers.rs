//! One etcd and two servers of a cluster, in the chore's own network: every port there is free.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What clients say.
pub(super) const SPACE: &str = "cluster://127.0.0.1:2379/page/stock";
/// Where the servers show their pages.
pub(super) const PAGES: [&str; 2] = ["127.0.0.1:5690", "127.0.0.1:5691"];
/// Where they listen: room for their shards.
const LISTEN: [&str; 2] = ["127.0.0.1:5700", "127.0.0.1:5720"];
/// How long etcd may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gone when it is dropped.
pub(super) struct Cluster {
    processes: Vec<Child>,
    /// etcd's.
    folder: PathBuf,
}

impl Cluster {
    /// `None`: there is no etcd.
    pub(super) fn start(program: &Path, folder: &Path) -> Result<Option<Self>, String> {
        let folder = folder.join("etcd");
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir").arg(&folder).arg("--unsafe-no-fsync");
        let Ok(etcd) = quiet(&mut etcd).spawn() else { return Ok(None) };
        let mut cluster = Self { processes: vec![etcd], folder };
        let began = Instant::now();
        while std::net::TcpStream::connect("127.0.0.1:2379").is_err() {
            if began.elapsed() > PATIENCE {
                return Err("etcd does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        for (listen, page) in LISTEN.into_iter().zip(PAGES) {
            let mut serve = Command::new(program);
            serve.args(["serve", "--cluster", "etcd://127.0.0.1:2379/page", "--shards", "6"]);
            serve.args(["--listen", listen, "--http", page, "--json"]);
            let mut server =
                quiet(&mut serve).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
            let said = server.stdout.take().map(BufReader::new);
            cluster.processes.push(server);
            let mut line = String::new();
            let read = said.map(|mut said| said.read_line(&mut line));
            if !matches!(read, Some(Ok(1..))) {
                return Err(format!("the server at {listen} does not start"));
            }
        }
        Ok(Some(cluster))
    }

    /// The second server is killed.
    pub(super) fn kill_second(&mut self) {
        if let Some(mut server) = self.processes.pop() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
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
