//! Small numbers for the threads of this process: no two that run at the same time have the same one, and the number of
//! one that has ended goes to the next that asks. So whatever belongs to a number belongs to one thread at a time, and needs
//! no atomic instruction to be taken.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers that were given out and came back, and the first that never was.
#[derive(Debug)]
struct Numbers {
    free: BTreeSet<u32>,
    next: u32,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: BTreeSet::new(), next: 0 });

fn numbers() -> MutexGuard<'static, Numbers> {
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

const NONE_YET: u32 = u32::MAX;
/// At its end a thread gives its number back, and has none for what it still does.
const NO_MORE: u32 = u32::MAX - 1;

thread_local! {
    /// Beside the one below because reading it takes one instruction.
    static MINE: Cell<u32> = const { Cell::new(NONE_YET) };
    static LOAN: Loan = Loan::new();
    /// Whether this thread sleeps until it gets what it asks for.
    static BLOCKS: Cell<bool> = const { Cell::new(false) };
}

/// A number, as long as its thread runs.
struct Loan(u32);

impl Loan {
    fn new() -> Self {
        let mut numbers = numbers();
        let number = numbers.free.pop_first().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        Self(number)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        MINE.set(NO_MORE);
        numbers().free.insert(self.0);
    }
}

/// The calling thread's number; a very large one if it has none.
#[inline(always)]
pub(super) fn number() -> u32 {
    match MINE.get() {
        NONE_YET => borrow(),
        number => number,
    }
}

#[cold]
fn borrow() -> u32 {
    let number = LOAN.try_with(|loan| loan.0).unwrap_or(NO_MORE);
    MINE.set(number);
    number
}

/// The calling thread's number, if it has one: for listings.
#[inline]
pub(crate) fn known() -> Option<u32> {
    Some(number()).filter(|number| *number < NO_MORE)
}

/// The same, if this thread does nothing else until it gets what it asks for: not of a task, which any thread may go on with.
pub(crate) fn that_blocks() -> Option<u32> {
    known().filter(|_| blocks())
}

pub(super) fn blocks() -> bool {
    BLOCKS.get()
}

/// What is asked for meanwhile, this thread sleeps for.
pub(crate) fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    /// Also if `wait` panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            BLOCKS.set(self.0);
        }
    }
    let _before = Before(BLOCKS.replace(true));
    wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_run_at_once_have_different_numbers() {
        let mine = number();
        let theirs = std::thread::scope(|threads| {
            threads.spawn(|| [number(), number()]).join().expect("it only asks for its number")
        });
        assert_eq!(theirs[0], theirs[1]);
        assert_ne!(mine, theirs[0]);
        assert_eq!(mine, number());
    }
}
