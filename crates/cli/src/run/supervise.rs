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
    let pipe = WakePipe::new()?;
    let mut explain = Some((Instant::now() + A_WHILE, explain));
    let waker = Waker::from(Arc::clone(&pipe.waker));
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
        sleep(&pipe, inbox, explain.as_ref().map(|(when, _)| *when))?;
        pipe.drain()?;
        if let Some((_, explain)) = explain.take_if(|(when, _)| *when <= Instant::now()) {
            explain();
        }
    }
}

/// Runs the command under `guard` and returns the code to exit with.
pub(super) fn run(args: &Args, client: &Client, guard: &AnyGuard, inbox: &mut Inbox) -> io::Result<u8> {
    let pipe = WakePipe::new()?;
    let waker = Arc::clone(&pipe.waker);
    guard.on_lost(move |_| waker.wake_by_ref());
    let lost = guard.lost();
    // To look up the command's process takes a descriptor: without one it is not started.
    let spare = pipe.reader.try_clone().map_err(|error| no_descriptor(&error))?;
    let mut child = child::start(&args.command, environment(args, guard), &inbox.inherited)?;
    drop(spare);
    let kill_after = client.stop_time();
    let code =
        protect(args, client, &child).and_then(|()| watch(args, kill_after, &lost, &pipe, inbox, &mut child));
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
    kill_after: Duration,
    lost: &LostSignal,
    pipe: &WakePipe,
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
        pipe.drain()?;
        if let Some(reason) = lost.reason() {
            loss = loss.next(args, kill_after, child, reason);
        }
        sleep(pipe, inbox, loss.deadline())?;
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
    fn next(self, args: &Args, kill_after: Duration, child: &Child, reason: LostReason) -> Self {
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
                Loss::Terminated(Instant::now() + kill_after)
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

/// Sleeps until there is a signal, a wakeup, or the deadline.
fn sleep(pipe: &WakePipe, inbox: &Inbox, deadline: Option<Instant>) -> io::Result<()> {
    let mut fds =
        [PollFd::new(inbox.as_fd(), PollFlags::POLLIN), PollFd::new(pipe.reader.as_fd(), PollFlags::POLLIN)];
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
struct WakePipe {
    reader: UnixStream,
    waker: Arc<PipeWaker>,
}

struct PipeWaker(UnixStream);

impl WakePipe {
    fn new() -> io::Result<Self> {
        let (reader, waker) = UnixStream::pair().map_err(|error| no_descriptor(&error))?;
        reader.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        Ok(Self { reader, waker: Arc::new(PipeWaker(waker)) })
    }

    /// Reads what wakers have written.
    fn drain(&self) -> io::Result<()> {
        let mut bytes = [0; 64];
        loop {
            match (&self.reader).read(&mut bytes) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Wake for PipeWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A full pipe wakes as well.
        let _ = (&self.0).write(&[1]);
    }
}
