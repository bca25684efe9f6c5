//! Runs a future on the calling thread, so that nobody needs an async runtime to use this backend.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs `future` to its end; the thread sleeps while there is nothing to do.
///
/// The first poll comes without a waker to make: most acquires end with it.
///
/// ```
/// use lockwright_fabric::backend::inproc::block_on;
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
fn park_until_ready<F: Future>(mut future: std::pin::Pin<&mut F>) -> F::Output {
    let parker = Arc::new(Parker { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        while !parker.woken.swap(false, SeqCst) {
            thread::park();
        }
    }
}

/// A flag of its own beside the thread's token: other code on this thread may park too.
struct Parker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        self.thread.unpark();
    }
}
