//! Who reads a client's connection: the thread that waits for a lock does it itself, and a background thread does it for all
//! others.
//!
//! An answer that another thread takes from the socket costs a wake-up more. So a thread that blocks in `wait` asks the
//! background thread to step aside, and reads the socket itself, without the runtime: one that is uncontended is answered
//! like that. If nothing comes for [`SOON`], it goes on to run the connection's tasks, which keep it alive, while it waits.
//! The background thread steps in again once nobody has waited like that for a moment, or at once if a task of some
//! executor waits for an answer.
//!
//! Locks that stay with the client are recalled over the connection, and others wait for them: with such locks the background
//! thread is back sooner, after [`IDLE_RETAINING`]. While it finds threads that read, it looks less and less often, up to [`IDLE`]:
//! what is recalled meanwhile they see.
//!
//! While threads read the socket, heartbeats are due all the same: the background thread runs the tasks once every
//! [`TASKS_EVERY`], whichever threads wait. A thread that waits for the answer to a heartbeat depends on it.
//!
//! What this file must not do: leave a connection unread for longer than twice [`IDLE`], or its tasks for longer than
//! [`TASKS_EVERY`] and one [`IDLE`].

use super::link::Remote;
use lockwright_fabric::backend::fork::Owner;
use lockwright_fabric::backend::tcp::{EventfdWaker, TcpEndpoint};
use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;

/// How long the background thread stays aside after the last one who waited, and how often it looks.
const IDLE: Duration = Duration::from_millis(10);
/// The same while locks stay with this client.
const IDLE_RETAINING: Duration = Duration::from_micros(300);
/// How long the tasks may rest while the background thread is aside: a fraction of the shortest heartbeats.
const TASKS_EVERY: Duration = Duration::from_millis(25);
/// How long a thread that waits does without the connection's tasks.
const SOON: Duration = Duration::from_millis(5);

/// The two sides.
#[derive(Debug, Default)]
pub(super) struct Driver {
    /// The background thread owns it: it must not be dropped on a thread of a user's executor.
    runtime: Weak<Runtime>,
    turns: Mutex<Turns>,
    /// For the background thread: step aside; step in.
    aside: Notify,
    step_in: Condvar,
}

#[derive(Debug, Default)]
struct Turns {
    /// Threads that run the tasks while they wait.
    drivers: usize,
    /// Waiters for an answer that do not run the tasks.
    others: usize,
    /// The background thread has stepped aside.
    is_aside: bool,
    last: Option<Instant>,
    /// Whether locks stay with this client, which may be recalled.
    retains: bool,
    stop: bool,
}

thread_local! {
    /// Whose tasks this thread runs right now.
    static DRIVES: Cell<Drives> = const { Cell::new(Drives::Nobody) };
    /// The waker of this thread, and the process that made it; none if the system has no more files to give.
    static WAKER: RefCell<Option<(Owner, Option<Arc<EventfdWaker>>)>> = const { RefCell::new(None) };
}

/// Which client's tasks a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drives {
    Nobody,
    /// The one whose driver is at this address.
    Client(usize),
    /// The one that it is about to ask for something.
    Next,
}

