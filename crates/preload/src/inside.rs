//! Whether a thread is at work in here. What it opens, closes and locks then is not the program's.
//!
//! A signal handler of the program's may come in between. It cannot wait for the thread that it has interrupted: its locks of
//! files that are ours fail (`calls`), and what it closes is written down and dealt with when the thread leaves.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A descriptor that was closed, and of which file: device and inode.
#[derive(Clone, Copy)]
pub(crate) struct Closed {
    pub(crate) fd: i32,
    pub(crate) inode: (u64, u64),
}

/// How many are written down. After more, all that is known is looked at again.
const ROOM: usize = 16;

struct Thread {
    inside: Cell<bool>,
    closed: [Cell<Closed>; ROOM],
    /// Counts beyond the room. Atomic as handlers are, which may interrupt each other.
    count: AtomicUsize,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            closed: [const { Cell::new(Closed { fd: -1, inode: (0, 0) }) }; ROOM],
            count: AtomicUsize::new(0),
        }
    };
}

/// Runs `work` if this thread is not at work in here already.
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> Option<T> {
    let was = THREAD.try_with(|thread| thread.inside.replace(true)).unwrap_or(true);
    if was {
        return None;
    }
    let done = work();
    let _ = THREAD.try_with(Thread::leave);
    Some(done)
}

/// Lets the program's signal handlers run in `work`, as in a call that blocks. The caller keeps nothing locked.
pub(crate) fn outside(work: impl FnOnce()) {
    let _ = THREAD.try_with(Thread::leave);
    work();
    let _ = THREAD.try_with(|thread| thread.inside.set(true));
}

/// In a child, where what the thread was at work with is the parent's.
pub(crate) fn anew(work: impl FnOnce()) {
    let _ = THREAD.try_with(|thread| thread.count.store(0, Relaxed));
    let was = THREAD.try_with(|thread| thread.inside.replace(true)).unwrap_or(true);
    work();
    let _ = THREAD.try_with(|thread| thread.inside.set(was));
}

/// While this thread is at work in here, something was closed; `None`: it is not known what.
pub(crate) fn write_down(closed: Option<Closed>) {
    let _ = THREAD.try_with(|thread| {
        let at = thread.count.fetch_add(if closed.is_some() { 1 } else { ROOM + 1 }, Relaxed);
        if let (Some(slot), Some(closed)) = (thread.closed.get(at), closed) {
            slot.set(closed);
        }
    });
}

impl Thread {
    fn leave(&self) {
        loop {
            let mut done = 0;
            // Handlers may close more meanwhile.
            while let count @ 1.. = self.count.load(Relaxed) {
                crate::closing::settle(
                    self.closed.iter().take(count).skip(done).map(Cell::get),
                    count > ROOM,
                );
                done = count;
                if self.count.compare_exchange(count, 0, Relaxed, Relaxed).is_ok() {
                    done = 0;
                }
            }
            self.inside.set(false);
            if self.count.load(Relaxed) == 0 {
                return;
            }
            self.inside.set(true);
        }
    }
}
