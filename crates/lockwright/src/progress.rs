//! The thread that drives what nobody waits for any more, and watches what nobody looks at.
//!
//! Three tasks need a thread that is always there: to drive an acquire that was given up in a queue to its grant, which is
//! then given back; to send the heartbeats that keep this client's locks; and to watch guards whose owners want to be told of
//! a loss. One thread per client does all three and sleeps in between.
//!
//! What this file must not do: know what a lock is.

use crate::backend::BoxFuture;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest sleep between two rounds, whatever the beat says.
const LONGEST: Duration = Duration::from_secs(3600);
/// How soon a loss is noticed, if an owner wants to be told.
const LOOK: Duration = Duration::from_millis(100);

/// Something looked at on every round until it says that it is done.
pub(crate) trait Watched: Send + Sync {
    /// Looks. `false`: nothing more to see.
    fn look(&self) -> bool;
}

/// The thread, and the way to it.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// New to the thread.
    adopted: Vec<(u64, BoxFuture<()>)>,
    /// Tasks to be polled: those that were woken, and no others.
    ready: Vec<Arc<Task>>,
    watched: Vec<Weak<dyn Watched>>,
    alarms: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    /// Futures that are not done, wherever they are.
    unfinished: usize,
    woken: bool,
    stop: bool,
}

/// The waker of one adopted future.
struct Task {
    number: u64,
    is_ready: AtomicBool,
    shared: Arc<Shared>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("unfinished", &self.shared.state().unfinished)
            .finish_non_exhaustive()
    }
}

impl Progress {
    /// Starts the thread; `beat` is called at once, and then each time the duration it returned has passed.
    pub(crate) fn start(beat: impl FnMut() -> Duration + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("lockwright-progress".to_owned())
            .spawn(move || run(&theirs, beat))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Sees `future` through to its end.
    pub(crate) fn adopt(&self, mut future: BoxFuture<()>) {
        let number = self.shared.state().next_number();
        // Ready until it is adopted: woken by its first poll, it is polled when it is the thread's.
        let is_ready = AtomicBool::new(true);
        let task = Arc::new(Task { number, is_ready, shared: Arc::clone(&self.shared) });
        let waker = Waker::from(Arc::clone(&task));
        // Most releases are done with the first poll.
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            let mut state = self.shared.state();
            state.unfinished += 1;
            state.adopted.push((number, future));
            state.ready.push(task);
            state.woken = true;
            self.shared.changed.notify_all();
        }
    }

    /// How many adopted futures are not done.
    pub(crate) fn unfinished(&self) -> usize {
        self.shared.state().unfinished
    }

    /// Looks at `watched` on every round, as long as it is there.
    pub(crate) fn watch(&self, watched: Weak<dyn Watched>) {
        let mut state = self.shared.state();
        state.watched.push(watched);
        state.woken = true;
        self.shared.changed.notify_all();
    }

    /// Wakes `waker` at `time`, unless the alarm is dropped before.
    pub(crate) fn alarm(self: &Arc<Self>, time: Instant, waker: &Waker) -> Alarm {
        let mut state = self.shared.state();
        let key = (time, state.next_number());
        state.alarms.insert(key, waker.clone());
        let first = state.alarms.first_key_value().is_some_and(|(first, _)| *first == key);
        if first {
            self.shared.changed.notify_all();
        }
        Alarm { progress: Arc::clone(self), key, waker: waker.clone() }
    }

    /// Waits until nothing adopted is left, for at most `patience`. Says whether that came about.
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.shared.state();
        while state.unfinished > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The thread goes on until everything adopted is done: a waiter in a queue must not leave it with a lock on its way to
/// it. If the process ends first, others find it dead in the queue, and clear it away.
impl Drop for Progress {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stop = true;
        let alone = state.unfinished == 0;
        drop(state);
        self.shared.changed.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The last user of a client can be this very thread (an adopted future owned it).
        let thread = thread.filter(|thread| alone && thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_ready.swap(true, SeqCst) {
            return;
        }
        let mut state = self.shared.state();
        state.ready.push(Arc::clone(self));
        state.woken = true;
        drop(state);
        self.shared.changed.notify_all();
    }
}

fn run(shared: &Arc<Shared>, mut beat: impl FnMut() -> Duration) {
    let mut adopted: HashMap<u64, BoxFuture<()>> = HashMap::new();
    let mut watched: Vec<Weak<dyn Watched>> = Vec::new();
    let (mut next_beat, mut next_look) = (Instant::now(), Instant::now());
    loop {
        let now = Instant::now();
        if now >= next_beat {
            next_beat = now + beat().min(LONGEST);
        }
        if now >= next_look {
            // After the sign of life: a client that was stopped learns here what it lost.
            watched.retain(|watched| watched.upgrade().is_some_and(|watched| watched.look()));
            next_look = now + LOOK;
        }
        let mut state = shared.state();
        state.woken = false;
        adopted.extend(state.adopted.drain(..));
        let ready = std::mem::take(&mut state.ready);
        watched.append(&mut state.watched);
        let later = state.alarms.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.alarms, later);
        drop(state);

        due.into_values().for_each(Waker::wake);
        let before = adopted.len();
        ready.into_iter().for_each(|task| poll(&mut adopted, task));
        let done = before - adopted.len();

        let mut state = shared.state();
        state.unfinished -= done;
        if done > 0 {
            shared.changed.notify_all();
        }
        while !(state.woken || state.stop && state.unfinished == 0) {
            let first = state.alarms.first_key_value().map(|((time, _), _)| *time);
            let due = if watched.is_empty() { next_beat } else { next_beat.min(next_look) };
            let until = first.map_or(due, |first| first.min(due));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.stop && state.unfinished == 0 {
            return;
        }
    }
}

/// Polls an adopted future that was woken, unless it is done.
fn poll(adopted: &mut HashMap<u64, BoxFuture<()>>, task: Arc<Task>) {
    let number = task.number;
    let Some(future) = adopted.get_mut(&number) else { return };
    // Before the poll: woken meanwhile, it is polled again.
    task.is_ready.store(false, SeqCst);
    let waker = Waker::from(task);
    if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
        adopted.remove(&number);
    }
}

/// A wake-up call; dropping it cancels it.
pub(crate) struct Alarm {
    progress: Arc<Progress>,
    key: (Instant, u64),
    waker: Waker,
}

impl Alarm {
    /// Whether it wakes the task of `cx`.
    pub(crate) fn wakes(&self, cx: &Context<'_>) -> bool {
        self.waker.will_wake(cx.waker())
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.progress.shared.state().alarms.remove(&self.key);
    }
}
