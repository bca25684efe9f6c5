//! Steps of code that is not async: it runs to its end on a CPU, and others may do anything between two of its loads and stores.
//!
//! Such code cannot be left in the middle and gone on with later. But every edge of an automaton begins with a fresh future
//! that is led along the whole history, so it need not be: an operation whose answer is in the history gets it there and then,
//! and at the first one whose answer is not, the client stops by unwinding its stack. What it wants to do is known by then.

use super::endpoint::Core;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

thread_local! {
    /// What the client shares with its automaton that runs on this thread.
    static RUNNING: RefCell<Option<Rc<RefCell<Core>>>> = const { RefCell::new(None) };
}

/// The client has come to the end of its history.
struct Stopped;

/// What `future` finds, for code of a client that cannot wait: its verbs are instructions. Each is a step as any other.
///
/// # Panics
/// If it is not the explorer that runs the client.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    let core =
        RUNNING.with_borrow(Clone::clone).expect("only the explorer stops a client between instructions");
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(found) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return found;
        }
        let goes_on = core.borrow_mut().follow_at_once();
        if !goes_on {
            resume_unwind(Box::new(Stopped));
        }
    }
}

/// Runs `poll`, of the client that has `core`. `None` if it stopped between two instructions.
pub(super) fn running<T>(core: &Rc<RefCell<Core>>, poll: impl FnOnce() -> T) -> Option<T> {
    RUNNING.set(Some(core.clone()));
    let polled = catch_unwind(AssertUnwindSafe(poll));
    RUNNING.set(None);
    match polled {
        Ok(polled) => Some(polled),
        Err(stopped) if stopped.is::<Stopped>() => None,
        Err(panic) => resume_unwind(panic),
    }
}
