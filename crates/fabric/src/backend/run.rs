//! `block_on`: runs a future on the calling thread, so that a backend can be used without an async runtime.
//!
//! A future of this crate that has to wait checks whether it runs under [`block_on`]. If so, the thread itself sleeps on
//! the future's [`Doorbell`], and a handover needs one thread switch less than a wake-up through a helper thread.

use std::cell::RefCell;
use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Runs `future` to completion; the thread sleeps while the future is pending.
///
/// The first poll has a no-op waker: most acquires are ready at it.
///
/// ```
/// use lockwright_fabric::backend::block_on;
/// assert_eq!(block_on(async { 6 * 7 }), 42);
/// ```
#[inline(always)]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    park_until_ready(future)
}

#[cold]
#[inline(never)]
fn park_until_ready<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let parker = Arc::new(Parker {
        thread: thread::current(),
        woken: AtomicBool::new(false),
        target: Mutex::new(ParkTarget::default()),
    });
    let waker = Waker::from(Arc::clone(&parker));
    let _guard = StopListening(&parker);
    let mut cx = Context::from_waker(&waker);
    loop {
        parker.before_poll();
        let poll = {
            let _current = Current::set(&parker, &waker);
            future.as_mut().poll(&mut cx)
        };
        if let Poll::Ready(output) = poll {
            return output;
        }
        parker.park();
    }
}

/// Something that other processes can wake a thread by.
pub(super) trait Doorbell: Debug + Send + Sync {
    /// Registers a sleeper: from now on [`ring`](Self::ring) must wake it.
    fn add_listener(&self);
    /// Undoes one `add_listener`.
    fn remove_listener(&self);
    /// How often it has rung.
    fn rings(&self) -> u32;
    /// Sleeps until it rings, at most for `limit`. Returns at once if its count is not `rings` any more.
    fn wait(&self, rings: u32, limit: Option<Duration>);
    /// Wakes all sleepers.
    fn ring(&self);
}

/// Makes the thread of [`block_on`] sleep on `doorbell` (if given) and no longer than `limit_ns`. False if `waker` does
/// not belong to a `block_on` of this thread, or the thread already sleeps on another doorbell: then the caller has to
/// arrange its own wake-up. The caller must check its condition once more after this call.
pub(super) fn park_on(waker: &Waker, doorbell: Option<&Arc<dyn Doorbell>>, limit_ns: Option<u64>) -> bool {
    CURRENT.with_borrow(|current| {
        // A combinator may poll with wakers of its own and poll only what was woken: that needs a real wake.
        let own = current.as_ref().filter(|(_, own)| own.will_wake(waker));
        own.is_some_and(|(parker, _)| parker.park_on(doorbell, limit_ns))
    })
}

thread_local! {
    /// The `block_on` that is polling on this thread.
    static CURRENT: RefCell<Option<(Arc<Parker>, Waker)>> = const { RefCell::new(None) };
}

/// Restores the outer `block_on` when a nested one is done.
struct Current(Option<(Arc<Parker>, Waker)>);

impl Current {
    fn set(parker: &Arc<Parker>, waker: &Waker) -> Self {
        Self(CURRENT.replace(Some((Arc::clone(parker), waker.clone()))))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

struct Parker {
    thread: Thread,
    /// A flag beside the thread's park token: other code on this thread may park too.
    woken: AtomicBool,
    target: Mutex<ParkTarget>,
}

/// What the thread will sleep on.
#[derive(Debug, Default)]
struct ParkTarget {
    doorbell: Option<Arc<dyn Doorbell>>,
    /// The doorbell's count before the last poll.
    rings: u32,
    until: Option<Instant>,
}

impl Parker {
    fn target(&self) -> MutexGuard<'_, ParkTarget> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the last poll's time limit.
    fn before_poll(&self) {
        let mut target = self.target();
        target.until = None;
        target.rings = target.doorbell.as_ref().map_or(0, |doorbell| doorbell.rings());
    }

    fn park_on(&self, doorbell: Option<&Arc<dyn Doorbell>>, limit_ns: Option<u64>) -> bool {
        let mut target = self.target();
        if let Some(doorbell) = doorbell {
            match &target.doorbell {
                Some(mine) if !Arc::ptr_eq(mine, doorbell) => return false,
                Some(_) => {}
                None => {
                    doorbell.add_listener();
                    target.rings = doorbell.rings();
                    target.doorbell = Some(Arc::clone(doorbell));
                }
            }
        }
        if let Some(ns) = limit_ns {
            let until = Instant::now() + Duration::from_nanos(ns);
            target.until = Some(target.until.map_or(until, |earlier| earlier.min(until)));
        }
        true
    }

    fn park(&self) {
        loop {
            // A waker sets the flag, then reads the doorbell; this thread has set the doorbell before it reads the flag.
            // So either this thread sees the flag, or the waker sees the doorbell.
            if self.woken.swap(false, SeqCst) {
                return;
            }
            let (doorbell, rings, until) = {
                let target = self.target();
                (target.doorbell.clone(), target.rings, target.until)
            };
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
            if limit == Some(Duration::ZERO) {
                return;
            }
            match (doorbell, limit) {
                (Some(doorbell), limit) => return doorbell.wait(rings, limit),
                (None, Some(limit)) => thread::park_timeout(limit),
                (None, None) => thread::park(),
            }
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        let doorbell = self.target().doorbell.clone();
        match doorbell {
            Some(doorbell) => doorbell.ring(),
            None => self.thread.unpark(),
        }
    }
}

/// A waker may outlive its `block_on`; the registration at the doorbell must not.
struct StopListening<'a>(&'a Parker);

impl Drop for StopListening<'_> {
    fn drop(&mut self) {
        let doorbell = self.0.target().doorbell.take();
        if let Some(doorbell) = doorbell {
            doorbell.remove_listener();
        }
    }
}
