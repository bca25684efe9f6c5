//! Runs a future on the calling thread, so that nobody needs an async runtime to use a backend.
//!
//! A future of this crate that is about to wait may find that it runs under [`block_on`], and then lets the thread
//! itself sleep on what it waits for (a [`Doorbell`]) instead of asking somebody else to wake it: one switch between
//! threads less on the way of a handover.

use std::cell::RefCell;
use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Runs `future` to its end; the thread sleeps while there is nothing to do.
///
/// The first poll comes without a waker to make: most acquires end with it.
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
        rest: Mutex::new(Rest::default()),
    });
    let waker = Waker::from(Arc::clone(&parker));
    let _at_the_end = IgnoreAtEnd(&parker);
    let mut cx = Context::from_waker(&waker);
    loop {
        parker.begin();
        let poll = {
            let _current = Current::set(&parker, &waker);
            future.as_mut().poll(&mut cx)
        };
        if let Poll::Ready(output) = poll {
            return output;
        }
        parker.sleep();
    }
}

/// Something outside this process's own wakers that a thread can sleep on.
pub(super) trait Doorbell: Debug + Send + Sync {
    /// From now on, whoever rings must wake the sleepers.
    fn listen(&self);
    /// Takes one `listen` back.
    fn ignore(&self);
    /// How often it has rung.
    fn rings(&self) -> u32;
    /// Sleeps unless it has rung since it had rung `rings` times, at most for `limit`.
    fn sleep(&self, rings: u32, limit: Option<Duration>);
    /// Rings.
    fn ring(&self);
}

/// Lets the thread of [`block_on`] sleep on `bell`, or at least not longer than `limit_ns`. `false` if `waker` is not
/// that of a `block_on` on this thread, or the thread sleeps on another bell already: then the caller sees to its own
/// waking. The caller must look once more at what it waits for after this.
#[cfg_attr(
    not(all(feature = "shm", target_os = "linux")),
    expect(dead_code, reason = "only shm has doorbells")
)]
pub(super) fn rest_on(waker: &Waker, bell: Option<&Arc<dyn Doorbell>>, limit_ns: Option<u64>) -> bool {
    CURRENT.with_borrow(|current| {
        // A combinator may poll with wakers of its own and only those it was woken for: it needs a real wake.
        let own = current.as_ref().filter(|(_, own)| own.will_wake(waker));
        own.is_some_and(|(parker, _)| parker.rest_on(bell, limit_ns))
    })
}

thread_local! {
    /// The `block_on` that polls on this thread right now.
    static CURRENT: RefCell<Option<(Arc<Parker>, Waker)>> = const { RefCell::new(None) };
}

/// Puts the outer `block_on` back when the inner one is done.
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
    /// A flag of its own beside the thread's token: other code on this thread may park too.
    woken: AtomicBool,
    rest: Mutex<Rest>,
}

/// What the thread will sleep on.
#[derive(Debug, Default)]
struct Rest {
    bell: Option<Arc<dyn Doorbell>>,
    /// How often the bell had rung before the last look.
    rings: u32,
    until: Option<Instant>,
}

impl Parker {
    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a poll: nobody has asked for a time yet.
    fn begin(&self) {
        let mut rest = self.rest();
        rest.until = None;
        rest.rings = rest.bell.as_ref().map_or(0, |bell| bell.rings());
    }

    fn rest_on(&self, bell: Option<&Arc<dyn Doorbell>>, limit_ns: Option<u64>) -> bool {
        let mut rest = self.rest();
        if let Some(bell) = bell {
            match &rest.bell {
                Some(mine) if !Arc::ptr_eq(mine, bell) => return false,
                Some(_) => {}
                None => {
                    bell.listen();
                    rest.rings = bell.rings();
                    rest.bell = Some(Arc::clone(bell));
                }
            }
        }
        if let Some(ns) = limit_ns {
            let until = Instant::now() + Duration::from_nanos(ns);
            rest.until = Some(rest.until.map_or(until, |earlier| earlier.min(until)));
        }
        true
    }

    fn sleep(&self) {
        loop {
            // Whoever wakes sets the flag first and then looks for a bell; the bell is there before this looks at
            // the flag. So either this sees the flag, or the waker sees the bell.
            if self.woken.swap(false, SeqCst) {
                return;
            }
            let (bell, rings, until) = {
                let rest = self.rest();
                (rest.bell.clone(), rest.rings, rest.until)
            };
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
            if limit == Some(Duration::ZERO) {
                return;
            }
            match (bell, limit) {
                (Some(bell), limit) => return bell.sleep(rings, limit),
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
        let bell = self.rest().bell.clone();
        match bell {
            Some(bell) => bell.ring(),
            None => self.thread.unpark(),
        }
    }
}

/// A waker may outlive its `block_on`; the bell must not be listened to that long.
struct IgnoreAtEnd<'a>(&'a Parker);

impl Drop for IgnoreAtEnd<'_> {
    fn drop(&mut self) {
        let bell = self.0.rest().bell.take();
        if let Some(bell) = bell {
            bell.ignore();
        }
    }
}
