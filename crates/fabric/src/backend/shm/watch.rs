//! Seeing clients die, at once: pidfds for processes, and a shared event word for what others have seen.
//!
//! Two threads of a process, started when somebody first asks to be told, do the watching. One waits for the pidfds of
//! all processes in the client table and marks the clients of those that end. The other waits for the space's event word,
//! which rises when anybody joins, leaves, is marked or declared dead; it wakes this process's tasks and tells the first
//! thread that there may be new processes. Neither polls, except where the system gives out no descriptors for that.

use super::clients::ClientInfo;
use super::process::{Process, ProcessState, state_by_pidfd};
use super::shared::{Handle, Shared};
use crate::addr::PeerId;
use crate::backend::wakers::{Wakers, wake_all};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// How often processes are looked at that have no pidfd.
const POLL: Duration = Duration::from_millis(20);
/// Pidfds that senders keep, at most.
const MAX_CACHED: usize = 256;

/// This process's part in watching.
#[derive(Debug, Default)]
pub(super) struct Watch {
    stop: AtomicBool,
    /// An eventfd that interrupts the thread which waits for pidfds. That thread makes it, as soon as there is a descriptor.
    interrupt: OnceLock<OwnedFd>,
    tasks: Mutex<Tasks>,
    /// Pidfds of peers that were written to.
    cached: Mutex<HashMap<PeerId, OwnedFd>>,
}

#[derive(Debug, Default)]
struct Tasks {
    wakers: Wakers,
    /// The threads run.
    started: bool,
}

impl Watch {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_interrupt(&self) -> Option<&OwnedFd> {
        if self.interrupt.get().is_none()
            && let Ok(fd) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        {
            let _ = self.interrupt.set(fd);
        }
        self.interrupt.get()
    }

    /// Without an eventfd the thread looks by itself, every [`POLL`].
    fn interrupt(&self) {
        if let Some(fd) = self.interrupt.get() {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}

impl Shared {
    /// [`is_alive`](Self::is_alive) with a pidfd that is kept: one system call.
    pub(super) fn still_alive(&self, peer: PeerId) -> bool {
        let mut cached = self.watch.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pidfd) = cached.get(&peer) {
            let state = state_by_pidfd(pidfd);
            if state == ProcessState::Alive && self.find_alive(peer).is_some() {
                return true;
            }
            cached.remove(&peer);
            if state == ProcessState::Ended {
                self.evict(peer);
            }
        } else if let Some(pidfd) = self.process_of(peer).and_then(Process::pidfd) {
            if cached.len() >= MAX_CACHED {
                cached.clear();
            }
            cached.insert(peer, pidfd);
        }
        drop(cached);
        self.is_alive(peer)
    }

    pub(super) fn stop_watching(&self) {
        self.watch.stop.store(true, SeqCst);
        if self.watch.tasks().started {
            self.watch.interrupt();
            self.event();
        }
    }

    /// Tells of events until the space is closed.
    fn watch_events(&self) {
        while !self.watch.stop.load(SeqCst) {
            let seen = self.events();
            let wakers = self.watch.tasks().wakers.take();
            wake_all(wakers);
            self.watch.interrupt();
            if !self.watch.stop.load(SeqCst) {
                self.await_event(seen);
            }
        }
    }

    /// Waits for processes to end until the space is closed.
    fn watch_processes(&self) {
        let mut open: HashMap<Process, OwnedFd> = HashMap::new();
        while !self.watch.stop.load(SeqCst) {
            let interrupt = self.watch.open_interrupt();
            let alive = self.marked_alive();
            open.retain(|process, _| alive.iter().any(|(_, other)| other == process));
            let mut unwatched = interrupt.is_none();
            for (peer, process) in alive {
                if process == self.own || open.contains_key(&process) {
                    continue;
                }
                match process.pidfd() {
                    Some(pidfd) => drop(open.insert(process, pidfd)),
                    None => unwatched |= self.is_alive(peer),
                }
            }
            let mut fds: Vec<_> = open.values().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).collect();
            fds.extend(interrupt.map(|fd| PollFd::new(fd, PollFlags::IN)));
            let limit = Timespec { tv_sec: 0, tv_nsec: POLL.subsec_nanos().into() };
            if poll(&mut fds, unwatched.then_some(&limit)).is_err_and(|error| error != Errno::INTR) {
                // More descriptors than the system lets this process poll now: look at the processes one by one.
                drop(fds);
                open.clear();
                std::thread::sleep(POLL);
                continue;
            }
            if let Some(fd) = interrupt {
                // It does not block, and holds nothing if it was not what ended the poll.
                let _ = rustix::io::read(fd, &mut [0; 8]);
            }
            let readable = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN));
            let ended: Vec<_> =
                open.keys().copied().zip(readable).filter(|(_, readable)| *readable).collect();
            for (process, _) in ended {
                open.remove(&process);
                // By what the pidfd said, not by another look, for which there may be no descriptor.
                for (peer, _) in self.marked_alive().into_iter().filter(|(_, other)| *other == process) {
                    self.evict(peer);
                }
            }
        }
    }
}

