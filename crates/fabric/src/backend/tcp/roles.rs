//! Server-side roles, run by the task that delivers a message: no thread of their own, no hop.
//!
//! A role has a queue. A task that enqueues an event and finds the role idle drains the queue; other tasks only enqueue.
//! So a role handles one event at a time, in the order of arrival, its answers leave in that order, and it can send to
//! itself or to other roles without a deadlock. Usually the answer is in the sender's output buffer before the sender's next
//! frame is read.

use super::host::VerbHost;
use super::router::Router;
use crate::addr::PeerId;
use crate::message::{BoxedRole, Message, Outbox};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most events that wait for a role; further messages fail.
const CAPACITY: usize = 1 << 20;

/// A role and its queue.
pub(super) struct RoleRunner {
    me: PeerId,
    wants_departures: bool,
    state: Mutex<State>,
}

struct State {
    /// `None` while a task drains the queue, and for good if the role panicked.
    role: Option<BoxedRole>,
    busy: bool,
    queue: VecDeque<Event>,
}

enum Event {
    Message(PeerId, Message),
    Timer(u64),
}

impl fmt::Debug for RoleRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoleRunner").field("me", &self.me).finish_non_exhaustive()
    }
}

impl RoleRunner {
    pub(super) fn new(index: usize, role: BoxedRole) -> Self {
        let wants_departures = role.wants_departures();
        let state = State { role: Some(role), busy: false, queue: VecDeque::new() };
        Self { me: PeerId::role(index), wants_departures, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a message to the role. `false` if the role is gone or its queue is full.
    pub(super) fn deliver<H: VerbHost>(
        self: &Arc<Self>,
        router: &Arc<Router<H>>,
        from: PeerId,
        message: Message,
    ) -> bool {
        if message.kind == Message::DEPARTED && !self.wants_departures {
            return true;
        }
        self.enqueue(router, Event::Message(from, message))
    }

    fn enqueue<H: VerbHost>(self: &Arc<Self>, router: &Arc<Router<H>>, event: Event) -> bool {
        let mut state = self.state();
        if (state.role.is_none() && !state.busy) || state.queue.len() >= CAPACITY {
            return false;
        }
        state.queue.push_back(event);
        if state.busy {
            return true;
        }
        state.busy = true;
        let role = state.role.take().expect("an idle role is in place");
        drop(state);
        self.drain(router, role);
        true
    }

    fn drain<H: VerbHost>(self: &Arc<Self>, router: &Arc<Router<H>>, mut role: BoxedRole) {
        let mut out = Outbox::default();
        loop {
            let mut state = self.state();
            let Some(event) = state.queue.pop_front() else {
                state.role = Some(role);
                state.busy = false;
                return;
            };
            drop(state);
            let now = router.host.now();
            // A role that panics is lost to its peers; the client that sent the message goes on.
            let handled = catch_unwind(AssertUnwindSafe(|| match &event {
                Event::Message(from, message) => role.on_message(now, *from, message, &mut out),
                Event::Timer(id) => role.on_timer(now, *id, &mut out),
            }));
            if handled.is_err() {
                let mut state = self.state();
                state.busy = false;
                state.queue.clear();
                return;
            }
            self.execute_outbox(router, &mut out);
        }
    }

    /// Verbs in order, then messages, then datagrams. Failures are ignored: a role notices by the missing answer.
    fn execute_outbox<H: VerbHost>(self: &Arc<Self>, router: &Arc<Router<H>>, out: &mut Outbox) {
        let mut olds = Vec::new();
        for verb in out.verbs.drain(..) {
            let _ = router.host.execute(self.me, &[verb], &mut olds);
        }
        for (to, message) in out.messages.drain(..).chain(out.datagrams.drain(..)) {
            router.deliver(self.me, to, message);
        }
        for (delay_ns, id) in out.timers.drain(..) {
            let (runner, router) = (Arc::downgrade(self), Arc::downgrade(router));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_nanos(delay_ns)).await;
                if let (Some(runner), Some(router)) = (runner.upgrade(), router.upgrade()) {
                    runner.enqueue(&router, Event::Timer(id));
                }
            });
        }
    }
}
