//! Server-side roles, driven by whoever brings them a message: no thread of their own, no hop.
//!
//! A role has a queue. Who puts something in and finds nobody at work works the queue off; everybody else goes on.
//! So a role handles one event at a time, in the order of arrival, its answers leave in that order, and it can write
//! to itself or to other roles without a deadlock. Often the asker itself is at work, and the answer is in its
//! connection's buffer before the next frame is looked at.

use super::host::VerbHost;
use super::switchboard::Switchboard;
use crate::addr::PeerId;
use crate::message::{BoxedRole, Message, Outbox};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A role that has this many events waiting takes no more: it does not keep up.
const CAPACITY: usize = 1 << 20;

/// A role and what waits for it.
pub(super) struct Seat {
    me: PeerId,
    /// Whether the role wants to know who is gone.
    wants_departures: bool,
    inside: Mutex<Inside>,
}

struct Inside {
    /// Away while somebody works the queue off; gone for good if it panicked.
    role: Option<BoxedRole>,
    at_work: bool,
    queue: VecDeque<Event>,
}

enum Event {
    Letter(PeerId, Message),
    Timer(u64),
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Seat {
    pub(super) fn new(index: usize, role: BoxedRole) -> Self {
        let wants_departures = role.wants_departures();
        let inside = Inside { role: Some(role), at_work: false, queue: VecDeque::new() };
        Self { me: PeerId::role(index), wants_departures, inside: Mutex::new(inside) }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the role a message. `false` if it is gone.
    pub(super) fn deliver<H: VerbHost>(
        self: &Arc<Self>,
        board: &Arc<Switchboard<H>>,
        from: PeerId,
        message: Message,
    ) -> bool {
        if message.kind == Message::DEPARTED && !self.wants_departures {
            return true;
        }
        self.bring(board, Event::Letter(from, message))
    }

    fn bring<H: VerbHost>(self: &Arc<Self>, board: &Arc<Switchboard<H>>, event: Event) -> bool {
        let mut inside = self.inside();
        if (inside.role.is_none() && !inside.at_work) || inside.queue.len() >= CAPACITY {
            return false;
        }
        inside.queue.push_back(event);
        if inside.at_work {
            return true;
        }
        inside.at_work = true;
        let role = inside.role.take().expect("a role is in its seat while nobody is at work");
        drop(inside);
        self.work(board, role);
        true
    }

    fn work<H: VerbHost>(self: &Arc<Self>, board: &Arc<Switchboard<H>>, mut role: BoxedRole) {
        let mut out = Outbox::default();
        loop {
            let mut inside = self.inside();
            let Some(event) = inside.queue.pop_front() else {
                inside.role = Some(role);
                inside.at_work = false;
                return;
            };
            drop(inside);
            let now = board.host.now();
            // A role that panics is lost to its peers. Whoever brought the message is not to blame.
            let handled = catch_unwind(AssertUnwindSafe(|| match &event {
                Event::Letter(from, message) => role.on_message(now, *from, message, &mut out),
                Event::Timer(id) => role.on_timer(now, *id, &mut out),
            }));
            if handled.is_err() {
                let mut inside = self.inside();
                inside.at_work = false;
                inside.queue.clear();
                return;
            }
            self.carry_out(board, &mut out);
        }
    }

    /// Verbs first, in order, then the messages, then the packets. What cannot be reached is lost, as it is for any
    /// server: roles that care learn it from the answer that does not come.
    fn carry_out<H: VerbHost>(self: &Arc<Self>, board: &Arc<Switchboard<H>>, out: &mut Outbox) {
        let mut olds = Vec::new();
        for verb in out.verbs.drain(..) {
            let _ = board.host.execute(self.me, &[verb], &mut olds);
        }
        for (to, message) in out.messages.drain(..).chain(out.datagrams.drain(..)) {
            board.post(self.me, to, message);
        }
        for (delay_ns, id) in out.timers.drain(..) {
            let (seat, board) = (Arc::downgrade(self), Arc::downgrade(board));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_nanos(delay_ns)).await;
                if let (Some(seat), Some(board)) = (seat.upgrade(), board.upgrade()) {
                    seat.bring(&board, Event::Timer(id));
                }
            });
        }
    }
}