/// Polls `future` for the first time, to see which client it asks for something: that one is then to be driven. Whether it is done.
pub(super) fn begin(future: Pin<&mut dyn Future<Output = ()>>) -> bool {
    let _before = Before(DRIVES.replace(Drives::Next));
    // It is polled again before the thread sleeps.
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn thread_waker() -> Option<Arc<EventfdWaker>> {
    WAKER.with_borrow_mut(|waker| {
        // A thread that was forked off has a copy of its parent's, which both would hear.
        let own = waker.take().filter(|(owner, _)| owner.is_current());
        let made = || (Owner::current(), EventfdWaker::new().ok().map(Arc::new));
        waker.insert(own.unwrap_or_else(made)).1.clone()
    })
}

impl Driver {
    pub(super) fn new(runtime: &Arc<Runtime>) -> Self {
        Self { runtime: Arc::downgrade(runtime), ..Self::default() }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees `future` through on this thread. `session` says over which connection the answers come.
    pub(super) fn drive(
        &self,
        mut future: Pin<&mut dyn Future<Output = ()>>,
        session: impl Fn() -> Option<TcpEndpoint>,
    ) {
        // A thread of an executor cannot run another one's tasks.
        let runtime = self.runtime.upgrade().filter(|_| Handle::try_current().is_err());
        let Some(runtime) = runtime else { return lockwright_fabric::backend::block_on(future) };
        let _before = Before(DRIVES.replace(Drives::Client(self.address())));
        let own = thread_waker();
        let waker = own.as_ref().map_or_else(|| Waker::noop().clone(), |own| Waker::from(Arc::clone(own)));
        if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return;
        }
        let mut turns = self.turns();
        turns.drivers += 1;
        let asks = !turns.is_aside;
        drop(turns);
        if asks {
            self.aside.notify_one();
        }
        let _at_the_end = Leave(self);
        if let (Some(own), Some(session)) = (own, session()) {
            while session.read_blocking(&own, SOON) {
                if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return;
                }
            }
        }
        runtime.block_on(future);
    }

    /// A caller waits for an answer without running the tasks: the background thread has to run them.
    pub(super) fn wait_elsewhere(self: &Arc<Self>) -> Option<OtherWaiter> {
        if matches!(DRIVES.get(), Drives::Next) || DRIVES.get() == Drives::Client(self.address()) {
            return None;
        }
        let mut turns = self.turns();
        turns.others += 1;
        drop(turns);
        self.step_in.notify_one();
        Some(OtherWaiter(Arc::clone(self)))
    }

    /// Whether locks stay with this client from now on.
    pub(super) fn set_retains(&self, retains: bool) {
        let mut turns = self.turns();
        let begins = retains && !turns.retains;
        turns.retains = retains;
        drop(turns);
        if begins {
            self.step_in.notify_one();
        }
    }

    /// Ends the background thread's work.
    pub(super) fn stop(&self) {
        self.turns().stop = true;
        self.aside.notify_one();
        self.step_in.notify_one();
    }

    /// The background thread's work: until it is stopped.
    pub(super) fn run(&self, runtime: &Runtime) {
        loop {
            runtime.block_on(self.aside.notified());
            let mut turns = self.turns();
            turns.is_aside = true;
            let (mut ran, mut pause) = (Instant::now(), turns.idle());
            while !turns.stop && turns.keeps_aside() {
                turns = self.step_in.wait_timeout(turns, pause).unwrap_or_else(PoisonError::into_inner).0;
                pause = turns.next_pause(pause);
                if ran.elapsed() >= TASKS_EVERY {
                    drop(turns);
                    runtime.block_on(run_due_tasks());
                    ran = Instant::now();
                    turns = self.turns();
                }
            }
            turns.is_aside = false;
            if turns.stop {
                return;
            }
        }
    }
}

/// Lets the runtime look at its timers and its sockets, and then run the tasks that they woke.
async fn run_due_tasks() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

/// Whose tasks the thread ran before.
struct Before(Drives);

impl Drop for Before {
    fn drop(&mut self) {
        DRIVES.set(self.0);
    }
}

impl Turns {
    const fn idle(&self) -> Duration {
        if self.retains { IDLE_RETAINING } else { IDLE }
    }

    /// How long to wait until the next look, after `pause` before this one.
    fn next_pause(&self, pause: Duration) -> Duration {
        if self.drivers > 0 { (2 * pause).min(IDLE) } else { self.idle() }
    }

    fn keeps_aside(&self) -> bool {
        let lately = || self.last.is_some_and(|last| last.elapsed() < self.idle());
        self.drivers > 0 || self.others == 0 && lately()
    }
}

/// Steps back from running the tasks, also out of a panic.
struct Leave<'a>(&'a Driver);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.turns();
        turns.drivers -= 1;
        turns.last = Some(Instant::now());
        if turns.drivers == 0 && turns.others > 0 {
            self.0.step_in.notify_one();
        }
    }
}

/// A waiter elsewhere, for as long as this is kept.
#[derive(Debug)]
pub(super) struct OtherWaiter(Arc<Driver>);

impl Drop for OtherWaiter {
    fn drop(&mut self) {
        self.0.turns().others -= 1;
    }
}

/// [`Driver::drive`] with an outcome.
pub(super) fn outcome<T>(remote: &Remote, future: impl Future<Output = T>) -> T {
    let mut outcome = None;
    remote.drive(pin!(async { outcome = Some(future.await) }));
    outcome.expect("a future that was seen through has an outcome")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_thread_looks_rarely_while_others_read_and_soon_when_they_may_be_gone() {
        let mut turns = Turns { drivers: 1, retains: true, ..Turns::default() };
        let mut pause = turns.idle();
        let looks = std::iter::repeat_with(|| {
            pause = turns.next_pause(pause);
            pause
        });
        let second = looks.scan(Duration::ZERO, |sum, pause| {
            *sum += pause;
            Some(*sum)
        });
        let looks = second.take_while(|sum| *sum < Duration::from_secs(1)).count();
        assert!(looks < 120, "{looks} looks in a second, and not thousands");
        turns.drivers = 0;
        assert_eq!(turns.next_pause(IDLE), IDLE_RETAINING);
        turns.retains = false;
        assert_eq!(turns.next_pause(IDLE), IDLE);
    }
}
