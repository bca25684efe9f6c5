//! The supervisor: one thread that waits for the lock, for signals, for the command, and for the loss of the lock.
//!
//! Everything is a file descriptor in one `poll`: signals by signalfd, wakers and the lost-lock signal by a socket pair.

use super::args::{Args, OnLost};
use super::held::Held;
use super::signals::{Came, Inbox};
use super::{child, os};
use lockwright::Client;
use lockwright_term::say;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How long a `run` waits before it says for whom.
const A_WHILE: Duration = Duration::from_secs(1);

/// How a command ended, and with it the code to exit with.
#[derive(Debug)]
pub(super) enum Ended {
    /// By itself.
    Exited { code: u8 },
    /// By a signal to us that asks to end.
    Stopped { code: u8 },
    /// A lock was lost.
    Lost { code: u8 },
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
    let waker = pipe.waker();
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
        sleep(&[pipe.reader.as_fd(), inbox.as_fd()], explain.as_ref().map(|(when, _)| *when))?;
        pipe.drain()?;
        if let Some((_, explain)) = explain.take_if(|(when, _)| *when <= Instant::now()) {
            explain();
        }
    }
}

/// Runs the command under the locks that are `held`.
pub(super) fn run(args: &Args, client: &Client, held: &Held, inbox: &mut Inbox) -> io::Result<Ended> {
    let pipe = &held.pipe;
    // To look up the command's process takes a descriptor: without one it is not started.
    let spare = pipe.reader.try_clone().map_err(|error| no_descriptor(&error))?;
    let mut child = child::start(&args.command, held.environment(args), &inbox.inherited)?;
    drop(spare);
    let kill_after = client.stop_time();
    let ended = protect(args, client, &child).and_then(|()| watch(args, kill_after, held, inbox, &mut child));
    if ended.is_err() {
        // The lock is given back next: the command must not run any more by then. (One of another user cannot be killed.)
        let _ = child.kill();
        let _ = child.wait();
    }
    ended
}

/// Waits until `until`. Says why it ended sooner, if it did.
pub(super) fn pause(until: Instant, held: &Held, inbox: &mut Inbox) -> io::Result<Option<Ended>> {
    while Instant::now() < until {
        while let Some(came) = inbox.next()? {
            if let Some(signal) = came.asks_to_end() {
                return Ok(Some(Ended::Stopped { code: 128 + signal as u8 }));
            }
        }
        if let Some((name, reason)) = held.lost() {
            say!("lockwright: lock {name} is lost ({reason})");
            return Ok(Some(Ended::Lost { code: 1 }));
        }
        sleep(&[held.pipe.reader.as_fd(), inbox.as_fd()], Some(until))?;
        held.pipe.drain()?;
    }
    Ok(None)
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
    held: &Held,
    inbox: &mut Inbox,
    child: &mut Child,
) -> io::Result<Ended> {
    let pid = Pid::from_raw(child.id().cast_signed());
    let (mut loss, mut stopped) = (Loss::Held, false);
    loop {
        while let Some(came) = inbox.next()? {
            stopped |= came.asks_to_end().is_some();
            if let Came::Signal { signal, from_terminal: false } = came {
                send(pid, signal);
            }
        }
        if let Some(status) = child.try_wait()? {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            let code = u8::try_from(code.unwrap_or(1)).unwrap_or(u8::MAX);
            return Ok(match loss {
                _ if stopped => Ended::Stopped { code },
                Loss::Held => Ended::Exited { code },
                _ => Ended::Lost { code },
            });
        }
        held.pipe.drain()?;
        loss = loss.next(args, kill_after, pid, held);
        sleep(&[held.pipe.reader.as_fd(), inbox.as_fd()], loss.deadline())?;
    }
}

/// What has been done about a lost lock.
pub(super) enum Loss {
    Held,
    Warned,
    Terminated(Instant),
    Killed,
}

impl Loss {
    /// Does what is due, to the process `pid`.
    pub(super) fn next(self, args: &Args, kill_after: Duration, pid: Pid, held: &Held) -> Self {
        let Some((name, reason)) = held.lost() else { return self };
        match (self, args.on_lost) {
            (Loss::Held, OnLost::Warn) => {
                say!("lockwright: lock {name} is lost ({reason}); the command goes on unprotected");
                Loss::Warned
            }
            (Loss::Held, OnLost::Term) => {
                say!("lockwright: lock {name} is lost ({reason}); ending the command");
                send(pid, args.signal);
                // A stopped command could not act on it.
                send(pid, Signal::SIGCONT);
                Loss::Terminated(Instant::now() + kill_after)
            }
            (Loss::Terminated(deadline), _) if Instant::now() >= deadline => {
                send(pid, Signal::SIGKILL);
                Loss::Killed
            }
            (same, _) => same,
        }
    }

    /// When something is due again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if let Loss::Terminated(deadline) = self { Some(*deadline) } else { None }
    }
}

/// Sends a signal to a process that is known to be there: its pid is its own.
fn send(pid: Pid, signal: Signal) {
    let _ = kill(pid, signal);
}

/// Sleeps until one of these can be read, or the deadline.
pub(super) fn sleep(fds: &[BorrowedFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
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
pub(super) struct WakePipe {
    pub(super) reader: UnixStream,
    waker: Arc<PipeWaker>,
}

struct PipeWaker(UnixStream);

impl WakePipe {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, waker) = UnixStream::pair().map_err(|error| no_descriptor(&error))?;
        reader.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        Ok(Self { reader, waker: Arc::new(PipeWaker(waker)) })
    }

    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.waker))
    }

    /// Reads what wakers have written.
    pub(super) fn drain(&self) -> io::Result<()> {
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