impl Handle {
    /// Starts the threads, if they do not run yet.
    fn watch(&self) {
        if std::mem::replace(&mut self.watch.tasks().started, true) {
            return;
        }
        let start = |name: &str, run: fn(&Shared)| {
            let (shared, thread) = (self.share(), std::thread::Builder::new().name(name.to_owned()));
            thread.spawn(move || run(&shared)).expect("the system can start a thread that watches");
        };
        start("lockwright-event", Shared::watch_events);
        start("lockwright-death", Shared::watch_processes);
    }
}

/// A future that is done when a peer is out of the space: its process ended, it left, or it was declared dead.
///
/// Made by [`ShmSpace::died`](super::ShmSpace::died) and [`ShmEndpoint::expelled`](super::ShmEndpoint::expelled).
/// Cancel safe.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Died {
    turn: Turn,
    peer: PeerId,
}

impl Died {
    pub(super) fn new(handle: &Arc<Handle>, peer: PeerId) -> Self {
        Self { turn: Turn::new(handle), peer }
    }
}

impl Future for Died {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { turn, peer } = self.get_mut();
        turn.poll(cx, |shared, first| {
            // The threads mark those that die from now on; one that is dead already must be seen here.
            let alive = if first { shared.is_alive(*peer) } else { shared.find_alive(*peer).is_some() };
            (!alive).then_some(())
        })
    }
}

/// Tells of deaths, one after the other: what a recovering waiter races its wait against.
///
/// ```
/// # use lockwright_fabric::backend::{block_on, shm::{ShmSpace, SpaceOptions}};
/// # let path = std::env::temp_dir().join(format!("lockwright-doc-deaths-{}.space", std::process::id()));
/// # let space = ShmSpace::open(&path, &SpaceOptions::default())?;
/// let mut deaths = space.deaths();
/// let client = space.endpoint()?;
/// let gone = space.endpoint()?;
/// drop(gone);
/// block_on(deaths.next());
/// assert!(space.dead_clients().is_empty(), "it left in peace: nothing to recover");
/// # ShmSpace::remove(&path)?;
/// # Ok::<_, lockwright_fabric::backend::shm::SpaceError>(())
/// ```
#[derive(Debug)]
pub struct Deaths {
    handle: Arc<Handle>,
    seen: u64,
}

impl Deaths {
    pub(super) fn new(handle: &Arc<Handle>) -> Self {
        handle.watch();
        Self { handle: Arc::clone(handle), seen: handle.deaths() }
    }

    /// Done when somebody has left or died since the last call, or since this was made. Cancel safe.
    pub async fn next(&mut self) {
        let mut turn = Turn::new(&self.handle);
        let seen = self.seen;
        self.seen = std::future::poll_fn(|cx| {
            turn.poll(cx, |shared, first| {
                if first {
                    shared.clients();
                }
                Some(shared.deaths()).filter(|deaths| *deaths != seen)
            })
        })
        .await;
    }

    /// Those who are dead and not yet buried.
    pub fn dead(&self) -> Vec<ClientInfo> {
        self.handle.clients().into_iter().filter(|client| !client.alive).collect()
    }
}

/// A task that waits for an event.
#[derive(Debug)]
struct Turn {
    handle: Arc<Handle>,
    place: Option<u64>,
    first: bool,
}

impl Turn {
    fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle), place: None, first: true }
    }

    fn poll<T>(&mut self, cx: &Context<'_>, look: impl Fn(&Shared, bool) -> Option<T>) -> Poll<T> {
        if std::mem::take(&mut self.first) {
            self.handle.watch();
            if let Some(answer) = look(&self.handle, true) {
                return Poll::Ready(answer);
            }
        }
        self.handle.watch.tasks().wakers.keep(&mut self.place, cx.waker());
        look(&self.handle, false).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.handle.watch.tasks().wakers.leave(&mut self.place);
    }
}
