//! Who applies what is queued: the loop of flat combining, without the queue and the lock themselves, so that Loom can run it.
//!
//! A thread queues a request and then calls [`drain`]. If it cannot have the lock, its holder has yet to give it back, and
//! looks at the queue after that: so no request is left behind.

/// Applies batches until nothing is queued, or the lock is another thread's.
///
/// | argument | |
/// |---|---|
/// | `run_batch` | applies one batch with the lock held, *and gives the lock back*; `false` if another thread has it |
/// | `is_empty` | whether nothing is queued |
/// | `hand_over` | leaves the rest to another thread, every `max_batches` batches; `false` if there is none |
#[inline]
pub(crate) fn drain(
    max_batches: usize,
    mut run_batch: impl FnMut() -> bool,
    is_empty: impl Fn() -> bool,
    hand_over: impl Fn() -> bool,
) {
    for batches in 1.. {
        if !run_batch() || is_empty() {
            return;
        }
        if usize::is_multiple_of(batches, max_batches) && hand_over() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::drain;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// Requests that are queued, and how many were applied.
    struct Shared {
        queue: Mutex<usize>,
        applied: Mutex<usize>,
    }

    impl Shared {
        /// Applies what is queued, unless another thread does. With `looks`, the thread looks whether that was all before it
        /// gives the lock back, not after, and keeps the answer there.
        fn run_batch(&self, looks: Option<&std::cell::Cell<bool>>) -> bool {
            let Ok(mut applied) = self.applied.try_lock() else { return false };
            *applied += std::mem::take(&mut *self.queue.lock().unwrap());
            if let Some(empty) = looks {
                empty.set(*self.queue.lock().unwrap() == 0);
            }
            // Loom switches threads when a lock is taken, and by itself not just before one is given back.
            thread::yield_now();
            drop(applied);
            true
        }

        fn send(&self, looks_early: bool) {
            *self.queue.lock().unwrap() += 1;
            if looks_early {
                let empty = std::cell::Cell::new(false);
                drain(2, || self.run_batch(Some(&empty)), || empty.get(), || false);
            } else {
                drain(2, || self.run_batch(None), || *self.queue.lock().unwrap() == 0, || false);
            }
        }
    }

    fn nobody_is_left_behind(looks_early: bool) {
        loom::model(move || {
            let shared = Arc::new(Shared { queue: Mutex::new(0), applied: Mutex::new(0) });
            let theirs = Arc::clone(&shared);
            let other = thread::spawn(move || theirs.send(looks_early));
            shared.send(looks_early);
            other.join().unwrap();
            assert_eq!(*shared.queue.lock().unwrap(), 0, "a request is left behind");
            assert_eq!(*shared.applied.lock().unwrap(), 2);
        });
    }

    #[test]
    fn no_request_is_left_behind_in_any_order_of_two_threads() {
        nobody_is_left_behind(false);
    }

    #[test]
    #[should_panic(expected = "a request is left behind")]
    fn a_combiner_that_looks_at_the_queue_before_it_resigns_leaves_a_request_behind() {
        nobody_is_left_behind(true);
    }
}
