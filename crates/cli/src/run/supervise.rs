//! The supervisor: one thread that waits for the lock, for signals, for the command, and for the loss of the lock.
//!
//! Everything is a file descriptor in one `poll`: signals by signalfd, wakers and the lost-lock signal by a socket pair.

use super::signals::{Came, Inbox};
use super::{Args, OnLost, child, environment, os};
use lockwright::{Acquire, AnyGuard, Client, LockError, LostReason, LostSignal};
use lockwright_term::say;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Between SIGTERM and SIGKILL for a command whose lock is lost.
const GRACE: Duration = Duration::from_secs(5);

/// How long somebody waits before it is worth a word.
const A_WHILE: Duration = Duration::from_secs(1);

/// How waiting for the lock ended.
pub(super) enum Waited {
    Granted(AnyGuard),
    Refused(LockError),
    /// A signal came first: its number.
    Signal(u8),
}

/// Waits for the lock, unless a signal comes first. If it takes a while, `explain` is called, once.
pub(super) fn wait_for(
    acquire: Acquire<AnyGuard>,
    inbox: &mut Inbox,
    explain: impl FnOnce(),
) -> io::Result<Waited> {
    // Dropping the acquire takes us out of the queue.
    Ok(match wait(acquire, inbox, explain)? {
        Ok(outcome) => outcome.map_or_else(Waited::Refused, Waited::Granted),
        Err(signal) => Waited::Signal(signal),
    })
}

/// Waits for `future`, unless a signal comes first: then the error is its number. If it takes a while, `explain` is called,
/// once.
pub(super) fn wait<F: Future>(
    future: F,
    inbox: &mut Inbox,
    explain: impl FnOnce(),
) -> io::Result<Result<F::Output, u8>> {
    let bell = Bell::new()?;
    let mut explain = Some((Instant::now() + A_WHILE, explain));
    let waker = Waker::from(Arc::clone(&bell.rope));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Ok(Ok(output));
        }
        while let Some(came) = inbox.next()? {
            if let Came::Signal { signal, .. } = came
                && signal != Signal::SIGWINCH
            {
                return Ok(Err(signal as u8));
            }
        }
        sleep(&bell, inbox, explain.as_ref().map(|(when, _)| *when))?;
        bell.hush()?;
        if let Some((_, explain)) = explain.take_if(|(when, _)| *when <= Instant::now()) {
            explain();
        }
    }
}

/// Runs the command under `guard` and returns the code to exit with.
pub(super) fn run(args: &Args, client: &Client, guard: &AnyGuard, inbox: &mut Inbox) -> io::Result<u8> {
    let bell = Bell::new()?;
    let rope = Arc::clone(&bell.rope);
    guard.on_lost(move |_| rope.wake_by_ref());
    let lost = guard.lost();
    // To look up the command's process takes a descriptor: without one it is not started.
    let spare = bell.ear.try_clone().map_err(|error| no_descriptor(&error))?;
    let mut child = child::start(&args.command, environment(args, guard), &inbox.inherited)?;
    drop(spare);
    let code = protect(args, client, &child).and_then(|()| watch(args, &lost, &bell, inbox, &mut child));
    if code.is_err() {
        // The lock is given back next: the command must not run any more by then. (One of another user cannot be killed.)
        let _ = child.kill();
        let _ = child.wait();
    }
    code
}

fn no_descriptor(error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot watch over a command: {error}"))
}

/// Keeps the lock held until the command has ended, should this process be killed.
fn protect(args: &Args, client: &Client, child: &Child) -> io::Result<()> {
    // `false`: the command has ended already, or the lock is lost; both are seen later.
    client.hold_while_process_lives(child.id()).map(drop).map_err(|error| {
        let command = args.command[0].display();
        io::Error::other(format!("{command} was ended, since its process could not be recorded: {error}"))
    })
}

/// Waits for the command, passes signals on to it, and ends it if the lock is lost.
fn watch(
    args: &Args,
    lost: &LostSignal,
    bell: &Bell,
    inbox: &mut Inbox,
    child: &mut Child,
) -> io::Result<u8> {
    let mut loss = Loss::Held;
    loop {
        while let Some(came) = inbox.next()? {
            if let Came::Signal { signal, from_terminal: false } = came {
                send(child, signal);
            }
        }
        if let Some(status) = child.try_wait()? {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            return Ok(u8::try_from(code.unwrap_or(1)).unwrap_or(u8::MAX));
        }
        bell.hush()?;
        if let Some(reason) = lost.reason() {
            loss = loss.next(args, child, reason);
        }
        sleep(bell, inbox, loss.deadline())?;
    }
}

/// What has been done about a lost lock.
enum Loss {
    Held,
    Warned,
    Terminated(Instant),
    Killed,
}

impl Loss {
    fn next(self, args: &Args, child: &Child, reason: LostReason) -> Self {
        match (self, args.on_lost) {
            (Loss::Held, OnLost::Warn) => {
                say!(
                    "lockwright: lock {} is lost ({reason}); the command goes on unprotected",
                    args.name.display()
                );
                Loss::Warned
            }
            (Loss::Held, OnLost::Term) => {
                say!("lockwright: lock {} is lost ({reason}); ending the command", args.name.display());
                send(child, Signal::SIGTERM);
                // A stopped command could not act on it.
                send(child, Signal::SIGCONT);
                Loss::Terminated(Instant::now() + GRACE)
            }
            (Loss::Terminated(deadline), _) if Instant::now() >= deadline => {
                send(child, Signal::SIGKILL);
                Loss::Killed
            }
            (same, _) => same,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        if let Loss::Terminated(deadline) = self { Some(*deadline) } else { None }
    }
}

/// Sends a signal to the command, which has not been waited for: its pid is its own.
fn send(child: &Child, signal: Signal) {
    let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
}

/// Sleeps until there is a signal, a ring, or the deadline.
fn sleep(bell: &Bell, inbox: &Inbox, deadline: Option<Instant>) -> io::Result<()> {
    let mut fds =
        [PollFd::new(inbox.as_fd(), PollFlags::POLLIN), PollFd::new(bell.ear.as_fd(), PollFlags::POLLIN)];
    let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(os("wait")(error)),
    }
}

/// A waker that can be polled for.
struct Bell {
    ear: UnixStream,
    rope: Arc<Rope>,
}

struct Rope(UnixStream);

impl Bell {
    fn new() -> io::Result<Self> {
        let (ear, rope) = UnixStream::pair().map_err(|error| no_descriptor(&error))?;
        ear.set_nonblocking(true)?;
        rope.set_nonblocking(true)?;
        Ok(Self { ear, rope: Arc::new(Rope(rope)) })
    }

    /// Takes out what has been rung.
    fn hush(&self) -> io::Result<()> {
        let mut rings = [0; 64];
        loop {
            match (&self.ear).read(&mut rings) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Full is as good as rung.
        let _ = (&self.0).write(&[1]);
    }
}
