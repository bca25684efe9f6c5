//! A list of wakers from which a task can remove itself.

use std::task::Waker;

/// Wakers of tasks, each under a key.
#[derive(Debug, Default)]
pub(in crate::backend) struct Wakers {
    waiting: Vec<(u64, Waker)>,
    next: u64,
}

impl Wakers {
    /// Adds `waker`, or replaces the one under the key in `slot`.
    pub(in crate::backend) fn keep(&mut self, slot: &mut Option<u64>, waker: &Waker) {
        let number = *slot.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        match self.waiting.iter_mut().find(|(other, _)| *other == number) {
            Some((_, old)) => old.clone_from(waker),
            None => self.waiting.push((number, waker.clone())),
        }
    }

    /// Removes the waker under the key in `slot`, if it is still there.
    pub(in crate::backend) fn leave(&mut self, slot: &mut Option<u64>) {
        if let Some(number) = slot.take() {
            self.waiting.retain(|(other, _)| *other != number);
        }
    }

    /// Removes all wakers, to be woken once no lock is held.
    pub(in crate::backend) fn take(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, waker)| waker).collect()
    }
}

/// Wakes all. Not to be called under a lock: a waker may run any code.
pub(in crate::backend) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        waker.wake();
    }
}
