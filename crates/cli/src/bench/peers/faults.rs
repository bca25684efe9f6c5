//! What becomes of a lock whose holder is killed or paused, shown on every peer by real processes.
//!
//! - **Killed**: a process takes the lock and is killed with SIGKILL while another client waits: the time until that has the lock.
//! - **Paused**: a process takes the lock and is stopped with SIGSTOP, for longer than the peer keeps the lock of a silent client, while
//!   another client waits. Then it goes on, and writes to a file as it meant to, if its client library does not tell it that the lock is
//!   lost. If the other has the lock by then, that write is stale.
//!
//! A quick run pauses nobody, and kills holders only of peers that notice the end of a process.

use super::{Mode, Peer};
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a waiter waits beyond the time for which a peer keeps the lock of a silent client.
const BEYOND: Duration = Duration::from_secs(4);

/// What came of it on one peer.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) peer: &'static str,
    /// After the holder was killed; `None` if that was not tried.
    pub(super) free_after: Option<Duration>,
    paused: Option<Paused>,
    lets_go_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paused {
    /// The other got the lock, and the holder's write went through.
    GetsThrough,
    /// The other got the lock, and the holder's client said that it is lost.
    IsStopped,
    /// The lock stays with its holder, for however long.
    Keeps,
}

impl Fault {
    pub(super) fn freed(&self) -> String {
        match self.free_after {
            Some(time) => format!("{:.2} s", time.as_secs_f64()),
            None => format!("not tried; set to {} s", self.lets_go_after.unwrap_or_default().as_secs()),
        }
    }

    pub(super) fn paused(&self) -> String {
        let text = match self.paused {
            Some(Paused::GetsThrough) => "gets through",
            Some(Paused::IsStopped) => "its client says that the lock is lost",
            Some(Paused::Keeps) => "is no stale one: others wait until it goes on",
            None => "not tried",
        };
        text.to_owned()
    }
}

/// Tries it on every peer whose locks are taken by more than one process.
pub(super) fn run(peers: &[Box<dyn Peer>], quick: bool) -> Result<Vec<Fault>> {
    std::thread::scope(|scope| {
        let tried: Vec<_> = peers
            .iter()
            .filter(|peer| !peer.address().is_empty())
            .map(|peer| (peer, scope.spawn(move || one(&**peer, quick))))
            .collect();
        let ended = tried.into_iter().map(|(peer, tried)| {
            tried.join().expect("it does not panic").with_context(|| format!("a holder of {}", peer.name()))
        });
        ended.collect()
    })
}

fn one(peer: &dyn Peer, quick: bool) -> Result<Fault> {
    let lets_go_after = peer.lets_go_after();
    let mut fault = Fault { peer: peer.name(), free_after: None, paused: None, lets_go_after };
    if quick && !peer.sees_ends() {
        return Ok(fault);
    }
    // Side by side: some keep the lock of a silent client for a minute.
    std::thread::scope(|scope| {
        let paused = (!quick).then(|| scope.spawn(|| paused(peer)));
        fault.free_after = Some(killed(peer)?);
        fault.paused = paused.map(|paused| paused.join().expect("it does not panic")).transpose()?;
        Ok(fault)
    })
}

/// A process that has taken the lock. Dropped, it is killed.
struct Holder(Child);

impl Holder {
    fn start(peer: &dyn Peer, lock: &str, file: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "--holder", peer.name(), &peer.address(), lock]).arg(file);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("it has an output")?;
        let holder = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim() == "holds" { Ok(holder) } else { bail!("it did not get the lock") }
    }

    fn send(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().cast_signed()), signal)?)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn killed(peer: &dyn Peer) -> Result<Duration> {
    // Two peers may be one server.
    let lock = &format!("killed, {}", peer.name());
    let holder = Holder::start(peer, lock, Path::new("/dev/null"))?;
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let mut waiter = peer.connect()?;
            waiter.lock(lock, Mode::Exclusive)?;
            let got = Instant::now();
            waiter.unlock(lock, Mode::Exclusive)?;
            Ok::<_, anyhow::Error>(got)
        });
        // It waits by then, or takes the lock as soon as it asks.
        std::thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        drop(holder);
        let got = waits.join().expect("it does not panic")?;
        Ok(got.saturating_duration_since(began))
    })
}

fn paused(peer: &dyn Peer) -> Result<Paused> {
    let folder =
        super::process::Folder::new(&format!("paused-{}", peer.name().replace([',', ' ', '='], "")))?;
    let file = folder.0.join("file");
    let lock = &format!("paused, {}", peer.name());
    let mut holder = Holder::start(peer, lock, &file)?;
    holder.send(Signal::SIGSTOP)?;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let waits = || {
                let mut waiter = peer.connect()?;
                waiter.lock(lock, Mode::Exclusive)?;
                let _ = tell.send(Ok(()));
                waiter.unlock(lock, Mode::Exclusive)
            };
            if let Err(error) = waits() {
                let _ = tell.send(Err(error));
            }
        });
        let got = told.recv_timeout(peer.lets_go_after().unwrap_or_default() + BEYOND);
        holder.send(Signal::SIGCONT)?;
        let got = match got {
            Ok(got) => got.map(|()| true).context("the one who waits for a paused holder")?,
            Err(_) => false,
        };
        // Its client has a moment to find out.
        std::thread::sleep(Duration::from_secs(1));
        drop(holder.0.stdin.take());
        let wrote = holder.0.wait()?.success() && file.exists();
        Ok(match (got, wrote) {
            (true, true) => Paused::GetsThrough,
            (true, false) => Paused::IsStopped,
            (false, _) => Paused::Keeps,
        })
    })
}

/// The holder's own main: takes the lock, says so, waits for the end of its input, and writes to the file if it believes to have the
/// lock.
pub(super) fn hold(peer: &dyn Peer, lock: &str, file: &Path) -> Result<()> {
    let mut locker = peer.connect()?;
    locker.lock(lock, Mode::Exclusive)?;
    println!("holds");
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    if locker.believes(lock) {
        std::fs::write(file, "late")?;
    }
    // A lock that is lost cannot be given back.
    let _ = locker.unlock(lock, Mode::Exclusive);
    Ok(())
}
