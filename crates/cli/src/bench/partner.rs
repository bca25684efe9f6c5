//! The other process of a bench: this program again.

use super::ball;
use super::bare::pin;
use anyhow::{Context, Result, bail};
use lockwright::Client;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A started partner: it works until its input is closed.
#[derive(Debug)]
pub(super) struct Partner(Child);

impl Partner {
    /// Starts it, and waits until it is ready.
    pub(super) fn start(what: &str, space: &str, core: usize) -> Result<Self> {
        Self::start_with(what, space, core, [])
    }

    /// The same, with more in its environment.
    pub(super) fn start_with<'a>(
        what: &str,
        space: &str,
        core: usize,
        environment: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
    ) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "--partner", &format!("{what}@{core}"), space])
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other process")?;
        let mut ready = [0];
        child.stdout.as_mut().context("it has an output")?.read_exact(&mut ready)?;
        Ok(Self(child))
    }

    /// Tells it something, and returns the line that it answers.
    pub(super) fn ask(&mut self, what: &str) -> Result<String> {
        writeln!(self.0.stdin.as_mut().context("it has an input")?, "{what}")?;
        let said = self.0.stdout.as_mut().context("it has an output")?;
        let (mut line, mut byte) = (Vec::new(), [0]);
        while byte != *b"\n" {
            said.read_exact(&mut byte).context("the other process failed")?;
            line.extend(byte);
        }
        Ok(String::from_utf8(line)?)
    }

    /// Lets it end; returns what it had to say.
    pub(super) fn end(mut self) -> Result<String> {
        drop(self.0.stdin.take());
        let mut said = String::new();
        self.0.stdout.take().context("it has an output")?.read_to_string(&mut said)?;
        if !self.0.wait()?.success() {
            bail!("the other process failed");
        }
        Ok(said)
    }
}

/// The partner's own main.
pub(super) fn run(what: &str, space: &str) -> Result<()> {
    let (what, core) = what.split_once('@').context("what, and on which core")?;
    if what == "serve" {
        return super::tcp::serve(core.parse()?);
    }
    #[cfg(feature = "fiss")]
    if what == "plain" {
        let socket = std::net::UdpSocket::bind(space)?;
        println!("{space}");
        return super::udp_lock::serve(&socket);
    }
    #[cfg(feature = "rdma")]
    if what == "beside" {
        return super::one_sided::partner(space);
    }
    if what == "fcntl" {
        return super::posix::partner(space, core.parse()?);
    }
    let client = Client::open(space).wait()?;
    pin(core.parse()?);
    let mut out = ready()?;
    match what {
        "play" => play(&client, out),
        "wait" => {
            let lock = client.mutex("long")?;
            let before = cpu_ns()?;
            drop(lock.lock().wait()?);
            Ok(write!(out, "{}", cpu_ns()? - before)?)
        }
        other => bail!("no such part: {other}"),
    }
}

/// Says that it is ready; what else it says follows.
pub(super) fn ready() -> Result<impl Write> {
    let mut out = std::io::stdout().lock();
    out.write_all(b".")?;
    out.flush()?;
    Ok(out)
}

/// Until its input is closed; then it tells its turns.
fn play(client: &Client, mut out: impl Write) -> Result<()> {
    /// More than any play takes.
    const TURNS: usize = 100_000;
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        theirs.store(true, Relaxed);
    });
    let turns = ball::play(&client.mutex("ball")?, |turns| turns == TURNS || stop.load(Relaxed))?;
    Ok(out.write_all(ball::told(&turns).as_bytes())?)
}

/// CPU time of all threads of this process so far.
fn cpu_ns() -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}
