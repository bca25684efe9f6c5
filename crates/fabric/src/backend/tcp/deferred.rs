//! Messages that nobody waits for leave with the next one: an unlock that is followed by a lock at once costs no write of its own.
//!
//! A connection defers such a message only if the last [`ENOUGH`] of them were each followed by another message within [`SOON`]. If
//! the guess is wrong, a thread of the process writes it within two [`TICK`]s, and the connection defers nothing until as many were
//! followed again. So a wrong guess delays one message in that many, by a fifth of a millisecond at most.
//!
//! | `followed` | a message that can wait |
//! |---|---|
//! | less than [`ENOUGH`] | is written at once |
//! | [`ENOUGH`] | is deferred |
//!
//! The thread sleeps while no connection defers.

use super::outgoing::Outgoing;
use crate::backend::fork::Owner;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A message that comes so soon after another is one that could have taken it along.
const SOON: Duration = Duration::from_micros(20);
/// So many in a row make a connection defer.
const ENOUGH: u8 = 16;
/// How often deferred messages are looked at.
const TICK: Duration = Duration::from_micros(100);
/// After so many looks without a deferred message a connection is not looked at any more.
const IDLE_LOOKS: u8 = 100;

/// What a connection knows of its messages that can wait.
#[derive(Debug, Default)]
pub(super) struct Deferral {
    /// When the last one came, if nothing has followed it.
    last: Option<Instant>,
    /// How many in a row were followed soon.
    followed: u8,
    /// One is in the buffer, and how often it was looked at there.
    waits: bool,
    looks: u8,
    /// Whether the thread looks at this connection.
    pub(super) is_watched: bool,
}

impl Deferral {
    /// A message that can wait has come: whether it is deferred.
    pub(super) fn defer(&mut self, now: Instant) -> bool {
        self.follow(now);
        self.last = Some(now);
        (self.waits, self.looks) = (self.followed == ENOUGH, 0);
        self.waits
    }

    /// Another message has come.
    pub(super) fn follow(&mut self, now: Instant) {
        if let Some(last) = self.last.take() {
            let soon = now.saturating_duration_since(last) <= SOON;
            self.followed = if soon { (self.followed + 1).min(ENOUGH) } else { 0 };
        }
    }

    /// The buffer was written.
    pub(super) fn written(&mut self) {
        self.waits = false;
    }

    /// The thread could not be had: nothing is deferred for a while.
    pub(super) fn give_up(&mut self) {
        (self.followed, self.waits) = (0, false);
    }

    /// The thread looks: what to do.
    pub(super) fn look(&mut self) -> Look {
        self.looks += 1;
        if self.waits && self.looks > 1 {
            self.give_up();
            return Look::Write;
        }
        if self.looks >= IDLE_LOOKS {
            self.is_watched = false;
            return Look::Leave;
        }
        Look::Stay
    }
}

/// What comes of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Stay,
    /// A message has waited for long enough.
    Write,
    /// This connection defers nothing any more.
    Leave,
}

/// Connections that the thread looks at.
#[derive(Debug, Default)]
struct Watched {
    connections: Mutex<Vec<Weak<Outgoing>>>,
    some: Condvar,
}

impl Watched {
    fn connections(&self) -> MutexGuard<'_, Vec<Weak<Outgoing>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1000));
        loop {
            let none = |connections: &mut Vec<_>| connections.is_empty();
            let waited = self.some.wait_while(self.connections(), none);
            let mut taken = std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner));
            std::thread::sleep(TICK);
            taken.retain(|connection| {
                connection.upgrade().is_some_and(|connection| connection.look_at_deferred())
            });
            self.connections().append(&mut taken);
        }
    }
}

/// The thread of this process, and who started it: a child that was forked off has none of its parent's threads.
static THREAD: Mutex<Option<(Owner, Arc<Watched>)>> = Mutex::new(None);

/// Has the thread look at `connection`. `false` if there is none and none can be started.
pub(super) fn watch(connection: &Arc<Outgoing>) -> bool {
    // In a child that was forked off, another thread of the parent may have it locked for ever.
    let Ok(mut thread) = THREAD.try_lock() else { return false };
    if thread.as_ref().is_none_or(|(owner, _)| !owner.is_current()) {
        let watched = Arc::<Watched>::default();
        let theirs = Arc::clone(&watched);
        let named = std::thread::Builder::new().name("lockwright-defer".to_owned());
        if named.spawn(move || theirs.run()).is_err() {
            return false;
        }
        *thread = Some((Owner::current(), watched));
    }
    let Some((_, watched)) = &*thread else { return false };
    watched.connections().push(Arc::downgrade(connection));
    watched.some.notify_one();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that can wait, and another one `after` it: whether the first was deferred.
    fn pair(deferral: &mut Deferral, now: &mut Instant, after: Duration) -> bool {
        let deferred = deferral.defer(*now);
        *now += after;
        deferral.follow(*now);
        deferral.written();
        *now += SOON * 10;
        deferred
    }

    #[test]
    fn a_message_is_deferred_after_many_that_were_followed_soon_and_after_one_that_was_not_no_more() {
        let (mut deferral, mut now) = (Deferral::default(), Instant::now());
        for _ in 0..ENOUGH {
            assert!(!pair(&mut deferral, &mut now, SOON));
        }
        assert!(pair(&mut deferral, &mut now, SOON * 2));
        for _ in 0..ENOUGH {
            assert!(!pair(&mut deferral, &mut now, SOON));
        }
        assert!(pair(&mut deferral, &mut now, SOON));
    }

    #[test]
    fn a_message_that_nothing_follows_is_written_at_the_second_look() {
        let (mut deferral, mut now) = (Deferral::default(), Instant::now());
        for _ in 0..ENOUGH {
            pair(&mut deferral, &mut now, SOON);
        }
        assert!(deferral.defer(now));
        assert_eq!([deferral.look(), deferral.look()], [Look::Stay, Look::Write]);
        assert!(!deferral.defer(now), "not again for a while");
        let mut looks = (0..IDLE_LOOKS).map(|_| deferral.look());
        assert!(looks.any(|look| look == Look::Leave), "a connection that defers nothing is left alone");
    }
}
