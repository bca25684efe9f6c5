//! The tasks that wait for one thing, and how they are woken.

use std::task::Waker;

/// Tasks that wait, each under a number of its own so that it can leave again.
#[derive(Debug, Default)]
pub(in crate::backend) struct Wakers {
    waiting: Vec<(u64, Waker)>,
    next: u64,
}

impl Wakers {
    /// Puts `waker` in, under the number in `slot` if it has one already.
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

    /// Takes the task with the number in `slot` out, if it is there.
    pub(in crate::backend) fn leave(&mut self, slot: &mut Option<u64>) {
        if let Some(number) = slot.take() {
            self.waiting.retain(|(other, _)| *other != number);
        }
    }

    /// Takes everybody out, to be woken once no lock is held.
    pub(in crate::backend) fn take(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, waker)| waker).collect()
    }
}

/// Wakes them. Never call it under a lock: a waker may run anything.
pub(in crate::backend) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        waker.wake();
    }
}
