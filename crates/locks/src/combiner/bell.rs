//! The bell between the [list](super::queue) and whoever serves it: many threads put something down and ring, and one at a
//! time serves what waits, for all of them.
//!
//! Whoever rings and finds nobody serving has the *turn*: it takes all that waits, and looks again before it ends. Whoever
//! finds somebody goes on at once: that one will look again. So nobody waits to have something served, nothing that was
//! rung for is left when all have returned, and a lone ring is two exchanges.
//!
//! | `state` | |
//! |---|---|
//! | 0 `NOBODY` | it is nobody's turn |
//! | 1 `TURN` | it is somebody's turn, who has heard every ring so far |
//! | 2 `RUNG` | it is somebody's turn, and there was a ring since it last began to look |
//!
//! | step | change | |
//! |---|---|---|
//! | ring | `NOBODY` → `TURN`, or else any → `RUNG` | found `NOBODY`: the turn is the ringer's |
//! | begin to look | any → `TURN` | before it looks: a ring from here on is another |
//! | end | `TURN` → `NOBODY` | found `RUNG`: begin to look again |
//! | hand on | any → `NOBODY` | somebody was found who will ring |
//!
//! It is one word, and every change of it is an exchange: so rings and ends have one order, and whoever hears the last of
//! several rings sees what was put down before each of them (each exchange carries on what those before it released; a
//! mere store would not, and of two who ring at once one could be forgotten).
//!
//! **Whoever dies.** After it put something down and before it rang: that is served with the next ring, whoever's it is. In
//! its turn, by a panic: the turn is handed on, or goes on in the unwinding thread if there is nobody to hand it to; what
//! the dying one had taken and not served is its [`Clerk`]'s to keep.
//!
//! What this file must not do: know what is served, or wait.

use super::sync::atomic::AtomicU32;
use super::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::mem;

const NOBODY: u32 = 0;
const TURN: u32 = 1;
const RUNG: u32 = 2;

/// What is done in a turn.
pub trait Clerk {
    /// Serves what waits; `true` if it left something. Nobody else is here by way of the same bell.
    fn pass(&self) -> bool;

    /// Somebody who rings in a moment, so that the turn can end after so many passes though there is more to do. To be called
    /// when it has ended. `None`: the turn goes on. After a panic `passes` is zero.
    fn successor(&self, passes: usize) -> Option<impl FnOnce()>;

    /// All of a turn; for what is to be done once it is over.
    fn turn(&self, serve: impl FnOnce()) {
        serve();
    }
}

/// A bell.
///
/// ```
/// use lockwright_locks::combiner::bell::{Bell, Clerk};
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// /// Counts what waits down to nothing.
/// struct Counts(AtomicU32);
///
/// impl Clerk for Counts {
///     fn pass(&self) -> bool {
///         self.0.swap(0, Ordering::Relaxed);
///         false
///     }
///
///     fn successor(&self, _: usize) -> Option<impl FnOnce()> {
///         None::<fn()>
///     }
/// }
///
/// let (bell, waits) = (Bell::new(), Counts(AtomicU32::new(0)));
/// waits.0.fetch_add(3, Ordering::Relaxed);
/// bell.ring(&waits);
/// assert_eq!(waits.0.into_inner(), 0);
/// ```
#[derive(Debug)]
pub struct Bell {
    state: AtomicU32,
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// A bell that nobody has rung.
    pub fn new() -> Self {
        Self { state: AtomicU32::new(NOBODY) }
    }

    /// Sees to it that everything that this thread has put down is served: here, or by whoever's turn it is.
    #[inline]
    pub fn ring<C: Clerk>(&self, clerk: &C) {
        if let Some(turn) = self.turn(clerk) {
            return clerk.turn(|| turn.serve());
        }
        if self.state.swap(RUNG, AcqRel) == NOBODY {
            let turn = Turn { bell: self, clerk, looks: false };
            turn.begin();
            clerk.turn(|| turn.serve());
        }
    }

    /// Takes the turn without a ring, if it is nobody's. What is rung for before it is dropped is served then.
    #[inline]
    pub fn turn<'a, C: Clerk>(&'a self, clerk: &'a C) -> Option<Turn<'a, C>> {
        let taken = self.state.compare_exchange(NOBODY, TURN, AcqRel, Relaxed).is_ok();
        taken.then(|| Turn { bell: self, clerk, looks: false })
    }
}

/// Somebody's turn.
#[derive(Debug)]
pub struct Turn<'a, C: Clerk> {
    bell: &'a Bell,
    clerk: &'a C,
    /// A pass is under way.
    looks: bool,
}

impl<C: Clerk> Turn<'_, C> {
    /// Whatever rings from here on will be heard at the end.
    #[inline]
    fn begin(&self) {
        self.bell.state.swap(TURN, AcqRel);
    }

    /// Ends the turn, unless somebody has rung since it began to look.
    #[inline]
    fn end(&self) -> bool {
        self.bell.state.compare_exchange(TURN, NOBODY, AcqRel, Acquire).is_ok()
    }

    /// Ends the turn though there is more to do, if somebody will go on with it.
    fn hand_on(&self, passes: usize) -> bool {
        let Some(successor) = self.clerk.successor(passes) else { return false };
        // First: its ring must find the turn free.
        self.bell.state.swap(NOBODY, AcqRel);
        successor();
        true
    }

    /// Serves until nothing is left that was rung for.
    #[inline]
    fn serve(mut self) {
        for passes in 1.. {
            self.looks = true;
            let left = self.clerk.pass();
            self.looks = false;
            if !left && self.end() || self.hand_on(passes) {
                break;
            }
            self.begin();
        }
        mem::forget(self);
    }
}

impl<C: Clerk> Drop for Turn<'_, C> {
    fn drop(&mut self) {
        // Out of a panic in a pass, it is not known what that has left.
        if !self.looks && self.end() || self.looks && self.hand_on(0) {
            return;
        }
        let turn = Turn { bell: self.bell, clerk: self.clerk, looks: false };
        turn.begin();
        self.clerk.turn(|| turn.serve());
    }
}
